//! What standing queries need to go on after the monitor was killed (decision 0017).
//!
//! A checkpoint says up to which instant results are in the files, and which words of agents are
//! *safe*: nothing in them has a bearing on later results. Only those are acknowledged. After a
//! restart agents send the others again, from which the windows fill anew; results up to the
//! instant are not given a second time.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::path::PathBuf;

use weir_model::{Nanos, Symbol};
use weir_wire::ChannelId;

use super::Monitor;
use super::account::Account;
use super::agents::{Agent, AgentId, Run};
use super::state::{Position, Saved, SavedAgent, SavedChannel, SavedQuery};

/// A word that is not safe yet.
#[derive(Clone, Copy, Debug)]
pub struct Unsafe {
    /// Its number, or that of a later one without effect.
    pub number: u64,
    /// It is safe when results up to this instant are.
    pub until: Nanos,
    /// What became of its rows.
    pub effect: Option<(ChannelId, Account)>,
    /// Of a word of this number, rows up to this instant were late.
    pub late: Option<(u64, Nanos)>,
}

/// What an agent had said before the monitor was restarted.
#[derive(Clone, Debug, Default)]
pub struct Before {
    /// Up to this number.
    pub seen: u64,
    /// Words with rows that were late: those up to an instant.
    pub late: BTreeMap<u64, Nanos>,
}

impl Agent {
    /// Remembers that a word was taken in that may be needed again.
    pub fn note(&mut self, word: Unsafe) {
        let idle = word.effect.is_none() && word.until == Nanos::MIN;
        match self.unsafe_words.back_mut() {
            Some(last) if idle => last.number = word.number,
            _ => self.unsafe_words.push_back(word),
        }
    }

    /// The words that are safe when results up to `instant` are; gives the number of the last one.
    fn settle(&mut self, instant: Nanos) -> u64 {
        while self
            .unsafe_words
            .front()
            .is_some_and(|w| w.until <= instant)
        {
            let word = self.unsafe_words.pop_front().expect("it was looked at");
            self.settled = word.number;
        }
        if self.unsafe_words.is_empty() {
            self.settled = self.seen;
        }
        self.settled
    }

    /// What became of its rows in words that are not safe, by channel.
    fn unsettled(&self) -> HashMap<ChannelId, Account> {
        let mut accounts: HashMap<ChannelId, Account> = HashMap::new();
        for (channel, account) in self.unsafe_words.iter().filter_map(|w| w.effect) {
            accounts.entry(channel).or_default().add(account);
        }
        accounts
    }
}

impl Monitor {
    /// Saves what is due to be saved, and acknowledges what is safe.
    pub(super) fn checkpoint(&mut self, now: Nanos) {
        let standing = self.queries.values().any(|q| q.standing);
        if self.state.is_none() || !standing {
            return self.acknowledge_all();
        }
        self.note_saved(false, now);
        let state = self.state.as_ref().expect("it was looked at");
        let due = now.saturating_sub(self.saved_at) >= self.options.checkpoint_every;
        if due && !state.is_busy() {
            self.save(now);
        }
    }

    /// Nothing of what was said will be needed again.
    fn acknowledge_all(&mut self) {
        for agent in self.agents.values_mut() {
            agent.unsafe_words.clear();
            agent.settle(Nanos::MAX);
            agent.safe = agent.settled;
        }
    }

    /// Looks whether what was being saved is on the disk.
    fn note_saved(&mut self, patient: bool, now: Nanos) {
        let state = self.state.as_mut().expect("there is a state directory");
        match state.saved(patient) {
            Some(Ok(())) => {
                for agent in self.agents.values_mut() {
                    agent.safe = agent.safe.max(agent.saving);
                }
            }
            Some(Err(error)) => {
                self.own
                    .tell(now, None, "checkpoint_failed", &error.to_string(), 1);
            }
            None => {}
        }
    }

    /// Saves how far everything is, and waits until it is on the disk: for a clean end.
    pub fn save_and_wait(&mut self, now: Nanos) {
        if self.state.is_some() && self.queries.values().any(|q| q.standing) {
            self.note_saved(true, now);
            self.save(now);
            self.note_saved(true, now);
            let ids: Vec<AgentId> = self.agents.keys().copied().collect();
            ids.into_iter().for_each(|id| self.send_orders(id, now));
        }
    }

    fn save(&mut self, now: Nanos) {
        // What was read again after a restart is not as far yet as what is in the files.
        if self.queries.values().any(|q| q.shown_to > self.frontier) {
            return;
        }
        self.saved_at = now;
        let mut files = Vec::new();
        let mut queries = Vec::new();
        for running in self.queries.values_mut().filter(|q| q.standing) {
            let position = match running.publisher.position() {
                Ok(position) => position,
                Err(why) => {
                    let why = format!("{}: {why}", running.name);
                    return self.own.tell(now, None, "checkpoint_failed", &why, 1);
                }
            };
            files.extend(position.as_ref().map(|p: &Position| p.path.clone()));
            queries.push(SavedQuery {
                name: running.name.clone(),
                since: running.since,
                before: running.channels.iter().map(|(id, a)| (id.0, *a)).collect(),
                position,
            });
        }
        self.save_with(queries, files);
    }

