//! `weir hist`: histograms of a disk's requests, as those of vscsiStats.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use weir_sink::plot::Ink;
use weir_sink::vscsistats;
use weir_workload::Metric;

use crate::args::SourceArgs;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::quantity;
use weir_runtime::source::{self, SourceOptions};
use weir_view::hist::background::{self, Verb};
use weir_view::hist::counted::HistogramKey;
use weir_view::hist::foreground;
use weir_view::hist::gather::GaugeSchedule;
use weir_view::hist::maps;
use weir_view::hist::pairs::Two;
use weir_view::hist::show::{HistogramFormat, PictureFile, Printer};

/// With shorter intervals, weir's own load would dominate.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// The number of columns if the width of the terminal is unknown.
const COLUMNS: usize = 100;

/// Print histograms of each disk's requests, as vscsiStats does
///
/// Counts requests by size, seek distance, interarrival time, queue depth and latency, for the
/// disks of VMs and of the host. The requests are counted in the kernel, at a cost that permits
/// continuous use. Without -l, -s, -x and -r, requests are counted until Ctrl-C or for the time of
/// --for, and then the histograms are printed. With -s, they are counted in the background; -p
/// prints the current histograms.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir hist --for 10s                           count for ten seconds, then print\n  \
    weir hist -w web -i vda -p latency 1 5        the latency of one disk, every second\n  \
    weir hist -l                                  VMs, disks and running collections\n  \
    weir hist -s -w web                           collect in the background\n  \
    weir hist -p all -c -w web                    the current histograms, as vscsiStats CSV\n  \
    weir hist -r; weir hist -x                    reset the collection; stop it\n  \
    weir hist --from tapdisk:web.sock --for 10s   the disks of a tapdisk, counted there\n  \
    weir hist --from trace.vscsi -p seekDistance\n  \
    weir hist --from before.parquet --against after.parquet -p latency\n  \
    weir hist --heatmap -i sda 1 60               latency per second for a minute\n  \
    weir hist --from trace.vscsi --2d seekDistance:latency --svg seeks.svg\n  \
    weir hist --for 10s --json > monday.json; weir hist --against monday.json --for 10s\n\n\
    -s for a disk that is already collected extends its collection. Histograms of a stopped \
    collection are still printed by -p. The limit of a bin is the largest value that it counts.")]
pub struct HistArgs {
    /// List VMs and their disks, with their numbers for -w and -i, and the running collections
    #[arg(short = 'l', long, group = "verb")]
    list: bool,
    /// Start a collection in the background, for 30 minutes or the time of --for, which may be
    /// `forever`
    #[arg(short = 's', long, group = "verb")]
    start: bool,
    /// Stop the collection in the background
    #[arg(short = 'x', long, group = "verb")]
    stop: bool,
    /// Reset the histograms of the collection to zero
    #[arg(short = 'r', long, group = "verb")]
    reset: bool,
    /// Select this VM, by name or number
    #[arg(
        short = 'w',
        long = "only-vm",
        alias = "worldgroupid",
        value_name = "VM"
    )]
    only_vm: Option<String>,
    /// Select this disk, by its name in the VM or on the host (vda, /dev/sda), or by its number
    #[arg(
        short = 'i',
        long = "only-disk",
        alias = "handleid",
        value_name = "DISK",
        value_parser = source::disk
    )]
    only_disk: Option<String>,
    /// Print these histograms, of the collection if one is running, otherwise counted now
    #[arg(short = 'p', long = "print", alias = "printhistos", value_name = "WHICH", value_parser = which())]
    print: Option<String>,
    /// Print CSV in the format of vscsiStats
    #[arg(short = 'c', long, conflicts_with = "json")]
    csv: bool,
    /// Print JSON, one line per disk; it can be read with --from and --against
    #[arg(short = 'j', long)]
    json: bool,
    /// Property to group by; each of its values has its own histograms
    #[arg(long, value_name = "GROUP", default_value = "disk", value_parser = subjects())]
    by: HistogramKey,
    /// Transfer each request instead of counting in the kernel. This is more expensive, but
    /// distinguishes disks of a VM that are on one device
    #[arg(long, conflicts_with = "verb")]
    each: bool,
    /// Compare with another disk, a recording or a file of histograms; prints shares instead of counts
    #[arg(long, value_name = "OTHER", conflicts_with_all = ["verb", "csv", "json", "interval"])]
    against: Option<String>,
    /// Print one metric over time as a heat map, with a column per interval; the metric is that of -p
    /// [default: latency]
    #[arg(long, conflicts_with_all = ["verb", "against"])]
    heatmap: bool,
    /// Print a two-dimensional histogram of two metrics; each request is transferred to user space
    #[arg(long = "2d", value_name = "X:Y", value_parser = two(), conflicts_with_all = ["verb", "against", "heatmap", "interval", "print"])]
    two: Option<String>,
    /// Write the histograms to this file as SVG
    #[arg(long, value_name = "FILE", conflicts_with_all = ["verb", "csv", "json"])]
    svg: Option<PathBuf>,
    /// Print the requests of each interval: its length in seconds, or with a unit such as 500ms
    #[arg(value_name = "INTERVAL", value_parser = interval, conflicts_with = "verb")]
    interval: Option<Duration>,
    /// Number of intervals [default: unlimited]
    #[arg(value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    source: SourceArgs,
}

