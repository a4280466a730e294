//! The messages of an agent that its monitor has not acknowledged: numbered, bounded, and never
//! lost without a report.
//!
//! ```text
//! released │ sent: numbered │ lost │ front │ segments: on disk │ being written │ lost │ tail
//! ```
//! A message gets its number when it is sent for the first time. Until then it may be merged or
//! dropped; afterwards it stays in memory unchanged until it is acknowledged. So each number
//! identifies one message forever, and a dropped message was never delivered.
//!
//! When memory is full, the oldest messages of the tail are written to disk as a segment
//! ([`spool`]). When the disk is full, its oldest segment is dropped; when the disk is too slow or
//! fails, the oldest messages in memory. A [`LossSummary`] replaces dropped messages: rows lost by
//! channel, channels started and failed, the watermark.
//!
//! The outbox does no I/O itself: it returns [`DiskTask`]s, one at a time, and receives their
//! results. Half of its memory is for messages that were sent and a quarter for messages to be
//! written; the rest is for messages being written or read.

mod encoded;
mod loss_summary;
pub mod spool;

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;

pub use encoded::{EncodedMessage, MessageKind};
pub use loss_summary::LossSummary;
pub use spool::{DiskResult, DiskTask};

use crate::message::ChannelId;

/// Rows were dropped because the outbox was full.
pub const CAUSE_FULL: &str = "spool_full";
/// A segment on disk could not be read.
pub const CAUSE_UNREADABLE: &str = "spool_unreadable";

/// The capacity of an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxCapacity {
    /// Bytes in memory. Unacknowledged messages may exceed it by at most one message.
    pub memory_bytes: usize,
    /// Bytes on disk; 0 without a spool.
    pub disk_bytes: u64,
}

impl OutboxCapacity {
    /// The part of the memory for messages that were sent and are not acknowledged.
    pub fn sent_bytes(&self) -> usize {
        self.memory_bytes / 2
    }
}

/// The messages that are not acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// The number of messages, sent or not.
    pub messages: u64,
    /// Their bytes, in memory and on disk.
    pub bytes: u64,
    /// The part of them on disk.
    pub spooled_bytes: u64,
    /// The number of failed reads and writes.
    pub disk_failures: u64,
}

/// A sequence of messages on disk.
#[derive(Debug)]
struct Segment {
    number: u64,
    bytes: u64,
    messages: u64,
    /// Losses before its messages.
    before: LossSummary,
    /// The loss summary of its messages if it is dropped.
    losses: LossSummary,
}

/// Messages that are being written.
#[derive(Debug)]
struct Writing {
    number: u64,
    messages: Vec<EncodedMessage>,
    cost: usize,
    /// Losses before them.
    before: LossSummary,
}

/// Unacknowledged messages. See the module's description.
#[derive(Debug)]
pub struct Outbox {
    capacity: OutboxCapacity,
    /// Messages up to this number were removed.
    released: u64,
    /// The monitor has acknowledged messages up to this number.
    acked: u64,
    sent: VecDeque<EncodedMessage>,
    sent_bytes: usize,
    /// The number of messages in `sent` that need not be sent again on this connection.
    delivered: usize,
    /// Losses before the front.
    losses: LossSummary,
    front: VecDeque<EncodedMessage>,
    segments: VecDeque<Segment>,
    writing: Option<Writing>,
    /// Losses between these and the tail.
    gap: LossSummary,
    tail: VecDeque<EncodedMessage>,
    tail_bytes: usize,
    /// Bytes of all messages in memory.
    memory_bytes: usize,
    disk_bytes: u64,
    next_segment: u64,
    /// Segments whose files are to be removed.
    removable: Vec<u64>,
    /// Nothing can be sent before the oldest segment is read.
    needs_load: bool,
    /// A disk task is running.
    is_busy: bool,
    /// Rows dropped since the last call of [`Outbox::take_dropped`].
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

