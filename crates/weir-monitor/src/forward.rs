//! [`Forwarding`]: the rows of standing queries, forwarded to Kafka as the engine receives them.
//!
//! Of a relation the content is forwarded, host by host, at each end of the query's windows: what
//! the engine has at that instant. It is the content that the agent has sent so far without the
//! changes that still wait for the watermark. The content of `hosts` is what the monitor has put
//! there last.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use weir_forward::{Forwarder, RowOrigin};
use weir_model::inventory::changes;
use weir_model::{Batch, Nanos};
use weir_query::engine::QueryId;
use weir_query::place::fleet::Cut;
use weir_sink::RelationView;
use weir_sink::metrics::Family;
use weir_wire::ChannelId;

use super::agents::{AgentId, count};
use super::{Monitor, Running};
use weir_runtime::run_loop::CounterReading;

/// The place of its counters in stream `weir`.
const PLACE: &str = "forward";

/// Why the rows of a query without fragments are not forwarded.
pub(super) const NOTHING_SENT: &str = "it reads nothing that agents send";

/// The maximum number of instants at which the content of relations is forwarded when time advances
/// once. After a long pause it advances in several steps.
const ENDS_MAX: usize = 50;

/// The maximum number of rows in the content of a relation that is forwarded, as far as it is that
/// of one host.
const CONTENT_ROWS_MAX: i64 = 100_000;

/// Forwards the rows of standing queries: those that the engine receives, so that another engine
/// has the same result. Rows that are late here are not forwarded.
pub(super) struct Forwarding {
    forwarder: Forwarder,
    /// What is forwarded of each channel.
    channels: HashMap<ChannelId, Vec<ForwardedInput>>,
    /// What is forwarded of relation `hosts`.
    hosts: Vec<ForwardedInput>,
}

/// The rows of a channel or of `hosts`, as they are forwarded for a query.
struct ForwardedInput {
    query: QueryId,
    /// Their name.
    name: String,
    /// For a relation, the interval at whose multiples its content is forwarded.
    content_every: Option<Nanos>,
}

impl ForwardedInput {
    /// Whether the content of its relation is forwarded at an instant.
    fn is_due(&self, queries: &BTreeMap<QueryId, Running>, at: Nanos) -> bool {
        let running = queries.get(&self.query);
        self.content_every.is_some_and(|every| at % every == 0)
            && running.is_some_and(|running| running.forwards_after() < at)
    }
}

impl Forwarding {
    /// Forwards rows of a channel.
    pub(super) fn rows(&mut self, channel: ChannelId, origin: &RowOrigin<'_>, batch: &Batch) {
        for forwarded in self.channels.get(&channel).into_iter().flatten() {
            self.forwarder.rows(&forwarded.name, origin, batch);
        }
    }
}

impl Monitor {
    /// Forwards the rows of the standing queries that start from now on.
    pub fn forward_to(&mut self, forwarder: Forwarder) {
        self.forwarding = Some(Forwarding {
            forwarder,
            channels: HashMap::new(),
            hosts: Vec::new(),
        });
    }

    /// Whether rows of standing queries are forwarded.
    pub fn forwards(&self) -> bool {
        self.forwarding.is_some()
    }

    /// Sends what is to be forwarded, for some seconds; the rest stays on disk. Returns its bytes.
    pub fn end_forwarding(&mut self) -> u64 {
        let forwarding = self.forwarding.take();
        let waiting = forwarding.map_or(0, |forwarding| forwarding.forwarder.close());
        if waiting > 0 {
            tracing::warn!(
                bytes = waiting,
                "Kafka does not have all messages; the next process with this state directory sends \
                 the rest"
            );
        }
        waiting
    }

    /// Begins to forward what is published of a query that was cut; `channels` are those of its
    /// fragments.
    pub(super) fn forward_query(
        &mut self,
        query: QueryId,
        name: &str,
        cut: &Cut,
        channels: &[ChannelId],
        now: Nanos,
    ) {
        let Some(forwarding) = &mut self.forwarding else {
            return;
        };
        let (mut refused, mut published) = (Vec::new(), 0..cut.published_count());
        if channels.is_empty() {
            refused.push(NOTHING_SENT.to_owned());
            published = 0..0;
        }
        for number in published {
            let forwarder = &mut forwarding.forwarder;
            match forwarder.add(name, cut, number) {
                Ok(rows) => {
                    let topic = forwarder.topic(&rows).unwrap_or_default();
                    tracing::info!(query = %name, topic, "rows are forwarded");
                    let forwarded = ForwardedInput {
                        query,
                        content_every: forwarder.content_every(&rows),
                        name: rows,
                    };
                    let of_it = match channels.get(number) {
                        Some(channel) => forwarding.channels.entry(*channel).or_default(),
                        None => &mut forwarding.hosts,
                    };
                    of_it.push(forwarded);
                }
                Err(why) => refused.push(why),
            }
        }
        for why in refused {
            tracing::warn!(query = %name, reason = %why, "rows are not forwarded");
            let cause = format!("{name}: {why}");
            self.own.record(now, None, "not_forwarded", &cause, 1);
        }
    }

