//! The local operators: their results on each agent, united, are the same as over the rows of all
//! agents.
//!
//! Operators on single rows are local: selections, projections, windows of time. Operators that
//! compare rows are local if rows of different hosts never match: groups, joins and others whose
//! key contains a column that identifies the host (`host`, `req_id`), followed through projections.
//! There are three special cases:
//!
//! - An aggregation without keys has a row even without input, on every host.
//! - A row in the net changes (`Istream`, `Dstream`) may be retracted on one host and inserted on
//!   another, unless rows are only inserted, or identify their host.
//! - An outer join makes columns NULL, and NULL does not identify a host.

use std::sync::Arc;

use weir_model::{Declaration, Value};

use crate::expr::{BinaryOp, Expr};
use crate::plan::{JoinKind, Node, Plan, SetOp, ToStream, Window};

/// Names of the column with the host: ours, and the thesis's in scripts that declare `IOstream`
/// themselves.
const HOST: [&str; 2] = ["host", "IP"];

/// Names of the column with the number of a request.
const REQUEST: [&str; 2] = ["req_id", "ReqId"];

/// Names of the column that only the monitor can fill.
const INTAKE: [&str; 2] = ["monitor_ts", "MtrTS"];

/// How a column identifies the host. Equality of two columns of the same kind implies the same
/// host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tells {
    /// It is the host's name.
    Host,
    /// It is the number of a request.
    Request,
}

/// The known properties of the rows of a local plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Facts {
    /// Columns that identify the host; none of them is ever NULL.
    tells: Vec<(usize, Tells)>,
    /// All rows are of the host with this name.
    only: Option<Value>,
    /// Columns that the monitor fills.
    pub intake: Vec<usize>,
}

impl Facts {
    /// The properties of a source at the agents.
    pub(super) fn of_source(declaration: &Declaration) -> Facts {
        let columns = |names: [&str; 2]| {
            let fields = declaration.schema.fields.iter().enumerate();
            let named = fields.filter(move |(_, field)| {
                let aliases = field.aliases.iter().map(|alias| alias.name);
                let mut all = aliases.chain([field.name.as_str()]);
                all.any(|own| names.iter().any(|name| name.eq_ignore_ascii_case(own)))
            });
            named.map(|(at, _)| at).collect::<Vec<_>>()
        };
        let hosts = columns(HOST).into_iter().map(|at| (at, Tells::Host));
        let requests = columns(REQUEST).into_iter().map(|at| (at, Tells::Request));
        Facts {
            tells: hosts.chain(requests).collect(),
            only: None,
            intake: columns(INTAKE),
        }
    }

    /// How an expression over the columns identifies the host.
    fn told_by(&self, expr: &Expr) -> Option<Tells> {
        match expr {
            Expr::Column { index, .. } => {
                let found = self.tells.iter().find(|(at, _)| at == index);
                found.map(|(_, tells)| *tells)
            }
            // The first that is not NULL; a column that identifies a host never is.
            Expr::Call(call) if call.function.doc().name == "coalesce" => {
                self.told_by(call.args.first()?)
            }
            _ => None,
        }
    }

    /// Whether rows that are equal in these are of one host.
    fn is_told_by<'a>(&self, exprs: impl IntoIterator<Item = &'a Expr>) -> bool {
        self.only.is_some() || exprs.into_iter().any(|expr| self.told_by(expr).is_some())
    }

    /// Whether rows that are equal are of one host.
    fn is_told_by_row(&self) -> bool {
        self.only.is_some() || !self.tells.is_empty()
    }

    /// Whether an expression reads a column that the monitor fills.
    fn is_intake(&self, expr: &Expr) -> bool {
        let mut reads = false;
        expr.visit_columns(&mut |at| reads |= self.intake.contains(&at));
        reads
    }
}

