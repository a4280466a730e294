//! [`WorkloadSelection`]: which VM and which disk are selected, and the query for their requests.

use weir_tap::RECORDING;
use weir_workload::Subject;

use weir_runtime::question::quoted;

/// The selected VM and disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadSelection {
    /// This VM only.
    pub vm: Option<String>,
    /// This disk only, by its name in the VM (/dev/vda) or on the host (/dev/sda).
    pub disk: Option<String>,
    /// Whether the command name of the process is read as well.
    pub with_process: bool,
}

/// The column after [`COLUMNS`], if it is read.
const PROCESS: &str = ", comm";

/// The columns of [`WorkloadSelection::question`], in this order.
pub const COLUMNS: [&str; 17] = [
    "ts",
    "type",
    "op",
    "req_id",
    "sector",
    "vsector",
    "sectors",
    "vm",
    "vdisk",
    "pdisk",
    "host",
    "level",
    "in_flight",
    "wait",
    "service",
    "latency",
    "error",
];

impl WorkloadSelection {
    /// The CQL for requests and responses in timestamp order: all of a recording, and of a live
    /// source those of the selected disk, which the kernel can select. The others are needed too,
    /// as `in_flight` counts every request of a device; [`WorkloadSelection::has`] tests the subject.
    pub fn question(&self, live: bool) -> String {
        let disk = self.disk.iter().filter(|_| live).map(|disk| {
            let disk = quoted(disk);
            format!(" where vdisk = {disk} or pdisk = {disk}")
        });
        let condition: String = disk.collect();
        let process = if self.with_process { PROCESS } else { "" };
        let columns = COLUMNS.join(", ");
        format!("select {columns}{process} from {RECORDING}{condition}")
    }

    /// Whether a subject is selected.
    pub fn has(&self, subject: &Subject) -> bool {
        let vm = self.vm.as_deref();
        let disk = self.disk.as_deref();
        let mut names = [subject.vdisk, subject.pdisk].into_iter().flatten();
        vm.is_none_or(|vm| subject.vm.is_some_and(|of| of.as_str() == vm))
            && disk.is_none_or(|disk| names.any(|name| name.as_str() == disk))
    }
}
