//! After a restart: the monitor goes on from its checkpoint, and agents send again what later
//! results need.

use std::collections::BTreeMap;

use weir_model::{Nanos, Symbol, Value};
use weir_wire::ChannelId;

use super::Monitor;
use super::agents::{Agent, AgentId, Run};
use super::content::Content;
use super::state::{Cell, Saved, SavedAgent, SavedQuery, SavedRun};

/// What is left of the time before a restart.
pub struct Recovery {
    /// Results up to this instant were out.
    pub instant: Nanos,
    /// Time began anew after this instant.
    pub from: Nanos,
    /// Standing queries that were not started again yet.
    queries: Vec<SavedQuery>,
    /// Standing queries can be started again.
    open: bool,
    /// How far it is.
    phase: Phase,
    /// When it began.
    began: Nanos,
}

/// How far the recovery is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Agents say again what they had said. Time stands still, so that nothing of it is late.
    Hearing,
    /// They say what they could not say while there was no monitor. Nobody is overtaken.
    CatchingUp,
    /// It is over, or there never was one.
    Over,
}

impl Recovery {
    /// Nothing was before.
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

    /// Takes out what was saved of a standing query.
    pub fn take_query(&mut self, name: &str) -> Option<SavedQuery> {
        let at = self.queries.iter().position(|q| q.name == name)?;
        Some(self.queries.swap_remove(at))
    }

    /// Standing queries can be started again.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Up to which instant a query that starts now has nothing to show.
    pub fn shown_to(&self) -> Nanos {
        if self.open { self.instant } else { Nanos::MIN }
    }
}

/// What an agent had said before the monitor was restarted.
#[derive(Clone, Debug, Default)]
pub struct Before {
    /// Up to this number.
    pub seen: u64,
    /// It was connected.
    pub connected: bool,
    /// Words with rows that were late: those up to an instant.
    late: BTreeMap<u64, Nanos>,
}

impl Before {
    /// Of a word that was taken in then: the instant up to which its rows were late.
    pub fn late(&self, number: u64) -> Option<Nanos> {
        let late = self.late.get(&number).copied().unwrap_or(Nanos::MIN);
        (number <= self.seen).then_some(late)
    }

    /// The words after `number` with rows that were late: those up to an instant.
    pub fn late_after(&self, number: u64) -> impl Iterator<Item = (u64, Nanos)> {
        let after = self.late.range(number.saturating_add(1)..);
        after.map(|(number, instant)| (*number, *instant))
    }
}

impl Monitor {
    /// Goes on from what was saved. The standing queries are to be started before anything happens.
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
        self.recovery = Recovery {
            instant: saved.instant,
            from: saved.resume_from,
            queries: saved.queries,
            open: true,
            phase: Phase::Hearing,
            began: now,
        };
    }

    /// What was saved of the standing query `name`, until it is started again. Of a query of which
    /// nothing was saved nothing goes on: what its file holds is void.
    pub fn saved(&self, name: &str) -> Option<&SavedQuery> {
        self.recovery.queries.iter().find(|q| q.name == name)
    }

    /// Forgets what was saved of the standing query `name`: it is another one now.
    pub fn forget_saved(&mut self, name: &str) {
        self.recovery.queries.retain(|query| query.name != name);
    }

    /// Forgets what was saved and nobody started again.
    pub(super) fn end_restore(&mut self) {
        if !std::mem::take(&mut self.recovery.open) {
            return;
        }
        self.recovery.queries.clear();
        self.channels.forget_restored();
        let at = self.frontier.saturating_add(1);
        for (&id, agent) in &mut self.agents {
            agent.runs.retain(|id, _| self.channels.get(*id).is_some());
            for (channel, run) in &agent.runs {
                let channel = self.channels.get_mut(*channel).expect("it runs");
                channel.failed += usize::from(run.failed);
                if let Some(content) = run.content.bring(at, &channel.fragment.plan.schema) {
                    let bytes = channel.waiting.push(id, content);
                    agent.waiting_bytes += bytes;
                    self.waiting_bytes += bytes;
                }
            }
        }
        self.count_heard();
    }

    /// How far the recovery is at `now`.
    pub(super) fn recovery(&mut self, now: Nanos) -> Phase {
        if self.recovery.phase == Phase::Over {
            return Phase::Over;
        }
        let since = now.saturating_sub(self.recovery.began);
        // One that was not connected then may be gone for good.
        let patience = |before: &Before| match before.connected {
            true => self.options.recovery,
            false => self.options.overtake_after.min(self.options.recovery),
        };
        let bound = now.saturating_sub(self.options.overtake_after);
        let (mut hearing, mut behind) = (false, false);
        for agent in self.agents.values() {
            let Some(before) = agent.before.as_ref().filter(|b| since < patience(b)) else {
                continue;
            };
            hearing |= agent.seen < before.seen;
            behind |= agent.is_waited_for() && agent.reached < bound;
        }
        let full = self.waiting_bytes > self.options.waiting_bytes_max / 2;
        self.recovery.phase = match self.recovery.phase {
            Phase::Hearing if hearing && !full => Phase::Hearing,
            _ if behind => Phase::CatchingUp,
            _ => Phase::Over,
        };
        self.recovery.phase
    }
}

fn restored(host: Symbol, saved: SavedAgent, reached: Nanos, now: Nanos) -> Agent {
    let mut agent = Agent::new(host, saved.address, saved.instance, now);
    agent.version = Symbol::try_new(&saved.version).unwrap_or_default();
    agent.reached = reached;
    agent.overtaken = saved.overtaken;
    agent.ended = saved.ended;
    (agent.seen, agent.safe, agent.settled) = (saved.safe, saved.safe, saved.safe);
    agent.account = saved.account;
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
        let content = Content::new(saved.content.into_iter().filter_map(row));
        let run = Run {
            started: saved.started,
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
