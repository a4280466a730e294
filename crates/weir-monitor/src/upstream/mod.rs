//! [`Upstream`]: this monitor as the agent of another one, for the hosts of a site.
//!
//! ```text
//! agents of the site ──▶ this monitor ──▶ monitor of all sites ◀── other sites, agents
//! ```
//!
//! 1. The other monitor starts fragments here as at any agent. Each runs as a query of this
//!    monitor: its agents run the same fragment ([`SiteChannel`]).
//! 2. Rows are passed on when the watermark of the site has passed them. Partial aggregates of one
//!    group and interval are combined into one row, so that the other monitor receives as many rows
//!    from a site as from one host.
//! 3. The watermark of the site is that of the agent. Losses and late rows of the site are
//!    reported as losses of the agent. Before a watermark for which they differ, the hosts of the
//!    site are reported, and those that are missing in the rows of each fragment.
//! 4. This monitor follows the clock of the other one, and its agents follow this one's, so that
//!    all agree on the ends of intervals.
//!
//! The other monitor starts the fragments again after a restart of this one, as at an agent that
//! was killed. What survives ([`UpstreamState`]) are the numbers of requests that were received, so
//! that those which were not passed on are counted as lost, the names of the hosts, so that they
//! are missing until they connect, and the term of the other monitor.

mod channel;
mod config;
mod state;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info, warn};
use weir_model::{NANOS_PER_SECOND, Nanos, Shape};
use weir_query::place::fleet::{Cut, Fragment, PlacementStrategy};
use weir_query::plan::{Plan, wire};
use weir_runtime::logged_reasons::LoggedReasons;
use weir_runtime::plans;
use weir_runtime::run_loop::{process_usage, wall_clock};
use weir_sink::InstantUnit;
use weir_wire::{
    AgentMessage, ChannelId, ChannelTally, MonitorMessage, SiteHosts, Status, Uplink, UplinkEvent,
};

use super::{Monitor, Publisher, PublisherLimits};
use channel::{SiteChannel, SiteObserver};
pub use config::UpstreamConfig;
use state::UpstreamState;

/// The shortest interval between two status messages.
const STATUS_EVERY: Nanos = NANOS_PER_SECOND;

/// The longest interval between two watermarks while no fragment emits rows.
const WATERMARK_EVERY: Nanos = NANOS_PER_SECOND / 2;

/// The interval of heartbeats until the other monitor sets another one.
const HEARTBEAT: Nanos = NANOS_PER_SECOND / 20;

/// Maximum bytes of the rows of a relation of the site.
const RELATION_BYTES_MAX: usize = 512 << 20;

/// Maximum number of rows that wait for the next heartbeat.
const PENDING_MAX: usize = 1 << 16;

/// The pause before a refused fragment is tried again.
const RETRY_EVERY: Nanos = NANOS_PER_SECOND;

/// Maximum number of ended channels whose tallies are sent.
const ENDED_MAX: usize = 64;

/// See the module's documentation.
pub struct Upstream {
    uplink: Uplink,
    /// The number of the other monitor.
    monitor: Option<u64>,
    heartbeat: Nanos,
    channels: BTreeMap<ChannelId, SiteChannel>,
    /// The tallies of channels that have ended.
    ended: Vec<ChannelTally>,
    /// The last watermark that was sent.
    watermark: Nanos,
    /// When rows, and when the status were sent.
    sent_at: Nanos,
    status_at: Nanos,
    /// The capabilities and the hosts of the site as last sent.
    capabilities: Vec<u8>,
    hosts: Option<SiteHosts>,
    /// Fragments that could not be started, with the time of the next attempt.
    refused: BTreeMap<ChannelId, (Vec<u8>, Nanos)>,
    state: UpstreamState,
    /// The reasons for the missing connection that were logged.
    failures: LoggedReasons,
    /// Actions of the other monitor's alerts were refused.
    has_refused_actions: bool,
}

