//! Checkpoints: the state from which standing queries continue after the monitor was killed
//! (decision 0017).
//!
//! A checkpoint contains the instant up to which results are in the files, and the messages of
//! agents that are *safe*: later results do not depend on them. Only those are acknowledged. After
//! a restart agents send the others again, which refills the windows; results up to the instant are
//! not emitted a second time.

use std::collections::HashMap;
use std::path::PathBuf;

use weir_model::{Batch, NANOS_PER_SECOND, Nanos, Value};
use weir_wire::ChannelId;

use super::Monitor;
use super::account::{Account, Instants};
use super::agents::{AgentId, AgentState, Run};
use super::channels::Channel;
use super::site::SavedSite;
use super::state::{Cell, Position, Saved, SavedAgent, SavedChannel, SavedQuery, SavedRun};

/// The approximate size of a message at the agent without its rows.
const WORD_BYTES: usize = 200;

/// Maximum rows of relations in a checkpoint; larger relations are not saved.
const CONTENT_ROWS_MAX: usize = 200_000;

/// The maximum interval between checkpoints, regardless of their duration.
const PAUSE_MAX: Nanos = 10 * NANOS_PER_SECOND;

/// A message that is not safe yet.
#[derive(Clone, Debug)]
pub struct Unsafe {
    /// Its number, or that of a later one without effect.
    pub number: u64,
    /// Approximate bytes of its rows.
    pub bytes: usize,
    /// It is safe when results up to this instant are.
    pub until: Nanos,
    /// The outcome of its rows.
    pub effect: Option<(ChannelId, Account)>,
    /// The instants of its rows that arrived in time.
    pub instants: Instants,
    /// The changes of a relation that it contains.
    pub changes: Option<(ChannelId, Batch)>,
    /// Changes of this relation are discarded after it, or no longer.
    pub discards: Option<(ChannelId, bool)>,
    /// In the message of this number, rows up to this instant were late.
    pub late: Option<(u64, Nanos)>,
}

impl Unsafe {
    /// The channel of its rows, and the last of their instants.
    pub fn last_row(&self) -> Option<(ChannelId, Nanos)> {
        match (&self.changes, self.effect) {
            (Some((id, batch)), _) => Some((*id, *batch.ts.last()?)),
            (None, Some((id, _))) => Some((id, self.instants.last()?)),
            (None, None) => None,
        }
    }
}

impl AgentState {
    /// The rows of channels are needed for longer than before, as given by `holds`.
    pub fn hold_longer(&mut self, holds: &HashMap<ChannelId, Nanos>) {
        for word in &mut self.unsafe_words {
            if let Some((channel, last)) = word.last_row()
                && let Some(hold) = holds.get(&channel)
            {
                word.until = word.until.max(last.saturating_add(*hold));
            }
        }
    }

    /// Records a processed message that may be needed again.
    pub fn note(&mut self, word: Unsafe) {
        let changes_relation = word.changes.is_some() || word.discards.is_some();
        let idle = word.effect.is_none() && !changes_relation && word.until == Nanos::MIN;
        self.unsafe_bytes += word.bytes + WORD_BYTES;
        match self.unsafe_words.back_mut() {
            Some(last) if idle => {
                last.number = word.number;
                last.bytes += word.bytes + WORD_BYTES;
            }
            _ => self.unsafe_words.push_back(Unsafe {
                bytes: word.bytes + WORD_BYTES,
                ..word
            }),
        }
    }

    /// True if messages may be needed again. The next ones are recorded after them.
    pub fn has_unsafe_words(&self) -> bool {
        !self.unsafe_words.is_empty()
    }

    /// From now on messages are recorded. Without unsafe ones, all changes of relations are safe;
    /// otherwise messages were recorded until now.
    pub fn begin_recording(&mut self) {
        if self.unsafe_words.is_empty() {
            for run in self.runs.values_mut() {
                run.safe_content = run.content.clone();
                run.safe_discards = run.discards;
            }
        }
    }

