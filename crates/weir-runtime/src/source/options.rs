//! [`SourceOptions`]: the options of every command that reads events.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_model::probe::PROBES_MAX;
use weir_model::{Capabilities, Declaration, Nanos, Symbol};
use weir_query::diagnostic::{Diagnostic, codes};
use weir_query::syntax::ast::StreamDefinition;
use weir_tap::ebpf::stream::StreamSwitch;
use weir_tap::ebpf::{self, DeviceChoice, LiveOptions};
use weir_tap::inventory::{Declared, InventoryWatch, WatchOptions};
use weir_tap::probe::ProbeStream;
use weir_tap::source::{LIVE, SourceName, SourceSettings};
use weir_tap::{TapError, elevation, format};

use super::{OpenSource, OpenSources, QEMU_GUARD, inspector};
use crate::failure::Failure;
use crate::quantity;
use crate::question::QueryText;
use crate::shipped::ShippedStream;

/// Options of every command that reads events.
#[derive(Debug, Clone)]
pub struct SourceOptions {
    /// The names of the sources of events, as in [`weir_tap::source::KINDS`]; several are merged in
    /// timestamp order.
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
    /// Treat processes as a VM: NAME=pid:PID, NAME=comm:COMMAND, NAME=cgroup:PATH, or @FILE with
    /// one of these a line; may be repeated (live)
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
    pub poll_interval: Option<Duration>,
    /// Stacked devices that are observed without `--stacked`, since they are named.
    pub also: Vec<String>,
    /// See [`weir_tap::ebpf::LiveOptions::switch`].
    pub switch: StreamSwitch,
    /// See [`weir_tap::ebpf::LiveOptions::epoch_offset_ns`].
    pub epoch_offset_ns: Option<Nanos>,
    /// See [`weir_tap::ebpf::LiveOptions::interval_shift_ns`].
    pub interval_shift_ns: Arc<AtomicI64>,
    /// See [`weir_tap::ebpf::LiveOptions::host`]; otherwise the system's name.
    pub host: Option<Symbol>,
    /// The caller reports what a source without responses means for it.
    pub without_responses: bool,
    /// The sources that were opened.
    pub opened: OpenSources,
    /// The streams of probes that queries define.
    probes: Arc<Mutex<Vec<Arc<ProbeStream>>>>,
    /// The host's inventory, once it is needed.
    watch: Arc<Mutex<Option<Arc<InventoryWatch>>>>,
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

/// The name of a disk, of a VM or of the host: the kernel's path for a link such as those in
/// `/dev/disk`, else `text`.
///
/// # Errors
/// None: a VM's disk need not exist on the host.
pub fn disk(text: &str) -> Result<String, std::convert::Infallible> {
    let is_path = text.starts_with("/dev/");
    let found = is_path.then(|| ebpf::kernel_name(Path::new(text)).ok());
    Ok(found.flatten().unwrap_or_else(|| text.to_owned()))
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
            from: vec![LIVE.name.to_owned()],
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
            poll_interval: None,
            also: Vec::new(),
            switch: StreamSwitch::default(),
            epoch_offset_ns: None,
            interval_shift_ns: Arc::default(),
            host: None,
            without_responses: false,
            opened: OpenSources::default(),
            probes: Arc::default(),
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
    pub fn sources(&self) -> Vec<SourceName> {
        let mut known = Vec::new();
        let names = self.from.iter().map(|text| SourceName::new(text));
        let mut names: Vec<SourceName> = names.collect();
        names.retain(|name| {
            let identity = name.identity();
            let is_new = !known.contains(&identity);
            known.push(identity);
            is_new
        });
        names
    }

    /// The files among them.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> {
        let names = self.from.iter().map(|text| SourceName::new(text));
        names.filter_map(|name| name.path().map(Path::to_path_buf))
    }

