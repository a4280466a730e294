//! Advances time: rows up to the watermark go to the engine, and the results to the clients.

use std::collections::{BTreeSet, HashMap};

use weir_model::guest::GUEST_IO;
use weir_model::inventory::changes;
use weir_model::{Host, HostState, NANOS_PER_SECOND, Nanos, Symbol};
use weir_query::engine::{EngineOutput, QueryId};
use weir_wire::ChannelId;

use super::agents::{AgentId, AgentState};
use super::completeness::{FleetCompleteness, HostCounts, SitesInChannel};
use super::recovery::Phase;
use super::time::Pace;
use super::{ALERT_STATES, ALERTS, Failed, HOSTS, Monitor, OWN_STREAM, Running};

/// The interval at which changes of relation `hosts` are emitted.
const HOSTS_EVERY: Nanos = NANOS_PER_SECOND;

impl Monitor {
    /// Advances as far as agents and clock allow, and sends orders to agents.
    pub fn tick(&mut self, now: Nanos) {
        self.end_restore();
        if now > self.expected_until {
            self.expected.clear();
        }
        let watermark = match self.recovery(now) {
            Phase::Redelivery => self.watermark,
            phase => self.pace(phase, now).watermark(self.watermark),
        };
        let (watermark, contents) = self.next_contents(watermark);
        if watermark > self.watermark {
            self.exclude_idle(watermark, now);
            self.advance(watermark, contents, now);
        }
        self.forward_watermark(now);
        self.checkpoint(now);
        let ids: Vec<AgentId> = self.agents.keys().copied().collect();
        for id in ids {
            self.send_orders(id, now);
        }
    }

    fn pace(&mut self, phase: Phase, now: Nanos) -> Pace {
        self.work.agents_looked_at += self.agents.len() as u64;
        let waited_for = self.agents.values().filter_map(|a| a.awaited_at());
        let (mut slowest, mut next) = (None::<Nanos>, None::<Nanos>);
        for reached in waited_for {
            match slowest {
                Some(slow) if reached >= slow => {
                    next = Some(next.map_or(reached, |n| n.min(reached)))
                }
                _ => next = slowest.replace(reached),
            }
        }
        // Too many bytes wait for the slowest agent: time advances without it.
        if self.waiting_bytes > self.options.waiting_bytes_max && next.is_some() {
            slowest = next;
        }
        Pace {
            now,
            slowest,
            unled: self.unled(now),
            excluded: match phase {
                Phase::Over => now.saturating_sub(self.options.exclude_after),
                _ => Nanos::MIN,
            },
        }
    }

    /// The watermark at `now` if no agent delivers one: an agent that starts then is not late,
    /// although clocks are known only within an error bound.
    pub(super) fn unled(&self, now: Nanos) -> Nanos {
        now.saturating_sub(2 * self.options.heartbeat)
    }

    /// Marks the agents that are excluded, and updates the state of agents.
    fn exclude_idle(&mut self, watermark: Nanos, now: Nanos) {
        let (mut forgotten, mut changed) = (Vec::new(), Vec::new());
        self.work.agents_looked_at += self.agents.len() as u64;
        for (&id, agent) in &mut self.agents {
            let runs = agent.is_waited_for();
            if !runs && agent.awaited_at().is_some_and(|at| at < watermark) {
                agent.has_started();
            }
            if runs && agent.reached < watermark {
                agent.excluded = true;
                self.own
                    .record(now, Some(agent.host), "agent_excluded", "", 1);
            }
            let lag = now.saturating_sub(agent.reached);
            let lagging = runs && lag > self.options.exclude_after / 4 * 3;
            if lagging && !agent.lagging {
                self.own
                    .record(now, Some(agent.host), "agent_lagging", "", lag);
            }
            agent.lagging = lagging;
            if agent.counts_as() != agent.counted {
                changed.push(id);
            }
            let state = agent.host_state();
            if state != agent.state.0 {
                agent.state = (state, now);
            }
            let away = matches!(state, HostState::Down | HostState::Ended);
            // An agent that announced its end may still be connected; its further messages are
            // accepted.
            let away = away && agent.session.is_none();
            if away && now.saturating_sub(agent.state.1) > self.options.forget_after {
                forgotten.push(id);
            }
        }
        for id in changed {
            self.count_agent(id);
        }
        for id in forgotten {
            self.forget(id, now);
        }
    }

