//! [`Poller`]: a thread that polls the counters of all VMs at a constant interval; [`QmpPoller`]
//! sends the queries, and switches latency histograms on and off.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{
    self, Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, sync_channel,
};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weir_model::{Nanos, Symbol};

use super::subject::QmpSubject;
use super::{
    BlockStats, Cause, Latencies, QemuMonitor, QmpAddress, QmpError, block_stats,
    set_latency_histogram,
};
use crate::ebpf::{clock, privileges};
use crate::inspection::message::{self, ConversationKind, PollAnswer};
use crate::inspection::{Closer, Conversation, Inspection, lost};
use crate::inventory::Snapshot;

/// Maximum number of VMs that are queried concurrently.
const ASKED_AT_ONCE: usize = 4;

/// Timeout of each response: a tenth of a millisecond is usual, but a QEMU whose CPU emulation uses
/// all its time responds slowly.
const QUERY_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause after a timeout, so that a VM that hangs does not delay the others.
const REST: Duration = Duration::from_secs(10);

/// Maximum number of queued rounds; more are skipped. This reduces only the resolution: QEMU's
/// counters are cumulative.
const ROUNDS_MAX: usize = 4;

/// Maximum number of drives of one VM whose counters are read; more are an error of that VM.
const DRIVES_MAX: usize = 4096;

/// Maximum number of VMs in one round of the inspection process.
const READINGS_MAX: usize = 1 << 18;

/// Returns the current VMs.
pub type ListVms = Box<dyn Fn() -> Arc<Snapshot> + Send>;

/// The response of one VM.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VmResponse {
    /// The VM.
    pub vm: Symbol,
    /// QEMU's process.
    pub pid: Option<u32>,
    /// Time of the response, on the monotonic clock.
    pub at_ns: Nanos,
    /// The counters, or the error.
    pub drives: Result<Vec<PolledDrive>, PollFailure>,
}

/// The counters of a drive.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PolledDrive {
    /// The virtual disk, if the inventory contains it.
    pub vdisk: Option<Symbol>,
    /// QEMU's counters.
    pub stats: BlockStats,
}

/// The reason why a VM could not be polled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PollFailure {
    /// The kind of error.
    pub cause: Cause,
    /// The error's text.
    pub text: String,
}

/// The responses of all VMs to one poll.
pub type PollResults = Vec<VmResponse>;

/// The polling thread. It ends, and removes the histograms that it created, when this is dropped.
#[derive(Debug)]
pub struct Poller {
    /// The results.
    pub rounds: Receiver<PollResults>,
    /// The error that ended the thread, if any.
    pub lost: Arc<OnceLock<String>>,
    /// The thread ends when this is closed.
    open: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Ends the wait for an inspection process that does not respond.
    closer: Option<Closer>,
}

/// Timeout at the end for a round in progress and for the removal of histograms.
const END: Duration = Duration::from_secs(10);

impl Poller {
    /// Starts the thread, which queries the VMs itself.
    ///
    /// # Errors
    /// If the system cannot create a thread.
    pub fn start(look: ListVms, every: Duration, histograms: bool) -> io::Result<Poller> {
        Poller::run(None, |pace, events| {
            let polling = move || {
                // If the kernel cannot drop privileges, they remain; polling is unaffected.
                let _ = privileges::keep_what_asking_takes();
                let mut polls = QmpPoller::new(histograms);
                let polled = pace.keep(every, &events, || Ok(polls.round(&look())));
                polled.expect("asking here does not fail");
                polls.end();
            };
            thread::Builder::new().name("qmp".into()).spawn(polling)
        })
    }

