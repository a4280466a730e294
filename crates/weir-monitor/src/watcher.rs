//! [`Watcher`]: one of those who watch a query. Who does not keep up hurts only itself: it is shown
//! nothing until it has taken what waits for it, and then where things stand.

use std::collections::VecDeque;

use tokio::sync::mpsc;
use weir_wire::ResultUpdate;

/// Messages that wait for a watcher, at most. There is one more place, for the last one.
const WAITING_MAX: usize = 1024;

/// Somebody who watches.
pub struct Watcher {
    out: mpsc::Sender<ResultUpdate>,
    /// The bytes of each message that waits, and of all of them.
    waiting: VecDeque<usize>,
    bytes: usize,
    bytes_max: usize,
    /// It did not keep up, and something was not shown to it.
    behind: bool,
    /// Rows that were not shown to it.
    skipped: u64,
}

impl Watcher {
    /// A watcher for whom at most so many bytes wait, and where it finds them.
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

    /// It watches no more.
    pub fn is_gone(&self) -> bool {
        self.out.is_closed()
    }

    /// It missed something.
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// Rows that were not shown to it.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// It has taken all that waited, so that it can be shown where things stand.
    pub fn is_idle(&mut self) -> bool {
        self.look();
        self.waiting.is_empty()
    }

    /// Shows it something, if there is room; otherwise it is behind.
    pub fn show(&mut self, shown: ResultUpdate, bytes: usize, rows: u64) {
        match self.try_show(shown, bytes) {
            true => self.behind = false,
            false => self.skip(rows),
        }
    }

    /// Rows are not shown to it.
    pub fn skip(&mut self, rows: u64) {
        self.behind = true;
        self.skipped += rows;
    }

    /// Shows it something that it need not see, if there is room.
    pub fn try_show(&mut self, shown: ResultUpdate, bytes: usize) -> bool {
        self.look();
        let room = self.waiting.len() < WAITING_MAX && self.bytes + bytes <= self.bytes_max;
        // Whatever is larger than the bound goes alone.
        let room = room || self.waiting.is_empty();
        if !room || self.out.try_send(shown).is_err() {
            return false;
        }
        self.waiting.push_back(bytes);
        self.bytes += bytes;
        true
    }

    /// Shows it the last message.
    pub fn end(self, last: ResultUpdate) {
        // There is a place for it; who is gone does not need it.
        let _ = self.out.try_send(last);
    }

    /// Looks what it has taken.
    fn look(&mut self) {
        let waits = self.out.max_capacity() - self.out.capacity();
        while self.waiting.len() > waits {
            self.bytes -= self.waiting.pop_front().expect("it is longer");
        }
    }
}
