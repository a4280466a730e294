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
    /// For each aggregation over a stream of events, why it does not run where they are observed.
    reasons: HashMap<Plan, String>,
}

/// An aggregation that a source can compute.
struct FoldCandidate {
    aggregate: Plan,
    demand: Demand,
}

/// Places plans that run together over sources with these capabilities.
///
/// An aggregation reads groups if the source computes them and none of the plans needs its rows
/// anyway. If one has groups that are finer than those of another, that one reads them too.
pub fn place(plans: &[&Plan], capabilities: &Capabilities) -> Placement {
    let mut reasons = HashMap::new();
    let candidates = candidates(plans, capabilities, &mut reasons);
    let (candidates, mut demands) =
        without_delivered_rows(plans, candidates, capabilities, &mut reasons);
    let mut sources: Vec<String> = demands.iter().map(|d| d.stream.clone()).collect();
    for (i, demand) in merge_demands(candidates, capabilities)
        .into_iter()
        .enumerate()
    {
        // Names in queries cannot contain this character.
        sources.push(format!("{}#{}", demand.stream, i + 1));
        demands.push(demand);
    }
    let mut placement = Placement {
        plans: Vec::new(),
        demands,
        sources,
        capabilities: capabilities.clone(),
        reasons,
    };
    placement.plans = plans.iter().map(|plan| placement.rewrite(plan)).collect();
    placement
}

/// The aggregations that the source can compute, each once.
fn candidates(
    plans: &[&Plan],
    capabilities: &Capabilities,
    reasons: &mut HashMap<Plan, String>,
) -> Vec<FoldCandidate> {
    let all = aggregations(plans, capabilities).into_iter();
    let demanded = all.map(|(aggregate, whole)| {
        let grouping = Grouping::of(&aggregate);
        let demand = grouping.and_then(|grouping| grouping.demand(whole, capabilities));
        let demand = demand.and_then(|demand| capabilities.folds(&demand).map(|()| demand));
        (aggregate, demand)
    });
    let mut found = Vec::new();
    for (aggregate, demand) in demanded {
        match demand {
            Ok(demand) => found.push(FoldCandidate { aggregate, demand }),
            Err(why) => drop(reasons.insert(aggregate, why)),
        }
    }
    found
}

/// The aggregations over streams of events, each once, and whether rows below them are relevant
/// whether they pass selections or not.
fn aggregations(plans: &[&Plan], capabilities: &Capabilities) -> Vec<(Plan, bool)> {
    let mut found: Vec<(Plan, bool)> = Vec::new();
    let is_of_events = |plan: &Plan| {
        let mut sources = plan.sources().into_iter();
        sources.any(|source| capabilities.is_of_events(&source.name))
    };
    demands_beside(plans, capabilities, &mut |aggregate, whole| {
        match found.iter_mut().find(|(known, _)| known == aggregate) {
            Some((_, known)) => *known |= whole,
            None if is_of_events(aggregate) => {
                found.push((aggregate.clone(), whole));
            }
            None => {}
        }
        false
    });
    found
}

/// The candidates whose rows are not delivered anyway, and the demands for further rows.
fn without_delivered_rows(
    plans: &[&Plan],
    mut candidates: Vec<FoldCandidate>,
    capabilities: &Capabilities,
    reasons: &mut HashMap<Plan, String>,
) -> (Vec<FoldCandidate>, Vec<Demand>) {
    loop {
        let demands = demands_beside(plans, capabilities, &mut |aggregate, _| {
            candidates.iter().any(|c| c.aggregate == *aggregate)
        });
        let delivers = |c: &FoldCandidate, rows: &Demand| {
            rows.stream.eq_ignore_ascii_case(&c.demand.stream)
                && (rows.predicate.is_all() || rows.predicate == c.demand.predicate)
        };
        let is_delivered = |c: &FoldCandidate| demands.iter().any(|rows| delivers(c, rows));
        let Some(at) = candidates.iter().position(is_delivered) else {
            return (candidates, demands);
        };
        // Rows that are delivered for one of them are available to the others.
        let why = "its rows are delivered anyway, for another part of the query";
        reasons.insert(candidates.remove(at).aggregate, why.into());
    }
}

/// The minimum set of demands for the candidates.
fn merge_demands(candidates: Vec<FoldCandidate>, capabilities: &Capabilities) -> Vec<Demand> {
    let mut demands: Vec<Demand> = Vec::new();
    for FoldCandidate { demand, .. } in candidates {
        let both = demands.iter_mut().find_map(|known| {
            let both = finer_fold(known, &demand)?;
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
fn finer_fold(a: &Demand, b: &Demand) -> Option<Demand> {
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
            reasons: HashMap::new(),
        }
    }

    /// A plan as the engine runs it on the output of the taps: its aggregations read groups if
    /// these have the required values.
    pub fn rewrite(&self, plan: &Plan) -> Plan {
        let aggregations = aggregations(&[plan], &self.capabilities);
        let demand_of = |aggregate: &Plan| {
            let (_, whole) = aggregations.iter().find(|(known, _)| known == aggregate)?;
            self.demand_for(aggregate, *whole)
        };
        self.rewritten(plan, &demand_of)
    }

    /// The demand whose groups an aggregation reads.
    fn demand_for(&self, aggregate: &Plan, whole: bool) -> Option<usize> {
        if self.reasons.contains_key(aggregate) {
            return None;
        }
        let grouping = Grouping::of(aggregate).ok()?;
        let satisfies =
            |demand: &Demand| grouping.is_satisfied_by(demand, whole, &self.capabilities);
        self.demands.iter().position(satisfies)
    }

    fn rewritten(&self, plan: &Plan, demand_of: &dyn Fn(&Plan) -> Option<usize>) -> Plan {
        if let Node::Aggregate { .. } | Node::Partial { .. } = plan.node
            && let Some(demand) = demand_of(plan)
        {
            return self.over_source(plan, demand);
        }
        rebuilt(plan, &mut |input| self.rewritten(input, demand_of))
    }

    /// The plan over the source of a demand with groups.
    fn over_source(&self, plan: &Plan, demand: usize) -> Plan {
        let mut plan = rebuilt(plan, &mut |input| self.over_source(input, demand));
        if let Node::Source(declaration) = &mut plan.node {
            declaration.name.clone_from(&self.sources[demand]);
            declaration.fold = self.demands[demand].fold.clone().map(Arc::new);
        }
        plan
    }

    /// The aggregations of a plan that read groups, each with the demand for these.
    pub(super) fn folded(&self, plan: &Plan) -> Vec<(Plan, &Demand)> {
        let all = aggregations(&[plan], &self.capabilities).into_iter();
        let demand_of = all.filter_map(|(aggregate, whole)| {
            let demand = self.demand_for(&aggregate, whole)?;
            Some((aggregate, &self.demands[demand]))
        });
        demand_of.collect()
    }

    /// Stores why joins were not replaced, for [`Placement::why_not`].
    pub fn add_reasons(&mut self, reasons: Vec<(Arc<Plan>, String)>) {
        let reasons = reasons.into_iter();
        self.reasons
            .extend(reasons.map(|(plan, why)| ((*plan).clone(), why)));
    }

    /// Why an aggregation does not run where the rows are observed, or a join of requests with
    /// their responses is not computed from pairs.
    pub fn why_not(&self, aggregate: &Plan) -> Option<&str> {
        self.reasons.get(aggregate).map(String::as_str)
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
