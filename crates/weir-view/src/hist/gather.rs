//! Sources of counts: a gauge that is polled, a source that is read event by event, a file of
//! histograms.

use std::io::BufReader;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use weir_model::Nanos;

use super::choice::HistogramChoice;
use super::count::{Counting, Each};
use super::counted::{CountedHistograms, HistogramKey};
use super::gauge::Gauge;
use super::saved;
use crate::workload::{EventFeed, WorkloadSelection};
use weir_runtime::failure::Failure;
use weir_runtime::quantity::nanos;
use weir_runtime::run_loop::{ProgressKind, RunReport, Stop};
use weir_runtime::source::SourceOptions;
use weir_tap::source::SourceName;

/// The interval at which a waiting thread checks whether to stop.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The duration and intervals of the readings of a gauge.
#[derive(Clone, Copy, Debug, Default)]
pub struct GaugeSchedule {
    /// The counts of each of these intervals are passed on; without, all counts at the end.
    pub interval: Option<Duration>,
    /// The number of intervals.
    pub count: Option<u64>,
    /// The duration; without, until a signal is received.
    pub span: Option<Duration>,
}

impl GaugeSchedule {
    /// The interval in nanoseconds, for the events of a recording.
    pub fn interval_ns(&self) -> Option<Nanos> {
        self.interval.map(nanos)
    }

    /// `each`, limited to the number of intervals.
    pub fn counted(&self, mut each: Each) -> Each {
        let mut left = self.count.unwrap_or(u64::MAX);
        Box::new(move |counted| {
            left -= 1;
            Ok(each(counted)? && left > 0)
        })
    }
}

/// Reads a gauge until the duration has passed, `each` returns false or a signal is received. The
/// counts of the last, incomplete interval are passed on too.
///
/// # Errors
/// When the gauge cannot be read, or `each` fails.
pub fn watch(
    gauge: &mut dyn Gauge,
    pace: &GaugeSchedule,
    stop: &Stop,
    mut each: Each,
) -> Result<(), Failure> {
    let started_at = Instant::now();
    let end = pace.span.and_then(|span| started_at.checked_add(span));
    let mut earlier: Option<CountedHistograms> = match pace.interval {
        Some(_) => Some(gauge.snapshot()?),
        None => None,
    };
    for number in 1u32.. {
        let due = pace.interval.and_then(|i| i.checked_mul(number));
        let due = due.and_then(|due| started_at.checked_add(due));
        let over = wait(due, end, stop);
        let now = gauge.snapshot()?;
        let came = earlier.as_ref().map(|before| now.since(before));
        if !each(came.unwrap_or_else(|| now.clone()))? || over {
            break;
        }
        earlier = Some(now);
    }
    Ok(())
}

/// Waits until `due`: true if this was the end of the duration.
fn wait(due: Option<Instant>, end: Option<Instant>, stop: &Stop) -> bool {
    loop {
        let now = Instant::now();
        let over = stop.signal().is_some() || end.is_some_and(|end| end <= now);
        if over || due.is_some_and(|due| due <= now) {
            return over;
        }
        let next = due.into_iter().chain(end).min();
        let left = next.map_or(LOOK_EVERY, |next| next - now);
        sleep(left.min(LOOK_EVERY));
    }
}

/// Counts the events of a source.
///
/// # Errors
/// When it cannot be opened or read, or `each` fails.
pub fn of_events(
    source: &SourceOptions,
    choice: &HistogramChoice,
    by: HistogramKey,
    pace: &GaugeSchedule,
    stop: &Stop,
    each: Each,
) -> Result<RunReport, Failure> {
    if matches!(by, HistogramKey::Process | HistogramKey::Cgroup) {
        return Err(Failure::words(format_args!(
            "--by {by} requires the live source, without --each; other sources are counted by \
             disk or device"
        )));
    }
    // The resolution of disk names is more precise here than in CQL.
    let selection = WorkloadSelection {
        vm: choice.vm.clone(),
        disk: None,
        with_process: false,
    };
    let feed = EventFeed::open(source, &selection, stop)?;
    let counting = Counting::new(choice.clone(), by, pace.interval_ns(), pace.counted(each));
    let counting = Arc::new(Mutex::new(counting));
    let report = feed.run(&counting, ProgressKind::Files, stop)?;
    counting.lock().expect("no panic while held").finish()?;
    Ok(report)
}

/// The histograms in a file; `None` if it is a file of another kind.
///
/// # Errors
/// When it cannot be read, or is damaged.
pub fn of_file(path: &Path, args: &SourceOptions) -> Result<Option<CountedHistograms>, Failure> {
    let failed = |why: String| Failure::world(format_args!("{}: {why}", path.display()));
    let source = args.open(&SourceName::new(&path.to_string_lossy()))?;
    let Some(file) = source.file() else {
        return Ok(None);
    };
    if !saved::is_saved(&file.head()?) {
        return Ok(None);
    }
    let mut from = BufReader::new(file.input()?);
    let lines = std::iter::from_fn(|| {
        let line = saved::read_line(&mut from, saved::LINE_BYTES_MAX);
        line.map_err(|e| e.to_string()).transpose()
    });
    saved::counted(lines).map(Some).map_err(failed)
}
