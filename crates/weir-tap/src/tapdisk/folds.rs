//! [`GroupPlans`]: which of the demanded groups a tapdisk computes, and the names of these groups.

use std::time::Duration;

use weir_model::{Demand, EventKind, Level, Op, Symbol};

use super::client::TapdiskClient;
use super::rows::Names;
use super::wanted::selects_exactly;
use super::words::{Answer, Ask, FoldWord, Wanted};
use crate::ebpf::fold::layout::{Folding, cell};
use crate::ebpf::fold::{self, Key, NameGroups, Named, Plan, RawKey};
use crate::io_columns::{TapdiskTest, tapdisk_capabilities};

/// A fold that a tapdisk computes.
#[derive(Clone, Debug)]
struct GroupPlan {
    plan: Plan,
    /// The key columns, in the demand's order.
    keys: Vec<Key>,
}

/// The folds of a tap.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupPlans {
    plans: Vec<GroupPlan>,
    /// Those that it does not compute, with the reason.
    declined: Vec<String>,
}

impl GroupPlans {
    /// The folds of these demands, and the request for them and for the rows of the others.
    pub fn of(demands: &[Demand], ring_bytes: u64) -> (GroupPlans, Wanted) {
        let mut all = GroupPlans::default();
        for (number, demand) in demands.iter().enumerate() {
            if demand.fold.is_none() {
                continue;
            }
            let found = GroupPlan::of(number, demand);
            let others = all.plans.iter().map(|other| &other.plan);
            let found = found.and_then(|found| found.plan.fits(others).map(|()| found));
            match found {
                Ok(plan) => all.plans.push(plan),
                Err(why) => all.declined.push(why),
            }
        }
        let demanded = demands.iter().enumerate();
        let demanded = demanded.map(|(number, demand)| (demand, all.word(number)));
        let wanted = Wanted::with_groups(&demanded.collect::<Vec<_>>(), ring_bytes);
        if wanted.folds.is_empty() && !all.plans.is_empty() {
            all.decline("the request to the tapdisk would be too long");
        }
        (all, wanted)
    }

    /// Gives all folds up, for this reason: their rows are delivered.
    pub fn decline(&mut self, why: &str) {
        let declined = self.plans.drain(..).map(|_| why.to_owned());
        self.declined.extend(declined);
    }

    pub fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }

    /// The plans, for the reader of the tables.
    pub fn plans(&self) -> Vec<Plan> {
        self.plans.iter().map(|fold| fold.plan.clone()).collect()
    }

    /// The configuration of the writers, whose tables have other sizes.
    pub fn folding(&self) -> Folding {
        let plans = self.plans.iter().map(|fold| &fold.plan);
        Folding::new(plans, 0, 1)
    }

    /// The fold of a demand as a bit of `Record::folded`; 0 without one.
    pub fn bit(&self, demand: usize) -> u8 {
        let at = self
            .plans
            .iter()
            .position(|fold| fold.plan.demand == demand);
        at.map_or(0, |at| 1 << at)
    }

    /// See [`fold::poll_interval`].
    pub fn poll_interval(&self, poll_interval: Duration) -> Duration {
        let plans = self.plans.iter().map(|fold| &fold.plan);
        fold::poll_interval(plans, poll_interval)
    }

    /// The folds that the tapdisk computes and those that it does not, as text.
    pub fn lines(&self) -> Vec<String> {
        let folds = self.plans.iter().map(GroupPlan::line);
        folds
            .chain(self.declined.iter().map(fold::declined))
            .collect()
    }

    fn word(&self, demand: usize) -> Option<FoldWord> {
        let mut plans = self.plans.iter();
        plans
            .find(|fold| fold.plan.demand == demand)
            .map(GroupPlan::word)
    }
}

impl GroupPlan {
    fn of(number: usize, demand: &Demand) -> Result<GroupPlan, String> {
        tapdisk_capabilities().folds(demand)?;
        if !selects_exactly(&demand.predicate) {
            return Err("the tapdisk cannot test all conditions of the selection".into());
        }
        let (plan, keys) = fold::keyed_plan(number, demand, |column| {
            column
                .measure
                .filter(|_| column.tapdisk != TapdiskTest::Null)
        });
        Ok(GroupPlan { plan, keys })
    }

