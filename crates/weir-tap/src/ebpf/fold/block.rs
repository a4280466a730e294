//! [`Plans`]: determines which of the demanded groups of block I/O the kernel programs can compute,
//! and how.

use std::time::Duration;

use weir_model::{Demand, Type};

use super::layout::{BlockMeasure, FOLDS, key};
use super::plan::{self, KernelMeasure, Plan, Selected};
use crate::ebpf::layout::flag;
use crate::ebpf::needs::Needs;
use crate::io_columns::{COLUMNS, Column, live_capabilities};

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

/// A fold of block I/O.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockFold {
    /// The fold.
    pub plan: Plan,
    /// The key columns, in the demand's order.
    pub keys: Vec<Key>,
    /// True if the owners of requests must be determined.
    pub owner: bool,
}

/// The folds that run in the kernel.
#[derive(Clone, Debug, Default)]
pub struct Plans {
    /// Those that run in the kernel.
    pub folds: Vec<BlockFold>,
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
            let fold = BlockFold::of(i, demand).and_then(|fold| fold.selected(needs));
            let fold = fold.and_then(|fold| fold.plan.fits(plans.plans()).map(|()| fold));
            match fold {
                Ok(mut fold) => {
                    fold.plan.kernel.flag = FLAGS[plans.folds.len()];
                    plans.folds.push(fold);
                }
                Err(why) => plans.declined.push(why),
            }
        }
        plans
    }

    /// The folds.
    pub fn plans(&self) -> impl Iterator<Item = &Plan> {
        self.folds.iter().map(|fold| &fold.plan)
    }

    /// See [`plan::poll_interval`].
    pub fn poll_interval(&self, poll_interval: Duration) -> Duration {
        plan::poll_interval(self.plans(), poll_interval)
    }

    /// True if the owners of requests must be determined for any of them.
    pub fn by_owner(&self) -> bool {
        self.folds.iter().any(|fold| fold.owner)
    }

    /// The folds that run in the kernel and those that do not, as text.
    pub fn lines(&self) -> Vec<String> {
        let folds = self.folds.iter().map(BlockFold::line);
        let declined = self.declined.iter().map(plan::declined);
        folds.chain(declined).collect()
    }

    /// The flag of records that were folded for `demand`; 0 if there are none.
    pub fn flag(&self, demand: usize) -> u8 {
        let mut folds = self.folds.iter();
        let fold = folds.find(|f| f.plan.demand == demand);
        fold.map_or(0, |f| f.plan.kernel.flag)
    }
}

impl BlockFold {
    fn of(number: usize, demand: &Demand) -> Result<BlockFold, String> {
        live_capabilities().folds(demand)?;
        let (mut plan, keys) = keyed_plan(number, demand, |column| column.measure);
        let owner = keys.contains(&Key::Vm) || keys.contains(&Key::Vdisk);
        plan.kernel.keys = keys.iter().fold(0, |all, key| all | key.bits());
        Ok(BlockFold { plan, keys, owner })
    }

    /// The fold with the kernel's selection, if that is exact.
    fn selected(mut self, needs: &Needs) -> Result<BlockFold, String> {
        let clauses = needs.clauses.iter();
        self.plan.select(clauses.map(|clause| Selected {
            // One that selects no kind of record only makes the programs follow the requests.
            demands: if clause.kinds == 0 { 0 } else { clause.demands },
            exact: clause.exact,
        }))?;
        if self.owner && !needs.columns.owner {
            // No inventory: all owners are NULL, at every location.
            self.owner = false;
            self.plan.kernel.keys = self.keys.iter().fold(0, |all, key| match key {
                Key::Vm | Key::Vdisk => all,
                key => all | key.bits(),
            });
        }
        Ok(self)
    }

    /// A description, as text.
    fn line(&self) -> String {
        let only = match self.owner {
            true => {
                "; requests outside of the known extents of image files are transferred as rows"
            }
            false => "",
        };
        format!("kernel: {}{only}", plan_line(&self.plan, &self.keys))
    }
}

