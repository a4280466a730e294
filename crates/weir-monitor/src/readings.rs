//! The monitor's own costs, as rows of stream `weir`: counts of received messages and rows, memory
//! by agent and by query, and the counters of the network.

use weir_model::{Host, HostState, NANOS_PER_SECOND, Nanos};
use weir_sink::metrics::{Family, MetricKind, MetricSample, Series};

use super::Monitor;
use super::agents::{AgentState, Run, count};
use super::checkpoint::Unsafe;
use super::recovery::Phase;
use weir_runtime::run_loop::{CounterReading, process_readings};
use weir_runtime::service::ServiceStatus;

/// A metric of each host.
struct HostMetric {
    name: &'static str,
    unit: &'static str,
    kind: MetricKind,
    help: &'static str,
    value: fn(&Host) -> Option<f64>,
}

/// The metrics of each host, from its row of relation `hosts`.
static HOST_METRICS: &[HostMetric] = &[
    HostMetric {
        name: "weir_monitor_agent_up",
        unit: "",
        kind: MetricKind::Gauge,
        help: "1 while the agent is connected and does not delay the others.",
        value: |host| Some(f64::from(u8::from(host.state == HostState::Up))),
    },
    HostMetric {
        name: "weir_monitor_agent_lag_seconds",
        unit: "seconds",
        kind: MetricKind::Gauge,
        help: "The lag of the agent's watermark behind the monitor's clock.",
        value: |host| host.lag_ns.map(seconds),
    },
    HostMetric {
        name: "weir_monitor_agent_clock_offset_seconds",
        unit: "seconds",
        kind: MetricKind::Gauge,
        help: "The offset of the agent's clock behind the monitor's.",
        value: |host| host.offset_ns.map(seconds),
    },
    HostMetric {
        name: "weir_monitor_agent_requests",
        unit: "",
        kind: MetricKind::Counter,
        help: "Requests whose rows or groups arrived in time.",
        value: |host| Some(host.rows_in as f64),
    },
    HostMetric {
        name: "weir_monitor_agent_requests_lost",
        unit: "",
        kind: MetricKind::Counter,
        help: "Requests that were lost at the tap or in transfer.",
        value: |host| Some(host.rows_lost as f64),
    },
    HostMetric {
        name: "weir_monitor_agent_requests_late",
        unit: "",
        kind: MetricKind::Counter,
        help: "Requests that arrived after their instant had passed, and were dropped.",
        value: |host| Some(host.rows_late as f64),
    },
];

fn seconds(ns: i64) -> f64 {
    ns as f64 / NANOS_PER_SECOND as f64
}

/// The interval of the readings.
const READ_EVERY: Nanos = NANOS_PER_SECOND;

impl Monitor {
    /// Notes the changes of all counters, if a reading is due, and returns their totals; `network`
    /// returns the server's counters.
    pub fn read_counters(
        &mut self,
        network: impl FnOnce() -> Vec<weir_wire::ServerCount>,
        now: Nanos,
    ) -> Option<Vec<CounterReading>> {
        if now.saturating_sub(self.counters_read_at) < READ_EVERY {
            return None;
        }
        self.counters_read_at = now;
        let mut readings = process_readings();
        readings.extend(network().into_iter().map(|counter| {
            let reading = CounterReading::new("network", counter.counter, count(counter.total));
            match counter.cause {
                Some(cause) => reading.because(cause),
                None => reading,
            }
        }));
        readings.extend(self.readings());
        for changed in self.counters.changed(readings.clone()) {
            self.own.count(now, &changed);
        }
        Some(readings)
    }

    /// Publishes the counters and the readiness of the monitor: it is ready once its standing
    /// queries have continued where they stopped.
    pub fn report(&mut self, readings: Vec<CounterReading>, status: &ServiceStatus, now: Nanos) {
        let readiness = match self.recovery(now) {
            Phase::Over => {
                let (agents, queries) = (self.agents.len(), self.queries.len());
                let role = match self.has_standbys {
                    true => format!(", leader in term {}", self.term),
                    false => String::new(),
                };
                Ok(format!("{agents} agents, {queries} queries{role}"))
            }
            Phase::Redelivery | Phase::CatchingUp => {
                Err("standing queries continue after a restart".to_owned())
            }
        };
        status.publish(readings, self.families(now), readiness);
    }

    /// Publishes the counters of a monitor that is a part of another service, if a reading is due.
    pub(super) fn report_part(&mut self, status: &ServiceStatus, now: Nanos) {
        if self.read_counters(Vec::new, now).is_some() {
            status.publish_part(self.readings(), self.families(now));
        }
    }

    /// The state of each agent and of each standing query, as metrics.
    fn families(&self, now: Nanos) -> Vec<Family> {
        let hosts = self.hosts(now);
        let of_hosts = |metric: &HostMetric| Family {
            series: hosts
                .iter()
                .filter_map(|host| {
                    Some(Series {
                        labels: vec![("host", host.host.as_str().to_string())],
                        sample: MetricSample::Number((metric.value)(host)?),
                        created_ns: None,
                    })
                })
                .collect(),
            kind: metric.kind,
            ..Family::gauge(metric.name, metric.unit, metric.help, 0.0)
        };
        let mut families: Vec<Family> = HOST_METRICS.iter().map(of_hosts).collect();
        families.push(Family::gauge(
            "weir_monitor_queries",
            "",
            "Running queries, standing ones included.",
            self.queries.len() as f64,
        ));
        families.extend(super::leader::families(true, self.term));
        families.extend(self.forward_families());
        families.retain(|family| !family.series.is_empty());
        families
    }

    /// The counters of the monitor.
    fn readings(&self) -> Vec<CounterReading> {
        let of_monitor = |name, total: u64| CounterReading::new("monitor", name, count(total));
        let agents: usize = self.agents.values().map(AgentState::bytes).sum();
        let mut readings = vec![
            of_monitor("events_in", self.work.rows),
            of_monitor("messages_in", self.work.words),
            of_monitor("steps", self.work.steps),
            of_monitor("agents", self.agents.len() as u64),
            of_monitor("agents_bytes", agents as u64),
            of_monitor("waiting_bytes", self.waiting_bytes as u64),
        ];
        let mut others = 0;
        for counts in self.engine.counts().queries {
            let Some(running) = self.queries.get(&counts.query) else {
                continue;
            };
            // Names of queries that are not standing are unbounded in number, and each would be
            // stored.
            if !running.standing {
                others += counts.bytes;
                continue;
            }
            let place = format!("query {}", running.name);
            readings.push(CounterReading::new(
                &place,
                "events_out",
                count(counts.rows_out),
            ));
            readings.push(CounterReading::new(&place, "bytes", count(counts.bytes)));
        }
        readings.extend(self.forward_readings());
        readings.push(CounterReading::new("other queries", "bytes", count(others)));
        readings
    }
}

impl AgentState {
    /// The approximate memory of the agent in the monitor, including its waiting rows.
    fn bytes(&self) -> usize {
        let runs = self.runs.len() * size_of::<Run>();
        let held = self.unsafe_words.len() * size_of::<Unsafe>();
        size_of::<AgentState>() + runs + held + self.waiting_bytes
    }
}