    fn word(&self) -> FoldWord {
        let is_of_disk = |key: &Key| matches!(key, Key::Vm | Key::Vdisk | Key::Pdisk);
        FoldWord::of(
            &self.plan,
            self.keys.iter().any(is_of_disk),
            self.keys.contains(&Key::Op),
        )
    }

    fn line(&self) -> String {
        format!("tapdisk: {}", fold::plan_line(&self.plan, &self.keys))
    }
}

/// The names of a tapdisk's groups.
pub(super) struct Naming<'a> {
    pub plans: &'a GroupPlans,
    pub names: &'a mut Names,
    /// For the names of disks that were added later.
    pub client: &'a mut TapdiskClient,
}

impl NameGroups for Naming<'_> {
    fn name(&mut self, fold: usize, keys: &[RawKey]) -> Vec<Named> {
        let is_known = |raw: &RawKey| self.names.knows(raw[0] as u16);
        if !keys.iter().all(is_known)
            && let Ok(Answer::Disks(disks)) = self.client.ask(Ask::Disks)
        {
            self.names.learn(&disks);
        }
        let fold = &self.plans.plans[fold];
        let named = |raw: &RawKey| {
            fold.keys
                .iter()
                .map(|key| self.value(*key, raw[0]))
                .collect()
        };
        keys.iter().map(named).collect()
    }
}

