//! Simulated I/O queues, their tap, and a consumer that collects their events.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use weir_model::event::io_schema;
use weir_model::{Batch, Demand, EventKind, Op, Value};
use weir_tap::tapdisk::words::{DiskFigures, DiskWord};
use weir_tap::tapdisk::{TapdiskOptions, TapdiskTap, everything, open};
use weir_tap::{Tap, TapEvent, monotonic_ns};
use weir_tapdisk::{
    ControlServer, EndedRequest, Hub, Outcome, ReceivedRequest, Recorder, Request, SocketAccess,
    StopEvent,
};
use weir_testing::Scratch;

/// A folder with the socket of a tap.
pub struct TapFolder(Scratch);

impl TapFolder {
    pub fn new() -> TapFolder {
        TapFolder(Scratch::new())
    }

    pub fn socket(&self) -> PathBuf {
        self.0.path().join("d.tap")
    }
}

/// A tap without disks behind its names.
pub struct TestTap {
    pub hub: Arc<Hub>,
    pub scratch: TapFolder,
    stop: StopEvent,
    listening: Option<ControlServer>,
}

impl TestTap {
    pub fn new(disks: usize) -> TestTap {
        let (scratch, stop) = (TapFolder::new(), StopEvent::new().unwrap());
        let hub = hub(disks);
        let listening =
            ControlServer::start(&hub, &scratch.socket(), SocketAccess::default(), &stop);
        TestTap {
            listening: Some(listening.unwrap()),
            hub,
            scratch,
            stop,
        }
    }

    pub fn open(&self, demands: &[Demand], ring_bytes: u64) -> TapdiskTap {
        open(&self.scratch.socket(), demands, options(ring_bytes)).unwrap()
    }

    /// Disconnects all consumers.
    pub fn end(&mut self) {
        self.stop.raise();
        self.listening = None;
    }
}

pub fn hub(disks: usize) -> Arc<Hub> {
    let hub = Arc::new(Hub::default());
    for disk in 0..disks {
        hub.register(names(disk), Arc::new(DiskFigures::default), Arc::default())
            .unwrap();
    }
    hub
}

/// The name of disk number `disk`.
pub fn names(disk: usize) -> DiskWord {
    DiskWord {
        number: 0,
        vm: Some("web".into()),
        vdisk: Some(format!("/dev/vd{disk}")),
        pdisk: Some(format!("/images/{disk}.img")),
    }
}

pub fn options(ring_bytes: u64) -> TapdiskOptions {
    TapdiskOptions {
        ring_bytes,
        poll_interval: Duration::from_millis(1),
        epoch_offset_ns: Some(0),
        host: None,
        interval_shift_ns: Arc::default(),
        timeout: Duration::ZERO,
    }
}

/// The identity of an event: disk, id, kind, time.
pub type Key = (String, i64, String, i64);

/// An I/O queue that generates requests.
pub struct SimulatedQueue {
    recorder: Recorder,
    disk: usize,
    random: Rng,
    in_flight: Vec<(ReceivedRequest, Option<u64>)>,
    next_id: u64,
    step: u64,
    /// Its events, in order.
    pub recorded: Vec<Key>,
}

impl SimulatedQueue {
    /// I/O queue `queue` of `queues` of a disk, with ids of its own.
    pub fn new(hub: &Arc<Hub>, disk: usize, queue: u16, queues: u16) -> SimulatedQueue {
        let seed = 0x9e37_79b9_7f4a_7c15 ^ (disk as u64) << 17 ^ u64::from(queue) << 5;
        SimulatedQueue {
            recorder: Recorder::new(hub, disk as u16, queue).unwrap(),
            disk,
            random: Rng::with_seed(seed),
            in_flight: Vec::new(),
            next_id: u64::from(queue) + 1,
            step: u64::from(queues),
            recorded: Vec::new(),
        }
    }

    /// One round: takes and ends some requests, and may pause in between.
    pub fn round(&mut self) {
        self.recorder.begin();
        for _ in 0..self.random.u64(..6) {
            match self.random.u64(..2) {
                0 => self.take(),
                _ => self.finish_one(),
            }
            self.pause();
        }
        self.recorder.end();
        self.pause();
    }

    /// Ends the requests in flight.
    pub fn finish(&mut self) {
        self.recorder.begin();
        while !self.in_flight.is_empty() {
            self.finish_one();
        }
        self.recorder.end();
    }

    /// Rounds until this number of events was recorded, then the rest; returns the events.
    pub fn run(mut self, events: usize) -> Vec<Key> {
        while self.recorded.len() < events {
            self.round();
        }
        self.finish();
        std::mem::take(&mut self.recorded)
    }

