//! [`Completeness`]: how much of the fleet stands behind a result.

use weir_model::Nanos;

/// How complete the results of a query are up to an instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completeness {
    /// The instant up to which results are out.
    pub at: Nanos,
    /// Hosts that the monitor knows.
    pub hosts: u64,
    /// Those of them whose rows up to the instant are in.
    pub hosts_heard: u64,
    /// Those at which a part of the query failed.
    pub hosts_failed: u64,
    /// Requests that were lost at the tap or on the way, since the query's start.
    pub rows_lost: u64,
    /// Requests that came too late, since the query's start.
    pub rows_late: u64,
    /// Requests that hosts which are away now have reported and not delivered. They are lost, or come
    /// when the hosts do.
    pub rows_away: u64,
    /// From when on every host that is heard has seen everything.
    pub complete_from: Nanos,
    /// The query lost what it held when the monitor was restarted at this instant, because it looks
    /// back farther than agents hold their rows.
    pub anew_from: Option<Nanos>,
}

impl Completeness {
    /// Hosts that others did not wait for, or that do not run the query yet.
    pub fn hosts_missing(&self) -> u64 {
        self.hosts - self.hosts_heard
    }

    /// True if `other` tells the same but for the instant.
    pub fn is_like(&self, other: &Completeness) -> bool {
        let then = Completeness {
            at: self.at,
            ..other.clone()
        };
        *self == then
    }

    /// As a note for whoever watches.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "at": self.at,
            "hosts": self.hosts,
            "hosts_heard": self.hosts_heard,
            "hosts_missing": self.hosts_missing(),
            "hosts_failed": self.hosts_failed,
            "rows_lost": self.rows_lost,
            "rows_late": self.rows_late,
            "rows_away": self.rows_away,
            "complete_from": self.complete_from,
            "anew_from": self.anew_from,
        })
    }
}