impl Naming<'_> {
    fn value(&self, key: Key, raw: u64) -> Option<i64> {
        let text = |symbol: Symbol| i64::from(symbol.id());
        let disk = self.names.disk(raw as u16);
        match key {
            Key::Op => {
                let op = Op::ALL.get(usize::from((raw >> cell::OP_SHIFT) as u8))?;
                Some(text(op.symbol()))
            }
            Key::Pdisk => disk.pdisk.map(text),
            Key::Vm => disk.vm.map(text),
            Key::Vdisk => disk.vdisk.map(text),
            Key::Kind => Some(text(EventKind::Response.symbol())),
            Key::Host => self.names.host().map(text),
            Key::Level => Some(text(Level::Vdisk.symbol())),
            Key::Pid | Key::Comm | Key::Cgroup => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use weir_model::event::io_schema;
    use weir_model::{Fold, FoldCall, PartialKind, Predicate};

    use super::*;
    use crate::ebpf::fold::Folds;
    use crate::monotonic_ns;
    use crate::tapdisk::groups::{GroupWriter, values_of};
    use crate::tapdisk::layout::{Layout, Record, tests};
    use crate::tapdisk::ring::Memory;

    fn demand(keys: &[&str], calls: &[(&str, PartialKind)], predicate: Predicate) -> Demand {
        let column = |name: &str| io_schema().index(name);
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
            predicate,
            fold: Some(Fold {
                interval: 2_000_000,
                keys: keys.iter().map(|name| column(name)).collect(),
                calls: std::iter::once(count).chain(calls).collect(),
            }),
        }
    }

    #[test]
    fn a_request_for_groups_has_clauses_of_their_own() {
        let bytes = [("bytes", PartialKind::Moments)];
        let folding = demand(&["op"], &bytes, Predicate::all());
        let rows = Demand {
            fold: None,
            ..folding.clone()
        };
        let demands = [folding.clone(), rows, folding.clone(), folding];
        let (plans, wanted) = GroupPlans::of(&demands, 0);
        assert_eq!(
            wanted.clauses.len(),
            3,
            "one for rows, one for each group-by"
        );
        let clauses: Vec<&[usize]> = wanted.folds.iter().map(|f| &f.clauses[..]).collect();
        assert_eq!(clauses, [[1], [2]]);
        assert_eq!([0, 1, 2, 3].map(|demand| plans.bit(demand)), [1, 0, 2, 0]);
        assert!(
            plans.lines()[2].contains("computed at a time"),
            "{:?}",
            plans.lines()
        );
    }

    #[test]
    fn what_a_tapdisk_cannot_compute_exactly_is_delivered_as_rows() {
        let bytes = || vec![("bytes", PartialKind::Moments)];
        for (keys, calls, expected) in [
            (vec!["sector"], bytes(), "`sector` is not a key"),
            (vec![], vec![("req_id", PartialKind::Moments)], "`req_id`"),
            (
                vec![],
                vec![("latency", PartialKind::LogLinear { bits: 5 })],
                "bins of another width",
            ),
        ] {
            let demands = [demand(&keys, &calls, Predicate::all())];
            let (plans, wanted) = GroupPlans::of(&demands, 0);
            assert!(plans.is_empty() && wanted.folds.is_empty());
            assert!(plans.lines()[0].contains(expected), "{:?}", plans.lines());
            assert_eq!(wanted.clauses.len(), 1);
        }
    }

    struct Nameless;

    impl NameGroups for Nameless {
        fn name(&mut self, _: usize, keys: &[RawKey]) -> Vec<Named> {
            keys.iter()
                .map(|key| [Some(key[0] as i64)].into())
                .collect()
        }
    }

    /// Any words in the tables: a tapdisk may belong to another user.
    #[test]
    fn garbage_in_the_tables_ends_no_consumer() {
        let calls = [
            ("bytes", PartialKind::Moments),
            ("seek", PartialKind::Moments),
            ("interarrival", PartialKind::Moments),
            ("latency", PartialKind::LogLinear { bits: 7 }),
            ("seek", PartialKind::Limits(vec![-1, 1])),
        ];
        let (plans, wanted) = GroupPlans::of(&[demand(&["op"], &calls, Predicate::all())], 0);
        let groups = wanted.group_tables(1 << 16);
        let memory = Arc::new(Memory::create(Layout::new(0).with_groups(groups)).unwrap());
        memory.reserve(0).unwrap();
        let (layout, groups) = (memory.layout(), groups.unwrap());
        let tables = memory.tables(plans.folding()).unwrap();
        let mut folds = Folds::begin(plans.plans(), tables, 0, Arc::default());
        let writer = GroupWriter::new(memory.clone(), 0, &wanted.folds).unwrap();
        let mut random = fastrand::Rng::with_seed(79);
        let cpus = layout.group_cpus().start;
        let parts = [
            // Not the mark of a busy writer: while it is set, time does not pass.
            cpus + 1..cpus + 56,
            layout.group_cells(groups, 0),
            layout.group_blocks(groups, 0),
        ];
        let mut delivered = 0;
        for _ in 0..3_000 {
            for _ in 0..50 {
                let ts_ns = monotonic_ns();
                let record = Record {
                    kind: EventKind::Response,
                    op: Op::ALL[random.usize(..5)],
                    sectors: random.u32(1..64),
                    taken_ns: ts_ns - random.u64(..1 << 30),
                    seek_sectors: Some(random.i64(-1_000_000..1_000_000)),
                    interarrival_ns: Some(random.u64(..1 << 30)),
                    ..tests::request(ts_ns)
                };
                writer.add(&record, &values_of(&record), 1);
            }
            // Few, so that some of the groups of an interval are whole and some are not.
            for _ in 0..random.usize(..4) {
                let part = parts[random.usize(..3)].clone();
                let word = match random.u64(..4) {
                    0 => random.u64(..),
                    1 => u64::MAX,
                    2 => random.u64(..100) << 32 | random.u64(..100),
                    _ => random.u64(..5_000),
                };
                memory.words()[random.usize(part)].store(word, Ordering::Relaxed);
            }
            folds.advance(monotonic_ns(), &mut Nameless);
            delivered += folds.over(u64::MAX).len();
        }
        folds.finish(&mut Nameless);
        assert!(delivered > 0, "some groups are whole");
        assert!(folds.discarded() > 0, "some groups are not");
    }
}
