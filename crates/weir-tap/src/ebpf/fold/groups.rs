//! [`Groups`]: the groups of an interval, merged over all processors, with the names used in rows.

use std::collections::{BTreeMap, HashMap};

use arrow_array::{Int64Array, UInt32Array};
use weir_model::{Column, Folded, Nanos, PartialState, Type};

use super::layout::keep;
use super::plan::{Call, Plan};
use super::tables::Group;

/// The key of a group in the order of the demand: numbers, and the ids of texts; `None` is NULL.
pub type Named = Box<[Option<i64>]>;

/// The groups of an interval.
#[derive(Debug, Default)]
pub struct Groups {
    at: HashMap<Named, usize>,
    groups: Vec<Sums>,
}

/// The values of a group.
#[derive(Debug)]
struct Sums {
    rows: u64,
    /// Indexed by the kernel's calls.
    calls: Vec<Sum>,
}

/// The value of one of the kernel's calls.
#[derive(Debug)]
enum Sum {
    Moments {
        count: u64,
        sum: i128,
        min: i64,
        max: i64,
    },
    /// By bin: count, and sum of offsets.
    Bins(BTreeMap<i32, (u64, u64)>),
}

impl Groups {
    /// Adds the values of a group from one processor.
    pub fn add(&mut self, plan: &Plan, named: &Named, group: &Group) {
        let at = match self.at.get(named) {
            Some(at) => *at,
            None => {
                self.groups.push(Sums::new(plan));
                self.at.insert(named.clone(), self.groups.len() - 1);
                self.groups.len() - 1
            }
        };
        self.groups[at].add(plan, group);
    }

    /// All groups in the form that the source delivers; `None` if there are none.
    pub fn folded(self, plan: &Plan, end: Nanos) -> Option<Folded> {
        if self.groups.is_empty() {
            return None;
        }
        let mut keys: Vec<&Named> = self.at.keys().collect();
        keys.sort_by_key(|key| self.at[*key]);
        let columns = plan.key_types.iter().enumerate();
        let columns = columns.map(|(i, ty)| {
            let values = keys.iter().map(|named| named[i]);
            match ty {
                Type::Text => Column::Text(UInt32Array::from_iter(
                    values.map(|id| id.map(|id| id as u32)),
                )),
                _ => Column::Int(Int64Array::from_iter(values)),
            }
        });
        let of = |call: &Call| {
            let kept = self.groups.iter().map(|sums| sums.kept(plan, *call));
            kept.collect()
        };
        Some(Folded {
            end,
            keys: columns.collect(),
            kept: plan.calls.iter().map(of).collect(),
        })
    }
}

impl Sums {
    fn new(plan: &Plan) -> Sums {
        let sum = |keep| match keep {
            keep::MOMENTS => Sum::Moments {
                count: 0,
                sum: 0,
                min: i64::MAX,
                max: i64::MIN,
            },
            _ => Sum::Bins(BTreeMap::new()),
        };
        Sums {
            rows: 0,
            calls: plan.kernel.calls.iter().map(|c| sum(c.keep)).collect(),
        }
    }

    fn add(&mut self, plan: &Plan, group: &Group) {
        self.rows += group.rows;
        for (sum, call) in self.calls.iter_mut().zip(&plan.kernel.calls) {
            if let Sum::Moments {
                count,
                sum,
                min,
                max,
            } = sum
            {
                let [more, added, least, greatest] = group.moments[usize::from(call.place)];
                if more == 0 {
                    continue;
                }
                let bias = call.bias();
                *count += more;
                *sum += match call.is_signed {
                    true => i128::from(added as i64),
                    false => i128::from(added),
                };
                *min = (*min).min(least as i64 - bias);
                *max = (*max).max(greatest as i64 - bias);
            }
        }
        for (call, bin, count, offsets) in &group.bins {
            if let Some(Sum::Bins(bins)) = self.calls.get_mut(*call) {
                let sums = bins.entry(*bin).or_default();
                *sums = (sums.0 + count, sums.1.wrapping_add(*offsets));
            }
        }
    }

    fn kept(&self, plan: &Plan, call: Call) -> PartialState {
        let only = |count| PartialState::Moments {
            count,
            sum: 0,
            min: 0,
            max: 0,
        };
        let at = match call {
            Call::Rows => return only(self.rows),
            Call::None => return only(0),
            Call::Kept(at) => at,
        };
        match &self.calls[at] {
            Sum::Moments {
                count,
                sum,
                min,
                max,
            } => PartialState::Moments {
                count: *count,
                sum: *sum,
                min: *min,
                max: *max,
            },
            Sum::Bins(bins) if plan.kernel.calls[at].keep == keep::LIMITS => {
                let count = |bin| bins.get(&(bin as i32)).map_or(0, |(count, _)| *count);
                PartialState::Limits(
                    (0..=plan.kernel.calls[at].limits.len())
                        .map(count)
                        .collect(),
                )
            }
            Sum::Bins(bins) => {
                let bins = bins.iter();
                let bins = bins.map(|(bin, (count, offsets))| (*bin, *count, *offsets));
                PartialState::LogLinear(bins.collect())
            }
        }
    }
}
