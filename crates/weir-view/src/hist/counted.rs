//! [`CountedHistograms`]: the histograms of all observed I/O, over an interval.

use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use weir_model::{Nanos, Symbol};
use weir_workload::{Histograms, Subject};

use super::choice::HistogramChoice;

/// The number of previous requests for the closest seek distance, as in vscsiStats.
pub const CLOSEST_OF: usize = 16;

/// Prefix of those causes in [`CountedHistograms::lost`] that end in a device: requests whose
/// completion event was not received, so that their times are missing.
pub const NO_COMPLETION: &str = "no_completion_event:";

/// Prefix of those causes in [`CountedHistograms::lost`] that end in a device without requests:
/// the sectors, at least, of its I/O that caused no event. Its number is one of sectors.
pub const SECTORS_UNSEEN: &str = "sectors_unseen:";

/// The key of the histograms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistogramKey {
    /// Each virtual disk; I/O that belongs to none, by device.
    #[default]
    Disk,
    /// Each device of the host.
    Device,
    /// Each process that submits I/O.
    Process,
    /// Each cgroup.
    Cgroup,
}

/// Histograms by subject, and their completeness.
#[derive(Clone, Debug, PartialEq)]
pub struct CountedHistograms {
    /// The start of the interval.
    pub since: Nanos,
    /// The end of the interval.
    pub at: Nanos,
    /// The number of previous requests for the closest seek distance.
    pub closest_of: usize,
    /// The histograms by subject.
    pub subjects: Vec<(Subject, Histograms)>,
    /// The events that could not be counted, by cause.
    pub lost: Vec<(String, u64)>,
    /// Subjects whose `outstandingIOs` is left out, since the number in flight is not reliable,
    /// with the ratio of Little's law.
    pub unreliable: Vec<(Subject, f64)>,
}

impl HistogramKey {
    /// All keys, with descriptions for the command line.
    pub const ALL: [(HistogramKey, &str); 4] = [
        (HistogramKey::Disk, "each virtual disk; other I/O by device"),
        (HistogramKey::Device, "each device of the host"),
        (HistogramKey::Process, "each process that submits I/O"),
        (HistogramKey::Cgroup, "each cgroup"),
    ];

    /// Its name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            HistogramKey::Disk => "disk",
            HistogramKey::Device => "device",
            HistogramKey::Process => "process",
            HistogramKey::Cgroup => "cgroup",
        }
    }

    /// The part of a subject that is the key.
    pub fn of(self, subject: Subject) -> Subject {
        let none = Subject::default();
        match self {
            // A virtual disk has one key, wherever its extents are on the host.
            HistogramKey::Disk => Subject {
                pid: None,
                cgroup: None,
                pdisk: subject.pdisk.filter(|_| subject.vdisk.is_none()),
                ..subject
            },
            HistogramKey::Device => Subject {
                pdisk: subject.pdisk,
                ..none
            },
            HistogramKey::Process => Subject {
                pid: subject.pid,
                pdisk: subject.pdisk,
                ..none
            },
            HistogramKey::Cgroup => Subject {
                cgroup: subject.cgroup,
                pdisk: subject.pdisk,
                ..none
            },
        }
    }
}

impl fmt::Display for HistogramKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl CountedHistograms {
    /// The counts since `earlier`, an earlier state of the same subjects. Subjects without counts
    /// are left out. A subject that was reset in the meantime is counted from the reset.
    pub fn since(&self, earlier: &CountedHistograms) -> CountedHistograms {
        let before: HashMap<&Subject, &Histograms> =
            earlier.subjects.iter().map(|(s, h)| (s, h)).collect();
        let rest = |(subject, now): &(Subject, Histograms)| {
            let rest = match before.get(subject) {
                Some(before) if now.continues(before) => now.since(before),
                _ => now.clone(),
            };
            (!is_empty(&rest)).then_some((*subject, rest))
        };
        let lost_before = |cause: &str| {
            let known = earlier.lost.iter().find(|(known, _)| known == cause);
            known.map_or(0, |(_, n)| *n)
        };
        let lost = self.lost.iter();
        let lost = lost.map(|(cause, n)| (cause.clone(), n.saturating_sub(lost_before(cause))));
        CountedHistograms {
            since: earlier.at,
            at: self.at,
            closest_of: self.closest_of,
            subjects: self.subjects.iter().filter_map(rest).collect(),
            lost: lost.filter(|(_, n)| *n > 0).collect(),
            unreliable: self.unreliable.clone(),
        }
    }