    /// Marks messages as safe when results up to `instant` are; the oldest of the remaining ones
    /// that exceed `bytes_max` are passed to `give_up` and discarded.
    pub fn settle(&mut self, instant: Nanos, bytes_max: usize, mut give_up: impl FnMut(&Unsafe)) {
        while let Some(word) = self.unsafe_words.front() {
            if word.until > instant {
                if self.unsafe_bytes <= bytes_max {
                    return;
                }
                give_up(word);
                if let Some((channel, _)) = word.effect {
                    self.given_up.push((channel, word.instants.clone()));
                }
            }
            self.settled = word.number;
            self.unsafe_bytes -= word.bytes;
            let Some(word) = self.unsafe_words.pop_front() else {
                unreachable!("it was looked at above");
            };
            if let Some((channel, batch)) = word.changes
                && let Some(run) = self.runs.get_mut(&channel)
            {
                run.safe_content.apply(&batch);
            }
            if let Some((channel, discards)) = word.discards
                && let Some(run) = self.runs.get_mut(&channel)
            {
                run.safe_discards = discards;
            }
        }
        self.settled = self.seen;
    }

    /// The number of requests, by channel, that are in no result up to `instant` and will not be
    /// sent again: a monitor that continues from there has lost them.
    fn requests_given_up(&mut self, instant: Nanos) -> HashMap<ChannelId, u64> {
        self.given_up
            .retain(|(_, instants)| instants.any_after(instant));
        let mut lost: HashMap<ChannelId, u64> = HashMap::new();
        for (channel, instants) in &self.given_up {
            *lost.entry(*channel).or_default() += instants.requests_after(instant);
        }
        lost
    }

    /// The outcome of its rows in messages that are not safe, by channel.
    fn unsettled(&self) -> HashMap<ChannelId, Account> {
        let mut accounts: HashMap<ChannelId, Account> = HashMap::new();
        for (channel, account) in self.unsafe_words.iter().filter_map(|w| w.effect) {
            accounts.entry(channel).or_default().add(account);
        }
        accounts
    }
}

impl Monitor {
    /// Starts a checkpoint if one is due, and acknowledges safe messages.
    pub(super) fn checkpoint(&mut self, now: Nanos) {
        if self.state.is_none() {
            return self.acknowledge_all();
        }
        self.note_saved(false, now);
        if !self.queries.values().any(|q| q.standing) && !self.saved_any {
            return self.acknowledge_all();
        }
        let state = self.state.as_ref().expect("it was looked at");
        // Checkpoints use a small share of the time, whatever their size.
        let pause = self.save_took.saturating_mul(20).min(PAUSE_MAX);
        let pause = self.options.checkpoint_every.max(pause);
        let due = now.saturating_sub(self.saved_at) >= pause;
        if (due || self.save_soon) && !state.is_busy() {
            self.save(now);
        }
    }

    /// Acknowledges all messages; none will be needed again.
    fn acknowledge_all(&mut self) {
        for agent in self.agents.values_mut() {
            agent.settle(Nanos::MAX, 0, |_| {});
            agent.safe = agent.settled;
        }
    }

    /// Checks whether the checkpoint being saved is on disk.
    fn note_saved(&mut self, patient: bool, now: Nanos) {
        let state = self.state.as_mut().expect("there is a state directory");
        match state.saved(patient) {
            Some(Ok(())) => {
                self.save_took = now.saturating_sub(self.saved_at).max(0);
                self.saved_to[0] = self.saved_to[1];
                for agent in self.agents.values_mut() {
                    agent.safe = agent.safe.max(agent.saving);
                }
            }
            Some(Err(error)) => {
                self.own
                    .record(now, None, "checkpoint_failed", &error.to_string(), 1);
            }
            None => {}
        }
    }

    /// Waits until the checkpoint being saved is on disk.
    pub(super) fn await_checkpoint(&mut self, now: Nanos) {
        if self.state.is_some() {
            self.note_saved(true, now);
        }
    }

    /// Saves a checkpoint and waits until it is on disk, for a clean shutdown.
    pub fn save_and_wait(&mut self, now: Nanos) {
        if self.state.is_some() && self.queries.values().any(|q| q.standing) {
            self.await_checkpoint(now);
            self.save(now);
            self.await_checkpoint(now);
            let ids: Vec<AgentId> = self.agents.keys().copied().collect();
            ids.into_iter().for_each(|id| self.send_orders(id, now));
        }
    }

