//! [`Counters`]: weir's own counters, as rows of stream `weir` and in the closing summary.

use std::collections::HashMap;

use weir_model::catalog::weir_schema;
use weir_model::{Batch, Column, ColumnBuilder, Symbol, Type, Value};
use weir_query::engine::EngineCounts;
use weir_tap::EventCount;

/// The unit of statm(5) on the supported architectures, and that of stat(5) on all.
const PAGE_BYTES: i64 = 4_096;
const TICK_NS: i64 = 10_000_000;

/// The identity of a counter: component, name, cause and device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Counter {
    /// `tap`, `engine`, `sink`, or a query.
    pub place: String,
    /// `events_in`, `events_lost`, ...
    pub name: &'static str,
    /// The cause, for losses.
    pub cause: Option<&'static str>,
    /// The device or file.
    pub device: Option<Symbol>,
}

/// The total of a counter since the start.
#[derive(Clone, Debug)]
pub struct CounterReading {
    /// The counter.
    pub counter: Counter,
    /// Its total since the start.
    pub total: i64,
}

/// All counters at their last reading.
#[derive(Default)]
pub struct Counters {
    totals: HashMap<Counter, i64>,
}

impl CounterReading {
    /// The counts of taps. Counts of the same thing by several taps are added up.
    pub fn of_taps<'c>(counts: impl Iterator<Item = &'c EventCount>) -> Vec<CounterReading> {
        let mut places = HashMap::new();
        let mut readings: Vec<CounterReading> = Vec::new();
        for reading in counts.map(CounterReading::of_tap) {
            let place = *places
                .entry(reading.counter.clone())
                .or_insert(readings.len());
            match readings.get_mut(place) {
                Some(sum) => sum.total = sum.total.saturating_add(reading.total),
                None => readings.push(reading),
            }
        }
        readings
    }

    /// A count of a tap.
    pub fn of_tap(count: &EventCount) -> CounterReading {
        CounterReading {
            counter: Counter {
                place: "tap".into(),
                name: count.counter,
                cause: count.cause,
                device: count.device,
            },
            total: count.total,
        }
    }

    /// A count of `place`.
    pub fn new(place: impl Into<String>, name: &'static str, total: i64) -> CounterReading {
        CounterReading {
            counter: Counter {
                place: place.into(),
                name,
                cause: None,
                device: None,
            },
            total,
        }
    }

    /// The same count with a cause.
    pub fn because(self, cause: &'static str) -> CounterReading {
        CounterReading {
            counter: Counter {
                cause: Some(cause),
                ..self.counter
            },
            ..self
        }
    }
}

/// The counts of the engine: rows by source, rows and memory by query.
pub fn engine_counts(counts: &EngineCounts) -> Vec<CounterReading> {
    let mut readings = Vec::new();
    for source in &counts.sources {
        let place = format!("engine {}", source.source);
        readings.push(CounterReading::new(
            &place,
            "events_in",
            source.rows_in as i64,
        ));
        let late = CounterReading::new(&place, "events_lost", source.rows_late as i64);
        readings.push(late.because("late"));
        readings.push(CounterReading::new(
            &place,
            "events_waiting",
            source.rows_waiting as i64,
        ));
    }
    for (number, query) in counts.queries.iter().enumerate() {
        let place = format!("query {}", number + 1);
        readings.push(CounterReading::new(
            &place,
            "events_out",
            query.rows_out as i64,
        ));
        readings.push(CounterReading::new(&place, "bytes", query.bytes as i64));
    }
    readings
}

/// Memory and processor time of the process.
pub fn process_readings() -> Vec<CounterReading> {
    let (memory, time) = process_usage("self");
    let place = "process";
    let memory = memory.map(|bytes| CounterReading::new(place, "memory_bytes", bytes));
    let time = time.map(|ns| CounterReading::new(place, "cpu_ns", ns));
    memory.into_iter().chain(time).collect()
}

/// Memory in bytes and processor time in ns of the process with that number, or `self`
/// (proc_pid_statm(5), proc_pid_stat(5)).
pub fn process_usage(process: &str) -> (Option<i64>, Option<i64>) {
    let memory = read_fields(&format!("/proc/{process}/statm"), 1);
    // After the name, which may contain spaces, user and system time are fields 12 and 13.
    let time = read_fields(&format!("/proc/{process}/stat"), 11);
    (
        memory.map(|pages| pages[0] * PAGE_BYTES),
        time.map(|times| (times[0] + times[1]) * TICK_NS),
    )
}

/// The numbers of a file in /proc from position `skip` on, after the process's name if there is
/// one.
fn read_fields(path: &str, skip: usize) -> Option<Vec<i64>> {
    let text = std::fs::read_to_string(path).ok()?;
    let fields = text.rsplit(')').next()?.split_whitespace();
    let numbers = fields.skip(skip).map(|field| field.parse().unwrap_or(0));
    let numbers: Vec<i64> = numbers.collect();
    (numbers.len() >= 2).then_some(numbers)
}

