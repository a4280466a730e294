//! The groups of a [`BlockTap`]: reads them from the kernel, names and delivers them, and
//! determines where groups may be folded.

use std::collections::HashSet;

use weir_model::Folded;

use super::BlockTap;
use crate::TapEvent;
use crate::ebpf::attribution::Attribution;
use crate::ebpf::fold::{Folds, Naming};

impl BlockTap {
    /// Reads the groups of intervals that are complete at `settled_ns`. The watermark may advance
    /// up to the returned time.
    pub(super) fn fold_up(&mut self, settled_ns: u64) -> u64 {
        let changed = self.attribution.as_mut().is_some_and(Attribution::refresh);
        if changed && self.plans.folds.iter().any(|p| p.owner) {
            self.find_single_owner();
            self.write_devices();
        }
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
            single_owner: &self.single_owner,
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

    /// Finds the disks on which the owner of a request does not depend on its location.
    pub(super) fn find_single_owner(&mut self) {
        let Some(attribution) = &self.attribution else {
            return;
        };
        let whole = |disk: &u32| {
            let sectors = self.devices.sectors(*disk);
            sectors.is_some_and(|sectors| !attribution.divides(*disk, sectors))
        };
        let disks = self.devices.iter().map(|d| d.disk);
        let disks: HashSet<u32> = disks.collect();
        self.single_owner = disks.into_iter().filter(whole).collect();
    }

    /// Marks for the kernel side which devices are demanded, and where groups may be folded.
    pub(super) fn write_devices(&mut self) {
        if let Some(live) = &mut self.live {
            live.write_devices(&self.devices, &self.plans, &self.single_owner);
        }
    }
}
