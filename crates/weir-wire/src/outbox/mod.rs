//! What an agent has said and its monitor has not acked: numbered, bounded, and never lost unseen.
//!
//! ```text
//! released │ sent: numbered │ lost │ front │ segments: on disk │ being written │ lost │ tail
//! ```
//! A word gets its number when it is sent for the first time. Until then it may still be merged or
//! dropped; afterwards it stays in memory, as it is, until the monitor says that it is safe. So each
//! number means one word for ever, and what is dropped was delivered to nobody.
//!
//! When memory runs out, the oldest words of the tail go to disk as a segment ([`spool`]). When the
//! disk has no more capacity its oldest segment is dropped, and when it is too slow or fails, the oldest
//! words in memory. What dropped words stand for takes their position ([`LossSummary`]): rows lost by
//! channel, what began and failed, how far time had come.
//!
//! The outbox reads and writes nothing itself: it gives [`DiskTask`]s to whoever may wait for a disk,
//! one at a time, and is told what came of them. Of its memory, a half is for words that were sent
//! and a quarter for what waits before it goes to disk; the rest is for words on their way to the
//! disk and back.

mod encoded;
mod loss_summary;
pub mod spool;

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;

pub use encoded::{EncodedMessage, MessageKind};
pub use loss_summary::LossSummary;
pub use spool::{DiskResult, DiskTask};

use crate::protocol::ChannelId;

/// Rows were dropped because no capacity was left for what waits.
pub const CAUSE_FULL: &str = "spool_full";
/// A segment on disk could not be read again.
pub const CAUSE_UNREADABLE: &str = "spool_unreadable";

/// The capacity that waiting words may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxCapacity {
    /// Bytes in memory. What the monitor was sent and has not acked stays beyond it if need be, which
    /// is at most one word.
    pub memory_bytes: usize,
    /// Bytes on disk; 0 if nothing is to go there.
    pub disk_bytes: u64,
}

impl OutboxCapacity {
    /// The part of the memory that is for words that were sent and are not safe yet.
    pub fn sent_bytes(&self) -> usize {
        self.memory_bytes / 2
    }
}

/// What waits to be acked by the monitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Words, sent or not.
    pub messages: u64,
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
    messages: u64,
    /// What was lost before its words.
    before: LossSummary,
    /// What its words leave behind if it is dropped.
    losses: LossSummary,
}

/// Words on their way to the disk.
#[derive(Debug)]
struct Writing {
    number: u64,
    messages: Vec<EncodedMessage>,
    cost: usize,
    /// What was lost before them.
    before: LossSummary,
}

/// Words that wait. See the module's description.
#[derive(Debug)]
pub struct Outbox {
    capacity: OutboxCapacity,
    /// Words up to this number are not kept any more.
    released: u64,
    /// The monitor has said that words up to this number are safe.
    acked: u64,
    sent: VecDeque<EncodedMessage>,
    sent_bytes: usize,
    /// How many of `sent` need not be sent again on this connection.
    delivered: usize,
    /// What was lost before the front.
    losses: LossSummary,
    front: VecDeque<EncodedMessage>,
    segments: VecDeque<Segment>,
    writing: Option<Writing>,
    /// What was lost between all those and the tail.
    gap: LossSummary,
    tail: VecDeque<EncodedMessage>,
    tail_bytes: usize,
    /// Of all words that are in memory.
    memory_bytes: usize,
    disk_bytes: u64,
    next_segment: u64,
    /// Segments whose files are to be removed.
    removable: Vec<u64>,
    /// Nothing else can be sent before the oldest segment is read.
    needs_load: bool,
    /// An disk_task is under way.
    is_busy: bool,
    /// Rows dropped since they were asked for last.
    dropped: BTreeMap<ChannelId, u64>,
    disk_failures: u64,
}

impl Outbox {
    /// Empty, within `capacity`.
    pub fn new(capacity: OutboxCapacity) -> Outbox {
        Outbox {
            capacity,
            released: 0,
            acked: 0,
            sent: VecDeque::new(),
            sent_bytes: 0,
            delivered: 0,
            losses: LossSummary::default(),
            front: VecDeque::new(),
            segments: VecDeque::new(),
            writing: None,
            gap: LossSummary::default(),
            tail: VecDeque::new(),
            tail_bytes: 0,
            memory_bytes: 0,
            disk_bytes: 0,
            next_segment: 0,
            removable: Vec::new(),
            needs_load: false,
            is_busy: false,
            dropped: BTreeMap::new(),
            disk_failures: 0,
        }
    }

