//! Where events come from: `--from`, and what goes with it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::Args;
use weir_model::event::{io_schema, iostream_schema};
use weir_model::{Declaration, Demand, Nanos, Predicate, Shape, Symbol};
use weir_query::place::Placement;
use weir_tap::ebpf::{self, DeviceChoice, Files, LiveOptions};
use weir_tap::elevation;
use weir_tap::format::source::{STANDARD_INPUT, is_standard_input};
use weir_tap::inventory::{Declared, Watch, WatchOptions};
use weir_tap::live::LiveTap;
use weir_tap::tapdisk::{self, TapdiskOptions};
use weir_tap::{RECORDING, Tap, TapError, format, vdisk};

use crate::command::GUARD;
use crate::failure::Failure;
use crate::run_loop::{Input, Outlet, Stop, wall_clock};
use crate::traces::Traces;
use crate::{output, quantity};

/// The name of the live source.
pub const LIVE: &str = "live";

/// What the name of a traced VM begins with.
const QEMU: &str = "qemu:";

/// What the path of a tap in the disk path begins with.
const TAPDISK: &str = "tapdisk:";

/// Options of every command that reads events.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Source")]
pub struct SourceArgs {
    /// Where events come from: `live`, `tapdisk:PATH` for the requests of the disks that a `weir
    /// tapdisk` serves, `qemu:VM` for those of a VM as its guest makes them (traced in QEMU meanwhile),
    /// or a file or pipe in any trace format that weir knows, `-` for standard input; several are
    /// merged by time. The files of a blktrace, one for each CPU, are one source: name any of them
    #[arg(long, value_name = "SOURCE", default_value = LIVE)]
    pub from: Vec<String>,
    /// The format of the files, where their first bytes do not show it
    #[arg(long, value_name = "FORMAT")]
    pub from_format: Option<String>,
    /// How much of a recording that comes through a pipe may be copied to a temporary file (in
    /// TMPDIR): Parquet is read from its end
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = quantity::size)]
    pub spool_limit: usize,
    /// Watch this device only, as /dev/sda; may be repeated (live)
    #[arg(long, value_name = "DEV", value_parser = device)]
    pub device: Vec<String>,
    /// Watch dm, md and loop devices as well as the devices below them, which counts their I/O
    /// twice (live)
    #[arg(long, conflicts_with = "device")]
    pub stacked: bool,
    /// Treat processes as a VM: NAME=pid:N, NAME=comm:TEXT, NAME=cgroup:PATH, or @FILE with one of
    /// these a line; may be repeated (live)
    #[arg(long, value_name = "NAME=WHICH", value_parser = declarations)]
    pub vm: Vec<Declarations>,
    /// Keep all privileges after the probes are attached; otherwise they are dropped (live)
    #[arg(long)]
    pub keep_privileges: bool,
    /// Let the kernel tell every request, also where it could add them up itself (live)
    #[arg(long)]
    pub no_fold: bool,
    /// Join requests with their responses, also where the source has paired them already
    #[arg(long)]
    pub no_pairing: bool,
    /// End at the first bad record instead of skipping and counting it (files)
    #[arg(long)]
    pub strict: bool,
    /// How long a silent live source may hold the others back
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = quantity::span)]
    pub idle: Duration,
    /// How long to watch; of a file, how much of it from its first event on
    #[arg(long = "for", value_name = "TIME", value_parser = quantity::span)]
    pub span: Option<Duration>,
    /// See [`LiveOptions::optional_rows`].
    #[arg(skip)]
    pub optional_rows: bool,
    /// How long rows may be on their way, where no single row is shown.
    #[arg(skip)]
    pub rhythm: Option<Duration>,
    /// Stacked devices that are watched although `--stacked` is not given, since they are named.
    #[arg(skip)]
    pub also: Vec<String>,
    /// See [`LiveOptions::epoch_offset_ns`].
    #[arg(skip)]
    pub epoch_offset_ns: Option<Nanos>,
    /// See [`LiveOptions::interval_shift_ns`].
    #[arg(skip)]
    pub interval_shift_ns: Arc<AtomicI64>,
    /// See [`LiveOptions::host`]; otherwise the system's name.
    #[arg(skip)]
    pub host: Option<Symbol>,
    /// Whoever asks tells for himself what a source without responses means to him.
    #[arg(skip)]
    pub without_responses: bool,
    /// The files and pipes that were opened.
    #[arg(skip)]
    pub traces: Traces,
    /// The host's inventory, once something asks for it.
    #[arg(skip)]
    watch: Arc<OnceLock<Arc<Watch>>>,
}

