//! `qemu:VM`: the requests of a VM as its guest makes them, traced in QEMU meanwhile.

use weir_model::{Capabilities, Demand};

use super::{EventSource, SourceKind, SourceSettings, Started};
use crate::{TapError, vdisk};

/// A VM of this host.
pub static KIND: SourceKind = SourceKind {
    name: "qemu:",
    argument: "VM",
    aliases: &[],
    doc: "each request of the guest of this VM, traced in QEMU",
    is_live: true,
    part: "reader",
    open: |vm, _| Ok(Box::new(TracedVm(vm.into()))),
};

/// A VM by its name. If this process is killed, a guard process switches tracing off again.
struct TracedVm(String);

impl EventSource for TracedVm {
    fn probe(&self) -> Result<Capabilities, TapError> {
        Ok(vdisk::capabilities())
    }

    fn start(
        &self,
        demands: &[Demand],
        settings: &SourceSettings,
    ) -> Result<Vec<Started>, TapError> {
        let watch = (settings.inventory)()?;
        watch.ready()?;
        let tap = vdisk::open(&self.0, demands, &watch, &settings.qemu_guard)?;
        Ok(Started::all(Box::new(tap), demands))
    }

    /// Without starting it: that would switch tracing on.
    fn describe(&self, _: &[Demand], _: &SourceSettings) -> Result<Vec<String>, TapError> {
        Ok(vec![vdisk::description(&self.0)])
    }
}
