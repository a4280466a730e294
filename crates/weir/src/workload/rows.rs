//! [`Rows`]: the rows of the feed's question as subjects and events.

use weir_model::{Batch, Column, EventKind, Op, Symbol};
use weir_workload::{Event, Request, Response, Subject};

/// The columns of a batch, in the order of [`COLUMNS`](super::selection::COLUMNS).
pub struct Rows<'a> {
    batch: &'a Batch,
}

impl<'a> Rows<'a> {
    /// The rows of `batch`.
    pub fn new(batch: &'a Batch) -> Rows<'a> {
        Rows { batch }
    }

    /// Whose it is and what happened; `None` for a row that tells neither a request nor a response.
    pub fn event(&self, row: usize) -> Option<(Subject, Event)> {
        let [
            ts,
            kind,
            op,
            id,
            sector,
            vsector,
            sectors,
            vm,
            vdisk,
            pdisk,
            times @ ..,
        ] = &self.batch.columns[..]
        else {
            unreachable!("the question asks for these columns");
        };
        let [wait, service, latency, error] = times else {
            unreachable!("the question asks for these columns");
        };
        let subject = Subject {
            vm: text(vm, row),
            vdisk: text(vdisk, row),
            pdisk: text(pdisk, row),
            ..Subject::default()
        };
        let ts = int(ts, row)?;
        let id = int(id, row).unwrap_or_default();
        let op = operation(text(op, row)?)?;
        let event = match text(kind, row)? {
            kind if kind == EventKind::Request.symbol() => Event::Issued(Request {
                ts,
                id,
                op,
                sector: int(vsector, row).or_else(|| int(sector, row)),
                sectors: int(sectors, row).unwrap_or_default(),
            }),
            kind => Event::Finished(Response {
                ts,
                id,
                op,
                wait_ns: int(wait, row),
                service_ns: int(service, row),
                latency_ns: int(latency, row),
                failed: kind != EventKind::Response.symbol() || int(error, row).is_some(),
            }),
        };
        Some((subject, event))
    }
}

fn operation(letter: Symbol) -> Option<Op> {
    Op::ALL.into_iter().find(|op| op.symbol() == letter)
}

fn int(column: &Column, row: usize) -> Option<i64> {
    match column {
        Column::Int(values) if !column.is_null(row) => Some(values.value(row)),
        _ => None,
    }
}

fn text(column: &Column, row: usize) -> Option<Symbol> {
    match column {
        Column::Text(values) if !column.is_null(row) => Some(Symbol::from_id(values.value(row))),
        _ => None,
    }
}
