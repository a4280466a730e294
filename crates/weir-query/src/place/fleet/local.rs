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

use crate::expr::Expr;
use crate::plan::{JoinKind, Node, Plan, SetOp, ToStream};

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
enum HostKey {
    /// It is the host's name.
    Host,
    /// It is the number of a request.
    Request,
}

/// The known properties of the rows of a local plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RowProperties {
    /// Columns that identify the host; none of them is ever NULL.
    host_keys: Vec<(usize, HostKey)>,
    /// All rows are of the host with this name.
    only: Option<Value>,
    /// Columns that the monitor fills.
    pub intake: Vec<usize>,
}

impl RowProperties {
    /// The properties of a source at the agents.
    pub(super) fn of_source(declaration: &Declaration) -> RowProperties {
        let columns = |names: [&str; 2]| {
            let fields = declaration.schema.fields.iter().enumerate();
            let named = fields.filter(move |(_, field)| {
                let aliases = field.aliases.iter().map(|alias| alias.name);
                let mut all = aliases.chain([field.name.as_str()]);
                all.any(|own| names.iter().any(|name| name.eq_ignore_ascii_case(own)))
            });
            named.map(|(at, _)| at).collect::<Vec<_>>()
        };
        let hosts = columns(HOST).into_iter().map(|at| (at, HostKey::Host));
        let requests = columns(REQUEST)
            .into_iter()
            .map(|at| (at, HostKey::Request));
        RowProperties {
            host_keys: hosts.chain(requests).collect(),
            only: None,
            intake: columns(INTAKE),
        }
    }

    /// How an expression over the columns identifies the host.
    fn host_key(&self, expr: &Expr) -> Option<HostKey> {
        match expr {
            Expr::Column { index, .. } => {
                let found = self.host_keys.iter().find(|(at, _)| at == index);
                found.map(|(_, host_keys)| *host_keys)
            }
            // The first that is not NULL; a column that identifies a host never is.
            Expr::Call(call) if call.function.doc().name == "coalesce" => {
                self.host_key(call.args.first()?)
            }
            _ => None,
        }
    }

