//! Cutting by one placement strategy: the operators that the strategy keeps on the agents and that
//! may run there are below the cut, the others above.

use std::sync::Arc;

use weir_model::{Capabilities, Declaration, Shape, Type, Unit, Value};

use super::lifetime;
use super::local::{self, RowProperties};
use super::{Cut, CutOptions, Fragment, PlacementStrategy, Reason};
use crate::expr::Expr;
use crate::optimize;
use crate::place::demands;
use crate::place::explain::span_text;
use crate::plan::{Node, Plan, SetOp, ToStream};

/// A part of the plan, with its location.
enum Lowered {
    /// On the agents so far.
    Agents {
        plan: Arc<Plan>,
        row_properties: RowProperties,
    },
    /// At the monitor, over the rows from the agents.
    Monitor(Arc<Plan>),
}

struct Lowering<'a> {
    strategy: PlacementStrategy,
    options: &'a CutOptions,
    fragments: Vec<Fragment>,
    reasons: Vec<Reason>,
}

/// Cuts a plan by this strategy.
pub(super) fn lower(plan: &Plan, strategy: PlacementStrategy, options: &CutOptions) -> Cut {
    let mut lowering = Lowering {
        strategy,
        options,
        fragments: Vec::new(),
        reasons: Vec::new(),
    };
    let lowered = lowering.visit(&Arc::new(plan.clone()), false);
    let monitor = lowering.sent(lowered);
    // From the result down, the order in which the plan is read.
    lowering.reasons.reverse();
    let cut = Cut {
        strategy,
        candidates: Vec::new(),
        fragments: lowering.fragments,
        monitor: (*monitor).clone(),
        reasons: lowering.reasons,
    };
    without_twins(narrowed(cut))
}

/// The output of a fragment, as a source.
pub(super) fn declaration(fragment: &Plan, name: String) -> Declaration {
    Declaration {
        doc: "what the agents send".into(),
        ..Declaration::new(name, fragment.shape, fragment.schema.clone())
    }
}

