//! Histograms of two dimensions: one metric over time, and two measures of each request.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_workload::Metric;

use super::counted::CountedHistograms;
use super::foreground::{self, CountRequest};
use super::gather::GaugeSchedule;
use super::over_time::{COLUMNS_MAX, OverTime};
use super::pairs::{Pairs, Two};
use super::show::{CellAxis, Cells, HistogramFormat, Printer, report_unreliable};
use crate::workload::{EventFeed, WorkloadSelection};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::conclude;
use weir_runtime::run_loop::{ProgressKind, Stop};

/// The default width of a column for live I/O.
const INTERVAL: Duration = Duration::from_secs(1);

/// Columns of a recording have this width at first; it is doubled when there are too many.
const INTERVAL_MIN: Duration = Duration::from_millis(10);
const COLUMNS: usize = 240;

/// Prints one metric over time: at the end, and on a terminal after each live interval.
///
/// # Errors
/// When it cannot be counted or printed.
pub fn over_time(
    wanted: &CountRequest,
    metric: Metric,
    printer: Printer,
    verbose: bool,
) -> Result<Ending, Failure> {
    let live = wanted.source.is_live();
    let (interval, columns_max) = match (wanted.pace.interval, live) {
        (Some(interval), _) => (interval, COLUMNS_MAX),
        (None, true) => (INTERVAL, COLUMNS_MAX),
        (None, false) => (INTERVAL_MIN, COLUMNS),
    };
    let interval_ns = quantity::nanos(interval);
    let map = Arc::new(Mutex::new(OverTime::new(metric, interval_ns, columns_max)));
    let redrawn =
        live && matches!(printer.form, HistogramFormat::Bars) && std::io::stdout().is_terminal();
    let (taking, drawing) = (map.clone(), printer.clone());
    let mut unreliable = Vec::new();
    let take = Box::new(move |counted: CountedHistograms| {
        let mut map = taking.lock().expect("no panic while held");
        map.take(&counted);
        if metric == Metric::Outstanding && unreliable.is_empty() {
            unreliable.clone_from(&counted.unreliable);
            report_unreliable(&unreliable);
        }
        if redrawn {
            // Moves the cursor to the upper left corner, and clears the screen.
            output::print("\x1b[H\x1b[2J")?;
            drawing.print_cells(&cells(&map))?;
        }
        Ok(true)
    });
    let wanted = CountRequest {
        pace: GaugeSchedule {
            interval: Some(interval),
            ..wanted.pace
        },
        ..wanted.clone()
    };
    let ending = foreground::in_intervals(&wanted, take, verbose)?;
    let map = map.lock().expect("no panic while held");
    if !redrawn {
        printer.print_cells(&cells(&map))?;
    }
    beyond(map.beyond());
    Ok(ending)
}

fn cells(map: &OverTime) -> Cells {
    Cells {
        dimensions: [CellAxis::Time, CellAxis::Of(map.metric())],
        started_at: map.started_at(),
        grids: map.grids(),
    }
}

/// Prints the joint histogram of two measures.
///
/// # Errors
/// When the requests cannot be read, or nothing can be printed.
pub fn pairs(
    wanted: &CountRequest,
    two: Two,
    printer: &Printer,
    verbose: bool,
) -> Result<Ending, Failure> {
    let stop = Stop::on_signals()?;
    let (listed, choice) = wanted.meant()?;
    let source = wanted.source_for(&choice, &listed);
    let selection = WorkloadSelection {
        vm: choice.vm.clone(),
        disk: None,
        with_process: false,
    };
    let feed = EventFeed::open(&source, &selection, &stop)?;
    let pairs = Arc::new(Mutex::new(Pairs::new(two, choice, wanted.by)));
    let report = feed.run(&pairs, ProgressKind::Files, &stop)?;
    let pairs = pairs.lock().expect("no panic while held");
    printer.print_cells(&Cells {
        dimensions: match two {
            Two::AgainstLatency(pair) => {
                [CellAxis::Of(pair.metric()), CellAxis::Of(Metric::Latency)]
            }
            Two::TimeAddress => [CellAxis::Time, CellAxis::Address],
        },
        started_at: pairs.started_at(),
        grids: pairs.grids(),
    })?;
    report_unreliable(&pairs.unreliable());
    beyond(pairs.beyond());
    conclude(report, verbose)
}

fn beyond(events: u64) {
    if events > 0 {
        output::notice(format_args!(
            "weir: {events} events of further disks are omitted; select disks with -w and -i"
        ));
    }
}
