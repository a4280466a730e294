//! Kernel streams. One is not part of weir: the folder `switches` and a line in [`TAPS`]. Its rows,
//! selections, samples, groups and counts of losses are compared with the counts that the kernel's
//! scheduler keeps of each thread. [`files`] has the tests of `FileIO`.
//!
//! Needs root and BPF; otherwise each test prints that it was skipped. The tests run one at a time,
//! since they observe the same machine.

mod cache;
mod changes;
mod files;
mod images;
mod paths;
mod request_files;
mod switches;
mod work;

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use weir_model::spread::{spread, spreads_of};
use weir_model::{Batch, Capabilities, Catalog, Declaration, Demand, Predicate, Shape, Value};
use weir_query::engine::{Engine, EngineOptions};
use weir_query::place::{self, Placement};
use weir_query::{CheckOptions, Plan, compile, reference};
use weir_runtime::run_loop::{
    self, LoopOptions, ProgressKind, Route, Show, Stop, TapInput, wall_clock,
};
use weir_runtime::source::{self, SourceOptions};
use weir_sink::{Sink, SinkError};
use weir_tap::ebpf::stream::KernelStream;
use weir_tap::ebpf::streams::{fileio, iopath, pagecache};
use weir_tap::ebpf::{self, DeviceChoice, LiveOptions};
use weir_tap::format::{Header, recording};
use weir_tap::live::LiveTap;
use weir_tap::{EventCount, FOLDED, Tap, TapEvent};
use weir_testing::{Scratch, run, skip};

use self::work::Sleeper;

/// The live taps of these tests, as `weir_tap::live::TAPS` has those of weir.
static TAPS: &[&LiveTap] = &[
    &switches::TAP,
    &fileio::TAP,
    &iopath::TAP,
    &pagecache::TAP,
    &ebpf::TAP,
];

/// One test at a time.
static TURN: Mutex<()> = Mutex::new(());