    /// Computes again how long each channel's rows are needed, and saves as soon as possible which
    /// queries are standing.
    pub(super) fn hold(&mut self, now: Nanos) {
        self.save_soon = true;
        let restoring = self.recovery.is_open();
        let mut before: HashMap<ChannelId, Option<Nanos>> = HashMap::new();
        for channel in self.channels.iter_mut() {
            let restored = (channel.restored && restoring).then_some(Nanos::MAX);
            before.insert(channel.id, channel.hold.take().max(restored));
        }
        self.own_hold = None;
        let held = std::mem::replace(
            &mut self.holds,
            self.state.is_some() && self.queries.values().any(|q| q.standing),
        );
        if self.holds && !held {
            self.agents
                .values_mut()
                .for_each(AgentState::begin_recording);
        }
        for running in self.queries.values().filter(|q| q.standing) {
            if running.reads_own {
                self.own_hold = self.own_hold.max(Some(running.memory.unwrap_or(0)));
            }
            for (id, _) in &running.channels {
                if let Some(channel) = self.channels.get_mut(*id) {
                    channel.hold = channel.hold.max(Some(running.memory.unwrap_or(0)));
                }
            }
        }
        let mut longer = HashMap::new();
        for channel in self.channels.iter_mut() {
            let given_up = match (before[&channel.id], channel.hold) {
                // Until now messages were safe at once, also those that later results need.
                (None, Some(_)) | (Some(_), None) if channel.is_relation() => Some(now),
                (None, Some(hold)) => channel.waiting.last().map(|ts| ts.saturating_add(hold)),
                (Some(before), Some(hold)) if hold > before => {
                    longer.insert(channel.id, hold);
                    let given_up = Some(channel.given_up).filter(|at| *at > Nanos::MIN);
                    given_up.map(|at| at.saturating_add(hold - before))
                }
                _ => None,
            };
            channel.given_up = channel.given_up.max(given_up.unwrap_or(Nanos::MIN));
        }
        if !longer.is_empty() {
            let agents = self.agents.values_mut();
            agents.for_each(|agent| agent.hold_longer(&longer));
        }
    }

    fn save(&mut self, now: Nanos) {
        // The rows that were read again after a restart have not reached the results in the files.
        if self
            .queries
            .values()
            .any(|q| q.shown_to > self.watermark || q.pending.is_some())
        {
            return;
        }
        self.saved_at = now;
        self.save_soon = false;
        let mut files = Vec::new();
        let mut queries = Vec::new();
        for running in self.queries.values_mut().filter(|q| q.standing) {
            let positions = running.publisher.positions();
            files.extend(positions.iter().map(|p: &Position| p.path.clone()));
            queries.push(SavedQuery {
                name: running.name.clone(),
                since: running.since,
                from: running.from,
                before: running.channels.iter().map(|(id, a)| (id.0, *a)).collect(),
                positions,
                rows: running.publisher.rows_emitted(),
            });
        }
        self.save_with(queries, files);
    }