    // ---- What is said -----------------------------------------------------------------------

    /// Takes a word. If memory is full even so, the oldest words that were never sent are dropped.
    pub fn push(&mut self, message: EncodedMessage) {
        let is_watermark =
            |message: &EncodedMessage| matches!(message.kind, MessageKind::Watermark(_));
        if is_watermark(&message) && self.tail.back().is_some_and(is_watermark) {
            let last = self.tail.pop_back().expect("it was just looked at");
            self.tail_bytes -= last.cost();
            self.memory_bytes -= last.cost();
        }
        self.tail_bytes += message.cost();
        self.memory_bytes += message.cost();
        self.tail.push_back(message);
        self.shrink(self.capacity.memory_bytes);
    }

    /// Drops the oldest words in memory that were never sent until no more than `most` is used.
    /// Words that were sent stay: the monitor may have them.
    fn shrink(&mut self, most: usize) {
        while self.memory_bytes > most {
            if let Some(message) = self.front.pop_front() {
                self.drop_message(&message, DropPosition::AuthService);
            } else if let Some(message) = self.tail.pop_front() {
                self.tail_bytes -= message.cost();
                self.drop_message(&message, DropPosition::Tail);
            } else {
                return;
            }
        }
    }

    fn drop_message(&mut self, message: &EncodedMessage, position: DropPosition) {
        self.memory_bytes -= message.cost();
        if let MessageKind::Rows(channel, rows) = message.kind {
            *self.dropped.entry(channel).or_default() += rows;
        }
        match position {
            DropPosition::AuthService => self.losses.add(&message.kind, CAUSE_FULL),
            DropPosition::Tail => self.gap.add(&message.kind, CAUSE_FULL),
        }
    }

    /// Drops the oldest segment, and before it the front, which is older still.
    fn drop_segment(&mut self, cause: &str) {
        while let Some(message) = self.front.pop_front() {
            self.drop_message(&message, DropPosition::AuthService);
        }
        let Some(segment) = self.segments.pop_front() else {
            return;
        };
        self.disk_bytes -= segment.bytes;
        for (channel, rows) in segment.losses.rows() {
            *self.dropped.entry(*channel).or_default() += rows;
        }
        self.losses.append(&segment.before, cause);
        self.losses.append(&segment.losses, cause);
        self.removable.push(segment.number);
    }

    // ---- Disk -------------------------------------------------------------------------------

    /// True if there is an disk_task.
    pub fn has_disk_task(&self) -> bool {
        let any = !self.removable.is_empty() || self.needs_load || self.is_spilling();
        !self.is_busy && any
    }

    /// What the disk is to do now, if anything. Nothing more comes until [`Outbox::finish_disk_task`].
    pub fn next_disk_task(&mut self) -> Option<DiskTask> {
        if !self.has_disk_task() {
            return None;
        }
        let spill = self.spill();
        let bytes = spill.map_or(0, |(_, bytes)| bytes);
        while self.disk_bytes + bytes > self.capacity.disk_bytes {
            self.drop_segment(CAUSE_FULL);
        }
        let disk_task = match (self.removable.is_empty(), spill) {
            (false, _) => Some(DiskTask::Remove(std::mem::take(&mut self.removable))),
            (true, Some((count, _))) => Some(self.write(count)),
            (true, None) => self.load(),
        };
        self.is_busy = disk_task.is_some();
        disk_task
    }

    /// How many bytes go into one segment, about.
    fn segment_bytes(&self) -> usize {
        self.capacity.memory_bytes / 16
    }

    /// True if memory runs out.
    fn is_spilling(&self) -> bool {
        let most = self.capacity.memory_bytes - self.capacity.memory_bytes / 4;
        self.capacity.disk_bytes > 0
            && self.memory_bytes > most
            && self.tail_bytes >= self.segment_bytes()
    }

    /// How many of the oldest words of the tail are to go to disk, and their bytes there.
    fn spill(&self) -> Option<(usize, u64)> {
        if !self.is_spilling() {
            return None;
        }
        let mut cost = 0;
        let fits = self.tail.iter().take_while(|message| {
            let begun = cost < self.segment_bytes();
            cost += message.cost();
            begun
        });
        let count = fits.count();
        let bytes = spool::segment_bytes(self.tail.iter().take(count));
        (bytes <= self.capacity.disk_bytes).then_some((count, bytes))
    }

