//! [`Totals`]: what each disk has done since weir looks.

use std::collections::HashMap;

use weir_model::event::Op;
use weir_model::{Nanos, Symbol};
use weir_sink::iostat::{DiskCounters, OpCounters};

use super::busy::Busy;

const NANOS_PER_MILLISECOND: i64 = 1_000_000;

/// The name of what has no place of its own.
const OTHER: &str = "(other)";

/// The letters of the ops in their order, and their names.
pub const OP_NAMES: [(&str, &str); 5] = [
    ("r", "read"),
    ("w", "write"),
    ("f", "flush"),
    ("d", "discard"),
    ("z", "write_zeroes"),
];

/// Whose counters they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DiskKey {
    /// The VM; `None` is what is nobody's.
    pub vm: Option<Symbol>,
    /// The disk as the VM sees it.
    pub vdisk: Option<Symbol>,
    /// The host's device, where the virtual disk is not known.
    pub device: Option<Symbol>,
}

/// What a disk has done.
#[derive(Clone, Debug)]
pub struct DiskTotals {
    /// By op, in the order of [`OP_NAMES`].
    pub ops: [OpTotals; OP_NAMES.len()],
    /// When it had requests in flight.
    pub busy: Busy,
    /// When it appeared.
    pub since: Nanos,
    /// When a counter last changed.
    pub changed: Nanos,
}

/// What a disk has done of one kind.
#[derive(Clone, Debug, Default)]
pub struct OpTotals {
    /// Completed requests.
    pub ios: i64,
    /// Sectors of 512 bytes.
    pub sectors: i64,
    /// Merged bios.
    pub merges: i64,
    /// From insert to complete, all requests together, ns; of a source that does not know when a
    /// request was inserted, from issue.
    pub time_ns: i64,
    /// From insert to issue, ns.
    pub wait_ns: i64,
    /// From issue to complete, ns.
    pub service_ns: i64,
    /// Requests that failed.
    pub errors: i64,
    /// How many took up to each limit and longer than the one before, the last without limit.
    pub buckets: Vec<u64>,
}

/// The counters of all disks.
pub struct Totals {
    disks: HashMap<DiskKey, DiskTotals>,
    disks_max: usize,
    /// Requests of disks that have no place of their own.
    folded: i64,
}

impl DiskKey {
    /// The disks that have no place of their own.
    fn other() -> DiskKey {
        DiskKey {
            vm: Some(Symbol::new(OTHER)),
            vdisk: None,
            device: None,
        }
    }

    /// As reports call it: `web:vda` the VM's disk, `web@sda` what a VM did on a device without
    /// being known to belong to a disk of its, `sda` what is nobody's.
    pub fn name(&self) -> String {
        let short = |path: Symbol| {
            let path = path.as_str();
            path.strip_prefix("/dev/").unwrap_or(path)
        };
        match (self.vm, self.vdisk, self.device) {
            (Some(vm), Some(vdisk), _) => format!("{vm}:{}", short(vdisk)),
            (Some(vm), None, Some(device)) => format!("{vm}@{}", short(device)),
            (Some(vm), None, None) => vm.to_string(),
            (None, Some(disk), _) | (None, None, Some(disk)) => short(disk).to_owned(),
            (None, None, None) => "?".to_owned(),
        }
    }

    /// The order of reports: VMs by name with their disks, then what is nobody's.
    pub fn place(&self) -> (bool, [Option<&'static str>; 3]) {
        let names = [self.vm, self.vdisk, self.device].map(|s| s.map(Symbol::as_str));
        (self.vm.is_none(), names)
    }
}

impl DiskTotals {
    fn new(since: Nanos) -> DiskTotals {
        DiskTotals {
            ops: Default::default(),
            busy: Busy::default(),
            since,
            changed: since,
        }
    }

    /// What the kernel would count for it in /proc/diskstats. There, zeroes written are writes
    /// (`op_stat_group` in include/linux/blk_types.h), and so is a flush without data: the request
    /// counts as a write and the command that the device gets for it as a flush, each with its
    /// time (`blk_account_io_done` and `blk_account_io_flush` in block/). Requests in flight are 0,
    /// for only finished ones are known.
    pub fn counters(&self) -> DiskCounters {
        let op = |op: Op| &self.ops[op as usize];
        let ms = |ns: i64| count(ns / NANOS_PER_MILLISECOND);
        let sum = |ops: &[&OpTotals], of: fn(&OpTotals) -> i64| ops.iter().map(|o| of(o)).sum();
        let counters = |ops: &[&OpTotals]| OpCounters {
            ios: count(sum(ops, |o| o.ios)),
            merges: count(sum(ops, |o| o.merges)),
            sectors: count(sum(ops, |o| o.sectors)),
            time_ms: ms(sum(ops, |o| o.time_ns)),
        };
        let all: Vec<&OpTotals> = self.ops.iter().collect();
        DiskCounters {
            reads: counters(&[op(Op::Read)]),
            writes: counters(&[op(Op::Write), op(Op::WriteZeroes), op(Op::Flush)]),
            in_flight: 0,
            busy_ms: ms(self.busy.total_ns()),
            queue_ms: ms(sum(&all, |o| o.time_ns) + op(Op::Flush).time_ns),
            discards: counters(&[op(Op::Discard)]),
            flushes: OpCounters {
                sectors: 0,
                merges: 0,
                ..counters(&[op(Op::Flush)])
            },
        }
    }
}

impl OpTotals {
    /// Adds what happened since.
    pub fn add(&mut self, more: OpTotals) {
        self.ios += more.ios;
        self.sectors += more.sectors;
        self.merges += more.merges;
        self.time_ns += more.time_ns;
        self.wait_ns += more.wait_ns;
        self.service_ns += more.service_ns;
        self.errors += more.errors;
        let len = self.buckets.len().max(more.buckets.len());
        self.buckets.resize(len, 0);
        for (bucket, more) in self.buckets.iter_mut().zip(more.buckets) {
            *bucket += more;
        }
    }
}

impl Totals {
    /// None yet; of disks beyond `disks_max` all counts go to one that is called `(other)`.
    pub fn new(disks_max: usize) -> Totals {
        Totals {
            disks: HashMap::new(),
            disks_max,
            folded: 0,
        }
    }

