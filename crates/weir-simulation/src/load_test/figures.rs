//! [`MeasuredLoad`]: the figures of a load test, as text and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};
use weir_model::Nanos;

use weir_monitor::client::UpdateNote;

/// The figures of a load test.
#[derive(Clone, Debug, Default)]
pub struct MeasuredLoad {
    /// Agents requested, and those connected at the end.
    pub agents: usize,
    /// See [`MeasuredLoad::agents`].
    pub connected: u64,
    /// Connections that were rejected or broke.
    pub failures: u64,
    /// Queries, and their fragments on all agents.
    pub queries: usize,
    /// See [`MeasuredLoad::queries`].
    pub fragments: u64,
    /// The duration of the measurement, in seconds.
    pub seconds: f64,
    /// Events that agents generated meanwhile.
    pub events: u64,
    /// Rows that their fragments emitted.
    pub rows_emitted: u64,
    /// Rows that the monitor acknowledged.
    pub rows_acked: u64,
    /// Messages that agents sent.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Rows that clients received.
    pub results: u64,
    /// The greatest delay of an agent's messages relative to its clock.
    pub behind_ns_max: u64,
    /// Processor time of the monitor, and of the agents together, meanwhile.
    pub monitor_cpu_ns: Option<Nanos>,
    /// See [`MeasuredLoad::monitor_cpu_ns`].
    pub own_cpu_ns: Option<Nanos>,
    /// Memory of the monitor: without agents, with them, and at the end with the queries.
    pub memory_bytes: [Option<i64>; 3],
    /// From results' instants to their arrival, in ns, the smallest first.
    pub delays: Vec<Nanos>,
    /// The completeness of the results.
    pub completeness: UpdateNote,
}

impl MeasuredLoad {
    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.seconds
    }

    /// Memory of the monitor for each agent, and for each query.
    fn memory_each(&self) -> (Option<i64>, Option<i64>) {
        let [alone, agents, queries] = self.memory_bytes;
        let each = |from: Option<i64>, to: Option<i64>, count: usize| match count {
            0 => None,
            count => Some((to? - from?) / count as i64),
        };
        (
            each(alone, agents, self.agents),
            each(agents, queries, self.queries),
        )
    }

    /// Processors that the monitor kept busy.
    fn monitor_processors(&self) -> Option<f64> {
        Some(self.monitor_cpu_ns? as f64 / 1e9 / self.seconds)
    }

    /// The delay of this quantile of the results, in milliseconds.
    fn delay_ms(&self, share: f64) -> Option<f64> {
        let last = self.delays.len().checked_sub(1)?;
        let at = (last as f64 * share).round() as usize;
        Some(self.delays[at] as f64 / 1e6)
    }

    /// One object.
    pub fn json(&self) -> Value {
        let (per_agent, per_query) = self.memory_each();
        json!({
            "agents": self.agents,
            "connected": self.connected,
            "failures": self.failures,
            "queries": self.queries,
            "fragments": self.fragments,
            "seconds": self.seconds,
            "events_per_second": self.per_second(self.events),
            "rows_per_second": self.per_second(self.rows_emitted),
            "rows_acked_per_second": self.per_second(self.rows_acked),
            "messages_per_second": self.per_second(self.messages),
            "bytes_per_second": self.per_second(self.bytes),
            "results_per_second": self.per_second(self.results),
            "agents_behind_ms_max": self.behind_ns_max as f64 / 1e6,
            "monitor_processors": self.monitor_processors(),
            "simulation_processors": self.own_cpu_ns.map(|ns| ns as f64 / 1e9 / self.seconds),
            "monitor_memory_bytes": self.memory_bytes[2],
            "memory_per_agent_bytes": per_agent,
            "memory_per_query_bytes": per_query,
            "delay_ms": {
                "results": self.delays.len(),
                "p50": self.delay_ms(0.5),
                "p99": self.delay_ms(0.99),
                "max": self.delay_ms(1.0),
            },
            "hosts": self.completeness.hosts,
            "hosts_responded": self.completeness.hosts_responded,
            "rows_lost": self.completeness.rows_lost,
            "rows_late": self.completeness.rows_late,
        })
    }

    /// A line for each figure.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name:22} {value}");
        };
        let count = |n: f64| format!("{n:.0}");
        let bytes =
            |n: Option<i64>| n.map_or("?".to_owned(), |n| format!("{:.1} KiB", n as f64 / 1024.0));
        let processors =
            |n: Option<f64>| n.map_or("?".to_owned(), |n| format!("{n:.2} processors"));
        let ms = |n: Option<f64>| n.map_or("?".to_owned(), |n| format!("{n:.1} ms"));
        line(
            "agents",
            format!(
                "{} of {} connected, {} failures",
                self.connected, self.agents, self.failures
            ),
        );
        line(
            "queries",
            format!("{}, {} fragments on agents", self.queries, self.fragments),
        );
        line("events/s", count(self.per_second(self.events)));
        line("rows/s", count(self.per_second(self.rows_emitted)));
        line("rows/s acked", count(self.per_second(self.rows_acked)));
        line("messages/s", count(self.per_second(self.messages)));
        line("bytes/s", count(self.per_second(self.bytes)));
        line("results/s", count(self.per_second(self.results)));
        line("monitor", processors(self.monitor_processors()));
        let own = self.own_cpu_ns.map(|ns| ns as f64 / 1e9 / self.seconds);
        line("agents together", processors(own));
        let (per_agent, per_query) = self.memory_each();
        line("monitor's memory", bytes(self.memory_bytes[2]));
        line("memory per agent", bytes(per_agent));
        line("memory per query", bytes(per_query));
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| ms(self.delay_ms(share)));
        line(
            "instant to arrival",
            format!("p50 {p50}, p99 {p99}, max {max}"),
        );
        line("agents behind", ms(Some(self.behind_ns_max as f64 / 1e6)));
        if let Some(sentence) = self.completeness.sentence() {
            line("completeness", sentence);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_by_second_agent_and_query() {
        let measured = MeasuredLoad {
            agents: 10,
            queries: 2,
            seconds: 5.0,
            rows_emitted: 50,
            memory_bytes: [Some(1_000), Some(21_000), Some(31_000)],
            delays: (1..=100).map(|ms| ms * 1_000_000).collect(),
            ..MeasuredLoad::default()
        };
        let json = measured.json();
        assert_eq!(json["rows_per_second"], 10.0);
        assert_eq!(json["memory_per_agent_bytes"], 2_000);
        assert_eq!(json["memory_per_query_bytes"], 5_000);
        assert_eq!(json["delay_ms"]["p99"], 99.0);
        assert_eq!(json["delay_ms"]["max"], 100.0);
        assert!(measured.text().contains("p99 99.0 ms"));
    }
}
