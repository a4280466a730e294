//! [`play`] issues the requests of a plan; [`ReplayLoad`] does that again and again in a thread.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;
use weir_model::{Nanos, SECTOR_BYTES};
use weir_runtime::failure::Failure;
use weir_runtime::run_loop::wall_clock;
use weir_tapdisk::direct_io::{DEPTH_MAX, DirectIo, DirectRequest};

use super::plan::{Pacing, PlannedRequest, ReplayPlan};
use super::scratch::ScratchDisk;

/// Before this time is left, the thread polls: a wait ends late by about as much.
const POLLED: Duration = Duration::from_micros(80);

/// The longest wait, after which an interruption is noticed.
const WAIT_MAX: Duration = Duration::from_millis(20);

/// What was issued.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PlayCounts {
    /// Requests that were issued.
    pub issued: u64,
    /// Those that failed, by errno.
    pub failed: BTreeMap<i32, u64>,
    /// How often a request waited since no more could be in flight.
    pub depth_reached: u64,
}

/// A replay that ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Played {
    /// When it began, in nanoseconds since the Unix epoch.
    pub start_ns: Nanos,
    /// What was issued.
    pub counts: PlayCounts,
    /// Whether it was interrupted.
    pub is_interrupted: bool,
}

/// The ring for the requests of a plan.
///
/// # Errors
/// When the kernel does not permit io_uring.
pub fn direct_io(disk: &ScratchDisk, plan: &ReplayPlan) -> Result<DirectIo, Failure> {
    let bytes = plan.sectors_max().max(disk.block_sectors) * SECTOR_BYTES as u64;
    let bytes = u32::try_from(bytes).expect("the plan limits it");
    let io = disk
        .file()
        .and_then(|file| DirectIo::new(file, DEPTH_MAX, bytes));
    io.map_err(|error| Failure::world(format_args!("io_uring: {error}; a replay needs it")))
}

/// Issues all requests, and waits for their ends. `progress` is called often with the number of
/// requests that were issued, and ends the replay by `false`.
///
/// # Errors
/// When the ring fails.
pub fn play(
    plan: &ReplayPlan,
    io: &mut DirectIo,
    progress: &mut dyn FnMut(usize) -> bool,
) -> std::io::Result<Played> {
    let start = Instant::now();
    let start_ns = wall_clock();
    let since = |at: Instant| -> Nanos {
        Nanos::try_from(at.duration_since(start).as_nanos()).unwrap_or(Nanos::MAX)
    };
    let mut state = PlayState::default();
    let mut done = Vec::new();
    let mut is_interrupted = false;
    loop {
        let now = since(Instant::now());
        let mut due = None;
        while let Some(request) = plan.requests.get(state.next).filter(|_| !is_interrupted) {
            due = state.due(plan.pacing, request);
            if due.is_none_or(|due| due > now) {
                break;
            }
            if io.is_full() {
                state.counts.depth_reached += 1;
                due = None;
                break;
            }
            io.push(&direct(request));
            state.issued(since(Instant::now()));
        }
        io.submit()?;
        let in_flight = io.in_flight();
        io.reap(&mut done);
        if in_flight > io.in_flight() {
            state.ended(since(Instant::now()), &mut done);
        }
        let is_all = is_interrupted || state.next == plan.requests.len();
        if is_all && io.in_flight() == 0 {
            return Ok(Played {
                start_ns,
                counts: state.counts,
                is_interrupted,
            });
        }
        is_interrupted |= !progress(state.next);
        let left = match due {
            Some(due) if !is_all => due - since(Instant::now()),
            _ => Nanos::MAX,
        };
        let left = Duration::from_nanos(u64::try_from(left).unwrap_or(0));
        if left > POLLED && in_flight == io.in_flight() {
            io.wait((left - POLLED).min(WAIT_MAX))?;
        } else if left > Duration::ZERO {
            std::hint::spin_loop();
        }
    }
}

/// How far a replay is.
#[derive(Debug, Default)]
struct PlayState {
    next: usize,
    counts: PlayCounts,
    /// The ends so far, and when the last one was.
    ended: u64,
    /// Closed loop: the times of ends that later requests may wait for, after `passed` others.
    ends: VecDeque<Nanos>,
    passed: u64,
    /// When the last request was issued.
    last_issue: Nanos,
}

impl PlayState {
    /// When a request is due; `None` if it waits for ends.
    fn due(&mut self, pacing: Pacing, request: &PlannedRequest) -> Option<Nanos> {
        if pacing == Pacing::Open {
            return Some(request.due_ns);
        }
        if self.ended < request.ended_before {
            return None;
        }
        // The time of the end that it waits for; later ends do not delay it.
        while self.passed + 1 < request.ended_before {
            self.ends.pop_front();
            self.passed += 1;
        }
        let end = match request.ended_before {
            0 => None,
            _ => self.ends.front(),
        };
        let latest = end.copied().unwrap_or(0).max(self.last_issue);
        Some(latest + request.pause_ns)
    }

    fn issued(&mut self, now: Nanos) {
        self.next += 1;
        self.counts.issued += 1;
        self.last_issue = now;
    }

