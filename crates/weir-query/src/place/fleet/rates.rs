//! How much happens in a fleet, and what fragments that run were seen to cost: by this the ways are
//! compared.
//!
//! A fragment that runs tells of others too. Those that make the same selection pass as many rows,
//! and those that group the same rows by the same keys have as many groups.

use crate::expr::Expr;
use crate::place::{placement, substituted};
use crate::plan::{Node, Plan};

/// How much happens in a fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Agents.
    pub hosts: f64,
    /// Requests that finish on a host in a second.
    pub requests_per_second: f64,
    /// Groups that one host has rows of in an interval, for a query that groups.
    pub groups: f64,
    /// How long agents take for what the machine of docs/costs.md takes 1 for.
    pub cpu_factor: f64,
    /// What fragments that run cost, by host and second.
    pub measured: Vec<Measured>,
}

impl Default for Rates {
    /// Where nothing is measured: 10 hosts of 10,000 requests per second, 100 groups.
    fn default() -> Rates {
        Rates {
            hosts: 10.0,
            requests_per_second: 10_000.0,
            groups: 100.0,
            cpu_factor: 1.0,
            measured: Vec::new(),
        }
    }
}

/// What a fragment was seen to cost, the mean over the agents that run it, per second.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The fragment.
    pub plan: Plan,
    /// Rows that its sources gave.
    pub rows_in: f64,
    /// Rows that it gave.
    pub rows_out: f64,
    /// Bytes on the wire.
    pub bytes_out: f64,
    /// Processor time, where it is known for this fragment alone.
    pub cpu_ns: Option<f64>,
}

impl Rates {
    /// What was measured of this very fragment.
    pub(super) fn of(&self, fragment: &Plan) -> Option<&Measured> {
        self.measured.iter().find(|m| m.plan == *fragment)
    }

    /// How many rows come out of a plan in a second, where a fragment that runs gives the same rows,
    /// whichever columns of them.
    pub(super) fn rows_of(&self, plan: &Plan) -> Option<f64> {
        let rows = without_projections(plan);
        let mut known = self.measured.iter();
        let same = known.find(|m| without_projections(&m.plan) == rows)?;
        Some(same.rows_out)
    }

    /// How many groups one host has in an interval when it groups what `input` gives by these keys,
    /// where a fragment that runs does so. A second has so many instants.
    pub(super) fn groups_of(&self, input: &Plan, keys: &[Expr], second: f64) -> Option<f64> {
        let input = without_windows(input);
        let wanted = grouped(&input, keys);
        self.measured.iter().find_map(|known| {
            let Node::Partial {
                input, slide, keys, ..
            } = &known.plan.node
            else {
                return None;
            };
            let groups = known.rows_out * *slide as f64 / second;
            (grouped(input, keys) == wanted).then_some(groups)
        })
    }
}

/// What gives the rows of a plan, and the keys over its columns.
fn grouped<'a>(plan: &'a Plan, keys: &[Expr]) -> (&'a Plan, Vec<Expr>) {
    match &plan.node {
        Node::Project { input, exprs } => {
            let keys: Vec<Expr> = keys.iter().map(|key| substituted(key, exprs)).collect();
            grouped(input, &keys)
        }
        _ => (plan, keys.to_vec()),
    }
}

/// What gives the rows of a plan, of whichever columns.
fn without_projections(plan: &Plan) -> &Plan {
    match &plan.node {
        Node::Project { input, .. } => without_projections(input),
        _ => plan,
    }
}

/// The stream of what a plan sees through windows.
pub(super) fn without_windows(plan: &Plan) -> Plan {
    match &plan.node {
        Node::Window { input, .. } => without_windows(input),
        Node::Select { .. } | Node::Project { .. } => {
            placement::rebuilt(plan, &mut without_windows)
        }
        _ => plan.clone(),
    }
}