impl Upstream {
    /// Serves the monitor that `uplink` connects to.
    fn new(uplink: Uplink, state: UpstreamState) -> Upstream {
        Upstream {
            uplink,
            monitor: None,
            heartbeat: HEARTBEAT,
            channels: BTreeMap::new(),
            ended: Vec::new(),
            watermark: Nanos::MIN,
            sent_at: Nanos::MIN,
            status_at: Nanos::MIN,
            capabilities: Vec::new(),
            hosts: None,
            refused: BTreeMap::new(),
            state,
            failures: LoggedReasons::default(),
            has_refused_actions: false,
        }
    }

    /// Carries out what the other monitor has ordered, and sends what is due. To be called after
    /// each advance of the monitor's time.
    pub fn advance(&mut self, monitor: &mut Monitor, now: Nanos) {
        while let Some(event) = self.uplink.receive(Duration::ZERO) {
            self.apply(event, monitor, now);
        }
        self.retry(monitor, now);
        let is_due = |at: Nanos, every: Nanos| now < at || now.saturating_sub(at) >= every;
        let pending: usize = self.channels.values().map(SiteChannel::pending).sum();
        if is_due(self.sent_at, self.heartbeat) || pending > PENDING_MAX {
            self.sent_at = now;
            self.send_rows(monitor, now);
        }
        if is_due(self.status_at, STATUS_EVERY.max(self.heartbeat)) {
            self.status_at = now;
            self.send_status(monitor);
        }
        monitor.step_by(self.sent_at.saturating_add(self.heartbeat));
    }

    /// Writes how many requests were received to disk: to be called before the agents of the site
    /// receive acknowledgements for them.
    pub fn write_tallies(&mut self, monitor: &Monitor) {
        let tallies: Vec<ChannelTally> = self.tallies(monitor).collect();
        self.state.write(tallies);
    }

    /// Sends what has arrived, and announces the end, unless a standby of this monitor takes over;
    /// waits some seconds for the acknowledgement.
    pub fn close(mut self, monitor: &mut Monitor, now: Nanos) {
        self.send_rows(monitor, now);
        self.send_status(monitor);
        self.write_tallies(monitor);
        if !monitor.has_standbys {
            self.uplink.send(AgentMessage::Watermark(Nanos::MAX));
        }
        if !self.uplink.close() {
            warn!("the upstream monitor has not acknowledged all messages; their rows are lost");
        }
    }

    fn apply(&mut self, event: UplinkEvent, monitor: &mut Monitor, now: Nanos) {
        match event {
            UplinkEvent::Welcome {
                channels,
                heartbeat,
            } => {
                self.heartbeat = heartbeat;
                let state = self.uplink.state();
                let before = std::mem::replace(&mut self.monitor, state.monitor);
                let is_other = before.is_some() && before != self.monitor;
                let ended: Vec<ChannelId> = self.channels.keys().copied().collect();
                for channel in ended {
                    if is_other || !channels.contains(&channel) {
                        self.stop(channel, monitor);
                    }
                }
                self.refused
                    .retain(|channel, _| !is_other && channels.contains(channel));
                if is_other {
                    self.ended.clear();
                }
                // A monitor that was restarted has not received them.
                self.hosts = None;
                self.state.welcomed(state.leader);
                self.failures.clear();
                info!("connected to the upstream monitor");
            }
            UplinkEvent::Message(MonitorMessage::Start(start)) => {
                let channel = ChannelId(start.channel);
                self.refused.remove(&channel);
                if !self.channels.contains_key(&channel)
                    && let Err(why) = self.start_or_retry(channel, start.fragment, monitor, now)
                {
                    self.uplink.send(AgentMessage::failed(channel, why));
                }
            }
            UplinkEvent::Message(MonitorMessage::Stop(channel)) => {
                self.refused.remove(&ChannelId(channel));
                self.stop(ChannelId(channel), monitor);
            }
            UplinkEvent::Message(MonitorMessage::HeartbeatInterval(every)) => {
                self.heartbeat = every;
            }
            UplinkEvent::Message(MonitorMessage::Actions(actions)) => {
                if !actions.actions.is_empty() && !self.has_refused_actions {
                    self.has_refused_actions = true;
                    let why = "actions of the upstream monitor's alerts are not carried out on the \
                               hosts of a site; define these alerts at the monitor of the site";
                    warn!("{why}");
                    monitor.note(now, "actions_failed", why);
                }
            }
            // Handled by the uplink.
            UplinkEvent::Message(
                MonitorMessage::Welcome(_) | MonitorMessage::Ack(_) | MonitorMessage::Pong(_),
            ) => {}
            UplinkEvent::Disconnected(why) => {
                if self.failures.add(&why) {
                    warn!(reason = %why, "not connected to the upstream monitor, retrying");
                }
            }
        }
    }

