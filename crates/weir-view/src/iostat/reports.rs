//! [`Reports`]: a report for each interval, from the results of the queries.

use std::collections::BTreeMap;
use std::path::Path;

use weir_model::Nanos;
use weir_runtime::output;
use weir_sink::SinkError;
use weir_sink::iostat::{CpuTimes, DiskCounters, DiskGroup, IostatReport, ReportedDisk};

use super::names::DeviceNames;
use super::output::Output;
use super::selection::DeviceSelection;
use crate::disk_totals::{DiskKey, LedgerReader, SYSFS, Totals, Whole};

const NANOS_PER_CENTISECOND: Nanos = 10_000_000;

/// Options of the reports.
pub struct ReportOptions {
    /// Time between two reports; `None`: one report of everything.
    pub interval_ns: Option<Nanos>,
    /// Maximum number of reports; `None` for no limit.
    pub reports_max: Option<usize>,
    /// The events happen now, so the processors' times are of the same interval.
    pub live: bool,
    /// The disks that are reported.
    pub selection: DeviceSelection,
    /// The names of disks.
    pub names: DeviceNames,
}

/// Writes a report at the end of each interval.
pub struct Reports {
    options: ReportOptions,
    output: Output,
    whole: Whole,
    /// The state at the end of the previous report.
    before: Option<State>,
    /// Whether a report had a disk.
    has_disks: bool,
}

struct State {
    at: Nanos,
    cpu: Option<CpuTimes>,
    disks: BTreeMap<Place, DiskCounters>,
    /// The devices of partitions, by name.
    parents: BTreeMap<String, String>,
}

/// The sort key of a disk in reports, and its name.
type Place = ((bool, [Option<&'static str>; 3]), String);

impl Reports {
    /// Writes reports to `output`.
    pub fn new(options: ReportOptions, output: Output) -> Reports {
        Reports {
            options,
            output,
            whole: Whole::new(Path::new(SYSFS)),
            before: None,
            has_disks: false,
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

    /// Reports the difference between the two states.
    fn report(&mut self, before: &State, now: &State) -> Result<(), SinkError> {
        let ReportOptions {
            selection, names, ..
        } = &self.options;
        let shown = now.disks.iter();
        let shown = shown.filter(|((_, name), _)| {
            let parent = now.parents.get(name).map(String::as_str);
            selection.lists(name, parent)
        });
        let groups = selection.grouped(shown.collect(), |((_, name), _)| name);
        let groups = groups.into_iter().map(|(name, disks)| {
            let disks = disks.into_iter().map(|(place, counters)| ReportedDisk {
                name: names.of(&place.1),
                before: before.disks.get(place).copied().unwrap_or_default(),
                now: *counters,
            });
            DiskGroup {
                name,
                disks: disks.collect(),
            }
        });
        let report = IostatReport {
            at_ns: now.at,
            interval_cs: u64::try_from((now.at - before.at) / NANOS_PER_CENTISECOND).unwrap_or(0),
            cpu: before.cpu.zip(now.cpu),
            groups: groups.collect(),
        };
        let mut groups = report.groups.iter();
        self.has_disks |= groups.any(|group| !group.disks.is_empty());
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

impl LedgerReader for Reports {
    fn whole(&mut self, totals: &mut Totals, at: Nanos) -> Result<(), SinkError> {
        let Some(mut before) = self.before.take() else {
            self.before = Some(self.state(totals, at));
            return Ok(());
        };
        if let Some(interval_ns) = self.options.interval_ns {
            while at - before.at >= interval_ns && !self.complete() {
                // Live, time advances in slices; a recording is cut at the end of the interval.
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
            // The sink is not changed when it accepts no more.
            self.output.finish()?;
            return Err(Reports::closed());
        }
        Ok(())
    }

    fn finish(&mut self, totals: &mut Totals, at: Option<Nanos>) -> Result<(), SinkError> {
        // The remainder of a recording, in its own time. Live, an interval that has not ended is
        // the only report of a shorter run.
        let has_remainder = match self.options.live {
            true => self.output.written() == 0,
            false => !self.complete(),
        };
        if let (true, Some(at), Some(before)) = (has_remainder, at, self.before.take())
            && at > before.at
        {
            let now = self.state(totals, at);
            self.report(&before, &now)?;
        }
        if !self.options.live && !self.has_disks {
            output::notice("weir: no requests were observed");
        }
        self.output.finish()
    }
}