    /// The disk's totals to add to at instant `at`.
    pub fn at(&mut self, key: DiskKey, at: Nanos) -> &mut DiskTotals {
        let key = self.place_of(key);
        let disk = self.disks.entry(key).or_insert_with(|| DiskTotals::new(at));
        disk.changed = disk.changed.max(at);
        disk
    }

    /// Adds what a disk did up to instant `at`.
    pub fn add(&mut self, key: DiskKey, op: usize, more: OpTotals, at: Nanos) {
        if self.place_of(key) != key {
            self.folded += more.ios;
        }
        self.at(key, at).ops[op].add(more);
    }

    /// Where the counts of a disk go.
    fn place_of(&self, key: DiskKey) -> DiskKey {
        match self.disks.len() < self.disks_max || self.disks.contains_key(&key) {
            true => key,
            false => DiskKey::other(),
        }
    }

    /// Forgets disks that did nothing since `before`.
    pub fn forget(&mut self, before: Nanos) {
        self.disks.retain(|_, disk| disk.changed >= before);
    }

    /// The disks in the order of reports.
    pub fn disks(&self) -> Vec<(DiskKey, &DiskTotals)> {
        let mut disks: Vec<(DiskKey, &DiskTotals)> =
            self.disks.iter().map(|(k, d)| (*k, d)).collect();
        disks.sort_by_key(|(key, _)| key.place());
        disks
    }

    /// Requests of disks that have no place of their own.
    pub fn folded(&self) -> i64 {
        self.folded
    }
}

/// A count; taps never give a negative one.
fn count(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(vm: Option<&str>, vdisk: Option<&str>, device: Option<&str>) -> DiskKey {
        let symbol = |text: Option<&str>| text.map(Symbol::new);
        DiskKey {
            vm: symbol(vm),
            vdisk: symbol(vdisk),
            device: symbol(device),
        }
    }

    fn ios(ios: i64) -> OpTotals {
        OpTotals {
            ios,
            ..OpTotals::default()
        }
    }

    #[test]
    fn names_say_whose_it_is() {
        let name = |vm, vdisk, device| key(vm, vdisk, device).name();
        assert_eq!(name(Some("web"), Some("/dev/vda"), None), "web:vda");
        assert_eq!(name(Some("web"), None, Some("/dev/sda")), "web@sda");
        assert_eq!(name(None, None, Some("/dev/sda")), "sda");
        assert_eq!(name(None, None, None), "?");
    }

    #[test]
    fn what_has_no_place_is_counted_together() {
        let mut totals = Totals::new(2);
        for (n, vm) in ["a", "b", "c", "d", "a"].into_iter().enumerate() {
            totals.add(key(Some(vm), None, None), 0, ios(1), n as Nanos);
        }
        let shown: Vec<(String, i64)> = totals
            .disks()
            .into_iter()
            .map(|(key, disk)| (key.name(), disk.ops[0].ios))
            .collect();
        let expected = [("(other)", 2), ("a", 2), ("b", 1)];
        assert_eq!(shown, expected.map(|(n, i)| (n.to_owned(), i)));
        assert_eq!(totals.folded(), 2);
        totals.forget(3);
        assert_eq!(totals.disks().len(), 2);
    }

    #[test]
    fn the_kernels_counters_are_made_of_ours() {
        let mut disk = DiskTotals::new(0);
        let op = |ios: i64, ms: i64| OpTotals {
            ios,
            sectors: if ios == 4 { 0 } else { 8 * ios },
            merges: 1,
            time_ns: ms * 1_000_000 + 600_000,
            ..OpTotals::default()
        };
        disk.ops[Op::Read as usize].add(op(3, 7));
        disk.ops[Op::Write as usize].add(op(2, 5));
        disk.ops[Op::WriteZeroes as usize].add(op(1, 1));
        disk.ops[Op::Flush as usize].add(op(4, 9));
        disk.busy.add(0, 2_500_000);
        let counters = disk.counters();
        let line = "3 1 24 7 7 3 24 16 0 2 34 0 0 0 0 4 9\n";
        assert_eq!(counters.stat_line(), line);
    }
}
