//! `weir explain` for a fleet: the parts of a query in the kernel, on the agents and at the
//! monitor, the reasons, and the costs of the placement strategies.

use std::fmt::{self, Display, Formatter};

use crate::place::explain::{json_text, span_text};
use crate::place::{Explanation, Location, Operator, explain_placed, place};
use crate::plan::{Node, Plan};

use super::{Candidate, Cost, Cut, CutOptions, PlacementStrategy, cost};

/// The costs of a fragment for an agent, per second.
#[derive(Clone, Debug, PartialEq)]
pub struct FragmentCost {
    /// Estimated from rates.
    pub estimated: Cost,
    /// As measured, the mean over the agents.
    pub measured: Option<Cost>,
}

/// A cut query with locations and costs.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetExplanation {
    /// The operators: those of the monitor, and below them those of the fragments that they read.
    pub plan: Explanation,
    /// The chosen strategy.
    pub strategy: PlacementStrategy,
    /// All strategies with their costs.
    pub candidates: Vec<Candidate>,
    /// By fragment.
    pub fragments: Vec<FragmentCost>,
}

/// The location of each operator of a cut query. Measurements are in the options' rates.
pub fn explain_cut(cut: &Cut, options: &CutOptions) -> FleetExplanation {
    let mut explainer = FleetExplainer {
        cut,
        options,
        fragments: Vec::new(),
        described: Vec::new(),
        operators: Vec::new(),
    };
    let plans: Vec<&Plan> = cut.fragments.iter().map(|f| &f.plan).collect();
    let placement = place(&plans, &options.capabilities);
    for plan in plans {
        let fragment = explain_placed(plan, &placement, options.second);
        explainer.fragments.push(fragment);
    }
    explainer.monitor(&cut.monitor, 0);
    let mut demands = Vec::new();
    let mut sources = Vec::new();
    for fragment in &explainer.fragments {
        for (demand, source) in fragment.demands.iter().zip(&fragment.sources) {
            if !demands.contains(demand) {
                demands.push(demand.clone());
                sources.push(source.clone());
            }
        }
    }
    let costs = cut.fragments.iter().map(|fragment| FragmentCost {
        estimated: cost::estimated(&fragment.plan, &unmeasured(&fragment.plan, options)),
        measured: cost::measured(&fragment.plan, options),
    });
    FleetExplanation {
        plan: Explanation {
            operators: explainer.operators,
            demands,
            sources,
        },
        strategy: cut.strategy,
        candidates: cut.candidates.clone(),
        fragments: costs.collect(),
    }
}

/// The same options without the measurements of this fragment.
fn unmeasured(fragment: &Plan, options: &CutOptions) -> CutOptions {
    let mut options = options.clone();
    options.rates.measured.retain(|m| m.plan != *fragment);
    options
}

struct FleetExplainer<'a> {
    cut: &'a Cut,
    options: &'a CutOptions,
    /// Each fragment separately.
    fragments: Vec<Explanation>,
    /// The fragments that were described already.
    described: Vec<usize>,
    operators: Vec<Operator>,
}

impl FleetExplainer<'_> {
    /// Adds an operator of the monitor and all below it.
    fn monitor(&mut self, plan: &Plan, depth: usize) {
        if let Some(fragment) = fragment_of(plan) {
            return self.fragment(fragment, depth);
        }
        let title = plan.title_in(&|instants| span_text(instants, self.options.second));
        let reasons = self.cut.reasons.iter();
        let why = reasons
            .filter(|r| r.operator == title)
            .map(|r| r.why.clone());
        let notes = why.take(1).collect();
        let columns = plan.schema.fields.iter();
        self.operators.push(Operator {
            depth,
            title,
            columns: columns.map(|f| (f.name.clone(), f.ty, f.unit)).collect(),
            shape: plan.shape,
            place: Location::Monitor,
            notes,
        });
        for input in plan.inputs() {
            self.monitor(input, depth + 1);
        }
    }

    fn fragment(&mut self, number: usize, depth: usize) {
        let operators = &self.fragments[number].operators;
        let again = self.described.contains(&number);
        let shown = if again { &operators[..1] } else { operators };
        for (at, operator) in shown.iter().enumerate() {
            let mut operator = operator.clone();
            operator.depth += depth;
            if at == 0 {
                operator.notes.insert(0, self.sending(number, again));
            }
            self.operators.push(operator);
        }
        self.described.push(number);
    }

    /// The description of a fragment in the monitor's plan.
    fn sending(&self, number: usize, again: bool) -> String {
        let fragment = &self.cut.fragments[number];
        let filled = fragment.intake.iter();
        let filled: Vec<&str> = filled
            .map(|at| fragment.plan.schema[*at].name.as_str())
            .collect();
        let filled = match filled.as_slice() {
            [] => String::new(),
            names => format!("; the monitor fills in {}", names.join(", ")),
        };
        let again = if again { ", as above" } else { "" };
        format!("fragment {number}{again}: each agent sends the result to the monitor{filled}")
    }
}

