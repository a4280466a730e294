//! What an agent has said and its monitor has not taken: numbered, bounded, and never lost unseen.
//!
//! ```text
//! forgotten │ sent: numbered │ lost │ front │ segments: on disk │ being written │ lost │ tail
//! ```
//! A word gets its number when it is sent for the first time. Until then it may still be merged or
//! dropped; afterwards it stays in memory, as it is, until the monitor says that it is safe. So each
//! number means one word for ever, and what is dropped was delivered to nobody.
//!
//! When memory runs out, the oldest words of the tail go to disk as a segment ([`spool`]). When the
//! disk has no more room its oldest segment is dropped, and when it is too slow or fails, the oldest
//! words in memory. What dropped words stand for takes their place ([`Residue`]): rows lost by
//! channel, what began and failed, how far time had come.
//!
//! The outbox reads and writes nothing itself: it gives [`Errand`]s to whoever may wait for a disk,
//! one at a time, and is told what came of them. Of its memory, a half is for words that were sent
//! and a quarter for what waits before it goes to disk; the rest is for words on their way to the
//! disk and back.

mod packed;
mod residue;
pub mod spool;

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;

pub use packed::{Kind, Packed};
pub use residue::Residue;
pub use spool::{Errand, Outcome};

use crate::word::ChannelId;

/// Rows were dropped because no room was left for what waits.
pub const CAUSE_FULL: &str = "spool_full";
/// A segment on disk could not be read again.
pub const CAUSE_UNREADABLE: &str = "spool_unreadable";

/// The room that waiting words may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes in memory. What the monitor was sent and has not taken stays beyond it if need be, which
    /// is at most one word.
    pub memory_bytes: usize,
    /// Bytes on disk; 0 if nothing is to go there.
    pub disk_bytes: u64,
}

impl Room {
    /// The part of the memory that is for words that were sent and are not safe yet.
    pub fn sent_bytes(&self) -> usize {
        self.memory_bytes / 2
    }
}

/// What waits to be taken by the monitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Words, sent or not.
    pub words: u64,
    /// Bytes of them, in memory and on disk.
    pub bytes: u64,
    /// Those on disk.
    pub spooled_bytes: u64,
    /// How often the disk did not write or read what it should.
    pub disk_failures: u64,
}

/// A run of words on disk.
#[derive(Debug)]
struct Segment {
    number: u64,
    bytes: u64,
    words: u64,
    /// What was lost before its words.
    before: Residue,
    /// What its words leave behind if it is dropped.
    residue: Residue,
}

/// Words on their way to the disk.
#[derive(Debug)]
struct Writing {
    number: u64,
    words: Vec<Packed>,
    cost: usize,
    /// What was lost before them.
    before: Residue,
}

/// Words that wait. See the module's description.
#[derive(Debug)]
pub struct Outbox {
    room: Room,
    /// Words up to this number are not kept any more.
    forgotten: u64,
    /// The monitor has said that words up to this number are safe.
    safe: u64,
    sent: VecDeque<Packed>,
    sent_bytes: usize,
    /// How many of `sent` need not be sent again on this connection.
    delivered: usize,
    /// What was lost before the front.
    residue: Residue,
    front: VecDeque<Packed>,
    segments: VecDeque<Segment>,
    writing: Option<Writing>,
    /// What was lost between all those and the tail.
    gap: Residue,
    tail: VecDeque<Packed>,
    tail_bytes: usize,
    /// Of all words that are in memory.
    memory_bytes: usize,
    disk_bytes: u64,
    next_segment: u64,
    /// Segments whose files are to be removed.
    doomed: Vec<u64>,
    /// Nothing else can be sent before the oldest segment is read.
    wants_load: bool,
    /// An errand is under way.
    is_busy: bool,
    /// Rows dropped since they were asked for last.
    dropped: BTreeMap<ChannelId, u64>,
    disk_failures: u64,
}

impl Outbox {
    /// Empty, within `room`.
    pub fn new(room: Room) -> Outbox {
        Outbox {
            room,
            forgotten: 0,
            safe: 0,
            sent: VecDeque::new(),
            sent_bytes: 0,
            delivered: 0,
            residue: Residue::default(),
            front: VecDeque::new(),
            segments: VecDeque::new(),
            writing: None,
            gap: Residue::default(),
            tail: VecDeque::new(),
            tail_bytes: 0,
            memory_bytes: 0,
            disk_bytes: 0,
            next_segment: 0,
            doomed: Vec::new(),
            wants_load: false,
            is_busy: false,
            dropped: BTreeMap::new(),
            disk_failures: 0,
        }
    }

