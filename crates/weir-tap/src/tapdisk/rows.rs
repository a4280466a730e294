//! Converts records to events: rows of level `vdisk`, with the names of their disks and times since
//! the epoch.

use std::sync::OnceLock;

use weir_model::{Event, EventKind, IoEvent, Level, Nanos, Symbol};

use super::layout::Record;
use super::mark::REQUEST_BITS;
use super::ring::Read;
use super::words::DiskWord;

/// The names of the records' disks.
#[derive(Debug, Default)]
pub struct Names {
    disks: Vec<Disk>,
    host: Option<Symbol>,
    /// Offset from CLOCK_MONOTONIC to nanoseconds since the Unix epoch.
    pub epoch_offset_ns: Nanos,
}

/// The names of a disk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Disk {
    pub vm: Option<Symbol>,
    pub vdisk: Option<Symbol>,
    pub pdisk: Option<Symbol>,
    /// The greatest request number; below, its value at the last restart of the tapdisk.
    last_id: i64,
    ids_before: i64,
}

impl Names {
    /// Without names.
    pub fn new(host: Option<Symbol>, epoch_offset_ns: Nanos) -> Names {
        Names {
            disks: Vec::new(),
            host,
            epoch_offset_ns,
        }
    }

    /// Adds the names of the tapdisk's disks.
    pub fn learn(&mut self, words: &[DiskWord]) {
        let symbol = |text: &Option<String>| Symbol::try_new(text.as_deref()?).ok();
        for word in words {
            let at = usize::from(word.number);
            if at >= self.disks.len() {
                self.disks.resize(at + 1, Disk::default());
            }
            let disk = &mut self.disks[at];
            (disk.vm, disk.vdisk) = (symbol(&word.vm), symbol(&word.vdisk));
            disk.pdisk = symbol(&word.pdisk);
        }
    }

    /// After a restart the tapdisk counts its requests from 1 again: numbers continue after the
    /// last one.
    pub fn restart(&mut self) {
        for disk in &mut self.disks {
            disk.ids_before = disk.last_id;
        }
    }

    /// Whether the name of a disk is known.
    pub fn knows(&self, disk: u16) -> bool {
        usize::from(disk) < self.disks.len()
    }

    /// The names of a disk; none while they are not known.
    pub(super) fn disk(&self, disk: u16) -> Disk {
        self.disks
            .get(usize::from(disk))
            .copied()
            .unwrap_or_default()
    }

    /// The value of column `host`.
    pub(super) fn host(&self) -> Option<Symbol> {
        self.host
    }

    /// The name of a disk in counts: its name on the host.
    pub fn device(&self, disk: u16) -> Option<Symbol> {
        let disk = self.disks.get(usize::from(disk))?;
        disk.pdisk.or(disk.vdisk).or(disk.vm)
    }

    /// Converts a record to an event.
    pub fn event(&mut self, read: &Read) -> IoEvent {
        let Read {
            record,
            started_before,
        } = read;
        let at = usize::from(record.disk);
        let mut unknown = Disk::default();
        let disk = self.disks.get_mut(at).unwrap_or(&mut unknown);
        let id = i64::try_from(record.id).unwrap_or(i64::MAX);
        let id = disk.ids_before.saturating_add(id) & ((1 << REQUEST_BITS) - 1);
        disk.last_id = disk.last_id.max(id);
        let epoch = |ns: u64| {
            i64::try_from(ns)
                .unwrap_or(i64::MAX)
                .saturating_add(self.epoch_offset_ns)
        };
        let event = Event {
            vm: disk.vm,
            vdisk: disk.vdisk,
            pdisk: disk.pdisk,
            host: self.host,
            level: Level::Vdisk,
            flags: Some(if record.fua { fua() } else { Symbol::default() }),
            error: error(record),
            vsector: record.sector(),
            ..Event::new(
                epoch(record.ts_ns),
                record.kind,
                record.op,
                id | (at as i64) << REQUEST_BITS,
                record.sector(),
                i64::from(record.sectors),
            )
        };
        let has_issue_ts = record.is_end() && !started_before;
        IoEvent {
            wait_ns: record.wait_ns(),
            service_ns: record.service_ns(),
            latency_ns: record.latency_ns(),
            in_flight: Some(i64::from(record.in_flight)),
            seek_sectors: record.seek_sectors,
            interarrival_ns: record.interarrival_ns.map(interval),
            issue_ts: has_issue_ts.then(|| epoch(record.taken_ns)),
            ..IoEvent::new(event)
        }
    }
}

fn interval(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

/// Forced unit access, in blktrace's letters.
fn fua() -> Symbol {
    static FUA: OnceLock<Symbol> = OnceLock::new();
    *FUA.get_or_init(|| Symbol::new("F"))
}

fn error(record: &Record) -> Option<i64> {
    match record.kind {
        EventKind::Error => Some(i64::from(record.errno)),
        EventKind::Unsupported => Some(i64::from(libc::EOPNOTSUPP)),
        EventKind::Request | EventKind::Response => None,
    }
}