    /// True if it has a subject that is selected.
    pub fn has_any(&self, choice: &HistogramChoice) -> bool {
        self.subjects.iter().any(|(subject, _)| choice.has(subject))
    }

    /// Removes subjects that are not selected.
    pub fn keep(&mut self, choice: &HistogramChoice) {
        self.subjects.retain(|(subject, _)| choice.has(subject));
        self.unreliable.retain(|(subject, _)| choice.has(subject));
    }

    /// Adds the counts of `other`: the same subjects are merged, the interval includes both.
    pub fn merge(&mut self, other: CountedHistograms) {
        self.since = self.since.min(other.since);
        self.at = self.at.max(other.at);
        for (subject, histograms) in other.subjects {
            self.add(subject, histograms);
        }
        self.unreliable.extend(other.unreliable);
        for (cause, n) in other.lost {
            match self.lost.iter_mut().find(|(known, _)| *known == cause) {
                Some((_, known)) => *known += n,
                None => self.lost.push((cause, n)),
            }
        }
    }

    /// Adds the histograms of a subject, which may be present already.
    pub fn add(&mut self, subject: Subject, histograms: Histograms) {
        match self.subjects.iter_mut().find(|(s, _)| *s == subject) {
            Some((_, known)) => known.merge(&histograms),
            None => self.subjects.push((subject, histograms)),
        }
    }

    /// The sum of the histograms of all subjects.
    pub fn together(&self) -> Histograms {
        let mut all = Histograms::default();
        for (_, histograms) in &self.subjects {
            all.merge(histograms);
        }
        all
    }

    /// Sorts the subjects for display: VMs by name, then their disks, then those of no VM.
    pub fn sort(&mut self) {
        let text = |symbol: Option<Symbol>| symbol.map_or("", Symbol::as_str);
        self.subjects.sort_by_key(|(s, _)| {
            (
                s.vm.is_none(),
                text(s.vm),
                s.vdisk.is_none(),
                text(s.vdisk),
                text(s.pdisk),
                s.pid,
                text(s.cgroup),
            )
        });
    }
}

/// True if nothing was counted.
pub fn is_empty(histograms: &Histograms) -> bool {
    use weir_workload::{Class, Metric};
    Metric::ALL
        .iter()
        .all(|metric| histograms.of(*metric, Class::All).count == 0)
}

/// The display name of a subject: `web:/dev/vda`, `/dev/sda`, `pid 4711 on /dev/sda`.
pub fn name(subject: &Subject) -> String {
    let who = subject.pid.map(|pid| format!("pid {pid}"));
    let who = who.or_else(|| subject.cgroup.map(|path| format!("cgroup {path}")));
    let disk = subject.vdisk.or(subject.pdisk).map(Symbol::as_str);
    match (who, subject.vm, disk) {
        (Some(who), _, Some(disk)) => format!("{who} on {disk}"),
        (Some(who), _, None) => who,
        (None, Some(vm), Some(disk)) => match subject.vdisk {
            Some(_) => format!("{vm}:{disk}"),
            // The virtual disk is unknown.
            None => format!("{vm} on {disk}"),
        },
        (None, Some(vm), None) => vm.as_str().to_owned(),
        (None, None, Some(disk)) => disk.to_owned(),
        (None, None, None) => "not known".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use weir_workload::{Class, Metric};

    use super::*;

    fn counted(lengths: &[i64]) -> CountedHistograms {
        let mut histograms = Histograms::default();
        for bytes in lengths {
            histograms.of_mut(Metric::Length, Class::All).add(*bytes);
        }
        CountedHistograms {
            since: 0,
            at: 1,
            closest_of: CLOSEST_OF,
            subjects: vec![(Subject::default(), histograms)],
            lost: Vec::new(),
            unreliable: Vec::new(),
        }
    }

    #[test]
    fn what_was_reset_in_between_counts_from_there() {
        let lengths = |now: &[i64], then: &[i64]| {
            let came = counted(now).since(&counted(then));
            came.together().requests()
        };
        assert_eq!(lengths(&[512, 4096, 4096], &[512, 4096]), 1);
        assert_eq!(lengths(&[4096], &[512, 4096]), 1);
        assert_eq!(lengths(&[4096, 4096, 4096], &[512]), 3);
        assert_eq!(lengths(&[512], &[512]), 0);
    }

    #[test]
    fn what_has_one_name_is_one() {
        let mut all = counted(&[512]);
        all.add(Subject::default(), counted(&[512, 4096]).together());
        assert_eq!((all.subjects.len(), all.together().requests()), (1, 3));
    }
}
