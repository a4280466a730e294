//! [`Plan`]: determines which of the demanded groups the kernel programs can compute, and how.

use std::time::Duration;

use weir_model::{Demand, FoldCall, Nanos, PartialKind};

use super::layout::{self, FOLDS, LOG_BITS, keep, key};
use crate::ebpf::columns::{COLUMNS, Column, capabilities};
use crate::ebpf::layout::flag;
use crate::ebpf::needs::Needs;

/// The flags of records that were folded for the first, and the second, fold.
const FLAGS: [u8; FOLDS] = [flag::FOLDED, flag::FOLDED_TOO];

/// A column that can be a key of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// `op`
    Op,
    /// `pdisk`
    Pdisk,
    /// `pid`
    Pid,
    /// `comm`
    Comm,
    /// `cgroup`
    Cgroup,
    /// `vm`
    Vm,
    /// `vdisk`
    Vdisk,
    /// `type`: requests with errors are delivered as rows.
    Kind,
    /// `host`
    Host,
    /// `level`
    Level,
}

/// A fold that runs in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The demand that it serves.
    pub demand: usize,
    /// Intervals end at its multiples.
    pub interval: Nanos,
    /// The key columns, in the demand's order.
    pub keys: Vec<Key>,
    /// The aggregates, in the demand's order: the number of rows, or the position of one of the
    /// kernel's calls.
    pub calls: Vec<Call>,
    /// True if the owners of requests must be determined.
    pub owner: bool,
    /// The configuration of the kernel side.
    pub kernel: layout::Fold,
}

/// The kernel's counterpart of one call of a demand's fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Counts all rows.
    Rows,
    /// Counts no rows.
    None,
    /// The value of this one of the kernel's calls.
    Kept(usize),
}

/// The folds that run in the kernel.
#[derive(Clone, Debug, Default)]
pub struct Plans {
    /// Those that run in the kernel.
    pub folds: Vec<Plan>,
    /// Those that do not, by demand, with the reason.
    pub declined: Vec<String>,
}

impl Plans {
    /// The folds of these demands, whose needs are `needs`.
    pub fn of(demands: &[Demand], needs: &Needs) -> Plans {
        let mut plans = Plans::default();
        for (i, demand) in demands.iter().enumerate() {
            if demand.fold.is_none() {
                continue;
            }
            let plan = Plan::of(i, demand).and_then(|plan| plan.selected(needs));
            match plan {
                Ok(_) if plans.folds.len() == FOLDS => plans.declined.push(format!(
                    "the kernel programs make groups for {FOLDS} at a time"
                )),
                Ok(mut plan) => {
                    plan.kernel.flag = FLAGS[plans.folds.len()];
                    plans.folds.push(plan);
                }
                Err(why) => plans.declined.push(why),
            }
        }
        plans
    }

    /// The interval at which rings are read, for a requested `rhythm`: at least twice in the
    /// shortest interval, so that one is always open.
    pub fn rhythm(&self, rhythm: Duration) -> Duration {
        let intervals = self.folds.iter().map(|p| p.interval as u64);
        let half = intervals.map(|ns| Duration::from_nanos(ns / 4));
        half.fold(rhythm, Duration::min)
    }

    /// The marks of a device for the kernel programs: bit 8 + i, fold i may fold its requests, if
    /// `undivided`, which means that there is one owner only, permits it.
    pub fn marks(&self, undivided: bool) -> u32 {
        let folds = self.folds.iter().enumerate();
        let may = folds.map(|(i, p)| u32::from(undivided || !p.owner) << (8 + i));
        may.sum()
    }

    /// The folds that run in the kernel and those that do not, as text.
    pub fn lines(&self) -> Vec<String> {
        let folds = self.folds.iter().map(Plan::line);
        let declined = self.declined.iter();
        let declined = declined.map(|why| format!("agent: makes the groups; {why}"));
        folds.chain(declined).collect()
    }

    /// The flag of records that were folded for `demand`; 0 if there are none.
    pub fn flag(&self, demand: usize) -> u8 {
        let mut folds = self.folds.iter();
        let plan = folds.find(|p| p.demand == demand);
        plan.map_or(0, |p| p.kernel.flag)
    }
}