/// The fragment of a source of the monitor.
fn fragment_of(plan: &Plan) -> Option<usize> {
    match &plan.node {
        Node::Source(declaration) => declaration.name.strip_prefix('#')?.parse().ok(),
        _ => None,
    }
}

impl Display for FleetExplanation {
    /// The tree with locations, then the costs of each fragment and each strategy.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.plan)?;
        let head = [
            "per agent and second",
            "rows in",
            "rows out",
            "bytes out",
            "cpu us",
        ];
        let mut lines = vec![head.map(String::from).to_vec()];
        for (number, fragment) in self.fragments.iter().enumerate() {
            lines.push(line(
                format!("fragment {number}, estimated"),
                &fragment.estimated,
            ));
            if let Some(measured) = &fragment.measured {
                lines.push(line(format!("fragment {number}, measured"), measured));
            }
        }
        for candidate in &self.candidates {
            let chosen = if candidate.strategy == self.strategy {
                " (chosen)"
            } else {
                ""
            };
            let name = format!("strategy {}{chosen}", candidate.strategy);
            match &candidate.cost {
                Ok(cost) => lines.push(line(name, cost)),
                Err(why) => lines.push(vec![name, why.clone()]),
            }
        }
        let full = || lines.iter().filter(|line| line.len() == head.len());
        let width = |at: usize| {
            full()
                .map(|line| line[at].chars().count())
                .max()
                .unwrap_or(0)
        };
        let first = lines
            .iter()
            .map(|line| line[0].chars().count())
            .max()
            .unwrap_or(0);
        for line in &lines {
            write!(f, "{:first$}", line[0])?;
            match &line[1..] {
                [why] => write!(f, "  {why}")?,
                values => {
                    for (at, value) in values.iter().enumerate() {
                        write!(f, "  {value:>0$}", width(at + 1))?;
                    }
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

fn line(name: String, cost: &Cost) -> Vec<String> {
    let numbers = [
        cost.rows_in,
        cost.rows_out,
        cost.bytes_out,
        cost.cpu_ns / 1_000.0,
    ];
    [name].into_iter().chain(numbers.map(short)).collect()
}

/// Three significant digits: `0.12`, `9000`.
fn short(value: f64) -> String {
    let decimals = match value.abs() {
        x if x < 1.0 => 2,
        x if x < 100.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

impl FleetExplanation {
    /// As one JSON object: `{"operators": [..], "demands": [..], "strategy": "..", "fragments":
    /// [{"estimated": {..}, "measured": {..}}], "strategys": [..]}`. Costs are per agent and second:
    /// `rows_in`, `rows_out`, `bytes_out`, `cpu_ns`.
    pub fn to_json(&self) -> String {
        let fragments = self.fragments.iter().map(|fragment| {
            let measured = fragment.measured.as_ref();
            let measured = measured.map_or("null".into(), cost_json);
            let estimated = cost_json(&fragment.estimated);
            format!("{{\"estimated\":{estimated},\"measured\":{measured}}}")
        });
        let strategies = self.candidates.iter().map(|candidate| {
            let (cost, why) = match &candidate.cost {
                Ok(cost) => (cost_json(cost), "null".into()),
                Err(why) => ("null".into(), json_text(why)),
            };
            let strategy = candidate.strategy;
            format!("{{\"strategy\":\"{strategy}\",\"cost\":{cost},\"why_not\":{why}}}")
        });
        let plan = self.plan.to_json();
        format!(
            "{},\"strategy\":\"{}\",\"fragments\":[{}],\"strategies\":[{}]}}",
            plan.strip_suffix('}').expect("it is an object"),
            self.strategy,
            fragments.collect::<Vec<_>>().join(","),
            strategies.collect::<Vec<_>>().join(","),
        )
    }
}

fn cost_json(cost: &Cost) -> String {
    format!(
        "{{\"rows_in\":{},\"rows_out\":{},\"bytes_out\":{},\"cpu_ns\":{}}}",
        cost.rows_in, cost.rows_out, cost.bytes_out, cost.cpu_ns
    )
}