    // ---- What is said -----------------------------------------------------------------------

    /// Takes a word. If memory is full even so, the oldest words that were never sent are dropped.
    pub fn push(&mut self, word: Packed) {
        let is_reached = |word: &Packed| matches!(word.kind, Kind::Reached(_));
        if is_reached(&word) && self.tail.back().is_some_and(is_reached) {
            let last = self.tail.pop_back().expect("it was just looked at");
            self.tail_bytes -= last.cost();
            self.memory_bytes -= last.cost();
        }
        self.tail_bytes += word.cost();
        self.memory_bytes += word.cost();
        self.tail.push_back(word);
        self.shrink(self.room.memory_bytes);
    }

    /// Drops the oldest words in memory that were never sent until no more than `most` is used.
    /// Words that were sent stay: the monitor may have them.
    fn shrink(&mut self, most: usize) {
        while self.memory_bytes > most {
            if let Some(word) = self.front.pop_front() {
                self.drop_word(&word, Place::Front);
            } else if let Some(word) = self.tail.pop_front() {
                self.tail_bytes -= word.cost();
                self.drop_word(&word, Place::Tail);
            } else {
                return;
            }
        }
    }

    fn drop_word(&mut self, word: &Packed, place: Place) {
        self.memory_bytes -= word.cost();
        if let Kind::Rows(channel, rows) = word.kind {
            *self.dropped.entry(channel).or_default() += rows;
        }
        match place {
            Place::Front => self.residue.add(&word.kind, CAUSE_FULL),
            Place::Tail => self.gap.add(&word.kind, CAUSE_FULL),
        }
    }

    /// Drops the oldest segment, and before it the front, which is older still.
    fn drop_segment(&mut self, cause: &str) {
        while let Some(word) = self.front.pop_front() {
            self.drop_word(&word, Place::Front);
        }
        let Some(segment) = self.segments.pop_front() else {
            return;
        };
        self.disk_bytes -= segment.bytes;
        for (channel, rows) in segment.residue.rows() {
            *self.dropped.entry(*channel).or_default() += rows;
        }
        self.residue.append(&segment.before, cause);
        self.residue.append(&segment.residue, cause);
        self.doomed.push(segment.number);
    }

    // ---- Disk -------------------------------------------------------------------------------

    /// True if there is an errand.
    pub fn has_errand(&self) -> bool {
        let any = !self.doomed.is_empty() || self.wants_load || self.is_spilling();
        !self.is_busy && any
    }

    /// What the disk is to do now, if anything. Nothing more comes until [`Outbox::done`].
    pub fn errand(&mut self) -> Option<Errand> {
        if !self.has_errand() {
            return None;
        }
        let spill = self.spill();
        let bytes = spill.map_or(0, |(_, bytes)| bytes);
        while self.disk_bytes + bytes > self.room.disk_bytes {
            self.drop_segment(CAUSE_FULL);
        }
        let errand = match (self.doomed.is_empty(), spill) {
            (false, _) => Some(Errand::Remove(std::mem::take(&mut self.doomed))),
            (true, Some((count, _))) => Some(self.write(count)),
            (true, None) => self.load(),
        };
        self.is_busy = errand.is_some();
        errand
    }

    /// How many bytes go into one segment, about.
    fn segment_bytes(&self) -> usize {
        self.room.memory_bytes / 16
    }

    /// True if memory runs out.
    fn is_spilling(&self) -> bool {
        let most = self.room.memory_bytes - self.room.memory_bytes / 4;
        self.room.disk_bytes > 0
            && self.memory_bytes > most
            && self.tail_bytes >= self.segment_bytes()
    }

    /// How many of the oldest words of the tail are to go to disk, and their bytes there.
    fn spill(&self) -> Option<(usize, u64)> {
        if !self.is_spilling() {
            return None;
        }
        let mut cost = 0;
        let fits = self.tail.iter().take_while(|word| {
            let begun = cost < self.segment_bytes();
            cost += word.cost();
            begun
        });
        let count = fits.count();
        let bytes = spool::segment_bytes(self.tail.iter().take(count));
        (bytes <= self.room.disk_bytes).then_some((count, bytes))
    }

