//! The thread of one tap: hands on what the tap says until it ends or is no longer wanted.

use std::sync::mpsc::SyncSender;
use std::thread::Thread;
use std::time::{Duration, Instant};

use weir_model::{Batch, Folded, Nanos};
use weir_tap::{Count, Said, Tap, TapError};

use super::stop::{Stop, wall_clock};

/// How long a tap may wait for something to say before it looks up.
const PATIENCE: Duration = Duration::from_millis(50);

/// How often a tap's counts are read, as a rule.
pub const COUNTS_EVERY: Duration = Duration::from_millis(500);

/// How long after its end a live tap may still tell what happened before.
const GRACE_NS: Nanos = 1_000_000_000;

/// What a tap's thread tells the loop.
pub enum Word {
    /// Rows of demand `demand`.
    Rows { demand: usize, batch: Batch },
    /// Groups of demand `demand` that the tap folded.
    Folded { demand: usize, folded: Folded },
    /// No more rows at or before this instant.
    Reached(Nanos),
    /// What the tap counted.
    Counted(Account),
    /// The tap failed; it says no more.
    Failed(TapError),
    /// The tap ended.
    End,
}

/// What a tap counted so far.
#[derive(Default)]
pub struct Account {
    /// All counts.
    pub counts: Vec<Count>,
    /// Its first bad records, in words.
    pub messages: Vec<String>,
    /// How far through a file.
    pub done: Option<f64>,
    /// See [`Tap::in_flight_since`].
    pub in_flight_since: Option<Nanos>,
}

/// One tap as its thread sees it.
pub struct Feed {
    pub tap: Box<dyn Tap>,
    /// Its events happen now.
    pub live: bool,
    /// Of a recording, how much is wanted, from its first event on.
    pub span_ns: Option<Nanos>,
    pub stop: Stop,
    /// How often its counts are read.
    pub counts_every: Duration,
    /// Where the loop listens, and whom to wake for it.
    pub words: SyncSender<Word>,
    pub listener: Thread,
}

impl Feed {
    /// Runs until the tap ends, the wanted part is over, or nobody listens.
    pub fn run(mut self) {
        let mut first: Option<Nanos> = None;
        let mut counted = Instant::now();
        let end = loop {
            let cut_short = !self.live && self.stop.signal().is_some();
            if cut_short || self.stop.is_abandoned() {
                break Word::End;
            }
            let last = self.last(first);
            let said = match self.tap.next(PATIENCE) {
                Ok(said) => said,
                Err(error) => break Word::Failed(error),
            };
            let over = match said {
                Said::Rows { demand, batch } => {
                    first = first.or(batch.ts.first().copied());
                    let batch = up_to(batch, self.last(first));
                    !batch.is_empty() && !self.tell(Word::Rows { demand, batch })
                }
                // Of an interval that ends later nothing is shown.
                Said::Folded { folded, .. } if folded.end > last => false,
                Said::Folded { demand, folded } => !self.tell(Word::Folded { demand, folded }),
                Said::Heartbeat(at) => !self.tell(Word::Reached(at.min(last))) || at >= last,
                Said::Quiet => self.live && wall_clock() > last.saturating_add(GRACE_NS),
                Said::End => true,
            };
            if over {
                break Word::End;
            }
            if counted.elapsed() >= self.counts_every {
                counted = Instant::now();
                self.tell_counts();
            }
        };
        self.tell_counts();
        self.tell(end);
    }

    /// The last instant wanted.
    fn last(&self, first: Option<Nanos>) -> Nanos {
        match (self.live, first, self.span_ns) {
            (true, _, _) => self.stop.live_end(),
            (false, Some(first), Some(span)) => first.saturating_add(span - 1),
            _ => Nanos::MAX,
        }
    }

    fn tell_counts(&mut self) {
        let account = Account {
            counts: self.tap.counts(),
            messages: self.tap.messages(),
            done: self.tap.progress(),
            in_flight_since: self.tap.in_flight_since(),
        };
        self.tell(Word::Counted(account));
    }

    /// False when nobody listens any more.
    fn tell(&self, word: Word) -> bool {
        let heard = self.words.send(word).is_ok();
        self.listener.unpark();
        heard
    }
}

/// The rows of `batch` at or before `last`.
fn up_to(batch: Batch, last: Nanos) -> Batch {
    match batch.ts.partition_point(|&ts| ts <= last) {
        all if all == batch.len() => batch,
        some => batch.slice(0, some),
    }
}
