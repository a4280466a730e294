//! [`Own`]: an agent's own counters, events and status.

use std::collections::HashMap;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use weir_model::{NANOS_PER_SECOND, Nanos};
use weir_sink::text;
use weir_wire::outbox::Backlog;
use weir_wire::{Note, Status};

use super::core::AgentCore;
use super::service::Service;
use super::shedding::Load;
use weir_runtime::run_loop::{
    CounterReading, Counters, engine_counts, process_usage, requests_finished,
};

/// Maximum length of the cause of an event, in bytes; longer ones are truncated.
const CAUSE_BYTES_MAX: usize = 512;

/// The agent's own counters, events and status.
pub struct Own {
    counters: Counters,
    /// The number of occurrences of each event.
    events: HashMap<(&'static str, &'static str), i64>,
    /// Rows that were shed.
    shed: i64,
    /// The time of the last measurement of the load, and the processor time then.
    looked: Instant,
    cpu_ns: i64,
    requests: Option<(Instant, u64)>,
}

impl Own {
    /// All counters at zero.
    pub fn new() -> Own {
        Own {
            counters: Counters::default(),
            events: HashMap::new(),
            shed: 0,
            looked: Instant::now(),
            cpu_ns: cpu_ns(),
            requests: None,
        }
    }

    /// Counts rows that were shed.
    pub fn shed(&mut self, rows: usize) {
        self.shed += rows as i64;
    }

    /// Records an event.
    pub fn event(
        &mut self,
        at: Nanos,
        place: &'static str,
        counter: &'static str,
        cause: Option<&str>,
    ) -> Note {
        let total = self.events.entry((place, counter)).or_default();
        *total += 1;
        note(at, (place, counter), cause, 1, *total)
    }

    /// Records a change of state: `total` is the new state, `value` the difference to the previous
    /// one.
    pub fn state(
        &mut self,
        at: Nanos,
        place: &'static str,
        counter: &'static str,
        cause: Option<&str>,
        total: i64,
    ) -> Note {
        let before = self.events.insert((place, counter), total);
        let value = total - before.unwrap_or(0);
        note(at, (place, counter), cause, value, total)
    }

    /// The totals of all counters.
    pub fn readings<'a>(
        &self,
        services: impl Iterator<Item = &'a Service>,
        core: &AgentCore,
    ) -> Vec<CounterReading> {
        let mut readings: Vec<CounterReading> = Vec::new();
        let mut handovers = [0; 3];
        for service in services {
            for (sum, count) in handovers.iter_mut().zip(service.handovers) {
                *sum += count;
            }
            readings.extend(service.counts().iter().map(CounterReading::of_tap));
        }
        let [made, narrow, impatient] = handovers;
        readings.push(CounterReading::new("agent", "handovers", made));
        readings.push(CounterReading::new("agent", "handovers_narrow", narrow));
        readings.push(CounterReading::new(
            "agent",
            "handovers_impatient",
            impatient,
        ));
        readings.push(CounterReading::new("agent", "events_lost", self.shed).because("shed"));
        readings.extend(engine_counts(&core.counts()));
        readings
    }

    /// The counters that changed since the last call.
    pub fn notes(&mut self, at: Nanos, readings: Vec<CounterReading>) -> Vec<Note> {
        let changed = self.counters.changed(readings).into_iter();
        let note = changed.map(|changed| Note {
            at_ns: at,
            place: changed.counter.place,
            counter: changed.counter.name.into(),
            cause: changed.counter.cause.map(str::to_owned),
            device: changed
                .counter
                .device
                .map(|device| device.as_str().to_string()),
            value: changed.value,
            total: changed.total,
        });
        note.collect()
    }

    /// The resource usage since the last call.
    pub fn load(&mut self) -> Load {
        let (now, cpu_ns) = (Instant::now(), cpu_ns());
        let since = (now - self.looked).as_nanos().max(1) as f64;
        let cpu_share = (cpu_ns - self.cpu_ns) as f64 / since;
        (self.looked, self.cpu_ns) = (now, cpu_ns);
        Load {
            cpu_share,
            memory_bytes: memory_bytes() as u64,
        }
    }

    /// The status of the process.
    pub fn status(&mut self, waiting: Backlog) -> Status {
        let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        Status {
            cpu_ns: self.cpu_ns,
            memory_bytes: memory_bytes(),
            waiting_bytes: bytes(waiting.bytes),
            spooled_bytes: bytes(waiting.spooled_bytes),
            requests_per_second: self.requests_per_second(),
            ..Status::default()
        }
    }

    /// The recent rate of requests that the host's whole disks completed, by the kernel's counters.
    fn requests_per_second(&mut self) -> f64 {
        let (now, requests) = (Instant::now(), requests_finished());
        let before = self.requests.replace((now, requests));
        before.map_or(0.0, |(then, before)| {
            requests.saturating_sub(before) as f64 / (now - then).as_secs_f64().max(1e-3)
        })
    }
}

/// An event of the agent, without a device.
fn note(
    at: Nanos,
    (place, counter): (&str, &str),
    cause: Option<&str>,
    value: i64,
    total: i64,
) -> Note {
    Note {
        at_ns: at,
        place: place.into(),
        counter: counter.into(),
        cause: cause.map(cut),
        device: None,
        value,
        total,
    }
}

fn cut(text: &str) -> String {
    text::beginning(text, CAUSE_BYTES_MAX).to_owned()
}

/// Processor time of the process so far.
fn cpu_ns() -> i64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec * NANOS_PER_SECOND + time.tv_nsec
}

/// Resident memory of the process.
fn memory_bytes() -> i64 {
    process_usage("self").0.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_and_long_causes_cut() {
        let mut own = Own::new();
        let why = "ä".repeat(CAUSE_BYTES_MAX);
        own.event(5, "tap", "probe_failed", None);
        let second = own.event(6, "tap", "probe_failed", Some(&why));
        assert_eq!((second.value, second.total), (1, 2));
        assert_eq!(second.cause.map(|c| c.len()), Some(CAUSE_BYTES_MAX));
        let more = own.state(7, "agent", "shedding", Some("cpu"), 4);
        assert_eq!((more.value, more.total), (4, 4));
        let less = own.state(8, "agent", "shedding", Some("calm"), 2);
        assert_eq!((less.value, less.total), (-2, 2));
    }

    #[test]
    fn the_process_takes_time_and_memory() {
        let mut own = Own::new();
        let started_at = Instant::now();
        while started_at.elapsed().as_millis() < 20 {}
        let load = own.load();
        assert!(load.cpu_share > 0.0 && load.memory_bytes > 1 << 20);
    }
}