    fn ended(&mut self, now: Nanos, done: &mut Vec<weir_tapdisk::direct_io::DirectCompletion>) {
        for completion in done.drain(..) {
            self.ended += 1;
            self.ends.push_back(now);
            if let Some(errno) = completion.errno {
                *self.counts.failed.entry(errno).or_default() += 1;
            }
        }
    }
}

fn direct(request: &PlannedRequest) -> DirectRequest {
    DirectRequest {
        op: request.op,
        offset_bytes: request.sector * SECTOR_BYTES as u64,
        bytes: u32::try_from(request.sectors * SECTOR_BYTES as u64).expect("the plan limits it"),
        token: 0,
    }
}

/// A replay in a thread, from the beginning whenever it has ended.
#[derive(Debug)]
pub struct ReplayLoad {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The longest time without an issue.
    pub gap: Duration,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<LoadState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LoadState {
    /// Whether it is to run, and whether it runs.
    is_wanted: bool,
    is_running: bool,
    is_ending: bool,
    error: Option<String>,
    failed: BTreeMap<i32, u64>,
}

impl ReplayLoad {
    /// A load that does not run yet.
    pub fn new(plan: Arc<ReplayPlan>, mut io: DirectIo) -> ReplayLoad {
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let gap = Duration::from_nanos(u64::try_from(plan.gap_ns_max()).unwrap_or(0));
        let thread = std::thread::spawn(move || {
            while of_thread.wait_to_run() {
                let played = play(&plan, &mut io, &mut |_| of_thread.lock().is_wanted);
                let mut state = of_thread.lock();
                match played {
                    Ok(played) => {
                        for (errno, count) in played.counts.failed {
                            *state.failed.entry(errno).or_default() += count;
                        }
                    }
                    Err(error) => {
                        state.error = Some(error.to_string());
                        state.is_wanted = false;
                    }
                }
            }
        });
        ReplayLoad {
            shared,
            thread: Some(thread),
            gap,
        }
    }

    /// Ends the present run, and waits until no request is in flight.
    ///
    /// # Errors
    /// When the replay has failed.
    pub fn pause(&self) -> Result<(), Failure> {
        let mut state = self.shared.lock();
        state.is_wanted = false;
        while state.is_running {
            state = self.shared.changed.wait(state).expect(UNPOISONED);
        }
        match state.error.take() {
            Some(error) => Err(Failure::world(format_args!("the replay failed: {error}"))),
            None => Ok(()),
        }
    }

    /// Begins with the first request.
    pub fn start(&self) {
        let mut state = self.shared.lock();
        (state.is_wanted, state.is_running) = (true, true);
        self.shared.changed.notify_all();
    }

    /// The requests that failed so far, by errno.
    pub fn failed(&self) -> BTreeMap<i32, u64> {
        self.shared.lock().failed.clone()
    }
}

impl Drop for ReplayLoad {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.is_wanted = false;
            state.is_ending = true;
            self.shared.changed.notify_all();
        }
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
    }
}

const UNPOISONED: &str = "no panic while locked";

impl Shared {
    fn lock(&self) -> MutexGuard<'_, LoadState> {
        self.state.lock().expect(UNPOISONED)
    }

    /// Waits until a run is wanted; false at the end.
    fn wait_to_run(&self) -> bool {
        let mut state = self.lock();
        while !state.is_wanted && !state.is_ending {
            state.is_running = false;
            self.changed.notify_all();
            state = self.changed.wait(state).expect(UNPOISONED);
        }
        !state.is_ending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::Op;

    fn waiting(ended_before: u64, pause_ns: Nanos) -> PlannedRequest {
        PlannedRequest {
            due_ns: 0,
            op: Op::Read,
            sector: 0,
            sectors: 8,
            ended_before,
            pause_ns,
        }
    }

    #[test]
    fn a_closed_loop_is_due_a_pause_after_the_end_that_it_waits_for() {
        let mut state = PlayState::default();
        let end = |state: &mut PlayState, now, count: usize| {
            let completion = weir_tapdisk::direct_io::DirectCompletion {
                token: 0,
                errno: None,
            };
            state.ended(now, &mut vec![completion; count]);
        };
        assert_eq!(state.due(Pacing::Closed, &waiting(0, 0)), Some(0));
        state.issued(5);
        assert_eq!(state.due(Pacing::Closed, &waiting(0, 10)), Some(15));
        state.issued(15);
        assert_eq!(state.due(Pacing::Closed, &waiting(1, 7)), None);
        end(&mut state, 100, 1);
        assert_eq!(state.due(Pacing::Closed, &waiting(1, 7)), Some(107));
        // A later end does not delay it.
        end(&mut state, 105, 1);
        assert_eq!(state.due(Pacing::Closed, &waiting(1, 7)), Some(107));
        state.issued(107);
        assert_eq!(state.due(Pacing::Closed, &waiting(2, 1)), Some(108));
        assert_eq!(state.due(Pacing::Closed, &waiting(3, 1)), None);
    }
}