/// The plan and the key columns of a demand for groups of block I/O, which the capabilities of the
/// source allow; `measure` is what the source keeps of a column.
pub fn keyed_plan(
    number: usize,
    demand: &Demand,
    measure: impl Fn(&Column) -> Option<BlockMeasure>,
) -> (Plan, Vec<Key>) {
    let checked = "the capabilities were checked";
    let fold = demand.fold.as_ref().expect(checked);
    let keys = fold.keys.iter().map(|at| COLUMNS[*at].key.expect(checked));
    let keys: Vec<Key> = keys.collect();
    let types = keys.iter().map(|key| match key {
        Key::Pid => Type::Int,
        _ => Type::Text,
    });
    let measure = |at: usize| {
        measure(&COLUMNS[at]).map(|measure| KernelMeasure {
            number: measure as u8,
            is_signed: measure.is_signed(),
        })
    };
    let plan = Plan::new(number, demand, types.collect(), measure);
    (plan, keys)
}

/// A description of a plan of block I/O, as text.
pub fn plan_line(plan: &Plan, keys: &[Key]) -> String {
    let name = |is: &dyn Fn(&Column) -> bool| {
        let column = COLUMNS.iter().find(|column| is(column));
        column.expect("it stands in the table").name
    };
    let keys = keys.iter();
    let keys: Vec<&str> = keys.map(|key| name(&|c| c.key == Some(*key))).collect();
    let measure = |number| name(&|c| c.measure.is_some_and(|m| m as u8 == number));
    plan.line(&keys, measure)
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
            Key::Vm | Key::Vdisk => {
                key::DEVICE | key::OWNERS | key::PID | key::CGROUP | key::KERNEL | key::OP
            }
            Key::Kind | Key::Host | Key::Level => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_model::event::io_schema;
    use weir_model::{Clause, Fold, FoldCall, Operand, PartialKind, Predicate, Symbol, Test};

    use super::super::plan::Call;
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
        Plans::of(demands, &Needs::of(demands, with_owners, true).unwrap())
    }

    #[test]
    fn what_is_kept_twice_is_kept_once() {
        let latency = || ("latency", PartialKind::Moments);
        let bins = ("latency", PartialKind::LogLinear { bits: 7 });
        let asked = demand(&["op"], &[latency(), bins, latency()], Vec::new());
        let plans = plans(&[asked], false);
        let [BlockFold { plan, .. }] = &plans.folds[..] else {
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
        let many = [("bytes", PartialKind::Limits((0..513).collect()))];
        let fine = ("latency", PartialKind::LogLinear { bits: 5 });
        let names = ["a", "b", "c", "d", "e"];
        let cases = [
            (
                demand(&["sector"], &[], Vec::new()),
                "`sector` is not a key",
            ),
            (
                demand(&[], &[("req_id", PartialKind::Moments)], Vec::new()),
                "`req_id`",
            ),
            (demand(&[], &many, Vec::new()), "more than 512 limits"),
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
        let served: Vec<usize> = plans.folds.iter().map(|f| f.plan.demand).collect();
        assert_eq!((served, plans.declined.len()), (vec![0, 1], 1));
        assert_eq!((plans.flag(1), plans.flag(2)), (flag::FOLDED_TOO, 0));
    }

    #[test]
    fn owners_are_determined_only_where_they_are_known() {
        let asked = demand(&["vm", "pdisk"], &[], Vec::new());
        let known = plans(std::slice::from_ref(&asked), true);
        assert!(known.folds[0].owner && known.by_owner());
        assert!(known.folds[0].plan.kernel.keys & key::OWNERS != 0);
        let unknown = plans(&[asked], false);
        assert_eq!(unknown.folds[0].plan.kernel.keys, key::DEVICE);
        assert!(!unknown.by_owner());
    }
}