fn which() -> PossibleValuesParser {
    let of = |metric: Metric| PossibleValue::new(metric.name());
    let all = PossibleValue::new("all");
    PossibleValuesParser::new([all].into_iter().chain(Metric::ALL.map(of)))
}

fn subjects() -> impl TypedValueParser<Value = HistogramKey> {
    let value = |(by, doc): (HistogramKey, &'static str)| PossibleValue::new(by.as_str()).help(doc);
    let parse = |name: String| {
        HistogramKey::ALL
            .into_iter()
            .find(|(by, _)| by.as_str() == name)
    };
    PossibleValuesParser::new(HistogramKey::ALL.map(value))
        .try_map(move |name| parse(name).map(|(by, _)| by).ok_or("no such value"))
}

fn two() -> PossibleValuesParser {
    PossibleValuesParser::new(Two::ALL.map(|two| PossibleValue::new(two.name())))
}

fn interval(text: &str) -> Result<Duration, String> {
    let span = quantity::span(text)?;
    match span < INTERVAL_MIN {
        true => Err(format!("an interval must be at least {INTERVAL_MIN:?}")),
        false => Ok(span),
    }
}

impl HistArgs {
    fn metrics(&self) -> Vec<Metric> {
        let one = |name: &str| Metric::ALL.into_iter().find(|metric| metric.name() == name);
        match self.print.as_deref().and_then(one) {
            Some(metric) => vec![metric],
            // Scripts that read vscsiStats' CSV expect its histograms and no others.
            None if self.csv => vscsistats::ALL.to_vec(),
            None => Metric::ALL.to_vec(),
        }
    }

    fn two(&self) -> Option<Two> {
        let named = |name: &String| Two::ALL.into_iter().find(|two| two.name() == name);
        self.two.as_ref().and_then(named)
    }

    fn printer(&self) -> Result<Printer, Failure> {
        let form = match (&self.svg, self.csv, self.json) {
            (Some(path), ..) => HistogramFormat::Svg(PictureFile::create(path)?),
            (_, true, _) => HistogramFormat::Csv,
            (.., true) => HistogramFormat::Json,
            _ => HistogramFormat::Bars,
        };
        let terminal = std::io::stdout().is_terminal();
        let columns = terminal_size::terminal_size().map(|(w, _)| usize::from(w.0));
        let columns = columns.filter(|_| terminal);
        let ink = Ink::of(|name| std::env::var(name).ok());
        Ok(Printer {
            metrics: self.metrics(),
            form,
            ink: if terminal { ink } else { Ink::PLAIN },
            columns: columns.unwrap_or(COLUMNS),
            times: self.interval.is_some(),
            listed: Vec::new(),
            idle: Vec::new(),
        })
    }
}

pub fn run(args: &HistArgs, verbose: bool) -> Result<Ending, Failure> {
    let verb = match (args.list, args.start, args.stop, args.reset) {
        (true, ..) => Some(Verb::List),
        (_, true, ..) => Some(Verb::Start),
        (.., true, _) => Some(Verb::Stop),
        (.., true) => Some(Verb::Reset),
        _ => None,
    };
    let wanted = foreground::CountRequest {
        source: SourceOptions::clone(&args.source),
        vm: args.only_vm.clone(),
        disk: args.only_disk.clone(),
        by: args.by,
        each: args.each,
        collected: args.print.is_some(),
        pace: GaugeSchedule {
            interval: args.interval,
            count: args.count,
            span: args.source.span,
        },
    };
    match (verb, &args.against) {
        (Some(verb), _) if args.source.from != [weir_tap::source::LIVE.name] => Err(
            Failure::words(format_args!("{verb} requires the live source; omit --from")),
        ),
        (Some(verb), _) => background::run(verb, &wanted, args.json),
        (None, Some(other)) => foreground::against(&wanted, other, &args.printer()?, verbose),
        (None, None) if args.heatmap => {
            let metric = match args.print.as_deref() {
                None | Some("all") => Metric::Latency,
                Some(_) => args.metrics()[0],
            };
            maps::over_time(&wanted, metric, args.printer()?, verbose)
        }
        (None, None) => match args.two() {
            Some(two) => maps::pairs(&wanted, two, &args.printer()?, verbose),
            None => foreground::run(&wanted, args.printer()?, verbose),
        },
    }
}