    /// Takes the oldest words of the tail to be written.
    fn write(&mut self, count: usize) -> DiskTask {
        let messages: Vec<EncodedMessage> = self.tail.drain(..count).collect();
        let cost = messages.iter().map(EncodedMessage::cost).sum();
        self.tail_bytes -= cost;
        let number = self.next_segment;
        self.next_segment += 1;
        self.writing = Some(Writing {
            number,
            messages: messages.clone(),
            cost,
            before: std::mem::take(&mut self.gap),
        });
        DiskTask::Write { number, messages }
    }

    /// The words that were to be written go back to where they were.
    fn requeue(&mut self) {
        let Some(writing) = self.writing.take() else {
            return;
        };
        let gap = std::mem::replace(&mut self.gap, writing.before);
        if gap.is_empty() {
            self.tail_bytes += writing.cost;
            for message in writing.messages.into_iter().rev() {
                self.tail.push_front(message);
            }
            return;
        }
        // Younger words were dropped meanwhile: these would have been before.
        for message in &writing.messages {
            self.drop_message(message, DropPosition::Tail);
        }
        self.gap.append(&gap, CAUSE_FULL);
    }

    fn load(&self) -> Option<DiskTask> {
        let segment = self.segments.front()?;
        self.needs_load.then_some(DiskTask::Read {
            number: segment.number,
            bytes: segment.bytes,
            messages: segment.messages,
        })
    }

    /// What came of an disk_task.
    pub fn finish_disk_task(&mut self, result: DiskResult) {
        self.is_busy = false;
        match result {
            DiskResult::Removed => {}
            DiskResult::Written(number, written) => self.written(number, written),
            DiskResult::Read(number, messages) => {
                let expected = self.segments.front().is_some_and(|s| s.number == number);
                if expected && self.needs_load {
                    self.loaded(messages.ok());
                }
            }
        }
    }

    fn written(&mut self, number: u64, written: std::io::Result<u64>) {
        let expected = self.writing.as_ref().is_some_and(|w| w.number == number);
        match written {
            // What waited was made void meanwhile.
            _ if !expected => self.removable.push(number),
            Ok(bytes) => {
                let writing = self.writing.take().expect("it is expected");
                self.memory_bytes -= writing.cost;
                self.disk_bytes += bytes;
                self.segments.push_back(Segment {
                    number,
                    bytes,
                    messages: writing.messages.len() as u64,
                    before: writing.before,
                    losses: LossSummary::of(writing.messages.iter().map(|message| &message.kind)),
                });
            }
            Err(error) => {
                self.disk_failures += 1;
                self.requeue();
                let is_full = matches!(
                    error.kind(),
                    ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
                );
                if is_full && !self.segments.is_empty() {
                    // The oldest makes capacity for the youngest, as when our own bound is reached.
                    self.drop_segment(CAUSE_FULL);
                } else {
                    // So the disk is asked again only when about as much more has been said.
                    let spill = self.capacity.memory_bytes - self.capacity.memory_bytes / 4;
                    self.shrink(spill - self.segment_bytes());
                }
            }
        }
    }

    fn loaded(&mut self, messages: Option<VecDeque<EncodedMessage>>) {
        self.needs_load = false;
        let Some(messages) = messages else {
            self.disk_failures += 1;
            return self.drop_segment(CAUSE_UNREADABLE);
        };
        let segment = self.segments.pop_front().expect("it was looked at");
        self.disk_bytes -= segment.bytes;
        self.removable.push(segment.number);
        self.losses.append(&segment.before, CAUSE_FULL);
        self.memory_bytes += messages.iter().map(EncodedMessage::cost).sum::<usize>();
        self.front = messages;
    }

    // ---- What is sent -----------------------------------------------------------------------

    /// A connection has come about; the monitor has had all words up to `acked`. Gives the number of
    /// the next word that will be sent: more than `acked + 1` if the monitor asks for words that it
    /// once said were acked, `None` if it says to have acked what was never sent.
    pub fn resume(&mut self, acked: u64) -> Option<u64> {
        if acked > self.last_sent() {
            return None;
        }
        self.delivered = (self.acked.max(acked) - self.released) as usize;
        self.release();
        Some(self.released.max(acked) + 1)
    }

    fn last_sent(&self) -> u64 {
        self.released + self.sent.len() as u64
    }

    /// The number and the next word to be sent on this connection, if any waits in memory.
    pub fn next_message(&mut self) -> Option<(u64, &EncodedMessage)> {
        if !self.has_next() {
            return None;
        }
        if self.delivered == self.sent.len() {
            let message = self.next_unsent()?;
            self.sent_bytes += message.cost();
            self.sent.push_back(message);
        }
        self.delivered += 1;
        let number = self.released + self.delivered as u64;
        Some((number, &self.sent[self.delivered - 1]))
    }

