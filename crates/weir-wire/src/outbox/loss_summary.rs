//! [`LossSummary`]: replaces dropped messages, so that only rows are lost, and those are counted.

use std::collections::{BTreeMap, VecDeque};

use weir_model::Nanos;

use super::MessageKind;
use crate::message::{AgentBody, ChannelId, Note, RequestsLost, SiteHosts};

/// The largest number of distinct notes; further ones are counted as `notes_dropped`.
const NOTES_MAX: usize = 256;

/// The summary of dropped messages. It is sent in this order: channels started, rows lost, channels
/// failed, notes, the hosts of a site, the watermark.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossSummary {
    /// The last of each channel.
    started: BTreeMap<ChannelId, AgentBody>,
    /// Lost requests.
    lost: BTreeMap<(ChannelId, String), u64>,
    /// Requests in the rows of a segment: lost if it is dropped.
    rows: BTreeMap<ChannelId, u64>,
    /// The last of each channel.
    failed: BTreeMap<ChannelId, AgentBody>,
    notes: VecDeque<Note>,
    notes_dropped: i64,
    /// The last of a site.
    hosts: Option<SiteHosts>,
    watermark: Option<Nanos>,
}

impl LossSummary {
    /// The summary of the messages of a segment if it is dropped.
    pub fn of<'a>(messages: impl IntoIterator<Item = &'a MessageKind>) -> LossSummary {
        let mut losses = LossSummary::default();
        for kind in messages {
            match kind {
                MessageKind::Rows(channel, rows) => {
                    *losses.rows.entry(*channel).or_default() += rows
                }
                kind => losses.add(kind, ""),
            }
        }
        losses
    }

    /// Adds a message dropped for `cause`.
    pub fn add(&mut self, kind: &MessageKind, cause: &str) {
        match kind {
            MessageKind::Rows(channel, rows) => self.lose(*channel, *rows, cause),
            MessageKind::Watermark(at) => self.watermark = self.watermark.max(Some(*at)),
            MessageKind::Other(message) => match &**message {
                AgentBody::Lost(body) => {
                    self.lose(ChannelId(body.channel), body.requests, &body.cause);
                }
                AgentBody::Note(body) => self.note(body),
                AgentBody::Started(body) => {
                    let channel = ChannelId(body.channel);
                    // It has failed before, and was started again.
                    self.failed.remove(&channel);
                    self.started.insert(channel, (**message).clone());
                }
                AgentBody::Failed(body) => {
                    self.failed
                        .insert(ChannelId(body.channel), (**message).clone());
                }
                AgentBody::Hosts(body) => self.hosts = Some(body.clone()),
                // Nothing else is retained.
                _ => {}
            },
        }
    }

    /// Adds a dropped segment, which is newer than what was dropped before.
    pub fn append(&mut self, later: &LossSummary, cause: &str) {
        let is_started = |channel: &ChannelId| later.started.contains_key(channel);
        self.failed.retain(|channel, _| !is_started(channel));
        self.started.extend(later.started.clone());
        for ((channel, cause), rows) in &later.lost {
            self.lose(*channel, *rows, cause);
        }
        for (channel, rows) in &later.rows {
            self.lose(*channel, *rows, cause);
        }
        self.failed.extend(later.failed.clone());
        for note in &later.notes {
            self.note(note);
        }
        self.notes_dropped += later.notes_dropped;
        self.hosts = later.hosts.clone().or(self.hosts.take());
        self.watermark = self.watermark.max(later.watermark);
    }

    fn lose(&mut self, channel: ChannelId, rows: u64, cause: &str) {
        *self.lost.entry((channel, cause.to_owned())).or_default() += rows;
    }

    /// Notes of one kind are added up: each has the increment since the previous one.
    fn note(&mut self, note: &Note) {
        let same = |other: &Note| {
            (&other.place, &other.counter, &other.cause, &other.device)
                == (&note.place, &note.counter, &note.cause, &note.device)
        };
        match self.notes.iter().position(same) {
            Some(place) => {
                let value = self.notes[place].value.saturating_add(note.value);
                self.notes[place] = Note {
                    value,
                    ..note.clone()
                };
            }
            None if self.notes.len() < NOTES_MAX => self.notes.push_back(note.clone()),
            None => self.notes_dropped += 1,
        }
    }

    /// Requests by channel in the rows of a segment.
    pub fn rows(&self) -> &BTreeMap<ChannelId, u64> {
        &self.rows
    }

    /// The number of messages that it expands to.
    pub fn len(&self) -> usize {
        let messages = [self.started.len(), self.lost.len(), self.failed.len()];
        let last = [self.hosts.is_some(), self.watermark.is_some()];
        let last = last.into_iter().filter(|is_there| *is_there).count();
        messages.iter().sum::<usize>() + self.notes.len() + last
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes and returns the next message.
    pub fn pop(&mut self) -> Option<AgentBody> {
        if let Some((_, started)) = self.started.pop_first() {
            return Some(started);
        }
        if let Some(((channel, cause), requests)) = self.lost.pop_first() {
            return Some(AgentBody::Lost(RequestsLost {
                channel: channel.0,
                requests,
                cause,
            }));
        }
        if let Some((_, failed)) = self.failed.pop_first() {
            return Some(failed);
        }
        if let Some(note) = self.notes.pop_front() {
            if self.notes_dropped > 0 {
                self.notes.push_back(Note {
                    at_ns: note.at_ns,
                    place: "uplink".into(),
                    counter: "notes_dropped".into(),
                    value: self.notes_dropped,
                    total: self.notes_dropped,
                    ..Note::default()
                });
                self.notes_dropped = 0;
            }
            return Some(AgentBody::Note(note));
        }
        if let Some(hosts) = self.hosts.take() {
            return Some(AgentBody::Hosts(hosts));
        }
        self.watermark.take().map(AgentBody::Watermark)
    }
}
