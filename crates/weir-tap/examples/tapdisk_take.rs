//! Reads the events of a tapdisk until the end of its standard input, then prints the number of
//! events and of losses. Used by `cargo xtask bench tapdisk`.
//!
//! `cargo run --release -p weir-tap --example tapdisk_take -- SOCKET
//! all|below=SECTOR|groups|histograms`
//!
//! `all` reads every request and completion, `below` those on the first sectors, `groups` number,
//! bytes and quantiles of latency by disk and operation each second, `histograms` lets the tapdisk
//! count and requests the histograms every second.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weir_model::event::{io_schema, value};
use weir_model::{Clause, Demand, Fold, FoldCall, NANOS_PER_SECOND, PartialKind, Predicate, Test};
use weir_tap::tapdisk::TapdiskClient;
use weir_tap::tapdisk::words::{Answer, Ask};
use weir_tap::tapdisk::{TapdiskOptions, open};
use weir_tap::{Tap, TapEvent};

/// Timeout of a read of rows.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [socket, mode] = &args[..] else {
        panic!("SOCKET and all, below=SECTOR, groups or histograms are needed");
    };
    let over = Arc::new(AtomicBool::new(false));
    let at_end = over.clone();
    thread::spawn(move || {
        let _ended = io::stdin().read_to_end(&mut Vec::new());
        at_end.store(true, Ordering::Relaxed);
    });
    let is_over = || over.load(Ordering::Relaxed);
    let (rows_received, lost) = match mode.strip_prefix("below=") {
        Some(end) => rows(
            socket.as_ref(),
            below(end.parse().expect("a sector")),
            is_over,
        ),
        None if mode == "all" => rows(socket.as_ref(), Predicate::all(), is_over),
        None if mode == "groups" => received(socket.as_ref(), groups(), is_over),
        None if mode == "histograms" => histograms(socket.as_ref(), is_over),
        None => panic!("`{mode}` is none of all, below=SECTOR, groups, histograms"),
    };
    println!("received {rows_received} lost {lost}");
}

/// Requests and completions whose first sector is below a sector.
fn below(end: i64) -> Predicate {
    let test = Test::Between {
        operand: value("sector"),
        low: 0,
        high: end - 1,
    };
    Predicate {
        clauses: vec![Clause { tests: vec![test] }],
    }
}

fn rows(socket: &Path, predicate: Predicate, is_over: impl Fn() -> bool) -> (i64, i64) {
    let demand = Demand {
        stream: "IOstream".into(),
        columns: (0..io_schema().len()).collect(),
        predicate,
        fold: None,
    };
    received(socket, demand, is_over)
}

/// Number, bytes and quantiles of latency by disk and operation.
fn groups() -> Demand {
    let column = |name: &str| io_schema().index(name);
    let call = |column, keep| FoldCall { column, keep };
    Demand {
        stream: "IO".into(),
        columns: ["vdisk", "op", "bytes", "latency"].map(column).to_vec(),
        predicate: Predicate::all(),
        fold: Some(Fold {
            interval: NANOS_PER_SECOND,
            keys: ["vdisk", "op"].map(column).to_vec(),
            calls: vec![
                call(None, PartialKind::Moments),
                call(Some(column("bytes")), PartialKind::Moments),
                call(Some(column("latency")), PartialKind::LogLinear { bits: 7 }),
            ],
        }),
    }
}

/// Number of rows, those in groups included, and of lost events.
fn received(socket: &Path, demand: Demand, is_over: impl Fn() -> bool) -> (i64, i64) {
    let mut tap =
        open(socket, &[demand], TapdiskOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let mut rows_received = 0;
    while !is_over() {
        match tap.next(POLL_TIMEOUT).unwrap_or_else(|e| panic!("{e}")) {
            TapEvent::Rows { batch, .. } => rows_received += batch.len() as i64,
            TapEvent::End => break,
            TapEvent::Folded { folded, .. } => rows_received += folded.requests() as i64,
            TapEvent::Heartbeat(_) | TapEvent::Quiet => {}
        }
    }
    let counts = tap.counts();
    let lost = counts.iter().filter(|count| count.counter == "events_lost");
    (rows_received, lost.map(|count| count.total).sum())
}

/// Number of requests for histograms, and of events that could not be counted.
fn histograms(socket: &Path, is_over: impl Fn() -> bool) -> (i64, i64) {
    let mut client = TapdiskClient::connect(socket).unwrap_or_else(|e| panic!("{e}"));
    let (mut asked, mut lost) = (0, 0);
    while !is_over() {
        match client
            .ask(Ask::Histograms)
            .unwrap_or_else(|e| panic!("{e}"))
        {
            Answer::Histograms(word) => lost = word.lost as i64,
            other => panic!("the tap answers {other:?}"),
        }
        asked += 1;
        for _ in 0..10 {
            thread::sleep(POLL_TIMEOUT);
            if is_over() {
                break;
            }
        }
    }
    (asked, lost)
}
