//! [`Selection`]: which VM and which disk are wanted, and the question that asks for their requests.

use weir_tap::RECORDING;

use crate::question::quoted;

/// What of a source is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// This VM only.
    pub vm: Option<String>,
    /// This disk only, as the VM (/dev/vda) or as the host (/dev/sda) names it.
    pub disk: Option<String>,
}

/// What [`Selection::question`] asks for, in this order.
pub const COLUMNS: [&str; 14] = [
    "ts", "type", "op", "req_id", "sector", "vsector", "sectors", "vm", "vdisk", "pdisk", "wait",
    "service", "latency", "error",
];

impl Selection {
    /// The CQL that gives every request and every response of what is wanted, in order of time.
    pub fn question(&self) -> String {
        let vm = self.vm.iter().map(|vm| format!("vm = {}", quoted(vm)));
        let disk = self.disk.iter().map(|disk| {
            let disk = quoted(disk);
            format!("(vdisk = {disk} or pdisk = {disk})")
        });
        let tests: Vec<String> = vm.chain(disk).collect();
        let condition = match tests.is_empty() {
            true => String::new(),
            false => format!(" where {}", tests.join(" and ")),
        };
        format!("select {} from {RECORDING}{condition}", COLUMNS.join(", "))
    }
}