/// The kernel's path of a block device: `/dev/sda`, or `sda`, or another name of it.
///
/// # Errors
/// A text for the user when there is no such device.
pub fn device(text: &str) -> Result<String, String> {
    let path = Path::new("/dev").join(text);
    let found = ebpf::kernel_name(&path);
    found.map_err(|error| format!("{}: {error}; `lsblk` lists the devices", path.display()))
}

/// VMs that one `--vm` declares.
#[derive(Clone, Debug)]
pub struct Declarations(Vec<Declared>);

fn declarations(text: &str) -> Result<Declarations, String> {
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

/// One source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// This host, now.
    Live,
    /// A VM of this host, traced in QEMU.
    Qemu(String),
    /// The disks that a tap in the disk path serves, by its socket or a disk's.
    Tapdisk(PathBuf),
    /// A file.
    File(PathBuf),
}

impl SourceArgs {
    /// One source, with devices and VMs as the command line takes them.
    ///
    /// # Errors
    /// A text for the user when a device or a VM is not what it should be.
    pub fn of(
        from: &str,
        devices: &[String],
        stacked: bool,
        vms: &[String],
    ) -> Result<SourceArgs, String> {
        let device = devices.iter().map(|text| device(text));
        let vm = vms.iter().map(|text| declarations(text));
        Ok(SourceArgs {
            from: vec![from.to_owned()],
            from_format: None,
            spool_limit: format::SPOOL_BYTES_MAX as usize,
            device: device.collect::<Result<_, _>>()?,
            stacked,
            vm: vm.collect::<Result<_, _>>()?,
            keep_privileges: true,
            no_fold: false,
            no_pairing: false,
            strict: false,
            idle: Duration::ZERO,
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
        })
    }

    /// The sources, in the order given, each once.
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

    /// How traces are read.
    pub fn format_options(&self) -> format::Options {
        format::Options {
            strict: self.strict,
            format: self.from_format.clone(),
            spool_bytes_max: self.spool_limit as u64,
        }
    }

    /// How much is wanted.
    pub fn span_ns(&self) -> Option<Nanos> {
        self.span.map(quantity::nanos)
    }

    /// The devices to watch.
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

    /// The host's inventory, watched by one thread for the whole process.
    ///
    /// # Errors
    /// When the host cannot be looked at.
    pub fn inventory(&self) -> Result<Arc<Watch>, TapError> {
        if let Some(watch) = self.watch.get() {
            return Ok(watch.clone());
        }
        let watch = Watch::start(&WatchOptions {
            declared: self.declared(),
            ..WatchOptions::default()
        })?;
        Ok(self.watch.get_or_init(|| watch).clone())
    }

    /// Whether the sources fold what a demand asks for.
    ///
    /// # Errors
    /// Why not, as a sentence without full stop.
    pub fn folds(&self, demand: &Demand) -> Result<(), String> {
        if self.no_fold {
            return Err("--no-fold was given".into());
        }
        self.sources().iter().try_for_each(|source| match source {
            Source::Live => match LiveTap::of(&demand.stream) {
                Some(tap) => (tap.folds)(demand),
                None => Err(format!("`{}` is not to be had live", demand.stream)),
            },
            Source::Qemu(_) | Source::Tapdisk(_) => {
                Err("a VM's own requests are told one by one".into())
            }
            Source::File(_) => Err("a file is read row by row".into()),
        })
    }

    /// Whether the sources promise that `IO` tells of each response in `IOstream` when its request
    /// was.
    ///
    /// # Errors
    /// Why not, as a sentence without full stop.
    pub fn pairs(&self) -> Result<(), String> {
        match self.sources().as_slice() {
            [source] => source.pairs(self),
            _ => Err("several sources number their requests each for itself".into()),
        }
    }

    /// True when nothing was said of where events come from.
    pub fn is_usual(&self) -> bool {
        let chosen = !self.device.is_empty() || self.stacked || !self.vm.is_empty();
        self.from == [LIVE] && self.from_format.is_none() && !chosen
    }

    /// True when any source is live.
    pub fn is_live(&self) -> bool {
        self.sources().iter().any(Source::is_live)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Live => f.write_str(LIVE),
            Source::Qemu(vm) => write!(f, "{QEMU}{vm}"),
            Source::Tapdisk(path) => write!(f, "{TAPDISK}{}", path.display()),
            Source::File(path) => path.display().fmt(f),
        }
    }
}

