//! [`Totals`]: the I/O of each disk since the start of weir.

use std::collections::HashMap;

use weir_model::event::Op;
use weir_model::{Nanos, Symbol};
use weir_sink::iostat::{DiskCounters, OpCounters};

use super::busy::Busy;

const NANOS_PER_MILLISECOND: i64 = 1_000_000;

/// The name of the disks without an entry of their own.
const OTHER: &str = "(other)";

/// The letters of the ops in order, and their names.
pub const OP_NAMES: [(&str, &str); 5] = [
    ("r", "read"),
    ("w", "write"),
    ("f", "flush"),
    ("d", "discard"),
    ("z", "write_zeroes"),
];

/// The identity of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DiskKey {
    /// The VM; `None` if the I/O belongs to none.
    pub vm: Option<Symbol>,
    /// The disk as the VM sees it.
    pub vdisk: Option<Symbol>,
    /// The host's device, if the virtual disk is unknown.
    pub device: Option<Symbol>,
}

/// The totals of a disk.
#[derive(Clone, Debug)]
pub struct DiskTotals {
    /// By op, in the order of [`OP_NAMES`].
    pub ops: [OpTotals; OP_NAMES.len()],
    /// The times at which it had requests in flight.
    pub busy: Busy,
    /// The time at which it appeared.
    pub since: Nanos,
    /// The time at which a counter last changed.
    pub changed: Nanos,
}

/// The totals of a disk for one op.
#[derive(Clone, Debug, Default)]
pub struct OpTotals {
    /// Completed requests.
    pub ios: i64,
    /// Sectors of 512 bytes.
    pub sectors: i64,
    /// Merged bios.
    pub merges: i64,
    /// From insert to completion, the sum of all requests, ns; from issue if the source does not
    /// know the insert.
    pub time_ns: i64,
    /// From insert to issue, ns.
    pub wait_ns: i64,
    /// From issue to completion, ns.
    pub service_ns: i64,
    /// Requests that failed.
    pub errors: i64,
    /// The number of requests above the previous limit and up to each limit; the last has no limit.
    pub buckets: Vec<u64>,
}

/// The counters of all disks.
pub struct Totals {
    disks: HashMap<DiskKey, DiskTotals>,
    disks_max: usize,
    /// Requests of disks without an entry of their own.
    folded: i64,
}

impl DiskKey {
    /// The key of the disks without an entry of their own.
    fn other() -> DiskKey {
        DiskKey {
            vm: Some(Symbol::new(OTHER)),
            vdisk: None,
            device: None,
        }
    }

    /// The name in reports: `web:vda` is the VM's disk, `web@sda` the I/O of a VM on a device that
    /// cannot be assigned to one of its disks, `sda` the I/O of no VM.
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

    /// The sort key of reports: VMs by name with their disks, then the I/O of no VM.
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

    /// The counters that the kernel would show in /proc/diskstats. There, zeroes written are writes
    /// (`op_stat_group` in include/linux/blk_types.h), and so is a flush without data: the request
    /// counts as a write and the command that the device gets for it as a flush, each with its time
    /// (`blk_account_io_done` and `blk_account_io_flush` in block/). Requests in flight are 0,
    /// since only completed ones are known.
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
    /// Adds later counts.
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
    /// Empty totals; the counts of disks beyond `disks_max` are added to one that is named
    /// `(other)`.
    pub fn new(disks_max: usize) -> Totals {
        Totals {
            disks: HashMap::new(),
            disks_max,
            folded: 0,
        }
    }

    /// The totals of the disk, for an update at instant `at`.
    pub fn at(&mut self, key: DiskKey, at: Nanos) -> &mut DiskTotals {
        let key = self.place_of(key);
        let disk = self.disks.entry(key).or_insert_with(|| DiskTotals::new(at));
        disk.changed = disk.changed.max(at);
        disk
    }

    /// Adds the I/O of a disk up to instant `at`.
    pub fn add(&mut self, key: DiskKey, op: usize, more: OpTotals, at: Nanos) {
        if self.place_of(key) != key {
            self.folded += more.ios;
        }
        self.at(key, at).ops[op].add(more);
    }

    /// The key to which the counts of a disk are added.
    fn place_of(&self, key: DiskKey) -> DiskKey {
        match self.disks.len() < self.disks_max || self.disks.contains_key(&key) {
            true => key,
            false => DiskKey::other(),
        }
    }

    /// Removes disks without I/O since `before`.
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

    /// Requests of disks without an entry of their own.
    pub fn folded(&self) -> i64 {
        self.folded
    }
}

/// A count; counts of taps are never negative.
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
    fn names_contain_vm_and_disk() {
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
