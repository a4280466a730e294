//! Connection and disconnection of agents.

use tracing::{info, warn};
use weir_model::{Nanos, Symbol};
use weir_wire::message::Feature;
use weir_wire::{ChannelId, Joined, MonitorMessage, Refusal, SessionId, Welcome};

use super::Monitor;
use super::account::Account;
use super::agents::{AgentId, AgentState, Session, count};
use super::own_stream::agents_text;

impl Monitor {
    /// Accepts an agent, or rejects it with a reason.
    pub(super) fn join(&mut self, joined: Joined, now: Nanos) {
        if joined.welcome.is_closed() {
            // It has disconnected since: it must not replace another process.
            return;
        }
        let id = match self.rewrite(&joined, now) {
            Ok(id) => id,
            Err(refusal) => {
                // It may have disconnected by now.
                let _ = joined.welcome.send(Err(refusal));
                return;
            }
        };
        let since = self.unled(now);
        let version = joined.hello.version();
        let knows_actions = version.is_ok_and(|version| version.has(Feature::Actions));
        let agent = self.agents.get_mut(&id).expect("it was admitted");
        let host = agent.host;
        let welcome = Welcome {
            monitor: self.identity,
            acked: agent.safe,
            channels: self
                .channels
                .iter()
                .filter(|channel| !agent.lacks_content(channel))
                .map(|channel| channel.id.0)
                .collect(),
            heartbeat_interval_ns: self.options.heartbeat,
            term: self.term,
            ..Welcome::default()
        };
        if joined.welcome.send(Ok(welcome)).is_err() {
            return;
        }
        if let Some(before) = agent.session.take() {
            self.sessions.remove(&before.id);
        }
        agent.session = Some(Session::new(
            joined.session,
            joined.orders,
            (agent.safe, now),
            knows_actions,
        ));
        agent.received_at = now;
        agent.is_unknown = false;
        self.sessions.insert(joined.session, id);
        agent.has_started();
        for channel in self.channels.iter() {
            agent.start(channel, since);
        }
        let actions = self.actions_of(host);
        let agent = self.agents.get_mut(&id).expect("it was admitted");
        agent.order_actions(actions);
        info!(%host, peer = %joined.peer, "agent connected");
        self.own.record(now, Some(host), "agent_up", "", 1);
        self.send_orders(id, now);
        self.count_agent(id);
    }

    /// The agent that connects, known or new.
    fn rewrite(&mut self, joined: &Joined, now: Nanos) -> Result<AgentId, Refusal> {
        let hello = &joined.hello;
        if hello.monitor == self.identity && hello.term > self.term && self.term > 0 {
            return Err(Refusal::Failed(format!(
                "this monitor leads in term {}, and another one with the same state has led in \
                 term {} since; if the state is that of a backup, see \"Standby\" in docs/fleet.md",
                self.term, hello.term
            )));
        }
        let known = Symbol::get(&hello.host).and_then(|host| self.hosts.get(&host).copied());
        let id = match known {
            Some(id) => self.admit_again(id, joined, now)?,
            None if self.agents.len() >= self.options.agents_max => {
                let most = self.options.agents_max;
                return Err(Refusal::LimitReached(format!(
                    "the limit of {most} agents is reached"
                )));
            }
            None => {
                let host = Symbol::try_new(&hello.host);
                let host = host.map_err(|error| Refusal::LimitReached(error.to_string()))?;
                let id = AgentId(self.agents_ever);
                self.agents_ever += 1;
                let mut agent = AgentState::new(host, joined.peer, hello.instance, now);
                // Messages of one that was dropped have been acknowledged.
                let may_be_dropped = self.forgotten.is_full();
                match self.forgotten.take(host.as_str()) {
                    Some(before) => agent.recall(before, &self.channels),
                    None => {
                        agent.is_unknown = may_be_dropped && hello.monitor == self.identity;
                    }
                }
                self.agents.insert(id, agent);
                self.hosts.insert(host, id);
                id
            }
        };
        self.expected.remove(&hello.host);
        let agent = self.agents.get_mut(&id).expect("it is known");
        agent.peer = joined.peer;
        let version: String = hello.program.chars().take(64).collect();
        agent.version = agents_text(&version, &mut agent.texts);
        agent.site = hello.is_site.then(|| agent.site.take().unwrap_or_default());
        agent.banned = None;
        agent.capabilities = None;
        agent.self_test = None;
        agent.held_bytes_max = match hello.held_bytes_max {
            0 => usize::MAX,
            bytes => usize::try_from(bytes).unwrap_or(usize::MAX),
        };
        for earlier in &hello.earlier {
            let agent = self.agents.get_mut(&id).expect("it is known");
            agent.add_process(earlier.instance);
            for (channel, requests) in agent.lost_by(earlier) {
                // The outcome of requests of an ended channel is no longer known.
                if self.channels.get(channel).is_some() {
                    self.lose(id, channel, requests, "agent_ended", now);
                    continue;
                }
                let agent = self.agents.get_mut(&id).expect("it is known");
                agent.requests_stray = agent.requests_stray.saturating_add(requests);
            }
        }
        Ok(id)
    }