impl Source {
    /// The source that `text` names.
    pub fn new(text: &str) -> Source {
        if text == LIVE {
            return Source::Live;
        }
        match (text.strip_prefix(QEMU), text.strip_prefix(TAPDISK)) {
            (Some(vm), _) => Source::Qemu(vm.into()),
            (_, Some(path)) => Source::Tapdisk(PathBuf::from(path)),
            _ if is_standard_input(Path::new(text)) => Source::File(STANDARD_INPUT.into()),
            _ => Source::File(PathBuf::from(text)),
        }
    }

    /// The source itself, whichever of its names was given: of the files of a blktrace, one for each
    /// CPU, the first.
    fn identity(&self) -> Source {
        match self {
            Source::File(path) => {
                let first = format::first_file(path);
                Source::File(fs::canonicalize(&first).unwrap_or(first))
            }
            other => other.clone(),
        }
    }

    /// Whether it promises that `IO` tells of each response in `IOstream` when its request was.
    ///
    /// # Errors
    /// Why not, as a sentence without full stop.
    pub fn pairs(&self, args: &SourceArgs) -> Result<(), String> {
        match self {
            _ if args.no_pairing => Err("--no-pairing was given".into()),
            Source::Live | Source::Qemu(_) | Source::Tapdisk(_) => Ok(()),
            Source::File(path) => {
                if !args.is_live() {
                    elevation::give_up().map_err(|error| error.to_string())?;
                }
                let capabilities = args.traces.capabilities(path, &args.format_options())?;
                capabilities.paired
            }
        }
    }

    /// True if its events happen now.
    pub fn is_live(&self) -> bool {
        !matches!(self, Source::File(_))
    }
}

/// Everything that a source tells of I/O, as a stream that queries can speak of.
pub fn everything() -> Declaration {
    Declaration {
        doc: "every request and every response".into(),
        ..Declaration::new(RECORDING, Shape::Stream, io_schema())
    }
}

/// Opens the sources for the demands of `placement`; the rows of each go to the engine's source of
/// that name. Without demands, which is a query of stream `weir` alone, files are read for what is
/// counted of them, and nothing else is opened.
///
/// # Errors
/// When a file cannot be read or its format is unknown, or the host does not let us watch it.
pub fn open(args: &SourceArgs, placement: &Placement, stop: &Stop) -> Result<Vec<Input>, Failure> {
    args.traces.end_with(stop);
    let demands = &placement.demands;
    let mut inputs = match demands.is_empty() {
        true => counted(args)?,
        false => Vec::new(),
    };
    for source in args.sources().iter().filter(|_| !demands.is_empty()) {
        let outlets = placement.sources.iter().enumerate().map(outlet).collect();
        inputs.extend(self::inputs(source, args, demands, outlets)?);
    }
    begin(args, stop);
    Ok(inputs)
}

/// The sources for what is counted of them, none of their rows: nothing of live ones, which have no
/// end.
///
/// # Errors
/// As [`open`].
pub fn counted(args: &SourceArgs) -> Result<Vec<Input>, Failure> {
    let nothing = Demand {
        stream: "IOstream".into(),
        columns: Vec::new(),
        predicate: Predicate::all(),
        fold: None,
    };
    let mut inputs = Vec::new();
    for source in args.sources().iter().filter(|_| !args.is_live()) {
        let demands = std::slice::from_ref(&nothing);
        inputs.extend(self::inputs(source, args, demands, Vec::new())?);
    }
    Ok(inputs)
}

/// Opens one source for `demands`, whose rows go through `outlets`: a file is one tap, the host has
/// one for each kind of stream.
///
/// # Errors
/// As [`open`].
pub fn inputs(
    source: &Source,
    args: &SourceArgs,
    demands: &[Demand],
    outlets: Vec<Outlet>,
) -> Result<Vec<Input>, Failure> {
    if !args.is_live() {
        // What reads a file of unknown origin has no other rights than the user.
        elevation::give_up()?;
    }
    let input = |tap: Box<dyn Tap>, outlets| Input {
        tap,
        live: source.is_live(),
        span_ns: args.span_ns(),
        outlets,
    };
    let live = |demands: &[Demand], outlets: &[Outlet]| {
        let share = |share: Share| {
            let outlets = share.outlets(outlets);
            Ok(input(live(share, args)?, outlets))
        };
        shares(demands)?
            .into_iter()
            .map(share)
            .collect::<Result<Vec<Input>, Failure>>()
    };
    let path = match source {
        Source::Live => return live(demands, &outlets),
        Source::Qemu(_) | Source::Tapdisk(_) => {
            let (own, others) = split(demands, &outlets, is_io);
            let mut inputs = Vec::new();
            // What the host tells beside comes from the live source, if there is one.
            if !others.0.is_empty() && !args.sources().contains(&Source::Live) {
                inputs = live(&others.0, &others.1)?;
            }
            if !own.0.is_empty() {
                let tap = match source {
                    Source::Qemu(vm) => traced(vm, args, &own.0)?,
                    _ => served(source, args, &own.0)?,
                };
                inputs.push(input(tap, own.1));
            }
            return Ok(inputs);
        }
        Source::File(path) => path,
    };
    let (demands, outlets) = of_files(demands, outlets, source, args)?;
    if demands.is_empty() {
        return Ok(Vec::new());
    }
    let trace = args.traces.trace(path, &args.format_options())?;
    let tap = trace.start(&demands)?;
    if tap.responses_assumed()
        && !args.without_responses
        && demands
            .iter()
            .any(|d| !d.stream.eq_ignore_ascii_case("IOstream"))
    {
        output::say(format_args!(
            "weir: {source}: the trace has no responses; each request counts as finished when it was issued, without latency"
        ));
    }
    Ok(vec![input(tap, outlets)])
}