impl Plan {
    fn of(number: usize, demand: &Demand) -> Result<Plan, String> {
        capabilities().folds(demand)?;
        let fold = demand.fold.as_ref().expect("it was checked just now");
        let checked = "the capabilities were checked";
        let keys = fold.keys.iter().map(|at| COLUMNS[*at].key.expect(checked));
        let keys: Vec<Key> = keys.collect();
        let owner = keys.contains(&Key::Vm) || keys.contains(&Key::Vdisk);
        let mut kernel = layout::Fold {
            interval_ns: fold.interval as u64,
            keys: keys.iter().fold(0, |all, key| all | key.bits()),
            clauses: 0,
            marked: owner,
            flag: 0,
            calls: Vec::new(),
        };
        let calls = fold.calls.iter();
        let calls = calls.map(|c| call(c, &mut kernel.calls)).collect();
        Ok(Plan {
            demand: number,
            interval: fold.interval,
            keys,
            calls,
            owner,
            kernel,
        })
    }

    /// The plan with the kernel's selection, if that is exact.
    fn selected(mut self, needs: &Needs) -> Result<Plan, String> {
        let own = 1u64 << self.demand;
        for (i, clause) in needs.clauses.iter().enumerate() {
            if clause.demands & own == 0 {
                continue;
            }
            if clause.demands != own || !clause.exact {
                return Err("the kernel cannot test all that selects its rows".into());
            }
            self.kernel.clauses |= 1 << i;
        }
        if self.kernel.clauses == 0 {
            return Err("no row passes".into());
        }
        if self.owner && !needs.columns.owner {
            // No inventory: all owners are NULL, at every location.
            self.owner = false;
            self.kernel.marked = false;
            self.kernel.keys = self.keys.iter().fold(0, |all, key| match key {
                Key::Vm | Key::Vdisk => all,
                key => all | key.bits(),
            });
        }
        Ok(self)
    }

    /// A description, as text.
    fn line(&self) -> String {
        let name = |is: &dyn Fn(&Column) -> bool| {
            let column = COLUMNS.iter().find(|column| is(column));
            column.expect("it stands in the table").name
        };
        let keys = self.keys.iter();
        let keys: Vec<&str> = keys.map(|key| name(&|c| c.key == Some(*key))).collect();
        let by = match keys.is_empty() {
            true => String::new(),
            false => format!(" by {}", keys.join(", ")),
        };
        let kept = self.kernel.calls.iter().map(|call| {
            let name = name(&|c| c.measure == Some(call.measure));
            match call.keep {
                keep::MOMENTS => format!("{name}: count, sum, least, greatest"),
                keep::LIMITS => format!("{name}: counts under {} limits", call.limits.len()),
                _ => format!("{name}: counts in {} bins to a power of two", 1 << LOG_BITS),
            }
        });
        let kept: Vec<String> = std::iter::once("number".to_owned()).chain(kept).collect();
        let only = match self.owner {
            true => "; a disk that is divided among VMs comes as rows",
            false => "",
        };
        let every = Duration::from_nanos(self.interval as u64);
        format!(
            "kernel: groups{by} each {every:?} ({}){only}",
            kept.join("; ")
        )
    }
}

impl Key {
    /// The properties of a request by which the kernel side must group.
    fn bits(self) -> u32 {
        match self {
            Key::Op => key::OP,
            Key::Pdisk => key::DEVICE,
            Key::Pid => key::PID,
            Key::Comm => key::COMM,
            Key::Cgroup => key::CGROUP,
            // As attribution::Attribution decides; it treats flushes and discards separately.
            Key::Vm | Key::Vdisk => key::DEVICE | key::PID | key::CGROUP | key::KERNEL | key::OP,
            Key::Kind | Key::Host | Key::Level => 0,
        }
    }
}

/// Maps `call` to the kernel; `calls` are its calls so far.
fn call(call: &FoldCall, calls: &mut Vec<layout::Call>) -> Call {
    let Some(column) = call.column.map(|at| &COLUMNS[at]) else {
        return Call::Rows;
    };
    let Some(measure) = column.measure else {
        return Call::None;
    };
    let (keep, limits) = match &call.keep {
        PartialKind::Moments => (keep::MOMENTS, Vec::new()),
        PartialKind::Limits(limits) => (keep::LIMITS, limits.clone()),
        PartialKind::LogLinear { .. } => (keep::LOG_LINEAR, Vec::new()),
    };
    let moments = calls.iter().filter(|c| c.keep == keep::MOMENTS).count();
    let place = match keep {
        keep::MOMENTS => moments as u8,
        _ => 0,
    };
    let same = |c: &layout::Call| (c.measure, c.keep, &c.limits) == (measure, keep, &limits);
    let at = calls.iter().position(same).unwrap_or(calls.len());
    if at == calls.len() {
        calls.push(layout::Call {
            measure,
            keep,
            place,
            limits,
        });
    }
    Call::Kept(at)
}

