//! [`AgentCore`]: runs fragments of queries and emits their results.

use std::collections::{BTreeMap, HashMap, VecDeque};

use weir_model::{Batch, Declaration, Folded, Nanos, Shape};
use weir_query::engine::{
    Engine, EngineCounts, EngineOptions, EngineOutput, QueryId, in_time_order,
};
use weir_query::plan::Plan;
use weir_wire::message::{CHANNELS_MAX, ENDED_MAX, IDLE_WATERMARK_NS};
use weir_wire::{AgentMessage, ChannelCost, ChannelId, ChannelTally};

/// An agent without threads, clocks and network. All times are the monitor's.
pub struct AgentCore {
    engine: Engine,
    running: BTreeMap<ChannelId, Fragment>,
    channels: HashMap<QueryId, ChannelId>,
    /// The number of fragments that read each source.
    sources: BTreeMap<String, usize>,
    /// Requests of each source whose groups have not arrived.
    folding: BTreeMap<String, u64>,
    /// The tallies of channels that have ended, in the order in which they ended.
    ended: VecDeque<ChannelTally>,
    /// Messages to emit before the results of the next step.
    pending: Vec<AgentMessage>,
    /// The watermark of all sources.
    reached: Nanos,
    /// The watermark that was last emitted.
    emitted_watermark: Nanos,
    /// The next instant after `emitted_watermark` at which a fragment may emit rows, if known.
    emits_at: Option<Nanos>,
}

/// A channel with this number of rows is flushed: its rows are emitted as one message.
const WORD_ROWS: usize = 4096;

/// The cause of the loss of groups that arrived after the watermark.
const LATE: &str = "late";

/// Rows of a channel that are sent in one message; each message has an overhead of some hundred
/// bytes.
#[derive(Default)]
struct Gathered {
    batches: Vec<Batch>,
    count: usize,
}

impl Gathered {
    fn add(&mut self, batch: Batch) {
        self.count += batch.len();
        self.batches.push(batch);
    }

    fn word(self, channel: ChannelId) -> AgentMessage {
        let batch = in_time_order(&self.batches);
        AgentMessage::Rows { channel, batch }
    }
}

/// A running fragment.
struct Fragment {
    query: QueryId,
    plan: Plan,
    sources: Vec<String>,
    /// The number of rows that its sources had delivered when it started.
    rows_before: u64,
    /// It receives what is later.
    started_at: Nanos,
    /// The column that contains the number of requests per row, if any.
    counts: Option<usize>,
    /// Rows that it emitted.
    rows_out: u64,
    tally: ChannelTally,
}

impl AgentCore {
    /// An agent without fragments, before all time.
    pub fn new(options: EngineOptions) -> AgentCore {
        AgentCore {
            engine: Engine::new(options),
            running: BTreeMap::new(),
            channels: HashMap::new(),
            sources: BTreeMap::new(),
            folding: BTreeMap::new(),
            ended: VecDeque::new(),
            pending: Vec::new(),
            reached: Nanos::MIN,
            emitted_watermark: Nanos::MIN,
            emits_at: None,
        }
    }

    /// Starts a fragment. It receives rows from now on, and emits the instant from which it does. A
    /// channel that runs already is not changed.
    pub fn start(&mut self, channel: ChannelId, plan: &Plan) {
        if self.running.contains_key(&channel) {
            return;
        }
        if self.running.len() >= CHANNELS_MAX {
            let why = format!("the agent already runs {CHANNELS_MAX} fragments");
            return self.refuse(channel, why);
        }
        let sources: Vec<String> = plan.sources().iter().map(|d| d.name.clone()).collect();
        for source in &sources {
            *self.sources.entry(source.clone()).or_default() += 1;
            // Earlier rows are not part of this fragment, even if the tap delivers some of them
            // later.
            self.engine.heartbeat(source, self.reached);
        }
        let (query, at) = self.add(channel, plan);
        let rows_before = rows_of(&self.engine.counts(), &sources);
        // A channel that is started again continues its tally.
        let ended = self.ended.iter().position(|t| t.channel == channel.0);
        let tally = ended.and_then(|at| self.ended.remove(at));
        let fragment = Fragment {
            query,
            plan: plan.clone(),
            sources,
            rows_before,
            started_at: at,
            counts: plan.requests_column(),
            rows_out: 0,
            tally: tally.unwrap_or(ChannelTally {
                channel: channel.0,
                produced: 0,
                lost: 0,
            }),
        };
        self.running.insert(channel, fragment);
        self.emits_at = None;
    }

    /// Adds the query of a channel, and emits the instant from which it receives rows.
    fn add(&mut self, channel: ChannelId, plan: &Plan) -> (QueryId, Nanos) {
        let query = self.engine.add(plan);
        let at = self.engine.visible_after(plan).max(self.reached);
        self.channels.insert(query, channel);
        self.pending.push(AgentMessage::started(channel, at));
        (query, at)
    }

