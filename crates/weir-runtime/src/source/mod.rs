//! Sources of events: `--from` and related options.
//!
//! | module | is |
//! | --- | --- |
//! | [`opened`] | the sources of a run, each opened once |
//! | [`options`] | the options of every command that reads events |
//! | this one | starts sources for the demands of a plan |
//!
//! The kinds of sources are in [`weir_tap::source`].

mod opened;
mod options;

pub use opened::{OpenSource, OpenSources};
pub use options::{Declarations, SourceOptions, declarations, device, disk};
pub use weir_tap::live::unwatched;

use std::ffi::OsString;

use weir_model::capabilities::RequestRows;
use weir_model::guest::GUEST_IO;
use weir_model::{Demand, Predicate};
use weir_query::place::Placement;
use weir_tap::ebpf::{self, Files};
use weir_tap::source::{LIVE, SourceName, Started};
use weir_tap::{Tap, TapError};

use crate::failure::Failure;
use crate::output;
use crate::run_loop::{Route, Stop, TapInput, wall_clock};

/// The hidden command that runs a QEMU guard: `vdisk::guard` of weir-tap.
pub const QEMU_GUARD: &str = "qemu-guard";

/// The hidden command that runs the inspection process: `inspection` of weir-tap.
pub const INSPECTION: &str = "inspection";

/// The program of the inspection process: this executable, also when its file has been replaced.
pub fn inspector() -> Vec<OsString> {
    ["/proc/self/exe", INSPECTION].map(OsString::from).into()
}

/// Starts the sources for the demands of `placement`; the rows of each go to the engine's source of
/// that name. Without demands, as for a query of stream `weir` alone, files are read for their
/// counts, and nothing else is started.
///
/// # Errors
/// When a file cannot be read or its format is unknown, or the host cannot be observed.
pub fn open(
    args: &SourceOptions,
    placement: &Placement,
    stop: &Stop,
) -> Result<Vec<TapInput>, Failure> {
    args.opened.end_with(stop);
    let inputs = match placement.demands.is_empty() {
        true => counted(args)?,
        false => {
            let routes = placement.sources.iter().enumerate().map(route).collect();
            self::inputs(&args.sources(), args, &placement.demands, routes)?
        }
    };
    begin(args, stop);
    Ok(inputs)
}

/// The sources for their counts, without rows; not the live ones, which have no end.
///
/// # Errors
/// As [`open`].
pub fn counted(args: &SourceOptions) -> Result<Vec<TapInput>, Failure> {
    let mut inputs = Vec::new();
    for name in args.sources().iter().filter(|_| !args.is_live()) {
        let source = args.open(name)?;
        let nothing = source
            .capabilities()?
            .streams
            .iter()
            .take(1)
            .map(|stream| Demand {
                columns: Vec::new(),
                predicate: Predicate::none(),
                ..Demand::whole(&stream.declaration)
            });
        let nothing: Vec<Demand> = nothing.collect();
        let started = source.start(&nothing, args)?;
        let started = started.into_iter();
        inputs.extend(started.map(|started| input(name, started.tap, args, Vec::new())));
    }
    Ok(inputs)
}

/// Starts the sources `names` for `demands`, whose rows go through `routes`. Each source serves the
/// demands on its streams. If one of them is live, the host serves those that none of them has.
///
/// # Errors
/// As [`open`], and when a demand is on a stream that no source has.
pub fn inputs(
    names: &[SourceName],
    args: &SourceOptions,
    demands: &[Demand],
    routes: Vec<Route>,
) -> Result<Vec<TapInput>, Failure> {
    let mut inputs = Vec::new();
    let mut unserved: Vec<usize> = (0..demands.len()).collect();
    for name in names {
        let source = args.open(name)?;
        let capabilities = source.capabilities()?;
        let has = |at: &usize| capabilities.stream(&demands[*at].stream).is_some();
        let own: Vec<usize> = (0..demands.len()).filter(has).collect();
        unserved.retain(|at| !has(at));
        inputs.extend(started(&source, args, demands, &own, &routes)?);
    }
    if unserved.iter().any(|at| demands[*at].stream == GUEST_IO) {
        let error = TapError::Unavailable {
            what: format!("stream {GUEST_IO} is formed by the monitor of a fleet"),
            remedy: "use --monitor ADDRESS, with an agent in the guest and one on its host".into(),
        };
        return Err(error.into());
    }
    if let Some(&at) = unserved.first() {
        if !names.iter().any(|name| name.kind.is_live) {
            let names: Vec<String> = names.iter().map(SourceName::to_string).collect();
            let error = TapError::Unavailable {
                what: format!("{} has no `{}`", names.join(", "), demands[at].stream),
                remedy: "remove it from the query, or use --from live".into(),
            };
            return Err(error.into());
        }
        let host = args.open(&LIVE.named(""))?;
        let of_host = started(&host, args, demands, &unserved, &routes)?;
        inputs.splice(..0, of_host);
    }
    Ok(inputs)
}

