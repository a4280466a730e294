//! A host of the fleet: a row of relation `hosts`.

use crate::inventory::{InventoryColumn, Row};
use crate::{Field, Nanos, Symbol, Type, Unit, Value};

/// A host in the monitor's inventory.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// The name of the host, as in column `host` of an event. Unique in a fleet.
    pub host: Symbol,
    /// The address from which its agent connects.
    pub address: Symbol,
    /// The output of `weir --version` there.
    pub version: Symbol,
    /// Its state.
    pub state: HostState,
    /// The time of the last change of the state.
    pub since: Nanos,
    /// The offset of its clock behind the monitor's (negative: ahead), once it is known.
    pub offset_ns: Option<i64>,
    /// Half the width of the interval that contains the true offset.
    pub offset_error_ns: Option<i64>,
    /// The lag of its watermark behind the monitor's clock.
    pub lag_ns: Option<i64>,
    /// Requests whose rows, or groups, arrived in time.
    pub rows_in: i64,
    /// Requests that were lost at the tap or in transfer.
    pub rows_lost: i64,
    /// Requests that arrived late and were dropped.
    pub rows_late: i64,
    /// Bytes at the agent that are not yet acknowledged.
    pub waiting_bytes: i64,
    /// Those of them that are on disk.
    pub spooled_bytes: i64,
    /// Processor time of the agent since its start.
    pub cpu_ns: i64,
    /// Memory of the agent.
    pub memory_bytes: i64,
    /// Requests that its devices complete per second, by the kernel's own count.
    pub requests_per_second: f64,
    /// The share of events that is delivered; 1 if the agent sheds no load.
    pub kept_share: f64,
    /// The result of its self-test, once it is known: `ok`, `degraded`, `missing`.
    pub self_test: Option<&'static str>,
}

/// The state of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostState {
    /// Its agent is connected and does not delay the others.
    Up,
    /// Its agent is connected, but so far behind that the others continued without it.
    Excluded,
    /// Its agent is not connected.
    Down,
    /// Its agent has ended after sending an end message.
    Ended,
}

impl HostState {
    /// `up`, `excluded`, `down`, `ended`.
    pub fn as_str(self) -> &'static str {
        match self {
            HostState::Up => "up",
            HostState::Excluded => "excluded",
            HostState::Down => "down",
            HostState::Ended => "ended",
        }
    }
}

impl Row for Host {
    const RELATION: &'static str = "hosts";

    fn host(&self, _here: Option<Symbol>) -> Option<Symbol> {
        Some(self.host)
    }

    fn columns() -> Vec<InventoryColumn<Host>> {
        use Type::{Float, Int, Text, Time};
        let column = |name: &str, ty, doc: &str| Field::new(name, ty).doc(doc);
        let ns = |name: &str, doc: &str| column(name, Int, doc).unit(Unit::Nanoseconds);
        let bytes = |name: &str, doc: &str| column(name, Int, doc).unit(Unit::Bytes);
        vec![
            (
                column("address", Text, "the address from which its agent connects"),
                |h| Value::Text(h.address),
            ),
            (column("version", Text, "the agent's version"), |h| {
                Value::Text(h.version)
            }),
            (
                column(
                    "state",
                    Text,
                    "up, excluded (results no longer wait for it), down, ended",
                ),
                |h| Value::text(h.state.as_str()),
            ),
            (
                column("since", Time, "the time of the last change of the state"),
                |h| Value::Int(h.since),
            ),
            (
                ns(
                    "offset_ns",
                    "the monitor's clock minus its clock; negative if its clock is ahead",
                )
                .nullable(),
                |h| number(h.offset_ns),
            ),
            (
                ns("offset_error_ns", "the error bound of the clock offset").nullable(),
                |h| number(h.offset_error_ns),
            ),
            (
                ns("lag_ns", "the monitor's clock minus its watermark").nullable(),
                |h| number(h.lag_ns),
            ),
            (column("rows_in", Int, "requests received in time"), |h| {
                Value::Int(h.rows_in)
            }),
            (
                column("rows_lost", Int, "requests lost at the tap or in transit"),
                |h| Value::Int(h.rows_lost),
            ),
            (
                column("rows_late", Int, "requests received late and dropped"),
                |h| Value::Int(h.rows_late),
            ),
            (
                bytes(
                    "waiting_bytes",
                    "bytes of messages at the agent that are not acknowledged",
                ),
                |h| Value::Int(h.waiting_bytes),
            ),
            (bytes("spooled_bytes", "those of them on disk"), |h| {
                Value::Int(h.spooled_bytes)
            }),
            (
                ns("cpu_ns", "processor time of the agent since its start"),
                |h| Value::Int(h.cpu_ns),
            ),
            (bytes("memory_bytes", "memory of the agent"), |h| {
                Value::Int(h.memory_bytes)
            }),
            (
                column(
                    "requests_per_second",
                    Float,
                    "requests per second that its devices complete, from the kernel's counters",
                ),
                |h| Value::Float(h.requests_per_second),
            ),
            (
                column(
                    "kept_share",
                    Float,
                    "the share of events that the agent samples; 1 for all",
                ),
                |h| Value::Float(h.kept_share),
            ),
            (
                column(
                    "self_test",
                    Text,
                    "the result of the agent's self-test at its start: ok, degraded, missing",
                )
                .nullable(),
                |h| h.self_test.map_or(Value::Null, Value::text),
            ),
        ]
    }
}

fn number(value: Option<i64>) -> Value {
    value.map_or(Value::Null, Value::Int)
}
