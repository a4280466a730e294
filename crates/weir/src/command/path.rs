//! `weir path`: where the time of requests goes, level by level.

use std::time::Duration;

use clap::Args;

use super::fleet_rows;
use crate::args::{FleetArgs, LimitArgs, SourceArgs};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::names::HostNames;
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::{Stop, conclude};
use weir_runtime::source::disk;
use weir_view::path::run::{self, PathOptions, PrintedTables};
use weir_view::path::{GUEST_LEVELS, HOST_LEVELS, PathSelection};

/// With shorter intervals, weir's own load would dominate.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// The interval of live tables if none is given.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(1);

/// Show where the time of requests goes, level by level
///
/// For each VM and disk and for each level that a request crosses (the wait of the application, the
/// file system, the block layer, the device, the completion): its share of the time, and the mean,
/// median and 99th percentile. With --slowest, the slowest requests are printed one by one. With
/// --monitor, the requests are those of the guests of a fleet, from the guest's I/O scheduler to
/// its virtual disk and back.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir path                                 a table every second\n  \
    weir path --for 10s                       one table of ten seconds\n  \
    weir path -i sda --slowest 3 5            every five seconds, with the three slowest requests\n  \
    weir record --stream IOpath --for 60s -o paths.parquet\n  \
    weir path --from paths.parquet --slowest 10\n  \
    weir path --monitor monitor.example -w web    the levels of a guest with an agent in it\n\n\
    Without an interval, a table is printed every second; with --for, or of a recording, one table \
    of everything. Times are those of stream IOpath, at a monitor those of GuestIO: `weir streams \
    IOpath` describes the levels.")]
pub struct PathArgs {
    /// Show only this VM
    #[arg(short = 'w', long = "only-vm", value_name = "VM")]
    only_vm: Option<String>,
    /// Show only this device of the host, such as sda; with --monitor, this virtual disk
    #[arg(short = 'i', long = "only-disk", value_name = "DISK", value_parser = disk)]
    only_disk: Option<String>,
    /// Also print this number of slowest requests of each interval, with a bar for each level
    #[arg(long, value_name = "COUNT", default_value = "0", value_parser = clap::value_parser!(u16).range(..=1_000))]
    slowest: u16,
    /// Print a JSON object per interval; times are in nanoseconds
    #[arg(short = 'j', long)]
    json: bool,
    /// Print the queries of this command and exit
    #[arg(long)]
    show_query: bool,
    /// Length of an interval in seconds, or with a unit such as 500ms [default: 1s live without
    /// --for, otherwise the whole time]
    #[arg(value_name = "INTERVAL", value_parser = interval)]
    interval: Option<Duration>,
    /// Number of tables [default: unlimited]
    #[arg(value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    fleet: FleetArgs,
}

fn interval(text: &str) -> Result<Duration, String> {
    let span = quantity::span(text)?;
    match span < INTERVAL_MIN {
        true => Err(format!("an interval must be at least {INTERVAL_MIN:?}")),
        false => Ok(span),
    }
}

pub fn run(args: &PathArgs, verbose: bool) -> Result<Ending, Failure> {
    let in_fleet = args.fleet.monitor.is_some();
    let live = args.source.is_live();
    let usual = (live && args.source.span.is_none()).then_some(INTERVAL_DEFAULT);
    let options = PathOptions {
        selection: PathSelection {
            stream: if in_fleet {
                &GUEST_LEVELS
            } else {
                &HOST_LEVELS
            },
            vm: args.only_vm.clone(),
            disk: match in_fleet {
                true => args.only_disk.as_deref().map(path),
                false => device(args)?,
            },
            slowest: args.slowest.into(),
        },
        interval: args.interval.or(usual),
        tables_max: args.count,
        json: args.json,
    };
    if args.show_query {
        let all = options.queries(live && !in_fleet).into_iter();
        let all = all.map(|(what, query)| format!("-- {what}\n{query}\n"));
        output::print(&all.collect::<Vec<_>>().join("\n"))?;
        return Ok(Ending::Done);
    }
    let stop = Stop::on_signals()?;
    if in_fleet {
        return of_guests(args, &options, &stop);
    }
    let report = run::run(&args.source, args.limits.engine(), &options, &stop)?;
    conclude(report, verbose)
}

/// Prints the tables of the guests of a fleet.
fn of_guests(args: &PathArgs, options: &PathOptions, stop: &Stop) -> Result<Ending, Failure> {
    let mut printed = None;
    let open = || {
        let (sink, tables) = run::sink(options, stop)?;
        printed = Some(tables);
        Ok(sink)
    };
    let query = options.selection.rows();
    let ending = fleet_rows::read(&args.fleet, &args.source, query, open, stop)?;
    printed.iter().for_each(PrintedTables::conclude);
    Ok(ending)
}

/// The path of a disk.
fn path(name: &str) -> String {
    match name.starts_with('/') {
        true => name.to_owned(),
        false => format!("/dev/{name}"),
    }
}

/// The path of the selected device. Names that do not exist on this host are rejected.
fn device(args: &PathArgs) -> Result<Option<String>, Failure> {
    let (vm, disk) = (args.only_vm.as_deref(), args.only_disk.as_deref());
    let is_selected = vm.is_some() || disk.is_some();
    let host = match is_selected && !args.show_query {
        true => HostNames::of(&args.source)?,
        false => None,
    };
    let Some(host) = host else {
        return Ok(disk.map(path));
    };
    if let Some(vm) = vm {
        host.vm("-w", vm)?;
    }
    let Some(name) = disk else { return Ok(None) };
    let found = host.disk("-i", vm, name)?;
    match found.is_device {
        true => Ok(Some(found.path)),
        false => Err(Failure::words(format_args!(
            "-i {name}: this is a virtual disk; name the device of the host, or the VM with -w"
        ))),
    }
}
