//! Where counts come from: a gauge looked at in time, a source read event by event, a file of histograms.

use std::io::BufReader;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use weir_model::Nanos;

use super::choice::Choice;
use super::collector::protocol::read_line;
use super::count::{Counting, Each};
use super::counted::{By, Counted};
use super::gauge::Gauge;
use super::saved;
use crate::workload::{Feed, Selection};
use weir_runtime::failure::Failure;
use weir_runtime::quantity::nanos;
use weir_runtime::run_loop::{Report, Stop, Telling};
use weir_runtime::source::SourceOptions;
use weir_runtime::traces::Traces;

/// How often we look whether somebody wants us to end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How far a gauge is looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// What came in each of these is handed on; without, everything at the end.
    pub interval: Option<Duration>,
    /// How many intervals.
    pub count: Option<u64>,
    /// How long; without, until a signal comes.
    pub span: Option<Duration>,
}

impl Pace {
    /// As the events of a recording have it.
    pub fn interval_ns(&self) -> Option<Nanos> {
        self.interval.map(nanos)
    }

    /// `each`, as often as is wanted.
    pub fn counted(&self, mut each: Each) -> Each {
        let mut left = self.count.unwrap_or(u64::MAX);
        Box::new(move |counted| {
            left -= 1;
            Ok(each(counted)? && left > 0)
        })
    }
}

/// Looks at a gauge until the time is over, `each` has enough or a signal comes. What came in the
/// part of an interval before that is handed on too.
///
/// # Errors
/// When the gauge cannot be read, or `each` fails.
pub fn watch(
    gauge: &mut dyn Gauge,
    pace: &Pace,
    stop: &Stop,
    mut each: Each,
) -> Result<(), Failure> {
    let begun = Instant::now();
    let end = pace.span.and_then(|span| begun.checked_add(span));
    let mut earlier: Option<Counted> = match pace.interval {
        Some(_) => Some(gauge.snapshot()?),
        None => None,
    };
    for number in 1u32.. {
        let due = pace.interval.and_then(|i| i.checked_mul(number));
        let due = due.and_then(|due| begun.checked_add(due));
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

/// Waits until `due`: true if it was the end of everything that came.
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
    choice: &Choice,
    by: By,
    pace: &Pace,
    stop: &Stop,
    each: Each,
) -> Result<Report, Failure> {
    if matches!(by, By::Process | By::Cgroup) {
        return Err(Failure::words(format_args!(
            "--by {by} counts live, in the kernel; events that are read one by one are counted by disk or device"
        )));
    }
    // Which name a disk goes by is known here better than in CQL.
    let selection = Selection {
        vm: choice.vm.clone(),
        disk: None,
    };
    let feed = Feed::open(source, &selection, stop)?;
    let counting = Counting::new(choice.clone(), by, pace.interval_ns(), pace.counted(each));
    let counting = Arc::new(Mutex::new(counting));
    let report = feed.run(&counting, Telling::Files, stop)?;
    counting
        .lock()
        .expect("nobody panics while counting")
        .finish()?;
    Ok(report)
}

/// The histograms that a file holds; `None` if it is a file of another kind.
///
/// # Errors
/// When it cannot be read, or is damaged.
pub fn of_file(path: &Path, traces: &Traces) -> Result<Option<Counted>, Failure> {
    let failed = |why: String| Failure::world(format_args!("{}: {why}", path.display()));
    if !saved::is_saved(&traces.head(path)?) {
        return Ok(None);
    }
    let mut from = BufReader::new(traces.input(path)?);
    let lines = std::iter::from_fn(|| {
        let line = read_line(&mut from, saved::LINE_BYTES_MAX);
        line.map_err(|e| e.to_string()).transpose()
    });
    saved::counted(lines).map(Some).map_err(failed)
}