    /// Starts the thread, which has the inspection process query the VMs that this process lists.
    ///
    /// # Errors
    /// If the process has ended, or the system cannot create a thread.
    pub fn inspected(
        process: &Arc<Inspection>,
        every: Duration,
        histograms: bool,
    ) -> io::Result<Poller> {
        let begin = message::PollsRequest { histograms };
        let mut conversation = process
            .converse(ConversationKind::Polls, &begin, None)
            .map_err(lost)?;
        let closer = conversation.closer()?;
        Poller::run(Some(closer), |pace, events| {
            let why = pace.lost.clone();
            privileges::spawn_reduced("qmp", move || {
                match pace.keep(every, &events, || round(&mut conversation)) {
                    Ok(()) => conversation.end(),
                    Err(error) => drop(why.set(error.to_string())),
                }
            })
        })
    }

    fn run(
        closer: Option<Closer>,
        start: impl FnOnce(Pace, SyncSender<PollResults>) -> io::Result<JoinHandle<()>>,
    ) -> io::Result<Poller> {
        let (events, rounds) = sync_channel(ROUNDS_MAX);
        let (open, closed) = mpsc::channel();
        let lost = Arc::<OnceLock<String>>::default();
        let pace = Pace {
            closed,
            lost: lost.clone(),
        };
        let thread = start(pace, events)?;
        Ok(Poller {
            rounds,
            lost,
            open: Some(open),
            thread: Some(thread),
            closer,
        })
    }
}

/// The interval of polls, and the end condition.
struct Pace {
    closed: Receiver<()>,
    lost: Arc<OnceLock<String>>,
}

