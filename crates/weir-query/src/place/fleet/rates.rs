//! Rates of a fleet, and the measured costs of running fragments: the input for comparing
//! strategies.
//!
//! Measurements of a fragment apply to others too. Those with the same selection pass as many rows,
//! and those that group the same rows by the same keys have as many groups.

use crate::expr::Expr;
use crate::place::{placement, substituted};
use crate::plan::{Node, Plan};

/// Rates of a fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Agents.
    pub hosts: f64,
    /// Requests completed on a host per second.
    pub requests_per_second: f64,
    /// The number of groups of one host in an interval, for a query that groups.
    pub groups: f64,
    /// The processor time of agents relative to the machine of docs/costs.md.
    pub cpu_factor: f64,
    /// The costs of running fragments, by host and second.
    pub measured: Vec<MeasuredFragment>,
}

impl Default for Rates {
    /// Without measurements: 10 hosts with 10,000 requests per second, 100 groups.
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

/// The measured costs of a fragment, the mean over the agents that run it, per second.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredFragment {
    /// The fragment.
    pub plan: Plan,
    /// Rows from its sources.
    pub rows_in: f64,
    /// Rows that it emitted.
    pub rows_out: f64,
    /// Bytes sent.
    pub bytes_out: f64,
    /// Processor time, if it is known for this fragment alone.
    pub cpu_ns: Option<f64>,
}

impl Rates {
    /// The measurements of this very fragment.
    pub(super) fn of(&self, fragment: &Plan) -> Option<&MeasuredFragment> {
        self.measured.iter().find(|m| m.plan == *fragment)
    }

    /// The number of rows of a plan per second, if a running fragment emits the same rows, with any
    /// columns.
    pub(super) fn rows_of(&self, plan: &Plan) -> Option<f64> {
        let rows = without_projections(plan);
        let mut local_properties = self.measured.iter();
        let same = local_properties.find(|m| without_projections(&m.plan) == rows)?;
        Some(same.rows_out)
    }

    /// The number of groups of one host in an interval when it groups `input` by these keys, if a
    /// running fragment does. `second` is the number of instants per second.
    pub(super) fn groups_of(&self, input: &Plan, keys: &[Expr], second: f64) -> Option<f64> {
        let input = without_windows(input);
        let wanted = grouped(&input, keys);
        self.measured.iter().find_map(|local_properties| {
            let Node::Partial {
                input, slide, keys, ..
            } = &local_properties.plan.node
            else {
                return None;
            };
            let groups = local_properties.rows_out * *slide as f64 / second;
            (grouped(input, keys) == wanted).then_some(groups)
        })
    }
}

/// The plan that produces the rows of a plan, and the keys over its columns.
fn grouped<'a>(plan: &'a Plan, keys: &[Expr]) -> (&'a Plan, Vec<Expr>) {
    match &plan.node {
        Node::Project { input, exprs } => {
            let keys: Vec<Expr> = keys.iter().map(|key| substituted(key, exprs)).collect();
            grouped(input, &keys)
        }
        _ => (plan, keys.to_vec()),
    }
}

/// The plan that produces the rows of a plan, with any columns.
fn without_projections(plan: &Plan) -> &Plan {
    match &plan.node {
        Node::Project { input, .. } => without_projections(input),
        _ => plan,
    }
}

/// The stream that a plan reads through windows.
pub(super) fn without_windows(plan: &Plan) -> Plan {
    match &plan.node {
        Node::Window { input, .. } => without_windows(input),
        Node::Select { .. } | Node::Project { .. } => {
            placement::rebuilt(plan, &mut without_windows)
        }
        _ => plan.clone(),
    }
}
