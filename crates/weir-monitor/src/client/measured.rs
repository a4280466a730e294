//! The measured costs of plans that ran on this host: rows from each source, rows of the results,
//! their bytes in the protocol, processor time. For `weir explain --analyze`.

use std::fmt::{self, Display, Formatter};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_model::{Batch, NANOS_PER_SECOND};
use weir_query::engine::{Engine, EngineOptions, SourceCounts};
use weir_query::place::Placement;
use weir_query::{EngineCounts, Plan};
use weir_sink::{Sink, SinkError};
use weir_tap::ebpf::Files;
use weir_wire::ChannelId;
use weir_wire::frame::texts::TextTable;
use weir_wire::frame::{self, Compression};

use weir_runtime::failure::{Ending, Failure};
use weir_runtime::plans;
use weir_runtime::run_loop::{
    self, LoopOptions, ProgressKind, Show, Stop, TapInput, requests_finished,
};
use weir_runtime::source::{self, SourceOptions};

/// The measured costs of plans that ran together.
#[derive(Clone, Debug)]
pub struct Measured {
    elapsed: Duration,
    /// Processor time of the whole process, which does nothing else; without programs in the
    /// kernel.
    pub cpu_ns: i64,
    counts: EngineCounts,
    /// The interval that the rows of the sources cover, in seconds.
    pub seconds: f64,
    /// Requests that the sources completed, whatever plan reads them.
    pub requests: u64,
    /// The bytes of each plan's results in the protocol.
    pub bytes: Vec<u64>,
}

/// The use of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// They are discarded.
    Dropped,
    /// They are encoded for sending, as by an agent.
    Packed,
}

/// The end of a plan's results.
struct End {
    answers: Answers,
    /// The texts that were sent, of all plans.
    texts: Arc<Mutex<TextTable>>,
    bytes: Arc<AtomicU64>,
}

impl Sink for End {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        if self.answers == Answers::Dropped {
            return Ok(());
        }
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        for from in (0..batch.len()).step_by(frame::ROWS_MAX) {
            let rows = batch.slice(from, frame::ROWS_MAX.min(batch.len() - from));
            // Rows that cannot be sent need no bytes.
            let packed = frame::encode(ChannelId(1), &rows, &mut texts, Compression::None);
            let bytes = packed.map_or(0, |frame| frame.bytes());
            self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Runs plans with this `placement` over `inputs` until these end or a signal arrives.
///
/// # Errors
/// If a source fails.
pub fn measure(
    plans: &[&Plan],
    placement: &Placement,
    args: &SourceOptions,
    inputs: Vec<TapInput>,
    answers: Answers,
    stop: &Stop,
) -> Result<(Measured, Ending), Failure> {
    let mut engine = Engine::new(EngineOptions::default());
    let texts: Arc<Mutex<TextTable>> = Arc::default();
    let bytes: Vec<Arc<AtomicU64>> = plans.iter().map(|_| Arc::default()).collect();
    let mut shows = Vec::new();
    for (plan, bytes) in placement.plans.iter().zip(&bytes) {
        let end = End {
            answers,
            texts: texts.clone(),
            bytes: bytes.clone(),
        };
        shows.push(Show::new(engine.add(plan), Box::new(end)));
    }
    source::drop_privileges(args, &inputs, Files::Open)?;
    let options = LoopOptions {
        idle: args.idle,
        own_stream: plans::read_own_stream(plans),
        instant_ns: 1,
        progress: ProgressKind::Nothing,
        whole: None,
        watermarks: false,
        changes: None,
        counts: Arc::default(),
    };
    let requests_before = requests_finished();
    let (started, cpu_before_ns) = (Instant::now(), cpu_ns());
    let report = run_loop::run(engine, inputs, shows, options, stop)?;
    let (elapsed, cpu_ns) = (started.elapsed(), cpu_ns() - cpu_before_ns);
    let counts = report.engine.clone();
    let measured = Measured {
        elapsed,
        cpu_ns,
        seconds: match args.is_live() {
            true => elapsed.as_secs_f64(),
            false => emitted(&counts),
        },
        requests: match args.is_live() {
            true => requests_finished().saturating_sub(requests_before),
            false => requests_reported(&counts),
        },
        counts,
        bytes: bytes.iter().map(|b| b.load(Ordering::Relaxed)).collect(),
    };
    Ok((measured, run_loop::conclude(report, false)?))
}

/// The interval from the first row to the last, in seconds.
fn emitted(counts: &EngineCounts) -> f64 {
    let spans = counts.sources.iter().filter_map(|source| source.span);
    let both = spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    let span = both.map_or(0, |(first, last)| last.saturating_sub(first));
    span as f64 / NANOS_PER_SECOND as f64
}

/// A request is one row of `IO` and two rows of `IOstream`.
fn requests_reported(counts: &EngineCounts) -> u64 {
    let requests = |source: &SourceCounts| match source.source.eq_ignore_ascii_case("IOstream") {
        true => source.rows_in / 2,
        false => source.rows_in,
    };
    counts.sources.iter().map(requests).max().unwrap_or(0)
}

/// Processor time of the process so far.
fn cpu_ns() -> i64 {
    run_loop::process_usage("self").1.unwrap_or(0)
}

impl Measured {
    /// Rows of all sources.
    pub fn rows_in(&self) -> u64 {
        self.counts.sources.iter().map(|s| s.rows_in).sum()
    }

    /// Rows of each result; `None` if one of the plans failed.
    pub fn rows_out_each(&self) -> Option<Vec<u64>> {
        let rows: Vec<u64> = self.counts.queries.iter().map(|q| q.rows_out).collect();
        (rows.len() == self.bytes.len()).then_some(rows)
    }

    fn rows_out(&self) -> u64 {
        self.counts.queries.iter().map(|q| q.rows_out).sum()
    }

    /// `{"elapsed_ns", "cpu_ns", "sources": [{"source", "rows_in", "rows_late"}], "rows_out",
    /// "memory_bytes"}`
    pub fn to_json(&self) -> Value {
        let source = |s: &SourceCounts| json!({ "source": s.source, "rows_in": s.rows_in, "rows_late": s.rows_late });
        let memory: u64 = self.counts.queries.iter().map(|q| q.bytes).sum();
        json!({
            "elapsed_ns": self.elapsed.as_nanos() as u64,
            "cpu_ns": self.cpu_ns,
            "sources": self.counts.sources.iter().map(source).collect::<Vec<_>>(),
            "rows_out": self.rows_out(),
            "memory_bytes": memory,
        })
    }
}

impl Display for Measured {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64().max(1e-9);
        let each = |rows: u64| format!("{rows} ({:.0} per second)", rows as f64 / seconds);
        writeln!(f, "measured for {seconds:.1} s")?;
        for source in &self.counts.sources {
            let late = match source.rows_late {
                0 => String::new(),
                late => format!(", {late} of them late"),
            };
            // Groups count as the rows that they represent.
            let rows = each(source.rows_in);
            writeln!(f, "  rows from {}: {rows}{late}", source.source)?;
        }
        writeln!(f, "  rows of the result: {}", each(self.rows_out()))?;
        let cpu_ns = self.cpu_ns as f64;
        let share = 100.0 * cpu_ns / 1e9 / seconds;
        write!(
            f,
            "  processor time: {:.0} ms, {share:.1} % of one processor",
            cpu_ns / 1e6
        )?;
        if self.rows_in() > 0 {
            write!(f, ", {:.0} ns per row", cpu_ns / self.rows_in() as f64)?;
        }
        writeln!(f, "; without BPF programs")
    }
}
