//! The costs of fragments that agents report, as rates for the choice of placement strategies.
//!
//! Counters of the last seconds are stored per agent; their increase is a rate. A rate of the fleet
//! is the mean over the connected agents. Processor time is known for an agent's whole process: its
//! ratio to the estimate for all fragments that run there is the speed of the hosts relative to the
//! machine of docs/costs.md.

use std::collections::{BTreeSet, VecDeque};

use weir_model::{Capabilities, Catalog, Declaration, HostState, NANOS_PER_SECOND, Nanos, Symbol};
use weir_query::engine::QueryId;
use weir_query::place::fleet::{CutOptions, MeasuredFragment, Rates, cost};
use weir_tap::live;
use weir_wire::{ChannelCost, ChannelId, SiteHosts, Status};

use super::Monitor;
use super::agents::AgentState;
use super::channels::Channel;

/// Maximum number of stored readings per agent.
const READINGS_MAX: usize = 16;

/// The minimum interval of readings for a rate; of closer ones the newest is stored.
const APART: Nanos = NANOS_PER_SECOND / 2;

/// An agent with a lower estimated processor time is ignored in the speed of hosts: its constant
/// overhead dominates.
const BUSY_NS: f64 = 1e7;

/// The minimum assumed request rate: idle hosts are expected to become busy while a query runs.
const REQUESTS_MIN: f64 = 1_000.0;

/// The range of the speed factor of a host.
const CPU_FACTOR: [f64; 2] = [0.1, 10.0];

/// The counters of an agent's process over the last seconds.
#[derive(Clone, Debug, Default)]
pub struct Readings(VecDeque<Reading>);

#[derive(Clone, Debug)]
struct Reading {
    at: Nanos,
    cpu_ns: i64,
    requests_per_second: f64,
    /// By channel number.
    channels: Vec<ChannelCost>,
}

/// The cost of a fragment at an agent, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Pace {
    rows_in: f64,
    rows_out: f64,
    bytes_out: f64,
}

impl Readings {
    /// Adds an agent's status. Channels for which `runs` is false are ignored.
    pub fn take(&mut self, status: &Status, runs: impl Fn(ChannelId) -> bool, now: Nanos) {
        let channels = status
            .channels
            .iter()
            .filter(|cost| runs(ChannelId(cost.channel)));
        let mut channels: Vec<ChannelCost> = channels.copied().collect();
        channels.sort_by_key(|cost| cost.channel);
        let reading = Reading {
            at: now,
            cpu_ns: status.cpu_ns,
            requests_per_second: status.requests_per_second,
            channels,
        };
        let before = self.0.len().checked_sub(2).map(|at| self.0[at].at);
        if before.is_some_and(|before| now.saturating_sub(before) < APART) {
            self.0.pop_back();
        }
        if self.0.len() == READINGS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(reading);
    }

    /// Requests that the host completes per second.
    fn requests_per_second(&self) -> Option<f64> {
        let rates = self.0.iter().map(|reading| reading.requests_per_second);
        let rates: Vec<f64> = rates.filter(|r| r.is_finite() && *r >= 0.0).collect();
        mean(&rates)
    }

    /// Processor time of the process, per second.
    fn cpu_ns(&self) -> Option<f64> {
        let (first, last) = (self.0.front()?, self.0.back()?);
        let seconds = seconds(first, last)?;
        Some(last.cpu_ns.saturating_sub(first.cpu_ns).max(0) as f64 / seconds)
    }

    /// The cost of a fragment since it started.
    fn pace(&self, channel: ChannelId) -> Option<Pace> {
        let of = |reading: &Reading| {
            let costs = &reading.channels;
            let at = costs.binary_search_by_key(&channel.0, |cost| cost.channel);
            at.ok().map(|at| costs[at])
        };
        let last = self.0.back()?;
        let now = of(last)?;
        let (first, then) = self
            .0
            .iter()
            .find_map(|reading| Some((reading, of(reading)?)))?;
        let seconds = seconds(first, last)?;
        let grown = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        Some(Pace {
            rows_in: grown(now.rows_in, then.rows_in),
            rows_out: grown(now.rows_out, then.rows_out),
            bytes_out: grown(now.bytes_out, then.bytes_out),
        })
    }
}

