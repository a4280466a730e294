//! [`HistogramCounter`]: the histograms of every disk, kept in the tap while a client requests
//! them.
//!
//! It is one more consumer of the I/O queues' records, in the tap's own process: the I/O queues
//! write the records that any consumer receives, and a thread sorts them by time and counts. So a
//! disk's queues are one stream, the counts equal those of a recording of the same requests, and
//! counting adds no latency to requests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use weir_model::EventKind;
use weir_tap::tapdisk::layout::{Record, VERSION};
use weir_tap::tapdisk::ring::{Read, Readers};
use weir_tap::tapdisk::words::{ClauseWord, DiskWord, HistogramsWord, Wanted};
use weir_tap::{ebpf::Pace, monotonic_ns};
use weir_workload::{Counter, IssuedRequest, Metric, RequestEvent, Response, json};

use crate::hub::{Hub, HubError, Subscription, epoch_ns};

/// The number of previous requests for the closest seek distance, as in vscsiStats.
const CLOSEST_OF: usize = 16;

/// Size of all rings together in bytes.
const RING_BYTES: u64 = 32 << 20;

/// The interval of counting while there are few records.
const COUNT_INTERVAL: Duration = Duration::from_millis(20);

/// How long a snapshot may wait for an I/O queue that is inside a round.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_millis(100);

/// Counts until it is dropped.
#[derive(Debug)]
pub struct HistogramCounter {
    hub: Arc<Hub>,
    subscription: Arc<Subscription>,
    counted: Arc<Mutex<CounterState>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct CounterState {
    readers: Readers,
    /// By number of the disk.
    counters: Vec<Option<Counter>>,
    since_ns: i64,
    lost_before: u64,
    /// The ring is damaged: counting has stopped.
    damaged: u64,
}

impl HistogramCounter {
    /// Starts counting.
    ///
    /// # Errors
    /// When there are too many consumers, or no memory or thread for one more.
    pub fn begin(hub: &Arc<Hub>) -> Result<HistogramCounter, HubError> {
        let wanted = Wanted {
            clauses: vec![ClauseWord::all("QREN")],
            folds: Vec::new(),
            ring_bytes: RING_BYTES,
            layout: VERSION,
        };
        let subscription = hub.subscribe(wanted, None)?;
        let counted = Arc::new(Mutex::new(CounterState {
            readers: Readers::new(subscription.memory().clone(), monotonic_ns()),
            counters: Vec::new(),
            since_ns: epoch_ns(),
            lost_before: 0,
            damaged: 0,
        }));
        let mut counting = HistogramCounter {
            hub: hub.clone(),
            subscription,
            counted: counted.clone(),
            stop: Arc::default(),
            thread: None,
        };
        let stop = counting.stop.clone();
        let name = thread::Builder::new().name("histograms".into());
        counting.thread = Some(name.spawn(move || count(&counted, &stop))?);
        Ok(counting)
    }

    /// The counts so far.
    pub fn snapshot(&self) -> HistogramsWord {
        let asked_ns = monotonic_ns();
        let until = Instant::now() + SNAPSHOT_TIMEOUT;
        let mut counted = self.counted();
        counted.drain();
        while counted.readers.known_ns() < asked_ns && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
            counted.drain();
        }
        let names = self.hub.disks();
        let disks = counted.counters.iter().zip(names);
        let disk = |(counter, name): (&Option<Counter>, DiskWord)| {
            let histograms = counter.as_ref()?.histograms();
            Some((name, json::of_histograms(histograms, &Metric::ALL)))
        };
        HistogramsWord {
            since_ns: counted.since_ns,
            until_ns: epoch_ns(),
            closest_of: CLOSEST_OF,
            disks: disks.filter_map(disk).collect(),
            lost: self.subscription.status().lost - counted.lost_before + counted.damaged,
        }
    }

    /// Restarts at zero. Requests in flight, and the previous request, are kept.
    pub fn reset(&self) {
        let mut counted = self.counted();
        counted.drain();
        counted
            .counters
            .iter_mut()
            .flatten()
            .for_each(Counter::reset);
        counted.since_ns = epoch_ns();
        counted.lost_before = self.subscription.status().lost;
    }

    fn counted(&self) -> MutexGuard<'_, CounterState> {
        self.counted
            .lock()
            .expect("the lock is not poisoned: counting does not panic")
    }
}

impl Drop for HistogramCounter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It counts and does not panic.
            let _ = thread.join();
        }
        self.hub.disconnect(&self.subscription);
    }
}

fn count(counted: &Mutex<CounterState>, stop: &AtomicBool) {
    let mut pace = Pace::new(Instant::now(), COUNT_INTERVAL);
    while !stop.load(Ordering::Relaxed) {
        thread::park_timeout(pace.due().saturating_duration_since(Instant::now()));
        pace.started(Instant::now());
        let mut counted = counted
            .lock()
            .expect("the lock is not poisoned: counting does not panic");
        let records = counted.drain();
        pace.drained(
            records,
            counted.readers.holds_back(),
            counted.readers.fill(),
        );
    }
}

impl CounterState {
    /// Counts the available records and returns their number.
    fn drain(&mut self) -> usize {
        let mut read = Vec::new();
        if self.readers.read(monotonic_ns, &mut read).is_err() {
            self.damaged += 1;
        }
        for Read { record, .. } in &read {
            let disk = usize::from(record.disk);
            if disk >= self.counters.len() {
                self.counters.resize(disk + 1, None);
            }
            let counter = &mut self.counters[disk];
            let counter = counter.get_or_insert_with(|| Counter::new(CLOSEST_OF));
            counter.take(&event(record));
        }
        read.len()
    }
}

/// The event that a row of a recording of it would have.
fn event(record: &Record) -> RequestEvent {
    let ts = i64::try_from(record.ts_ns).unwrap_or(i64::MAX);
    let id = i64::try_from(record.id).unwrap_or(i64::MAX);
    match record.kind {
        EventKind::Request => RequestEvent::Issued(IssuedRequest {
            ts,
            id,
            op: record.op,
            sector: record.sector(),
            sectors: i64::from(record.sectors),
        }),
        kind => RequestEvent::Finished(Response {
            ts,
            id,
            op: record.op,
            wait_ns: record.wait_ns(),
            service_ns: record.service_ns(),
            latency_ns: record.latency_ns(),
            failed: kind != EventKind::Response,
        }),
    }
}
