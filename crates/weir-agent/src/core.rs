//! [`AgentCore`]: runs fragments of queries, and says what they give.

use std::collections::{BTreeMap, HashMap, VecDeque};

use weir_model::{Batch, Declaration, Folded, Nanos};
use weir_query::engine::{Counts, Engine, EngineOptions, Output, QueryId, in_time_order};
use weir_query::plan::Plan;
use weir_wire::message::{CHANNELS_MAX, ENDED_MAX, IDLE_WATERMARK_NS};
use weir_wire::{AgentMessage, ChannelCost, ChannelId, ChannelTally};

/// An agent without its surroundings. All times are the monitor's.
pub struct AgentCore {
    engine: Engine,
    running: BTreeMap<ChannelId, Fragment>,
    channels: HashMap<QueryId, ChannelId>,
    /// How many fragments read each source.
    sources: BTreeMap<String, usize>,
    /// Requests of which a source has yet to give groups.
    folding: BTreeMap<String, u64>,
    /// What became of the requests of channels that run no more, in the order in which they ended.
    ended: VecDeque<ChannelTally>,
    /// To be said before anything that the next step gives.
    pending: Vec<AgentMessage>,
    /// Up to here all sources have told everything.
    reached: Nanos,
    /// The same, as it was said last.
    said: Nanos,
    /// When a fragment may show something next after that, if that was found.
    shows: Option<Nanos>,
}

/// So many rows of a channel are not gathered any further: they go into one word.
const WORD_ROWS: usize = 4096;

/// Rows of a channel that leave together, since each word costs some hundred bytes beside them.
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
    /// What its sources had given when it began.
    rows_before: u64,
    /// The column of its rows that says how many requests each stands for.
    counts: Option<usize>,
    /// Rows that it gave.
    rows_out: u64,
    tally: ChannelTally,
}