/// Starts a source for the demands at these positions.
fn started(
    source: &OpenSource,
    args: &SourceOptions,
    demands: &[Demand],
    positions: &[usize],
    routes: &[Route],
) -> Result<Vec<TapInput>, TapError> {
    if positions.is_empty() {
        return Ok(Vec::new());
    }
    let own: Vec<Demand> = positions.iter().map(|at| demands[*at].clone()).collect();
    let of_tap = |Started { tap, demands }: Started| {
        let own = |route: &Route| {
            let demand = demands
                .iter()
                .position(|at| positions[*at] == route.demand)?;
            Some(Route {
                demand,
                ..route.clone()
            })
        };
        let routes = routes.iter().filter_map(own).collect();
        input(&source.name, tap, args, routes)
    };
    let inputs = source.start(&own, args)?.into_iter().map(of_tap);
    let inputs: Vec<TapInput> = inputs.collect();
    let of_responses = |demand: &Demand| {
        let rows = RequestRows::of(&demand.stream);
        rows.is_some_and(|rows| rows != RequestRows::Events)
    };
    if inputs.iter().any(|input| input.tap.responses_assumed())
        && !args.without_responses
        && own.iter().any(of_responses)
    {
        output::notice(format_args!(
            "weir: {}: the trace has no responses; each request is treated as completed at \
             its issue, without latency",
            source.name
        ));
    }
    Ok(inputs)
}

fn input(
    name: &SourceName,
    tap: Box<dyn Tap>,
    args: &SourceOptions,
    routes: Vec<Route>,
) -> TapInput {
    TapInput {
        tap,
        live: name.kind.is_live,
        span_ns: args.span_ns(),
        routes,
    }
}

/// Drops all privileges after everything is opened and before threads of the run loop, the sinks or
/// a server start, if live I/O was opened. `files` is the command's later use of files.
///
/// # Errors
/// Those of the system calls.
pub fn drop_privileges(
    args: &SourceOptions,
    inputs: &[TapInput],
    files: Files,
) -> Result<(), Failure> {
    let live = inputs.iter().any(|input| input.live);
    match live && !args.keep_privileges {
        true => Ok(ebpf::drop_privileges(files)?),
        false => Ok(()),
    }
}

/// Starts the requested interval of live I/O.
pub fn begin(args: &SourceOptions, stop: &Stop) {
    if let Some(span_ns) = args.span_ns() {
        stop.live_until(wall_clock().saturating_add(span_ns));
    }
}

fn route((demand, source): (usize, &String)) -> Route {
    Route {
        demand,
        source: source.clone(),
        instant_ns: 1,
        mapping: None,
    }
}

/// The work that the sources do in place of the engine, one line each; for a source that cannot be
/// started, the reason.
pub fn describe(args: &SourceOptions, demands: &[Demand]) -> Vec<String> {
    if demands.is_empty() {
        return Vec::new();
    }
    let described = |name: &SourceName| {
        let source = args.open(name)?;
        let capabilities = source.capabilities()?;
        let has = |demand: &&Demand| capabilities.stream(&demand.stream).is_some();
        let own: Vec<Demand> = demands.iter().filter(has).cloned().collect();
        source.describe(&own, args)
    };
    let describe = |name: &SourceName| match described(name) {
        Ok(lines) => lines,
        Err(error) => vec![error.to_string()],
    };
    args.sources().iter().flat_map(describe).collect()
}
