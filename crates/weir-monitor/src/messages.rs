//! The processing of agents' messages: they are checked, counted and stored until the watermark
//! passes their rows.

use arrow_buffer::ScalarBuffer;
use weir_forward::RowOrigin;
use weir_model::{Batch, Capabilities, Catalog, Nanos};
use weir_tap::ebpf::CheckStatus;
use weir_wire::{AgentMessage, ChannelId, Note, SELF_TEST, SessionId, SiteHosts};

use super::Monitor;
use super::account::{Account, Instants};
use super::agents::{AgentId, count};
use super::channels::Channel;
use super::checkpoint::Unsafe;

/// Maximum number of distinct rows of an agent in one relation.
const RELATION_ROWS_MAX: usize = 1 << 18;

impl Monitor {
    /// Processes a message, once.
    pub(super) fn receive(
        &mut self,
        session: SessionId,
        number: Option<u64>,
        word: AgentMessage,
        now: Nanos,
    ) {
        // Messages of a disconnected agent may still be in the queue.
        let Some(&id) = self.sessions.get(&session) else {
            return;
        };
        let agent = self.agents.get_mut(&id).expect("a session is of an agent");
        agent.received_at = now;
        if let Some(number) = number {
            if number <= agent.seen {
                return;
            }
            agent.seen = number;
        }
        self.work.words += 1;
        self.effect = Effect::default();
        match word {
            AgentMessage::Rows { channel, batch } => {
                self.on_rows(id, channel, batch, number, now);
            }
            AgentMessage::Watermark(at) => self.on_watermark(id, at, now),
            AgentMessage::Started(started) => {
                let channel = ChannelId(started.channel);
                self.on_started(id, channel, started.at_ns, number, now);
            }
            AgentMessage::Failed(failed) => {
                let channel = ChannelId(failed.channel);
                self.on_failed(id, channel, &failed.why, number, now);
            }
            AgentMessage::Lost(lost) => {
                self.on_lost(id, ChannelId(lost.channel), lost.requests, &lost.cause, now);
            }
            AgentMessage::Note(note) => self.on_note(id, note, number, now),
            AgentMessage::Status(status) => {
                let agent = self.agents.get_mut(&id).expect("it just spoke");
                let runs = |channel| agent.runs.contains_key(&channel);
                agent.readings.take(&status, runs, now);
                for tally in &status.tallies {
                    if let Some(run) = agent.runs.get_mut(&ChannelId(tally.channel)) {
                        run.reported = tally.produced;
                    }
                }
                agent.status = Some(status);
            }
            AgentMessage::Hosts(hosts) => self.on_hosts(id, hosts, now),
            AgentMessage::Capabilities(bytes) => self.receive_capabilities(id, &bytes, now),
        }
        if let Some(number) = number
            && let Some(agent) = self.agents.get_mut(&id)
            && (self.holds || agent.has_unsafe_words())
        {
            let effect = std::mem::take(&mut self.effect);
            agent.note(Unsafe {
                number,
                bytes: effect.bytes,
                until: effect.until.unwrap_or(Nanos::MIN),
                effect: effect.account,
                instants: effect.instants,
                changes: effect.changes,
                discards: effect.discards,
                late: effect.late.map(|instant| (number, instant)),
            });
            let most = agent.hold_bytes_max(self.options.hold_bytes_max);
            self.save_soon |= agent.unsafe_bytes > most;
        }
    }

    /// An agent whose capabilities are unknown runs every plan.
    fn receive_capabilities(&mut self, id: AgentId, bytes: &[u8], now: Nanos) {
        let decoded = Capabilities::decode(bytes, &Catalog::builtin());
        let agent = self.agents.get_mut(&id).expect("it just spoke");
        match decoded {
            Ok(capabilities) => agent.capabilities = Some(capabilities),
            Err(why) => self.record_join(id, "capabilities_unknown", &why, 1, now),
        }
    }

