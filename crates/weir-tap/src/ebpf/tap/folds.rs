//! The groups of a [`BlockTap`]: reads them from the kernel, names and delivers them, and
//! determines where groups may be folded.

use std::sync::Arc;
use std::time::Instant;

use weir_model::Folded;

use super::BlockTap;
use crate::TapEvent;
use crate::ebpf::attribution::{Attribution, Extent, process};
use crate::ebpf::extents::ExtentTables;
use crate::ebpf::fold::{Folds, Naming};

/// The pause after the extents were determined, as a multiple of the time that took.
const PAUSE_PER_TIME: u32 = 20;

/// The row of a disk in the counters, and its extents.
type DiskExtents = (u32, Arc<[Extent]>);

/// What the kernel side knows about the owners of requests.
#[derive(Debug, Default)]
pub(super) struct WrittenExtents {
    /// The inventory of the extents; `None` if they are to be written.
    pub of: Option<u64>,
    /// The version of the processes.
    processes: Option<u64>,
    /// The version of the disks.
    disks: u64,
    extents: Vec<DiskExtents>,
    /// The rows of the disks whose extents have no room.
    without_room: Vec<u32>,
    /// The extents are not determined again before.
    due: Option<Instant>,
}

impl WrittenExtents {
    fn write(
        &mut self,
        extents: Vec<DiskExtents>,
        tables: &mut ExtentTables,
        attribution: &mut Attribution,
    ) {
        let is_same =
            |new: &DiskExtents, old: &DiskExtents| new.0 == old.0 && Arc::ptr_eq(&new.1, &old.1);
        let mut pairs = extents.iter().zip(&self.extents);
        let same = extents.len() == self.extents.len() && pairs.all(|(new, old)| is_same(new, old));
        if same {
            return;
        }
        tables.write_vms(&attribution.owner_vms());
        let lists: Vec<(u32, &[Extent])> = extents.iter().map(|(row, e)| (*row, &**e)).collect();
        self.without_room = tables.write(&lists);
        self.extents = extents;
    }
}

impl BlockTap {
    /// Reads the groups of intervals that are complete at `settled_ns`. The watermark may advance
    /// up to the returned time.
    pub(super) fn fold_up(&mut self, settled_ns: u64) -> u64 {
        self.write_extents();
        match self.folds() {
            Some((folds, mut naming)) => folds.advance(settled_ns, &mut naming),
            None => settled_ns,
        }
    }

    /// Reads the groups of the incomplete intervals.
    pub(super) fn close_folds(&mut self) -> Vec<(usize, Folded)> {
        match self.folds() {
            Some((folds, mut naming)) => folds.close(&mut naming),
            None => Vec::new(),
        }
    }

    /// The folds in progress, and what names their groups.
    fn folds(&mut self) -> Option<(&mut Folds, Naming<'_>)> {
        let folds = self.live.as_mut()?.folds.as_mut()?;
        let naming = Naming {
            folds: &self.plans.folds,
            devices: &self.devices,
            names: &mut self.names,
            attribution: self.attribution.as_mut(),
        };
        Some((folds, naming))
    }

    /// Queues the groups of intervals for which no more rows are written to the rings.
    pub(super) fn emit_folded(&mut self) {
        let Some(live) = &mut self.live else {
            return;
        };
        let watermark_ns = live.rings.watermark_ns();
        let over = live.folds.as_mut().map(|folds| folds.over(watermark_ns));
        let folded = over.into_iter().flatten();
        self.queued
            .extend(folded.map(|(demand, folded)| TapEvent::Folded { demand, folded }));
    }

    /// Writes what the kernel side has to know about the owners of requests, if that has changed
    /// and groups depend on it: first the extents, then the processes.
    pub(super) fn write_extents(&mut self) {
        let Some(attribution) = self.attribution.as_mut().filter(|_| self.plans.by_owner()) else {
            return;
        };
        attribution.refresh();
        let Some(live) = &mut self.live else {
            return;
        };
        let Some(tables) = &mut live.programs.extents else {
            return;
        };
        let (written, version) = (&mut self.written_extents, attribution.processes_version());
        let generation = Some(attribution.generation());
        let is_first_scan_open = generation == Some(0);
        if is_first_scan_open {
            return;
        }
        let processes = (written.processes != Some(version)).then(|| attribution.processes());
        if let Some(processes) = &processes {
            tables.forget_processes(processes);
        }
        // Extents of an image that grows may be late, as its requests come as rows. Those of a new
        // disk may not.
        let disks_version = attribution.disks_version();
        let is_due =
            written.disks != disks_version || written.due.is_none_or(|due| due <= Instant::now());
        let is_quiet = || live.folds.as_ref().is_some_and(Folds::is_quiet);
        if written.of != generation && is_due && is_quiet() {
            let started = Instant::now();
            let disks = self
                .devices
                .wanted_disks()
                .into_iter()
                .filter(|d| d.index != 0);
            let extents = disks.filter_map(|disk| {
                let sectors = self.devices.sectors(disk.number)?;
                Some((disk.index, attribution.extents(disk.number, sectors)))
            });
            written.write(extents.collect(), tables, attribution);
            written.of = generation;
            written.disks = disks_version;
            written.due = Some(Instant::now() + PAUSE_PER_TIME * started.elapsed());
        }
        if written.of != generation {
            return;
        }
        let new = attribution.take_new_processes().into_iter();
        tables.add_processes(new.map(|pid| (pid, process::OTHER)));
        if let Some(processes) = processes {
            tables.add_processes(processes);
            written.processes = Some(version);
        }
    }

    /// A sentence about the disks whose extents have no room, if there are any.
    pub(super) fn without_room(&self) -> Option<String> {
        let rows = &self.written_extents.without_room;
        let disks = self.devices.wanted_disks().into_iter();
        let disks = disks.filter(|disk| rows.contains(&disk.index));
        let paths: Vec<&str> = disks.map(|disk| disk.path.as_str()).collect();
        (!paths.is_empty()).then(|| {
            format!(
                "the kernel programs have no room for all extents of image files: requests of {} \
                 are transferred as rows",
                paths.join(", ")
            )
        })
    }

    /// Marks for the kernel side which devices are demanded.
    pub(super) fn write_devices(&mut self) {
        if let Some(live) = &mut self.live {
            live.write_devices(&self.devices);
        }
    }
}
