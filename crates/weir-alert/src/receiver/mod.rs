//! Receivers of alerts: a webhook ([`webhook`]) and Alertmanager ([`alertmanager_api`]).
//!
//! Each has a thread of its own, so that one that fails delays neither the run nor the others. It
//! tries again with increasing intervals until the receiver accepts; an answer that refuses the
//! request for good (4xx, without 408 and 429) is final, and counted.

pub mod alertmanager_api;
mod delivery;
mod http;
pub mod open;
mod spool;
pub mod webhook;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use http::{HttpClient, HttpError};
pub use spool::{EVENTS_MAX, EventSpool};

use crate::event::AlertEvent;
use crate::notifier::GroupKey;

/// The first interval between two attempts; it doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(1);

/// The longest interval between two attempts.
const RETRY_MAX: Duration = Duration::from_secs(300);

/// How long the end of a run waits for deliveries.
pub const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// What a receiver did so far.
#[derive(Debug, Default)]
pub struct ReceiverCounts {
    /// Requests that were accepted.
    pub accepted: AtomicU64,
    /// Requests that were refused for good.
    pub refused: AtomicU64,
    /// Attempts that failed and are repeated.
    pub failed: AtomicU64,
    /// Events that were dropped because too many waited.
    pub dropped: AtomicU64,
}

impl ReceiverCounts {
    /// A remark for the end of a run, if something was not delivered.
    pub fn remark(&self, name: &str, waiting: usize) -> Option<String> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let parts = [
            (count(&self.refused), "requests were refused"),
            (count(&self.dropped), "events were dropped"),
            (waiting as u64, "events were not delivered"),
        ];
        let parts = parts.iter().filter(|(count, _)| *count > 0);
        let parts: Vec<String> = parts
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        (!parts.is_empty()).then(|| format!("{name}: {}", parts.join(", ")))
    }
}

/// Destination of the events of a run.
pub trait Receiver: Send {
    /// Starts delivering; called in a thread of the run, whose privileges it then has.
    fn start(&mut self);

    /// Accepts an event, and delivers it if [`AlertEvent::is_reported`]; it never waits for the
    /// network. Events of one group are delivered together, if the receiver has groups.
    fn notify(&mut self, event: &AlertEvent, group: &GroupKey);

    /// Delivers what waits, for at most [`CLOSE_WITHIN`]; returns what was not delivered.
    fn close(&mut self) -> Option<String>;
}

/// The interval before attempt number `failures` + 1: doubled each time, and 20 % shorter to 20 %
/// longer, so that several senders do not repeat together. `random` is from 0 to 1.
fn retry_after(failures: u32, random: f64) -> Duration {
    let doubled = RETRY_MIN.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(RETRY_MAX).mul_f64(0.8 + 0.4 * random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_between_attempts_doubles_up_to_its_limit() {
        let seconds = |failures| retry_after(failures, 0.5).as_secs_f64();
        assert_eq!([seconds(1), seconds(2), seconds(5)], [1.0, 2.0, 16.0]);
        assert_eq!(
            [seconds(9), seconds(10), seconds(4_000)],
            [256.0, 300.0, 300.0]
        );
        assert_eq!(retry_after(1, 0.0), Duration::from_millis(800));
    }
}
