//! [`UpdateNote`]: the completeness of results, as the monitor sends it with the rows.

use serde::Deserialize;
use weir_model::Nanos;
use weir_sink::time;

/// The note with the rows of a watched query. Fields that are not sent are `None`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct UpdateNote {
    /// The watermark of the results, ns since the epoch.
    pub at: Option<Nanos>,
    /// Rows that were emitted earlier are void: this number of rows of the relation follows.
    pub reset: Option<u64>,
    /// No instant is partial in the rows received so far.
    pub whole: bool,
    /// Hosts that the monitor knows.
    pub hosts: Option<u64>,
    /// The hosts whose rows have arrived.
    pub hosts_responded: Option<u64>,
    /// The hosts at which a fragment of the query failed.
    pub hosts_failed: Option<u64>,
    /// Requests that were lost.
    pub rows_lost: Option<u64>,
    /// Requests that were late.
    pub rows_late: Option<u64>,
    /// Requests of hosts that are away, which may still arrive.
    pub rows_away: Option<u64>,
    /// Rows that the query had emitted before those with this note.
    pub rows_before: Option<u64>,
    /// Rows that were not sent, because the client was too slow or disconnected.
    pub skipped: Option<u64>,
    /// The instant from which all hosts that are included deliver all rows.
    pub complete_from: Option<Nanos>,
    /// The query lost its state then, when the monitor restarted.
    pub restarted_at: Option<Nanos>,
    /// Rows that exceeded the monitor's limit of a snapshot.
    pub omitted: Option<u64>,
    /// The query has ended, with this reason.
    pub ended: Option<String>,
}

impl UpdateNote {
    /// The note in a monitor's JSON; fields that are not valid are omitted.
    pub fn from_json(json: &serde_json::Value) -> UpdateNote {
        UpdateNote::deserialize(json).unwrap_or_default()
    }

    /// The note updated by the next one.
    pub fn updated_by(self, next: UpdateNote) -> UpdateNote {
        UpdateNote {
            at: next.at.or(self.at),
            reset: next.reset,
            whole: next.whole,
            hosts: next.hosts.or(self.hosts),
            hosts_responded: next.hosts_responded.or(self.hosts_responded),
            hosts_failed: next.hosts_failed.or(self.hosts_failed),
            rows_lost: next.rows_lost.or(self.rows_lost),
            rows_late: next.rows_late.or(self.rows_late),
            rows_away: next.rows_away.or(self.rows_away),
            rows_before: next.rows_before,
            skipped: next.skipped.or(self.skipped),
            complete_from: next.complete_from.or(self.complete_from),
            restarted_at: next.restarted_at.or(self.restarted_at),
            omitted: next.omitted.or(self.omitted),
            ended: next.ended.or(self.ended),
        }
    }

    /// True if all hosts are included and all rows have arrived.
    pub fn is_complete(&self) -> bool {
        let none = |count: Option<u64>| count.unwrap_or(0) == 0;
        self.hosts_responded == self.hosts
            && none(self.hosts_failed)
            && none(self.rows_lost)
            && none(self.rows_late)
            && none(self.rows_away)
            && none(self.skipped)
            && none(self.omitted)
            && self.restarted_at.is_none()
    }

    /// The completeness as a line of text; `None` before the monitor has sent a note.
    pub fn sentence(&self) -> Option<String> {
        let (responded, hosts) = (self.hosts_responded?, self.hosts?);
        let mut parts = vec![format!("{responded} of {hosts} hosts responded")];
        let counts = [
            (self.hosts_failed, "hosts at which the query failed"),
            (self.rows_lost, "requests lost"),
            (self.rows_late, "requests late"),
            (self.rows_away, "requests of disconnected hosts"),
            (
                self.skipped,
                "rows skipped because the client read too slowly",
            ),
            (self.omitted, "rows omitted from the snapshot"),
        ];
        for (count, what) in counts {
            if let Some(count) = count.filter(|c| *c > 0) {
                parts.push(format!("{count} {what}"));
            }
        }
        if self.is_complete() {
            parts.push("no requests lost or late".to_owned());
        }
        if let Some(from) = self.complete_from.filter(|from| *from > 0) {
            parts.push(format!("complete from {}", time::timestamp(from)));
        }
        if let Some(from) = self.restarted_at {
            let from = time::timestamp(from);
            parts.push(format!("restarted at {from} with the monitor"));
        }
        Some(parts.join(", "))
    }
}

