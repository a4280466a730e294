//! Samples of processes and state directories.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::fit::GrowthBound;
use super::setup::Setup;
use crate::time_used::process_ns;

/// What is sampled of a process, with the processes that it has started.
pub struct Metric {
    /// Its name, with the unit.
    pub name: &'static str,
    /// The permitted growth; `None` if it is shown only.
    pub bound: Option<GrowthBound>,
}

const fn bounded(name: &'static str, absolute: f64, relative: f64) -> Metric {
    Metric {
        name,
        bound: Some(GrowthBound { absolute, relative }),
    }
}

/// The metrics, in the order of [`Reading`] and of the report.
pub static METRICS: &[Metric] = &[
    bounded("memory, MiB", 4.0, 0.05),
    bounded("descriptors", 3.0, 0.0),
    bounded("threads", 3.0, 0.0),
    bounded("BPF maps", 0.5, 0.0),
    bounded("BPF programs", 0.5, 0.0),
    bounded("BPF links", 0.5, 0.0),
    bounded("state, KiB", 256.0, 0.05),
    bounded("state files", 2.0, 0.0),
    bounded("spool, KiB", 64.0, 0.0),
    Metric {
        name: "output, KiB",
        bound: None,
    },
    Metric {
        name: "processor, %",
        bound: None,
    },
];

/// The readings of one subject at one time: a value for each metric that it has.
type Reading = Vec<Option<f64>>;

/// A metric of one subject over the run.
#[derive(Clone, Debug)]
pub struct Series {
    /// The index in [`METRICS`].
    pub metric: usize,
    /// The process.
    pub subject: String,
    /// Times in seconds after the start, and values.
    pub points: Vec<(f64, f64)>,
}

