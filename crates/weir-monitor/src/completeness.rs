//! [`FleetCompleteness`]: the share of the fleet that a result includes.

use weir_model::Nanos;
use weir_wire::ChannelId;

use super::agents::{AgentId, AgentState, Counted};

/// The completeness of a query's results up to an instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetCompleteness {
    /// The watermark of the results.
    pub at: Nanos,
    /// Hosts that the monitor knows.
    pub hosts: u64,
    /// The hosts whose rows up to the watermark have arrived.
    pub hosts_responded: u64,
    /// The hosts at which a fragment of the query failed.
    pub hosts_failed: u64,
    /// Requests that were lost at the tap or in transit since the query's start.
    pub rows_lost: u64,
    /// Requests that were late, since the query's start.
    pub rows_late: u64,
    /// Requests that were reported, but not delivered, by hosts that are away now. They are lost,
    /// or arrive when the hosts reconnect.
    pub rows_away: u64,
    /// The instant from which all hosts that are included deliver all rows.
    pub complete_from: Nanos,
    /// The query lost its state when the monitor restarted at this instant, because its windows are
    /// longer than agents store their rows.
    pub restarted_at: Option<Nanos>,
}

/// The hosts of a fleet that have not ended.
#[derive(Clone, Debug, Default)]
pub struct HostCounts {
    /// All of them, those of sites included.
    pub known: u64,
    /// The connected agents that are not the monitors of sites.
    pub up: u64,
    /// The agents that are the monitors of sites.
    pub sites: Vec<AgentId>,
    /// The hosts of connected sites that responded.
    pub of_sites: u64,
}

/// The sites of a fleet in the results of a channel.
#[derive(Clone, Copy, Debug, Default)]
pub struct SitesInChannel {
    /// The monitors of sites that are counted as agents that run the channel.
    pub live: u64,
    /// Those that are counted as agents at which it failed.
    pub failed: u64,
    /// The hosts whose rows are in the results.
    pub responded: u64,
    /// The hosts at which the channel failed.
    pub hosts_failed: u64,
    /// Requests that were reported, but not delivered, by hosts that are away now.
    pub requests_away: u64,
}

impl SitesInChannel {
    /// Counts these agents, the monitors of sites.
    pub fn of<'a>(
        channel: ChannelId,
        sites: impl Iterator<Item = &'a AgentState>,
    ) -> SitesInChannel {
        let mut counts = SitesInChannel::default();
        for agent in sites {
            let (Some(site), Some(present)) = (&agent.site, agent.site_in(channel)) else {
                continue;
            };
            if let Some(run) = agent.runs.get(&channel) {
                let is_live = run.is_running() && agent.counted == Some(Counted::Live);
                counts.live += u64::from(is_live);
                counts.failed += u64::from(run.failed);
            }
            counts.hosts_failed += u64::from(present.failed);
            let away = present.requests_away;
            counts.requests_away = counts.requests_away.saturating_add(away);
            if agent.session.is_some() {
                counts.responded += u64::from(site.hosts().saturating_sub(present.missing));
            }
        }
        counts
    }
}

impl FleetCompleteness {
    /// Hosts that were excluded, or that do not run the query yet.
    pub fn hosts_missing(&self) -> u64 {
        self.hosts.saturating_sub(self.hosts_responded)
    }

    /// True if `other` differs in the watermark only.
    pub fn is_like(&self, other: &FleetCompleteness) -> bool {
        let then = FleetCompleteness {
            at: self.at,
            ..other.clone()
        };
        *self == then
    }

    /// The note for the clients.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "at": self.at,
            "hosts": self.hosts,
            "hosts_responded": self.hosts_responded,
            "hosts_missing": self.hosts_missing(),
            "hosts_failed": self.hosts_failed,
            "rows_lost": self.rows_lost,
            "rows_late": self.rows_late,
            "rows_away": self.rows_away,
            "complete_from": self.complete_from,
            "restarted_at": self.restarted_at,
        })
    }
}
