//! [`ReplayReport`]: what was replayed, and how faithfully, as text and as JSON.

use std::fmt::Write;

use serde::Serialize;

use super::fidelity::{Depth, Fidelity, Spread};
use super::plan::{LeftOut, Pacing};
use super::player::PlayCounts;
use crate::report::table;

/// The report of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayReport {
    /// The recording.
    pub recording: String,
    /// The disk.
    pub device: String,
    /// When requests were issued.
    pub pacing: Pacing,
    /// How much faster than recorded.
    pub speed: f64,
    /// The time that it took, in seconds.
    pub seconds: f64,
    /// The end of the recorded addresses, and the size of the device, in sectors.
    pub recorded_sectors: u64,
    /// See `recorded_sectors`.
    pub device_sectors: u64,
    /// Whether addresses were scaled.
    pub is_scaled: bool,
    /// Requests of the recording that were not replayed.
    pub left_out: LeftOut,
    /// What was issued.
    pub counts: PlayCounts,
    /// Whether it was ended by a signal; the rest was not issued.
    pub is_interrupted: bool,
    /// How faithful it was, as weir's tap has measured it.
    pub fidelity: Fidelity,
    /// What the measurement has reported, such as lost requests.
    pub notes: String,
}

impl ReplayReport {
    /// The report as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let pacing = match self.pacing {
            Pacing::Open => "open loop",
            Pacing::Closed => "closed loop",
        };
        // Writing to a text cannot fail; so below.
        let _ = writeln!(
            text,
            "{} on {}: {} requests in {:.1} s, {pacing}, speed {}{}\n",
            self.recording,
            self.device,
            self.counts.issued,
            self.seconds,
            self.speed,
            if self.is_interrupted {
                ", interrupted"
            } else {
                ""
            }
        );
        self.requests(&mut text);
        let _ = writeln!(text, "\nMeasured at the device by weir:");
        table(&self.rows(), &mut text);
        if !self.notes.is_empty() {
            let _ = writeln!(text, "\n{}", self.notes);
        }
        text
    }

    fn requests(&self, text: &mut String) {
        let found = &self.fidelity;
        let _ = match (found.missing, found.extra) {
            (0, 0) => writeln!(
                text,
                "All {} requests arrived with their operation, sector and length.",
                found.planned
            ),
            (missing, extra) => writeln!(
                text,
                "{} of {} requests arrived with their operation, sector and length; {missing} did \
                 not, and {extra} others did. The kernel merges and splits requests.",
                found.matched, found.planned
            ),
        };
        for (op, (planned, seen)) in &found.sectors {
            let _ = match planned == seen {
                true => writeln!(text, "  {op}: {planned} sectors, as planned"),
                false => writeln!(text, "  {op}: {seen} sectors, of {planned} planned"),
            };
        }
        if self.is_scaled {
            let _ = writeln!(
                text,
                "  Addresses were scaled: {} recorded sectors on {}.",
                self.recorded_sectors, self.device_sectors
            );
        }
        let left = self.left_out;
        for (count, what) in [
            (left.writes_and_flushes, "writes and flushes"),
            (left.discards_and_zeroes, "discards and writes of zeroes"),
        ] {
            if count > 0 {
                let _ = writeln!(text, "  {count} {what} were left out.");
            }
        }
        for (errno, count) in &self.counts.failed {
            let error = std::io::Error::from_raw_os_error(*errno);
            let _ = writeln!(text, "  {count} requests failed: {error}");
        }
        if self.counts.depth_reached > 0 {
            let _ = writeln!(
                text,
                "  {} times a request waited, since no more could be in flight.",
                self.counts.depth_reached
            );
        }
    }

    fn rows(&self) -> Vec<[String; 3]> {
        let found = &self.fidelity;
        let mut rows = vec![["", "RECORDED", "REPLAYED"].map(str::to_owned)];
        let mut add = |name: &str, recorded: Option<String>, seen: Option<String>| {
            if recorded.is_some() || seen.is_some() {
                let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
                rows.push([name.to_owned(), shown(recorded), shown(seen)]);
            }
        };
        let rate = |rate: Option<f64>| rate.map(|rate| format!("{rate:.1}/s"));
        add(
            "requests per second",
            rate(found.rate_planned),
            rate(found.rate_observed),
        );
        add("issue lag", None, found.issue_lag.map(spread));
        add("difference of gaps", None, found.gap_error.map(spread));
        let depths = [&found.depth_recorded, &found.depth_observed];
        let [recorded, seen] = depths.map(|depth| depth.as_ref().map(depth_text));
        add("requests in flight", recorded, seen);
        let distance = found.depth_distance;
        let distance = distance.map(|distance| format!("{distance:.3}"));
        add("  distance (0 to 1)", None, distance);
        let latencies = [found.latency_recorded, found.latency_observed];
        let [recorded, seen] = latencies.map(|latency| latency.map(spread));
        add("latency", recorded, seen);
        rows
    }
}

fn spread(values: Spread) -> String {
    let text = |ns: i64| match ns.unsigned_abs() {
        above if above >= 1_000_000_000 => format!("{:.2} s", ns as f64 / 1e9),
        above if above >= 1_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.1} us", ns as f64 / 1e3),
    };
    format!(
        "p50 {}, p99 {}, max {}",
        text(values.p50),
        text(values.p99),
        text(values.max)
    )
}

fn depth_text(depth: &Depth) -> String {
    format!(
        "mean {:.2}, p99 {}, max {}",
        depth.mean, depth.p99, depth.max
    )
}
