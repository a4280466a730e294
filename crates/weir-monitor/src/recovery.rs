//! Recovery after a restart: the monitor continues from its checkpoint, and agents send the
//! messages again that later results need.

use std::collections::BTreeMap;

use weir_model::{Nanos, Symbol, Value};
use weir_sink::RelationView;
use weir_wire::ChannelId;

use super::Monitor;
use super::agents::{AgentId, AgentState, Run};
use super::query_store::StoredQuery;
use super::state::{Cell, Saved, SavedAgent, SavedQuery, SavedRun};

/// The state of a recovery.
pub struct Recovery {
    /// Results up to this instant were emitted.
    pub instant: Nanos,
    /// Time restarted after this instant.
    pub from: Nanos,
    /// Standing queries that have not been restarted yet.
    queries: Vec<SavedQuery>,
    /// Standing queries can be restarted.
    open: bool,
    /// The current phase.
    phase: Phase,
    /// The start of the recovery.
    began: Nanos,
}

/// The phases of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Agents send earlier messages again. Time does not advance, so that none of their rows is
    /// late.
    Redelivery,
    /// Agents send the messages that were queued while there was no monitor. No agent is excluded.
    CatchingUp,
    /// The recovery is complete, or there was none.
    Over,
}

impl Recovery {
    /// No recovery.
    pub fn none() -> Recovery {
        Recovery {
            instant: Nanos::MIN,
            from: Nanos::MIN,
            queries: Vec::new(),
            open: false,
            phase: Phase::Over,
            began: Nanos::MIN,
        }
    }

    /// Removes and returns the saved state of a standing query.
    pub fn take_query(&mut self, name: &str) -> Option<SavedQuery> {
        let at = self.queries.iter().position(|q| q.name == name)?;
        Some(self.queries.swap_remove(at))
    }

    /// True if standing queries can be restarted.
    pub fn is_open(&self) -> bool {
        self.open
    }
}

/// The messages of an agent before the restart of the monitor.
#[derive(Clone, Debug, Default)]
pub struct Before {
    /// The number of the last message.
    pub seen: u64,
    /// It was connected.
    pub connected: bool,
    /// Messages with late rows, by number: rows up to this instant were late.
    late: BTreeMap<u64, Nanos>,
}

impl Before {
    /// For a message that was processed then: the instant up to which its rows were late.
    pub fn late(&self, number: u64) -> Option<Nanos> {
        let late = self.late.get(&number).copied().unwrap_or(Nanos::MIN);
        (number <= self.seen).then_some(late)
    }

    /// The messages after `number` with late rows, and the instant up to which they were late.
    pub fn late_after(&self, number: u64) -> impl Iterator<Item = (u64, Nanos)> {
        let after = self.late.range(number.saturating_add(1)..);
        after.map(|(number, instant)| (*number, *instant))
    }
}

