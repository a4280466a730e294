//! [`Subscribers`]: the readers of a view, each with a bounded backlog of updates.
//!
//! A slow reader does not delay the others. When its backlog is full, it receives no further
//! updates until it has read the backlog; the next update is then the current state. The rows that
//! it skips are counted.

use std::collections::VecDeque;

use tokio::sync::mpsc;

/// The limits of [`Subscribers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriberLimits {
    /// Maximum number of readers.
    pub readers_max: usize,
    /// Maximum number of unread updates of one reader, without the last one, which has a reserved
    /// slot.
    pub updates_max: usize,
    /// Maximum bytes of unread updates of one reader. A larger update is sent to a reader without
    /// a backlog.
    pub bytes_max: usize,
}

/// A snapshot or changes, in the form in which readers receive them.
#[derive(Clone, Debug)]
pub struct Update<M> {
    /// The content.
    pub body: M,
    /// Its memory.
    pub bytes: usize,
    /// The number of rows that a reader skips if it does not receive the update. A reader that
    /// does not receive an update without rows is not behind.
    pub rows: u64,
}

/// The readers of one view.
#[derive(Debug)]
pub struct Subscribers<M> {
    readers: Vec<Subscriber<M>>,
    limits: SubscriberLimits,
}

impl<M: Clone> Subscribers<M> {
    /// No readers.
    pub fn new(limits: SubscriberLimits) -> Subscribers<M> {
        Subscribers {
            readers: Vec::new(),
            limits,
        }
    }

    /// Replaces the limits; a backlog that exists keeps its own.
    pub fn set_limits(&mut self, limits: SubscriberLimits) {
        self.limits = limits;
    }

    /// The number of connected readers.
    pub fn len(&self) -> usize {
        self.readers.iter().filter(|r| r.is_connected()).count()
    }

    /// True if no reader is connected.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a reader, unless there are too many. It first receives `state`, if there is one. It is
    /// removed when the receiver is dropped.
    pub fn subscribe(
        &mut self,
        state: impl FnOnce() -> Option<Update<M>>,
    ) -> Option<mpsc::Receiver<M>> {
        self.readers.retain(Subscriber::is_connected);
        if self.readers.len() >= self.limits.readers_max {
            return None;
        }
        let (sender, receiver) = mpsc::channel(self.limits.updates_max + 1);
        let mut reader = Subscriber {
            sender,
            unread: VecDeque::new(),
            unread_bytes: 0,
            limits: self.limits,
            behind: false,
            skipped: 0,
        };
        if let Some(update) = state() {
            reader.send(update);
        }
        self.readers.push(reader);
        Some(receiver)
    }

    /// Sends an update to all readers. A reader that was behind and has read its backlog receives
    /// `state` instead, which is called with the number of rows that it has skipped so far.
    /// Returns false if a reader skips the update.
    pub fn publish(&mut self, update: &Update<M>, state: impl Fn(u64) -> Update<M>) -> bool {
        self.readers.retain(Subscriber::is_connected);
        let mut delivered = true;
        for reader in &mut self.readers {
            delivered &= reader.publish(update, &state);
        }
        delivered
    }

    /// Removes all readers. Each may receive a last update: `last` is called with the number of
    /// rows that the reader has skipped.
    pub fn end(&mut self, mut last: impl FnMut(u64) -> Option<M>) {
        for reader in self.readers.drain(..) {
            if let Some(last) = last(reader.skipped) {
                // A slot is reserved for it; a disconnected reader does not need it.
                let _ = reader.sender.try_send(last);
            }
        }
    }
}

#[derive(Debug)]
struct Subscriber<M> {
    sender: mpsc::Sender<M>,
    /// The bytes of each unread update, oldest first, and their sum.
    unread: VecDeque<usize>,
    unread_bytes: usize,
    limits: SubscriberLimits,
    /// Rows were not sent to it since it last received the current state.
    behind: bool,
    skipped: u64,
}

impl<M: Clone> Subscriber<M> {
    fn is_connected(&self) -> bool {
        !self.sender.is_closed()
    }

    fn publish(&mut self, update: &Update<M>, state: impl Fn(u64) -> Update<M>) -> bool {
        self.count_unread();
        let sent = match self.behind {
            false => self.send(update.clone()),
            true => self.unread.is_empty() && self.send(state(self.skipped)),
        };
        self.behind = !sent && (self.behind || update.rows > 0);
        if !sent {
            self.skipped += update.rows;
        }
        sent
    }

    /// Sends an update if there is room.
    fn send(&mut self, update: Update<M>) -> bool {
        let room = self.unread.len() < self.limits.updates_max
            && self.unread_bytes.saturating_add(update.bytes) <= self.limits.bytes_max;
        let room = room || self.unread.is_empty();
        if !room || self.sender.try_send(update.body).is_err() {
            return false;
        }
        self.unread.push_back(update.bytes);
        self.unread_bytes += update.bytes;
        true
    }

    /// Removes the updates that it has read from the backlog.
    fn count_unread(&mut self) {
        let unread = self.sender.max_capacity() - self.sender.capacity();
        while self.unread.len() > unread {
            self.unread_bytes -= self.unread.pop_front().expect("it is longer");
        }
    }
}