    /// Takes the oldest words of the tail to be written.
    fn write(&mut self, count: usize) -> Errand {
        let words: Vec<Packed> = self.tail.drain(..count).collect();
        let cost = words.iter().map(Packed::cost).sum();
        self.tail_bytes -= cost;
        let number = self.next_segment;
        self.next_segment += 1;
        self.writing = Some(Writing {
            number,
            words: words.clone(),
            cost,
            before: std::mem::take(&mut self.gap),
        });
        Errand::Write { number, words }
    }

    /// The words that were to be written go back to where they were.
    fn unwrite(&mut self) {
        let Some(writing) = self.writing.take() else {
            return;
        };
        let gap = std::mem::replace(&mut self.gap, writing.before);
        if gap.is_empty() {
            self.tail_bytes += writing.cost;
            for word in writing.words.into_iter().rev() {
                self.tail.push_front(word);
            }
            return;
        }
        // Younger words were dropped meanwhile: these would have been before.
        for word in &writing.words {
            self.drop_word(word, Place::Tail);
        }
        self.gap.append(&gap, CAUSE_FULL);
    }

    fn load(&self) -> Option<Errand> {
        let segment = self.segments.front()?;
        self.wants_load.then_some(Errand::Read {
            number: segment.number,
            bytes: segment.bytes,
            words: segment.words,
        })
    }

    /// What came of an errand.
    pub fn done(&mut self, outcome: Outcome) {
        self.is_busy = false;
        match outcome {
            Outcome::Removed => {}
            Outcome::Written(number, written) => self.written(number, written),
            Outcome::Read(number, words) => {
                let expected = self.segments.front().is_some_and(|s| s.number == number);
                if expected && self.wants_load {
                    self.loaded(words.ok());
                }
            }
        }
    }

    fn written(&mut self, number: u64, written: std::io::Result<u64>) {
        let expected = self.writing.as_ref().is_some_and(|w| w.number == number);
        match written {
            // What waited was made void meanwhile.
            _ if !expected => self.doomed.push(number),
            Ok(bytes) => {
                let writing = self.writing.take().expect("it is expected");
                self.memory_bytes -= writing.cost;
                self.disk_bytes += bytes;
                self.segments.push_back(Segment {
                    number,
                    bytes,
                    words: writing.words.len() as u64,
                    before: writing.before,
                    residue: Residue::of(writing.words.iter().map(|word| &word.kind)),
                });
            }
            Err(error) => {
                self.disk_failures += 1;
                self.unwrite();
                let is_full = matches!(
                    error.kind(),
                    ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
                );
                if is_full && !self.segments.is_empty() {
                    // The oldest makes room for the youngest, as when our own bound is reached.
                    self.drop_segment(CAUSE_FULL);
                } else {
                    // So the disk is asked again only when about as much more has been said.
                    let spill = self.room.memory_bytes - self.room.memory_bytes / 4;
                    self.shrink(spill - self.segment_bytes());
                }
            }
        }
    }

    fn loaded(&mut self, words: Option<VecDeque<Packed>>) {
        self.wants_load = false;
        let Some(words) = words else {
            self.disk_failures += 1;
            return self.drop_segment(CAUSE_UNREADABLE);
        };
        let segment = self.segments.pop_front().expect("it was looked at");
        self.disk_bytes -= segment.bytes;
        self.doomed.push(segment.number);
        self.residue.append(&segment.before, CAUSE_FULL);
        self.memory_bytes += words.iter().map(Packed::cost).sum::<usize>();
        self.front = words;
    }

    // ---- What is sent -----------------------------------------------------------------------

    /// A connection has come about; the monitor has had all words up to `taken`. Gives the number of
    /// the next word that will be sent: more than `taken + 1` if the monitor asks for words that it
    /// once said were safe, `None` if it says to have taken what was never sent.
    pub fn resume(&mut self, taken: u64) -> Option<u64> {
        if taken > self.last_sent() {
            return None;
        }
        self.delivered = (self.safe.max(taken) - self.forgotten) as usize;
        self.release();
        Some(self.forgotten.max(taken) + 1)
    }

    fn last_sent(&self) -> u64 {
        self.forgotten + self.sent.len() as u64
    }

    /// The number and the next word to be sent on this connection, if any waits in memory.
    pub fn next_word(&mut self) -> Option<(u64, &Packed)> {
        if !self.has_next() {
            return None;
        }
        if self.delivered == self.sent.len() {
            let word = self.next_unsent()?;
            self.sent_bytes += word.cost();
            self.sent.push_back(word);
        }
        self.delivered += 1;
        let number = self.forgotten + self.delivered as u64;
        Some((number, &self.sent[self.delivered - 1]))
    }