/// The demands that a file can serve, with their outlets. What only a host can tell comes from the
/// live source beside it.
///
/// # Errors
/// When there is none.
fn of_files(
    demands: &[Demand],
    outlets: Vec<Outlet>,
    source: &Source,
    args: &SourceArgs,
) -> Result<(Vec<Demand>, Vec<Outlet>), TapError> {
    let of_host = |d: &Demand| !is_io(d) && LiveTap::of(&d.stream).is_some();
    if let Some(demand) = demands
        .iter()
        .find(|d| of_host(d))
        .filter(|_| !args.is_live())
    {
        return Err(TapError::Unavailable {
            what: format!("{source}: a recording holds no `{}`", demand.stream),
            remedy: "leave it out, or ask this host: --from live".into(),
        });
    }
    Ok(split(demands, &outlets, |d| !of_host(d)).0)
}

/// True if a demand is of I/O, request by request.
pub fn is_io(demand: &Demand) -> bool {
    let streams = ["IO", "IOstream", RECORDING];
    streams
        .iter()
        .any(|s| s.eq_ignore_ascii_case(&demand.stream))
}

/// Demands with their outlets, which count them from 0.
type Part = (Vec<Demand>, Vec<Outlet>);

/// The demands that `first` wants, and the others.
fn split(demands: &[Demand], outlets: &[Outlet], first: impl Fn(&Demand) -> bool) -> (Part, Part) {
    let part = |wanted: bool| {
        let kept: Vec<usize> = (0..demands.len())
            .filter(|d| first(&demands[*d]) == wanted)
            .collect();
        let own = |outlet: &Outlet| {
            let demand = kept.iter().position(|d| *d == outlet.demand)?;
            Some(Outlet {
                demand,
                ..outlet.clone()
            })
        };
        let outlets = outlets.iter().filter_map(own).collect();
        (kept.iter().map(|d| demands[*d].clone()).collect(), outlets)
    };
    (part(true), part(false))
}

/// The tap of a VM's requests as its guest makes them. Should we be killed, another process of ours
/// switches tracing off again.
fn traced(vm: &str, args: &SourceArgs, demands: &[Demand]) -> Result<Box<dyn Tap>, Failure> {
    let program = std::env::current_exe()?;
    let guard = [program.into_os_string(), GUARD.into()];
    let watch = args.inventory()?;
    Ok(Box::new(vdisk::open(vm, demands, &watch, &guard)?))
}

/// The tap of the disks that a tap in the disk path serves.
fn served(source: &Source, args: &SourceArgs, demands: &[Demand]) -> Result<Box<dyn Tap>, Failure> {
    let Source::Tapdisk(path) = source else {
        unreachable!("{source} is no tap in the disk path");
    };
    let usual = TapdiskOptions::default();
    let options = TapdiskOptions {
        rhythm: args.rhythm.unwrap_or(usual.rhythm),
        epoch_offset_ns: args.epoch_offset_ns,
        host: args.host.or(usual.host),
        ..usual
    };
    Ok(Box::new(tapdisk::open(path, demands, options)?))
}

/// True if a demand needs to know who owns what: all but I/O without its VM.
fn needs_inventory(demand: &Demand) -> bool {
    let names = ["vm", "vdisk", "vsector"];
    let schema = match demand.stream.as_str() {
        s if s.eq_ignore_ascii_case("IOstream") => iostream_schema(),
        s if s.eq_ignore_ascii_case("IO") || s.eq_ignore_ascii_case(RECORDING) => io_schema(),
        _ => return true,
    };
    let mut columns = demand.columns.iter().map(|c| schema[*c].name.as_str());
    columns.any(|name| names.contains(&name))
}