    /// Whether rows that are equal in these are of one host.
    fn identify_host<'a>(&self, exprs: impl IntoIterator<Item = &'a Expr>) -> bool {
        self.only.is_some() || exprs.into_iter().any(|expr| self.host_key(expr).is_some())
    }

    /// Whether rows that are equal are of one host.
    fn row_identifies_host(&self) -> bool {
        self.only.is_some() || !self.host_keys.is_empty()
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
pub(super) fn row_properties(
    plan: &Plan,
    inputs: &[RowProperties],
) -> Result<RowProperties, String> {
    let one = || inputs[0].clone();
    match &plan.node {
        Node::Source(declaration) => Ok(RowProperties::of_source(declaration)),
        Node::Select { predicate, .. } => select(one(), predicate),
        Node::Project { exprs, .. } => project(&inputs[0], exprs),
        Node::Window { window, .. } => {
            let exprs = window.kind().exprs();
            if exprs.iter().any(|expr| inputs[0].is_intake(expr)) {
                check_no_intake(&inputs[0])?;
            }
            let is_local = window.kind().is_per_row() || inputs[0].identify_host(exprs);
            match is_local {
                true => Ok(one()),
                false => Err("it counts rows across hosts".into()),
            }
        }
        Node::Join(_) => {
            inputs.iter().try_for_each(check_no_intake)?;
            join(plan, &inputs[0], &inputs[1])
        }
        Node::Aggregate { keys, .. } => {
            check_no_intake(&inputs[0])?;
            if keys.is_empty() {
                return Err("it is one result for all hosts".into());
            }
            let host_keys = keys.iter().map(|key| inputs[0].host_key(key)).enumerate();
            let host_keys = host_keys.filter_map(|(at, host_keys)| Some((at, host_keys?)));
            match inputs[0].identify_host(keys) {
                true => Ok(RowProperties {
                    host_keys: host_keys.collect(),
                    ..one()
                }),
                false => Err("a group may contain rows of several hosts".into()),
            }
        }
        Node::Over { by, .. } => {
            check_no_intake(&inputs[0])?;
            match inputs[0].identify_host(&by.keys) {
                true => Ok(one()),
                false => Err("a partition may contain rows of several hosts".into()),
            }
        }
        Node::Match { .. } => Err("a match may contain rows from before an agent restarts".into()),
        Node::Correlate { .. } => Err("it compares the disks of all hosts".into()),
        // Groups are merged over hosts: the rows have no known properties.
        Node::Partial { .. } => Ok(RowProperties::default()),
        Node::Merge { .. } => Err("it merges the output of the agents".into()),
        Node::Distinct { .. } => {
            check_no_intake(&inputs[0])?;
            match inputs[0].row_identifies_host() {
                true => Ok(one()),
                false => Err("rows of several hosts may be equal".into()),
            }
        }
        Node::SetOp { op, all, .. } => {
            inputs.iter().try_for_each(check_no_intake)?;
            let both = common(&inputs[0], &inputs[1]);
            match (*op == SetOp::Union && *all) || both.row_identifies_host() {
                true => Ok(both),
                false => Err("rows of several hosts may be equal".into()),
            }
        }
        Node::Order { limit: None, .. } => Err("the order applies to the complete result".into()),
        Node::Order { .. } => Err("the limit applies to the rows of all hosts".into()),
        Node::ToStream { input, kind } => to_stream(input, *kind, &inputs[0]),
    }
}

/// The properties of the rows of a plan that is known to be local.
pub(super) fn local_properties(plan: &Plan) -> RowProperties {
    // A relation that is sent as a stream has its own columns, and optionally a time.
    if let Node::ToStream { input, .. } = &plan.node {
        return local_properties(input);
    }
    let inputs: Vec<RowProperties> = plan
        .inputs()
        .into_iter()
        .map(|p| local_properties(p))
        .collect();
    row_properties(plan, &inputs).expect("it was found to be local")
}

/// Whether rows that match in a local join are of one request, and so of one process of an agent:
/// each process has its own numbers of requests.
pub(super) fn joins_by_request(plan: &Plan) -> bool {
    let join = plan.as_join().expect("only joins come here");
    let (left, right) = (local_properties(&join.left), local_properties(&join.right));
    let mut pairs = join.on.iter();
    pairs.any(|(l, r)| {
        let is_local = [left.host_key(l), right.host_key(r)];
        is_local == [Some(HostKey::Request); 2]
    })
}

/// Checks that there is no column that the monitor fills.
fn check_no_intake(row_properties: &RowProperties) -> Result<(), String> {
    match row_properties.intake.is_empty() {
        true => Ok(()),
        false => Err("it reads the time at which the monitor received a row".into()),
    }
}

fn select(input: RowProperties, predicate: &Expr) -> Result<RowProperties, String> {
    if input.is_intake(predicate) {
        return Err("it tests the time at which the monitor received a row".into());
    }
    let conditions = predicate.clone().conjuncts();
    let mut named = conditions
        .iter()
        .filter_map(|c| host_in_condition(&input, c));
    let only = named.next().or_else(|| input.only.clone());
    Ok(RowProperties { only, ..input })
}

/// The host whose rows pass a condition.
fn host_in_condition(row_properties: &RowProperties, condition: &Expr) -> Option<Value> {
    let (left, right) = condition.equality()?;
    let (column, constant) = match (left, right) {
        (column, Expr::Literal { value, .. }) | (Expr::Literal { value, .. }, column) => {
            (column, value)
        }
        _ => return None,
    };
    (row_properties.host_key(column) == Some(HostKey::Host) && !constant.is_null())
        .then(|| constant.clone())
}

fn project(input: &RowProperties, exprs: &[Expr]) -> Result<RowProperties, String> {
    let mut row_properties = RowProperties {
        only: input.only.clone(),
        ..RowProperties::default()
    };
    for (at, expr) in exprs.iter().enumerate() {
        match expr {
            Expr::Column { index, .. } if input.intake.contains(index) => {
                row_properties.intake.push(at)
            }
            expr if input.is_intake(expr) => {
                return Err("it uses the time at which the monitor received a row".into());
            }
            expr => row_properties
                .host_keys
                .extend(input.host_key(expr).map(|host_keys| (at, host_keys))),
        }
    }
    Ok(row_properties)
}

fn join(plan: &Plan, left: &RowProperties, right: &RowProperties) -> Result<RowProperties, String> {
    let parts = plan.as_join().expect("only joins come here");
    let (kind, on) = (parts.kind, &parts.on);
    let middle = parts.left.schema.len();
    let same_key = |l: &Expr, r: &Expr| {
        let host_keys = left.host_key(l);
        host_keys.is_some() && host_keys == right.host_key(r)
    };
    let same_only = left.only.is_some() && left.only == right.only;
    let conditions = parts.residual.clone().map_or(Vec::new(), Expr::conjuncts);
    let on_host = on.iter().any(|(l, r)| same_key(l, r))
        || conditions
            .iter()
            .any(|c| is_same_host(c, middle, &same_key));
    if !on_host && !same_only {
        return Err("rows of different hosts may match".into());
    }
    let shifted = right
        .host_keys
        .iter()
        .map(|(at, host_keys)| (at + middle, *host_keys));
    let both: Vec<_> = left.host_keys.iter().copied().chain(shifted).collect();
    let (host_keys, only) = match kind {
        JoinKind::Inner => (both, left.only.clone().or_else(|| right.only.clone())),
        JoinKind::Right => (
            both.into_iter().filter(|(at, _)| *at >= middle).collect(),
            right.only.clone(),
        ),
        JoinKind::Full => (Vec::new(), left.only.clone().filter(|_| same_only)),
        JoinKind::Left | JoinKind::Semi | JoinKind::Anti | JoinKind::NotIn => {
            (left.host_keys.clone(), left.only.clone())
        }
    };
    Ok(RowProperties {
        host_keys,
        only,
        intake: Vec::new(),
    })
}

/// Whether a condition over the columns of both sides holds only for rows of one host.
fn is_same_host(condition: &Expr, middle: usize, same_key: &dyn Fn(&Expr, &Expr) -> bool) -> bool {
    let Some((left @ Expr::Column { index: a, .. }, right @ Expr::Column { index: b, .. })) =
        condition.equality()
    else {
        return false;
    };
    let (l, r) = match a < b {
        true => (left, right),
        false => (right, left),
    };
    a.min(b) < &middle
        && a.max(b) >= &middle
        && same_key(l, &r.map_columns(&|at| at.saturating_sub(middle)))
}

/// The common properties of rows of either side.
fn common(left: &RowProperties, right: &RowProperties) -> RowProperties {
    let host_keys = left
        .host_keys
        .iter()
        .filter(|t| right.host_keys.contains(t));
    RowProperties {
        host_keys: host_keys.copied().collect(),
        only: left.only.clone().filter(|_| left.only == right.only),
        intake: Vec::new(),
    }
}

fn to_stream(
    input: &Arc<Plan>,
    kind: ToStream,
    row_properties: &RowProperties,
) -> Result<RowProperties, String> {
    match kind {
        ToStream::Istream | ToStream::Dstream if input.is_append_only() => {
            Ok(row_properties.clone())
        }
        ToStream::Istream | ToStream::Dstream => Err(
            "a row may be retracted on one host and inserted on another at the same instant".into(),
        ),
        ToStream::Rstream { every: Some(_) } => {
            check_no_intake(row_properties).map(|()| row_properties.clone())
        }
        ToStream::Rstream { every: None } => {
            Err("it emits the complete relation when a row arrives at any host".into())
        }
    }
}
