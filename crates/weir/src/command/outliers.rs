//! `weir outliers`: the slowest requests, each with what was at its device.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Args;
use weir_model::Symbol;
use weir_sink::report;
use weir_view::path::feed::{self, PathConsumer};
use weir_workload::outliers::{LevelTimes, OUTLIERS_MAX, OutlierFinder};
use weir_workload::{RequestEvent, Subject};

use crate::args::SourceArgs;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::names;
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::conclude;
use weir_runtime::run_loop::{ProgressKind, Stop};
use weir_runtime::source;
use weir_view::workload::{EventConsumer, EventFeed, WorkloadSelection};

/// The number of requests that are listed without --over.
const SLOWEST: usize = 10;

/// Show the slowest requests, and what was at the device with them
///
/// For each slow request: its time in the queue of the host and at the device, and the requests
/// that were at the device meanwhile, by VM, process and operation, with size and order, and as a
/// timeline (`-` in the queue, `=` at the device). -w and -i select the slow requests; those around
/// them are of all VMs and disks of the device. The report is printed at Ctrl-C, after the time of
/// --for, or at the end of the recording.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir outliers --for 30s\n  \
    weir outliers --over 20ms -w web1 --for 5m\n  \
    weir outliers --levels --for 30s\n  \
    weir outliers --from recording.parquet --slowest 3\n  \
    weir outliers --from recording.parquet -i /dev/sda --json\n  \
    weir outliers --from recording.parquet --svg slow.svg")]
pub struct OutliersArgs {
    /// Show slow requests of this VM only
    #[arg(short = 'w', long = "only-vm", value_name = "VM")]
    only_vm: Option<String>,
    /// Show slow requests of this disk only, by its name in the VM (/dev/vda) or on the host
    /// (/dev/sda)
    #[arg(short = 'i', long = "only-disk", value_name = "DISK", value_parser = source::disk)]
    only_disk: Option<String>,
    /// Number of requests to show, at most 1000 [default: 10, with --over 1000]
    #[arg(long, value_name = "COUNT", value_parser = slowest)]
    slowest: Option<usize>,
    /// Show only requests that took longer than this [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = quantity::span)]
    over: Option<Duration>,
    /// Report the time at each level from the application to the device: reads stream IOpath (live;
    /// of a recording of IOpath they are always reported)
    #[arg(long)]
    levels: bool,
    /// Print the report as one JSON object
    #[arg(short = 'j', long)]
    json: bool,
    /// Also write the timelines to this file as an SVG picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
}

fn slowest(text: &str) -> Result<usize, String> {
    let number = text.parse().ok();
    let number = number.filter(|number| (1..=OUTLIERS_MAX).contains(number));
    number.ok_or_else(|| format!("expected a number from 1 to {OUTLIERS_MAX}"))
}

pub fn run(args: &OutliersArgs, verbose: bool) -> Result<Ending, Failure> {
    let (mut source, mut disk) = (args.source.clone(), args.only_disk.clone());
    names::find(&mut source, args.only_vm.as_deref(), &mut disk)?;
    let selection = WorkloadSelection {
        vm: args.only_vm.clone(),
        disk,
        with_process: false,
    };
    let stop = Stop::on_signals()?;
    let everything = WorkloadSelection {
        with_process: true,
        ..WorkloadSelection::default()
    };
    let with_levels = args.levels || feed::is_recorded(&source)?;
    let feed = match with_levels {
        true => None,
        false => Some(EventFeed::open(&source, &everything, &stop)?),
    };
    let picture = match &args.svg {
        Some(path) => {
            output::never_over(path, args.source.files())?;
            Some(output::file(path)?)
        }
        None => None,
    };
    if args.source.is_live() && args.source.span.is_none() && std::io::stderr().is_terminal() {
        output::notice("weir: observing; press Ctrl-C for the report");
    }
    let limit = args.over.map_or(SLOWEST, |_| OUTLIERS_MAX);
    let over_ns = args.over.map_or(0, quantity::nanos);
    let finder = OutlierFinder::new(args.slowest.unwrap_or(limit), over_ns);
    let search = Arc::new(Mutex::new(OutlierSearch { finder, selection }));
    let ran = match feed {
        Some(feed) => feed.run(&search, ProgressKind::Files, &stop),
        None => feed::run(&source, &search, &stop),
    };
    let report = search.lock().expect("no panic while held").finder.report();
    let ran = match ran {
        // The requests before a failure of a source are reported nevertheless.
        Err(error) if report.finished == 0 => return Err(error),
        ran => ran,
    };
    if let Some(mut picture) = picture {
        picture.put(&report::outliers::picture(&report))?;
        picture.flush()?;
    }
    match args.json {
        true => {
            let json = serde_json::to_string(&report).map_err(std::io::Error::from)?;
            output::print(&format!("{json}\n"))?;
        }
        false => output::print(&report::outliers::text(&report))?,
    }
    conclude(ran?, verbose)
}

/// Searches the events for slow requests of the selection.
struct OutlierSearch {
    finder: OutlierFinder,
    selection: WorkloadSelection,
}

impl EventConsumer for OutlierSearch {
    fn take(&mut self, subject: Subject, event: RequestEvent) -> bool {
        self.take_of(subject, None, event)
    }

    fn take_of(&mut self, subject: Subject, process: Option<Symbol>, event: RequestEvent) -> bool {
        let is_selected = self.selection.has(&subject);
        self.finder.take(subject, process, &event, is_selected);
        true
    }
}

impl PathConsumer for OutlierSearch {
    fn take(
        &mut self,
        subject: Subject,
        process: Option<Symbol>,
        event: &RequestEvent,
        levels: Option<LevelTimes>,
    ) {
        let is_selected = self.selection.has(&subject);
        self.finder
            .take_levels(subject, process, event, levels, is_selected);
    }
}
