//! The loop of the monitor's thread: processes events of the network and advances time until a
//! signal arrives.

use std::ops::RangeInclusive;
use std::time::Duration;

use weir_model::Nanos;
use weir_wire::{EventQueue, FleetClock, NextEvent, ServerEvent};

use super::Monitor;
use weir_runtime::run_loop::Stop;

/// The maximum sleep of the loop; clocks, limits and signals are checked as often. It is longer
/// than the default interval of heartbeats, so that a step of time is made when the messages have
/// arrived, and not just before.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The minimum interval between steps of time, so that the heartbeats of a thousand agents do not
/// cause a thousand steps: a part of the interval of heartbeats, within bounds. A step visits all
/// agents.
const TICKS_NS: RangeInclusive<Nanos> = 5_000_000..=250_000_000;

/// The number of steps in an interval of heartbeats, where the bounds permit it.
const TICKS_OF_HEARTBEAT: Nanos = 20;

/// Maximum number of events processed before time advances.
const TURN: usize = 10_000;

/// What the loop passes to its caller.
pub enum LoopEvent {
    /// A request of a client.
    Request(ServerEvent),
    /// Messages of agents were processed. They are acknowledged next.
    Received,
    /// Time has advanced: queries may have emitted results, or failed.
    Advanced,
}

/// Runs by `clock` until a signal arrives or the network has ended; then results have been emitted,
/// saved and acknowledged. `handle` receives every event of the loop.
///
/// Returns the signal, if there was one.
pub fn run(
    monitor: &mut Monitor,
    events: &mut EventQueue,
    clock: &FleetClock,
    stop: &Stop,
    handle: &mut dyn FnMut(&mut Monitor, LoopEvent, Nanos),
) -> Option<i32> {
    let mut ticked = Nanos::MIN;
    // Whether something has happened since the last step of time.
    let mut is_due = false;
    loop {
        let tick_ns = monitor.options.heartbeat / TICKS_OF_HEARTBEAT;
        let tick_ns = tick_ns.clamp(*TICKS_NS.start(), *TICKS_NS.end());
        let mut timeout = wait(monitor, clock.now(), ticked, tick_ns, is_due);
        for _ in 0..TURN {
            match events.next(timeout) {
                NextEvent::Event(event) => {
                    is_due = true;
                    let now = clock.now();
                    if let Some(asked) = monitor.take(event, now) {
                        handle(monitor, LoopEvent::Request(asked), now);
                    }
                }
                NextEvent::Timeout => {
                    is_due = true;
                    break;
                }
                NextEvent::Ended => return end(monitor, clock, stop, handle),
            }
            timeout = Duration::ZERO;
            // A continuous flow of messages does not prevent time from advancing.
            if clock.now().saturating_sub(ticked) > 4 * tick_ns {
                break;
            }
        }
        let now = clock.now();
        if now < ticked || now.saturating_sub(ticked) >= tick_ns {
            (ticked, is_due) = (now, false);
            monitor.step_by = None;
            handle(monitor, LoopEvent::Received, now);
            monitor.tick(now);
            handle(monitor, LoopEvent::Advanced, now);
        }
        if stop.signal().is_some() {
            return end(monitor, clock, stop, handle);
        }
    }
}

/// How long the loop may sleep at `now` after the step at `ticked`.
fn wait(monitor: &Monitor, now: Nanos, ticked: Nanos, tick_ns: Nanos, is_due: bool) -> Duration {
    let first = ticked.saturating_add(tick_ns);
    let due = is_due
        .then_some(first)
        .or(monitor.step_by.map(|at| at.max(first)));
    let rest = due.map_or(Nanos::MAX, |due| due.saturating_sub(now));
    // A clock that was set back does not delay the next step.
    let rest = if now < ticked { 0 } else { rest.max(0) };
    POLL_INTERVAL.min(Duration::from_nanos(rest as u64))
}

fn end(
    monitor: &mut Monitor,
    clock: &FleetClock,
    stop: &Stop,
    handle: &mut dyn FnMut(&mut Monitor, LoopEvent, Nanos),
) -> Option<i32> {
    let now = clock.now();
    handle(monitor, LoopEvent::Received, now);
    monitor.tick(now);
    monitor.save_and_wait(now);
    stop.signal()
}

impl Monitor {
    /// Requests a step of time at `at`, or earlier; until the next step.
    pub(crate) fn step_by(&mut self, at: Nanos) {
        self.step_by = Some(self.step_by.map_or(at, |by| by.min(at)));
    }
}