impl Lowering<'_> {
    /// The location of a plan. With `arrivals`, the arrival of rows is relevant, whether they pass
    /// or not.
    fn visit(&mut self, plan: &Arc<Plan>, arrivals: bool) -> Lowered {
        if let Node::Source(declaration) = &plan.node {
            return self.source(plan, declaration);
        }
        let has_slide = !matches!(
            plan.node,
            Node::ToStream {
                kind: ToStream::Rstream { every: None },
                ..
            }
        );
        let arrivals = arrivals || !has_slide;
        let inputs = plan.inputs().into_iter();
        let inputs: Vec<Lowered> = inputs.map(|input| self.visit(input, arrivals)).collect();
        let mut why = match self.on_agents(plan, &inputs, arrivals) {
            Ok(lowered) => return lowered,
            Err(why) => why,
        };
        if self.strategy != PlacementStrategy::Rows
            && let (Node::Aggregate { .. }, [Lowered::Agents { .. }]) = (&plan.node, &inputs[..])
        {
            match self.in_parts(plan) {
                Ok(merged) => return Lowered::Monitor(merged),
                Err(cause) => {
                    why = why
                        .map(|why| format!("{why}, and it is not computed from partials: {cause}"));
                }
            }
        }
        if let Some(why) = why {
            self.reasons.push(Reason {
                operator: plan.title_in(&|instants| span_text(instants, self.options.second)),
                why,
            });
        }
        let inputs = inputs.into_iter().map(|input| self.sent(input)).collect();
        Lowered::Monitor(with_inputs(plan, inputs))
    }

    fn source(&self, plan: &Arc<Plan>, declaration: &Declaration) -> Lowered {
        let mut of_monitor = self.options.monitor_sources.iter();
        match of_monitor.any(|name| name.eq_ignore_ascii_case(&declaration.name)) {
            true => Lowered::Monitor(plan.clone()),
            false => Lowered::Agents {
                plan: plan.clone(),
                row_properties: RowProperties::of_source(declaration),
            },
        }
    }

    /// The plan on the agents, if it may run there and the strategy keeps it. Otherwise the reason,
    /// if it reads sources of the agents.
    fn on_agents(
        &self,
        plan: &Arc<Plan>,
        inputs: &[Lowered],
        arrivals: bool,
    ) -> Result<Lowered, Option<String>> {
        let (mut plans, mut local_properties) = (Vec::new(), Vec::new());
        for input in inputs {
            if let Lowered::Agents {
                plan,
                row_properties,
            } = input
            {
                plans.push(plan.clone());
                local_properties.push(row_properties.clone());
            }
        }
        if plans.is_empty() {
            return Err(None);
        }
        if plans.len() < inputs.len() {
            return Err(Some("its other input is at the monitor".into()));
        }
        let row_properties = local::row_properties(plan, &local_properties).map_err(Some)?;
        self.is_wanted(plan, arrivals).map_err(Some)?;
        let plan = with_inputs(plan, plans);
        lifetime::lifetime(&plan).map_err(Some)?;
        Ok(Lowered::Agents {
            plan,
            row_properties,
        })
    }

    /// Whether the strategy has such an operator on the agents.
    fn is_wanted(&self, plan: &Plan, arrivals: bool) -> Result<(), String> {
        match plan.node {
            // A window is computed again where its rows are received.
            Node::Source(_) | Node::Project { .. } | Node::Window { .. } => Ok(()),
            _ if arrivals => Err("rstream without EVERY emits rows whenever a row arrives".into()),
            Node::Select { .. } => Ok(()),
            _ if self.strategy == PlacementStrategy::Agent => Ok(()),
            _ => Err(format!(
                "it can run on the agents with strategy `{}`",
                PlacementStrategy::Agent
            )),
        }
    }

    /// An aggregation computed from the partials of each agent.
    fn in_parts(&mut self, aggregate: &Plan) -> Result<Arc<Plan>, String> {
        let Node::Aggregate {
            input,
            keys,
            calls,
            global,
        } = &aggregate.node
        else {
            unreachable!("only aggregations come here");
        };
        if let Some(call) = calls.iter().find(|call| !call.splits()) {
            let name = call.function.doc().name;
            return Err(match call.distinct {
                true => format!("`{name}(distinct ..)` needs all values"),
                false => format!("`{name}` needs the rows in order"),
            });
        }
        let paned = paned(input)?;
        let args = calls.iter().flat_map(|call| &call.args);
        let filled = intake(&paned.stream);
        let mut reads_filled = false;
        for expr in keys.iter().chain(args) {
            expr.visit_columns(&mut |at| reads_filled |= filled.contains(&at));
        }
        if reads_filled {
            return Err("it reads the time at which the monitor received a row".into());
        }
        let named = aggregate.schema.fields[..keys.len()].to_vec();
        let Paned {
            stream,
            size,
            slide,
        } = paned;
        let partial = Plan::partial(stream, slide, keys.clone(), calls.clone(), named);
        let sent = self.fragment(&partial);
        let fields = aggregate.schema.fields.clone();
        Ok(Plan::merge(
            sent,
            (size, slide),
            keys.len(),
            calls.clone(),
            *global,
            fields,
        ))
    }

    /// A plan as read by the monitor.
    fn sent(&mut self, lowered: Lowered) -> Arc<Plan> {
        match lowered {
            Lowered::Monitor(plan) => plan,
            Lowered::Agents { plan, .. } => self.send(&plan),
        }
    }

    /// Ends the local part. Rows in a window are inserted and retracted: they are sent once, as a
    /// stream, and the monitor computes the window. So the passing of time removes the rows of an
    /// agent, whether it is still connected or not.
    fn send(&mut self, plan: &Arc<Plan>) -> Arc<Plan> {
        if !is_seen_through_windows(plan) {
            let Some((stream, window)) = lifetime::as_stream(plan) else {
                return self.fragment(plan);
            };
            let sent = Plan::window(self.fragment(&stream), window);
            let columns = sent.columns().into_iter().take(plan.schema.len());
            return match sent.schema.len() == plan.schema.len() {
                true => sent,
                false => Plan::project(sent, columns.collect(), plan.schema.fields.clone()),
            };
        }
        let inputs = plan.inputs().into_iter();
        let inputs = inputs.map(|input| self.send(input)).collect();
        with_inputs(plan, inputs)
    }

    /// The source for the output of `plan` on the agents.
    fn fragment(&mut self, plan: &Arc<Plan>) -> Arc<Plan> {
        let at = self.fragments.iter().position(|f| f.plan == **plan);
        let at = at.unwrap_or_else(|| {
            self.fragments.push(Fragment {
                plan: (**plan).clone(),
                intake: intake(plan),
            });
            self.fragments.len() - 1
        });
        Plan::source(declaration(plan, Cut::source_name(at)))
    }
}

/// A stream read through a window that consists of intervals.
struct Paned {
    stream: Arc<Plan>,
    /// The size of the window; without, it is unbounded.
    size: Option<i64>,
    slide: i64,
}

/// Selections and projections commute with a window of time.
fn paned(plan: &Arc<Plan>) -> Result<Paned, String> {
    match &plan.node {
        Node::Select { input, .. } | Node::Project { input, .. } => {
            let below = paned(input)?;
            let stream = with_inputs(plan, vec![below.stream]);
            Ok(Paned { stream, ..below })
        }
        Node::Window { input, window } if input.shape == Shape::Stream => {
            let (size, slide) = window.kind().whole_slides()?;
            Ok(Paned {
                stream: input.clone(),
                size,
                slide,
            })
        }
        _ => Err("its input is not a window of a plain stream".into()),
    }
}