    /// Takes the next word that was never sent, where [`Outbox::has_next`] has seen one.
    fn next_unsent(&mut self) -> Option<Packed> {
        if let Some(says) = self.residue.pop() {
            return Some(self.in_memory(says));
        }
        if let Some(word) = self.front.pop_front() {
            return Some(word);
        }
        if let Some(says) = self.gap.pop() {
            return Some(self.in_memory(says));
        }
        let word = self.tail.pop_front()?;
        self.tail_bytes -= word.cost();
        Some(word)
    }

    /// True if something can be sent on this connection. If only the disk has it, that becomes an
    /// errand.
    pub fn has_next(&mut self) -> bool {
        self.release();
        if self.delivered < self.sent.len() {
            return true;
        }
        if !self.is_window_open() {
            return false;
        }
        if !self.residue.is_empty() || !self.front.is_empty() {
            return true;
        }
        self.wants_load = !self.segments.is_empty();
        let is_disk_next = !self.segments.is_empty() || self.writing.is_some();
        !is_disk_next && (!self.gap.is_empty() || !self.tail.is_empty())
    }

    fn in_memory(&mut self, says: crate::message::AgentSays) -> Packed {
        let word = Packed::word(says);
        self.memory_bytes += word.cost();
        word
    }

    /// True if more may be sent before the monitor says that something is safe. Half of the memory is
    /// for what was sent, the rest for what is to be: else a monitor that reads and never says so
    /// would fill it with words that may not be dropped.
    fn is_window_open(&self) -> bool {
        self.sent_bytes < self.room.sent_bytes()
    }

    /// Words up to `number` are safe with the monitor. False if they were never sent.
    pub fn forget(&mut self, number: u64) -> bool {
        if number > self.last_sent() {
            return false;
        }
        self.safe = self.safe.max(number);
        self.release();
        true
    }

    /// Forgets what is safe and was sent on this connection. The monitor may know of words that it
    /// had on an earlier one; here they still come, because numbers follow each other.
    fn release(&mut self) {
        while self.forgotten < self.safe && self.delivered > 0 {
            let word = self.sent.pop_front().expect("it was delivered");
            self.memory_bytes -= word.cost();
            self.sent_bytes -= word.cost();
            self.forgotten += 1;
            self.delivered -= 1;
        }
    }

    /// Everything that waits is void, because it was for another monitor. The next word will have
    /// the number after `taken`. Gives the rows that nobody will have.
    pub fn clear(&mut self, taken: u64) -> u64 {
        let writing = self.writing.as_ref().map_or(&[][..], |w| &w.words);
        let words = self.sent.iter().chain(&self.front).chain(writing);
        let words = words.chain(&self.tail).map(|word| &word.kind);
        let on_disk = self.segments.iter().flat_map(|s| s.residue.rows().values());
        let rows = Residue::of(words).rows().values().chain(on_disk).sum();
        let mut doomed = std::mem::take(&mut self.doomed);
        doomed.extend(self.segments.iter().map(|segment| segment.number));
        *self = Outbox {
            forgotten: taken,
            safe: taken,
            next_segment: self.next_segment,
            doomed,
            is_busy: self.is_busy,
            dropped: std::mem::take(&mut self.dropped),
            disk_failures: self.disk_failures,
            ..Outbox::new(self.room)
        };
        rows
    }

    /// Rows dropped since the last call, by channel.
    pub fn take_dropped(&mut self) -> BTreeMap<ChannelId, u64> {
        std::mem::take(&mut self.dropped)
    }

    /// What waits.
    pub fn waiting(&self) -> Waiting {
        let writing = self.writing.as_ref().map_or(0, |w| w.words.len());
        let words = self.sent.len() + self.front.len() + writing + self.tail.len();
        let on_disk: u64 = self.segments.iter().map(|s| s.words).sum();
        let lost = [&self.residue, &self.gap]
            .map(Residue::len)
            .iter()
            .sum::<usize>();
        Waiting {
            words: (words + lost) as u64 + on_disk,
            bytes: self.memory_bytes as u64 + self.disk_bytes,
            spooled_bytes: self.disk_bytes,
            disk_failures: self.disk_failures,
        }
    }
}

/// Where a word was dropped.
#[derive(Clone, Copy)]
enum Place {
    /// Before everything that was never sent.
    Front,
    /// Behind everything that is on disk.
    Tail,
}