    /// Takes the next word that was never sent, where [`Outbox::has_next`] has seen one.
    fn next_unsent(&mut self) -> Option<EncodedMessage> {
        if let Some(body) = self.losses.pop() {
            return Some(self.in_memory(body));
        }
        if let Some(message) = self.front.pop_front() {
            return Some(message);
        }
        if let Some(body) = self.gap.pop() {
            return Some(self.in_memory(body));
        }
        let message = self.tail.pop_front()?;
        self.tail_bytes -= message.cost();
        Some(message)
    }

    /// True if something can be sent on this connection. If only the disk has it, that becomes an
    /// disk_task.
    pub fn has_next(&mut self) -> bool {
        self.release();
        if self.delivered < self.sent.len() {
            return true;
        }
        if !self.is_window_open() {
            return false;
        }
        if !self.losses.is_empty() || !self.front.is_empty() {
            return true;
        }
        self.needs_load = !self.segments.is_empty();
        let is_disk_next = !self.segments.is_empty() || self.writing.is_some();
        !is_disk_next && (!self.gap.is_empty() || !self.tail.is_empty())
    }

    fn in_memory(&mut self, body: crate::message::UpBody) -> EncodedMessage {
        let message = EncodedMessage::message(body);
        self.memory_bytes += message.cost();
        message
    }

    /// True if more may be sent before the monitor says that something is safe. Half of the memory is
    /// for what was sent, the rest for what is to be: else a monitor that reads and never says so
    /// would fill it with words that may not be dropped.
    fn is_window_open(&self) -> bool {
        self.sent_bytes < self.capacity.sent_bytes()
    }

    /// Words up to `number` are safe with the monitor. False if they were never sent.
    pub fn ack(&mut self, number: u64) -> bool {
        if number > self.last_sent() {
            return false;
        }
        self.acked = self.acked.max(number);
        self.release();
        true
    }

    /// Forgets what is safe and was sent on this connection. The monitor may know of words that it
    /// had on an earlier one; here they still come, because numbers follow each other.
    fn release(&mut self) {
        while self.released < self.acked && self.delivered > 0 {
            let message = self.sent.pop_front().expect("it was delivered");
            self.memory_bytes -= message.cost();
            self.sent_bytes -= message.cost();
            self.released += 1;
            self.delivered -= 1;
        }
    }

    /// Everything that waits is void, because it was for another monitor. The next word will have
    /// the number after `acked`. Gives the rows that nobody will have.
    pub fn clear(&mut self, acked: u64) -> u64 {
        let writing = self.writing.as_ref().map_or(&[][..], |w| &w.messages);
        let messages = self.sent.iter().chain(&self.front).chain(writing);
        let messages = messages.chain(&self.tail).map(|message| &message.kind);
        let on_disk = self.segments.iter().flat_map(|s| s.losses.rows().values());
        let rows = LossSummary::of(messages)
            .rows()
            .values()
            .chain(on_disk)
            .sum();
        let mut removable = std::mem::take(&mut self.removable);
        removable.extend(self.segments.iter().map(|segment| segment.number));
        *self = Outbox {
            released: acked,
            acked,
            next_segment: self.next_segment,
            removable,
            is_busy: self.is_busy,
            dropped: std::mem::take(&mut self.dropped),
            disk_failures: self.disk_failures,
            ..Outbox::new(self.capacity)
        };
        rows
    }

    /// Rows dropped since the last call, by channel.
    pub fn take_dropped(&mut self) -> BTreeMap<ChannelId, u64> {
        std::mem::take(&mut self.dropped)
    }

    /// What waits.
    pub fn waiting(&self) -> Backlog {
        let writing = self.writing.as_ref().map_or(0, |w| w.messages.len());
        let messages = self.sent.len() + self.front.len() + writing + self.tail.len();
        let on_disk: u64 = self.segments.iter().map(|s| s.messages).sum();
        let lost = [&self.losses, &self.gap]
            .map(LossSummary::len)
            .iter()
            .sum::<usize>();
        Backlog {
            messages: (messages + lost) as u64 + on_disk,
            bytes: self.memory_bytes as u64 + self.disk_bytes,
            spooled_bytes: self.disk_bytes,
            disk_failures: self.disk_failures,
        }
    }
}

/// Where a word was dropped.
#[derive(Clone, Copy)]
enum DropPosition {
    /// Before everything that was never sent.
    AuthService,
    /// Behind everything that is on disk.
    Tail,
}