/// The right to observe the machine; `None`, with a printed reason, if the test cannot run.
fn turn(test: &str) -> Option<MutexGuard<'static, ()>> {
    if run("id", &["-u"]).is_ok_and(|id| id != "0") {
        return skip(test, "only root can attach programs");
    }
    if let Err(why) = open(&[everything(&switches::STREAM)], &LiveOptions::default()) {
        return skip(test, why);
    }
    Some(TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

fn capabilities() -> Capabilities {
    let streams = TAPS.iter().flat_map(|tap| (tap.capabilities)().streams);
    Capabilities {
        streams: streams.collect(),
    }
}

fn catalog() -> Catalog {
    let mut catalog = Catalog::builtin();
    let streams = capabilities().streams.into_iter();
    for declaration in streams.map(|stream| stream.declaration) {
        if catalog.find(&declaration.name).is_none() {
            catalog.declarations.push(declaration);
        }
    }
    catalog
}

fn open(demands: &[Demand], options: &LiveOptions) -> Result<Box<dyn Tap>, weir_tap::TapError> {
    let serves = |tap: &&&LiveTap| tap.streams.contains(&&*demands[0].stream);
    let tap = TAPS.iter().find(serves).expect("a tap has the stream");
    (tap.open)(demands, options)
}

/// The demand for all columns and rows of a stream.
fn everything(stream: &KernelStream) -> Demand {
    Demand {
        stream: stream.name.into(),
        columns: (0..stream.columns.len()).collect(),
        predicate: Predicate::all(),
        fold: None,
    }
}

/// A query, and what was observed while it ran.
struct Ran {
    /// The rows that were inserted, each as often as its weight.
    rows: Vec<Vec<Value>>,
    counts: Vec<EventCount>,
    placement: Placement,
    /// The tap's own description.
    lines: Vec<String>,
    plan: Arc<Plan>,
}

impl Ran {
    fn total(&self, counter: &str) -> i64 {
        let counts = self.counts.iter().filter(|c| c.counter == counter);
        counts.map(|c| c.total).sum()
    }

    /// The explanation of the plan, and of what the tap does.
    fn explanation(&self) -> String {
        let plan = place::explain_placed(&self.plan, &self.placement, 1_000_000_000);
        format!("{plan}\n{}", self.lines.join("\n"))
    }
}

/// A sink that keeps inserted rows.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<Vec<Value>>>>);

impl Sink for Kept {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let mut rows = self.0.lock().unwrap();
        for row in 0..batch.len() {
            let weight = batch.weight(row).max(0) as usize;
            rows.extend(std::iter::repeat_n(batch.row(row), weight));
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
}

/// Options of the loop for the query of this plan.
fn options(placed: &Plan) -> LoopOptions {
    LoopOptions {
        idle: Duration::from_millis(50),
        own_stream: false,
        instant_ns: 1,
        progress: ProgressKind::Nothing,
        changes: None,
        whole: Some(Arc::new(placed.clone())),
        watermarks: false,
        counts: Arc::default(),
    }
}

/// Runs a query while `work` runs, as `weir query` does.
fn ask<T>(query: &str, work: impl FnOnce() -> T) -> (Ran, T) {
    let every_device = LiveOptions {
        devices: DeviceChoice::All,
        ..LiveOptions::default()
    };
    ask_with(query, &every_device, work)
}

/// As [`ask`], with options of the tap.
fn ask_with<T>(query: &str, live: &LiveOptions, work: impl FnOnce() -> T) -> (Ran, T) {
    let checked = compile(query, &catalog(), &CheckOptions::live());
    let plan = checked.unwrap_or_else(|e| panic!("{query}: {e:?}")).plan;
    let placement = place::place(&[&plan], &capabilities());
    let mut engine = Engine::new(EngineOptions::default());
    let id = engine.add(&placement.plans[0]);
    let tap = open(&placement.demands, live);
    let tap = tap.unwrap_or_else(|e| panic!("{e}"));
    let lines = tap.describe();
    let route = |(demand, source): (usize, &String)| Route {
        demand,
        source: source.clone(),
        instant_ns: 1,
        mapping: None,
    };
    let input = TapInput {
        tap,
        live: true,
        span_ns: None,
        routes: placement.sources.iter().enumerate().map(route).collect(),
    };
    let options = options(&placement.plans[0]);
    let (stop, kept) = (Stop::new(), Kept::default());
    let shows = vec![Show::new(id, Box::new(kept.clone()))];
    let (report, done) = thread::scope(|scope| {
        let observed = scope.spawn(|| run_loop::run(engine, vec![input], shows, options, &stop));
        let done = panic::catch_unwind(AssertUnwindSafe(work));
        stop.live_until(wall_clock());
        let report = observed.join().expect("the loop ends");
        (report, done.unwrap_or_else(|e| panic::resume_unwind(e)))
    });
    let report = report.unwrap_or_else(|_| panic!("{query}: the run failed"));
    let rows = std::mem::take(&mut *kept.0.lock().unwrap());
    let ran = Ran {
        rows,
        counts: report.counts,
        placement,
        lines,
        plan,
    };
    (ran, done)
}

/// A sink that keeps the rows that are not retracted.
struct Last(Kept);

impl Sink for Last {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let mut rows = self.0.0.lock().unwrap();
        for row in 0..batch.len() {
            let values = batch.row(row);
            match batch.weight(row) {
                1.. => rows.push(values),
                _ => rows.retain(|known| *known != values),
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
}

/// Records all rows of a stream while `work` runs, and queries the recording: the number of rows
/// recorded, and the rows of the query.
fn record_and_ask<T>(
    stream: &KernelStream,
    query: &str,
    work: impl FnOnce() -> T,
) -> (i64, Vec<Vec<Value>>, T) {
    record_tap_and_ask(&everything(stream), stream.declaration(), query, work)
}

/// As [`record_and_ask`], of the rows of a demand.
fn record_tap_and_ask<T>(
    demand: &Demand,
    declaration: Declaration,
    query: &str,
    work: impl FnOnce() -> T,
) -> (i64, Vec<Vec<Value>>, T) {
    let every_device = LiveOptions {
        devices: DeviceChoice::All,
        ..LiveOptions::default()
    };
    let tap = open(std::slice::from_ref(demand), &every_device);
    let mut tap = tap.unwrap_or_else(|e| panic!("{e}"));
    let done = work();
    let folder = Scratch::new();
    let path = folder.path().join("recording.parquet");
    let header = Header {
        stream: declaration,
        ..Header::default()
    };
    let mut recording = recording::create(&path, &header).unwrap_or_else(|e| panic!("{e}"));
    let end = wall_clock();
    let mut written = 0;
    loop {
        match tap.next(Duration::from_millis(50)).unwrap() {
            TapEvent::Rows { batch, .. } => {
                written += batch.len() as i64;
                recording.write(&batch).unwrap_or_else(|e| panic!("{e}"));
            }
            TapEvent::Heartbeat(at) if at >= end => break,
            _ => {}
        }
    }
    recording.finish().unwrap_or_else(|e| panic!("{e}"));

    let name = path.to_str().expect("the name of the file is text");
    let source = SourceOptions::of(name, &[], false, &[]).expect("the options are sound");
    let capabilities = source.capabilities().unwrap_or_else(|_| panic!("{name}"));
    let checked = compile(query, &capabilities.catalog(), &CheckOptions::live());
    let plan = checked.unwrap_or_else(|e| panic!("{query}: {e:?}")).plan;
    let placement = place::place(&[&plan], &capabilities);
    let mut engine = Engine::new(EngineOptions::default());
    let id = engine.add(&placement.plans[0]);
    let (stop, kept) = (Stop::new(), Kept::default());
    let inputs = source::open(&source, &placement, &stop).unwrap_or_else(|_| panic!("{name}"));
    let shows = vec![Show::new(id, Box::new(Last(kept.clone())))];
    let report = run_loop::run(engine, inputs, shows, options(&placement.plans[0]), &stop);
    assert!(report.is_ok());
    let rows = std::mem::take(&mut *kept.0.lock().unwrap());
    (written, rows, done)
}

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(n) => *n,
        other => panic!("{other} is no integer"),
    }
}

/// The number of switches of these threads, within what the kernel counted.
#[track_caller]
fn assert_switches<'a>(found: i64, sleepers: impl IntoIterator<Item = &'a Sleeper>) {
    let of = sleepers.into_iter().map(Sleeper::switches);
    let (least, most) = of.fold((0, 0), |(a, b), own| (a + own.start(), b + own.end()));
    assert!(
        (least..=most).contains(&found),
        "{found}: {least} to {most}"
    );
}

#[test]
fn the_table_of_columns_has_no_fault_and_is_the_reference() {
    assert_eq!(switches::STREAM.fault(), None);
    let declaration = switches::STREAM.declaration();
    assert_eq!(declaration.shape, Shape::Stream);
    let page = reference::streams(&catalog());
    for column in switches::STREAM.columns {
        assert!(page.contains(column.doc), "{}: {page}", column.name);
    }
}

#[test]
fn only_selected_rows_leave_the_kernel() {
    let Some(_turn) = turn("only_selected_rows_leave_the_kernel") else {
        return;
    };
    let query = "select tid, cause, ran, nice from switches \
                 where comm = 'sleeper-a' and nice = 0 and cause in ('wait', 'preemption')";
    let (ran, sleeper) = ask(query, || {
        let other = Sleeper::run("sleeper-b", 100);
        assert!(*other.waits.start() >= 100);
        Sleeper::run("sleeper-a", 500)
    });
    assert!(ran.rows.iter().all(|row| int(&row[0]) == sleeper.tid));
    assert_switches(ran.rows.len() as i64, [&sleeper]);
    let waits = ran.rows.iter().filter(|row| row[1] == Value::text("wait"));
    let waits = waits.count() as i64;
    assert!(sleeper.waits.contains(&waits), "{waits}: {sleeper:?}");
    assert!(ran.rows.iter().all(|row| int(&row[3]) == 0));
    assert_eq!(ran.total("events_in"), ran.rows.len() as i64);
    let explanation = ran.explanation();
    for part in [
        "attached to sched_switch",
        "comm in (sleeper-a)",
        "nice = 0",
    ] {
        assert!(explanation.contains(part), "{part}: {explanation}");
    }
}

#[test]
fn groups_are_made_in_the_kernel_and_no_row_leaves_it() {
    let Some(_turn) = turn("groups_are_made_in_the_kernel_and_no_row_leaves_it") else {
        return;
    };
    let query = "select comm, cause, count(*), sum(ran), max(ran), min(nice), quantile(ran, 0.5) \
                 from switches [range 10 s slide 10 s] \
                 where comm in ('sleeper-a', 'sleeper-b') group by comm, cause";
    let (ran, sleepers) = ask(query, || {
        let b = thread::spawn(|| Sleeper::run("sleeper-b", 700));
        [Sleeper::run("sleeper-a", 300), b.join().expect("it ends")]
    });
    let total = |comm: &str, cause: &str, column: usize| -> i64 {
        let own = |row: &&Vec<Value>| row[..2] == [Value::text(comm), Value::text(cause)];
        ran.rows
            .iter()
            .filter(own)
            .map(|row| int(&row[column]))
            .sum()
    };
    for (comm, sleeper) in ["sleeper-a", "sleeper-b"].iter().zip(&sleepers) {
        let waits = total(comm, "wait", 2);
        assert!(sleeper.waits.contains(&waits), "{waits}: {sleeper:?}");
        let preemptions = total(comm, "preemption", 2);
        assert!(sleeper.preemptions.contains(&preemptions), "{sleeper:?}");
        // The scheduler reads its own clock, shortly before and after.
        let ran_ns = total(comm, "wait", 3) + total(comm, "preemption", 3);
        let near = sleeper.ran_ns * 4 / 5..sleeper.ran_ns * 6 / 5;
        assert!(near.contains(&ran_ns), "{ran_ns}: {sleeper:?}");
    }
    for row in &ran.rows {
        assert!(int(&row[4]) <= int(&row[3]) && int(&row[5]) == 0, "{row:?}");
    }
    let demands = &ran.placement.demands;
    assert!(demands.iter().all(|d| d.fold.is_some()), "{demands:?}");
    assert_eq!(ran.total(FOLDED), ran.total("events_in"));
    let explanation = ran.explanation();
    let groups = "kernel: groups by cause, comm each 10s";
    assert!(explanation.contains(groups), "{explanation}");
}

#[test]
fn a_sample_has_all_rows_of_the_sampled_values() {
    let Some(_turn) = turn("a_sample_has_all_rows_of_the_sampled_values") else {
        return;
    };
    let query = "select tid from switches where sample(tid, 0.5) and comm = 'sleeper-a'";
    let (ran, sleepers) = ask(query, || -> Vec<Sleeper> {
        (0..16).map(|_| Sleeper::run("sleeper-a", 20)).collect()
    });
    let is_sampled = |sleeper: &&Sleeper| spread(sleeper.tid) < spreads_of(0.5);
    let (sampled, others): (Vec<&Sleeper>, Vec<&Sleeper>) = sleepers.iter().partition(is_sampled);
    assert_switches(ran.rows.len() as i64, sampled);
    let is_other = |row: &Vec<Value>| others.iter().any(|s| s.tid == int(&row[0]));
    assert!(!ran.rows.iter().any(is_other));
    assert!(ran.explanation().contains("sample number of tid"));
}

#[test]
fn what_a_full_ring_loses_is_counted() {
    let Some(_turn) = turn("what_a_full_ring_loses_is_counted") else {
        return;
    };
    let checked = compile(
        "select tid from switches where comm = 'sleeper-a'",
        &catalog(),
        &CheckOptions::live(),
    );
    let plan = checked.expect("it is sound").plan;
    let demands = place::place(&[&plan], &capabilities()).demands;
    let options = LiveOptions {
        ring_bytes: 1,
        ..LiveOptions::default()
    };
    let mut tap = open(&demands, &options).unwrap_or_else(|e| panic!("{e}"));
    // Nothing is read meanwhile: a ring of the least size, 256 KiB, holds 4096 events.
    let sleepers: Vec<_> = (0..4)
        .map(|_| thread::spawn(|| Sleeper::run("sleeper-a", 5_000)))
        .collect();
    let sleepers: Vec<Sleeper> = sleepers.into_iter().map(|s| s.join().unwrap()).collect();
    let until = Instant::now() + Duration::from_secs(1);
    let mut rows = 0;
    while Instant::now() < until {
        if let TapEvent::Rows { batch, .. } = tap.next(Duration::from_millis(50)).unwrap() {
            rows += batch.len() as i64;
        }
    }
    let lost = tap
        .counts()
        .into_iter()
        .filter(|c| c.counter == "events_lost");
    let lost: i64 = lost.map(|c| c.total).sum();
    assert!(lost > 0 && rows > 0, "{lost} lost, {rows} rows");
    assert_eq!(tap.lost(), lost);
    assert_switches(rows + lost, &sleepers);
}

#[test]
fn a_recording_of_it_is_read_back() {
    let Some(_turn) = turn("a_recording_of_it_is_read_back") else {
        return;
    };
    let query = "select comm, cause, count(*), min(ran) from switches group by comm, cause";
    let work = || Sleeper::run("sleeper-a", 200);
    let (written, rows, sleeper) = record_and_ask(&switches::STREAM, query, work);
    let own = rows.iter().filter(|row| row[0] == Value::text("sleeper-a"));
    assert_switches(own.map(|row| int(&row[2])).sum(), [&sleeper]);
    assert_eq!(rows.iter().map(|row| int(&row[2])).sum::<i64>(), written);
}