/// The properties of the rows of `plan`, if it is local over local inputs with these properties; or
/// why it is not.
pub(super) fn facts(plan: &Plan, inputs: &[Facts]) -> Result<Facts, String> {
    let one = || inputs[0].clone();
    match &plan.node {
        Node::Source(declaration) => Ok(Facts::of_source(declaration)),
        Node::Select { predicate, .. } => select(one(), predicate),
        Node::Project { exprs, .. } => project(&inputs[0], exprs),
        Node::Window { window, .. } => {
            let told = match window {
                Window::Now | Window::Range { .. } | Window::Unbounded { .. } => true,
                Window::Since { origin, .. } => {
                    if inputs[0].is_intake(origin) {
                        untouched(&inputs[0])?;
                    }
                    true
                }
                Window::Rows { .. } => inputs[0].only.is_some(),
                Window::Partition { keys, .. } => {
                    if keys.iter().any(|key| inputs[0].is_intake(key)) {
                        untouched(&inputs[0])?;
                    }
                    inputs[0].is_told_by(keys)
                }
            };
            match told {
                true => Ok(one()),
                false => Err("it counts rows of all hosts together".into()),
            }
        }
        Node::Join { .. } => {
            inputs.iter().try_for_each(untouched)?;
            join(plan, &inputs[0], &inputs[1])
        }
        Node::Aggregate { keys, .. } => {
            untouched(&inputs[0])?;
            if keys.is_empty() {
                return Err("it is one result for all hosts together".into());
            }
            let tells = keys.iter().map(|key| inputs[0].told_by(key)).enumerate();
            let tells = tells.filter_map(|(at, tells)| Some((at, tells?)));
            match inputs[0].is_told_by(keys) {
                true => Ok(Facts {
                    tells: tells.collect(),
                    ..one()
                }),
                false => Err("rows of several hosts make one group".into()),
            }
        }
        // Groups are merged over hosts: the rows have no known properties.
        Node::Partial { .. } => Ok(Facts::default()),
        Node::Merge { .. } => Err("it merges what the agents send".into()),
        Node::Distinct { .. } => {
            untouched(&inputs[0])?;
            match inputs[0].is_told_by_row() {
                true => Ok(one()),
                false => Err("rows of several hosts may be equal".into()),
            }
        }
        Node::SetOp { op, all, .. } => {
            inputs.iter().try_for_each(untouched)?;
            let both = common(&inputs[0], &inputs[1]);
            match (*op == SetOp::Union && *all) || both.is_told_by_row() {
                true => Ok(both),
                false => Err("rows of several hosts may be equal".into()),
            }
        }
        Node::Order { limit: None, .. } => Err("the order is for whoever looks at it".into()),
        Node::Order { .. } => Err("the first rows are those of all hosts together".into()),
        Node::ToStream { input, kind } => to_stream(input, *kind, &inputs[0]),
    }
}

/// The properties of the rows of a plan that is known to be local.
pub(super) fn known(plan: &Plan) -> Facts {
    // A relation that is sent as a stream has its own columns, and optionally a time.
    if let Node::ToStream { input, .. } = &plan.node {
        return known(input);
    }
    let inputs: Vec<Facts> = plan.inputs().into_iter().map(|p| known(p)).collect();
    facts(plan, &inputs).expect("it was found to be local")
}

/// Whether rows that match in a local join are of one request, and so of one process of an agent:
/// each process has its own numbers of requests.
pub(super) fn joins_by_request(plan: &Plan) -> bool {
    let Node::Join {
        left, right, on, ..
    } = &plan.node
    else {
        unreachable!("only joins come here");
    };
    let (left, right) = (known(left), known(right));
    let mut pairs = on.iter();
    pairs.any(|(l, r)| {
        let told = [left.told_by(l), right.told_by(r)];
        told == [Some(Tells::Request); 2]
    })
}

/// Checks that there is no column that the monitor fills.
fn untouched(facts: &Facts) -> Result<(), String> {
    match facts.intake.is_empty() {
        true => Ok(()),
        false => Err("the monitor fills in when it took a row in".into()),
    }
}

fn select(input: Facts, predicate: &Expr) -> Result<Facts, String> {
    if input.is_intake(predicate) {
        return Err("it tests when the monitor took a row in".into());
    }
    let conditions = predicate.clone().conjuncts();
    let mut named = conditions.iter().filter_map(|c| host_named(&input, c));
    let only = named.next().or_else(|| input.only.clone());
    Ok(Facts { only, ..input })
}

