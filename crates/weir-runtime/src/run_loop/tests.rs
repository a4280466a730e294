//! Tests of the loop with scripted taps and sinks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weir_model::{Batch, Catalog, Event, EventKind, IoBatch, IoEvent, Nanos, Op};
use weir_query::engine::{Engine, EngineOptions};
use weir_query::{CheckOptions, compile};
use weir_sink::{Sink, SinkError};
use weir_tap::{EventCount, Tap, TapError, TapEvent};

use super::*;

/// A tap that returns given messages.
struct Parrot {
    words: VecDeque<Word>,
}

enum Word {
    /// A completed request at this instant.
    Row(Nanos),
    Heartbeat(Nanos),
    /// Waits until the flag is set, five seconds at most.
    Await(Arc<AtomicBool>),
    Fail,
}

impl Parrot {
    fn input(words: impl IntoIterator<Item = Word>) -> TapInput {
        let words = words.into_iter().collect();
        TapInput {
            tap: Box::new(Parrot { words }),
            live: true,
            span_ns: None,
            routes: vec![Route {
                demand: 0,
                source: "IO".into(),
                instant_ns: 1,
                mapping: None,
            }],
        }
    }
}

impl Tap for Parrot {
    fn next(&mut self, timeout: Duration) -> Result<TapEvent, TapError> {
        Ok(match self.words.pop_front() {
            None => TapEvent::End,
            Some(Word::Row(ts)) => TapEvent::Rows {
                demand: 0,
                batch: finished(ts),
            },
            Some(Word::Heartbeat(at)) => TapEvent::Heartbeat(at),
            Some(Word::Await(flag)) => {
                let started = Instant::now();
                while !flag.load(Ordering::SeqCst) && started.elapsed() < Duration::from_secs(5) {
                    std::thread::sleep(timeout.min(Duration::from_millis(5)));
                }
                TapEvent::Quiet
            }
            Some(Word::Fail) => {
                return Err(TapError::Unavailable {
                    what: "the disk fell out".into(),
                    remedy: "put it back".into(),
                });
            }
        })
    }

    fn counts(&mut self) -> Vec<EventCount> {
        Vec::new()
    }

    fn describe(&self) -> Vec<String> {
        Vec::new()
    }
}

fn finished(ts: Nanos) -> Batch {
    let event = Event::new(ts, EventKind::Response, Op::Read, ts, Some(8), 8);
    IoBatch::new(None).build(&[IoEvent {
        wait_ns: Some(1),
        service_ns: Some(2),
        latency_ns: Some(3),
        ..IoEvent::new(event)
    }])
}

/// A sink that stores the instants of its rows, and sets a flag at the first.
#[derive(Clone, Default)]
struct Notes {
    instants: Arc<Mutex<Vec<i64>>>,
    shown: Arc<AtomicBool>,
}

impl Sink for Notes {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.instants.lock().unwrap().extend(batch.ts.iter());
        self.shown.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
}

fn plan() -> Arc<Plan> {
    let text = "select req_id from IO";
    let checked = compile(text, &Catalog::builtin(), &CheckOptions::live());
    checked.unwrap().plan
}

fn run_with(inputs: Vec<TapInput>, notes: &Notes) -> Result<RunReport, Failure> {
    run_changing(inputs, notes, None)
}

fn run_changing(
    inputs: Vec<TapInput>,
    notes: &Notes,
    changes: Option<Receiver<Change>>,
) -> Result<RunReport, Failure> {
    let mut engine = Engine::new(EngineOptions::default());
    let id = engine.add(&plan());
    let options = LoopOptions {
        idle: Duration::from_millis(50),
        own_stream: false,
        instant_ns: 1,
        progress: ProgressKind::Nothing,
        whole: None,
        watermarks: false,
        changes,
        counts: Arc::default(),
    };
    let shows = vec![Show::new(id, Box::new(notes.clone()))];
    run(engine, inputs, shows, options, &Stop::new())
}

fn late(report: &RunReport) -> i64 {
    let late = report.counts.iter().filter(|c| c.cause == Some("late"));
    late.map(|c| c.total).sum()
}

#[test]
fn an_idle_source_is_excluded_and_its_late_rows_are_counted() {
    let notes = Notes::default();
    let ahead = [
        Word::Row(10),
        Word::Row(20),
        Word::Heartbeat(30),
        Word::Await(notes.shown.clone()),
    ];
    let idle = [
        Word::Row(5),
        Word::Await(notes.shown.clone()),
        Word::Row(7),
        Word::Row(40),
    ];
    let inputs = vec![Parrot::input(ahead), Parrot::input(idle)];
    let report = run_with(inputs, &notes).unwrap();
    assert_eq!(*notes.instants.lock().unwrap(), [5, 10, 20, 40]);
    assert_eq!(late(&report), 1);
}

#[test]
fn sources_that_send_heartbeats_are_waited_for() {
    let notes = Notes::default();
    let flag = Arc::new(AtomicBool::new(true));
    let ahead = [Word::Row(10), Word::Row(20)];
    let behind = [
        Word::Heartbeat(3),
        Word::Await(flag),
        Word::Row(4),
        Word::Row(15),
    ];
    let inputs = vec![Parrot::input(ahead), Parrot::input(behind)];
    let report = run_with(inputs, &notes).unwrap();
    assert_eq!(*notes.instants.lock().unwrap(), [4, 10, 15, 20]);
    assert_eq!(late(&report), 0);
}

#[test]
fn a_failed_tap_ends_the_run_after_its_last_rows() {
    let notes = Notes::default();
    let inputs = vec![Parrot::input([Word::Row(1), Word::Row(2), Word::Fail])];
    let failure = run_with(inputs, &notes).err().unwrap();
    assert!(matches!(failure, Failure::World(e) if e.to_string().contains("the disk fell out")));
    assert_eq!(*notes.instants.lock().unwrap(), [1, 2]);
}

/// A sink that requests its own end at the first row, and sets a flag when it is complete.
struct Sated {
    notes: Notes,
    changes: std::sync::mpsc::Sender<Change>,
    complete: Arc<AtomicBool>,
}

impl Sink for Sated {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.changes.send(Change::End { name: 7 }).unwrap();
        self.notes.write(batch)
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.complete.store(true, Ordering::SeqCst);
        Ok(())
    }
}

#[test]
fn a_query_can_start_and_end_while_others_continue() {
    let (notes, sated) = (Notes::default(), Notes::default());
    let complete = Arc::new(AtomicBool::new(false));
    let (changes, wishes) = std::sync::mpsc::channel();
    let sink = Sated {
        notes: sated.clone(),
        changes: changes.clone(),
        complete: complete.clone(),
    };
    let ask = Change::Ask {
        name: 7,
        plan: plan(),
        sink: Box::new(sink),
    };
    changes.send(ask).unwrap();
    let words = [
        Word::Row(1),
        Word::Heartbeat(1),
        Word::Await(complete.clone()),
        Word::Row(10),
    ];
    run_changing(vec![Parrot::input(words)], &notes, Some(wishes)).unwrap();
    assert!(complete.load(Ordering::SeqCst));
    assert_eq!(*notes.instants.lock().unwrap(), [1, 10]);
    assert_eq!(*sated.instants.lock().unwrap(), [1]);
}
