//! The cost of recording requests in an I/O queue: processor time of the I/O queue's thread per
//! request, which has two events, by consumers and requests per round.
//!
//! `cargo run --release -p weir-tapdisk --example record_cost`

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weir_model::Op;
use weir_tap::monotonic_ns;
use weir_tap::tapdisk::groups::{BlockMeasure, Folding};
use weir_tap::tapdisk::layout::VERSION;
use weir_tap::tapdisk::ring::Readers;
use weir_tap::tapdisk::words::{
    CallWord, ClauseWord, DiskFigures, DiskWord, FieldWord, FoldWord, KeepWord, Wanted,
};
use weir_tapdisk::histograms::HistogramCounter;
use weir_tapdisk::{EndedRequest, Hub, Outcome, ReceivedRequest, Recorder, Request};
use weir_testing::cpu_time;

/// Requests per measurement.
const REQUESTS: u64 = 1_000_000;

/// After this number of requests the consumers get time to read, which does not count for the I/O
/// queue.
const REQUESTS_PER_PAUSE: u64 = 32 << 10;

/// The interval of their reads.
const READ_EVERY: Duration = Duration::from_millis(2);

/// The longest interval of groups.
const INTERVAL_NS: u64 = 600_000_000_000;

/// The number of measurements, of which the least is reported: the others were disturbed.
const ATTEMPTS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "ns of the I/O queue's processor time a request, over {REQUESTS} requests, least of {ATTEMPTS}"
    );
    println!("{:<44} {:>9} {:>9} {:>9}", "requests in a round", 1, 16, 64);
    let none = ClauseWord {
        between: vec![(FieldWord::Latency, i64::MAX, i64::MAX)],
        ..ClauseWord::all("REN")
    };
    let cases: [(&str, Vec<ClauseWord>, usize); 5] = [
        ("nobody listens", vec![], 0),
        ("one that wants nothing of it", vec![none], 1),
        ("one that wants the ends", vec![ClauseWord::all("REN")], 1),
        (
            "one that wants everything",
            vec![ClauseWord::all("QREN")],
            1,
        ),
        (
            "eight that want everything",
            vec![ClauseWord::all("QREN")],
            8,
        ),
    ];
    for (name, clauses, consumers) in cases {
        let hub = hub()?;
        let _listening = (0..consumers)
            .map(|_| Consumer::start(&hub, clauses.clone(), vec![]))
            .collect::<Result<Vec<_>, _>>()?;
        report(name, &hub)?;
    }
    let moments = |measure| CallWord {
        measure,
        keep: KeepWord::Moments,
    };
    let bins = CallWord {
        measure: BlockMeasure::Latency,
        keep: KeepWord::LogLinear,
    };
    for (name, calls) in [
        ("groups: number, bytes", vec![moments(BlockMeasure::Bytes)]),
        (
            "groups: number, bytes, bins of latency",
            vec![moments(BlockMeasure::Bytes), bins],
        ),
    ] {
        let hub = hub()?;
        let fold = FoldWord {
            interval_ns: INTERVAL_NS,
            by_disk: true,
            by_op: true,
            clauses: vec![0],
            calls,
        };
        let _grouping = Consumer::start(&hub, vec![ClauseWord::all("REN")], vec![fold])?;
        report(name, &hub)?;
    }
    let hub = hub()?;
    let _counting = HistogramCounter::begin(&hub)?;
    report("the tap's own histograms", &hub)?;
    Ok(())
}

fn hub() -> Result<Arc<Hub>, weir_tapdisk::HubError> {
    let hub = Arc::new(Hub::default());
    let names = DiskWord {
        number: 0,
        vm: None,
        vdisk: None,
        pdisk: None,
    };
    hub.register(names, Arc::new(DiskFigures::default), Arc::default())?;
    Ok(hub)
}

/// Reads and discards all records.
struct Consumer {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Consumer {
    fn start(
        hub: &Arc<Hub>,
        clauses: Vec<ClauseWord>,
        folds: Vec<FoldWord>,
    ) -> Result<Consumer, weir_tapdisk::HubError> {
        let has_groups = !folds.is_empty();
        let wanted = Wanted {
            clauses,
            folds,
            ring_bytes: 64 << 20,
            layout: VERSION,
        };
        let subscription = hub.subscribe(wanted, None)?;
        if has_groups {
            // The window contains the times of all rounds.
            let tables = subscription.memory().tables(Folding::default());
            tables.expect("there are groups").open(0, 0, INTERVAL_NS);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut readers = Readers::new(subscription.memory().clone(), 0);
            let mut read = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                readers
                    .read(monotonic_ns, &mut read)
                    .expect("the tap is ours");
                read.clear();
                thread::sleep(READ_EVERY);
            }
        });
        Ok(Consumer {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn report(name: &str, hub: &Arc<Hub>) -> Result<(), weir_tapdisk::HubError> {
    print!("{name:<44}");
    for requests in [1, 16, 64] {
        let mut least = f64::INFINITY;
        for _ in 0..ATTEMPTS {
            let mut recorder = Recorder::new(hub, 0, 0)?;
            let before = cpu_time();
            for number in 0..REQUESTS / requests {
                round(&mut recorder, number * requests, requests);
                if number % (REQUESTS_PER_PAUSE / requests) == 0 {
                    thread::sleep(READ_EVERY * 2);
                }
            }
            let took = cpu_time() - before;
            least = least.min(took.as_nanos() as f64 / REQUESTS as f64);
        }
        print!(" {least:>9.1}");
    }
    println!();
    let lost: u64 = hub.status().consumers.iter().map(|c| c.lost).sum();
    if lost > 0 {
        println!("    {lost} records found their ring full, which is cheaper than to write them");
    }
    Ok(())
}

/// A round of an I/O queue, without its clock and its work.
fn round(recorder: &mut Recorder, first: u64, requests: u64) {
    recorder.begin();
    for id in first..first + requests {
        let received = ReceivedRequest {
            request: Request {
                op: Op::Read,
                sector: id * 8,
                skip_bytes: 0,
                bytes: 4096,
                fua: false,
                unmap: false,
            },
            id,
            received_ns: 1_000 + id,
            in_flight: 1,
            seek_sectors: Some(1),
            interarrival_ns: Some(1),
        };
        recorder.request_received(&received);
        recorder.request_ended(&EndedRequest {
            received,
            submitted_ns: Some(1_000 + id),
            ended_ns: 1_000 + id,
            outcome: Outcome::Done,
        });
    }
    recorder.end();
}