    /// The part of the sources that observes requests, as `weir explain` names it; `source` for
    /// sources of several kinds.
    pub fn part(&self) -> &'static str {
        let mut parts = self.from.iter().map(|text| SourceName::new(text).kind.part);
        let first = parts.next().unwrap_or(LIVE.part);
        match parts.all(|part| part == first) {
            true => first,
            false => "source",
        }
    }

    /// True if the host is the only source.
    pub fn is_host_only(&self) -> bool {
        self.sources().iter().all(|name| name.is(&LIVE))
    }

    /// True if the host is a source.
    pub fn has_host(&self) -> bool {
        self.sources().iter().any(|name| name.is(&LIVE))
    }

    /// The source called `name`, which is opened if it is not open yet.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(&self, name: &SourceName) -> Result<Arc<OpenSource>, TapError> {
        if !name.kind.is_live && !self.is_live() {
            // A process that reads a file of unknown origin has only the rights of the user.
            elevation::give_up()?;
        }
        self.opened.open(name, || self.settings())
    }

    /// The options of a live tap.
    pub fn live(&self) -> LiveOptions {
        let usual = LiveOptions::default();
        LiveOptions {
            devices: self.devices(),
            optional_rows: self.optional_rows,
            poll_interval: self.poll_interval.unwrap_or(usual.poll_interval),
            switch: self.switch.clone(),
            epoch_offset_ns: self.epoch_offset_ns,
            interval_shift_ns: self.interval_shift_ns.clone(),
            host: self.host.or(usual.host),
            ..usual
        }
    }

    /// How its sources are opened and started.
    pub(super) fn settings(&self) -> SourceSettings {
        let (own, program) = (self.clone(), std::env::current_exe());
        SourceSettings {
            live: self.live(),
            probes: self.lock_probes().clone(),
            inventory: Arc::new(move || own.begin_inventory()),
            qemu_guard: match program {
                Ok(program) => vec![program.into_os_string(), QEMU_GUARD.into()],
                Err(_) => Vec::new(),
            },
            traces: self.format_options(),
            cancel: self.opened.cancel.clone(),
        }
    }

    /// Adds the streams of probes that `definitions` in `text` state, if the host is a source; a
    /// recording has its streams itself.
    ///
    /// # Errors
    /// The diagnostics of the probes that this host lacks.
    pub fn define(
        &self,
        text: &QueryText,
        definitions: &[StreamDefinition],
    ) -> Result<(), Failure> {
        let mut probes = self.lock_probes();
        let mut diagnostics = Vec::new();
        for definition in definitions.iter().filter(|_| self.has_host()) {
            let name = &definition.name;
            let same = |probe: &Arc<ProbeStream>| probe.name().eq_ignore_ascii_case(&name.value);
            if probes.iter().any(same) {
                continue;
            }
            match ProbeStream::new(&definition.definition()) {
                Ok(_) if probes.len() == PROBES_MAX => {
                    let message = format!("more than {PROBES_MAX} probes");
                    diagnostics.push(codes::PROBE_UNAVAILABLE.at(name.span, message));
                }
                Ok(probe) => probes.push(Arc::new(probe)),
                Err(error) => {
                    let (probe, fields) = match &definition.end {
                        Some(end) if error.is_of_end => (&end.probe, &end.fields),
                        _ => (&definition.probe, &definition.fields),
                    };
                    let field = error.field.map(|at| fields[at].span);
                    let span = field.unwrap_or(probe.span);
                    let found = codes::PROBE_UNAVAILABLE.at(span, error.message);
                    diagnostics.push(match error.help {
                        Some(help) => found.help(help),
                        None => found,
                    });
                }
            }
        }
        match diagnostics.is_empty() {
            true => Ok(()),
            false => Err(text.failure(&diagnostics)),
        }
    }

    /// Adds the shipped streams that `diagnostics` of `text` report as unknown, if the host is a
    /// source. Returns whether there are some.
    ///
    /// # Errors
    /// The diagnostics of those that this host lacks.
    pub fn define_shipped(
        &self,
        text: &QueryText,
        diagnostics: &[Diagnostic],
    ) -> Result<bool, Failure> {
        let mut absent = Vec::new();
        let mut is_new = false;
        let unknown = |d: &&Diagnostic| d.code == codes::UNKNOWN_SOURCE.code;
        for found in diagnostics.iter().filter(unknown) {
            let name = text.text.get(found.span.start..found.span.end);
            match name.map(|name| self.define_shipped_stream(name)) {
                Some(Ok(defined)) => is_new |= defined,
                Some(Err(why)) => absent.push(codes::PROBE_UNAVAILABLE.at(found.span, why)),
                None => (),
            }
        }
        match absent.is_empty() {
            true => Ok(is_new),
            false => Err(text.failure(&absent)),
        }
    }

    /// Adds the shipped stream called `name`, if there is one and the host is a source. Returns
    /// whether it was added.
    ///
    /// # Errors
    /// What this host lacks.
    pub fn define_shipped_stream(&self, name: &str) -> Result<bool, String> {
        let mut probes = self.lock_probes();
        let is_known = probes.iter().any(|p| p.name().eq_ignore_ascii_case(name));
        let Some(shipped) = ShippedStream::find(name).filter(|_| self.has_host() && !is_known)
        else {
            return Ok(false);
        };
        if probes.len() == PROBES_MAX {
            return Err(format!("more than {PROBES_MAX} probes"));
        }
        let probe = shipped.on_this_host();
        let probe =
            probe.map_err(|why| format!("`{}` is absent: {}", shipped.name, why.message))?;
        probes.push(Arc::new(probe));
        Ok(true)
    }

    /// The declarations of the streams of probes.
    pub fn defined(&self) -> Vec<Declaration> {
        let probes = self.lock_probes();
        let declarations = probes.iter().map(|p| p.capabilities().declaration);
        declarations.collect()
    }

    fn lock_probes(&self) -> MutexGuard<'_, Vec<Arc<ProbeStream>>> {
        self.probes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The options for reading traces.
    fn format_options(&self) -> format::TraceOptions {
        format::TraceOptions {
            strict: self.strict,
            format: self.from_format.clone(),
            spool_bytes_max: self.spool_limit as u64,
        }
    }

    /// The requested interval.
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
    pub fn inventory(&self) -> Result<Arc<InventoryWatch>, TapError> {
        let watch = self.begin_inventory()?;
        watch.ready()?;
        Ok(watch)
    }

    /// The same, without waiting for the first scan.
    fn begin_inventory(&self) -> Result<Arc<InventoryWatch>, TapError> {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = watch.as_ref().filter(|watch| watch.notice().is_none()) {
            return Ok(watch.clone());
        }
        // An agent keeps the right to start another process when one has ended.
        let started = InventoryWatch::begin(&WatchOptions {
            declared: self.declared(),
            inspector: Some(inspector()),
            ..WatchOptions::default()
        })?;
        Ok(watch.insert(started).clone())
    }

    /// The capabilities of the sources together.
    ///
    /// # Errors
    /// When one cannot be opened, or the format of a file is not known.
    pub fn capabilities(&self) -> Result<Capabilities, Failure> {
        self.capabilities_of(&self.sources())
    }

    /// The capabilities of the sources called `names` together.
    ///
    /// # Errors
    /// As [`SourceOptions::capabilities`].
    pub fn capabilities_of(&self, names: &[SourceName]) -> Result<Capabilities, Failure> {
        let mut all: Option<Capabilities> = None;
        for name in names {
            let own = self.open(name)?.capabilities()?.clone();
            all = Some(match all {
                Some(others) => others.and(own),
                None => own,
            });
        }
        let mut capabilities = all.unwrap_or_default();
        for stream in &mut capabilities.streams {
            if self.no_fold && stream.groups.is_ok() {
                stream.groups = Err("--no-fold was given".into());
            }
            if self.no_pairing {
                stream.paired = Err("--no-pairing was given".into());
            }
        }
        Ok(capabilities)
    }

    /// True when no source was specified.
    pub fn is_usual(&self) -> bool {
        let chosen = !self.device.is_empty() || self.stacked || !self.vm.is_empty();
        self.from == [LIVE.name] && self.from_format.is_none() && !chosen
    }

    /// True when any source is live.
    pub fn is_live(&self) -> bool {
        let mut names = self.from.iter().map(|text| SourceName::new(text));
        names.any(|name| name.kind.is_live)
    }
}