    /// Ends the forwarding of a query.
    pub(super) fn forward_no_more(&mut self, query: QueryId) {
        let Some(forwarding) = &mut self.forwarding else {
            return;
        };
        let channels = forwarding.channels.values_mut();
        for inputs in channels.chain([&mut forwarding.hosts]) {
            for ended in inputs.extract_if(.., |of| of.query == query) {
                forwarding.forwarder.remove(&ended.name);
            }
        }
        forwarding.channels.retain(|_, inputs| !inputs.is_empty());
    }

    /// How far time advances at once, at most to `watermark`, and the instants on the way at which
    /// the content of relations is forwarded.
    pub(super) fn next_contents(&self, watermark: Nanos) -> (Nanos, BTreeSet<Nanos>) {
        let mut instants = BTreeSet::new();
        let forwarding = self.forwarding.iter();
        let inputs = forwarding.flat_map(|f| f.channels.values().chain([&f.hosts]));
        for forwarded in inputs.flatten() {
            let (Some(every), Some(running)) =
                (forwarded.content_every, self.queries.get(&forwarded.query))
            else {
                continue;
            };
            let from = self.watermark.max(running.forwards_after());
            let first = from.div_euclid(every).saturating_add(1);
            let ends = (first..=watermark.div_euclid(every)).take(ENDS_MAX);
            instants.extend(ends.map(|n| n.saturating_mul(every)));
        }
        let next = instants.iter().nth(ENDS_MAX - 1).copied();
        let next = next.unwrap_or(watermark);
        instants.retain(|instant| *instant <= next);
        (next, instants)
    }

    /// Forwards the content of relations at the watermark, where it is that of an end of windows.
    pub(super) fn forward_contents(&mut self) {
        let Some(forwarding) = &mut self.forwarding else {
            return;
        };
        let at = self.watermark;
        let is_due = |of: &&ForwardedInput| of.is_due(&self.queries, at);
        for (id, inputs) in &forwarding.channels {
            let due: Vec<&ForwardedInput> = inputs.iter().filter(is_due).collect();
            let Some(channel) = self.channels.get(*id).filter(|_| !due.is_empty()) else {
                continue;
            };
            let schema = &channel.fragment.plan.schema;
            let mut later: HashMap<AgentId, Vec<&Batch>> = HashMap::new();
            for (agent, batch) in channel.waiting.in_order_of_arrival() {
                later.entry(agent).or_default().push(batch);
            }
            for (number, agent) in &self.agents {
                // What was sent before a restart is replaced, also by nothing.
                let none = RelationView::default();
                let content = agent.runs.get(id).map_or(&none, |run| &run.content);
                let mut before = None;
                for batch in later.get(number).into_iter().flatten().rev() {
                    before.get_or_insert_with(|| content.clone()).undo(batch);
                }
                let content = before.as_ref().unwrap_or(content);
                let (host, count) = (agent.host.as_str(), content.len());
                let rows = (count <= CONTENT_ROWS_MAX).then(|| content.stream_rows(schema, at));
                for of in &due {
                    let forwarder = &mut forwarding.forwarder;
                    match &rows {
                        Some(rows) => {
                            forwarder.content(&of.name, host, agent.instance, at, rows);
                        }
                        None => {
                            forwarder.content_is_too_large(&of.name, count.unsigned_abs());
                        }
                    }
                }
            }
            // After a pause they are those of many instants.
            forwarding.forwarder.flush();
        }
        for of in forwarding.hosts.iter().filter(is_due) {
            for (host, row) in &self.hosts_updated.0 {
                let agent = self.hosts.get(host).and_then(|id| self.agents.get(id));
                let epoch = agent.map_or(0, |agent| agent.instance);
                let rows = changes(at, None, &[], std::slice::from_ref(row));
                let forwarder = &mut forwarding.forwarder;
                forwarder.content(&of.name, host.as_str(), epoch, at, &rows);
            }
            forwarding.forwarder.flush();
        }
    }

    /// Forwards the watermark, writes what is to be forwarded to disk, and counts what was lost.
    pub(super) fn forward_watermark(&mut self, now: Nanos) {
        let Some(forwarding) = &mut self.forwarding else {
            return;
        };
        // Rows after the last checkpoint may be in time once more if the monitor is killed.
        let watermark = match self.state {
            Some(_) => self.watermark.min(self.saved_to[0]),
            None => self.watermark,
        };
        forwarding.forwarder.advance(watermark);
        for (cause, requests) in forwarding.forwarder.take_lost() {
            let value = count(requests);
            self.own.record(now, None, "forward_lost", cause, value);
        }
    }

    /// The counters of what is forwarded.
    pub(super) fn forward_readings(&self) -> Vec<CounterReading> {
        let Some(forwarding) = &self.forwarding else {
            return Vec::new();
        };
        let (status, waiting) = forwarding.forwarder.status();
        let reading = |name, total| CounterReading::new(PLACE, name, count(total));
        vec![
            reading("messages_out", status.sent),
            reading("events_lost", forwarding.forwarder.lost()),
            reading("waiting_bytes", waiting),
        ]
    }

    /// Whether what is forwarded arrives, as a metric.
    pub(super) fn forward_families(&self) -> Option<Family> {
        let (status, _) = self.forwarding.as_ref()?.forwarder.status();
        Some(Family::gauge(
            "weir_monitor_forwards",
            "",
            "1 while Kafka accepts the rows that are forwarded, 0 while they wait in the spool.",
            f64::from(u8::from(status.failure.is_none())),
        ))
    }
}
