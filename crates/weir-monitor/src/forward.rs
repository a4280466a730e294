//! [`Forwarding`]: the rows of standing queries, forwarded to Kafka as the engine receives them.

use std::collections::HashMap;

use weir_forward::{Forwarder, RowOrigin};
use weir_model::{Batch, Nanos};
use weir_query::engine::QueryId;
use weir_query::place::fleet::Fragment;
use weir_sink::metrics::Family;
use weir_wire::ChannelId;

use super::Monitor;
use super::agents::count;
use weir_runtime::run_loop::CounterReading;

/// The place of its counters in stream `weir`.
const PLACE: &str = "forward";

/// Why the rows of a query without fragments are not forwarded.
pub(super) const NOTHING_SENT: &str = "it reads nothing that agents send";

/// Forwards the rows of standing queries: those that the engine receives, so that another engine
/// has the same result. Rows that are late here are not forwarded.
pub(super) struct Forwarding {
    forwarder: Forwarder,
    /// The names under which the rows of each channel are forwarded, by query.
    names: HashMap<ChannelId, Vec<(QueryId, String)>>,
}

impl Forwarding {
    /// Forwards rows of a channel.
    pub(super) fn rows(&mut self, channel: ChannelId, origin: &RowOrigin<'_>, batch: &Batch) {
        for (_, name) in self.names.get(&channel).into_iter().flatten() {
            self.forwarder.rows(name, origin, batch);
        }
    }
}

impl Monitor {
    /// Forwards the rows of the standing queries that start from now on.
    pub fn forward_to(&mut self, forwarder: Forwarder) {
        self.forwarding = Some(Forwarding {
            forwarder,
            names: HashMap::new(),
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

    /// Begins to forward the rows of a query's fragments, the channels of which are `channels`.
    pub(super) fn forward_query<'a>(
        &mut self,
        query: QueryId,
        name: &str,
        fragments: impl Iterator<Item = (&'a Fragment, ChannelId)>,
        now: Nanos,
    ) {
        let Some(forwarding) = &mut self.forwarding else {
            return;
        };
        let mut fragments = fragments.enumerate().peekable();
        if fragments.peek().is_none() {
            tracing::warn!(query = %name, reason = %NOTHING_SENT, "rows are not forwarded");
            let cause = format!("{name}: {NOTHING_SENT}");
            self.own.record(now, None, "not_forwarded", &cause, 1);
        }
        for (number, (fragment, channel)) in fragments {
            match forwarding.forwarder.add(name, number, &fragment.plan) {
                Ok(rows) => {
                    let topic = forwarding.forwarder.topic(&rows).unwrap_or_default();
                    tracing::info!(query = %name, topic, "rows are forwarded");
                    let names = forwarding.names.entry(channel).or_default();
                    names.push((query, rows));
                }
                Err(why) => {
                    tracing::warn!(query = %name, reason = %why, "rows are not forwarded");
                    let cause = format!("{name}: {why}");
                    self.own.record(now, None, "not_forwarded", &cause, 1);
                }
            }
        }
    }

    /// Ends the forwarding of a query.
    pub(super) fn forward_no_more(&mut self, query: QueryId) {
        let Some(forwarding) = &mut self.forwarding else {
            return;
        };
        for names in forwarding.names.values_mut() {
            let of_query = |(of, _): &mut (QueryId, String)| *of == query;
            for (_, name) in names.extract_if(.., of_query) {
                forwarding.forwarder.remove(&name);
            }
        }
        forwarding.names.retain(|_, names| !names.is_empty());
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
