//! [`place`]: plans whose aggregations read groups if the source computes them, and the demands on
//! the taps.

use std::collections::HashMap;
use std::sync::Arc;

use weir_model::{Capabilities, Demand, Fold};

use super::fold::Grouping;
use super::{demands, demands_beside};
use crate::plan::{Node, Plan};

/// Plans with their placement.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The plans as the engine runs them, in the given order. Their results are the same.
    pub plans: Vec<Plan>,
    /// The demands on the taps: rows of each stream, and groups.
    pub demands: Vec<Demand>,
    /// The engine's name for the source of each demand.
    pub sources: Vec<String>,
    /// The capabilities of the sources.
    pub(super) capabilities: Capabilities,
    /// For each aggregation over a stream of requests, why it does not run where they are observed.
    whys: HashMap<Plan, String>,
}

/// An aggregation that a source can compute.
struct Candidate {
    aggregate: Plan,
    demand: Demand,
}

/// Places plans that run together over sources with these capabilities.
///
/// An aggregation reads groups if the source computes them and none of the plans needs its rows
/// anyway. If one has groups that are finer than those of another, that one reads them too.
pub fn place(plans: &[&Plan], capabilities: &Capabilities) -> Placement {
    let mut whys = HashMap::new();
    let candidates = candidates(plans, capabilities, &mut whys);
    let (candidates, mut demands) = unless_rows_come(plans, candidates, capabilities, &mut whys);
    let mut sources: Vec<String> = demands.iter().map(|d| d.stream.clone()).collect();
    for (i, demand) in united(candidates, capabilities).into_iter().enumerate() {
        // Names in queries cannot contain this character.
        sources.push(format!("{}#{}", demand.stream, i + 1));
        demands.push(demand);
    }
    let mut placement = Placement {
        plans: Vec::new(),
        demands,
        sources,
        capabilities: capabilities.clone(),
        whys,
    };
    placement.plans = plans.iter().map(|plan| placement.admit(plan)).collect();
    placement
}

/// The aggregations that the source can compute, each once.
fn candidates(
    plans: &[&Plan],
    capabilities: &Capabilities,
    whys: &mut HashMap<Plan, String>,
) -> Vec<Candidate> {
    let all = aggregations(plans, capabilities).into_iter();
    let asked = all.map(|(aggregate, whole)| {
        let grouping = Grouping::of(&aggregate);
        let demand = grouping.and_then(|grouping| grouping.demand(whole, capabilities));
        let demand = demand.and_then(|demand| capabilities.folds(&demand).map(|()| demand));
        (aggregate, demand)
    });
    let mut found = Vec::new();
    for (aggregate, demand) in asked {
        match demand {
            Ok(demand) => found.push(Candidate { aggregate, demand }),
            Err(why) => drop(whys.insert(aggregate, why)),
        }
    }
    found
}

/// The aggregations over streams of requests, each once, and whether rows below them are relevant
/// whether they pass selections or not.
fn aggregations(plans: &[&Plan], capabilities: &Capabilities) -> Vec<(Plan, bool)> {
    let mut found: Vec<(Plan, bool)> = Vec::new();
    let is_of_requests = |plan: &Plan| {
        let mut sources = plan.sources().into_iter();
        sources.any(|source| capabilities.is_of_requests(source))
    };
    demands_beside(plans, capabilities, &mut |aggregate, whole| {
        match found.iter_mut().find(|(known, _)| known == aggregate) {
            Some((_, known)) => *known |= whole,
            None if is_of_requests(aggregate) => {
                found.push((aggregate.clone(), whole));
            }
            None => {}
        }
        false
    });
    found
}

/// The candidates whose rows are not delivered anyway, and the demands for further rows.
fn unless_rows_come(
    plans: &[&Plan],
    mut candidates: Vec<Candidate>,
    capabilities: &Capabilities,
    whys: &mut HashMap<Plan, String>,
) -> (Vec<Candidate>, Vec<Demand>) {
    loop {
        let demands = demands_beside(plans, capabilities, &mut |aggregate, _| {
            candidates.iter().any(|c| c.aggregate == *aggregate)
        });
        let comes = |c: &Candidate, rows: &Demand| {
            rows.stream.eq_ignore_ascii_case(&c.demand.stream)
                && (rows.predicate.is_all() || rows.predicate == c.demand.predicate)
        };
        let anyway = |c: &Candidate| demands.iter().any(|rows| comes(c, rows));
        let Some(at) = candidates.iter().position(anyway) else {
            return (candidates, demands);
        };
        // Rows that are delivered for one of them are available to the others.
        let why = "its rows come anyway, for another part of what is asked";
        whys.insert(candidates.remove(at).aggregate, why.into());
    }
}