impl Monitor {
    /// Continues from a checkpoint. Standing queries are to be restarted before any event is
    /// processed.
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
            let agent = restored(host, agent, saved.resume_from, now);
            self.agents.insert(id, agent);
        }
        for agent in saved.forgotten {
            self.forgotten.push(agent);
        }
        self.saved_any = !saved.queries.is_empty();
        self.saved_to = [saved.instant; 2];
        self.recovery = Recovery {
            instant: saved.instant,
            from: saved.resume_from,
            queries: saved.queries,
            open: true,
            phase: Phase::Redelivery,
            began: now,
        };
    }

    /// The saved state of the standing query `name`, until it is restarted.
    pub fn saved(&self, name: &str) -> Option<&SavedQuery> {
        self.recovery.queries.iter().find(|q| q.name == name)
    }

    /// The state from which the next start of a standing query continues: that of the checkpoint,
    /// or of its start, if that was later. `None` if it starts without earlier results. A state in
    /// the checkpoint of another query with its name, which it has replaced, is removed.
    pub fn continued(&mut self, name: &str, stored: Option<&StoredQuery>) -> Option<SavedQuery> {
        let queries = &mut self.recovery.queries;
        let is_of = |saved: &&SavedQuery| stored.is_some_and(|stored| stored.has_started_as(saved));
        let saved = queries.iter().find(|q| q.name == name);
        if let Some(saved) = saved.filter(is_of) {
            return Some(saved.clone());
        }
        queries.retain(|query| query.name != name);
        let instant = self.recovery.instant;
        let start = stored.and_then(StoredQuery::state_at_start);
        let start = start.filter(|start| start.from >= instant);
        queries.extend(start.clone());
        start
    }

    /// The instant after which a query receives rows that starts next without earlier results.
    pub fn next_start(&self) -> Nanos {
        self.recovery.instant.max(self.watermark)
    }

    /// The instant of the checkpoint from which the monitor continued.
    pub fn continued_from(&self) -> Nanos {
        self.recovery.instant
    }

    /// Removes the saved state of queries that were not restarted.
    pub(super) fn end_restore(&mut self) {
        if !std::mem::take(&mut self.recovery.open) {
            return;
        }
        self.recovery.queries.clear();
        self.channels.forget_restored();
        let at = self.watermark.saturating_add(1);
        for (&id, agent) in &mut self.agents {
            agent.runs.retain(|id, _| self.channels.get(*id).is_some());
            for (channel, run) in &agent.runs {
                let channel = self.channels.get_mut(*channel).expect("it runs");
                channel.failed += usize::from(run.failed);
                let content = run.content.snapshot(&channel.fragment.plan.schema, at);
                if !content.is_empty() {
                    let bytes = channel.waiting.push(id, content);
                    agent.waiting_bytes += bytes;
                    self.waiting_bytes += bytes;
                }
            }
        }
        self.count_hosts();
    }

    /// The phase of the recovery at `now`.
    pub(super) fn recovery(&mut self, now: Nanos) -> Phase {
        if self.recovery.phase == Phase::Over {
            return Phase::Over;
        }
        let since = now.saturating_sub(self.recovery.began);
        // An agent that was disconnected then may never return.
        let timeout = |before: &Before| match before.connected {
            true => self.options.recovery,
            false => self.options.exclude_after.min(self.options.recovery),
        };
        let bound = now.saturating_sub(self.options.exclude_after);
        let (mut redelivering, mut behind) = (false, false);
        for agent in self.agents.values() {
            let Some(before) = agent.before.as_ref().filter(|b| since < timeout(b)) else {
                continue;
            };
            redelivering |= agent.seen < before.seen;
            behind |= agent.is_waited_for() && agent.reached < bound;
        }
        let full = self.waiting_bytes > self.options.waiting_bytes_max / 2;
        self.recovery.phase = match self.recovery.phase {
            Phase::Redelivery if redelivering && !full => Phase::Redelivery,
            _ if behind => Phase::CatchingUp,
            _ => Phase::Over,
        };
        self.recovery.phase
    }
}

fn restored(host: Symbol, saved: SavedAgent, reached: Nanos, now: Nanos) -> AgentState {
    let mut agent = AgentState::new(host, saved.address, saved.instance, now);
    agent.version = Symbol::try_new(&saved.version).unwrap_or_default();
    agent.reached = reached;
    agent.excluded = saved.excluded;
    agent.ended = saved.ended;
    (agent.seen, agent.safe, agent.settled) = (saved.safe, saved.safe, saved.safe);
    agent.account = saved.account;
    agent.site = saved.site.map(|site| site.restored(reached));
    agent.before = Some(Before {
        seen: saved.seen,
        connected: saved.connected,
        late: saved.late.into_iter().collect(),
    });
    let row = |(cells, count): (Vec<Cell>, i64)| {
        let values = cells
            .iter()
            .map(Cell::value)
            .collect::<Option<Vec<Value>>>();
        values.map(|values| (values, count))
    };
    let run = |saved: SavedRun| {
        let content = RelationView::from_iter(saved.content.into_iter().filter_map(row));
        let run = Run {
            started: saved.started,
            lacks_content: saved.started.is_none() && !saved.failed,
            discards: saved.discards,
            safe_discards: saved.discards,
            failed: saved.failed,
            account: saved.account,
            reported: saved.reported,
            safe_content: content.clone(),
            content,
        };
        (ChannelId(saved.channel), run)
    };
    agent.runs = saved.runs.into_iter().map(run).collect();
    agent.set_past(saved.past);
    agent
}