/// The columns of a local plan that the monitor fills.
fn intake(plan: &Plan) -> Vec<usize> {
    local::local_properties(plan).intake
}

/// Whether it is one or several streams read through windows.
pub(super) fn is_seen_through_windows(plan: &Plan) -> bool {
    match &plan.node {
        Node::Window { input, .. } => {
            input.shape == Shape::Stream || is_seen_through_windows(input)
        }
        Node::Select { input, .. } | Node::Project { input, .. } => is_seen_through_windows(input),
        Node::SetOp {
            left,
            right,
            op: SetOp::Union,
            all: true,
        } => is_seen_through_windows(left) && is_seen_through_windows(right),
        _ => false,
    }
}

/// The same node over inputs of the same columns, with the same columns.
fn with_inputs(plan: &Arc<Plan>, inputs: Vec<Arc<Plan>>) -> Arc<Plan> {
    Arc::new(Plan {
        schema: plan.schema.clone(),
        ..(*plan.with_inputs(inputs)).clone()
    })
}

/// The cut with only those columns of fragments that the monitor reads.
fn narrowed(mut cut: Cut) -> Cut {
    let wanted = demands(&[&cut.monitor], &Capabilities::default());
    let mut narrow = false;
    for (at, fragment) in cut.fragments.iter_mut().enumerate() {
        let name = Cut::source_name(at);
        let columns = wanted.iter().find(|d| d.stream == name);
        let columns = &columns.expect("the monitor reads every fragment").columns;
        let width = fragment.plan.schema.len();
        if columns.len() == width {
            continue;
        }
        let whole = fragment.plan.clone();
        fragment.plan = projected(&whole, columns);
        fragment.intake = (0..columns.len())
            .filter(|new| fragment.intake.contains(&columns[*new]))
            .collect();
        let narrower = Plan::source(declaration(&fragment.plan, name.clone()));
        let again = widened(&narrower, &whole, columns);
        cut.monitor = (*over(&Arc::new(cut.monitor), &name, &again)).clone();
        narrow = true;
    }
    if narrow {
        let monitor = Arc::new(cut.monitor);
        cut.monitor = (*optimize::without_unread(&monitor)).clone();
    }
    cut
}

/// The plan with these columns.
fn projected(plan: &Plan, columns: &[usize]) -> Plan {
    let fields = columns.iter().map(|at| plan.schema[*at].clone()).collect();
    let (input, all) = match &plan.node {
        Node::Project { input, exprs } => (input.clone(), exprs.clone()),
        _ => (Arc::new(plan.clone()), plan.columns()),
    };
    let exprs = columns.iter().map(|at| all[*at].clone()).collect();
    (*Plan::project(input, exprs, fields)).clone()
}

/// The columns of `whole` over a plan that has only `columns` of them; the others are not read.
fn widened(narrow: &Arc<Plan>, whole: &Plan, columns: &[usize]) -> Arc<Plan> {
    let own = narrow.columns();
    let exprs = (0..whole.schema.len()).map(|at| match columns.binary_search(&at) {
        Ok(new) => own[new].clone(),
        Err(_) => null(whole.schema[at].ty, whole.schema[at].unit),
    });
    let fields = whole.schema.fields.clone();
    Plan::project(narrow.clone(), exprs.collect(), fields)
}

fn null(ty: Type, unit: Unit) -> Expr {
    Expr::Literal {
        value: Value::Null,
        ty,
        unit,
    }
}

/// The plan with `again` in place of the source with that name.
fn over(plan: &Arc<Plan>, name: &str, again: &Arc<Plan>) -> Arc<Plan> {
    match &plan.node {
        Node::Source(declaration) if declaration.name == name => again.clone(),
        _ => {
            let inputs = plan.inputs().into_iter();
            with_inputs(plan, inputs.map(|input| over(input, name, again)).collect())
        }
    }
}

/// The cut without duplicate fragments.
fn without_twins(cut: Cut) -> Cut {
    let mut kept: Vec<Fragment> = Vec::new();
    let mut names = Vec::new();
    for fragment in &cut.fragments {
        let at = kept.iter().position(|k| k == fragment).unwrap_or_else(|| {
            kept.push(fragment.clone());
            kept.len() - 1
        });
        names.push(Cut::source_name(at));
    }
    Cut {
        monitor: cut.monitor_over(&names),
        fragments: kept,
        ..cut
    }
}
