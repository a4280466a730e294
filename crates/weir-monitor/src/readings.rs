//! The monitor's own costs, as rows of stream `weir`: counts of received messages and rows, memory
//! by agent and by query, and the counters of the network.

use weir_model::{NANOS_PER_SECOND, Nanos};

use super::Monitor;
use super::agents::{AgentState, Run, count};
use super::checkpoint::Unsafe;
use weir_runtime::run_loop::{CounterReading, process_readings};

/// The interval of the readings.
const READ_EVERY: Nanos = NANOS_PER_SECOND;

impl Monitor {
    /// Notes the changes of all counters, if a reading is due; `network` returns the server's
    /// counters.
    pub fn read_counters(
        &mut self,
        network: impl FnOnce() -> Vec<weir_wire::ServerCount>,
        now: Nanos,
    ) {
        if now.saturating_sub(self.counters_read_at) < READ_EVERY {
            return;
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
        for changed in self.counters.changed(readings) {
            self.own.count(now, &changed);
        }
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
