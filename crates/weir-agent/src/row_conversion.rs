//! [`RowConversion`]: converts the rows of a tap for the monitor: to the monitor's time, with the
//! host's name, in a guest with its level and VM, and with request numbers that are unique in the
//! fleet.

use std::cell::Cell;

use arrow_array::UInt32Array;
use weir_model::{Batch, Column, Level, Nanos, Schema, Symbol, Type};
use weir_tap::tapdisk::mark::REQUEST_BITS;

/// Bits of `req_id` in which a host counts its requests; the count wraps after 4 billion. The bits
/// above are the host's number.
const NUMBER_BITS: u32 = 32;

/// Bits of those in which a tapdisk counts the requests of one disk. The bits above are the disk's
/// number.
const TAPDISK_BITS: u32 = 24;

/// The conversion of a stream's rows.
#[derive(Debug)]
pub struct RowConversion {
    host: Symbol,
    host_number: u32,
    /// In a guest, its VM.
    pub guest: Option<Symbol>,
    /// Added to a tap's request numbers, since each tap counts from 1.
    pub first_number: i64,
    /// The numbers are those of a tapdisk, which each of its readers receives: nothing is added,
    /// and a part of them remains for comparisons.
    pub is_of_tapdisk: bool,
    /// The highest request number that was sent.
    last_number: Cell<i64>,
    /// The watermark of the tap, in the monitor's time.
    over: Nanos,
    /// Columns of the stream, by position.
    columns: Columns,
}

/// The columns that an [`RowConversion`] converts.
#[derive(Clone, Debug)]
struct Columns {
    ts: Option<usize>,
    /// Other instants.
    instants: Vec<usize>,
    host: Option<usize>,
    vm: Option<usize>,
    level: Option<usize>,
    agent_ts: Option<usize>,
    req_id: Option<usize>,
}

/// The number of a host in the high bits of `req_id`: 31 bits of FNV-1a (Fowler, Noll and Vo; RFC
/// 9923) of its name. In one of 4,000 fleets of 1,000 hosts, two hosts have the same number.
pub fn host_number(host: &str) -> u32 {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = host.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    ((hash >> 33) ^ hash) as u32 & 0x7fff_ffff
}

impl Columns {
    /// The columns of a stream with this schema that are in use.
    fn of(schema: &Schema, used: &[usize]) -> Columns {
        let find = |name: &str| {
            let found = schema.fields.iter().position(|f| f.name == name);
            found.filter(|at| used.contains(at))
        };
        let (ts, agent_ts) = (find("ts"), find("agent_ts"));
        let other = |at: &usize| Some(*at) != ts && Some(*at) != agent_ts;
        let instant = |at: &usize| schema[*at].ty == Type::Time;
        Columns {
            ts,
            instants: used.iter().copied().filter(other).filter(instant).collect(),
            host: find("host"),
            vm: find("vm"),
            level: find("level"),
            agent_ts,
            req_id: find("req_id"),
        }
    }
}

impl RowConversion {
    /// For the rows of a stream with this schema, of which the columns `used` are in use.
    pub fn new(host: Symbol, schema: &Schema, used: &[usize]) -> RowConversion {
        RowConversion {
            host_number: host_number(host.as_str()),
            host,
            guest: None,
            first_number: 0,
            is_of_tapdisk: false,
            last_number: Cell::new(0),
            over: Nanos::MIN,
            columns: Columns::of(schema, used),
        }
    }

    /// The rows for the engine, at `now`. `to_monitor` converts an instant of the agent to one of
    /// the monitor. As that conversion adapts, an instant may fall at or before an earlier
    /// watermark; it is then moved directly after it.
    pub fn rows(
        &self,
        batch: &Batch,
        now: Nanos,
        to_monitor: impl Fn(Nanos) -> Nanos + Copy,
    ) -> Batch {
        let rows = batch.len();
        let mut least = self.over.saturating_add(1);
        let ts = batch.ts.iter().map(|ts| {
            least = least.max(to_monitor(*ts));
            least
        });
        let ts: Vec<i64> = ts.collect();
        let mut columns = batch.columns.clone();
        for &at in &self.columns.instants {
            columns[at] = mapped(&columns[at], to_monitor);
        }
        if let Some(at) = self.columns.ts {
            columns[at] = Column::ints(ts.clone());
        }
        if let Some(at) = self.columns.agent_ts {
            columns[at] = Column::ints(vec![now; rows]);
        }
        if let Some(at) = self.columns.host {
            columns[at] = repeated(self.host, rows);
        }
        if let Some(vm) = self.guest {
            for (at, value) in [(self.columns.vm, vm), (self.columns.level, guest_level())] {
                if let Some(at) = at {
                    columns[at] = repeated(value, rows);
                }
            }
        }
        if let Some(at) = self.columns.req_id {
            columns[at] = mapped(&columns[at], |id| self.req_id(id));
        }
        Batch {
            ts: ts.into(),
            weights: batch.weights.clone(),
            columns,
        }
    }

    /// The watermark of the tap, in the monitor's time; it never decreases.
    pub fn reached(&mut self, at: Nanos, to_monitor: impl Fn(Nanos) -> Nanos) -> Nanos {
        let converted = match at {
            Nanos::MAX => Nanos::MAX,
            at => to_monitor(at),
        };
        self.over = self.over.max(converted);
        self.over
    }

    /// The column that contains the request number, if it is in use.
    pub fn req_id_column(&self) -> Option<usize> {
        self.columns.req_id
    }

    /// The highest request number that was sent; the next tap continues after it.
    pub fn last_number(&self) -> i64 {
        self.last_number.get().max(self.first_number)
    }

