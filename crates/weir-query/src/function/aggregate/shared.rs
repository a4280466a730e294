//! [`Shared`]: which calls of one group-by read their results from the same state.

use super::AggregateCall;

/// The states that the calls of a group-by need together: `sum(x)`, `avg(x)` and `count(x)` read
/// one, as do quantiles of the same values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// The calls that have a state of their own, by position.
    pub owners: Vec<usize>,
    /// For each call the number of the state that it reads, in the order of `owners`.
    pub state_of: Vec<usize>,
}

impl Shared {
    /// How `calls` share states. It depends on the calls and their order alone, so that every host
    /// derives the same.
    pub fn of(calls: &[AggregateCall]) -> Shared {
        // A call that could read another's state, but not the reverse, comes last: by then the
        // other state exists.
        let is_lesser = |call: &AggregateCall| {
            let greater = |other: &AggregateCall| call.shares(other) && !other.shares(call);
            calls.iter().any(greater)
        };
        let lesser: Vec<bool> = calls.iter().map(is_lesser).collect();
        let mut owners: Vec<usize> = Vec::new();
        let mut state_of = vec![0; calls.len()];
        for round in [false, true] {
            for (at, call) in calls
                .iter()
                .enumerate()
                .filter(|(at, _)| lesser[*at] == round)
            {
                let known = owners.iter().position(|&owner| call.shares(&calls[owner]));
                state_of[at] = known.unwrap_or(owners.len());
                if known.is_none() {
                    owners.push(at);
                }
            }
        }
        Shared { owners, state_of }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Node, Plan};
    use crate::{CheckOptions, compile};
    use weir_model::Catalog;

    fn calls(list: &str) -> Vec<AggregateCall> {
        fn of(plan: &Plan) -> Option<&[AggregateCall]> {
            match &plan.node {
                Node::Aggregate { calls, .. } => Some(calls),
                _ => plan.inputs().into_iter().find_map(|input| of(input)),
            }
        }
        let query = format!("select {list} from IO [range 1 s slide 1 s]");
        let checked = compile(&query, &Catalog::builtin(), &CheckOptions::live());
        let plan = checked.expect("the query is right").plan;
        of(&plan).expect("the query aggregates").to_vec()
    }

    #[test]
    fn calls_of_the_same_values_share_a_state() {
        let shared = Shared::of(&calls(
            "count(latency), sum(latency), avg(latency), sum(bytes), quantile(latency, 0.5), quantile(latency, 0.9)",
        ));
        assert_eq!(shared.owners, [1, 3, 4]);
        assert_eq!(shared.state_of, [0, 0, 0, 1, 2, 2]);
    }

    #[test]
    fn calls_of_other_or_distinct_values_have_separate_states() {
        let shared = Shared::of(&calls(
            "count(*), count(latency), count(distinct latency), sum(distinct latency)",
        ));
        assert_eq!(shared.owners, [0, 1, 2, 3]);
    }
}