    /// Advances to `watermark`. Queries that start at an instant on the way start there, and at
    /// those of `contents` the content of relations is forwarded.
    fn advance(&mut self, watermark: Nanos, contents: BTreeSet<Nanos>, now: Nanos) {
        let pending = self.queries.values().filter(|q| q.pending.is_some());
        let starts = pending.map(|q| q.from).filter(|from| *from < watermark);
        let mut instants = contents;
        instants.extend(starts);
        instants.insert(watermark);
        for instant in instants {
            self.advance_engine(instant, now);
            self.start_pending();
            self.forward_contents();
        }
    }

    fn advance_engine(&mut self, watermark: Nanos, now: Nanos) {
        self.update_hosts(watermark, now);
        let notes = self.own.release(self.watermark, watermark);
        self.engine.push(OWN_STREAM, notes);
        if let Some((rows, states)) = self.alerts.release(watermark) {
            self.engine.push(ALERTS, rows);
            self.engine.push(ALERT_STATES, states);
        }
        let mut freed = Vec::new();
        for channel in self.channels.iter_mut() {
            self.work.channels_looked_at += 1;
            if let Some(released) = channel.waiting.release(watermark) {
                self.work.pieces += released.freed.len() as u64;
                self.work.batches += 1;
                freed.extend(released.freed);
                if let Some(guests) = &mut self.guest {
                    match channel.id {
                        id if id == guests.requests => guests.stream.requests(&released.rows),
                        id if id == guests.vms => guests.stream.vms(&released.rows),
                        _ => {}
                    }
                }
                self.engine.push(&channel.source, released.rows);
            }
        }
        for (agent, bytes) in freed {
            self.free(agent, bytes);
        }
        for site in self.agents.values_mut().filter_map(|a| a.site.as_mut()) {
            site.advance(watermark);
        }
        self.release_guests(watermark, now);
        self.engine.heartbeat_all(watermark);
        self.watermark = watermark;
        self.work.steps += 1;
        self.step(now);
    }

    /// Passes rows of stream `GuestIO` to the engine, and counts what could not be tied.
    fn release_guests(&mut self, watermark: Nanos, now: Nanos) {
        let Some(guests) = &mut self.guest else {
            return;
        };
        let rows = guests.stream.release(self.watermark, watermark);
        for ((counter, cause), value) in guests.stream.take_counts() {
            self.own.record(now, None, counter, cause, value);
        }
        self.engine.push(GUEST_IO, rows);
    }

    /// Steps the engine and distributes the results.
    fn step(&mut self, now: Nanos) {
        let mut failed = Vec::new();
        let queries = &mut self.queries;
        self.engine.step(&mut |output| match output {
            EngineOutput::Rows { query, batch } => {
                let Some(running) = queries.get_mut(&query) else {
                    return;
                };
                let shown = batch.ts.partition_point(|&ts| ts <= running.shown_to);
                running.publisher.write(&batch, shown);
            }
            EngineOutput::Failed { query, error } => failed.push((query, error)),
        });
        for (query, error) in failed {
            let name = self
                .queries
                .get(&query)
                .map_or(String::new(), |r| r.name.clone());
            self.own
                .record(now, None, "query_failed", &format!("{name}: {error}"), 1);
            self.stop(query, &error.to_string());
            self.failed.push(Failed { name, error });
        }
        self.work.agents_looked_at += self.agents.len() as u64;
        let hosts = self.count_fleet();
        let away = self.requests_away();
        let silent = self.silent_hosts();
        let started = self.queries.iter().filter(|(_, q)| q.pending.is_none());
        let ids: Vec<QueryId> = started.map(|(id, _)| *id).collect();
        for id in ids {
            let completeness = self.completeness(&self.queries[&id], &hosts, &away);
            let running = self.queries.get_mut(&id).expect("it is listed");
            self.work.channels_looked_at += running.channels.len() as u64;
            running.publisher.complete_instant(&completeness, &silent);
        }
    }

