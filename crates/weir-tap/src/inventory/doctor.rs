//! [`doctor`]: which inventories find VMs on this host, and what they lack the permission to read.

use super::{INVENTORIES, InventoryWatch, Snapshot, WatchOptions};
use crate::ebpf::{CheckStatus, Fact};
use crate::elevation;

/// What the inventory finds, and what is missing for lack of permissions. Scans once.
pub fn doctor(options: &WatchOptions) -> Vec<Fact> {
    let watch = match InventoryWatch::start(options) {
        Ok(watch) => watch,
        Err(error) => {
            return vec![fact(
                "inventory",
                CheckStatus::Degraded,
                error.to_string(),
                "columns vm and vdisk are NULL",
                "check the load of the host, and retry",
            )];
        }
    };
    let snapshot = watch.snapshot();
    vec![
        vms(&snapshot),
        names(&snapshot),
        disks(&snapshot),
        readable(&snapshot),
    ]
}

fn fact(name: &str, status: CheckStatus, found: String, costs: &str, remedy: &str) -> Fact {
    Fact {
        name: name.into(),
        status,
        found,
        costs: costs.into(),
        remedy: remedy.into(),
    }
}

/// The number of VMs that each inventory found.
fn vms(snapshot: &Snapshot) -> Fact {
    let count = |name: &str| {
        let known = snapshot.vms.iter().filter(|vm| vm.origin.as_str() == name);
        match known.count() {
            0 => None,
            count => Some(format!("{name} {count}")),
        }
    };
    let counts: Vec<String> = INVENTORIES.iter().filter_map(|i| count(i.name)).collect();
    let found = match counts.is_empty() {
        true => "none; --vm NAME=pid:PID declares a process to be a VM".into(),
        false => counts.join(", "),
    };
    fact("virtual machines", CheckStatus::Ok, found, "", "")
}

/// Names that processes of several users claim.
fn names(snapshot: &Snapshot) -> Fact {
    const NAME: &str = "names of VMs";
    if snapshot.conflicts.is_empty() {
        return fact(NAME, CheckStatus::Ok, "unique".into(), "", "");
    }
    let conflicts: Vec<String> = snapshot.conflicts.iter().map(|c| c.to_string()).collect();
    fact(
        NAME,
        CheckStatus::Degraded,
        conflicts.join("; "),
        "commands that act on a VM reject a name that several users claim",
        "`weir query \"select vm, pid, uid from vms\"` lists the processes; use pid:PID instead of the name",
    )
}

/// How the disks of VMs are located.
fn disks(snapshot: &Snapshot) -> Fact {
    let by = |how: Option<&str>| {
        let disks = snapshot.disks.iter();
        disks.filter(|d| d.disk.found_by.as_str() == how).count()
    };
    let words = [
        ("device", "on devices"),
        ("extents", "in files"),
        ("process", "known by their process only"),
    ];
    let mut counts: Vec<String> = words
        .iter()
        .map(|(how, words)| (by(Some(how)), words))
        .filter(|(count, _)| *count > 0)
        .map(|(count, words)| format!("{count} {words}"))
        .collect();
    let elsewhere = by(None);
    if elsewhere > 0 {
        counts.push(format!("{elsewhere} not on this host"));
    }
    let found = match counts.is_empty() {
        true => "none".into(),
        false => counts.join(", "),
    };
    match by(Some("process")) {
        0 => fact("virtual disks", CheckStatus::Ok, found, "", ""),
        _ => fact(
            "virtual disks",
            CheckStatus::Degraded,
            found,
            "column vdisk is NULL for VMs with several disks whose location is unknown",
            "`weir query \"select vm, vdisk, image from disks where found_by = 'process'\"` lists these disks",
        ),
    }
}

/// The files that cannot be read for lack of permissions.
fn readable(snapshot: &Snapshot) -> Fact {
    const NAME: &str = "inventory";
    if snapshot.remarks.is_empty() {
        return fact(NAME, CheckStatus::Ok, "complete".into(), "", "");
    }
    fact(
        NAME,
        CheckStatus::Degraded,
        snapshot.remarks.join("; "),
        "VMs and disks of other users may be missing, or without names and images",
        &elevation::advice("cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search"),
    )
}
