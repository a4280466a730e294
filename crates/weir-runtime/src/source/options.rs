//! [`SourceOptions`]: the options of every command that reads events.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weir_model::{Capabilities, Nanos, Symbol};
use weir_tap::ebpf::{self, DeviceChoice};
use weir_tap::format::source::{STANDARD_INPUT, is_standard_input};
use weir_tap::inventory::{Declared, Watch, WatchOptions};
use weir_tap::{TapError, format};

use super::kind::{LIVE, Source, inspector};
use crate::quantity;
use crate::traces::Traces;

/// Options of every command that reads events.
#[derive(Debug, Clone)]
pub struct SourceOptions {
    /// Sources of events: `live`, `tapdisk:PATH` for the requests of the disks that a `weir
    /// tapdisk` serves, `qemu:VM` for those of a VM as its guest makes them (traced in QEMU
    /// meanwhile), or a file or pipe in any trace format that weir knows, `-` for standard input;
    /// several are merged in timestamp order. The files of a blktrace, one for each CPU, are one
    /// source: name any of them
    pub from: Vec<String>,
    /// The format of the files, if it cannot be detected from their first bytes
    pub from_format: Option<String>,
    /// Maximum size of a recording from a pipe that is copied to a temporary file (in TMPDIR):
    /// Parquet is read from its end
    pub spool_limit: usize,
    /// Observe this device only, such as /dev/sda; may be repeated (live)
    pub device: Vec<String>,
    /// Observe dm, md and loop devices as well as the devices below them, which counts their I/O
    /// twice (live)
    pub stacked: bool,
    /// Treat processes as a VM: NAME=pid:PID, NAME=comm:COMMAND, NAME=cgroup:PATH, or @FILE with one of
    /// these a line; may be repeated (live)
    pub vm: Vec<Declarations>,
    /// Keep all privileges after the probes are attached; otherwise they are dropped (live)
    pub keep_privileges: bool,
    /// Transfer every request from the kernel, also if the kernel could aggregate them (live)
    pub no_fold: bool,
    /// Join requests with their responses, also where the source has paired them already
    pub no_pairing: bool,
    /// End at the first bad record instead of skipping and counting it (files)
    pub strict: bool,
    /// How long a silent live source may delay the others
    pub idle: Duration,
    /// The duration of the observation; for a file, the interval from its first event on
    pub span: Option<Duration>,
    /// See [`weir_tap::ebpf::LiveOptions::optional_rows`].
    pub optional_rows: bool,
    /// Maximum delay of rows, if no single row is shown.
    pub rhythm: Option<Duration>,
    /// Stacked devices that are observed without `--stacked`, since they are named.
    pub also: Vec<String>,
    /// See [`weir_tap::ebpf::LiveOptions::epoch_offset_ns`].
    pub epoch_offset_ns: Option<Nanos>,
    /// See [`weir_tap::ebpf::LiveOptions::interval_shift_ns`].
    pub interval_shift_ns: Arc<AtomicI64>,
    /// See [`weir_tap::ebpf::LiveOptions::host`]; otherwise the system's name.
    pub host: Option<Symbol>,
    /// The caller reports what a source without responses means for it.
    pub without_responses: bool,
    /// The files and pipes that were opened.
    pub traces: Traces,
    /// The host's inventory, once it is needed.
    watch: Arc<Mutex<Option<Arc<Watch>>>>,
}

/// The kernel's path of a block device: `/dev/sda`, or `sda`, or another name of it.
///
/// # Errors
/// A message for the user when there is no such device.
pub fn device(text: &str) -> Result<String, String> {
    let path = Path::new("/dev").join(text);
    let found = ebpf::kernel_name(&path);
    found.map_err(|error| format!("{}: {error}; `lsblk` lists the devices", path.display()))
}

/// VMs that one `--vm` declares.
#[derive(Clone, Debug)]
pub struct Declarations(Vec<Declared>);

/// What one `--vm` declares: `NAME=WHICH`, or `@FILE` with one a line.
///
/// # Errors
/// A message for the user when it cannot be parsed or the file cannot be read.
pub fn declarations(text: &str) -> Result<Declarations, String> {
    let Some(path) = text.strip_prefix('@') else {
        return Ok(Declarations(vec![text.parse()?]));
    };
    let lines = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let lines = lines.lines().map(str::trim).enumerate();
    let declared = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let parse = |(number, line): (usize, &str)| {
        let wrong = |error| format!("{path}, line {}: {error}", number + 1);
        line.parse().map_err(wrong)
    };
    Ok(Declarations(declared.map(parse).collect::<Result<_, _>>()?))
}