/// Counts the missed rows of a query, over all connections of its client.
#[derive(Debug, Default)]
pub struct MissedRows {
    /// The number of rows that the query has emitted up to the last received ones.
    position: Option<u64>,
    /// A snapshot is being received; its rows are not counted as emitted by the query.
    snapshot: bool,
    rows: u64,
}

impl MissedRows {
    /// Processes a note that was received with this number of rows.
    pub fn count(&mut self, note: &UpdateNote, rows: u64) {
        if let Some(before) = note.rows_before {
            // A monitor that was restarted counts from 0.
            let missed = self.position.map_or(0, |at| before.saturating_sub(at));
            self.rows += missed;
            self.position = Some(before);
            self.snapshot = note.reset.is_some();
        }
        if let (Some(position), false) = (&mut self.position, self.snapshot) {
            *position += rows;
        }
    }

    /// The number of rows that were missed so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn missing_rows_are_reported() {
        let note = UpdateNote::from_json(
            &json!({"hosts": 3, "hosts_responded": 2, "rows_lost": 7, "rows_late": 0}),
        );
        assert!(!note.is_complete());
        assert_eq!(
            note.sentence().unwrap(),
            "2 of 3 hosts responded, 7 requests lost"
        );
        let whole =
            UpdateNote::from_json(&json!({"hosts": 3, "hosts_responded": 3, "unknown": [1]}));
        assert_eq!(
            whole.sentence().unwrap(),
            "3 of 3 hosts responded, no requests lost or late"
        );
        assert_eq!(UpdateNote::default().sentence(), None);
    }

    #[test]
    fn missed_rows_are_counted_over_all_connections() {
        let mut missed = MissedRows::default();
        let mut count = |note: serde_json::Value, rows| {
            missed.count(&UpdateNote::from_json(&note), rows);
            missed.rows()
        };
        // Rows before the first connection were not missed.
        assert_eq!(count(json!({"rows_before": 100}), 0), 0);
        assert_eq!(count(json!({"rows_before": 100}), 20), 0);
        // The same message continues.
        assert_eq!(count(json!({"part": 2}), 5), 0);
        // 7 rows were skipped on the same connection.
        assert_eq!(count(json!({"rows_before": 132}), 10), 7);
        // Another connection, 1,000 rows later.
        assert_eq!(count(json!({"rows_before": 1142}), 0), 1007);
        assert_eq!(count(json!({"rows_before": 1142}), 8), 1007);
        // The monitor was restarted.
        assert_eq!(count(json!({"rows_before": 0}), 3), 1007);
        assert_eq!(count(json!({"rows_before": 5}), 1), 1009);
        // A snapshot of a relation replaces the rows that were emitted before it.
        assert_eq!(count(json!({"rows_before": 16, "reset": 40}), 30), 1019);
        assert_eq!(count(json!({"part": 2}), 10), 1019);
        assert_eq!(count(json!({"rows_before": 16}), 1), 1019);
    }

    #[test]
    fn later_notes_add_to_earlier_ones() {
        let first = UpdateNote::from_json(&json!({"hosts": 3, "hosts_responded": 3, "reset": 4}));
        let then = first.updated_by(UpdateNote::from_json(
            &json!({"rows_lost": 1, "whole": true}),
        ));
        assert_eq!(
            (then.hosts, then.rows_lost, then.reset),
            (Some(3), Some(1), None)
        );
    }
}
