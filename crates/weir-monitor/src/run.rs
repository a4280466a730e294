//! The loop of the monitor's thread: takes what happens on the network and moves time on, until it
//! is told to stop.

use std::time::Duration;

use weir_model::Nanos;
use weir_wire::{EventQueue, NextEvent, ServerEvent};

use super::Monitor;
use weir_runtime::run_loop::{Stop, wall_clock};

/// How long the loop sleeps at most when nothing happens: clocks and bounds are looked at as often.
const NAP: Duration = Duration::from_millis(10);

/// Time moves on at most so often, so that a thousand agents whose heartbeats come one by one do
/// not make a thousand steps.
const TICK_NS: Nanos = 5_000_000;

/// EventQueue taken before time has its turn.
const TURN: usize = 10_000;

/// Runs until a signal comes or the network has ended; then results are out, written down and
/// acknowledged. What clients ask goes to `answer`, and so does every turn of the loop, with no
/// event: there queries that failed can be seen to.
///
/// Gives the signal, if that was it.
pub fn run(
    monitor: &mut Monitor,
    events: &mut EventQueue,
    stop: &Stop,
    answer: &mut dyn FnMut(&mut Monitor, Option<ServerEvent>, Nanos),
) -> Option<i32> {
    let mut ticked = Nanos::MIN;
    loop {
        let mut patience = NAP;
        for _ in 0..TURN {
            match events.next(patience) {
                NextEvent::Event(event) => {
                    let now = wall_clock();
                    if let Some(asked) = monitor.take(event, now) {
                        answer(monitor, Some(asked), now);
                    }
                }
                NextEvent::Timeout => break,
                NextEvent::Ended => return end(monitor, stop),
            }
            patience = Duration::ZERO;
            // Agents whose words never end do not keep time from moving.
            if wall_clock().saturating_sub(ticked) > 4 * TICK_NS {
                break;
            }
        }
        let now = wall_clock();
        // A clock that was set back is no reason to wait for it.
        if now < ticked || now.saturating_sub(ticked) >= TICK_NS {
            ticked = now;
            monitor.tick(now);
            answer(monitor, None, now);
        }
        if stop.signal().is_some() {
            return end(monitor, stop);
        }
    }
}

fn end(monitor: &mut Monitor, stop: &Stop) -> Option<i32> {
    let now = wall_clock();
    monitor.tick(now);
    monitor.save_and_wait(now);
    stop.signal()
}
