//! [`Rows`]: the rows of the feed's query as subjects and events.

use weir_model::{Batch, Column, EventKind, Level, Op, Symbol};
use weir_workload::{CountScope, IssuedRequest, RequestEvent, Response, Subject};

/// The columns of a batch, in the order of [`COLUMNS`](super::selection::COLUMNS).
pub struct Rows<'a> {
    batch: &'a Batch,
}

/// A row.
pub struct Row {
    /// The subject.
    pub subject: Subject,
    /// The event.
    pub event: RequestEvent,
    /// The scope of the count `in_flight`.
    pub counted: CountScope,
    /// Requests in flight when the request was issued, itself included, by the source's own count.
    pub in_flight: Option<i64>,
    /// The command name of the process, if it is read.
    pub process: Option<Symbol>,
}

impl<'a> Rows<'a> {
    /// The rows of `batch`.
    pub fn new(batch: &'a Batch) -> Rows<'a> {
        Rows { batch }
    }

    /// A row; `None` for one that is neither a request nor a response.
    pub fn row(&self, row: usize) -> Option<Row> {
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
            host,
            level,
            in_flight,
            times @ ..,
        ] = &self.batch.columns[..]
        else {
            unreachable!("the query has these columns");
        };
        let [wait, service, latency, error, rest @ ..] = times else {
            unreachable!("the query has these columns");
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
            kind if kind == EventKind::Request.symbol() => RequestEvent::Issued(IssuedRequest {
                ts,
                id,
                op,
                sector: int(vsector, row).or_else(|| int(sector, row)),
                sectors: int(sectors, row).unwrap_or_default(),
            }),
            kind => RequestEvent::Finished(Response {
                ts,
                id,
                op,
                wait_ns: int(wait, row),
                service_ns: int(service, row),
                latency_ns: int(latency, row),
                failed: kind != EventKind::Response.symbol() || int(error, row).is_some(),
            }),
        };
        let host = text(host, row);
        // A tap in the disk path counts on several queues at once, not in the order of its
        // timestamps, and it receives every completion.
        let in_order = text(level, row) == Some(Level::Block.symbol());
        Some(Row {
            subject,
            event,
            counted: CountScope::device(host, subject.pdisk),
            in_flight: int(in_flight, row).filter(|_| in_order),
            process: rest.first().and_then(|comm| text(comm, row)),
        })
    }
}

/// The operation with this letter.
pub fn operation(letter: Symbol) -> Option<Op> {
    Op::ALL.into_iter().find(|op| op.symbol() == letter)
}

/// The integer in a row.
pub fn int(column: &Column, row: usize) -> Option<i64> {
    match column {
        Column::Int(values) if !column.is_null(row) => Some(values.value(row)),
        _ => None,
    }
}

/// The text in a row.
pub fn text(column: &Column, row: usize) -> Option<Symbol> {
    match column {
        Column::Text(values) if !column.is_null(row) => Some(Symbol::from_id(values.value(row))),
        _ => None,
    }
}