impl AgentCore {
    /// An agent that runs nothing yet, before all time.
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
            said: Nanos::MIN,
            shows: None,
        }
    }

    /// Starts a fragment. It sees what comes from here on, and says from when that is. A channel
    /// that runs already goes on as it is.
    pub fn start(&mut self, channel: ChannelId, plan: &Plan) {
        if self.running.contains_key(&channel) {
            return;
        }
        if self.running.len() >= CHANNELS_MAX {
            let why = format!("the agent runs {CHANNELS_MAX} fragments already");
            return self.refuse(channel, why);
        }
        let sources: Vec<String> = plan.sources().iter().map(|d| d.name.clone()).collect();
        for source in &sources {
            *self.sources.entry(source.clone()).or_default() += 1;
            // What lies before was not for this fragment, whatever the tap still tells of it.
            self.engine.heartbeat(source, self.reached);
        }
        let query = self.engine.add(plan);
        let at = self.engine.visible_after(plan).max(self.reached);
        let rows_before = rows_of(&self.engine.counts(), &sources);
        let fragment = Fragment {
            query,
            plan: plan.clone(),
            sources,
            rows_before,
            counts: plan.requests_column(),
            rows_out: 0,
            tally: ChannelTally {
                channel,
                produced: 0,
                lost: 0,
            },
        };
        self.channels.insert(query, channel);
        self.running.insert(channel, fragment);
        self.shows = None;
        self.pending.push(AgentMessage::Started { channel, at });
    }

    /// A source will be read: what a relation holds is kept from its first row on.
    pub fn declare(&mut self, declaration: &Declaration) {
        self.engine.declare(declaration);
    }

    /// A source that no fragment reads any more tells no more; what it held is forgotten.
    pub fn forget_source(&mut self, source: &str) {
        self.engine.remove_source(source);
    }

    /// Says that a channel cannot run.
    pub fn refuse(&mut self, channel: ChannelId, why: String) {
        self.pending.push(AgentMessage::Failed { channel, why });
    }

    /// Ends a fragment; what it gave in earlier steps has been said. An unknown channel is no error.
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

    /// Takes rows of a source in, in time order. What is at or before [`AgentCore::reached`] is too
    /// late: it is dropped, and counted in [`AgentCore::counts`].
    pub fn push(&mut self, source: &str, batch: Batch) {
        self.engine.push(source, batch);
    }

    /// Takes groups in that a source folded.
    pub fn push_folded(&mut self, source: &str, folded: Folded) {
        self.engine.push_folded(source, folded);
    }

    /// One source has told everything up to `at`; fragments that start now see what it tells later.
    pub fn told(&mut self, source: &str, at: Nanos) {
        self.engine.heartbeat(source, at);
    }

    /// Up to when all sources have told everything.
    pub fn time(&self) -> Nanos {
        self.reached
    }

    /// No source will give more at or before `at`.
    pub fn reached(&mut self, at: Nanos) {
        self.reached = self.reached.max(at);
        for source in self.sources.keys() {
            self.engine.heartbeat(source, self.reached);
        }
    }

    /// The source has taken in so many requests of which groups are still to come.
    pub fn set_folding(&mut self, source: &str, requests: u64) {
        match requests {
            0 => drop(self.folding.remove(source)),
            _ => drop(self.folding.insert(source.to_owned(), requests)),
        }
    }

    /// Requests of a source happened and were lost there: each fragment that reads it may lack so
    /// many.
    pub fn missed(&mut self, source: &str, requests: u64, cause: &str) {
        for (channel, fragment) in &mut self.running {
            if fragment.sources.iter().any(|s| s == source) {
                fragment.tally.produced += requests;
                fragment.tally.lost += requests;
                self.pending.push(AgentMessage::Lost {
                    channel: *channel,
                    requests,
                    cause: cause.to_owned(),
                });
            }
        }
    }

    /// Goes on to where the sources have come, and says what comes of it: rows, and at last how far
    /// that is.
    pub fn step(&mut self, say: &mut impl FnMut(AgentMessage)) {
        self.pending.drain(..).for_each(&mut *say);
        let (running, channels) = (&mut self.running, &self.channels);
        let mut failed = Vec::new();
        let mut gathered: BTreeMap<ChannelId, Gathered> = BTreeMap::new();
        self.engine.step(&mut |output| match output {
            Output::Rows { query, batch } => {
                let channel = channels[&query];
                let fragment = running.get_mut(&channel).expect("its query runs");
                fragment.tally.produced += batch.requests(fragment.counts);
                fragment.rows_out += batch.len() as u64;
                let rows = gathered.entry(channel).or_default();
                rows.add(batch);
                if rows.count >= WORD_ROWS {
                    say(std::mem::take(rows).word(channel));
                }
            }
            Output::Failed { query, error } => {
                let channel = channels[&query];
                if let Some(rows) = gathered.remove(&channel).filter(|rows| rows.count > 0) {
                    say(rows.word(channel));
                }
                let help = error.help.as_ref().map(|help| format!("; {help}"));
                let why = format!("{error}{}", help.unwrap_or_default());
                say(AgentMessage::Failed { channel, why });
                failed.push(channel);
            }
        });
        for (channel, rows) in gathered.into_iter().filter(|(_, rows)| rows.count > 0) {
            say(rows.word(channel));
        }
        failed.into_iter().for_each(|channel| self.forget(channel));
        let at = match self.sources.is_empty() {
            true => self.reached,
            false => self.reached.min(self.engine.now()),
        };
        if at > self.said
            && (at.saturating_sub(self.said) >= IDLE_WATERMARK_NS || self.may_have_shown(at))
        {
            self.said = at;
            self.shows = None;
            say(AgentMessage::Watermark(at));
        }
    }

    /// Whether time up to `at` may have brought rows since it was last said: between the ends of
    /// slides nobody needs to hear of it.
    fn may_have_shown(&mut self, at: Nanos) -> bool {
        let next = self.said.saturating_add(1);
        let first = || {
            let mut first = Nanos::MAX;
            for fragment in self.running.values() {
                first = first.min(fragment.plan.emitted_by(next));
                if first == next {
                    // None shows earlier.
                    break;
                }
            }
            first
        };
        *self.shows.get_or_insert_with(first) <= at
    }

    /// Ends: nothing more happens than what was taken in up to `at`. Each fragment shows what it
    /// still holds of that, at the end of its open slide, which may lie ahead, and nothing later.
    /// Only tallies may be asked then.
    pub fn end(&mut self, at: Nanos, say: &mut impl FnMut(AgentMessage)) {
        self.reached(at);
        self.step(say);
        let running = self.running.values();
        let ends = running.map(|f| (f.plan.emitted_by(self.reached), f.query));
        let mut ends: Vec<(Nanos, QueryId)> = ends.collect();
        ends.sort_by_key(|(end, _)| *end);
        for same in ends.chunk_by(|(a, _), (b, _)| a == b) {
            self.reached(same[0].0);
            self.step(&mut |word| match word {
                // Those that end later take nothing more in, but who hears of their time would
                // take it for that of all.
                AgentMessage::Watermark(_) => {}
                word => say(word),
            });
            for (_, query) in same {
                self.engine.remove(*query);
            }
        }
    }

    /// Books requests of a channel whose rows were given and will never come.
    pub fn lost(&mut self, channel: ChannelId, requests: u64) {
        let ended = self.ended.iter_mut().find(|t| t.channel == channel);
        let running = self.running.get_mut(&channel).map(|f| &mut f.tally);
        if let Some(tally) = running.or(ended) {
            tally.lost += requests;
        }
    }

    /// What became of each channel's requests, ended ones included. What runs has also taken in
    /// those that no row was given of yet.
    pub fn tallies(&self) -> impl Iterator<Item = ChannelTally> + Clone {
        let running = self.running.values().map(|f| ChannelTally {
            produced: f.tally.produced + self.open(f),
            ..f.tally
        });
        self.ended.iter().copied().chain(running)
    }

    /// Requests that a fragment has taken in, and that its rows will stand for: those of the interval
    /// that is under way, and what waits to be looked at, as if all of it passed.
    fn open(&self, fragment: &Fragment) -> u64 {
        let waiting = fragment.sources.iter().map(|source| {
            let folding = self.folding.get(source).copied().unwrap_or(0);
            self.engine.waiting(source) + folding
        });
        self.engine.open_requests(fragment.query) + waiting.sum::<u64>()
    }

    /// What each running fragment has cost; `bytes_out` says what its rows took on the wire.
    pub fn costs(&self, bytes_out: impl Fn(ChannelId) -> u64) -> Vec<ChannelCost> {
        let counts = self.engine.counts();
        let cost = |(channel, fragment): (&ChannelId, &Fragment)| ChannelCost {
            channel: *channel,
            rows_in: rows_of(&counts, &fragment.sources) - fragment.rows_before,
            rows_out: fragment.rows_out,
            bytes_out: bytes_out(*channel),
        };
        self.running.iter().map(cost).collect()
    }

    /// What the engine has done so far.
    pub fn counts(&self) -> Counts {
        self.engine.counts()
    }

    /// Removes a fragment that the engine no longer runs.
    fn forget(&mut self, channel: ChannelId) {
        let Some(fragment) = self.running.remove(&channel) else {
            return;
        };
        self.channels.remove(&fragment.query);
        self.shows = None;
        for source in &fragment.sources {
            let readers = self.sources.get_mut(source).expect("it was counted");
            *readers -= 1;
            if *readers == 0 {
                self.sources.remove(source);
            }
        }
        self.ended.push_back(fragment.tally);
        // Of an older one the monitor has long heard.
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_front();
        }
    }
}

/// How many rows these sources have given so far.
fn rows_of(counts: &Counts, sources: &[String]) -> u64 {
    let read = |source: &str| sources.iter().any(|s| s.eq_ignore_ascii_case(source));
    let given = counts.sources.iter().filter(|s| read(&s.source));
    given.map(|s| s.rows_in).sum()
}

#[cfg(test)]
mod tests;
