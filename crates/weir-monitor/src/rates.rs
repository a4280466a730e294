//! What the agents say that their fragments cost, as rates by which queries are cut.
//!
//! Counters of the last seconds are kept by agent, and what they grew by is a rate. A rate of the
//! fleet is the mean over the agents that are connected. Processor time is known of an agent's whole
//! process: how it compares with what is estimated for all that runs there is how much faster or
//! slower than the machine of docs/costs.md the hosts are.

use std::collections::VecDeque;

use weir_model::{NANOS_PER_SECOND, Nanos};
use weir_query::place::fleet::{CutOptions, Measured, Rates, cost};
use weir_tap::live;
use weir_wire::{ChannelCost, ChannelId, Status};

use super::Monitor;
use super::agents::Agent;
use super::channels::Channel;

/// Readings that are kept of an agent.
const READINGS_MAX: usize = 16;

/// Readings that are closer together tell no rate; the newest of them is kept.
const APART: Nanos = NANOS_PER_SECOND / 2;

/// An agent that is estimated to need less of a processor says nothing of how fast it is: what it
/// takes to be there outweighs what it does.
const BUSY_NS: f64 = 1e7;

/// Hosts that are idle now are taken to have more to do soon: a query stays.
const REQUESTS_MIN: f64 = 1_000.0;

/// How much faster or slower a host can be.
const CPU_FACTOR: [f64; 2] = [0.1, 10.0];

/// The counters of an agent's process over the last seconds.
#[derive(Clone, Debug, Default)]
pub struct Readings(VecDeque<Reading>);

#[derive(Clone, Debug)]
struct Reading {
    at: Nanos,
    cpu_ns: i64,
    requests_per_second: f64,
    /// By number of the channel.
    channels: Vec<ChannelCost>,
}

/// What a fragment costs at an agent, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Pace {
    rows_in: f64,
    rows_out: f64,
    bytes_out: f64,
}

impl Readings {
    /// Takes in what an agent says of itself. Channels that `runs` does not know are left out.
    pub fn take(&mut self, status: &Status, runs: impl Fn(ChannelId) -> bool, now: Nanos) {
        let channels = status.channels.iter().filter(|cost| runs(cost.channel));
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

    /// Requests that the host finishes in a second.
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

    /// What a fragment costs since it runs.
    fn pace(&self, channel: ChannelId) -> Option<Pace> {
        let of = |reading: &Reading| {
            let costs = &reading.channels;
            let at = costs.binary_search_by_key(&channel, |cost| cost.channel);
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

/// From one reading to another, if that is long enough for a rate.
fn seconds(first: &Reading, last: &Reading) -> Option<f64> {
    let span = last.at.saturating_sub(first.at);
    (span >= APART).then(|| span as f64 / NANOS_PER_SECOND as f64)
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

impl Monitor {
    /// How much happens at the agents that are connected, and what fragments cost that run there.
    pub fn rates(&self) -> Rates {
        let agents: Vec<&Agent> = self
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
            capabilities: live::capabilities(),
            ..CutOptions::default()
        };
        options.rates.cpu_factor = self.cpu_factor(&agents, &options);
        options.rates
    }

    /// What each fragment costs, the mean over the agents that told of it.
    fn measured(&self, agents: &[&Agent]) -> Vec<Measured> {
        let of = |channel: &Channel| {
            let paces = agents.iter().filter_map(|a| a.readings.pace(channel.id));
            let paces: Vec<Pace> = paces.collect();
            let mean = |rate: fn(&Pace) -> f64| mean(&paces.iter().map(rate).collect::<Vec<_>>());
            Some(Measured {
                plan: channel.fragment.plan.clone(),
                rows_in: mean(|pace| pace.rows_in)?,
                rows_out: mean(|pace| pace.rows_out)?,
                bytes_out: mean(|pace| pace.bytes_out)?,
                cpu_ns: None,
            })
        };
        self.channels.iter().filter_map(of).collect()
    }

    /// How long the agents take for what is estimated to take 1.
    fn cpu_factor(&self, agents: &[&Agent], options: &CutOptions) -> f64 {
        // The same for all agents.
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
