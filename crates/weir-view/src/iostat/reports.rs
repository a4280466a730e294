//! [`Reports`]: a report an interval, of what the queries count.

use std::collections::BTreeMap;
use std::path::Path;

use weir_model::Nanos;
use weir_sink::SinkError;
use weir_sink::iostat::{CpuTimes, Disk, DiskCounters, Report};

use super::names::Names;
use super::output::Output;
use super::selection::Selection;
use crate::disk_totals::{DiskKey, Reader, SYSFS, Totals, Whole};

const NANOS_PER_CENTISECOND: Nanos = 10_000_000;

/// What the reports are made of.
pub struct Options {
    /// Time between two reports; `None`: one report, of everything.
    pub interval_ns: Option<Nanos>,
    /// How many reports, if not until the end.
    pub reports_max: Option<usize>,
    /// The events happen now, so the processors' times belong to them.
    pub live: bool,
    /// The disks that are reported.
    pub selection: Selection,
    /// How disks are named.
    pub names: Names,
}

/// Writes a report whenever an interval is over.
pub struct Reports {
    options: Options,
    output: Output,
    whole: Whole,
    /// What it was like at the end of the report before.
    before: Option<State>,
}

struct State {
    at: Nanos,
    cpu: Option<CpuTimes>,
    disks: BTreeMap<Place, DiskCounters>,
    /// The devices of partitions, by name.
    parents: BTreeMap<String, String>,
}

/// A disk's place in the order of reports, and its name.
type Place = ((bool, [Option<&'static str>; 3]), String);

impl Reports {
    /// Reports into `output`.
    pub fn new(options: Options, output: Output) -> Reports {
        Reports {
            options,
            output,
            whole: Whole::new(Path::new(SYSFS)),
            before: None,
        }
    }

    fn state(&mut self, totals: &Totals, at: Nanos) -> State {
        let mut parents = BTreeMap::new();
        let mut disks = BTreeMap::new();
        for (key, disk) in totals.disks() {
            let whole = DiskKey {
                device: key.device.map(|device| self.whole.of(device)),
                ..key
            };
            if self.options.live && whole != key {
                parents.insert(key.name(), whole.name());
            }
            disks.insert((key.place(), key.name()), disk.counters());
        }
        let cpu = self.options.live.then(|| {
            let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
            CpuTimes::parse(&stat)
        });
        State {
            at,
            cpu: cpu.flatten(),
            disks,
            parents,
        }
    }

    /// Reports what happened between the two states.
    fn report(&mut self, before: &State, now: &State) -> Result<(), SinkError> {
        let Options {
            selection, names, ..
        } = &self.options;
        let shown = now.disks.iter();
        let shown = shown.filter(|((_, name), _)| {
            let parent = now.parents.get(name).map(String::as_str);
            selection.lists(name, parent)
        });
        let disks = shown.map(|(place, counters)| Disk {
            name: names.of(&place.1),
            before: before.disks.get(place).copied().unwrap_or_default(),
            now: *counters,
        });
        let report = Report {
            at_ns: now.at,
            interval_cs: u64::try_from((now.at - before.at) / NANOS_PER_CENTISECOND).unwrap_or(0),
            cpu: before.cpu.zip(now.cpu),
            disks: disks.collect(),
        };
        self.output.write(&report)
    }

    fn complete(&self) -> bool {
        let max = self.options.reports_max;
        max.is_some_and(|max| self.output.written() >= max)
    }

    fn closed() -> SinkError {
        SinkError::Closed {
            name: "the last report is written".into(),
        }
    }
}

impl Reader for Reports {
    fn whole(&mut self, totals: &mut Totals, at: Nanos) -> Result<(), SinkError> {
        let Some(mut before) = self.before.take() else {
            self.before = Some(self.state(totals, at));
            return Ok(());
        };
        if let Some(interval_ns) = self.options.interval_ns {
            while at - before.at >= interval_ns && !self.complete() {
                // Live, time comes in slices; a recording is cut where the interval ends.
                let end = if self.options.live {
                    at
                } else {
                    before.at + interval_ns
                };
                let now = self.state(totals, end);
                self.report(&before, &now)?;
                before = now;
            }
        }
        self.before = Some(before);
        if self.complete() {
            // The sink is left as it is when it wants no more.
            self.output.finish()?;
            return Err(Reports::closed());
        }
        Ok(())
    }

    fn finish(&mut self, totals: &mut Totals, at: Option<Nanos>) -> Result<(), SinkError> {
        let recording = !self.options.live && !self.complete();
        if let (true, Some(at), Some(before)) = (recording, at, self.before.take()) {
            // What is left of a recording, in its own time.
            if at > before.at {
                let now = self.state(totals, at);
                self.report(&before, &now)?;
            }
        }
        self.output.finish()
    }
}