    /// Runs a fragment at the agents of the site.
    fn start(
        &mut self,
        channel: ChannelId,
        fragment: &[u8],
        monitor: &mut Monitor,
        now: Nanos,
    ) -> Result<(), String> {
        let plan = wire::decode(fragment, &monitor.catalog()).map_err(|e| e.to_string())?;
        let plan = Arc::new(plan);
        let observer = SiteObserver::of(&plan);
        let limits = PublisherLimits {
            clients_max: 0,
            backlog_bytes_max: 0,
            snapshot_bytes_max: match plan.shape {
                // The rows are passed on, and are not stored.
                Shape::Stream => 0,
                Shape::Relation => RELATION_BYTES_MAX,
            },
            rows_per_second_max: usize::MAX,
        };
        let answer = plans::answer(&plan, InstantUnit::Nanoseconds, false, false);
        let publisher = Publisher::new(answer, limits, Vec::new());
        let publisher = publisher.observed_by(Box::new(observer.clone()));
        let name = format!("upstream {}", channel.0);
        let cut = relayed(plan.clone());
        let query = monitor.start(&name, &cut, false, publisher, now);
        let query = query.map_err(|error| error.to_string())?;
        debug!(
            channel = channel.0,
            "the fragment is started at the agents of the site"
        );
        self.uplink.set_counts(channel, plan.requests_column());
        // A channel that is started again continues its tally.
        let ended = self.ended.iter().position(|t| t.channel == channel.0);
        let tally = ended.map(|at| self.ended.remove(at));
        let site = SiteChannel::new(plan, query, observer, now, tally);
        self.channels.insert(channel, site);
        Ok(())
    }

    /// Runs a fragment, or tries again later: agents may connect with the streams that it names.
    fn start_or_retry(
        &mut self,
        channel: ChannelId,
        fragment: Vec<u8>,
        monitor: &mut Monitor,
        now: Nanos,
    ) -> Result<(), String> {
        let started = self.start(channel, &fragment, monitor, now);
        if started.is_err() {
            let next = now.saturating_add(RETRY_EVERY);
            self.refused.insert(channel, (fragment, next));
        }
        started
    }

    /// Tries again to start refused fragments.
    fn retry(&mut self, monitor: &mut Monitor, now: Nanos) {
        let refused = self.refused.iter();
        let due = refused.filter(|(_, (_, next))| *next <= now);
        let due: Vec<ChannelId> = due.map(|(channel, _)| *channel).collect();
        for channel in due {
            let Some((fragment, _)) = self.refused.remove(&channel) else {
                continue;
            };
            // The other monitor has received the reason.
            let _ = self.start_or_retry(channel, fragment, monitor, now);
        }
    }

    fn stop(&mut self, channel: ChannelId, monitor: &mut Monitor) {
        let Some(site) = self.channels.remove(&channel) else {
            return;
        };
        self.ended
            .push(site.tally(channel, monitor.requests_received(site.query())));
        monitor.stop(site.query(), "the upstream monitor has stopped it");
        if self.ended.len() > ENDED_MAX {
            self.ended.remove(0);
        }
    }

