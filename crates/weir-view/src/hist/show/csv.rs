//! Histograms as `vscsiStats -p .. -c` prints them, with numbers for VMs and disks.

use weir_model::Symbol;
use weir_sink::vscsistats::{self, DiskTitle};
use weir_workload::{Metric, Subject};

use crate::hist::counted::CountedHistograms;
use crate::hist::disks::Listed;

/// The CSV of all counts. Listed disks have the numbers of the list; others are numbered in
/// sequence, VMs from 1.
pub fn csv(counted: &CountedHistograms, metrics: &[Metric], listed: &[Listed]) -> String {
    let mut unknown = Vec::new();
    let mut next_handle = listed.len() as u64;
    let mut text = String::new();
    for (subject, histograms) in &counted.subjects {
        let known = listed.iter().find(|l| is_same(l, subject));
        let handle = known.map_or_else(
            || {
                next_handle += 1;
                next_handle
            },
            |known| known.handle,
        );
        let disk = DiskTitle {
            world_group: world_group(subject, listed, &mut unknown),
            handle,
            name: name(subject),
        };
        for section in vscsistats::sections(histograms, metrics) {
            text += &vscsistats::text(&disk, &section, counted.closest_of);
        }
    }
    text
}

fn is_same(listed: &Listed, subject: &Subject) -> bool {
    let disk = |s: &Subject| s.vdisk.or(s.pdisk);
    let own = listed.subject();
    (own.vm, disk(&own)) == (subject.vm, disk(subject))
        && (subject.pid, subject.cgroup) == (None, None)
}

/// The number of a process is its pid, that of a VM its process's; 0 stands for no VM.
fn world_group(subject: &Subject, listed: &[Listed], unknown: &mut Vec<Symbol>) -> u64 {
    if let Some(pid) = subject.pid {
        return u64::try_from(pid).unwrap_or(0);
    }
    let Some(group) = subject.vm.or(subject.cgroup) else {
        return 0;
    };
    let known = listed
        .iter()
        .find(|l| subject.vm.is_some() && l.vm == subject.vm);
    if let Some(known) = known {
        return known.world_group;
    }
    let at = unknown.iter().position(|other| *other == group);
    let at = at.unwrap_or_else(|| {
        unknown.push(group);
        unknown.len() - 1
    });
    at as u64 + 1
}

/// The name in place of ESX's `scsi0:0`.
fn name(subject: &Subject) -> String {
    let disk = subject.vdisk.or(subject.pdisk).map_or("-", Symbol::as_str);
    disk.strip_prefix("/dev/").unwrap_or(disk).to_owned()
}