/// The interval between two readings, if it is long enough for a rate.
fn seconds(first: &Reading, last: &Reading) -> Option<f64> {
    let span = last.at.saturating_sub(first.at);
    (span >= APART).then(|| span as f64 / NANOS_PER_SECOND as f64)
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

impl Monitor {
    /// The request rate of the connected agents, and the cost of the fragments that run there.
    pub fn rates(&self) -> Rates {
        let agents: Vec<&AgentState> = self
            .agents
            .values()
            .filter(|a| a.session.is_some())
            .collect();
        let requests = agents
            .iter()
            .filter_map(|a| a.readings.requests_per_second());
        let requests: Vec<f64> = requests.collect();
        let guessed = Rates::default();
        let mut options = CutOptions {
            rates: Rates {
                hosts: agents.len().max(1) as f64,
                requests_per_second: mean(&requests)
                    .map_or(guessed.requests_per_second, |mean| mean.max(REQUESTS_MIN)),
                measured: self.measured(&agents),
                ..guessed
            },
            capabilities: self.capabilities(),
            ..CutOptions::default()
        };
        options.rates.cpu_factor = self.cpu_factor(&agents, &options);
        options.rates
    }

    /// The capabilities that all connected agents have: none if an agent has sent no capabilities,
    /// as agents of earlier versions do. Without agents, those of a host whose block layer is
    /// traced.
    pub fn capabilities(&self) -> Capabilities {
        let connected = self.agents.values().filter(|a| a.session.is_some());
        let all: Option<Vec<&Capabilities>> = connected.map(|a| a.capabilities.as_ref()).collect();
        let Some(all) = all else {
            return Capabilities::default();
        };
        let both = all
            .into_iter()
            .fold(None, |both: Option<Capabilities>, own| {
                Some(both.map_or_else(|| own.clone(), |both| both.on_both(own)))
            });
        both.unwrap_or_else(|| live::capabilities().in_a_fleet())
    }

    /// The state of all agents as that of one, for another monitor.
    pub(super) fn status_of_agents(&self) -> Status {
        let mut status = Status {
            kept_share: 1.0,
            ..Status::default()
        };
        let mut kept = 0.0;
        let connected = self.agents.values().filter(|agent| agent.session.is_some());
        for reported in connected.filter_map(|agent| agent.status.as_ref()) {
            status.requests_per_second += reported.requests_per_second;
            kept += reported.requests_per_second * reported.kept_share;
        }
        if status.requests_per_second > 0.0 {
            status.kept_share = (kept / status.requests_per_second).clamp(0.0, 1.0);
        }
        status
    }

    /// The hosts of all agents, for another monitor; those in the results of a query are not
    /// included.
    pub(super) fn site_hosts(&self) -> SiteHosts {
        let (mut hosts, mut responded) = (self.expected.len() as u64, 0);
        for agent in self.agents.values().filter(|agent| !agent.ended) {
            let of_agent = agent.site.as_ref().map(|s| (s.hosts(), s.responded()));
            let (all, of_them) = of_agent.unwrap_or((1, 1));
            hosts += u64::from(all);
            if agent.host_state() == HostState::Up {
                responded += u64::from(of_them);
            }
        }
        let number = |hosts: u64| u32::try_from(hosts).unwrap_or(u32::MAX);
        SiteHosts {
            hosts: number(hosts),
            responded: number(responded),
            ..SiteHosts::default()
        }
    }

    /// The hosts of all agents that have not ended, and those that are expected.
    pub(super) fn present_hosts(&self) -> BTreeSet<String> {
        let present = self.agents.values().filter(|agent| !agent.ended);
        let present = present.map(|agent| agent.host.as_str().to_owned());
        present.chain(self.expected.iter().cloned()).collect()
    }

    /// Counts these hosts as missing until their agents connect, or `until`.
    pub(super) fn expect_hosts(&mut self, hosts: BTreeSet<String>, until: Nanos) {
        let is_known = |host: &String| {
            let host = Symbol::get(host);
            host.is_some_and(|host| self.hosts.contains_key(&host))
        };
        self.expected = hosts.into_iter().filter(|host| !is_known(host)).collect();
        self.expected_until = until;
    }

    /// Of a query: the requests in rows that have arrived and that it has not processed, and those
    /// that are lost or late since it was started.
    pub(super) fn requests_received(&self, query: QueryId) -> (u64, u64) {
        let running = self.queries.get(&query).into_iter();
        let channels = running.flat_map(|running| &running.channels);
        let (mut waiting, mut lost) = (0u64, 0u64);
        for (id, before) in channels {
            if let Some(channel) = self.channels.get(*id) {
                waiting = waiting.saturating_add(channel.waiting.requests());
                let since = channel.account.since(*before);
                lost = lost.saturating_add(since.lost.saturating_add(since.late));
            }
        }
        (waiting, lost)
    }

    /// Whether the agents of all hosts that are connected or expected run a query, or have failed
    /// to.
    pub(super) fn is_run_by_all(&self, query: QueryId) -> bool {
        let Some(running) = self.queries.get(&query) else {
            return false;
        };
        let is_connected = |agent: &&AgentState| agent.session.is_some() && !agent.ended;
        let mut connected = self.agents.values().filter(is_connected);
        let runs = |agent: &AgentState| {
            running.channels.iter().all(|(id, _)| {
                let run = agent.runs.get(id);
                run.is_some_and(|run| run.is_running() || run.failed)
            })
        };
        self.expected.is_empty() && connected.all(runs)
    }

    /// The streams that connected agents have beside the built-in ones, such as those of probes. Of
    /// several with one name, that of the first agent is meant; agents with other columns do not
    /// answer.
    pub fn own_streams(&self) -> Vec<Declaration> {
        let builtin = Catalog::builtin();
        let connected = self.agents.values().filter(|a| a.session.is_some());
        let capabilities = connected.filter_map(|agent| agent.capabilities.as_ref());
        let mut own: Vec<Declaration> = Vec::new();
        for stream in capabilities.flat_map(|all| &all.streams) {
            let name = &stream.declaration.name;
            let mut known = own.iter().map(|known| &known.name);
            if builtin.find(name).is_none() && !known.any(|n| n.eq_ignore_ascii_case(name)) {
                own.push(stream.declaration.clone());
            }
        }
        own
    }

    /// What queries can name: the built-in sources and the streams of connected agents.
    pub fn catalog(&self) -> Catalog {
        let mut catalog = Catalog::builtin();
        catalog.declarations.extend(self.own_streams());
        catalog
    }

    /// The cost of each fragment, the mean over the agents that reported it.
    fn measured(&self, agents: &[&AgentState]) -> Vec<MeasuredFragment> {
        let of = |channel: &Channel| {
            let paces = agents.iter().filter_map(|a| a.readings.pace(channel.id));
            let paces: Vec<Pace> = paces.collect();
            let mean = |rate: fn(&Pace) -> f64| mean(&paces.iter().map(rate).collect::<Vec<_>>());
            Some(MeasuredFragment {
                plan: channel.fragment.plan.clone(),
                rows_in: mean(|pace| pace.rows_in)?,
                rows_out: mean(|pace| pace.rows_out)?,
                bytes_out: mean(|pace| pace.bytes_out)?,
                cpu_ns: None,
            })
        };
        self.channels.iter().filter_map(of).collect()
    }

    /// The ratio of the agents' processor time to the estimate.
    fn cpu_factor(&self, agents: &[&AgentState], options: &CutOptions) -> f64 {
        // The estimate is the same for all agents.
        let estimate = |c: &Channel| cost::estimated_process_ns(&c.fragment.plan, options);
        let estimates = self.channels.iter().map(|c| (c.id, estimate(c)));
        let estimates: Vec<(ChannelId, f64)> = estimates.collect();
        let (mut taken_ns, mut estimated_ns) = (0.0, 0.0);
        for agent in agents {
            let Some(cpu_ns) = agent.readings.cpu_ns() else {
                continue;
            };
            let runs = |id| agent.readings.pace(id).is_some();
            let estimates = estimates.iter().filter(|(id, _)| runs(*id));
            let estimate: f64 = estimates.map(|(_, ns)| ns).sum();
            if estimate >= BUSY_NS {
                taken_ns += cpu_ns;
                estimated_ns += estimate;
            }
        }
        match estimated_ns > 0.0 {
            true => (taken_ns / estimated_ns).clamp(CPU_FACTOR[0], CPU_FACTOR[1]),
            false => 1.0,
        }
    }
}