    fn save_with(&mut self, queries: Vec<SavedQuery>, files: Vec<PathBuf>) {
        let instant = self.frontier;
        let mut unsettled: HashMap<ChannelId, Account> = HashMap::new();
        let mut agents = Vec::with_capacity(self.agents.len());
        for agent in self.agents.values_mut() {
            agent.saving = agent.settle(instant);
            let own = agent.unsettled();
            for (channel, account) in &own {
                unsettled.entry(*channel).or_default().add(*account);
            }
            agents.push(saved_agent(agent, &own));
        }
        let channels = self
            .channels
            .iter()
            .filter(|c| !c.is_relation())
            .map(|channel| {
                let open = unsettled.get(&channel.id).copied().unwrap_or_default();
                SavedChannel {
                    id: channel.id.0,
                    fragment: hexadecimal(&channel.encoded),
                    account: channel.account.since(open),
                    complete_from: channel.complete_from,
                }
            });
        let hold = self
            .channels
            .iter()
            .filter_map(|c| c.hold)
            .max()
            .unwrap_or(0);
        let saved = Saved {
            instant,
            resume_from: instant.saturating_sub(hold),
            channels: channels.collect(),
            agents,
            queries,
        };
        let state = self.state.as_mut().expect("there is a state directory");
        state.save(&saved, files);
    }

    /// Goes on from what was saved. The standing queries are to be started before time moves on.
    pub(super) fn restore(&mut self, saved: Saved, now: Nanos) {
        for channel in saved.channels {
            self.channels.restore(channel);
        }
        for agent in saved.agents {
            let Ok(host) = Symbol::try_new(&agent.host) else {
                continue;
            };
            let id = AgentId(self.agents_ever);
            self.agents_ever += 1;
            self.hosts.insert(host, id);
            self.agents
                .insert(id, restored_agent(host, agent, saved.resume_from, now));
        }
        self.saved_instant = saved.instant;
        self.restored = saved.queries;
        self.restored_ended = false;
        self.recovering = Some(now.saturating_add(self.options.recovery));
    }

    /// What was saved of the standing query `name`, until it is started again.
    pub fn saved(&self, name: &str) -> Option<&SavedQuery> {
        self.restored.iter().find(|q| q.name == name)
    }

    /// Forgets what was saved and nobody started again.
    pub(super) fn end_restore(&mut self) {
        self.restored.clear();
        self.restored_ended = true;
        self.channels.forget_restored();
        for agent in self.agents.values_mut() {
            agent.runs.retain(|id, _| self.channels.get(*id).is_some());
        }
        self.count_heard();
    }

    /// True while agents send again what they said before a restart, and are waited for longer
    /// than usually.
    pub(super) fn is_recovering(&mut self, now: Nanos) -> bool {
        let Some(until) = self.recovering else {
            return false;
        };
        let bound = now.saturating_sub(self.options.overtake_after);
        let mut waited_for = self
            .agents
            .values()
            .filter(|a| a.before.is_some() && a.is_waited_for());
        if now >= until || waited_for.all(|a| a.reached >= bound) {
            self.recovering = None;
        }
        self.recovering.is_some()
    }
}

fn saved_agent(agent: &Agent, unsettled: &HashMap<ChannelId, Account>) -> SavedAgent {
    let open = |id: &ChannelId| unsettled.get(id).copied().unwrap_or_default();
    let run = |(id, run): (&ChannelId, &Run)| {
        (id.0, run.started, run.failed, run.account.since(open(id)))
    };
    let mut all_open = Account::default();
    unsettled
        .values()
        .for_each(|account| all_open.add(*account));
    SavedAgent {
        host: agent.host.as_str().into(),
        address: agent.address,
        version: agent.version.as_str().into(),
        instance: agent.instance,
        safe: agent.settled,
        seen: agent.seen,
        overtaken: agent.overtaken,
        ended: agent.ended,
        account: agent.account.since(all_open),
        runs: agent.runs.iter().map(run).collect(),
        late: agent.unsafe_words.iter().filter_map(|w| w.late).collect(),
        past: agent.past(),
    }
}

fn restored_agent(host: Symbol, saved: SavedAgent, reached: Nanos, now: Nanos) -> Agent {
    let mut agent = Agent::new(host, saved.address, saved.instance, now);
    agent.version = Symbol::try_new(&saved.version).unwrap_or_default();
    agent.reached = reached;
    agent.overtaken = saved.overtaken;
    agent.ended = saved.ended;
    (agent.seen, agent.safe, agent.settled) = (saved.safe, saved.safe, saved.safe);
    agent.account = saved.account;
    agent.before = Some(Before {
        seen: saved.seen,
        late: saved.late.into_iter().collect(),
    });
    let run = |(id, started, failed, account): (u64, Option<Nanos>, bool, Account)| {
        let run = Run {
            started,
            failed,
            account,
            ..Run::default()
        };
        (ChannelId(id), run)
    };
    agent.runs = saved.runs.into_iter().map(run).collect();
    agent.set_past(saved.past);
    agent
}

/// Bytes as hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).expect("it is below 16");
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}
