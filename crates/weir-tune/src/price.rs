//! [`Price`]: what the other VMs on the disk pay for, or gain from, the settings of a candidate.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::candidate::TrialSlot;
use crate::statistics::decide::ALPHA;
use crate::statistics::shift;
use crate::trial::{OtherLoad, TrialBlock};

/// The change of another VM's figures from the present settings to a candidate's. Changes are
/// relative: 0.1 is 10 % more.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Price {
    /// The VM.
    pub vm: String,
    /// Of the 99th percentile of its latency.
    pub p99: Option<PriceChange>,
    /// Of its requests per second.
    pub iops: Option<PriceChange>,
}

/// A change with its interval, whose level is that of a single comparison (95 %): the prices inform
/// and decide nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PriceChange {
    /// The Hodges-Lehmann estimate.
    pub change: f64,
    /// The lower limit; `None` with too few blocks.
    pub low: Option<f64>,
    /// The upper limit.
    pub high: Option<f64>,
}

/// The prices of a candidate, by VM.
pub fn of_candidate(blocks: &[TrialBlock], index: usize) -> Vec<Price> {
    let vms: BTreeSet<&String> = blocks
        .iter()
        .flat_map(|block| block.others.keys())
        .collect();
    let prices = vms.into_iter().map(|vm| Price {
        vm: vm.clone(),
        p99: change(blocks, index, vm, |load| load.p99_ns),
        iops: change(blocks, index, vm, |load| Some(load.iops)),
    });
    prices.collect()
}

fn change(
    blocks: &[TrialBlock],
    index: usize,
    vm: &str,
    value: impl Fn(&OtherLoad) -> Option<f64>,
) -> Option<PriceChange> {
    let (mut present, mut candidate) = (Vec::new(), Vec::new());
    for block in blocks {
        let to = match block.slot {
            TrialSlot::Candidate(of) if of == index => &mut candidate,
            TrialSlot::Candidate(_) => continue,
            TrialSlot::Present | TrialSlot::Control => &mut present,
        };
        let value = block.others.get(vm).and_then(&value);
        to.extend(value.filter(|value| *value > 0.0).map(f64::ln));
    }
    if present.is_empty() || candidate.is_empty() {
        return None;
    }
    let shift = shift::shift(&present, &candidate, ALPHA);
    let limit = |limit: f64| limit.is_finite().then(|| limit.exp_m1());
    Some(PriceChange {
        change: shift.estimate.exp_m1(),
        low: limit(shift.low),
        high: limit(shift.high),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_price_is_the_change_of_the_other_vm() {
        let block = |slot, iops: f64| TrialBlock {
            round: 1,
            position: 1,
            slot,
            requests: 100,
            value: None,
            conditions: Vec::new(),
            others: BTreeMap::from([("mail".to_owned(), OtherLoad { p99_ns: None, iops })]),
        };
        let mut blocks = Vec::new();
        for round in 0..6 {
            let noise = 1.0 + 0.01 * f64::from(round);
            blocks.push(block(TrialSlot::Present, 100.0 * noise));
            blocks.push(block(TrialSlot::Control, 100.5 * noise));
            blocks.push(block(TrialSlot::Candidate(0), 70.0 * noise));
            blocks.push(block(TrialSlot::Candidate(1), 100.0 * noise));
        }
        let [price] = &of_candidate(&blocks, 0)[..] else {
            panic!("one VM");
        };
        assert_eq!((&*price.vm, price.p99), ("mail", None));
        let found = price.iops.unwrap();
        assert!((found.change + 0.30).abs() < 0.02, "{found:?}");
        assert!(found.low.unwrap() < -0.3 && found.high.unwrap() > -0.32);
        assert!(found.high.unwrap() < -0.2, "{found:?}");
        let none = of_candidate(&blocks, 1)[0].iops.unwrap();
        assert!(none.low.unwrap() < 0.0 && none.high.unwrap() > 0.0);
        assert_eq!(of_candidate(&[], 0), []);
    }
}
