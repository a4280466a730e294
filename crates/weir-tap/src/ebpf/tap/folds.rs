//! The groups of a [`BlockTap`]: taken out of the kernel, named and said, and where none may be made.

use std::collections::HashSet;

use weir_model::Folded;

use super::BlockTap;
use crate::Said;
use crate::ebpf::attribution::Attribution;
use crate::ebpf::fold::Naming;

impl BlockTap {
    /// Takes out the groups of intervals that are over at `settled_ns`. The watermark may come as far
    /// as the time that is returned.
    pub(super) fn fold_up(&mut self, settled_ns: u64) -> u64 {
        let changed = self.attribution.as_mut().is_some_and(Attribution::refresh);
        if changed && self.plans.folds.iter().any(|p| p.owner) {
            self.find_undivided();
            self.tell_devices();
        }
        let Some(folds) = self.live.as_mut().and_then(|live| live.folds.as_mut()) else {
            return settled_ns;
        };
        let mut naming = Naming {
            devices: &self.devices,
            names: &mut self.names,
            attribution: self.attribution.as_mut(),
            undivided: &self.undivided,
        };
        folds.advance(settled_ns, &mut naming)
    }

    /// Takes out the groups of the intervals under way.
    pub(super) fn close_folds(&mut self) -> Vec<(usize, Folded)> {
        let Some(folds) = self.live.as_mut().and_then(|live| live.folds.as_mut()) else {
            return Vec::new();
        };
        let mut naming = Naming {
            devices: &self.devices,
            names: &mut self.names,
            attribution: self.attribution.as_mut(),
            undivided: &self.undivided,
        };
        folds.close(&mut naming)
    }

    /// Lines up the groups of intervals of which no more rows come into the rings.
    pub(super) fn say_folded(&mut self) {
        let Some(live) = &mut self.live else {
            return;
        };
        let watermark_ns = live.lanes.watermark_ns();
        let over = live.folds.as_mut().map(|folds| folds.over(watermark_ns));
        let said = over.into_iter().flatten();
        self.said
            .extend(said.map(|(demand, folded)| Said::Folded { demand, folded }));
    }

    /// Finds the disks on which whose a request is does not depend on where it goes.
    pub(super) fn find_undivided(&mut self) {
        let Some(attribution) = &self.attribution else {
            return;
        };
        let whole = |disk: &u32| {
            let sectors = self.devices.sectors(*disk);
            sectors.is_some_and(|sectors| !attribution.divides(*disk, sectors))
        };
        let disks = self.devices.iter().map(|d| d.disk);
        let disks: HashSet<u32> = disks.collect();
        self.undivided = disks.into_iter().filter(whole).collect();
    }

    /// Tells the kernel side which devices are wanted, and where it may make groups.
    pub(super) fn tell_devices(&mut self) {
        if let Some(live) = &mut self.live {
            live.tell_devices(&self.devices, &self.plans, &self.undivided);
        }
    }
}