    fn save_with(&mut self, queries: Vec<SavedQuery>, files: Vec<PathBuf>) {
        let instant = self.watermark;
        self.saved_to[1] = instant;
        self.saved_any = !queries.is_empty();
        let mut unsettled: HashMap<ChannelId, Account> = HashMap::new();
        let mut lost: HashMap<ChannelId, u64> = HashMap::new();
        let mut agents = Vec::with_capacity(self.agents.len());
        for agent in self.agents.values_mut() {
            // An agent for which all wait may itself be waiting for room.
            let may_be_stuck = agent.lagging && agent.reached <= instant;
            let bytes_max = match may_be_stuck {
                true => 0,
                false => agent.hold_bytes_max(self.options.hold_bytes_max) / 2,
            };
            let channels = &mut self.channels;
            agent.settle(instant, bytes_max, |word| channels.give_up(word));
            agent.saving = agent.settled;
            let own = agent.unsettled();
            for (channel, account) in &own {
                unsettled.entry(*channel).or_default().add(*account);
            }
            let given_up = agent.requests_given_up(instant);
            let mut saved = saved_agent(agent, &own, instant <= self.recovery.instant);
            for (channel, requests) in given_up {
                saved.account.lose(requests);
                *lost.entry(channel).or_default() += requests;
            }
            agents.push(saved);
        }
        let rows = |run: &SavedRun| run.content.len();
        let rows: usize = agents.iter().flat_map(|a| &a.runs).map(rows).sum();
        if rows > CONTENT_ROWS_MAX {
            let runs = agents.iter_mut().flat_map(|a| &mut a.runs);
            runs.for_each(|run| run.content.clear());
        }
        // Messages of the others are acknowledged at once, and their relations are not recorded: a
        // standing query with the same fragment must not continue with one of them.
        let held = self.channels.iter().filter(|c| c.hold.is_some());
        let channels = held
            .filter(|c| !c.is_relation() || rows <= CONTENT_ROWS_MAX)
            .map(|channel| {
                let open = unsettled.get(&channel.id).copied().unwrap_or_default();
                let mut account = channel.account.since(open);
                account.lose(lost.get(&channel.id).copied().unwrap_or_default());
                SavedChannel {
                    id: channel.id.0,
                    fragment: hexadecimal(&channel.encoded),
                    account,
                    complete_from: channel.complete_from,
                    given_up: channel.given_up,
                }
            });
        // The content of a relation is inserted after the instant at which time restarts, when its
        // results are not emitted again.
        let hold = |c: &Channel| c.hold.map(|hold| hold.max(Nanos::from(c.is_relation())));
        let holds = self.channels.iter().filter_map(hold);
        let hold = holds.chain(self.own_hold).max().unwrap_or(0);
        let saved = Saved {
            instant,
            resume_from: instant.saturating_sub(hold),
            channels: channels.collect(),
            agents,
            forgotten: self.forgotten.to_vec(),
            queries,
        };
        let state = self.state.as_mut().expect("there is a state directory");
        state.save(&saved, files);
    }
}

fn saved_agent(
    agent: &AgentState,
    unsettled: &HashMap<ChannelId, Account>,
    is_unchanged: bool,
) -> SavedAgent {
    let open = |id: &ChannelId| unsettled.get(id).copied().unwrap_or_default();
    let row = |(row, count): (&[Value], i64)| {
        let cells = row.iter().map(Cell::of).collect::<Option<Vec<Cell>>>();
        cells.map(|cells| (cells, count))
    };
    let run = |(id, run): (&ChannelId, &Run)| SavedRun {
        channel: id.0,
        started: run.started,
        failed: run.failed,
        account: run.account.since(open(id)),
        reported: run.reported,
        content: run.safe_content.rows().filter_map(row).collect(),
        discards: run.safe_discards,
    };
    let mut all_open = Account::default();
    unsettled
        .values()
        .for_each(|account| all_open.add(*account));
    // Until time advances after the restart, messages not sent again yet are saved as before.
    let unheard = agent.before.as_ref();
    let unheard = unheard.filter(|b| is_unchanged && agent.seen < b.seen);
    let late = agent.unsafe_words.iter().filter_map(|word| word.late);
    let unheard_late = unheard.into_iter().flat_map(|b| b.late_after(agent.seen));
    SavedAgent {
        host: agent.host.as_str().into(),
        address: agent.peer,
        version: agent.version.as_str().into(),
        instance: agent.instance,
        connected: agent.session.is_some() || unheard.is_some_and(|b| b.connected),
        safe: agent.settled,
        seen: unheard.map_or(agent.seen, |b| b.seen),
        excluded: agent.excluded,
        ended: agent.ended,
        site: agent.site.as_ref().and_then(SavedSite::of),
        account: agent.account.since(all_open),
        runs: agent.runs.iter().map(run).collect(),
        late: late.chain(unheard_late).collect(),
        past: agent.past(),
    }
}

/// Bytes as hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).expect("it is below 16");
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}
