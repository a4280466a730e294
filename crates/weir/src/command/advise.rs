//! `weir advise`: which disks should share a device, and which should not.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use weir_sink::report::{colocation, colocation_html};
use weir_view::advise::question::QUERY;
use weir_view::advise::run::{self, AdviseOptions, CalibrationFile};
use weir_workload::colocation::{ColocationOptions, HostedDevice, LatencyObjective};

use crate::args::SourceArgs;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::run_loop::{Stop, conclude};

/// Advise which disks should share a device
///
/// The requests of all disks are replayed together through a model of each device, which is
/// measured from the same requests. Moves and exchanges of disks that reduce the latency are
/// searched in the first half of the recording, and predicted for the second one with an interval
/// that contains the measured error of the model. A change whose gain is within it is not
/// recommended. Nothing is moved.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir advise --from recording.parquet\n  \
    weir advise --from host1.parquet --from host2.parquet --objective p99\n  \
    weir advise --from host1.parquet --calibration /dev/sdc=sweep-of-sdc.parquet\n  \
    weir advise --for 10m --html advice.html\n\n\
    A recording is made by `weir record`; several are those of several hosts, at the same time.")]
pub struct AdviseArgs {
    /// What to improve: the mean latency of all requests, or their 99th percentile
    #[arg(long, value_name = "OBJECTIVE", default_value = "mean", value_parser = objectives())]
    objective: LatencyObjective,
    /// Maximum number of moves and exchanges
    #[arg(long, value_name = "COUNT", default_value = "3", value_parser = clap::value_parser!(u8).range(1..=16))]
    changes: u8,
    /// Measure a device, such as /dev/sdc or host2:/dev/sdc, by this recording of it; may be
    /// repeated. A device without disks becomes a possible target [default: each device by the
    /// requests that it served]
    #[arg(long, value_name = "DEVICE=FILE", value_parser = calibration)]
    calibration: Vec<CalibrationFile>,
    /// Shift the recordings of several hosts so that all begin at the same time
    #[arg(long)]
    align: bool,
    /// Print the report as one JSON object
    #[arg(short = 'j', long)]
    json: bool,
    /// Also write the report to this file as an HTML page with plots; the page loads no other files
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the query of this command and exit
    #[arg(long)]
    show_query: bool,
    #[command(flatten)]
    source: SourceArgs,
}

fn objectives() -> impl TypedValueParser<Value = LatencyObjective> {
    let names = LatencyObjective::ALL.map(LatencyObjective::as_str);
    PossibleValuesParser::new(names).map(|name| {
        let mut all = LatencyObjective::ALL.into_iter();
        all.find(|objective| objective.as_str() == name)
            .expect("the name of an objective")
    })
}

fn calibration(text: &str) -> Result<CalibrationFile, String> {
    let expected = || "expected DEVICE=FILE, such as /dev/sdc=sweep.parquet".to_owned();
    let (device, file) = text.split_once('=').ok_or_else(expected)?;
    // The path of a device begins with a slash, so a colon before it ends the name of a host.
    let (host, device) = match device.find(":/") {
        Some(at) => (Some(device[..at].to_owned()), &device[at + 1..]),
        None => (None, device),
    };
    if !device.starts_with('/') || file.is_empty() || host.as_deref() == Some("") {
        return Err(expected());
    }
    Ok(CalibrationFile {
        device: HostedDevice {
            host,
            device: device.to_owned(),
        },
        file: file.to_owned(),
    })
}

pub fn run(args: &AdviseArgs, verbose: bool) -> Result<Ending, Failure> {
    if args.show_query {
        output::print(&format!("{QUERY}\n"))?;
        return Ok(Ending::Done);
    }
    check(args)?;
    let options = AdviseOptions {
        colocation: ColocationOptions {
            objective: args.objective,
            changes_max: args.changes.into(),
        },
        calibrations: args.calibration.clone(),
        align: args.align,
    };
    let stop = Stop::on_signals()?;
    if args.source.is_live() && args.source.span.is_none() && std::io::stderr().is_terminal() {
        output::notice("weir: observing; press Ctrl-C for the report");
    }
    // An error of a source does not erase an old page: the page is written at the end, but that it
    // can be written is known before the measurement.
    if let Some(path) = &args.html {
        output::never_over(path, args.source.files())?;
        output::writable(path)?;
    }
    let (report, ran) = run::run(&args.source, &options, &stop)?;
    if let Some(path) = &args.html {
        let mut page = output::file(path)?;
        page.put(&colocation_html::html(&report))?;
        page.flush()?;
    }
    match args.json {
        true => {
            let json = serde_json::to_string(&report).map_err(Failure::world)?;
            output::print(&format!("{json}\n"))?;
        }
        false => output::print(&colocation::text(&report))?,
    }
    conclude(ran, verbose)
}

/// Rejects combinations of sources that have no meaning.
fn check(args: &AdviseArgs) -> Result<(), Failure> {
    let several = args.source.from.len() > 1;
    if several && args.source.files().count() < args.source.from.len() {
        return Err(Failure::words(
            "--from: several sources are the recordings of several hosts; record this host with \
             `weir record` to compare it with others",
        ));
    }
    if args.align && !several {
        return Err(Failure::words(
            "--align: expected the recordings of several hosts, each with --from",
        ));
    }
    Ok(())
}