    fn on_rows(
        &mut self,
        id: AgentId,
        channel_id: ChannelId,
        batch: Batch,
        number: Option<u64>,
        now: Nanos,
    ) {
        let acked_time = self.acked_time();
        let agent = self.agents.get_mut(&id).expect("it just spoke");
        let rows = batch.len() as u64;
        let Some(channel) = self.channels.get_mut(channel_id) else {
            // The number of requests in its groups is no longer known.
            agent.requests_stray = agent.requests_stray.saturating_add(rows);
            return;
        };
        let counts = channel.counts;
        let requests = batch.requests(counts);
        let last = batch.ts.last().copied().unwrap_or(Nanos::MIN);
        // An agent that ends sends the state of a slide with the timestamp of the slide's end.
        let now_there = now.saturating_add(self.options.ahead_max);
        let ahead = last > now_there && last > channel.fragment.plan.emitted_by(now_there);
        let fault = channel.fault(&batch);
        if let Some(why) = fault.or_else(|| ahead.then(|| AHEAD.to_owned())) {
            self.lose_of(id, channel_id, requests, "refused", now);
            return self.bar(id, format!("channel {}: {why}", channel_id.0), now);
        }
        self.work.rows += rows;
        if let Some(run) = agent.runs.get(&channel_id).filter(|run| run.discards) {
            return match run.failed {
                true => self.lose_of(id, channel_id, requests, "refused", now),
                // The agent sends them again with all of the content.
                false => {
                    let account = Account {
                        in_time: requests,
                        ..Account::default()
                    };
                    self.add_account(id, channel_id, account);
                }
            };
        }
        let batch = channel.taken_in(batch, now);
        let upto = |instant: Nanos| batch.ts.partition_point(|&ts| ts <= instant);
        let over = upto(self.watermark);
        let late_before = number.and_then(|n| agent.before.as_ref()?.late(n));
        let (late, late_to) = match late_before {
            // Later changes depend on this one, so it is not dropped; it is applied at the first
            // possible instant, after a restart at the same one.
            _ if channel.is_relation() => (0, Some(late_before.unwrap_or(acked_time))),
            None => (upto(acked_time), Some(acked_time)),
            // It was processed before a restart. Rows that were in time then are in the results up
            // to the checkpoint; later results lack them if they did not arrive again in time.
            Some(late_to) => {
                let (late, resumed) = (upto(late_to), upto(late_to.max(self.recovery.from)));
                let missed = over.saturating_sub(resumed);
                let late_to = if missed > 0 { self.watermark } else { late_to };
                (late + missed, Some(late_to))
            }
        };
        let late = batch.slice(0, late).requests(counts);
        let moved = late_to.map_or(0, upto);
        let begin = over.max(moved);
        let batch = match channel.is_relation() {
            true => {
                let over = late_to.unwrap_or(self.watermark).max(self.watermark);
                not_before(batch, over.saturating_add(1))
            }
            false => batch.slice(begin, batch.len() - begin),
        };
        let late_to = late_to.filter(|_| moved > 0);
        let run = agent.runs.entry(channel_id).or_default();
        let most = self.options.waiting_bytes_max;
        // Without this change the relation would be wrong from then on.
        if channel.is_relation() && agent.waiting_bytes > most {
            // The agent sends the content again after its next connection.
            self.end_run(id, channel_id);
            self.lose_of(id, channel_id, requests, "refused", now);
            return self.bar(id, "too many rows of a relation wait".to_owned(), now);
        }
        if channel.is_relation() && !run.content.try_apply(&batch, RELATION_ROWS_MAX) {
            self.lose_of(id, channel_id, requests, "refused", now);
            let why = format!("more than {RELATION_ROWS_MAX} rows of a relation");
            return self.on_failed(id, channel_id, &why, number, now);
        }
        if !channel.is_relation() && agent.waiting_bytes > most / 4 {
            self.effect.late = Some(last);
            return self.lose_of(id, channel_id, requests, "monitor_full", now);
        }
        if let Some(forwarding) = &mut self.forwarding
            && !channel.is_relation()
        {
            let origin = RowOrigin {
                host: agent.host.as_str(),
                epoch: agent.instance,
                sequence: number.unwrap_or(0),
                first: begin,
                counts,
            };
            forwarding.rows(channel_id, &origin, &batch);
        }
        let account = Account {
            in_time: requests.saturating_sub(late),
            late,
            lost: 0,
        };
        let until = batch.ts.last().copied().unwrap_or(last);
        let changes = channel.is_relation().then(|| (channel_id, batch.clone()));
        let instants = Instants::of(&batch, counts);
        let bytes = channel.waiting.push(id, batch);
        agent.waiting_bytes += bytes;
        self.waiting_bytes += bytes;
        self.effect = Effect {
            bytes,
            instants,
            changes,
            until: channel.hold.map(|hold| until.saturating_add(hold)),
            late: late_to,
            ..Effect::default()
        };
        self.add_account(id, channel_id, account);
        if late > 0 && late_before.is_none() {
            let host = self.agents[&id].host;
            self.own
                .record(now, Some(host), "rows_late", "", count(late));
        }
    }

    /// Results up to this instant were emitted, also while they are computed again after a restart.
    fn acked_time(&self) -> Nanos {
        self.watermark.max(self.recovery.instant)
    }

