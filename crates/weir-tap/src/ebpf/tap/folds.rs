//! The groups of a [`BlockTap`]: reads them from the kernel, names and delivers them, and
//! determines where groups may be folded.

use std::sync::Arc;

use weir_model::Folded;

use super::BlockTap;
use crate::TapEvent;
use crate::ebpf::attribution::Extent;
use crate::ebpf::fold::{Folds, Naming};

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

    /// The extents of the virtual disks on each disk of the host, by its row in the counters.
    pub(super) fn extents(&mut self) -> Vec<(u32, Arc<[Extent]>)> {
        let Some(attribution) = &mut self.attribution else {
            return Vec::new();
        };
        let disks = self
            .devices
            .iter()
            .filter(|d| d.number == d.disk && d.index != 0);
        let extents = disks.filter_map(|disk| {
            let sectors = self.devices.sectors(disk.number)?;
            Some((disk.index, attribution.extents(disk.number, sectors)))
        });
        extents.collect()
    }

    /// Writes the extents for the kernel side, if the inventory or the devices have changed and
    /// groups depend on them.
    pub(super) fn write_extents(&mut self) {
        let Some(attribution) = self.attribution.as_mut().filter(|_| self.plans.by_owner()) else {
            return;
        };
        attribution.refresh();
        let generation = Some(attribution.generation());
        let is_quiet = |live: &super::Live| live.folds.as_ref().is_some_and(Folds::is_quiet);
        if self.extents_of == generation || !self.live.as_ref().is_some_and(is_quiet) {
            return;
        }
        let extents = self.extents();
        let extents: Vec<(u32, &[Extent])> = extents.iter().map(|(row, e)| (*row, &**e)).collect();
        let tables = self
            .live
            .as_mut()
            .and_then(|live| live.programs.extents.as_mut());
        if let Some(tables) = tables {
            self.extents_without_room = tables.write(&extents);
            self.extents_of = generation;
        }
    }

    /// A sentence about the disks whose extents have no room, if there are any.
    pub(super) fn without_room(&self) -> Option<String> {
        let rows = &self.extents_without_room;
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
