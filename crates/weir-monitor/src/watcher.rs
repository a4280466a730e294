//! [`Watcher`]: a client of a query. A slow client does not delay others: it receives nothing until
//! it has read its queue, and then the current state.

use std::collections::VecDeque;

use tokio::sync::mpsc;
use weir_wire::ResultUpdate;

/// Maximum number of messages that wait for a client, without the last one, for which there is a
/// separate slot.
const WAITING_MAX: usize = 1024;

/// A client that watches a query.
pub struct Watcher {
    out: mpsc::Sender<ResultUpdate>,
    /// The bytes of each waiting message, and their sum.
    waiting: VecDeque<usize>,
    bytes: usize,
    bytes_max: usize,
    /// It was too slow, and rows were not sent to it.
    behind: bool,
    /// Rows that were not sent to it.
    skipped: u64,
}

impl Watcher {
    /// A client with a queue of `bytes_max` bytes, and the receiver of the queue.
    pub fn new(bytes_max: usize) -> (Watcher, mpsc::Receiver<ResultUpdate>) {
        let (out, results) = mpsc::channel(WAITING_MAX + 1);
        let watcher = Watcher {
            out,
            waiting: VecDeque::new(),
            bytes: 0,
            bytes_max,
            behind: false,
            skipped: 0,
        };
        (watcher, results)
    }

    /// True if it has disconnected.
    pub fn is_gone(&self) -> bool {
        self.out.is_closed()
    }

    /// True if it missed rows.
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// Rows that were not sent to it.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// True if it has read its queue, so that it can receive the current state.
    pub fn is_idle(&mut self) -> bool {
        self.look();
        self.waiting.is_empty()
    }

    /// Sends a message if there is room; otherwise the client is behind.
    pub fn show(&mut self, shown: ResultUpdate, bytes: usize, rows: u64) {
        match self.try_show(shown, bytes) {
            true => self.behind = false,
            false => self.skip(rows),
        }
    }

    /// Counts rows that are not sent to it.
    pub fn skip(&mut self, rows: u64) {
        self.behind = true;
        self.skipped += rows;
    }

    /// Sends an optional message if there is room.
    pub fn try_show(&mut self, shown: ResultUpdate, bytes: usize) -> bool {
        self.look();
        let room = self.waiting.len() < WAITING_MAX && self.bytes + bytes <= self.bytes_max;
        // A message larger than the limit is sent alone.
        let room = room || self.waiting.is_empty();
        if !room || self.out.try_send(shown).is_err() {
            return false;
        }
        self.waiting.push_back(bytes);
        self.bytes += bytes;
        true
    }

    /// Sends the last message.
    pub fn end(self, last: ResultUpdate) {
        // A slot is reserved for it; a disconnected client does not need it.
        let _ = self.out.try_send(last);
    }

    /// Removes the messages that it has read from the count.
    fn look(&mut self) {
        let waits = self.out.max_capacity() - self.out.capacity();
        while self.waiting.len() > waits {
            self.bytes -= self.waiting.pop_front().expect("it is longer");
        }
    }
}