impl Default for SourceOptions {
    fn default() -> SourceOptions {
        SourceOptions {
            from: vec![LIVE.to_owned()],
            from_format: None,
            spool_limit: format::SPOOL_BYTES_MAX as usize,
            device: Vec::new(),
            stacked: false,
            vm: Vec::new(),
            keep_privileges: false,
            no_fold: false,
            no_pairing: false,
            strict: false,
            idle: Duration::from_millis(100),
            span: None,
            optional_rows: false,
            rhythm: None,
            also: Vec::new(),
            epoch_offset_ns: None,
            interval_shift_ns: Arc::default(),
            host: None,
            without_responses: false,
            traces: Traces::default(),
            watch: Arc::default(),
        }
    }
}

impl SourceOptions {
    /// One source, with devices and VMs in the syntax of the command line.
    ///
    /// # Errors
    /// A message for the user when a device or a VM is invalid.
    pub fn of(
        from: &str,
        devices: &[String],
        stacked: bool,
        vms: &[String],
    ) -> Result<SourceOptions, String> {
        let device = devices.iter().map(|text| device(text));
        let vm = vms.iter().map(|text| declarations(text));
        Ok(SourceOptions {
            from: vec![from.to_owned()],
            device: device.collect::<Result<_, _>>()?,
            stacked,
            vm: vm.collect::<Result<_, _>>()?,
            keep_privileges: true,
            idle: Duration::ZERO,
            ..SourceOptions::default()
        })
    }

    /// The sources, in the given order, without duplicates.
    pub fn sources(&self) -> Vec<Source> {
        let mut known = Vec::new();
        let mut sources: Vec<Source> = self.from.iter().map(|text| Source::new(text)).collect();
        sources.retain(|source| {
            let identity = source.identity();
            let is_new = !known.contains(&identity);
            known.push(identity);
            is_new
        });
        sources
    }

    /// The files among them.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.from.iter().filter_map(|text| match Source::new(text) {
            Source::File(_) if is_standard_input(Path::new(text)) => Some(STANDARD_INPUT.as_ref()),
            Source::File(_) => Some(Path::new(text)),
            Source::Live | Source::Qemu(_) | Source::Tapdisk(_) => None,
        })
    }

    /// The options for reading traces.
    pub fn format_options(&self) -> format::Options {
        format::Options {
            strict: self.strict,
            format: self.from_format.clone(),
            spool_bytes_max: self.spool_limit as u64,
        }
    }

    /// The wanted interval.
    pub fn span_ns(&self) -> Option<Nanos> {
        self.span.map(quantity::nanos)
    }

    /// The devices to observe.
    pub fn devices(&self) -> DeviceChoice {
        match (self.device.is_empty(), self.stacked) {
            (false, _) => DeviceChoice::Named(self.device.clone()),
            (true, true) => DeviceChoice::All,
            (true, false) if self.also.is_empty() => DeviceChoice::Leaves,
            (true, false) => DeviceChoice::LeavesAnd(self.also.clone()),
        }
    }

    /// What `--vm` declares.
    pub fn declared(&self) -> Vec<Declared> {
        self.vm.iter().flat_map(|d| d.0.clone()).collect()
    }

    /// The host's inventory, read by one inspection process for the whole command.
    ///
    /// # Errors
    /// When the host cannot be scanned.
    pub fn inventory(&self) -> Result<Arc<Watch>, TapError> {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = watch.as_ref().filter(|watch| watch.notice().is_none()) {
            return Ok(watch.clone());
        }
        // An agent keeps the right to start another process when one has ended.
        let started = Watch::start(&WatchOptions {
            declared: self.declared(),
            inspector: Some(inspector()),
            ..WatchOptions::default()
        })?;
        Ok(watch.insert(started).clone())
    }

    /// The common capabilities of the sources.
    pub fn capabilities(&self) -> Capabilities {
        let all = self.sources().into_iter();
        let all = all.map(|source| source.capabilities(self));
        all.reduce(Capabilities::and).unwrap_or_default()
    }

    /// True when no source was specified.
    pub fn is_usual(&self) -> bool {
        let chosen = !self.device.is_empty() || self.stacked || !self.vm.is_empty();
        self.from == [LIVE] && self.from_format.is_none() && !chosen
    }

    /// True when any source is live.
    pub fn is_live(&self) -> bool {
        self.sources().iter().any(Source::is_live)
    }
}
