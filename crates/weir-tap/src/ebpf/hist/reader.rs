//! [`Reader`]: adds up the processors' counts since the beginning or the last reset, and assigns
//! them to subjects.

use std::sync::atomic::Ordering;

use weir_model::{Nanos, Symbol};
use weir_workload::{Class, Histograms, Metric, Subject};

use super::layout::{self, Bin, OPS, Part};
use super::owners::OwnerTable;
use super::tables::{HistTables, Setup};
use super::{By, Completeness, SectorCompleteness};
use crate::ebpf::cgroups::Cgroups;
use crate::ebpf::clock;
use crate::ebpf::devices::Devices;

/// The content of the histograms.
#[derive(Clone, Debug)]
pub struct HistSnapshot {
    /// Time of the read, or of the end of counting.
    pub at: Nanos,
    /// Start of counting.
    pub since: Nanos,
    /// The histograms of each active subject, in the order of their first requests.
    pub subjects: Vec<(Subject, Histograms)>,
    /// Requests that were not entered since then.
    pub not_entered: NotEntered,
    /// Finished requests, and those of them that only the kernel's own counters include, per disk,
    /// since the tap was opened. Disks whose statistics are disabled are missing.
    pub disks: Vec<Completeness>,
    /// The same in sectors, per device without requests.
    pub sectors: Vec<SectorCompleteness>,
}

/// Requests that are missing in the histograms, completely or partly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotEntered {
    /// Requests of a subject beyond [`super::HistOptions::entries_max`].
    pub subjects_full: u64,
    /// Requests for whose bins there was no memory.
    pub blocks_full: u64,
    /// Requests that got no position in the order of a very busy subject.
    pub contended: u64,
    /// Requests beyond [`super::HistOptions::requests_max`] in flight.
    pub table_full: u64,
    /// Completions for whose bins there was no memory: the requests have no times.
    pub ends_blocks_full: u64,
    /// Runs of a program that were skipped because it was already running on that processor.
    pub missed: u64,
}

/// Reads the tables.
#[derive(Debug)]
pub struct Reader {
    by: By,
    processors: usize,
    owners: Option<OwnerTable>,
    parts_of_op: Vec<(Part, Vec<Bin>)>,
    parts_of_all: Vec<(Part, Vec<Bin>)>,
    /// The content at the last reset, by subject and block.
    before: Vec<[Option<Vec<u64>>; OPS + 1]>,
    not_entered_before: NotEntered,
    since: Nanos,
    stopped: Option<Nanos>,
}

impl Reader {
    /// A reader of newly created tables.
    pub fn new(by: By, setup: &Setup, owners: Option<OwnerTable>) -> Reader {
        let with_meaning = |part: &Part| (*part, part.meaning());
        Reader {
            by,
            processors: setup.config.processors as usize,
            owners,
            parts_of_op: layout::parts_of_op().iter().map(with_meaning).collect(),
            parts_of_all: layout::parts_of_all().iter().map(with_meaning).collect(),
            before: Vec::new(),
            not_entered_before: NotEntered::default(),
            since: now_ns(),
            stopped: None,
        }
    }

    /// The table of owners, if the owner determines where requests count.
    pub fn owners(&mut self) -> Option<&mut OwnerTable> {
        self.owners.as_mut()
    }

    /// Notes that counting has stopped.
    pub fn stop(&mut self) {
        self.stopped.get_or_insert_with(now_ns);
    }

    /// True if counting was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// The counts since the beginning or the last reset.
    pub fn snapshot(
        &mut self,
        tables: &HistTables,
        devices: &Devices,
        cgroups: &mut Cgroups,
        missed: u64,
    ) -> HistSnapshot {
        let mut subjects = Vec::new();
        for number in 0..tables.subjects() {
            let blocks = self.gather(tables, number);
            let histograms = self.histograms(number, blocks);
            let requests = histograms.of(Metric::Outstanding, Class::All).count;
            let ends = histograms.of(Metric::Service, Class::All).count
                + histograms.of(Metric::Latency, Class::All).count;
            if requests + ends > 0 {
                let subject = self.subject(tables, number, devices, cgroups);
                subjects.push((subject, histograms));
            }
        }
        HistSnapshot {
            at: self.stopped.unwrap_or_else(now_ns),
            since: self.since,
            subjects,
            not_entered: not_entered(tables, missed).since(&self.not_entered_before),
            disks: Vec::new(),
            sectors: Vec::new(),
        }
    }

    /// Restarts counting at 0. The requests in flight and the relation to the previous request are
    /// kept.
    pub fn reset(&mut self, tables: &HistTables, missed: u64) {
        let subjects = 0..tables.subjects();
        self.before = subjects
            .clone()
            .map(|number| self.gather(tables, number))
            .collect();
        for number in subjects {
            for cpu in 0..self.processors {
                let blocks = tables.blocks(number, cpu, self.processors);
                for (which, block) in blocks.enumerate() {
                    if let Some(block) = block {
                        self.forget_extremes(tables, which, block);
                    }
                }
            }
        }
        self.not_entered_before = not_entered(tables, missed);
        self.since = self.stopped.unwrap_or_else(now_ns);
    }

    fn parts(&self, which: usize) -> &[(Part, Vec<Bin>)] {
        match which {
            OPS => &self.parts_of_all,
            _ => &self.parts_of_op,
        }
    }

