//! The histograms of a [`BlockTap`]: reading, reset, stop and maintenance.

use std::time::Instant;

use weir_model::Demand;

use super::{BlockTap, LiveOptions, MAINTENANCE_INTERVAL, misses, open_for};
use crate::TapError;
use crate::ebpf::clock;
use crate::ebpf::hist::{By, HistOptions, HistSnapshot, HistTables, OwnerTable, Reader};
use crate::ebpf::programs::Sizes;

/// The histograms kept in the kernel by a tap.
#[derive(Debug)]
pub(super) struct Kept {
    reader: Reader,
    until: Option<Instant>,
}

/// Opens the live tap for `demands` and for histograms: one set of programs does both, so that
/// records and bins cover the same requests with the same times. The devices and the inventory of
/// the histograms are those of `options`.
///
/// # Errors
/// As [`super::open`], and if an option of `histograms` is invalid.
pub fn open_with_histograms(
    demands: &[Demand],
    options: &LiveOptions,
    histograms: &HistOptions,
) -> Result<BlockTap, TapError> {
    histograms.check()?;
    open_for(demands, options, Some(histograms), &[])
}

impl Kept {
    pub(super) fn new(options: &HistOptions, sizes: &Sizes) -> Kept {
        let watch = options.inventory.clone().filter(|_| options.by == By::Disk);
        Kept {
            reader: Reader::new(options.by, &sizes.hist, watch.map(OwnerTable::new)),
            until: options.until,
        }
    }

    /// The end of counting on the monotonic clock.
    fn until_ns(&self) -> u64 {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        self.until.map_or(u64::MAX, |until| {
            clock::monotonic_ns().saturating_add(left(until).as_nanos() as u64)
        })
    }
}

impl BlockTap {
    /// The content of the histograms since they were opened or reset; `None` if none are kept.
    pub fn histograms(&mut self) -> Option<HistSnapshot> {
        self.check_completeness();
        let missed = self.missed();
        let (kept, live) = self.kept.as_mut().zip(self.live.as_ref())?;
        let tables = live.programs.hist.as_ref()?;
        let cgroups = &mut self.names.cgroups;
        let snapshot = kept.reader.snapshot(tables, &self.devices, cgroups, missed);
        Some(HistSnapshot {
            disks: self.completeness.disks(),
            sectors: self.completeness.devices(),
            ..snapshot
        })
    }

    /// Restarts counting at 0.
    pub fn reset_histograms(&mut self) {
        let missed = self.missed();
        if let Some((kept, tables)) = self.kept_tables() {
            kept.reader.reset(tables, missed);
        }
    }

    /// Stops counting. If the programs have no other purpose they are detached.
    pub fn stop_histograms(&mut self) {
        self.check_completeness();
        let Some((kept, live)) = self.kept.as_mut().zip(self.live.as_mut()) else {
            return;
        };
        live.programs.stop_histograms_at(0);
        kept.reader.stop();
        if self.needs.kinds == 0 {
            live.programs.detach();
        }
    }

    /// True if histograms are being counted.
    pub fn has_open_histograms(&self) -> bool {
        let kept = self.kept.as_ref();
        kept.is_some_and(|kept| {
            let over = kept.until.is_some_and(|until| until <= Instant::now());
            !over && !kept.reader.is_stopped()
        })
    }

    /// Size of all tables in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.sizes.bytes())
    }

    /// Maintenance without [`crate::Tap::next`]: the time to stop, new owners, new devices.
    pub(in crate::ebpf) fn look_after_histograms(&mut self) {
        let stopped = self.kept.as_ref().is_none_or(|k| k.reader.is_stopped());
        if stopped {
            return;
        }
        if !self.has_open_histograms() {
            self.stop_histograms();
            return;
        }
        if self.maintained_at.elapsed() >= MAINTENANCE_INTERVAL {
            self.maintain();
        } else {
            self.write_owners();
        }
    }

    /// Writes the end of counting and the owners to the kernel side, before counting starts.
    pub(super) fn begin_histograms(&mut self) {
        let Some((kept, live)) = self.kept.as_ref().zip(self.live.as_ref()) else {
            return;
        };
        live.programs.stop_histograms_at(kept.until_ns());
        self.names.cgroups.walk();
        self.write_all_owners();
    }

    /// Updates the kernel side's owners, if they have changed.
    fn write_owners(&mut self) {
        let owners = self.kept.as_mut().and_then(|kept| kept.reader.owners());
        if owners.is_some_and(|owners| owners.is_stale()) {
            self.names.cgroups.walk();
            self.write_all_owners();
        }
    }

    /// Updates them in any case: a cgroup may be new.
    pub(super) fn write_all_owners(&mut self) {
        let live = self.live.as_ref();
        let tables = live.and_then(|live| live.programs.hist.as_ref());
        let owners = self.kept.as_mut().and_then(|kept| kept.reader.owners());
        if let Some((owners, tables)) = owners.zip(tables) {
            owners.write(&tables.owners, &self.devices, &self.names.cgroups);
        }
    }

    /// True if the kernel side has a table of owners.
    pub(super) fn keeps_owners(&mut self) -> bool {
        self.kept
            .as_mut()
            .is_some_and(|kept| kept.reader.owners().is_some())
    }

    fn kept_tables(&mut self) -> Option<(&mut Kept, &HistTables)> {
        let tables = self.live.as_ref()?.programs.hist.as_ref()?;
        Some((self.kept.as_mut()?, tables))
    }

    /// Skipped runs of the programs, without those that are counted as unseen requests.
    fn missed(&self) -> u64 {
        let missed = |live| misses(live, false) + self.completeness.misses_open();
        self.live.as_ref().map_or(0, missed) as u64
    }
}
