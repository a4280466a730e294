//! Sources of events: `--from` and related options.
//!
//! | module | is |
//! | --- | --- |
//! | [`kind`] | one source, by its name |
//! | [`options`] | the options of every command that reads events |
//! | this one | opens sources for the demands of a plan |

mod kind;
mod options;

pub use kind::{INSPECTION, LIVE, QEMU_GUARD, Source, inspector};
pub use options::{Declarations, SourceOptions, declarations, device};

use weir_model::event::io_schema;
use weir_model::{Declaration, Demand, Predicate, Shape};
use weir_query::place::Placement;
use weir_tap::ebpf::{self, Files, LiveOptions};
use weir_tap::elevation;
use weir_tap::live::LiveTap;
use weir_tap::tapdisk::{self, TapdiskOptions};
use weir_tap::{RECORDING, Tap, TapError, vdisk};

use crate::failure::Failure;
use crate::output;
use crate::run_loop::{Input, Outlet, Stop, wall_clock};

/// All I/O columns of a source, as a stream for queries.
pub fn everything() -> Declaration {
    Declaration {
        doc: "every request and every response".into(),
        ..Declaration::new(RECORDING, Shape::Stream, io_schema())
    }
}

/// Opens the sources for the demands of `placement`; the rows of each go to the engine's source of
/// that name. Without demands, as for a query of stream `weir` alone, files are read for their
/// counts, and nothing else is opened.
///
/// # Errors
/// When a file cannot be read or its format is unknown, or the host cannot be observed.
pub fn open(
    args: &SourceOptions,
    placement: &Placement,
    stop: &Stop,
) -> Result<Vec<Input>, Failure> {
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

/// The sources for their counts, without rows; not the live ones, which have no end.
///
/// # Errors
/// As [`open`].
pub fn counted(args: &SourceOptions) -> Result<Vec<Input>, Failure> {
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
    args: &SourceOptions,
    demands: &[Demand],
    outlets: Vec<Outlet>,
) -> Result<Vec<Input>, Failure> {
    if !args.is_live() {
        // A process that reads a file of unknown origin has only the rights of the user.
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
            // The host's other streams are read from the live source, if there is one.
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
            "weir: {source}: the trace has no responses; each request is treated as completed at \
             its issue, without latency"
        ));
    }
    Ok(vec![input(tap, outlets)])
}

/// The demands that a file can serve, with their routes. Demands that only a host can serve are
/// assigned to the live source.
///
/// # Errors
/// When there is none.
fn of_files(
    demands: &[Demand],
    outlets: Vec<Outlet>,
    source: &Source,
    args: &SourceOptions,
) -> Result<(Vec<Demand>, Vec<Outlet>), TapError> {
    let of_host = |d: &Demand| !is_io(d) && LiveTap::of(&d.stream).is_some();
    if let Some(demand) = demands
        .iter()
        .find(|d| of_host(d))
        .filter(|_| !args.is_live())
    {
        return Err(TapError::Unavailable {
            what: format!("{source}: a recording has no `{}`", demand.stream),
            remedy: "remove it from the query, or use --from live".into(),
        });
    }
    Ok(split(demands, &outlets, |d| !of_host(d)).0)
}

/// True if a demand is for single I/O requests.
pub fn is_io(demand: &Demand) -> bool {
    let streams = ["IO", "IOstream", RECORDING];
    streams
        .iter()
        .any(|s| s.eq_ignore_ascii_case(&demand.stream))
}

/// Demands with their routes, numbered from 0.
type Part = (Vec<Demand>, Vec<Outlet>);

/// The demands that `first` selects, and the others.
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

/// The tap of a VM's requests as its guest makes them. If this process is killed, a guard process
/// switches tracing off again.
fn traced(vm: &str, args: &SourceOptions, demands: &[Demand]) -> Result<Box<dyn Tap>, Failure> {
    let program = std::env::current_exe()?;
    let guard = [program.into_os_string(), QEMU_GUARD.into()];
    let watch = args.inventory()?;
    Ok(Box::new(vdisk::open(vm, demands, &watch, &guard)?))
}

/// The tap of the disks that a tap in the disk path serves.
fn served(
    source: &Source,
    args: &SourceOptions,
    demands: &[Demand],
) -> Result<Box<dyn Tap>, Failure> {
    let Source::Tapdisk(path) = source else {
        unreachable!("{source} is not a tap in the disk path");
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

/// The demands for one of the host's taps.
struct Share {
    tap: &'static LiveTap,
    demands: Vec<Demand>,
    /// The positions of those demands among all.
    positions: Vec<usize>,
}

impl Share {
    /// The routes for its demands, numbered from 0.
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
            what: format!("`{}` is not available live", demand.stream),
            remedy: "use --from FILE to query a recording".into(),
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

/// Drops all privileges after everything is opened and before threads of the run loop, the sinks or
/// a server start, if live I/O was opened. `files` is the command's later use of files.
///
/// # Errors
/// Those of the system calls.
pub fn drop_privileges(
    args: &SourceOptions,
    inputs: &[Input],
    files: Files,
) -> Result<(), Failure> {
    let live = inputs.iter().any(|input| input.live);
    match live && !args.keep_privileges {
        true => Ok(ebpf::drop_privileges(files)?),
        false => Ok(()),
    }
}

/// Starts the interval for which live I/O is wanted.
pub fn begin(args: &SourceOptions, stop: &Stop) {
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
fn live(share: Share, args: &SourceOptions) -> Result<Box<dyn Tap>, TapError> {
    let inventory = match share.demands.iter().any(share.tap.needs_inventory) {
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

/// Why live I/O cannot be observed, and the remedy.
pub fn unwatched(error: TapError) -> TapError {
    match error {
        TapError::Unavailable { what, remedy } => TapError::Unavailable {
            what: format!("live I/O cannot be observed: {what}"),
            remedy: format!("{remedy}; use --from FILE to query a recording"),
        },
        other => other,
    }
}

/// The work that the sources do in place of the engine, one line each; for a source that cannot be
/// opened, the reason.
pub fn describe(args: &SourceOptions, demands: &[Demand]) -> Vec<String> {
    if demands.is_empty() {
        return Vec::new();
    }
    let describe = |source: &Source| match source {
        // Opening it would switch tracing on.
        Source::Qemu(vm) => vec![format!(
            "vdisk: traces the requests of VM {vm} in QEMU while the query runs"
        )],
        source => self::described(source, args, demands),
    };
    args.sources().iter().flat_map(describe).collect()
}

fn described(source: &Source, args: &SourceOptions, demands: &[Demand]) -> Vec<String> {
    match inputs(source, args, demands, Vec::new()) {
        Ok(inputs) => inputs.iter().flat_map(|i| i.tap.describe()).collect(),
        Err(Failure::Words(text)) => vec![text],
        Err(Failure::World(error)) => vec![format!("{error:#}")],
    }
}