    fn on_watermark(&mut self, id: AgentId, at: Nanos, now: Nanos) {
        let agent = self.agents.get_mut(&id).expect("it just spoke");
        if at == Nanos::MAX {
            agent.ended = true;
            let host = agent.host;
            self.own.record(now, Some(host), "agent_ended", "", 1);
            // That was its last message, and all earlier ones have arrived.
            self.lose_outstanding(id, now);
        } else if at > now.saturating_add(self.options.ahead_max) {
            return self.bar(id, AHEAD.into(), now);
        } else {
            agent.reached = agent.reached.max(at);
            // An agent that is constantly behind by a small amount would never reach the watermark
            // again if no other agent determines it; the watermark then waits for it.
            let lag = now.saturating_sub(agent.reached);
            let is_near = lag < self.options.exclude_after / 2;
            let is_room = self.waiting_bytes <= self.options.waiting_bytes_max / 2;
            agent.excluded &= agent.reached < self.watermark && !(is_near && is_room);
        }
        self.count_agent(id);
    }

    fn on_started(
        &mut self,
        id: AgentId,
        channel_id: ChannelId,
        at: Nanos,
        number: Option<u64>,
        now: Nanos,
    ) {
        let Some(channel) = self.channels.get_mut(channel_id) else {
            return;
        };
        let agent = self.agents.get_mut(&id).expect("it just spoke");
        let at = at.min(now);
        agent.has_started();
        if !agent.runs.values().any(|run| run.is_running()) {
            // It delivered no rows before.
            agent.reached = agent.reached.max(at);
            agent.excluded = agent.reached < self.watermark;
        }
        let run = agent.runs.entry(channel_id).or_default();
        let was_counted = agent.counted.filter(|_| run.is_running());
        channel.failed -= usize::from(std::mem::take(&mut run.failed));
        run.started = Some(at);
        run.lacks_content = false;
        let is_relation = channel.is_relation();
        channel.complete_from = channel.complete_from.max(at);
        channel.count(was_counted, false);
        channel.count(agent.counted, true);
        if is_relation {
            self.set_discards(id, channel_id, false);
        }
        self.retract(id, channel_id, at, number);
        self.count_agent(id);
    }

    /// Retracts the rows of a relation that an agent has sent before a message, at `at` or as soon
    /// as possible.
    fn retract(&mut self, id: AgentId, channel_id: ChannelId, at: Nanos, number: Option<u64>) {
        let acked_time = self.acked_time();
        let agent = self.agents.get_mut(&id).expect("it just spoke");
        let channel = self.channels.get_mut(channel_id);
        let (Some(channel), Some(run)) = (channel, agent.runs.get_mut(&channel_id)) else {
            return;
        };
        let late_before = number.and_then(|n| agent.before.as_ref()?.late(n));
        let late_to = late_before.unwrap_or(acked_time);
        let from = at.max(late_to.max(self.watermark).saturating_add(1));
        if let Some(gone) = run.content.clear(&channel.fragment.plan.schema, from) {
            if let Some(hold) = channel.hold {
                self.effect.until = gone.ts.last().map(|last| last.saturating_add(hold));
                self.effect.late = (from > at).then_some(late_to);
            }
            self.effect.changes = Some((channel_id, gone.clone()));
            let bytes = channel.waiting.push(id, gone);
            agent.waiting_bytes += bytes;
            self.waiting_bytes += bytes;
        }
    }

    /// Counts the requests of a message.
    fn add_account(&mut self, id: AgentId, channel_id: ChannelId, account: Account) {
        let agent = self.agents.get_mut(&id).expect("it just spoke");
        agent.account.add(account);
        let run = agent.runs.entry(channel_id).or_default();
        run.account.add(account);
        if let Some(channel) = self.channels.get_mut(channel_id) {
            channel.account.add(account);
        }
        self.effect.account = Some((channel_id, account));
    }

    /// Changes of a relation are discarded from now on, or no longer.
    fn set_discards(&mut self, id: AgentId, channel_id: ChannelId, discards: bool) {
        let agent = self.agents.get_mut(&id).expect("it just spoke");
        agent.runs.entry(channel_id).or_default().discards = discards;
        self.effect.discards = Some((channel_id, discards));
    }

    /// Counts an agent as not running a channel, until it has started it again.
    fn end_run(&mut self, id: AgentId, channel_id: ChannelId) {
        let agent = self.agents.get_mut(&id).expect("it just spoke");
        let run = agent.runs.entry(channel_id).or_default();
        let was_running = run.is_running();
        run.started = None;
        run.lacks_content = true;
        if let Some(channel) = self.channels.get_mut(channel_id).filter(|_| was_running) {
            channel.count(agent.counted, false);
        }
        self.set_discards(id, channel_id, true);
    }

