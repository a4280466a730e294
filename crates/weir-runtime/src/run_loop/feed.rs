//! The thread of one tap: forwards the tap's messages until the tap ends or is no longer needed.

use std::sync::mpsc::SyncSender;
use std::thread::Thread;
use std::time::{Duration, Instant};

use weir_model::{Batch, Folded, Nanos};
use weir_tap::{EventCount, Tap, TapError, TapEvent};

use super::stop::{Stop, wall_clock};

/// Maximum time that a tap may wait for events before the thread checks for the end.
const SEND_TIMEOUT: Duration = Duration::from_millis(50);

/// The usual interval between two readings of a tap's counts.
pub const COUNTS_EVERY: Duration = Duration::from_millis(500);

/// The interval while events are lost.
const COUNTS_EVERY_LOSSY: Duration = Duration::from_millis(20);

/// How long after its end a live tap may still report earlier events.
const GRACE_NS: Nanos = 1_000_000_000;

/// A message from a tap's thread to the loop.
pub enum Message {
    /// Rows of a demand.
    Rows {
        /// The demand's number.
        demand: usize,
        /// The rows, in time order.
        batch: Batch,
    },
    /// Groups of a demand that the source aggregated.
    Folded {
        /// The demand's number.
        demand: usize,
        /// The groups of one interval.
        folded: Folded,
    },
    /// The watermark: no more rows at or before this instant.
    Reached(Nanos),
    /// The tap's counts.
    Counted(TapCounts),
    /// The tap failed; it sends no more messages.
    Failed(TapError),
    /// The tap ended.
    End,
}

/// The counts of a tap so far.
#[derive(Default)]
pub struct TapCounts {
    /// All counts.
    pub counts: Vec<EventCount>,
    /// Its first bad records, as text.
    pub messages: Vec<String>,
    /// The share of a file that was read.
    pub done: Option<f64>,
    /// See [`Tap::in_flight_since`].
    pub in_flight_since: Option<Nanos>,
}

/// One tap in its thread.
pub struct Feed {
    /// The tap that is polled.
    pub tap: Box<dyn Tap>,
    /// Its events happen now.
    pub live: bool,
    /// For a recording, the requested interval, from its first event on.
    pub span_ns: Option<Nanos>,
    /// When to end.
    pub stop: Stop,
    /// The interval between two readings of its counts.
    pub counts_every: Duration,
    /// Whether groups of intervals that are open at the end are delivered.
    pub whole: bool,
    /// The loop's channel.
    pub messages: SyncSender<Message>,
    /// The loop's thread, unparked after each message.
    pub listener: Thread,
}

impl Feed {
    /// Runs until the tap ends, the requested interval has passed, or the loop has ended.
    pub fn run(mut self) {
        let mut first: Option<Nanos> = None;
        let mut counted = Instant::now();
        let mut lost = 0;
        let end = loop {
            let cut_short = !self.live && self.stop.signal().is_some();
            if cut_short || self.stop.is_abandoned() {
                break Message::End;
            }
            let last = self.last(first);
            let sent = match self.tap.next(SEND_TIMEOUT) {
                Ok(sent) => sent,
                Err(TapError::Cancelled { .. }) => break Message::End,
                Err(error) => break Message::Failed(error),
            };
            // Report losses before the watermark passes the time in which they happened.
            let lost_now = self.tap.lost();
            if lost_now != lost && counted.elapsed() >= COUNTS_EVERY_LOSSY {
                (lost, counted) = (lost_now, Instant::now());
                self.send_counts();
            }
            let over = match sent {
                TapEvent::Rows { demand, batch } => {
                    first = first.or(batch.ts.first().copied());
                    let batch = up_to(batch, self.last(first));
                    !batch.is_empty() && !self.send(Message::Rows { demand, batch })
                }
                // Without open slides, an interval that ends later has no output. With them, the
                // interval that contains `last` has one, even if the tap completed it in the
                // meantime; the engine ignores those that end after the open slide.
                TapEvent::Folded { folded, .. } if !self.whole && folded.end > last => false,
                TapEvent::Folded { demand, folded } => {
                    !self.send(Message::Folded { demand, folded })
                }
                TapEvent::Heartbeat(at) => !self.send(Message::Reached(at.min(last))) || at >= last,
                TapEvent::Quiet => self.live && wall_clock() > last.saturating_add(GRACE_NS),
                TapEvent::End => true,
            };
            if over {
                break Message::End;
            }
            if counted.elapsed() >= self.counts_every {
                counted = Instant::now();
                self.send_counts();
            }
        };
        if self.whole && self.live && !self.stop.is_abandoned() {
            for (demand, folded) in self.tap.close() {
                self.send(Message::Folded { demand, folded });
            }
        }
        self.send_counts();
        self.send(end);
    }

    /// The last requested instant.
    fn last(&self, first: Option<Nanos>) -> Nanos {
        match (self.live, first, self.span_ns) {
            (true, _, _) => self.stop.live_end(),
            (false, Some(first), Some(span)) => first.saturating_add(span - 1),
            _ => Nanos::MAX,
        }
    }

    fn send_counts(&mut self) {
        let account = TapCounts {
            counts: self.tap.counts(),
            messages: self.tap.messages(),
            done: self.tap.progress(),
            in_flight_since: self.tap.in_flight_since(),
        };
        self.send(Message::Counted(account));
    }

    /// False when the loop has ended.
    fn send(&self, message: Message) -> bool {
        let received = self.messages.send(message).is_ok();
        self.listener.unpark();
        received
    }
}

/// The rows of `batch` at or before `last`.
fn up_to(batch: Batch, last: Nanos) -> Batch {
    match batch.ts.partition_point(|&ts| ts <= last) {
        all if all == batch.len() => batch,
        some => batch.slice(0, some),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::mpsc::sync_channel;

    use super::*;

    /// The end of the live query.
    const LAST: Nanos = 1_000;

    /// A live tap that returns these in order, and has no open interval at its end.
    struct Script(VecDeque<TapEvent>);

    impl Tap for Script {
        fn next(&mut self, _: Duration) -> Result<TapEvent, TapError> {
            Ok(self.0.pop_front().unwrap_or(TapEvent::End))
        }

        fn counts(&mut self) -> Vec<EventCount> {
            Vec::new()
        }

        fn describe(&self) -> Vec<String> {
            Vec::new()
        }
    }

    /// The ends of the intervals that are delivered when the tap completes one immediately after
    /// `LAST`.
    fn ends_delivered(whole: bool) -> Vec<Nanos> {
        let folded = Folded {
            end: LAST + 1,
            keys: Vec::new(),
            kept: Vec::new(),
        };
        let script = [
            TapEvent::Folded { demand: 0, folded },
            TapEvent::Heartbeat(LAST + 2),
        ];
        let stop = Stop::new();
        stop.live_until(LAST);
        let (messages, arrivals) = sync_channel(16);
        let feed = Feed {
            tap: Box::new(Script(script.into())),
            live: true,
            span_ns: None,
            stop,
            counts_every: COUNTS_EVERY,
            whole,
            messages,
            listener: std::thread::current(),
        };
        feed.run();
        let ends = arrivals.iter().filter_map(|word| match word {
            Message::Folded { folded, .. } => Some(folded.end),
            _ => None,
        });
        ends.collect()
    }

    #[test]
    fn an_interval_completed_right_after_the_end_is_part_of_the_open_slide() {
        assert_eq!(ends_delivered(true), [LAST + 1]);
        assert!(ends_delivered(false).is_empty());
    }
}