/// The minimum set of demands for the candidates.
fn united(candidates: Vec<Candidate>, capabilities: &Capabilities) -> Vec<Demand> {
    let mut demands: Vec<Demand> = Vec::new();
    for Candidate { demand, .. } in candidates {
        let both = demands.iter_mut().find_map(|known| {
            let both = finer(known, &demand)?;
            (both == *known || capabilities.folds(&both).is_ok()).then_some((known, both))
        });
        match both {
            Some((known, both)) => *known = both,
            None => demands.push(demand),
        }
    }
    demands
}

/// A fold that serves both, if the groups of one are finer than the other's.
fn finer(a: &Demand, b: &Demand) -> Option<Demand> {
    let (x, y) = (a.fold.as_ref()?, b.fold.as_ref()?);
    let same = a.stream.eq_ignore_ascii_case(&b.stream)
        && a.predicate == b.predicate
        && x.interval == y.interval;
    let within = |few: &[usize], many: &[usize]| few.iter().all(|key| many.contains(key));
    let keys = match (within(&y.keys, &x.keys), within(&x.keys, &y.keys)) {
        (true, _) => &x.keys,
        (_, true) => &y.keys,
        _ => return None,
    };
    let mut calls = x.calls.clone();
    calls.extend(y.calls.iter().filter(|c| !x.calls.contains(c)).cloned());
    let mut columns = [a.columns.clone(), b.columns.clone()].concat();
    columns.sort_unstable();
    columns.dedup();
    same.then(|| Demand {
        columns,
        fold: Some(Fold {
            interval: x.interval,
            keys: keys.clone(),
            calls,
        }),
        ..a.clone()
    })
}

impl Placement {
    /// Rows only: nothing is folded.
    pub fn of_rows(plans: &[&Plan], capabilities: &Capabilities) -> Placement {
        let demands = demands(plans, capabilities);
        Placement {
            plans: plans.iter().map(|plan| (*plan).clone()).collect(),
            sources: demands.iter().map(|d| d.stream.clone()).collect(),
            demands,
            capabilities: capabilities.clone(),
            whys: HashMap::new(),
        }
    }

    /// A plan as the engine runs it on the output of the taps: its aggregations read groups if
    /// these have the required values.
    pub fn admit(&self, plan: &Plan) -> Plan {
        let aggregations = aggregations(&[plan], &self.capabilities);
        let served = |aggregate: &Plan| {
            let (_, whole) = aggregations.iter().find(|(known, _)| known == aggregate)?;
            self.serving(aggregate, *whole)
        };
        self.admitted(plan, &served)
    }

    /// The demand whose groups an aggregation reads.
    fn serving(&self, aggregate: &Plan, whole: bool) -> Option<usize> {
        if self.whys.contains_key(aggregate) {
            return None;
        }
        let grouping = Grouping::of(aggregate).ok()?;
        let serves = |demand: &Demand| grouping.is_served_by(demand, whole, &self.capabilities);
        self.demands.iter().position(serves)
    }

    fn admitted(&self, plan: &Plan, served: &dyn Fn(&Plan) -> Option<usize>) -> Plan {
        if let Node::Aggregate { .. } | Node::Partial { .. } = plan.node
            && let Some(demand) = served(plan)
        {
            return self.over(plan, demand);
        }
        rebuilt(plan, &mut |input| self.admitted(input, served))
    }

    /// The plan over the source of a demand with groups.
    fn over(&self, plan: &Plan, demand: usize) -> Plan {
        let mut plan = rebuilt(plan, &mut |input| self.over(input, demand));
        if let Node::Source(declaration) = &mut plan.node {
            declaration.name.clone_from(&self.sources[demand]);
            declaration.fold = self.demands[demand].fold.clone().map(Arc::new);
        }
        plan
    }

    /// The aggregations of a plan that read groups, each with the demand for these.
    pub(super) fn folded(&self, plan: &Plan) -> Vec<(Plan, &Demand)> {
        let all = aggregations(&[plan], &self.capabilities).into_iter();
        let served = all.filter_map(|(aggregate, whole)| {
            let demand = self.serving(&aggregate, whole)?;
            Some((aggregate, &self.demands[demand]))
        });
        served.collect()
    }

    /// Stores why joins were not replaced, for [`Placement::why_not`].
    pub fn remember(&mut self, whys: Vec<(Arc<Plan>, String)>) {
        let whys = whys.into_iter();
        self.whys
            .extend(whys.map(|(plan, why)| ((*plan).clone(), why)));
    }

    /// Why an aggregation does not run where the rows are observed, or a join of requests with
    /// their responses is not computed from pairs.
    pub fn why_not(&self, aggregate: &Plan) -> Option<&str> {
        self.whys.get(aggregate).map(String::as_str)
    }
}

/// The plan with other inputs of the same columns.
pub(super) fn rebuilt(plan: &Plan, input: &mut dyn FnMut(&Plan) -> Plan) -> Plan {
    let inputs = plan.inputs().into_iter().map(|p| Arc::new(input(p)));
    let rebuilt = plan.with_inputs(inputs.collect());
    Plan {
        schema: plan.schema.clone(),
        ..(*rebuilt).clone()
    }
}