#[cfg(test)]
mod tests {
    use weir_model::event::io_schema;
    use weir_model::{Clause, Fold, Operand, Predicate, Symbol, Test};

    use super::*;

    fn column(name: &str) -> usize {
        io_schema().index(name)
    }

    fn demand(keys: &[&str], calls: &[(&str, PartialKind)], tests: Vec<Test>) -> Demand {
        let count = FoldCall {
            column: None,
            keep: PartialKind::Moments,
        };
        let calls = calls.iter().map(|(name, keep)| FoldCall {
            column: Some(column(name)),
            keep: keep.clone(),
        });
        Demand {
            stream: "IO".into(),
            columns: Vec::new(),
            predicate: Predicate {
                clauses: vec![Clause { tests }],
            },
            fold: Some(Fold {
                interval: 1_000_000_000,
                keys: keys.iter().map(|name| column(name)).collect(),
                calls: std::iter::once(count).chain(calls).collect(),
            }),
        }
    }

    fn plans(demands: &[Demand], with_owners: bool) -> Plans {
        Plans::of(demands, &Needs::of(demands, with_owners).unwrap())
    }

    #[test]
    fn what_is_kept_twice_is_kept_once() {
        let latency = || ("latency", PartialKind::Moments);
        let bins = ("latency", PartialKind::LogLinear { bits: 7 });
        let asked = demand(&["op"], &[latency(), bins, latency()], Vec::new());
        let plans = plans(&[asked], false);
        let [plan] = &plans.folds[..] else {
            panic!("{plans:?}");
        };
        let kept = [Call::Rows, Call::Kept(0), Call::Kept(1), Call::Kept(0)];
        assert_eq!(plan.calls, kept);
        assert_eq!((plan.kernel.keys, plan.kernel.clauses), (key::OP, 1));
        assert_eq!(plans.flag(0), flag::FOLDED);
    }

    #[test]
    fn the_kernel_declines_what_it_cannot_do_exactly() {
        let only = |test| demand(&[], &[], vec![test]);
        let texts = |name, texts: &[&str]| Test::In {
            operand: Operand::Value(column(name)),
            texts: texts.iter().map(|t| Symbol::new(t)).collect(),
        };
        let twelve = [("bytes", PartialKind::Limits((0..65).collect()))];
        let fine = ("latency", PartialKind::LogLinear { bits: 5 });
        let names = ["a", "b", "c", "d", "e"];
        let cases = [
            (demand(&["sector"], &[], Vec::new()), "`sector` is no key"),
            (
                demand(&[], &[("seek", PartialKind::Moments)], Vec::new()),
                "`seek`",
            ),
            (demand(&[], &twelve, Vec::new()), "more than 64 limits"),
            (demand(&[], &[fine], Vec::new()), "bins of another width"),
            (only(texts("cgroup", &["/a"])), "`cgroup`"),
            (only(texts("comm", &names)), "cannot test all"),
        ];
        for (demand, why) in cases {
            let plans = plans(&[demand], false);
            assert_eq!(plans.folds, []);
            assert!(plans.declined[0].contains(why), "{:?}", plans.declined);
        }
    }

    #[test]
    fn no_more_is_folded_at_a_time_than_there_is_room_for() {
        let one = demand(&["op"], &[], Vec::new());
        let plans = plans(&[one.clone(), one.clone(), one], false);
        let served: Vec<usize> = plans.folds.iter().map(|p| p.demand).collect();
        assert_eq!((served, plans.declined.len()), (vec![0, 1], 1));
        assert_eq!((plans.flag(1), plans.flag(2)), (flag::FOLDED_TOO, 0));
    }

    #[test]
    fn owners_are_found_out_only_where_somebody_knows_them() {
        let asked = demand(&["vm", "pdisk"], &[], Vec::new());
        let known = plans(std::slice::from_ref(&asked), true);
        assert!(known.folds[0].owner && known.folds[0].kernel.marked);
        assert_eq!((known.marks(true), known.marks(false)), (1 << 8, 0));
        let unknown = plans(&[asked], false);
        assert_eq!(unknown.folds[0].kernel.keys, key::DEVICE);
        assert_eq!(unknown.marks(false), 1 << 8);
    }
}
