//! Records as events: rows of level `vdisk`, with the names of their disks and the times of the epoch.

use std::sync::OnceLock;

use weir_model::{Event, EventKind, IoEvent, Level, Nanos, Symbol};

use super::layout::Record;
use super::ring::Read;
use super::words::DiskWord;

/// Records of one disk are numbered below this, so that the numbers of several disks do not meet: the
/// thesis's queries pair by the number alone. At a million requests a second that is nine years.
const IDS_BITS: u32 = 48;

/// What records are called in rows.
#[derive(Debug, Default)]
pub struct Names {
    disks: Vec<Disk>,
    host: Option<Symbol>,
    /// What to add to CLOCK_MONOTONIC to get nanoseconds since the Unix epoch.
    pub epoch_offset_ns: Nanos,
}

#[derive(Clone, Copy, Debug, Default)]
struct Disk {
    vm: Option<Symbol>,
    vdisk: Option<Symbol>,
    pdisk: Option<Symbol>,
    /// The greatest number that a request of it had, and before the tap was there again.
    last_id: i64,
    ids_before: i64,
}

impl Names {
    /// No names yet.
    pub fn new(host: Option<Symbol>, epoch_offset_ns: Nanos) -> Names {
        Names {
            disks: Vec::new(),
            host,
            epoch_offset_ns,
        }
    }

    /// Takes the names of the tap's disks.
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

    /// The tap was started again and counts its requests from 1 on: here they are counted on.
    pub fn begin_anew(&mut self) {
        for disk in &mut self.disks {
            disk.ids_before = disk.last_id;
        }
    }

    /// Whether a disk has been named.
    pub fn knows(&self, disk: u16) -> bool {
        usize::from(disk) < self.disks.len()
    }

    /// What a disk is called in counts: its name on the host.
    pub fn device(&self, disk: u16) -> Option<Symbol> {
        let disk = self.disks.get(usize::from(disk))?;
        disk.pdisk.or(disk.vdisk).or(disk.vm)
    }

    /// The event of a record.
    pub fn event(&mut self, read: &Read) -> IoEvent {
        let Read {
            record,
            begun_before,
        } = read;
        let at = usize::from(record.disk);
        let mut unknown = Disk::default();
        let disk = self.disks.get_mut(at).unwrap_or(&mut unknown);
        let id = i64::try_from(record.id).unwrap_or(i64::MAX);
        let id = disk.ids_before.saturating_add(id) & ((1 << IDS_BITS) - 1);
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
                id | (at as i64) << IDS_BITS,
                record.sector(),
                i64::from(record.sectors),
            )
        };
        let told = record.is_end() && !begun_before;
        IoEvent {
            wait_ns: record.wait_ns(),
            service_ns: record.service_ns(),
            latency_ns: record.latency_ns(),
            in_flight: Some(i64::from(record.in_flight)),
            seek_sectors: record.seek_sectors,
            issue_ts: told.then(|| epoch(record.taken_ns)),
            ..IoEvent::new(event)
        }
    }
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