/// The host whose rows pass a condition.
fn host_named(facts: &Facts, condition: &Expr) -> Option<Value> {
    let Expr::Binary {
        op: BinaryOp::Equal,
        left,
        right,
        ..
    } = condition
    else {
        return None;
    };
    let (column, constant) = match (&**left, &**right) {
        (column, Expr::Literal { value, .. }) | (Expr::Literal { value, .. }, column) => {
            (column, value)
        }
        _ => return None,
    };
    (facts.told_by(column) == Some(Tells::Host) && !constant.is_null()).then(|| constant.clone())
}

fn project(input: &Facts, exprs: &[Expr]) -> Result<Facts, String> {
    let mut facts = Facts {
        only: input.only.clone(),
        ..Facts::default()
    };
    for (at, expr) in exprs.iter().enumerate() {
        match expr {
            Expr::Column { index, .. } if input.intake.contains(index) => facts.intake.push(at),
            expr if input.is_intake(expr) => {
                return Err("it computes with when the monitor took a row in".into());
            }
            expr => facts
                .tells
                .extend(input.told_by(expr).map(|tells| (at, tells))),
        }
    }
    Ok(facts)
}

fn join(plan: &Plan, left: &Facts, right: &Facts) -> Result<Facts, String> {
    let Node::Join {
        left: left_plan,
        kind,
        on,
        residual,
        ..
    } = &plan.node
    else {
        unreachable!("only joins come here");
    };
    let middle = left_plan.schema.len();
    let alike = |l: &Expr, r: &Expr| {
        let tells = left.told_by(l);
        tells.is_some() && tells == right.told_by(r)
    };
    let same_only = left.only.is_some() && left.only == right.only;
    let conditions = residual.clone().map_or(Vec::new(), Expr::conjuncts);
    let on_host = on.iter().any(|(l, r)| alike(l, r))
        || conditions.iter().any(|c| is_same_host(c, middle, &alike));
    if !on_host && !same_only {
        return Err("rows of several hosts may be partners".into());
    }
    let shifted = right.tells.iter().map(|(at, tells)| (at + middle, *tells));
    let both: Vec<_> = left.tells.iter().copied().chain(shifted).collect();
    let (tells, only) = match kind {
        JoinKind::Inner => (both, left.only.clone().or_else(|| right.only.clone())),
        JoinKind::Right => (
            both.into_iter().filter(|(at, _)| *at >= middle).collect(),
            right.only.clone(),
        ),
        JoinKind::Full => (Vec::new(), left.only.clone().filter(|_| same_only)),
        JoinKind::Left | JoinKind::Semi | JoinKind::Anti | JoinKind::NotIn => {
            (left.tells.clone(), left.only.clone())
        }
    };
    Ok(Facts {
        tells,
        only,
        intake: Vec::new(),
    })
}

/// Whether a condition over the columns of both sides holds only for rows of one host.
fn is_same_host(condition: &Expr, middle: usize, alike: &dyn Fn(&Expr, &Expr) -> bool) -> bool {
    let Expr::Binary {
        op: BinaryOp::Equal,
        left,
        right,
        ..
    } = condition
    else {
        return false;
    };
    let (Expr::Column { index: a, .. }, Expr::Column { index: b, .. }) = (&**left, &**right) else {
        return false;
    };
    let (l, r) = match a < b {
        true => (left, right),
        false => (right, left),
    };
    a.min(b) < &middle
        && a.max(b) >= &middle
        && alike(l, &r.map_columns(&|at| at.saturating_sub(middle)))
}

/// The common properties of rows of either side.
fn common(left: &Facts, right: &Facts) -> Facts {
    let tells = left.tells.iter().filter(|t| right.tells.contains(t));
    Facts {
        tells: tells.copied().collect(),
        only: left.only.clone().filter(|_| left.only == right.only),
        intake: Vec::new(),
    }
}

fn to_stream(input: &Arc<Plan>, kind: ToStream, facts: &Facts) -> Result<Facts, String> {
    match kind {
        ToStream::Istream | ToStream::Dstream if input.is_append_only() => Ok(facts.clone()),
        ToStream::Istream | ToStream::Dstream => {
            Err("what goes on one host may come on another at the same instant".into())
        }
        ToStream::Rstream { every: Some(_) } => untouched(facts).map(|()| facts.clone()),
        ToStream::Rstream { every: None } => {
            Err("it gives all whenever a row comes in on any host".into())
        }
    }
}