    /// Sends the content of a relation again, as after a start: the monitor has not received all of
    /// its changes. Other channels are not changed.
    pub fn resend(&mut self, channel: ChannelId) {
        let running = self.running.get(&channel);
        let Some(fragment) = running.filter(|f| f.plan.shape == Shape::Relation) else {
            return;
        };
        let (before, plan) = (fragment.query, fragment.plan.clone());
        let (query, at) = self.add(channel, &plan);
        self.engine.remove(before);
        self.channels.remove(&before);
        let fragment = self.running.get_mut(&channel).expect("it was looked up");
        (fragment.query, fragment.started_at) = (query, at);
        self.emits_at = None;
    }

    /// Announces that a source will be read: the content of a relation is retained from its first
    /// row.
    pub fn declare(&mut self, declaration: &Declaration) {
        self.engine.declare(declaration);
    }

    /// Removes a source that no fragment reads, with its retained content.
    pub fn forget_source(&mut self, source: &str) {
        self.engine.remove_source(source);
    }

    /// Emits that a channel cannot run.
    pub fn refuse(&mut self, channel: ChannelId, why: String) {
        self.pending.push(AgentMessage::failed(channel, why));
    }

    /// Stops a fragment; the rows of earlier steps have been emitted. An unknown channel is not an
    /// error.
    pub fn stop(&mut self, channel: ChannelId) {
        if let Some(fragment) = self.running.get(&channel) {
            self.engine.remove(fragment.query);
            self.forget(channel);
        }
    }

    /// True if a running fragment reads this source.
    pub fn reads(&self, source: &str) -> bool {
        self.sources.contains_key(source)
    }

    /// Accepts rows of a source, in timestamp order. Rows at or before [`AgentCore::reached`] are
    /// late: they are dropped, and counted in [`AgentCore::counts`].
    pub fn push(&mut self, source: &str, batch: Batch) {
        self.engine.push(source, batch);
    }

    /// Accepts groups that a source has folded. Groups of an interval that the watermark has
    /// passed are lost: the source was silent for too long, as that of an agent that was stopped.
    pub fn push_folded(&mut self, source: &str, folded: Folded) {
        let (end, requests) = (folded.end, folded.requests());
        if !self.engine.push_folded(source, folded) {
            self.lose(source, requests, LATE, |fragment| fragment.started_at < end);
        }
    }

    /// Sets the watermark of one source to `at`; fragments that start now receive later rows.
    pub fn watermark_sent(&mut self, source: &str, at: Nanos) {
        self.engine.heartbeat(source, at);
    }

    /// The watermark of all sources.
    pub fn time(&self) -> Nanos {
        self.reached
    }

    /// Advances the watermark of all sources to `at`.
    pub fn reached(&mut self, at: Nanos) {
        self.reached = self.reached.max(at);
        for source in self.sources.keys() {
            self.engine.heartbeat(source, self.reached);
        }
    }

    /// Sets the number of requests that the source has counted and whose groups have not arrived.
    pub fn set_folding(&mut self, source: &str, requests: u64) {
        match requests {
            0 => drop(self.folding.remove(source)),
            _ => drop(self.folding.insert(source.to_owned(), requests)),
        }
    }

    /// Records requests that were lost at a source: each fragment that reads it may miss this
    /// number.
    pub fn missed(&mut self, source: &str, requests: u64, cause: &str) {
        self.lose(source, requests, cause, |_| true);
    }

    /// Counts requests of a source as lost for the fragments that read it and are `concerned`.
    fn lose(
        &mut self,
        source: &str,
        requests: u64,
        cause: &str,
        concerned: impl Fn(&Fragment) -> bool,
    ) {
        for (channel, fragment) in &mut self.running {
            if fragment.sources.iter().any(|s| s == source) && concerned(fragment) {
                fragment.tally.produced += requests;
                fragment.tally.lost += requests;
                self.pending
                    .push(AgentMessage::lost(*channel, requests, cause));
            }
        }
    }

    /// Advances to the watermark of the sources and emits the results: rows, then the watermark.
    pub fn step(&mut self, emit: &mut impl FnMut(AgentMessage)) {
        self.pending.drain(..).for_each(&mut *emit);
        let (running, channels) = (&mut self.running, &self.channels);
        let mut failed = Vec::new();
        let mut gathered: BTreeMap<ChannelId, Gathered> = BTreeMap::new();
        self.engine.step(&mut |output| match output {
            EngineOutput::Rows { query, batch } => {
                let channel = channels[&query];
                let fragment = running.get_mut(&channel).expect("its query runs");
                fragment.tally.produced += batch.requests(fragment.counts);
                fragment.rows_out += batch.len() as u64;
                let rows = gathered.entry(channel).or_default();
                rows.add(batch);
                if rows.count >= WORD_ROWS {
                    emit(std::mem::take(rows).word(channel));
                }
            }
            EngineOutput::Failed { query, error } => {
                let channel = channels[&query];
                if let Some(rows) = gathered.remove(&channel).filter(|rows| rows.count > 0) {
                    emit(rows.word(channel));
                }
                let help = error.help.as_ref().map(|help| format!("; {help}"));
                let why = format!("{error}{}", help.unwrap_or_default());
                emit(AgentMessage::failed(channel, why));
                failed.push(channel);
            }
        });
        for (channel, rows) in gathered.into_iter().filter(|(_, rows)| rows.count > 0) {
            emit(rows.word(channel));
        }
        failed.into_iter().for_each(|channel| self.forget(channel));
        let at = match self.sources.is_empty() {
            true => self.reached,
            false => self.reached.min(self.engine.now()),
        };
        if at > self.emitted_watermark
            && (at.saturating_sub(self.emitted_watermark) >= IDLE_WATERMARK_NS
                || self.may_have_shown(at))
        {
            self.emitted_watermark = at;
            self.emits_at = None;
            emit(AgentMessage::Watermark(at));
        }
    }

