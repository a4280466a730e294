//! `weir hist`: vscsiStats for every Linux host.

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
use weir_runtime::source::SourceOptions;
use weir_view::hist::background::{self, Verb};
use weir_view::hist::counted::By;
use weir_view::hist::foreground;
use weir_view::hist::gather::Pace;
use weir_view::hist::maps;
use weir_view::hist::pairs::Two;
use weir_view::hist::show::{Form, Picture, Printer};

/// Shorter intervals would measure weir more than the disks.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Where the width of the terminal is not known.
const COLUMNS: usize = 100;

/// Show how a disk's requests fall: sizes, seek distances, latencies and more, as vscsiStats does
///
/// Counted in the kernel, for each VM's disks and for the host's, at a cost that lets it stay on.
/// With -s it goes on in the background, for 30 minutes or as --for says; -p shows what there is by
/// then. Without -l, -s, -x and -r it counts now, until Ctrl-C or as long as --for says, and then
/// shows the histograms.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir hist --for 10s                        count for ten seconds, then show everything\n  \
    weir hist -w web -i vda -p latency 1 5     one disk's latency, each second\n  \
    weir hist -l                               VMs and disks, their numbers, what is collected\n  \
    weir hist -s -w web                        collect in the background\n  \
    weir hist -p all -c -w web                 what it has by now, in vscsiStats' CSV\n  \
    weir hist -r; weir hist -x                 begin anew; stop\n  \
    weir hist --from tapdisk:web.sock --for 10s    what a tapdisk serves, counted there\n  \
    weir hist --from trace.vscsi -p seekDistance\n  \
    weir hist --from before.parquet --against after.parquet -p latency\n  \
    weir hist --heatmap -i sda 1 60            a minute of latencies, a column a second\n  \
    weir hist --from trace.vscsi --2d seekDistance:latency --svg seeks.svg\n  \
    weir hist --for 10s --json > monday.json; weir hist --against monday.json --for 10s\n\n\
    Starting again what is collected already gives it another 30 minutes. What was stopped is still shown by -p. \
    A limit of a bin is the greatest value that falls into it.")]
pub struct HistArgs {
    /// List VMs and their disks, with the numbers that -w and -i take, and what is being collected
    #[arg(short = 'l', long, group = "verb")]
    list: bool,
    /// Start to collect in the background, and return; for 30 minutes, or as --for says, which may
    /// be `forever`
    #[arg(short = 's', long, group = "verb")]
    start: bool,
    /// Stop collecting
    #[arg(short = 'x', long, group = "verb")]
    stop: bool,
    /// Forget what was collected, and go on
    #[arg(short = 'r', long, group = "verb")]
    reset: bool,
    /// This VM only: its name or number
    #[arg(
        short = 'w',
        long = "only-vm",
        alias = "worldgroupid",
        value_name = "VM"
    )]
    only_vm: Option<String>,
    /// This disk only: its name in the VM or on the host (vda, /dev/sda), or its number
    #[arg(
        short = 'i',
        long = "only-disk",
        alias = "handleid",
        value_name = "DISK"
    )]
    only_disk: Option<String>,
    /// Show these histograms; where it is collected, what was collected by now
    #[arg(short = 'p', long = "print", alias = "printhistos", value_name = "WHICH", value_parser = which())]
    print: Option<String>,
    /// Write vscsiStats' CSV
    #[arg(short = 'c', long, conflicts_with = "json")]
    csv: bool,
    /// Write JSON, a line for each disk; --from and --against read it again
    #[arg(short = 'j', long)]
    json: bool,
    /// What has histograms of its own
    #[arg(long, value_name = "WHAT", default_value = "disk", value_parser = subjects())]
    by: By,
    /// Look at each request instead of letting the kernel count: dearer, but a VM's disks on one
    /// device are told apart
    #[arg(long, conflicts_with = "verb")]
    each: bool,
    /// Show another disk, or a recording or a file of histograms, beside it, in shares
    #[arg(long, value_name = "OTHER", conflicts_with_all = ["verb", "csv", "json", "interval"])]
    against: Option<String>,
    /// Show one metric over time, latency unless -p says another: a column an interval, darker
    /// where more requests are
    #[arg(long, conflicts_with_all = ["verb", "against"])]
    heatmap: bool,
    /// Count how two measures fall together, looking at each request
    #[arg(long = "2d", value_name = "X:Y", value_parser = two(), conflicts_with_all = ["verb", "against", "heatmap", "interval", "print"])]
    two: Option<String>,
    /// Write a picture to this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["verb", "csv", "json"])]
    svg: Option<PathBuf>,
    /// Show what came in each interval
    #[arg(value_name = "INTERVAL", value_parser = interval, conflicts_with = "verb")]
    interval: Option<Duration>,
    /// How many intervals
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

fn subjects() -> impl TypedValueParser<Value = By> {
    let value = |(by, doc): (By, &'static str)| PossibleValue::new(by.as_str()).help(doc);
    let parse = |name: String| By::ALL.into_iter().find(|(by, _)| by.as_str() == name);
    PossibleValuesParser::new(By::ALL.map(value))
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
            (Some(path), ..) => Form::Svg(Picture::create(path)?),
            (_, true, _) => Form::Csv,
            (.., true) => Form::Json,
            _ => Form::Bars,
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
    let wanted = foreground::Wanted {
        source: SourceOptions::clone(&args.source),
        vm: args.only_vm.clone(),
        disk: args.only_disk.clone(),
        by: args.by,
        each: args.each,
        collected: args.print.is_some(),
        pace: Pace {
            interval: args.interval,
            count: args.count,
            span: args.source.span,
        },
    };
    match (verb, &args.against) {
        (Some(verb), _) if args.source.from != [weir_runtime::source::LIVE] => Err(Failure::words(
            format_args!("{verb} is about what happens now; leave out --from"),
        )),
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