    /// Sends the rows up to the watermark, then the watermark.
    fn send_rows(&mut self, monitor: &mut Monitor, now: Nanos) {
        let watermark = monitor.watermark();
        let mut messages = Vec::new();
        let mut failed = Vec::new();
        let timeout = monitor.options.exclude_after;
        for (&channel, site) in &mut self.channels {
            let is_ready = !site.has_started() && monitor.is_run_by_all(site.query());
            let start = (is_ready, timeout);
            if let Err(why) = site.take(channel, (watermark, now), start, &mut messages) {
                messages.push(AgentMessage::failed(channel, why));
                failed.push(channel);
            }
        }
        // Between the ends of slides no watermark is needed.
        let next = self.watermark.saturating_add(1);
        let emits = |site: &SiteChannel| site.plan().emitted_by(next) <= watermark;
        let is_due = watermark.saturating_sub(self.watermark) >= WATERMARK_EVERY;
        if watermark > self.watermark && (is_due || self.channels.values().any(emits)) {
            self.watermark = watermark;
            let of_channels = self.channels.iter_mut();
            let of_channels = of_channels.filter_map(|(id, site)| site.take_hosts(*id));
            let hosts = SiteHosts {
                channels: of_channels.collect(),
                ..monitor.site_hosts()
            };
            if self.hosts.as_ref() != Some(&hosts) {
                // What the other monitor knows survives a restart.
                self.state.write_hosts(monitor.present_hosts());
                messages.push(AgentMessage::Hosts(hosts.clone()));
                self.hosts = Some(hosts);
            }
            messages.push(AgentMessage::Watermark(watermark));
        }
        if !messages.is_empty() {
            self.uplink.send_all(messages);
        }
        for channel in failed {
            self.stop(channel, monitor);
        }
        for (channel, requests) in self.uplink.dropped() {
            if let Some(site) = self.channels.get_mut(&channel) {
                site.lose(requests);
            }
        }
        for channel in self.uplink.incomplete() {
            if let Some(site) = self.channels.get_mut(&channel)
                && let Some(running) = monitor.query_mut(site.query())
                && let Some(content) = running.publisher.content()
            {
                site.resend(&content);
            }
        }
    }

    fn send_status(&mut self, monitor: &Monitor) {
        let capabilities = monitor.capabilities().encode();
        if capabilities != self.capabilities {
            self.capabilities.clone_from(&capabilities);
            self.uplink.send(AgentMessage::Capabilities(capabilities));
        }
        self.state.write_hosts(monitor.present_hosts());
        let state = self.uplink.state();
        if state.has_acks {
            self.state.acknowledged();
        }
        let (memory, cpu_ns) = process_usage("self");
        let (clock, own_time) = (self.uplink.clock(), wall_clock());
        let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let mut status = Status {
            cpu_ns: cpu_ns.unwrap_or(0),
            offset_ns: clock.offset_ns(own_time),
            offset_error_ns: clock.error_ns(own_time),
            memory_bytes: memory.unwrap_or(0),
            waiting_bytes: bytes(state.waiting.bytes),
            spooled_bytes: bytes(state.waiting.spooled_bytes),
            ..monitor.status_of_agents()
        };
        let costs = self.channels.iter();
        let bytes_out = |channel: &ChannelId| self.uplink.bytes_out(*channel);
        status.channels = costs
            .map(|(id, site)| site.cost(*id, bytes_out(id)))
            .collect();
        status.tallies = self.tallies(monitor).collect();
        self.uplink.send(AgentMessage::Status(status));
    }

    fn tallies(&self, monitor: &Monitor) -> impl Iterator<Item = ChannelTally> {
        let present = self.channels.iter().map(|(id, site)| {
            let received = monitor.requests_received(site.query());
            site.tally(*id, received)
        });
        self.ended.iter().copied().chain(present)
    }
}

/// A query whose result is what the agents send for this fragment.
fn relayed(plan: Arc<Plan>) -> Cut {
    let fragment = Fragment {
        plan: (*plan).clone(),
        // The other monitor fills its own.
        intake: Vec::new(),
    };
    let mut cut = Cut {
        strategy: PlacementStrategy::Agent,
        candidates: Vec::new(),
        fragments: vec![fragment],
        monitor: (*plan).clone(),
        reasons: Vec::new(),
    };
    let source = cut.declaration(0, &Cut::source_name(0));
    cut.monitor = (*Plan::source(source)).clone();
    cut
}