    /// Counts and sums only grow, so their previous values are subtracted; minimum and maximum are
    /// of later values only.
    fn forget_extremes(&self, tables: &HistTables, which: usize, block: usize) {
        let words = tables.block(block);
        for (part, _) in self.parts(which) {
            words[part.head + 1].store(0, Ordering::Relaxed);
            words[part.head + 2].store(0, Ordering::Relaxed);
        }
    }

    /// The blocks of a subject, added up over the processors.
    fn gather(&self, tables: &HistTables, number: usize) -> [Option<Vec<u64>>; OPS + 1] {
        let mut sums: [Option<Vec<u64>>; OPS + 1] = Default::default();
        for cpu in 0..self.processors {
            let blocks = tables.blocks(number, cpu, self.processors);
            for (which, (sum, block)) in sums.iter_mut().zip(blocks).enumerate() {
                let Some(block) = block else {
                    continue;
                };
                let words = tables.block(block);
                let sum = sum.get_or_insert_with(|| vec![0; words.len()]);
                let heads = &self.parts(which);
                let extreme = |at: usize| {
                    heads
                        .iter()
                        .any(|(p, _)| at == p.head + 1 || at == p.head + 2)
                };
                let heads_end = heads[0].0.bins;
                for (at, (sum, word)) in sum.iter_mut().zip(words).enumerate() {
                    let word = word.load(Ordering::Relaxed);
                    *sum = match at < heads_end && extreme(at) {
                        true => word.max(*sum),
                        false => sum.wrapping_add(word),
                    };
                }
            }
        }
        sums
    }

    /// The histograms of subject `number`, less the content at the reset.
    fn histograms(&self, number: usize, blocks: [Option<Vec<u64>>; OPS + 1]) -> Histograms {
        let mut histograms = Histograms::default();
        let no_blocks = Default::default();
        let before = self.before.get(number).unwrap_or(&no_blocks);
        for (which, (block, before)) in blocks.into_iter().zip(before).enumerate() {
            let Some(mut words) = block else {
                continue;
            };
            if let Some(before) = before {
                self.take_off(which, &mut words, before);
            }
            for (part, meaning) in self.parts(which) {
                let metric = part.metric;
                if which == OPS {
                    part.add_to(&words, meaning, histograms.of_mut(metric, Class::All));
                    continue;
                }
                let class = Class::ALL[which + 1];
                part.add_to(&words, meaning, histograms.of_mut(metric, class));
                let adds_up = self.parts_of_all.iter().all(|(p, _)| p.metric != metric);
                if adds_up {
                    part.add_to(&words, meaning, histograms.of_mut(metric, Class::All));
                }
            }
        }
        histograms
    }

    /// Subtracts sums and counts; the extremes were reset.
    fn take_off(&self, which: usize, words: &mut [u64], before: &[u64]) {
        let parts = self.parts(which);
        for (part, _) in parts {
            words[part.head] = words[part.head].wrapping_sub(before[part.head]);
        }
        let first_bin = parts[0].0.bins;
        for (word, before) in words.iter_mut().zip(before).skip(first_bin) {
            *word = word.wrapping_sub(*before);
        }
    }

    fn subject(
        &mut self,
        tables: &HistTables,
        number: usize,
        devices: &Devices,
        cgroups: &mut Cgroups,
    ) -> Subject {
        let who = tables.subject(number, layout::subject::WHO);
        let device = tables.subject(number, layout::subject::DEVICE) as u32;
        let place = devices.place(device);
        let subject = Subject {
            pdisk: place.path.or_else(|| unnamed(device)),
            ..Subject::default()
        };
        match self.by {
            By::Device => subject,
            By::Process => Subject {
                pid: (who > 0).then_some(who as i64),
                ..subject
            },
            By::Cgroup => Subject {
                cgroup: cgroups.path(who),
                ..subject
            },
            By::Disk => {
                let vm = self.owners.as_ref().and_then(|owners| owners.vm(who));
                let owners = self.owners.as_mut().zip(vm);
                let vdisk = owners.and_then(|(owners, vm)| owners.vdisk(vm, place.disk));
                Subject {
                    vm,
                    vdisk,
                    ..subject
                }
            }
        }
    }
}

/// The name of a device that is not in sysfs: its numbers.
fn unnamed(device: u32) -> Option<Symbol> {
    Symbol::try_new(&format!("{}:{}", device >> 20, device & 0xf_ffff)).ok()
}

fn now_ns() -> Nanos {
    clock::monotonic_ns() as i64 + clock::epoch_offset_ns()
}

/// All requests that were not entered so far.
fn not_entered(tables: &HistTables, missed: u64) -> NotEntered {
    NotEntered {
        subjects_full: tables.not_entered(0),
        blocks_full: tables.not_entered(1),
        contended: tables.not_entered(2),
        table_full: tables.not_entered(3),
        ends_blocks_full: tables.not_entered(4),
        missed,
    }
}

impl NotEntered {
    /// The total.
    pub fn total(&self) -> u64 {
        self.subjects_full
            + self.blocks_full
            + self.contended
            + self.table_full
            + self.ends_blocks_full
            + self.missed
    }

    fn since(&self, before: &NotEntered) -> NotEntered {
        NotEntered {
            subjects_full: self.subjects_full - before.subjects_full,
            blocks_full: self.blocks_full - before.blocks_full,
            contended: self.contended - before.contended,
            table_full: self.table_full - before.table_full,
            ends_blocks_full: self.ends_blocks_full - before.ends_blocks_full,
            missed: self.missed.saturating_sub(before.missed),
        }
    }
}