    /// An agent of a known host: the same process on a new connection, or another process.
    fn admit_again(
        &mut self,
        id: AgentId,
        joined: &Joined,
        now: Nanos,
    ) -> Result<AgentId, Refusal> {
        let agent = self.agents.get_mut(&id).expect("the host's agent is known");
        if let Some((until, why)) = &agent.banned
            && now < *until
        {
            return Err(Refusal::Failed(why.clone()));
        }
        if agent.instance == joined.hello.instance {
            return Ok(id);
        }
        if agent.session.is_some() && agent.has_ended(joined.hello.instance) {
            // Its hello was delayed: it would end the connection of the one that runs.
            let why = "this process of the agent has ended, as a later one has reported";
            return Err(Refusal::Failed(why.to_owned()));
        }
        // The connection of a killed process may still seem open; if messages arrived on it
        // recently, the new agent is another host of the same name.
        let silent = now.saturating_sub(agent.received_at) > self.options.exclude_after;
        if agent.session.is_some() && !silent {
            let host = agent.host;
            return Err(Refusal::AlreadyExists(format!(
                "an agent of host `{host}` is already connected; use another host name"
            )));
        }
        self.uncount(id);
        let instance = self.agents[&id].instance;
        let mut counted = joined.hello.earlier.iter();
        if !counted.any(|earlier| earlier.instance == instance) {
            // Its tallies were lost with its state directory.
            self.lose_outstanding(id, now);
        }
        let agent = self.agents.get_mut(&id).expect("the host's agent is known");
        // Its messages cannot be sent again.
        let bytes_max = 0;
        agent.settle(Nanos::MIN, bytes_max, |word| self.channels.give_up(word));
        agent.begin(joined.hello.instance, &self.channels);
        Ok(id)
    }

    /// Handles a closed connection.
    pub(super) fn leave(&mut self, session: SessionId, why: &str, now: Nanos) {
        let Some(id) = self.sessions.remove(&session) else {
            return;
        };
        let agent = self.agents.get_mut(&id).expect("a session is of an agent");
        agent.session = None;
        info!(host = %agent.host, reason = %why, "agent disconnected");
        self.record_join(id, "agent_down", why, 1, now);
        self.count_agent(id);
    }

    /// Disconnects and bans an agent that violated the protocol.
    pub(super) fn bar(&mut self, id: AgentId, why: String, now: Nanos) {
        self.record_join(id, "agent_refused", &why, 1, now);
        let agent = self.agents.get_mut(&id).expect("it just spoke");
        warn!(host = %agent.host, reason = %why, "agent disconnected and banned");
        agent.banned = Some((now.saturating_add(self.options.timeout), why));
        if let Some(session) = agent.session.take() {
            self.sessions.remove(&session.id);
        }
        self.count_agent(id);
    }