    /// Continues from another [`RowConversion`] of the same rows, with its watermark.
    pub fn follow(&mut self, before: &RowConversion) {
        self.over = self.over.max(before.over);
    }

    /// A tap's request number, made unique in the fleet.
    fn req_id(&self, id: i64) -> i64 {
        let number = match self.is_of_tapdisk {
            true => number_of_tapdisk(id),
            false => id.wrapping_add(self.first_number),
        };
        self.last_number.set(self.last_number.get().max(number));
        let own = number & ((1 << NUMBER_BITS) - 1);
        i64::from(self.host_number) << NUMBER_BITS | own
    }
}

/// The number of a tapdisk's request in fewer bits: those of two disks differ, for the first 256 of
/// a tapdisk, and those of one disk until another 16 million requests have followed.
fn number_of_tapdisk(id: i64) -> i64 {
    let disk = (id >> REQUEST_BITS) & ((1 << (NUMBER_BITS - TAPDISK_BITS)) - 1);
    disk << TAPDISK_BITS | id & ((1 << TAPDISK_BITS) - 1)
}

fn guest_level() -> Symbol {
    Level::Guest.symbol()
}

/// A column of one text.
fn repeated(text: Symbol, rows: usize) -> Column {
    Column::Text(UInt32Array::new(vec![text.id(); rows].into(), None))
}

/// A column of integers with `change` applied to each.
fn mapped(column: &Column, change: impl Fn(i64) -> i64) -> Column {
    match column {
        Column::Int(values) => Column::Int(values.unary(change)),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::Value;
    use weir_model::event::io_schema;

    fn columns(names: &[&str]) -> Vec<usize> {
        names.iter().map(|name| io_schema().index(name)).collect()
    }

    fn batch(ts: &[i64], latency: i64) -> Batch {
        let schema = io_schema();
        let mut columns = vec![Column::Nulls(ts.len()); schema.len()];
        columns[schema.index("ts")] = Column::ints(ts.to_vec());
        columns[schema.index("latency")] = Column::ints(vec![latency; ts.len()]);
        columns[schema.index("req_id")] = Column::ints((1..).take(ts.len()).collect());
        Batch::stream(ts.to_vec(), columns)
    }

    #[test]
    fn instants_are_moved_and_durations_are_not() {
        let used = columns(&["ts", "req_id", "agent_ts", "host", "latency"]);
        let conversion = RowConversion::new(Symbol::new("a"), &io_schema(), &used);
        let out = conversion.rows(&batch(&[100, 200], 7), 990, |at| at + 1_000);
        let value = |name: &str| out.columns[io_schema().index(name)].value(1);
        assert_eq!(&out.ts[..], [1_100, 1_200]);
        assert_eq!(value("ts"), Value::Int(1_200));
        assert_eq!(value("agent_ts"), Value::Int(990));
        assert_eq!(value("latency"), Value::Int(7));
        assert_eq!(value("host"), Value::text("a"));
        let id = i64::from(host_number("a")) << 32 | 2;
        assert_eq!(value("req_id"), Value::Int(id));
        assert_eq!(value("vm"), Value::Null);
    }

    #[test]
    fn rows_of_a_guest_have_its_level_and_its_vm() {
        let used = columns(&["ts", "vm", "level"]);
        let mut conversion = RowConversion::new(Symbol::new("inside"), &io_schema(), &used);
        let level = |conversion: &RowConversion, name: &str| {
            let out = conversion.rows(&batch(&[100], 7), 0, |at| at);
            out.columns[io_schema().index(name)].value(0)
        };
        assert_eq!(level(&conversion, "vm"), Value::Null);
        conversion.guest = Some(Symbol::new("web"));
        assert_eq!(level(&conversion, "vm"), Value::text("web"));
        assert_eq!(level(&conversion, "level"), Value::text("guest"));
        assert_eq!(level(&conversion, "pdisk"), Value::Null);
    }

    #[test]
    fn numbers_of_a_tapdisk_differ_by_disk_and_are_the_same_for_each_reader() {
        let used = columns(&["ts", "req_id"]);
        let ids = |first_number: i64| {
            let mut conversion = RowConversion::new(Symbol::new("a"), &io_schema(), &used);
            conversion.is_of_tapdisk = true;
            conversion.first_number = first_number;
            let numbers = [1, (1 << REQUEST_BITS) + 1, (7 << 24) + 1, 2];
            numbers.map(|number| conversion.req_id(number))
        };
        let host = i64::from(host_number("a")) << NUMBER_BITS;
        assert_eq!(ids(0), [host + 1, host + (1 << 24) + 1, host + 1, host + 2]);
        assert_eq!(ids(1 << 20), ids(0));
    }

    #[test]
    fn what_is_over_stays_over_though_the_clock_adapts() {
        let mut conversion = RowConversion::new(Symbol::new("a"), &io_schema(), &columns(&["ts"]));
        assert_eq!(conversion.reached(100, |at| at + 50), 150);
        assert_eq!(conversion.reached(110, |at| at + 20), 150);
        let out = conversion.rows(&batch(&[111, 140, 141], 7), 0, |at| at + 20);
        assert_eq!(&out.ts[..], [151, 160, 161]);
        assert_eq!(conversion.reached(Nanos::MAX, |at| at + 1), Nanos::MAX);
    }

    #[test]
    fn hosts_have_numbers_of_their_own() {
        let numbers: std::collections::HashSet<u32> = (0..1_000)
            .map(|i| host_number(&format!("agent-{i}")))
            .collect();
        assert_eq!(numbers.len(), 1_000);
        assert!(numbers.iter().all(|n| i64::from(*n) << NUMBER_BITS >= 0));
    }
}
