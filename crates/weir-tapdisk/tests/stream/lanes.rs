//! Lanes that are made up, the tap that they belong to, and a consumer that takes down what it hears.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use weir_model::event::io_schema;
use weir_model::{Batch, Demand, EventKind, Op, Value};
use weir_tap::tapdisk::words::{DiskFigures, DiskWord, everything};
use weir_tap::tapdisk::{TapdiskOptions, TapdiskTap, open};
use weir_tap::{Said, Tap, monotonic_ns};
use weir_tapdisk::{Access, Ended, Hub, Listening, Outcome, Recorder, Request, Stop, Taken};

/// A folder that goes away.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("wst-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn socket(&self) -> PathBuf {
        self.0.join("d.tap")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A tap without disks behind its names.
pub struct MadeUp {
    pub hub: Arc<Hub>,
    pub scratch: Scratch,
    stop: Stop,
    listening: Option<Listening>,
}

impl MadeUp {
    pub fn new(disks: usize) -> MadeUp {
        let (scratch, stop) = (Scratch::new(), Stop::new().unwrap());
        let hub = hub(disks);
        let listening = Listening::start(&hub, &scratch.socket(), Access::default(), &stop);
        MadeUp {
            listening: Some(listening.unwrap()),
            hub,
            scratch,
            stop,
        }
    }

    pub fn open(&self, demands: &[Demand], ring_bytes: u64) -> TapdiskTap {
        open(&self.scratch.socket(), demands, options(ring_bytes)).unwrap()
    }

    /// Takes leave of all consumers.
    pub fn end(&mut self) {
        self.stop.raise();
        self.listening = None;
    }
}

pub fn hub(disks: usize) -> Arc<Hub> {
    let hub = Arc::new(Hub::default());
    for disk in 0..disks {
        hub.enlist(names(disk), Arc::new(DiskFigures::default))
            .unwrap();
    }
    hub
}

/// What disk number `disk` is called.
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
        rhythm: Duration::from_millis(1),
        epoch_offset_ns: Some(0),
        host: None,
        patience: Duration::ZERO,
    }
}

/// Numbers that look random: Marsaglia's xorshift64.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// What makes an event the one that it is: disk, id, kind, time.
pub type Key = (String, i64, String, i64);

/// A lane that makes requests up.
pub struct Lane {
    recorder: Recorder,
    disk: usize,
    dice: Dice,
    under_way: Vec<(Taken, Option<u64>)>,
    next_id: u64,
    step: u64,
    /// Everything it told, in order.
    pub told: Vec<Key>,
}

impl Lane {
    /// Lane `queue` of `queues` of a disk, with numbers of its own.
    pub fn new(hub: &Arc<Hub>, disk: usize, queue: u16, queues: u16) -> Lane {
        let seed = 0x9e37_79b9_7f4a_7c15 ^ (disk as u64) << 17 ^ u64::from(queue) << 5;
        Lane {
            recorder: Recorder::new(hub, disk as u16, queue).unwrap(),
            disk,
            dice: Dice(seed),
            under_way: Vec::new(),
            next_id: u64::from(queue) + 1,
            step: u64::from(queues),
            told: Vec::new(),
        }
    }

    /// One round: takes and ends some requests, and may dawdle in between.
    pub fn round(&mut self) {
        self.recorder.begin();
        for _ in 0..self.dice.below(6) {
            match self.dice.below(2) {
                0 => self.take(),
                _ => self.finish_one(),
            }
            self.dawdle();
        }
        self.recorder.end();
        self.dawdle();
    }

    /// Ends what is under way.
    pub fn finish(&mut self) {
        self.recorder.begin();
        while !self.under_way.is_empty() {
            self.finish_one();
        }
        self.recorder.end();
    }

    /// Rounds until so many events were told, then the rest; what was told.
    pub fn run(mut self, events: usize) -> Vec<Key> {
        while self.told.len() < events {
            self.round();
        }
        self.finish();
        std::mem::take(&mut self.told)
    }

    fn take(&mut self) {
        let op = Op::ALL[self.dice.below(5) as usize];
        let is_flush = op == Op::Flush;
        let taken = Taken {
            request: Request {
                op,
                sector: if is_flush {
                    0
                } else {
                    self.dice.below(1 << 20) * 8
                },
                skip_bytes: 0,
                bytes: if is_flush {
                    0
                } else {
                    (1 + self.dice.below(64)) * 512
                },
                fua: self.dice.below(8) == 0,
                unmap: false,
            },
            id: self.next_id,
            taken_ns: monotonic_ns(),
            in_flight: self.under_way.len() as u32 + 1,
            seek_sectors: (self.dice.below(4) > 0).then_some(1),
        };
        self.next_id += self.step;
        self.recorder.taken(&taken);
        self.tell(EventKind::Request, &taken, taken.taken_ns);
        // Some are refused and never submitted.
        let submitted = self.dice.below(16) > 0;
        self.dawdle();
        let submitted_ns = submitted.then(monotonic_ns);
        self.under_way.push((taken, submitted_ns));
    }

    fn finish_one(&mut self) {
        if self.under_way.is_empty() {
            return;
        }
        let at = self.dice.below(self.under_way.len() as u64) as usize;
        let (taken, submitted_ns) = self.under_way.swap_remove(at);
        let (outcome, kind) = match self.dice.below(16) {
            0 => (Outcome::Failed(5), EventKind::Error),
            1 => (Outcome::Unsupported, EventKind::Unsupported),
            _ => (Outcome::Done, EventKind::Response),
        };
        let ended_ns = monotonic_ns();
        self.recorder.ended(&Ended {
            taken,
            submitted_ns,
            ended_ns,
            outcome,
        });
        self.tell(kind, &taken, ended_ns);
    }

    fn tell(&mut self, kind: EventKind, taken: &Taken, ts: u64) {
        let disk = names(self.disk).pdisk.unwrap();
        let id = taken.id as i64 | (self.disk as i64) << 48;
        self.told.push((disk, id, kind.as_str().into(), ts as i64));
    }

    /// Loses the processor now and then.
    fn dawdle(&mut self) {
        match self.dice.below(64) {
            0 => thread::sleep(Duration::from_micros(self.dice.below(300))),
            1..4 => thread::yield_now(),
            _ => {}
        }
    }
}

/// What a consumer heard.
#[derive(Default)]
pub struct Heard {
    pub rows: Vec<Key>,
    pub batches: Vec<Batch>,
    pub heartbeat: i64,
    pub is_over: bool,
}

impl Heard {
    /// Hears until `enough`, or the end. Rows come in order of time, and none that a heartbeat has
    /// excluded.
    pub fn hear(&mut self, tap: &mut dyn Tap, mut enough: impl FnMut(&Heard) -> bool) {
        while !self.is_over && !enough(self) {
            match tap.next(Duration::from_millis(2)).unwrap() {
                Said::Rows { batch, .. } => self.take(batch),
                Said::Heartbeat(at) => {
                    assert!(at >= self.heartbeat, "time goes on");
                    self.heartbeat = at;
                }
                Said::End => self.is_over = true,
                Said::Quiet => {}
                Said::Folded { .. } => panic!("nobody asked for groups"),
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

/// The recording's demand.
pub fn all() -> [Demand; 1] {
    [everything()]
}

/// A count of the tap, over all devices.
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