    /// The hosts of a site have changed.
    fn on_hosts(&mut self, id: AgentId, hosts: SiteHosts, now: Nanos) {
        let agent = self.agents.get_mut(&id).expect("it just spoke");
        for of in &hosts.channels {
            if let Some(channel) = self.channels.get_mut(ChannelId(of.channel)) {
                let from = of.complete_from_ns.min(now);
                channel.complete_from = channel.complete_from.max(from);
            }
        }
        let site = agent.site.get_or_insert_default();
        site.report(agent.reached, hosts);
    }

    fn on_failed(
        &mut self,
        id: AgentId,
        channel_id: ChannelId,
        why: &str,
        number: Option<u64>,
        now: Nanos,
    ) {
        let agent = self.agents.get_mut(&id).expect("it just spoke");
        agent.expects_not(channel_id);
        if let Some(channel) = self.channels.get_mut(channel_id) {
            let run = agent.runs.entry(channel_id).or_default();
            if !run.failed {
                if run.is_running() {
                    channel.count(agent.counted, false);
                }
                channel.failed += 1;
                run.failed = true;
            }
        }
        let channel = self.channels.get(channel_id);
        if channel.is_some_and(Channel::is_relation) {
            self.set_discards(id, channel_id, true);
            self.retract(id, channel_id, Nanos::MIN, number);
        }
        self.record_join(id, "query_failed", why, 1, now);
        self.count_agent(id);
    }

    fn on_lost(&mut self, id: AgentId, channel: ChannelId, requests: u64, cause: &str, now: Nanos) {
        match self.channels.get(channel) {
            Some(_) => self.lose_of(id, channel, requests, cause, now),
            None => {
                let agent = self.agents.get_mut(&id).expect("it just spoke");
                agent.requests_stray = agent.requests_stray.saturating_add(requests);
            }
        }
    }

    /// Counts requests of the agent's current process as lost whose rows will not arrive.
    fn lose_of(&mut self, id: AgentId, channel: ChannelId, requests: u64, cause: &str, now: Nanos) {
        let agent = self.agents.get_mut(&id).expect("it just spoke");
        let lost = Account {
            lost: requests,
            ..Account::default()
        };
        agent.runs.entry(channel).or_default().account.add(lost);
        self.effect.account = Some((channel, lost));
        self.lose(id, channel, requests, cause, now);
    }

    fn on_note(&mut self, id: AgentId, mut note: Note, number: Option<u64>, now: Nanos) {
        let acked_time = self.acked_time();
        let agent = self.agents.get_mut(&id).expect("it just spoke");
        note.at_ns = note.at_ns.min(now);
        if note.counter == SELF_TEST {
            let number = usize::try_from(note.total).ok();
            agent.self_test = number.and_then(|n| CheckStatus::ALL.get(n)).copied();
        }
        // Late changes are emitted after the watermark, after a restart at the same instant.
        let late_before = number.and_then(|n| agent.before.as_ref()?.late(n));
        let late_to = late_before.unwrap_or(acked_time);
        let instant = note.at_ns.max(late_to.saturating_add(1));
        self.effect.until = self.own_hold.map(|hold| instant.saturating_add(hold));
        self.effect.late = (instant > note.at_ns).then_some(late_to);
        let (host, texts) = (agent.host, &mut agent.texts);
        if !self.own.take(host, &note, instant, texts) {
            self.bar(id, "a note's texts are too long or too many".into(), now);
        }
    }
}

/// The effect of a message.
#[derive(Clone, Debug, Default)]
pub(super) struct Effect {
    /// Approximate bytes of its rows.
    bytes: usize,
    /// The outcome of its rows.
    account: Option<(ChannelId, Account)>,
    /// The instants of its rows that arrived in time.
    instants: Instants,
    /// Its changes of a relation that a standing query reads.
    changes: Option<(ChannelId, Batch)>,
    /// Changes of this relation are discarded after it, or no longer.
    discards: Option<(ChannelId, bool)>,
    /// The results up to this instant may need its rows.
    until: Option<Nanos>,
    /// Rows up to this instant were late.
    late: Option<Nanos>,
}

/// The reason for the rejection of timestamps in the future.
const AHEAD: &str = "its timestamps are ahead of the monitor's clock; it must measure its clock \
                     offset again";

/// The batch with rows before `first` moved to `first`.
fn not_before(batch: Batch, first: Nanos) -> Batch {
    if batch.ts.first().is_none_or(|&ts| ts >= first) {
        return batch;
    }
    let ts: Vec<i64> = batch.ts.iter().map(|&ts| ts.max(first)).collect();
    Batch {
        ts: ScalarBuffer::from(ts),
        ..batch
    }
}
