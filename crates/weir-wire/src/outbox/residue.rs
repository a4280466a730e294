//! [`Residue`]: what dropped words leave behind, so that nothing but rows is lost, and those by count.

use std::collections::{BTreeMap, VecDeque};

use weir_model::Nanos;

use super::Kind;
use crate::message::{AgentSays, LostBody, NoteBody};
use crate::word::ChannelId;

/// Most kinds of notes that are kept apart; further ones are counted as `notes_dropped`.
const NOTES_MAX: usize = 256;

/// What dropped words leave behind. It is said in this order: what began, rows lost, what failed,
/// notes, and how far time had come.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Residue {
    /// Of each channel the last.
    started: BTreeMap<ChannelId, AgentSays>,
    /// Requests.
    lost: BTreeMap<(ChannelId, String), u64>,
    /// Requests in rows that lie in a segment: lost if it is dropped.
    rows: BTreeMap<ChannelId, u64>,
    /// Of each channel the last.
    failed: BTreeMap<ChannelId, AgentSays>,
    notes: VecDeque<NoteBody>,
    notes_dropped: i64,
    reached: Option<Nanos>,
}

impl Residue {
    /// What the words of a segment would leave behind if it were dropped.
    pub fn of<'a>(words: impl IntoIterator<Item = &'a Kind>) -> Residue {
        let mut residue = Residue::default();
        for kind in words {
            match kind {
                Kind::Rows(channel, rows) => *residue.rows.entry(*channel).or_default() += rows,
                kind => residue.add(kind, ""),
            }
        }
        residue
    }

    /// A word was dropped, for `cause`.
    pub fn add(&mut self, kind: &Kind, cause: &str) {
        match kind {
            Kind::Rows(channel, rows) => self.lose(*channel, *rows, cause),
            Kind::Reached(at) => self.reached = self.reached.max(Some(*at)),
            Kind::Word(says) => match &**says {
                AgentSays::Lost(body) => {
                    self.lose(ChannelId(body.channel), body.requests, &body.cause);
                }
                AgentSays::Note(body) => self.note(body),
                AgentSays::Started(body) => {
                    self.started
                        .insert(ChannelId(body.channel), (**says).clone());
                }
                AgentSays::Failed(body) => {
                    self.failed
                        .insert(ChannelId(body.channel), (**says).clone());
                }
                // Nothing else is kept until it is taken.
                _ => {}
            },
        }
    }

    /// A segment was dropped, for `cause`; it is younger than what was dropped before.
    pub fn append(&mut self, later: &Residue, cause: &str) {
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
        self.reached = self.reached.max(later.reached);
    }

    fn lose(&mut self, channel: ChannelId, rows: u64, cause: &str) {
        *self.lost.entry((channel, cause.to_owned())).or_default() += rows;
    }

    /// Notes of one kind add up: each says how much since the last of its kind.
    fn note(&mut self, note: &NoteBody) {
        let same = |other: &NoteBody| {
            (&other.place, &other.counter, &other.cause, &other.device)
                == (&note.place, &note.counter, &note.cause, &note.device)
        };
        match self.notes.iter().position(same) {
            Some(place) => {
                let value = self.notes[place].value.saturating_add(note.value);
                self.notes[place] = NoteBody {
                    value,
                    ..note.clone()
                };
            }
            None if self.notes.len() < NOTES_MAX => self.notes.push_back(note.clone()),
            None => self.notes_dropped += 1,
        }
    }

    /// Rows by channel that lie in a segment.
    pub fn rows(&self) -> &BTreeMap<ChannelId, u64> {
        &self.rows
    }

    /// How many words are left to be said.
    pub fn len(&self) -> usize {
        let words = [self.started.len(), self.lost.len(), self.failed.len()];
        words.iter().sum::<usize>() + self.notes.len() + usize::from(self.reached.is_some())
    }

    /// True if nothing is left to be said.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next thing to be said.
    pub fn pop(&mut self) -> Option<AgentSays> {
        if let Some((_, started)) = self.started.pop_first() {
            return Some(started);
        }
        if let Some(((channel, cause), requests)) = self.lost.pop_first() {
            return Some(AgentSays::Lost(LostBody {
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
                self.notes.push_back(NoteBody {
                    at_ns: note.at_ns,
                    place: "uplink".into(),
                    counter: "notes_dropped".into(),
                    value: self.notes_dropped,
                    total: self.notes_dropped,
                    ..NoteBody::default()
                });
                self.notes_dropped = 0;
            }
            return Some(AgentSays::Note(note));
        }
        self.reached.take().map(AgentSays::Reached)
    }
}
