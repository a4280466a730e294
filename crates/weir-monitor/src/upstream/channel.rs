//! [`SiteChannel`]: a fragment of the upstream monitor, as a query of this one.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use weir_model::{Batch, Nanos, Shape};
use weir_query::engine::{PartialCombiner, QueryId, in_time_order};
use weir_query::plan::Plan;
use weir_sink::RelationView;
use weir_wire::{AgentMessage, ChannelCost, ChannelHosts, ChannelId, ChannelTally, Note};

use crate::site::worse_of_channel;
use crate::{FleetCompleteness, ResultObserver};

/// The cause of losses that happened between the agents of the site and its monitor.
const CAUSE: &str = "site";

/// What the query has emitted since it was read last.
#[derive(Default)]
struct Emitted {
    batches: Vec<Batch>,
    rows: usize,
    /// The number of requests in the rows.
    requests: u64,
    completeness: Option<FleetCompleteness>,
    /// The worst of each number since it was read last.
    hosts: Option<ChannelHosts>,
    /// Why the query has ended.
    ended: Option<String>,
}

/// The hosts of the site in the results of a query.
fn hosts_in(completeness: &FleetCompleteness) -> ChannelHosts {
    let number = |hosts: u64| u32::try_from(hosts).unwrap_or(u32::MAX);
    ChannelHosts {
        channel: 0,
        missing: number(completeness.hosts_missing()),
        failed: number(completeness.hosts_failed),
        complete_from_ns: completeness.complete_from,
        requests_away: completeness.rows_away,
    }
}

/// Receives the results of the query, in the thread of the monitor.
#[derive(Clone)]
pub(super) struct SiteObserver {
    emitted: Arc<Mutex<Emitted>>,
    /// The column that contains the number of requests per row, if it is not one.
    counts: Option<usize>,
}

impl ResultObserver for SiteObserver {
    fn write(&mut self, batch: &Batch) {
        let mut emitted = self.lock();
        emitted.rows += batch.len();
        let requests = batch.requests(self.counts);
        emitted.requests = emitted.requests.saturating_add(requests);
        emitted.batches.push(batch.clone());
    }

    fn complete(&mut self, completeness: &FleetCompleteness, _: &BTreeSet<String>) {
        let mut emitted = self.lock();
        let of_site = emitted.hosts.unwrap_or_default();
        emitted.hosts = Some(worse_of_channel(&of_site, &hosts_in(completeness)));
        emitted.completeness = Some(completeness.clone());
    }

    fn end(&mut self, why: &str) {
        self.lock().ended = Some(why.to_owned());
    }
}