    // ---- Enqueue ----------------------------------------------------------------------------

    /// Adds a message. If memory is still full, the oldest messages that were never sent are
    /// dropped.
    pub fn push(&mut self, message: EncodedMessage) {
        let is_watermark =
            |message: &EncodedMessage| matches!(message.kind, MessageKind::Watermark(_));
        if is_watermark(&message) && self.tail.back().is_some_and(is_watermark) {
            let last = self.tail.pop_back().expect("the tail is not empty");
            self.tail_bytes -= last.cost();
            self.memory_bytes -= last.cost();
        }
        self.tail_bytes += message.cost();
        self.memory_bytes += message.cost();
        self.tail.push_back(message);
        self.shrink(self.capacity.memory_bytes);
    }

    /// Drops the oldest messages in memory that were never sent until at most `most` bytes are
    /// used. Messages that were sent stay: the monitor may have received them.
    fn shrink(&mut self, most: usize) {
        while self.memory_bytes > most {
            if let Some(message) = self.front.pop_front() {
                self.drop_message(&message, DropPosition::Front);
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
            DropPosition::Front => self.losses.add(&message.kind, CAUSE_FULL),
            DropPosition::Tail => self.gap.add(&message.kind, CAUSE_FULL),
        }
    }

    /// Drops the front, which is older, and the oldest segment.
    fn drop_segment(&mut self, cause: &str) {
        while let Some(message) = self.front.pop_front() {
            self.drop_message(&message, DropPosition::Front);
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

    /// Whether there is a disk task.
    pub fn has_disk_task(&self) -> bool {
        let any = !self.removable.is_empty() || self.needs_load || self.is_spilling();
        !self.is_busy && any
    }

    /// The next disk task, if any. No other is returned until [`Outbox::finish_disk_task`].
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

    /// The approximate size of a segment.
    fn segment_bytes(&self) -> usize {
        self.capacity.memory_bytes / 16
    }

    /// Whether memory is nearly full.
    fn is_spilling(&self) -> bool {
        let most = self.capacity.memory_bytes - self.capacity.memory_bytes / 4;
        self.capacity.disk_bytes > 0
            && self.memory_bytes > most
            && self.tail_bytes >= self.segment_bytes()
    }

    /// How many of the oldest messages of the tail should be written, and their bytes on disk.
    fn spill(&self) -> Option<(usize, u64)> {
        if !self.is_spilling() {
            return None;
        }
        let mut cost = 0;
        let fits = self.tail.iter().take_while(|message| {
            let has_room = cost < self.segment_bytes();
            cost += message.cost();
            has_room
        });
        let count = fits.count();
        let bytes = spool::segment_bytes(self.tail.iter().take(count));
        (bytes <= self.capacity.disk_bytes).then_some((count, bytes))
    }

    /// Removes the oldest messages of the tail to write them.
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

    /// Returns messages that were not written to the tail.
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
        // Newer messages were dropped meanwhile; these would have been dropped first.
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

    /// Handles the result of a disk task.
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
            // The messages were discarded meanwhile.
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
                    // The oldest segment is dropped for the newest, as when the configured limit is
                    // reached.
                    self.drop_segment(CAUSE_FULL);
                } else {
                    // The disk is tried again only after about as much data has been added.
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

    // ---- Send -------------------------------------------------------------------------------

    /// Starts a connection on which the monitor has received all messages up to `acked`. Returns
    /// the number of the next message to be sent: more than `acked + 1` if the monitor requests
    /// messages that it had acknowledged, `None` if it acknowledges messages that were never sent.
    pub fn resume(&mut self, acked: u64) -> Option<u64> {
        if acked > self.last_sent() {
            return None;
        }
        // The ack itself may have been lost with the previous connection.
        self.acked = self.acked.max(acked);
        self.delivered = (self.acked - self.released) as usize;
        self.release();
        Some(self.released.max(acked) + 1)
    }

    fn last_sent(&self) -> u64 {
        self.released + self.sent.len() as u64
    }

    /// The next message to be sent on this connection and its number, if one is in memory.
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

    /// Takes the next message that was never sent, after [`Outbox::has_next`] has returned true.
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

    /// Whether a message can be sent on this connection. If it is on disk, reading it becomes a
    /// disk task.
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

    fn in_memory(&mut self, body: crate::message::AgentBody) -> EncodedMessage {
        let message = EncodedMessage::message(body);
        self.memory_bytes += message.cost();
        message
    }

    /// Whether more may be sent before the next ack. Half of the memory is for sent messages:
    /// otherwise a monitor that never acknowledges would fill it with messages that must not be
    /// dropped.
    fn is_window_open(&self) -> bool {
        self.sent_bytes < self.capacity.sent_bytes()
    }

    /// The monitor acknowledges messages up to `number`. Returns false if they were never sent.
    pub fn ack(&mut self, number: u64) -> bool {
        if number > self.last_sent() {
            return false;
        }
        self.acked = self.acked.max(number);
        self.release();
        true
    }

    /// Removes messages that are acknowledged and were sent on this connection. A message that was
    /// acknowledged earlier is still sent, because numbers must be consecutive.
    fn release(&mut self) {
        while self.released < self.acked && self.delivered > 0 {
            let message = self.sent.pop_front().expect("it was delivered");
            self.memory_bytes -= message.cost();
            self.sent_bytes -= message.cost();
            self.released += 1;
            self.delivered -= 1;
        }
    }

    /// Discards all messages, which were for another monitor. The next message gets the number
    /// after `acked`. Returns the number of discarded rows.
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

    /// Whether most of the memory for messages that were not sent is free, and nothing is on disk.
    pub fn has_room(&self) -> bool {
        let is_on_disk = self.writing.is_some() || !self.segments.is_empty();
        !is_on_disk && self.memory_bytes - self.sent_bytes < self.capacity.memory_bytes / 8
    }

    /// Rows dropped since the last call, by channel.
    pub fn take_dropped(&mut self) -> BTreeMap<ChannelId, u64> {
        std::mem::take(&mut self.dropped)
    }

    /// The messages that are not acknowledged.
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

/// Where a message was dropped.
#[derive(Clone, Copy)]
enum DropPosition {
    /// Before all messages that were never sent.
    Front,
    /// After everything on disk.
    Tail,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{AgentBody, AgentMessage};

    fn watermark(at: i64) -> EncodedMessage {
        let body = AgentBody::try_from(AgentMessage::Watermark(at));
        EncodedMessage::message(body.expect("a message within its bounds"))
    }

    fn sent(outbox: &mut Outbox) -> Vec<u64> {
        std::iter::from_fn(|| outbox.next_message().map(|(number, _)| number)).collect()
    }

    /// Four messages were sent and none was acknowledged; the fifth does not fit into the window.
    fn with_full_window() -> Outbox {
        let mut outbox = Outbox::new(OutboxCapacity {
            memory_bytes: 8 * watermark(0).cost(),
            disk_bytes: 0,
        });
        for number in 1..=4 {
            outbox.push(watermark(number as i64));
            assert_eq!(sent(&mut outbox), [number]);
        }
        outbox.push(watermark(5));
        assert!(sent(&mut outbox).is_empty());
        outbox
    }

    /// A monitor acknowledges each number once, so an ack that was lost with a connection is in
    /// the next welcome only.
    #[test]
    fn the_window_opens_after_an_ack_that_was_lost_with_its_connection() {
        for acked in 0..=4 {
            let mut outbox = with_full_window();
            assert_eq!(outbox.resume(acked), Some(acked + 1));
            let last = if acked == 0 { 4 } else { 5 };
            let expected: Vec<u64> = (acked + 1..=last).collect();
            assert_eq!(sent(&mut outbox), expected, "acknowledged: {acked}");
        }
    }
}