/// A counter that changed.
pub struct Changed {
    /// The counter that changed.
    pub counter: Counter,
    /// The increase.
    pub value: i64,
    /// Its total since the start.
    pub total: i64,
}

impl Counters {
    /// The counters that changed since the previous call.
    pub fn changed(&mut self, readings: impl IntoIterator<Item = CounterReading>) -> Vec<Changed> {
        let changed = readings
            .into_iter()
            .filter_map(|CounterReading { counter, total }| {
                let before = self.totals.insert(counter.clone(), total).unwrap_or(0);
                (total != before).then_some(Changed {
                    counter,
                    value: total - before,
                    total,
                })
            });
        changed.collect()
    }

    /// The rows of stream `weir` at instant `at`: the counters that changed since the previous
    /// call.
    pub fn changes(
        &mut self,
        at: i64,
        readings: impl IntoIterator<Item = CounterReading>,
    ) -> Batch {
        let types: Vec<Type> = weir_schema().fields.iter().map(|f| f.ty).collect();
        let mut columns: Vec<ColumnBuilder> =
            types.iter().map(|ty| ColumnBuilder::new(*ty, 0)).collect();
        let changed = self.changed(readings);
        let rows = changed.len();
        for Changed {
            counter,
            value,
            total,
        } in changed
        {
            let text = |t: Option<&str>| t.map_or(Value::Null, Value::text);
            let row = [
                Value::Int(at),
                Value::text(&counter.place),
                Value::text(counter.name),
                text(counter.cause),
                counter.device.map_or(Value::Null, Value::Text),
                Value::Int(value),
                Value::Int(total),
                Value::Null,
            ];
            for (column, value) in columns.iter_mut().zip(row) {
                column.push(value);
            }
        }
        let columns: Vec<Column> = columns.iter_mut().map(|c| c.finish()).collect();
        Batch::stream(vec![at; rows], columns)
    }
}

/// The number of requests of all kinds completed by whole disks; see iostats.rst in the kernel's
/// documentation for the columns of /proc/diskstats.
pub fn requests_finished() -> u64 {
    let text = std::fs::read_to_string("/proc/diskstats").unwrap_or_default();
    let of_line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let name = fields.get(2)?;
        // The counts of disks include those of their partitions and of stacked devices above them.
        let path = format!("/sys/block/{name}");
        if !std::fs::exists(&path).ok()?
            || std::fs::read_dir(format!("{path}/slaves"))
                .ok()?
                .next()
                .is_some()
        {
            return None;
        }
        // Completed reads, writes, discards and flushes.
        let count = |at: usize| fields.get(at).and_then(|n| n.parse::<u64>().ok());
        Some([3, 7, 14, 18].into_iter().filter_map(count).sum::<u64>())
    };
    text.lines().filter_map(of_line).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_takes_memory_and_time() {
        let total = |name: &str| {
            let readings = process_readings();
            let found = readings.iter().find(|r| r.counter.name == name);
            found.map_or(0, |r| r.total)
        };
        assert!((1 << 20..1 << 40).contains(&total("memory_bytes")));
        // Use processor time until it is measurable.
        let mut turns = 0;
        while total("cpu_ns") == 0 && turns < 1_000_000 {
            turns += 1;
        }
        assert!(total("cpu_ns") >= TICK_NS);
    }

    #[test]
    fn what_several_taps_count_alike_is_added_up() {
        let count = |cause, total| EventCount::of("events_lost", cause, total);
        let counts = [count(None, 2), count(Some("late"), 1), count(None, 3)];
        let readings = CounterReading::of_taps(counts.iter());
        let totals: Vec<_> = readings
            .iter()
            .map(|r| (r.counter.cause, r.total))
            .collect();
        assert_eq!(totals, [(None, 5), (Some("late"), 1)]);
    }

    #[test]
    fn only_changed_counters_are_emitted() {
        let mut counters = Counters::default();
        let read = |n, lost| {
            [
                CounterReading::new("tap", "events_in", n),
                CounterReading::new("tap", "events_lost", lost).because("ring_full"),
            ]
        };
        let first = counters.changes(5, read(10, 0));
        assert_eq!((first.len(), first.ts[0]), (1, 5));
        let schema = weir_schema();
        let second = counters.changes(6, read(12, 3));
        let column = |name: &str| &second.columns[schema.index(name)];
        assert_eq!(second.len(), 2);
        assert_eq!(column("value").value(0), Value::Int(2));
        assert_eq!(column("total").value(0), Value::Int(12));
        assert_eq!(column("cause").value(1), Value::text("ring_full"));
        assert_eq!(column("cause").value(0), Value::Null);
    }
}
