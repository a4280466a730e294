//! [`Groups`]: the folds of a kernel stream that its programs compute, and the names of their
//! groups.

use weir_model::Demand;

use super::layout::{Config, KEY_WORDS, MEASURES, Slot};
use super::rows::Decoder;
use super::selection::Selection;
use super::{EventTable, StreamColumn};
use crate::ebpf::fold::layout::key;
use crate::ebpf::fold::{self, KernelMeasure, NameGroups, Named, Plan, RawKey, Selected};

/// The bits of `struct folding` for a key of this many words after the first.
const KEY_BITS: [u32; KEY_WORDS + 1] = [
    0,
    key::PID,
    key::PID | key::CGROUP,
    key::PID | key::CGROUP | key::COMM,
    key::PID | key::CGROUP | key::COMM,
];

/// The folds that run in the kernel.
#[derive(Debug, Default)]
pub struct Groups {
    /// Those that do.
    pub plans: Vec<Plan>,
    /// The key columns of each.
    pub keys: Vec<Vec<StreamColumn>>,
    /// The columns whose values are kept, by the number of the measure.
    measures: Vec<StreamColumn>,
    /// Why the others do not.
    declined: Vec<String>,
}

impl Groups {
    /// The folds of `demands`, whose rows are selected by `selection`.
    pub fn of(stream: &EventTable, demands: &[Demand], selection: &Selection) -> Groups {
        let mut all = Groups::default();
        let mut measured: Vec<usize> = Vec::new();
        for demand in demands {
            let calls = demand.fold.iter().flat_map(|fold| &fold.calls);
            measured.extend(calls.filter_map(|call| call.column));
        }
        measured.sort_unstable();
        measured.dedup();
        measured.retain(|at| stream.columns[*at].measure);
        measured.truncate(MEASURES);
        for (i, demand) in demands.iter().enumerate() {
            if demand.fold.is_none() {
                continue;
            }
            let found = plan(stream, i, demand, selection, &measured);
            let found = found.and_then(|(plan, keys)| {
                plan.fits(all.plans.iter())?;
                Ok((plan, keys))
            });
            match found {
                Ok((plan, keys)) => {
                    all.plans.push(plan);
                    all.keys.push(keys);
                }
                Err(why) => all.declined.push(why),
            }
        }
        all.measures = measured.iter().map(|at| stream.columns[*at]).collect();
        all
    }

    /// The fold of a demand, as a bit of `folded` in `struct event`; 0 if it does not run in the
    /// kernel.
    pub fn bit(&self, demand: usize) -> u8 {
        let at = self.plans.iter().position(|plan| plan.demand == demand);
        at.map_or(0, |at| 1 << at)
    }

    /// Adds the keys and the measures to the configuration of the programs.
    pub fn configure(&self, config: &mut Config) {
        if self.plans.is_empty() {
            return;
        }
        config.measures = self.measures.iter().flat_map(|c| c.slots()).collect();
        for (words, keys) in config.keys.iter_mut().zip(&self.keys) {
            *words = words_of(keys);
        }
    }

    /// The folds that run in the kernel and those that do not, as text.
    pub fn lines(&self) -> Vec<String> {
        let line = |(plan, keys): (&Plan, &Vec<StreamColumn>)| {
            let keys: Vec<&str> = keys.iter().map(|column| column.name).collect();
            let measure = |measure| self.measures[usize::from(measure)].name;
            format!("kernel: {}", plan.line(&keys, measure))
        };
        let lines = self.plans.iter().zip(&self.keys).map(line);
        lines
            .chain(self.declined.iter().map(fold::declined))
            .collect()
    }
}

/// The plan of a demand's fold, and its key columns.
fn plan(
    stream: &EventTable,
    number: usize,
    demand: &Demand,
    selection: &Selection,
    measured: &[usize],
) -> Result<(Plan, Vec<StreamColumn>), String> {
    stream.capabilities().folds(demand)?;
    let fold = demand.fold.as_ref().expect("it was checked just now");
    let keys = fold.keys.iter().map(|at| stream.columns[*at]);
    let keys: Vec<StreamColumn> = keys.collect();
    let words = words_of(&keys).len();
    if words > KEY_WORDS {
        return Err(format!(
            "the keys of a group have at most {} bytes",
            8 * KEY_WORDS
        ));
    }
    let columns = fold.calls.iter().filter_map(|call| call.column);
    if columns.into_iter().any(|at| !measured.contains(&at)) {
        return Err(format!("the kernel keeps values of {MEASURES} columns"));
    }
    let types = keys.iter().map(|column| column.ty()).collect();
    let measure = |at: usize| {
        let found = measured.iter().position(|column| *column == at);
        found.map(|measure| KernelMeasure {
            number: measure as u8,
            is_signed: false,
        })
    };
    let mut plan = Plan::new(number, demand, types, measure);
    plan.kernel.keys = KEY_BITS[words];
    plan.select(selection.clauses.iter().map(|clause| Selected {
        demands: clause.demands,
        exact: clause.exact,
    }))?;
    Ok((plan, keys))
}

fn words_of(keys: &[StreamColumn]) -> Vec<Slot> {
    keys.iter().flat_map(|column| column.slots()).collect()
}

/// The names of a stream's groups.
pub struct Naming<'a> {
    /// The key columns of each fold.
    pub keys: &'a [Vec<StreamColumn>],
    /// Converts numbers to names.
    pub decoder: &'a mut Decoder,
}

impl NameGroups for Naming<'_> {
    fn name(&mut self, fold: usize, keys: &[RawKey]) -> Vec<Named> {
        let columns = &self.keys[fold];
        let mut named = |raw: &RawKey| {
            // The first word is that of the table.
            let mut words = &raw[1..];
            let mut values = Vec::with_capacity(columns.len());
            for column in columns {
                let own;
                (own, words) = words.split_at(column.slots().len());
                values.push(self.decoder.value(column, own));
            }
            values.into()
        };
        keys.iter().map(&mut named).collect()
    }
}