    /// The hosts whose rows are missing: their agents are away, or results no longer wait for them.
    fn silent_hosts(&self) -> BTreeSet<String> {
        let is_silent = |agent: &&AgentState| {
            matches!(agent.host_state(), HostState::Down | HostState::Excluded)
        };
        let silent = self.agents.values().filter(is_silent);
        silent.map(|agent| agent.host.as_str().to_owned()).collect()
    }

    /// Requests that were reported by agents which are away now and that have not arrived, by
    /// channel.
    pub(super) fn requests_away(&self) -> HashMap<ChannelId, u64> {
        let mut away: HashMap<ChannelId, u64> = HashMap::new();
        for agent in self.agents.values().filter(|agent| agent.is_away()) {
            for (channel, run) in &agent.runs {
                let requests = away.entry(*channel).or_default();
                *requests = requests.saturating_add(run.outstanding());
            }
        }
        away
    }

    /// The hosts of the fleet, those behind the monitors of sites included.
    pub(super) fn count_fleet(&self) -> HostCounts {
        let mut counts = HostCounts {
            known: self.expected.len() as u64,
            ..HostCounts::default()
        };
        for (id, agent) in self.agents.iter().filter(|(_, agent)| !agent.ended) {
            let is_up = agent.session.is_some();
            match &agent.site {
                Some(site) => {
                    counts.known += u64::from(site.hosts());
                    counts.of_sites += u64::from(if is_up { site.responded() } else { 0 });
                    counts.sites.push(*id);
                }
                None => {
                    counts.known += 1;
                    counts.up += u64::from(is_up);
                }
            }
        }
        counts
    }

    /// The completeness of a query's results.
    pub(super) fn completeness(
        &self,
        running: &Running,
        hosts: &HostCounts,
        away: &HashMap<ChannelId, u64>,
    ) -> FleetCompleteness {
        let channels = running.channels.iter();
        let channels = channels.filter_map(|(id, _)| self.channels.get(*id));
        let ended = channels.map(|channel| channel.ended).min().unwrap_or(0) as u64;
        let mut all = FleetCompleteness {
            at: self.watermark,
            hosts: hosts.known,
            hosts_responded: hosts.up + hosts.of_sites,
            complete_from: running.since,
            restarted_at: running.restarted_at,
            ..FleetCompleteness::default()
        };
        for (id, before) in &running.channels {
            let Some(channel) = self.channels.get(*id) else {
                continue;
            };
            let since = channel.account.since(*before);
            let sites = hosts.sites.iter().filter_map(|site| self.agents.get(site));
            let sites = SitesInChannel::of(*id, sites);
            let live = (channel.live as u64).saturating_sub(sites.live);
            let responded = live.min(hosts.up) + sites.responded;
            all.hosts_responded = all.hosts_responded.min(responded);
            let failed = (channel.failed as u64).saturating_sub(sites.failed) + sites.hosts_failed;
            all.hosts_failed = all.hosts_failed.max(failed);
            let requests_away = away.get(id).copied().unwrap_or(0);
            let requests_away = requests_away.saturating_add(sites.requests_away);
            all.rows_lost = all.rows_lost.saturating_add(since.lost);
            all.rows_late = all.rows_late.saturating_add(since.late);
            all.rows_away = all.rows_away.saturating_add(requests_away);
            all.complete_from = all.complete_from.max(channel.complete_from);
        }
        // All their messages have arrived.
        all.hosts += ended;
        all.hosts_responded += ended;
        all
    }

    /// Emits the changes of relation `hosts`, at `watermark`.
    fn update_hosts(&mut self, watermark: Nanos, now: Nanos) {
        let (before, updated) = &self.hosts_updated;
        if now.saturating_sub(*updated) < HOSTS_EVERY {
            return;
        }
        let rows: HashMap<Symbol, Host> = self
            .hosts(now)
            .into_iter()
            .map(|row| (row.host, row))
            .collect();
        let others = |rows: &HashMap<Symbol, Host>, than: &HashMap<Symbol, Host>| -> Vec<Host> {
            let differs = |row: &&Host| than.get(&row.host) != Some(row);
            rows.values().filter(differs).cloned().collect()
        };
        let changes = changes(
            watermark,
            None,
            &others(before, &rows),
            &others(&rows, before),
        );
        self.engine.push(HOSTS, changes);
        self.hosts_updated = (rows, now);
    }
}