    fn take(&mut self) {
        let op = Op::ALL[self.random.u64(..5) as usize];
        let is_flush = op == Op::Flush;
        let received = ReceivedRequest {
            request: Request {
                op,
                sector: if is_flush {
                    0
                } else {
                    self.random.u64(..1 << 20) * 8
                },
                skip_bytes: 0,
                bytes: if is_flush {
                    0
                } else {
                    (1 + self.random.u64(..64)) * 512
                },
                fua: self.random.u64(..8) == 0,
                unmap: false,
            },
            id: self.next_id,
            received_ns: monotonic_ns(),
            in_flight: self.in_flight.len() as u32 + 1,
            seek_sectors: (self.random.u64(..4) > 0).then_some(1),
            interarrival_ns: (self.random.u64(..4) > 0).then(|| self.random.u64(..1 << 20)),
        };
        self.next_id += self.step;
        self.recorder.request_received(&received);
        self.record(EventKind::Request, &received, received.received_ns);
        // Some are rejected and never submitted.
        let submitted = self.random.u64(..16) > 0;
        self.pause();
        let submitted_ns = submitted.then(monotonic_ns);
        self.in_flight.push((received, submitted_ns));
    }

    fn finish_one(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let at = self.random.u64(..self.in_flight.len() as u64) as usize;
        let (received, submitted_ns) = self.in_flight.swap_remove(at);
        let (outcome, kind) = match self.random.u64(..16) {
            0 => (Outcome::Failed(5), EventKind::Error),
            1 => (Outcome::Unsupported, EventKind::Unsupported),
            _ => (Outcome::Done, EventKind::Response),
        };
        let ended_ns = monotonic_ns();
        self.recorder.request_ended(&EndedRequest {
            received,
            submitted_ns,
            ended_ns,
            outcome,
        });
        self.record(kind, &received, ended_ns);
    }

    fn record(&mut self, kind: EventKind, request: &ReceivedRequest, ts: u64) {
        let disk = names(self.disk).pdisk.unwrap();
        let id = request.id as i64 | (self.disk as i64) << 48;
        self.recorded
            .push((disk, id, kind.as_str().into(), ts as i64));
    }

    /// Yields the processor now and then.
    fn pause(&mut self) {
        match self.random.u64(..64) {
            0 => thread::sleep(Duration::from_micros(self.random.u64(..300))),
            1..4 => thread::yield_now(),
            _ => {}
        }
    }
}

/// The events that a consumer received.
#[derive(Default)]
pub struct Received {
    pub rows: Vec<Key>,
    pub batches: Vec<Batch>,
    pub heartbeat: i64,
    pub is_over: bool,
}

impl Received {
    /// Receives until `enough`, or the end. Rows arrive in time order, and none at or before a
    /// heartbeat.
    pub fn receive_until(&mut self, tap: &mut dyn Tap, mut enough: impl FnMut(&Received) -> bool) {
        while !self.is_over && !enough(self) {
            match tap.next(Duration::from_millis(2)).unwrap() {
                TapEvent::Rows { batch, .. } => self.take(batch),
                TapEvent::Heartbeat(at) => {
                    assert!(at >= self.heartbeat, "time goes on");
                    self.heartbeat = at;
                }
                TapEvent::End => self.is_over = true,
                TapEvent::Quiet => {}
                TapEvent::Folded { .. } => panic!("no groups are demanded"),
            }
        }
    }

    fn take(&mut self, batch: Batch) {
        let schema = io_schema();
        let value = |row: usize, name: &str| batch.columns[schema.index(name)].value(row);
        let text = |value: Value| match value {
            Value::Text(text) => text.as_str().to_owned(),
            other => panic!("{other} is no text"),
        };
        for row in 0..batch.len() {
            let ts = batch.ts[row];
            assert!(
                ts > self.heartbeat,
                "{ts} after heartbeat {}",
                self.heartbeat
            );
            assert!(
                self.rows.last().is_none_or(|last| last.3 <= ts),
                "in order of time"
            );
            let Value::Int(id) = value(row, "req_id") else {
                panic!("every event has a number");
            };
            let (pdisk, kind) = (text(value(row, "pdisk")), text(value(row, "type")));
            self.rows.push((pdisk, id, kind, ts));
        }
        self.batches.push(batch);
    }
}

/// The demand of a recording.
pub fn all() -> [Demand; 1] {
    [everything()]
}

/// A counter of the tap, over all devices.
pub fn count(tap: &mut dyn Tap, counter: &str) -> i64 {
    let counts = tap.counts();
    let own = counts.iter().filter(|c| c.counter == counter);
    own.map(|c| c.total).sum()
}

/// Asserts that both hold the same, in any order.
pub fn assert_same(mut left: Vec<Key>, mut right: Vec<Key>) {
    left.sort_unstable();
    right.sort_unstable();
    assert_eq!(left.len(), right.len());
    for (left, right) in left.iter().zip(&right) {
        assert_eq!(left, right);
    }
}
