//! Converts the rows of a recording to events, for writers of other formats.

use weir_model::event::io_schema;
use weir_model::{Batch, Column, Event, EventKind, IoEvent, Level, Op, Symbol};

/// The positions of the columns of `IO`.
#[derive(Debug)]
pub struct Columns {
    at: Vec<(&'static str, usize)>,
}

/// The columns of an event, in no particular order.
const NAMES: [&str; 27] = [
    "ts",
    "type",
    "op",
    "req_id",
    "sector",
    "sectors",
    "vm",
    "vdisk",
    "pdisk",
    "agent_ts",
    "monitor_ts",
    "host",
    "level",
    "pid",
    "comm",
    "cgroup",
    "cpu",
    "flags",
    "error",
    "merges",
    "vsector",
    "wait",
    "service",
    "latency",
    "in_flight",
    "seek",
    "issue_ts",
];

impl Default for Columns {
    fn default() -> Columns {
        let schema = io_schema();
        Columns {
            at: NAMES
                .iter()
                .map(|name| (*name, schema.index(name)))
                .collect(),
        }
    }
}

impl Columns {
    /// The events of a batch in the schema of `IO`. A row whose type, op or level is NULL or
    /// unknown is omitted.
    pub fn events(&self, batch: &Batch) -> Vec<IoEvent> {
        (0..batch.len())
            .filter_map(|row| self.event(batch, row))
            .collect()
    }

    fn event(&self, batch: &Batch, row: usize) -> Option<IoEvent> {
        let column = |name: &str| {
            let found = self.at.iter().find(|(n, _)| *n == name);
            &batch.columns[found.expect("an event has that column").1]
        };
        let int = |name: &str| match column(name) {
            Column::Int(a) if !column(name).is_null(row) => Some(a.value(row)),
            _ => None,
        };
        let text = |name: &str| match column(name) {
            Column::Text(a) if !column(name).is_null(row) => Some(Symbol::from_id(a.value(row))),
            _ => None,
        };
        let kind = EventKind::ALL
            .into_iter()
            .find(|k| Some(k.symbol()) == text("type"))?;
        let op = Op::ALL
            .into_iter()
            .find(|op| Some(op.symbol()) == text("op"))?;
        let level = Level::ALL
            .into_iter()
            .find(|l| Some(l.symbol()) == text("level"))?;
        let event = Event {
            vm: text("vm"),
            vdisk: text("vdisk"),
            pdisk: text("pdisk"),
            agent_ts: int("agent_ts"),
            monitor_ts: int("monitor_ts"),
            host: text("host"),
            level,
            pid: int("pid"),
            comm: text("comm"),
            cgroup: text("cgroup"),
            cpu: int("cpu"),
            flags: text("flags"),
            error: int("error"),
            merges: int("merges"),
            vsector: int("vsector"),
            ..Event::new(
                batch.ts[row],
                kind,
                op,
                int("req_id")?,
                int("sector"),
                int("sectors")?,
            )
        };
        Some(IoEvent {
            wait_ns: int("wait"),
            service_ns: int("service"),
            latency_ns: int("latency"),
            in_flight: int("in_flight"),
            seek_sectors: int("seek"),
            issue_ts: int("issue_ts"),
            ..IoEvent::new(event)
        })
    }
}
