//! [`Poller`]: a thread that asks all VMs for their counters at a steady pace, and switches latency
//! histograms on and off again.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use weir_model::Nanos;

use super::subject::Subject;
use super::{
    Address, BlockStats, Latencies, Monitor, QmpError, block_stats, set_latency_histogram,
};
use crate::ebpf::{clock, privileges};
use crate::inventory::Snapshot;

/// VMs that are asked at the same time.
const ASKED_AT_ONCE: usize = 4;

/// How long a VM may take for an answer: a tenth of a millisecond is usual, but a QEMU that emulates
/// with all its might takes its time.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a VM that did not answer is left alone, so that a hung one does not slow down the others.
const REST: Duration = Duration::from_secs(10);

/// Rounds that wait to be taken; more are skipped. Nothing is lost by that but resolution: QEMU's
/// counters go on.
const ROUNDS_MAX: usize = 4;

/// What says which VMs there are.
pub type Look = Box<dyn Fn() -> Arc<Snapshot> + Send>;

/// What one VM said.
#[derive(Debug)]
pub struct Reading {
    /// The VM.
    pub subject: Subject,
    /// When it answered, on the clock that never steps.
    pub at_ns: Nanos,
    /// What.
    pub stats: Result<Vec<BlockStats>, QmpError>,
}

/// What all VMs said to one poll.
pub type Round = Vec<Reading>;

/// The thread. It ends, and removes the histograms that it made, when this is dropped.
#[derive(Debug)]
pub struct Poller {
    /// What was read.
    pub rounds: Receiver<Round>,
    /// The thread ends when this is closed.
    open: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Poller {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start(look: Look, every: Duration, histograms: bool) -> std::io::Result<Poller> {
        let (told, rounds) = sync_channel(ROUNDS_MAX);
        let (open, closed) = mpsc::channel();
        let polling = move || {
            // A kernel that does not take rights away leaves them; the polls are the same.
            let _ = privileges::keep_what_asking_takes();
            let mut polls = Polls {
                histograms: histograms.then(Mutex::default),
                resting: HashMap::new(),
            };
            let mut due = Instant::now();
            loop {
                let round = polls.round(&look());
                if let Err(TrySendError::Disconnected(_)) = told.try_send(round) {
                    break;
                }
                due = (due + every).max(Instant::now());
                match closed.recv_timeout(due.saturating_duration_since(Instant::now())) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
                }
            }
            polls.end();
        };
        let thread = thread::Builder::new().name("qmp".into()).spawn(polling)?;
        Ok(Poller {
            rounds,
            open: Some(open),
            thread: Some(thread),
        })
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        drop(self.open.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been told on standard error already.
            let _ = thread.join();
        }
    }
}

/// The boundaries of weir's own histograms: from 8 µs to 8.6 s, two to the octave, which is as fine
/// as a latency is worth being known and costs QEMU six comparisons a request.
pub fn boundaries_ns() -> Vec<i64> {
    let boundary = |half_octave: i32| 2f64.powf(13.0 + f64::from(half_octave) / 2.0).round() as i64;
    (0..=40).map(boundary).collect()
}

/// What the thread remembers.
struct Polls {
    /// The histograms that are ours, by VM and device; `None` when none are wanted.
    histograms: Option<Mutex<HashSet<(Address, String)>>>,
    /// Until when VMs that did not answer are left alone.
    resting: HashMap<Address, Instant>,
}

impl Polls {
    fn round(&mut self, snapshot: &Snapshot) -> Round {
        let now = Instant::now();
        self.resting.retain(|_, until| *until > now);
        let mut subjects = Subject::all(snapshot);
        subjects.retain(|s| !self.resting.contains_key(&s.address));
        let next = AtomicUsize::new(0);
        let readings = Mutex::new(Vec::with_capacity(subjects.len()));
        let ask = || {
            while let Some(subject) = subjects.get(next.fetch_add(1, Ordering::Relaxed)) {
                let stats = self.ask(subject);
                let reading = Reading {
                    subject: subject.clone(),
                    at_ns: clock::monotonic_ns() as i64,
                    stats,
                };
                readings.lock().expect("no panic while held").push(reading);
            }
        };
        thread::scope(|scope| {
            for _ in 1..ASKED_AT_ONCE.min(subjects.len()) {
                scope.spawn(ask);
            }
            ask();
        });
        let readings = readings.into_inner().expect("no panic while held");
        for reading in &readings {
            if let Err(QmpError::Silent { .. }) = reading.stats {
                let until = Instant::now() + REST;
                self.resting.insert(reading.subject.address.clone(), until);
            }
        }
        readings
    }

    fn ask(&self, subject: &Subject) -> Result<Vec<BlockStats>, QmpError> {
        subject.address.visit(PATIENCE, |qemu| {
            let stats = block_stats(qemu)?;
            match &self.histograms {
                Some(ours) if switch_on(qemu, subject, &stats, ours)? => block_stats(qemu),
                _ => Ok(stats),
            }
        })
    }

    /// Removes our histograms.
    fn end(self) {
        let Some(ours) = self.histograms else {
            return;
        };
        let mut by_vm: HashMap<Address, Vec<String>> = HashMap::new();
        for (address, qdev) in ours.into_inner().expect("no panic while held") {
            by_vm.entry(address).or_default().push(qdev);
        }
        for (address, qdevs) in by_vm {
            // A VM that has ended has none; one that does not answer keeps them, which costs it a
            // few nanoseconds a request, and the next one to ask finds and removes them.
            let _ = address.visit(PATIENCE, |qemu| {
                qdevs
                    .iter()
                    .try_for_each(|qdev| match set_latency_histogram(qemu, qdev, None) {
                        Err(error) if !error.is_refusal() => Err(error),
                        _ => Ok(()),
                    })
            });
        }
    }
}

/// Switches histograms on where there are none; true when there were such disks. A histogram with
/// somebody else's boundaries serves as it is and stays; one with ours is a remainder of our own.
fn switch_on(
    qemu: &mut dyn Monitor,
    subject: &Subject,
    stats: &[BlockStats],
    ours: &Mutex<HashSet<(Address, String)>>,
) -> Result<bool, QmpError> {
    let boundaries = boundaries_ns();
    let mut any = false;
    for disk in stats {
        let Some(qdev) = &disk.qdev else {
            continue;
        };
        let mine = match &disk.latencies {
            Latencies {
                read: None,
                write: None,
                flush: None,
            } => match set_latency_histogram(qemu, qdev, Some(&boundaries)) {
                Err(error) if error.is_refusal() => false,
                done => {
                    done?;
                    any = true;
                    true
                }
            },
            there => {
                let read = there.read.as_ref();
                read.is_some_and(|h| h.boundaries_ns == boundaries)
            }
        };
        if mine {
            let key = (subject.address.clone(), qdev.clone());
            ours.lock().expect("no panic while held").insert(key);
        }
    }
    Ok(any)
}
