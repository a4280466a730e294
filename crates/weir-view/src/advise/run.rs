//! [`run`]: reads the requests of all hosts and advises.

use std::path::Path;
use std::sync::{Arc, Mutex};

use weir_model::{Batch, Nanos, Symbol};
use weir_query::engine::{Engine, EngineOptions};
use weir_runtime::failure::Failure;
use weir_runtime::question::QueryText;
use weir_runtime::run_loop::{self, LoopOptions, ProgressKind, RunReport, Show, Stop};
use weir_runtime::source::{self, SourceOptions};
use weir_runtime::{device_names, plans};
use weir_sink::{Sink, SinkError};
use weir_tap::ebpf::Files;
use weir_workload::colocation::{
    Calibration, ColocationOptions, ColocationReport, DiskStream, DiskStreams, HostedDevice,
    StreamCollector, advise,
};

use super::question;

/// A device and the recording by which it is measured.
#[derive(Clone, Debug)]
pub struct CalibrationFile {
    /// The device.
    pub device: HostedDevice,
    /// The file.
    pub file: String,
}

/// What is read, and how.
#[derive(Clone, Debug)]
pub struct AdviseOptions {
    /// What is asked for.
    pub colocation: ColocationOptions,
    /// Devices that are measured by recordings of their own.
    pub calibrations: Vec<CalibrationFile>,
    /// Shift each recording so that all begin at the same time.
    pub align: bool,
}

/// Reads all sources, each as a host of its own if there are several, and advises.
///
/// # Errors
/// When a source cannot be read, recordings do not overlap in time, or a calibration is empty.
pub fn run(
    source: &SourceOptions,
    options: &AdviseOptions,
    stop: &Stop,
) -> Result<(ColocationReport, RunReport), Failure> {
    let mut calibrations = Vec::new();
    for CalibrationFile { device, file } in &options.calibrations {
        let (streams, _) = read(&of_file(source, file), None, &stop.restarted())?;
        if streams.streams.is_empty() {
            return Err(Failure::world(format!(
                "{file}: no request with a known latency; `weir record` on the device during a load \
                 makes a calibration"
            )));
        }
        calibrations.push(Calibration {
            device: device.clone(),
            streams: streams.streams,
        });
    }
    let (recorded, report) = match &source.from[..] {
        [_] => {
            let (mut streams, report) = read(source, None, stop)?;
            forget_only_host(&mut streams);
            (streams, report)
        }
        files => {
            let mut hosts = Vec::new();
            for file in files {
                let host = Symbol::new(&host_name(file, files));
                let (streams, report) =
                    read(&of_file(source, file), Some(host), &stop.restarted())?;
                hosts.push((file.as_str(), streams, report));
            }
            joined(hosts, options.align)?
        }
    };
    Ok((advise(recorded, calibrations, options.colocation), report))
}

/// The name of a file without its extension; its path if another file has the same name.
fn host_name(file: &str, files: &[String]) -> String {
    let name = |file: &str| {
        let stem = Path::new(file).file_stem();
        stem.map(|stem| stem.to_string_lossy().into_owned())
    };
    let own = name(file);
    let is_only = files.iter().filter(|other| name(other) == own).count() == 1;
    own.filter(|_| is_only).unwrap_or_else(|| file.to_owned())
}

/// Removes the name of the host if all disks are of one.
fn forget_only_host(streams: &mut DiskStreams) {
    let first = streams.streams.first().map(|stream| stream.disk.host);
    let is_only = |stream: &DiskStream| Some(stream.disk.host) == first;
    if streams.streams.iter().all(is_only) {
        for stream in &mut streams.streams {
            (stream.disk.host, stream.device.host) = (None, None);
        }
    }
}

/// The same options for one file.
fn of_file(source: &SourceOptions, file: &str) -> SourceOptions {
    let mut source = source.clone();
    source.from = vec![file.to_owned()];
    source
}

/// All requests of a source.
fn read(
    source: &SourceOptions,
    host: Option<Symbol>,
    stop: &Stop,
) -> Result<(DiskStreams, RunReport), Failure> {
    let question = QueryText::new(question::QUERY);
    let checked = question.compile_over(source)?;
    let plan = device_names::resolved(&checked.plan, source);
    let placement = plans::placed(&[&*plan], &source.capabilities()?);
    let inputs = source::open(source, &placement, stop)?;
    let collected = Arc::new(Mutex::new(StreamCollector::default()));
    let mut engine = Engine::new(EngineOptions::default());
    let shows = placement.plans.iter().map(|plan| {
        let requests = Requests {
            collected: collected.clone(),
            host,
        };
        Show::new(engine.add(plan), Box::new(requests))
    });
    let shows = shows.collect();
    let loop_options = LoopOptions {
        idle: source.idle,
        own_stream: false,
        instant_ns: 1,
        progress: match source.is_live() {
            true => ProgressKind::Nothing,
            false => ProgressKind::Files,
        },
        whole: None,
        changes: None,
        watermarks: false,
        counts: Arc::default(),
    };
    source::drop_privileges(source, &inputs, Files::Open)?;
    let report = run_loop::run(engine, inputs, shows, loop_options, stop)?;
    let streams = collected.lock().expect("no panic while locked").finish();
    Ok((streams, report))
}

/// The sink for the rows of the query.
struct Requests {
    collected: Arc<Mutex<StreamCollector>>,
    host: Option<Symbol>,
}

impl Sink for Requests {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let mut collected = self.collected.lock().expect("no panic while locked");
        question::collect(batch, self.host, &mut collected);
        Ok(())
    }
}

/// The disks of all hosts in the time that all recordings have.
fn joined(
    hosts: Vec<(&str, DiskStreams, RunReport)>,
    align: bool,
) -> Result<(DiskStreams, RunReport), Failure> {
    let mut all = DiskStreams::default();
    let mut report = None;
    let mut common: Option<(&str, Nanos, Nanos)> = None;
    for (file, mut streams, of_file) in hosts {
        let requests = || streams.streams.iter().flat_map(|stream| &stream.requests);
        let begin = requests().map(|request| request.arrival_ns).min();
        let end = requests().map(|request| request.arrival_ns + 1).max();
        let Some((mut begin, mut end)) = begin.zip(end) else {
            return Err(Failure::world(format!(
                "{file}: no request with a known latency"
            )));
        };
        if let Some((_, first, _)) = common.filter(|_| align) {
            let requests = streams.streams.iter_mut().flat_map(|s| &mut s.requests);
            requests.for_each(|request| request.arrival_ns += first - begin);
            (begin, end) = (first, end + first - begin);
        }
        let (name, from, until) = common.map_or((file, begin, end), |(name, from, until)| {
            (name, from.max(begin), until.min(end))
        });
        if from >= until {
            return Err(Failure::words(format_args!(
                "{name} and {file} do not overlap in time; --align compares recordings from their \
                 beginnings"
            )));
        }
        common = Some((name, from, until));
        all.streams.append(&mut streams.streams);
        all.requests_omitted += streams.requests_omitted;
        all.requests_untimed += streams.requests_untimed;
        report = Some(of_file);
    }
    let (_, from, until) = common.expect("several recordings were read");
    for stream in &mut all.streams {
        stream.requests = stream.requests[stream.within(&(from..until))].to_vec();
    }
    all.streams.retain(|stream| !stream.requests.is_empty());
    all.streams.sort_by(|a, b| a.disk.cmp(&b.disk));
    Ok((all, report.expect("several recordings were read")))
}