    /// Sends an agent its orders, and disconnects it if it does not accept them.
    pub(super) fn send_orders(&mut self, id: AgentId, now: Nanos) {
        let (pause, timeout) = (
            self.options.heartbeat.saturating_mul(4),
            self.options.timeout,
        );
        let Some(agent) = self.agents.get_mut(&id) else {
            return;
        };
        let safe = agent.safe;
        let Some(session) = &mut agent.session else {
            return;
        };
        if !session.send(safe, now, pause, timeout) {
            let session = session.id;
            self.leave(session, "does not read its messages", now);
        }
    }

    /// Counts the requests as lost that an agent's process has reported and will not send.
    pub(super) fn lose_outstanding(&mut self, id: AgentId, now: Nanos) {
        let agent = self.agents.get_mut(&id).expect("the agent is known");
        let mut lost = Vec::new();
        for (channel, run) in &mut agent.runs {
            let requests = run.outstanding();
            run.account.lost = run.account.lost.saturating_add(requests);
            lost.extend((requests > 0).then_some((*channel, requests)));
        }
        for (channel, requests) in lost {
            self.lose(id, channel, requests, "agent_ended", now);
        }
    }

    /// Counts requests as lost whose rows will not arrive.
    pub(super) fn lose(
        &mut self,
        id: AgentId,
        channel: ChannelId,
        requests: u64,
        cause: &str,
        now: Nanos,
    ) {
        let lost = Account {
            lost: requests,
            ..Account::default()
        };
        let agent = self
            .agents
            .get_mut(&id)
            .expect("the requests are of an agent");
        agent.account.add(lost);
        if let Some(channel) = self.channels.get_mut(channel) {
            channel.account.add(lost);
        }
        self.record_join(id, "rows_lost", cause, count(requests), now);
    }

    /// Records a note about an agent; the cause may be a text of the agent.
    pub(super) fn record_join(
        &mut self,
        id: AgentId,
        counter: &str,
        cause: &str,
        value: i64,
        now: Nanos,
    ) {
        let agent = self.agents.get_mut(&id).expect("the agent is known");
        let cause = agents_text(cause, &mut agent.texts).as_str();
        self.own
            .record(now, Some(agent.host), counter, cause, value);
    }

    /// Counts an agent in its channels by its current state.
    pub(super) fn count_agent(&mut self, id: AgentId) {
        let agent = self.agents.get_mut(&id).expect("the agent is known");
        let now = agent.counts_as();
        if agent.counted == now {
            return;
        }
        let before = std::mem::replace(&mut agent.counted, now);
        let running = agent.runs.iter().filter(|(_, run)| run.is_running());
        for (channel, _) in running {
            if let Some(channel) = self.channels.get_mut(*channel) {
                channel.count(before, false);
                channel.count(now, true);
            }
        }
    }

    /// Removes an agent from all counts, before its channels change.
    pub(super) fn uncount(&mut self, id: AgentId) {
        let agent = self.agents.get_mut(&id).expect("the agent is known");
        let counted = std::mem::take(&mut agent.counted);
        for (id, run) in &agent.runs {
            if let Some(channel) = self.channels.get_mut(*id) {
                if run.is_running() {
                    channel.count(counted, false);
                }
                channel.failed -= usize::from(run.failed);
            }
        }
    }

    /// Removes an agent that has been disconnected for long, and retracts its rows of relations.
    /// Its counts are retained in case it returns.
    pub(super) fn forget(&mut self, id: AgentId, now: Nanos) {
        self.lose_outstanding(id, now);
        self.uncount(id);
        let mut agent = self.agents.remove(&id).expect("the agent is known");
        self.forgotten.push(agent.forgotten());
        self.hosts.remove(&agent.host);
        self.own.forget(agent.host);
        let at = self.watermark.saturating_add(1);
        for (channel, mut run) in agent.runs {
            if let Some(channel) = self.channels.get_mut(channel)
                && let Some(gone) = run.content.clear(&channel.fragment.plan.schema, at)
            {
                self.waiting_bytes += channel.waiting.push(id, gone);
            }
        }
    }

    /// Queues an order for all agents.
    pub(super) fn order_all(&mut self, word: &MonitorMessage) {
        for agent in self.agents.values_mut() {
            agent.order(word.clone());
        }
    }
}