/// An object of the kernel that a process has had open: its kind (`prog`, `map`, `link`) and id.
pub type BpfObject = (&'static str, u32);

/// All samples of a run.
#[derive(Default)]
pub struct Samples {
    readings: BTreeMap<String, Vec<(f64, Reading)>>,
    /// When the processor time was last read, and its value, by process.
    processor_ns: BTreeMap<u32, (f64, f64)>,
    bpf_objects: BTreeSet<BpfObject>,
}

/// The directories of a subject.
pub struct Directories {
    /// The state.
    pub state: String,
    /// Files in it that are output.
    pub output: Vec<&'static str>,
}

impl Samples {
    /// Takes a sample of every process.
    pub fn take(&mut self, at: f64, setup: &Setup) {
        for (name, pid, directories) in setup.subjects() {
            let reading = self.read(at, pid, directories.as_ref());
            self.readings
                .entry(name.to_owned())
                .or_default()
                .push((at, reading));
        }
    }

    fn read(&mut self, at: f64, pid: u32, directories: Option<&Directories>) -> Reading {
        let mut usage = Usage::default();
        for pid in family(pid) {
            usage.add(pid, &mut self.bpf_objects);
        }
        let percent = self.percent(at, pid, usage.processor_ns);
        let of_processes = [
            usage.memory_kib / 1024.0,
            usage.descriptors,
            usage.threads,
            usage.bpf[0],
            usage.bpf[1],
            usage.bpf[2],
        ];
        let mut reading: Reading = of_processes.map(Some).to_vec();
        let files = directories.map(|of| Files::below(Path::new(&of.state), &of.output));
        let of_files = |value: fn(&Files) -> f64| files.as_ref().map(value);
        reading.extend([
            of_files(|f| f.state_bytes / 1024.0),
            of_files(|f| f.state_files),
            of_files(|f| f.spool_bytes / 1024.0),
            of_files(|f| f.output_bytes / 1024.0),
            percent,
        ]);
        reading
    }

    /// The processor time since the last sample, in percent of one processor.
    fn percent(&mut self, at: f64, pid: u32, ns: f64) -> Option<f64> {
        let (then, before) = self.processor_ns.insert(pid, (at, ns))?;
        let seconds = (at - then).max(1e-3);
        Some((100.0 * (ns - before) / 1e9 / seconds).max(0.0))
    }

    /// Every metric of every process that has values.
    pub fn series(&self) -> Vec<Series> {
        let mut all = Vec::new();
        for metric in 0..METRICS.len() {
            for (subject, readings) in &self.readings {
                let points = readings
                    .iter()
                    .filter_map(|(at, r)| Some((*at, r[metric]?)));
                let points: Vec<(f64, f64)> = points.collect();
                if points.iter().any(|(_, value)| *value != 0.0) {
                    let subject = subject.clone();
                    all.push(Series {
                        metric,
                        subject,
                        points,
                    });
                }
            }
        }
        all
    }

    /// The memory of each process, for the progress line.
    pub fn latest(&self) -> String {
        let memory = self.readings.iter().filter_map(|(name, readings)| {
            let value = readings.last()?.1[0]?;
            Some(format!("{name} {value:.0} MiB"))
        });
        memory.collect::<Vec<_>>().join(", ")
    }

    /// The BPF objects that the processes have had.
    pub fn bpf_objects(&self) -> &BTreeSet<BpfObject> {
        &self.bpf_objects
    }
}

/// A process and its descendants.
pub fn family(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(pid) = all.get(next).copied() {
        next += 1;
        let tasks = fs::read_dir(format!("/proc/{pid}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(
                children
                    .split_whitespace()
                    .filter_map(|p| p.parse::<u32>().ok()),
            );
        }
    }
    all
}

/// The number of BPF links of a process and its descendants.
pub fn bpf_links(pid: u32) -> f64 {
    let mut usage = Usage::default();
    for pid in family(pid) {
        usage.add(pid, &mut BTreeSet::new());
    }
    usage.bpf[2]
}

/// The resources of some processes.
#[derive(Default)]
struct Usage {
    memory_kib: f64,
    descriptors: f64,
    threads: f64,
    /// Maps, programs, links.
    bpf: [f64; 3],
    processor_ns: f64,
}

impl Usage {
    /// Adds a process. One that has ended in the meantime adds nothing.
    fn add(&mut self, pid: u32, objects: &mut BTreeSet<BpfObject>) {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let value = line.and_then(|rest| rest.split_whitespace().next());
            value.and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0)
        };
        self.memory_kib += field("VmRSS:");
        self.threads += field("Threads:");
        self.processor_ns += process_ns(pid).unwrap_or_default();
        let open = fs::read_dir(format!("/proc/{pid}/fd"));
        for descriptor in open.into_iter().flatten().flatten() {
            self.descriptors += 1.0;
            let target = fs::read_link(descriptor.path()).unwrap_or_default();
            let kind = match target.to_string_lossy().as_ref() {
                "anon_inode:bpf-map" => 0,
                "anon_inode:bpf-prog" => 1,
                "anon_inode:bpf_link" | "anon_inode:bpf-link" => 2,
                _ => continue,
            };
            self.bpf[kind] += 1.0;
            let (name, key) = [
                ("map", "map_id:"),
                ("prog", "prog_id:"),
                ("link", "link_id:"),
            ][kind];
            let number = descriptor.file_name().to_string_lossy().into_owned();
            let details =
                fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
            let id = details.lines().find_map(|line| line.strip_prefix(key));
            objects.extend(
                id.and_then(|id| id.trim().parse().ok())
                    .map(|id| (name, id)),
            );
        }
    }
}

/// The sizes of the files below a state directory.
#[derive(Default)]
struct Files {
    state_bytes: f64,
    state_files: f64,
    spool_bytes: f64,
    output_bytes: f64,
}

impl Files {
    fn below(folder: &Path, output: &[&str]) -> Files {
        let mut files = Files::default();
        files.add(folder, output, false);
        files
    }

    fn add(&mut self, folder: &Path, output: &[&str], is_spool: bool) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // A file may have been removed in the meantime.
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            let bytes = metadata.len() as f64;
            if metadata.is_dir() {
                self.add(&entry.path(), output, is_spool || name == "spool");
            } else if output.contains(&&*name) {
                self.output_bytes += bytes;
            } else if is_spool {
                self.spool_bytes += bytes;
            } else {
                (self.state_bytes, self.state_files) =
                    (self.state_bytes + bytes, self.state_files + 1.0);
            }
        }
    }
}