impl SiteObserver {
    /// For the rows of this plan.
    pub(super) fn of(plan: &Plan) -> SiteObserver {
        SiteObserver {
            emitted: Arc::default(),
            counts: plan.requests_column(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Emitted> {
        self.emitted.lock().expect("no panic while held")
    }
}

/// See the module's documentation.
pub(super) struct SiteChannel {
    plan: Arc<Plan>,
    query: QueryId,
    observer: SiteObserver,
    combiner: Option<PartialCombiner>,
    /// Of a relation, what the agents have sent before the start was reported.
    content: RelationView,
    /// The hosts whose rows up to the watermark are included.
    hosts: ChannelHosts,
    /// The same, and the worst of each number since it was sent last.
    unsent: ChannelHosts,
    /// It failed at all hosts.
    has_failed: bool,
    /// When the fragment was requested.
    since: Nanos,
    /// The instant from which rows are passed on, once it is known.
    started: Option<Nanos>,
    /// The requests up to an earlier end of the channel.
    earlier: ChannelTally,
    /// Requests in rows that were passed on.
    passed: u64,
    /// Requests lost and late at this monitor.
    lost: u64,
    /// Requests lost on the way to the upstream monitor.
    dropped: u64,
    rows_out: u64,
}

impl SiteChannel {
    /// A channel for this fragment, whose query was started at `since` with this observer. It
    /// continues the tally of an earlier start.
    pub(super) fn new(
        plan: Arc<Plan>,
        query: QueryId,
        observer: SiteObserver,
        since: Nanos,
        earlier: Option<ChannelTally>,
    ) -> SiteChannel {
        SiteChannel {
            combiner: PartialCombiner::of(&plan),
            plan,
            query,
            observer,
            content: RelationView::default(),
            hosts: ChannelHosts::default(),
            unsent: ChannelHosts::default(),
            has_failed: false,
            since,
            started: None,
            earlier: earlier.unwrap_or_default(),
            passed: 0,
            lost: 0,
            dropped: 0,
            rows_out: 0,
        }
    }

    pub(super) fn query(&self) -> QueryId {
        self.query
    }

    pub(super) fn has_started(&self) -> bool {
        self.started.is_some()
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The rows that were not taken yet.
    pub(super) fn pending(&self) -> usize {
        self.observer.lock().rows
    }

    /// Adds the messages for what the query has emitted up to the watermark. The channel has
    /// started once all agents that are connected run it (`is_run_by_all`), or after `timeout` and
    /// once the watermark has passed the request.
    ///
    /// # Errors
    /// Why the fragment has failed.
    pub(super) fn take(
        &mut self,
        channel: ChannelId,
        (watermark, now): (Nanos, Nanos),
        (is_run_by_all, timeout): (bool, Nanos),
        messages: &mut Vec<AgentMessage>,
    ) -> Result<(), String> {
        let Emitted {
            mut batches,
            completeness,
            hosts,
            requests,
            ended,
            ..
        } = std::mem::take(&mut *self.observer.lock());
        if let Some(why) = ended {
            self.fail(channel, requests, messages);
            return Err(why);
        }
        if let Some(hosts) = hosts {
            self.unsent = worse_of_channel(&self.unsent, &hosts);
        }
        if let Some(known) = &completeness {
            let lost = known.rows_lost.saturating_add(known.rows_late);
            if lost > self.lost {
                messages.push(AgentMessage::lost(channel, lost - self.lost, CAUSE));
                self.lost = lost;
            }
            self.hosts = hosts_in(known);
            // It may be started at some of them later, and other hosts may connect.
            let has_failed = known.hosts > 0 && known.hosts_failed >= known.hosts;
            let had_failed = std::mem::replace(&mut self.has_failed, has_failed);
            if has_failed && !had_failed {
                messages.push(AgentMessage::Note(Note {
                    at_ns: now,
                    place: CAUSE.to_owned(),
                    counter: "query_failed".to_owned(),
                    cause: Some(format!("channel {}: at all hosts of the site", channel.0)),
                    value: 1,
                    total: 1,
                    ..Note::default()
                }));
            }
        }
        if self.started.is_none() {
            let is_complete = |known: &FleetCompleteness| known.complete_from <= watermark;
            let is_ready = is_run_by_all && completeness.as_ref().is_some_and(is_complete);
            // Before, agents send rows again that an earlier process of this monitor has passed on.
            let is_past_request = watermark >= self.since;
            let is_late = now.saturating_sub(self.since) > timeout && is_past_request;
            let is_relation = self.plan.shape == Shape::Relation;
            if is_relation {
                batches
                    .drain(..)
                    .for_each(|batch| self.content.apply(&batch));
            }
            if !is_ready && !is_late {
                return Ok(());
            }
            // A watermark that was sent before is not later.
            self.started = Some(watermark);
            self.unsent = self.hosts;
            messages.push(AgentMessage::started(channel, watermark));
            if is_relation {
                let content = std::mem::take(&mut self.content);
                let next = watermark.saturating_add(1);
                batches.push(content.snapshot(&self.plan.schema, next));
            }
        }
        let started = self.started.unwrap_or(Nanos::MIN);
        let later = |batch: &Batch| {
            let first = batch.ts.partition_point(|&ts| ts <= started);
            batch.slice(first, batch.len() - first)
        };
        let batches: Vec<Batch> = batches
            .iter()
            .map(later)
            .filter(|batch| !batch.is_empty())
            .collect();
        if batches.is_empty() {
            return Ok(());
        }
        let batch = match &mut self.combiner {
            Some(combiner) => match combiner.combine(&batches) {
                Ok(batch) => batch,
                Err(error) => {
                    self.fail(channel, requests, messages);
                    return Err(error.to_string());
                }
            },
            None => in_time_order(&batches),
        };
        self.passed += batch.requests(self.plan.requests_column());
        self.rows_out += batch.len() as u64;
        messages.push(AgentMessage::Rows { channel, batch });
        Ok(())
    }

    /// Counts the requests as lost that the query has emitted and that are not passed on.
    fn fail(&mut self, channel: ChannelId, requests: u64, messages: &mut Vec<AgentMessage>) {
        if self.started.is_some() && requests > 0 {
            self.lost = self.lost.saturating_add(requests);
            messages.push(AgentMessage::lost(channel, requests, CAUSE));
        }
    }

    /// Passes the content of a relation on again, as after a start: the upstream monitor has not
    /// received all of its changes. To be called after [`SiteChannel::take`].
    pub(super) fn resend(&mut self, content: &Batch) {
        self.started = None;
        self.content = RelationView::default();
        self.content.apply(content);
    }

    /// Counts requests that are lost on the way to the upstream monitor.
    pub(super) fn lose(&mut self, requests: u64) {
        self.dropped += requests;
    }

    /// The requests so far, with those that this monitor has received and that the query has not
    /// emitted yet, and those that are lost or late: agents no longer have them.
    pub(super) fn tally(&self, channel: ChannelId, (received, lost): (u64, u64)) -> ChannelTally {
        let waiting = match self.started {
            Some(_) => received.saturating_add(self.observer.lock().requests),
            None => 0,
        };
        let lost = self.lost.max(lost);
        ChannelTally {
            channel: channel.0,
            produced: [self.earlier.produced, self.passed, lost, waiting]
                .into_iter()
                .fold(0, u64::saturating_add),
            lost: [self.earlier.lost, lost, self.dropped]
                .into_iter()
                .fold(0, u64::saturating_add),
        }
    }

    /// The hosts of the site whose rows are in what was passed on since the last call, once it has
    /// started.
    pub(super) fn take_hosts(&mut self, channel: ChannelId) -> Option<ChannelHosts> {
        let started = self.started?;
        let unsent = std::mem::replace(&mut self.unsent, self.hosts);
        Some(ChannelHosts {
            channel: channel.0,
            complete_from_ns: unsent.complete_from_ns.max(started).max(0),
            ..unsent
        })
    }

    /// The cost so far.
    pub(super) fn cost(&self, channel: ChannelId, bytes_out: u64) -> ChannelCost {
        ChannelCost {
            channel: channel.0,
            rows_in: self.passed,
            rows_out: self.rows_out,
            bytes_out,
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_query::engine::{Engine, EngineOptions};
    use weir_query::place::fleet::PlacementStrategy;

    use super::*;
    use crate::tests::fleet::{cut_of, rows};

    const CHANNEL: ChannelId = ChannelId(1);
    const TIMEOUT: Nanos = 100;
    const SINCE: Nanos = 1_000;

    /// What a channel that was requested at [`SINCE`] passes on at two times, each a watermark of
    /// the site with the time and rows up to it. Not all agents run the fragment.
    fn passed_on(times: [(Nanos, Nanos, Batch); 2]) -> [Vec<AgentMessage>; 2] {
        let cut = cut_of("SELECT host, a FROM S", PlacementStrategy::Rows);
        let plan = Arc::new(cut.fragments[0].plan.clone());
        let mut observer = SiteObserver::of(&plan);
        let query = Engine::new(EngineOptions::default()).reserve();
        let mut site = SiteChannel::new(plan, query, observer.clone(), SINCE, None);
        times.map(|(watermark, now, batch)| {
            observer.write(&batch);
            let completeness = FleetCompleteness {
                at: watermark,
                complete_from: SINCE,
                ..FleetCompleteness::default()
            };
            observer.complete(&completeness, &BTreeSet::new());
            let mut messages = Vec::new();
            let taken = site.take(CHANNEL, (watermark, now), (false, TIMEOUT), &mut messages);
            taken.expect("it does not fail");
            messages
        })
    }

    #[test]
    fn rows_that_agents_send_again_to_a_restarted_site_are_not_passed_on() {
        let again = rows("a", &[(400, 1), (499, 2)]);
        let new = rows("a", &[(1_199, 3), (1_201, 4)]);
        let [first, second] = passed_on([(500, 1_300, again), (1_200, 1_400, new)]);
        assert!(first.is_empty(), "{first:?}");
        let [
            AgentMessage::Started(started),
            AgentMessage::Rows { batch, .. },
        ] = &second[..]
        else {
            panic!("its start and a row, not {second:?}");
        };
        assert_eq!((started.at_ns, &batch.ts[..]), (1_200, &[1_201][..]));
    }
}