impl Pace {
    /// Polls every `every` until the receiver is dropped.
    fn keep(
        &self,
        every: Duration,
        events: &SyncSender<PollResults>,
        mut poll: impl FnMut() -> io::Result<PollResults>,
    ) -> io::Result<()> {
        let mut due = Instant::now();
        loop {
            if let Err(TrySendError::Disconnected(_)) = events.try_send(poll()?) {
                return Ok(());
            }
            due = (due + every).max(Instant::now());
            match self
                .closed
                .recv_timeout(due.saturating_duration_since(Instant::now()))
            {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }
}

/// One round of the inspection process.
fn round(process: &mut Conversation) -> io::Result<PollResults> {
    process.request(&())?;
    let mut round = Vec::new();
    loop {
        match process.answer()? {
            PollAnswer::Done => return Ok(round),
            PollAnswer::Reading(reading) if round.len() < READINGS_MAX => round.push(*reading),
            PollAnswer::Reading(_) => {
                return Err(lost(io::Error::other("a round without end")));
            }
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        drop(self.open.take());
        let Some(thread) = self.thread.take() else {
            return;
        };
        if let Some(closer) = &self.closer {
            let until = Instant::now() + END;
            while !thread.is_finished() && Instant::now() < until {
                thread::sleep(Duration::from_millis(1));
            }
            closer.close();
        }
        // A panic in the thread has been reported on standard error.
        let _ = thread.join();
    }
}

impl VmResponse {
    fn new(subject: &QmpSubject, stats: Result<Vec<BlockStats>, QmpError>) -> VmResponse {
        let at_ns = clock::monotonic_ns() as i64;
        let drive = |stats: BlockStats| {
            let disk = subject.disk(stats.qdev.as_deref(), stats.node.as_deref());
            PolledDrive {
                vdisk: disk.map(|disk| disk.vdisk),
                stats,
            }
        };
        let drives = match stats {
            Ok(stats) if stats.len() > DRIVES_MAX => Err(QmpError::Garbled {
                at: subject.address.to_string(),
                why: format!("more than {DRIVES_MAX} drives"),
            }),
            other => other,
        };
        VmResponse {
            vm: subject.vm,
            pid: subject.pid,
            at_ns,
            drives: match drives {
                Ok(stats) => Ok(stats.into_iter().map(drive).collect()),
                Err(error) => Err(PollFailure {
                    cause: error.cause(),
                    text: error.to_string(),
                }),
            },
        }
    }
}

/// The boundaries of weir's own histograms: from 8 µs to 8.6 s, two per octave, a resolution that
/// is sufficient for latencies and costs QEMU six comparisons per request.
pub fn boundaries_ns() -> Vec<i64> {
    let boundary = |half_octave: i32| 2f64.powf(13.0 + f64::from(half_octave) / 2.0).round() as i64;
    (0..=40).map(boundary).collect()
}

/// Queries VMs, and stores which histograms it switched on and which VMs did not respond.
#[derive(Debug)]
pub struct QmpPoller {
    /// The histograms created by weir, by VM and device; `None` if none are requested.
    histograms: Option<Mutex<HashSet<(QmpAddress, String)>>>,
    /// The time until which VMs that did not respond are skipped.
    resting: HashMap<QmpAddress, Instant>,
}

impl QmpPoller {
    /// No queries yet.
    pub fn new(histograms: bool) -> QmpPoller {
        QmpPoller {
            histograms: histograms.then(Mutex::default),
            resting: HashMap::new(),
        }
    }

    /// Queries all VMs of `snapshot` except those that recently did not respond.
    pub fn round(&mut self, snapshot: &Snapshot) -> PollResults {
        let now = Instant::now();
        self.resting.retain(|_, until| *until > now);
        let mut subjects = QmpSubject::all(snapshot);
        subjects.retain(|s| !self.resting.contains_key(&s.address));
        let next = AtomicUsize::new(0);
        let readings = Mutex::new(Vec::with_capacity(subjects.len()));
        let ask = || {
            while let Some(subject) = subjects.get(next.fetch_add(1, Ordering::Relaxed)) {
                let stats = self.ask(subject);
                let reading = VmResponse::new(subject, stats);
                let mut readings = readings.lock().expect("no panic while held");
                readings.push((subject, reading));
            }
        };
        thread::scope(|scope| {
            for _ in 1..ASKED_AT_ONCE.min(subjects.len()) {
                scope.spawn(ask);
            }
            ask();
        });
        let readings = readings.into_inner().expect("no panic while held");
        let is_silent = |failure: &PollFailure| failure.cause == Cause::Silent;
        for (subject, reading) in &readings {
            if reading.drives.as_ref().is_err_and(is_silent) {
                let until = Instant::now() + REST;
                self.resting.insert(subject.address.clone(), until);
            }
        }
        readings.into_iter().map(|(_, reading)| reading).collect()
    }

    fn ask(&self, subject: &QmpSubject) -> Result<Vec<BlockStats>, QmpError> {
        subject.address.visit(QUERY_TIMEOUT, |qemu| {
            let stats = block_stats(qemu)?;
            match &self.histograms {
                Some(ours) if switch_on(qemu, subject, &stats, ours)? => block_stats(qemu),
                _ => Ok(stats),
            }
        })
    }

    /// Removes weir's histograms.
    pub fn end(self) {
        let Some(ours) = self.histograms else {
            return;
        };
        let mut by_vm: HashMap<QmpAddress, Vec<String>> = HashMap::new();
        for (address, qdev) in ours.into_inner().expect("no panic while held") {
            by_vm.entry(address).or_default().push(qdev);
        }
        let answers = |(address, _): &(QmpAddress, _)| !self.resting.contains_key(address);
        for (address, qdevs) in by_vm.into_iter().filter(answers) {
            // A VM that has ended has none; one that does not respond keeps them, at a cost of a
            // few nanoseconds per request, and the next poller finds and removes them.
            let _ = address.visit(QUERY_TIMEOUT, |qemu| {
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

/// Switches histograms on for disks that have none; true if there were such disks. A histogram with
/// other boundaries belongs to another client and is used unchanged; one with weir's boundaries is
/// left over from a previous run.
fn switch_on(
    qemu: &mut dyn QemuMonitor,
    subject: &QmpSubject,
    stats: &[BlockStats],
    ours: &Mutex<HashSet<(QmpAddress, String)>>,
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
