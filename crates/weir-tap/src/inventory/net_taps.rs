//! The network devices of VMs: the taps that a VM's process has open. `/proc/PID/fdinfo` has the
//! name of the device (`tun_chr_show_fdinfo` of drivers/net/tun.c).

use std::collections::HashMap;
use std::path::Path;

use weir_model::Symbol;

use super::host::Host;

/// The file of tun(4), by which a process opens a tap.
const TUN: &str = "/dev/net/tun";

/// Maximum number of open files of a process that are examined.
const OPEN_FILES_MAX: usize = 4096;

/// Maximum size of the name of a network device, with its NUL (`IFNAMSIZ`).
const DEVICE_NAME_BYTES: usize = 16;

/// The VM, by its position, of each tap of the processes; a name that several VMs have, in network
/// namespaces of their own, is that of none. So are names in other namespaces than this one, since
/// the device of the same name here is another one.
pub fn of_vms(host: &Host, processes: impl Iterator<Item = Option<u32>>) -> HashMap<Symbol, u32> {
    let own = host.link("/proc/self/ns/net");
    let mut taps: HashMap<Symbol, Option<u32>> = HashMap::new();
    for (vm, pid) in processes.enumerate() {
        let Some(pid) = pid else {
            continue;
        };
        if host.link(format!("/proc/{pid}/ns/net")) != own {
            continue;
        }
        for name in of_process(host, pid) {
            let vm = vm as u32;
            let known = taps.entry(name).or_insert(Some(vm));
            if *known != Some(vm) {
                *known = None;
            }
        }
    }
    let only = taps.into_iter().filter_map(|(name, vm)| Some((name, vm?)));
    only.collect()
}

fn of_process(host: &Host, pid: u32) -> Vec<Symbol> {
    let files = host.names_of(
        format!("/proc/{pid}/fd"),
        "the open files of other users' processes",
    );
    let tap = |file: &String| {
        let link = host.link(format!("/proc/{pid}/fd/{file}"))?;
        if link != Path::new(TUN) {
            return None;
        }
        device(&host.text(format!("/proc/{pid}/fdinfo/{file}"))?)
    };
    let files = files.iter().take(OPEN_FILES_MAX);
    files.filter_map(tap).collect()
}

/// The name of the device in the description of an open file.
fn device(text: &str) -> Option<Symbol> {
    let name = text.lines().find_map(|line| line.strip_prefix("iff:"))?;
    let name = name.trim();
    let is_name = !name.is_empty() && name.len() < DEVICE_NAME_BYTES;
    Symbol::try_new(name).ok().filter(|_| is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_of_a_tap_has_its_name() {
        let text = "pos:\t0\nflags:\t0104002\nmnt_id:\t26\niff:\tvnet0\n";
        assert_eq!(device(text), Some(Symbol::new("vnet0")));
        assert_eq!(device("pos:\t0\niff:\t\n"), None);
        assert_eq!(device("pos:\t0\n"), None);
    }
}