/// What one of the host's taps has to serve.
struct Share {
    tap: &'static LiveTap,
    demands: Vec<Demand>,
    /// The positions of those demands among all.
    positions: Vec<usize>,
}

impl Share {
    /// The outlets for its demands, which it counts from 0.
    fn outlets(&self, outlets: &[Outlet]) -> Vec<Outlet> {
        let own = |outlet: &Outlet| {
            let demand = self.positions.iter().position(|p| *p == outlet.demand)?;
            Some(Outlet {
                demand,
                ..outlet.clone()
            })
        };
        outlets.iter().filter_map(own).collect()
    }
}

/// The host's taps that serve `demands`, each with its own.
fn shares(demands: &[Demand]) -> Result<Vec<Share>, TapError> {
    let mut shares: Vec<Share> = Vec::new();
    for (position, demand) in demands.iter().enumerate() {
        let tap = LiveTap::of(&demand.stream).ok_or_else(|| TapError::Unavailable {
            what: format!("`{}` is not to be had live", demand.stream),
            remedy: "--from FILE asks a recording".into(),
        })?;
        let known = shares.iter().position(|s| std::ptr::eq(s.tap, tap));
        let at = known.unwrap_or_else(|| {
            shares.push(Share {
                tap,
                demands: Vec::new(),
                positions: Vec::new(),
            });
            shares.len() - 1
        });
        shares[at].demands.push(demand.clone());
        shares[at].positions.push(position);
    }
    Ok(shares)
}

/// Drops all privileges once everything is open and before threads of the run loop, the sinks or a
/// server start, if there was live I/O to open. `files` is what the command does with files from
/// here on.
///
/// # Errors
/// When the kernel refuses.
pub fn drop_privileges(args: &SourceArgs, inputs: &[Input], files: Files) -> Result<(), Failure> {
    let live = inputs.iter().any(|input| input.live);
    match live && !args.keep_privileges {
        true => Ok(ebpf::drop_privileges(files)?),
        false => Ok(()),
    }
}

/// Begins to count the time for which live I/O is wanted.
pub fn begin(args: &SourceArgs, stop: &Stop) {
    if let Some(span_ns) = args.span_ns() {
        stop.live_until(wall_clock().saturating_add(span_ns));
    }
}

fn outlet((demand, source): (usize, &String)) -> Outlet {
    Outlet {
        demand,
        source: source.clone(),
        instant_ns: 1,
        adoption: None,
    }
}

/// One of the host's taps.
fn live(share: Share, args: &SourceArgs) -> Result<Box<dyn Tap>, TapError> {
    let inventory = match share.demands.iter().any(needs_inventory) {
        true => Some(args.inventory()?),
        false => None,
    };
    let usual = LiveOptions::default();
    let options = LiveOptions {
        devices: args.devices(),
        inventory,
        optional_rows: args.optional_rows,
        rhythm: args.rhythm.unwrap_or(usual.rhythm),
        epoch_offset_ns: args.epoch_offset_ns,
        interval_shift_ns: args.interval_shift_ns.clone(),
        host: args.host.or(usual.host),
        ..usual
    };
    (share.tap.open)(&share.demands, &options).map_err(unwatched)
}

/// Why live I/O cannot be watched, and what can be done instead.
pub fn unwatched(error: TapError) -> TapError {
    match error {
        TapError::Unavailable { what, remedy } => TapError::Unavailable {
            what: format!("live I/O cannot be watched: {what}"),
            remedy: format!("{remedy}; --from FILE asks a recording"),
        },
        other => other,
    }
}

/// What the sources do in place of the engine, one line each; of a source that cannot be opened,
/// why.
pub fn describe(args: &SourceArgs, demands: &[Demand]) -> Vec<String> {
    if demands.is_empty() {
        return Vec::new();
    }
    let describe = |source: &Source| match source {
        // To open it would be to switch tracing on.
        Source::Qemu(vm) => vec![format!(
            "vdisk: traces the requests of VM {vm} in QEMU while the query runs"
        )],
        source => self::described(source, args, demands),
    };
    args.sources().iter().flat_map(describe).collect()
}

fn described(source: &Source, args: &SourceArgs, demands: &[Demand]) -> Vec<String> {
    match inputs(source, args, demands, Vec::new()) {
        Ok(inputs) => inputs.iter().flat_map(|i| i.tap.describe()).collect(),
        Err(Failure::Words(text)) => vec![text],
        Err(Failure::World(error)) => vec![format!("{error:#}")],
    }
}
