//! [`run`]: passes the rows of `IOpath` on as events of requests, in timestamp order, each with the
//! time at every level.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_model::{Batch, Nanos, Op, SECTOR_BYTES, Symbol};
use weir_query::engine::{Engine, EngineOptions};
use weir_runtime::device_names;
use weir_runtime::failure::Failure;
use weir_runtime::plans;
use weir_runtime::question::QueryText;
use weir_runtime::run_loop::{self, LoopOptions, ProgressKind, RunReport, Show, Stop};
use weir_runtime::source::{self, SourceOptions};
use weir_sink::{Sink, SinkError};
use weir_tap::ebpf::Files;
use weir_tap::ebpf::streams::iopath;
use weir_workload::outliers::{LEVELS, LevelTimes};
use weir_workload::{IssuedRequest, RequestEvent, Response, Subject};

use crate::workload::rows::{int, operation, text};

/// Maximum delay of rows.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum number of events that are held until they are in timestamp order. A request that takes
/// longer than the events of so many others begins late.
const EVENTS_HELD_MAX: usize = 1 << 17;

/// The position of the level that begins when the device receives the request.
const DEVICE: usize = 4;

/// The columns before and after those of the levels.
const SUBJECT: [&str; 4] = ["vm", "vdisk", "pdisk", "latency"];
const REQUEST: [&str; 4] = ["op", "sector", "bytes", "comm"];

/// A consumer of events with levels.
pub trait PathConsumer: Send {
    /// Receives what happened to a request of `subject`, in timestamp order: it is issued when the
    /// device receives it, and finished after its last level. The end has the times at each level.
    fn take(
        &mut self,
        subject: Subject,
        process: Option<Symbol>,
        event: &RequestEvent,
        levels: Option<LevelTimes>,
    );
}

/// Whether the sources are recordings of `IOpath`.
///
/// # Errors
/// When a source cannot be opened.
pub fn is_recorded(source: &SourceOptions) -> Result<bool, Failure> {
    if source.is_live() {
        return Ok(false);
    }
    let streams = source.capabilities()?.streams;
    let name = iopath::STREAM.name;
    let is_path = |name_of: &str| name_of.eq_ignore_ascii_case(name);
    Ok(streams.iter().any(|s| is_path(&s.declaration.name)))
}

/// Passes every request to `consumer`, until the sources end, or `stop`.
///
/// # Errors
/// When the source has no stream `IOpath` or cannot be read; earlier requests were delivered.
pub fn run<C: PathConsumer + 'static>(
    source: &SourceOptions,
    consumer: &Arc<Mutex<C>>,
    stop: &Stop,
) -> Result<RunReport, Failure> {
    let mut source = source.clone();
    source.poll_interval = Some(POLL_INTERVAL);
    source.idle = source.idle.max(5 * POLL_INTERVAL);
    let columns = SUBJECT.iter().chain(&LEVELS).chain(&REQUEST);
    let columns: Vec<&str> = columns.copied().collect();
    let question = QueryText::new(format!("select {} from IOpath", columns.join(", ")));
    let checked = question.compile_over(&source)?;
    let plan = device_names::resolved(&checked.plan, &source);
    let placement = plans::of_rows(&[&*plan], &source.capabilities()?);
    let inputs = source::open(&source, &placement, stop)?;
    let mut engine = Engine::new(EngineOptions::default());
    let sink = InOrder {
        consumer: consumer.clone(),
        held: BinaryHeap::new(),
        requests: 0,
    };
    let shows = placement
        .plans
        .iter()
        .zip([Box::new(sink) as Box<dyn Sink>]);
    let shows = shows.map(|(plan, sink)| Show::new(engine.add(plan), sink));
    let shows = shows.collect();
    let options = LoopOptions {
        idle: source.idle,
        own_stream: false,
        instant_ns: 1,
        progress: ProgressKind::Files,
        whole: None,
        watermarks: false,
        changes: None,
        counts: Arc::default(),
    };
    source::drop_privileges(&source, &inputs, Files::Open)?;
    run_loop::run(engine, inputs, shows, options, stop)
}

/// Converts rows to events, and puts these in timestamp order.
struct InOrder<C> {
    consumer: Arc<Mutex<C>>,
    held: BinaryHeap<Reverse<Held>>,
    requests: i64,
}

/// An event, ordered by its time and position.
struct Held {
    place: (Nanos, i64),
    subject: Subject,
    process: Option<Symbol>,
    event: RequestEvent,
    levels: Option<LevelTimes>,
}

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        self.place == other.place
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Held) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Held) -> std::cmp::Ordering {
        self.place.cmp(&other.place)
    }
}

impl<C: PathConsumer> InOrder<C> {
    /// Adds the issue and the end of the request of a row; a row without latency is omitted.
    fn add(&mut self, batch: &Batch, row: usize) -> Option<()> {
        let [vm, vdisk, pdisk, latency, rest @ ..] = &batch.columns[..] else {
            unreachable!("the query has these columns");
        };
        let (levels, request) = rest.split_at(LEVELS.len());
        let [op, sector, bytes, comm] = request else {
            unreachable!("the query has these columns");
        };
        let ts = batch.ts[row];
        let latency_ns = int(latency, row)?;
        let op = operation(text(op, row)?)?;
        let levels: LevelTimes = std::array::from_fn(|level| int(&levels[level], row));
        let at_device = levels[DEVICE..].iter().flatten().sum::<Nanos>();
        let service_ns = levels[DEVICE].map(|_| at_device.min(latency_ns));
        let subject = Subject {
            vm: text(vm, row),
            vdisk: text(vdisk, row),
            pdisk: text(pdisk, row),
            ..Subject::default()
        };
        let id = self.requests;
        self.requests += 1;
        let issued = RequestEvent::Issued(IssuedRequest {
            ts: ts - service_ns.unwrap_or(latency_ns),
            id,
            op,
            sector: int(sector, row).filter(|_| op != Op::Flush),
            sectors: int(bytes, row).unwrap_or_default() / SECTOR_BYTES,
        });
        let finished = RequestEvent::Finished(Response {
            ts,
            id,
            op,
            wait_ns: service_ns.map(|service| latency_ns - service),
            service_ns,
            latency_ns: Some(latency_ns),
            failed: false,
        });
        let process = text(comm, row);
        for (order, event) in (0..).zip([issued, finished]) {
            self.held.push(Reverse(Held {
                place: (event.ts(), 2 * id + order),
                subject,
                process,
                event,
                levels: Some(levels).filter(|_| order == 1),
            }));
        }
        Some(())
    }

    /// Passes on the earliest events, until at most `held_max` are held.
    fn pass(&mut self, held_max: usize) {
        let mut consumer = self.consumer.lock().expect("no panic while locked");
        while self.held.len() > held_max {
            let Some(Reverse(held)) = self.held.pop() else {
                return;
            };
            consumer.take(held.subject, held.process, &held.event, held.levels);
        }
    }
}

impl<C: PathConsumer> Sink for InOrder<C> {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        for row in 0..batch.len() {
            self.add(batch, row);
        }
        self.pass(EVENTS_HELD_MAX);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.pass(0);
        Ok(())
    }
}