    /// True if fragments may have emitted rows up to `at` since the last watermark was emitted.
    /// Between the ends of slides no watermark is needed.
    fn may_have_shown(&mut self, at: Nanos) -> bool {
        let next = self.emitted_watermark.saturating_add(1);
        let first = || {
            let mut first = Nanos::MAX;
            for fragment in self.running.values() {
                first = first.min(fragment.plan.emitted_by(next));
                if first == next {
                    // No fragment emits rows earlier.
                    break;
                }
            }
            first
        };
        *self.emits_at.get_or_insert_with(first) <= at
    }

    /// Ends the core: there are no events beyond those received up to `at`. Each fragment emits the
    /// results of its open slide, at the end of the slide, which may be later than `at`. Afterwards
    /// only tallies may be read.
    pub fn end(&mut self, at: Nanos, emit: &mut impl FnMut(AgentMessage)) {
        self.reached(at);
        self.step(emit);
        let running = self.running.values();
        let ends = running.map(|f| (f.plan.emitted_by(self.reached), f.query));
        let mut ends: Vec<(Nanos, QueryId)> = ends.collect();
        ends.sort_by_key(|(end, _)| *end);
        for same in ends.chunk_by(|(a, _), (b, _)| a == b) {
            self.reached(same[0].0);
            self.step(&mut |word| match word {
                // Fragments that end later receive no more rows, but their watermark would be
                // interpreted as that of all fragments.
                AgentMessage::Watermark(_) => {}
                word => emit(word),
            });
            for (_, query) in same {
                self.engine.remove(*query);
            }
        }
    }

    /// Counts requests of a channel as lost whose rows were emitted and will not arrive.
    pub fn lost(&mut self, channel: ChannelId, requests: u64) {
        let ended = self.ended.iter_mut().find(|t| t.channel == channel.0);
        let running = self.running.get_mut(&channel).map(|f| &mut f.tally);
        if let Some(tally) = running.or(ended) {
            tally.lost += requests;
        }
    }

    /// The tally of each channel, ended ones included. For running channels it includes requests
    /// for which no row was emitted yet.
    pub fn tallies(&self) -> impl Iterator<Item = ChannelTally> + Clone {
        let running = self.running.values().map(|f| ChannelTally {
            produced: f.tally.produced + self.open(f),
            ..f.tally
        });
        self.ended.iter().copied().chain(running)
    }

    /// Requests that a fragment has received and for which it will emit rows: those of the current
    /// interval, and the queued ones, as if all of them passed the fragment's filters.
    fn open(&self, fragment: &Fragment) -> u64 {
        let waiting = fragment.sources.iter().map(|source| {
            let folding = self.folding.get(source).copied().unwrap_or(0);
            self.engine.waiting(source) + folding
        });
        self.engine.open_requests(fragment.query) + waiting.sum::<u64>()
    }

    /// The cost of each running fragment; `bytes_out` returns the encoded bytes of its rows.
    pub fn costs(&self, bytes_out: impl Fn(ChannelId) -> u64) -> Vec<ChannelCost> {
        let counts = self.engine.counts();
        let cost = |(channel, fragment): (&ChannelId, &Fragment)| ChannelCost {
            channel: channel.0,
            rows_in: rows_of(&counts, &fragment.sources) - fragment.rows_before,
            rows_out: fragment.rows_out,
            bytes_out: bytes_out(*channel),
        };
        self.running.iter().map(cost).collect()
    }

    /// The counters of the engine.
    pub fn counts(&self) -> EngineCounts {
        self.engine.counts()
    }

    /// Removes a fragment that the engine no longer runs.
    fn forget(&mut self, channel: ChannelId) {
        let Some(fragment) = self.running.remove(&channel) else {
            return;
        };
        self.channels.remove(&fragment.query);
        self.emits_at = None;
        for source in &fragment.sources {
            let readers = self.sources.get_mut(source).expect("it was counted");
            *readers -= 1;
            if *readers == 0 {
                self.sources.remove(source);
            }
        }
        self.ended.push_back(fragment.tally);
        // The monitor has received the tallies of older ones long ago.
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_front();
        }
    }
}

/// The number of rows that these sources have delivered so far.
fn rows_of(counts: &EngineCounts, sources: &[String]) -> u64 {
    let read = |source: &str| sources.iter().any(|s| s.eq_ignore_ascii_case(source));
    let given = counts.sources.iter().filter(|s| read(&s.source));
    given.map(|s| s.rows_in).sum()
}

#[cfg(test)]
mod tests;
