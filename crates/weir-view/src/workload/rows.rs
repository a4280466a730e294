//! [`Rows`]: the rows of the feed's query as subjects and events.

use weir_model::{Batch, Column, ColumnValues, EventKind, Level, Op, Symbol};
use weir_workload::{IssuedRequest, RequestEvent, Response, Subject};

/// The columns of a batch of the query of [`COLUMNS`](super::selection::COLUMNS).
pub struct Rows<'a> {
    ts: ColumnValues<'a, i64>,
    kind: ColumnValues<'a, u32>,
    op: ColumnValues<'a, u32>,
    id: ColumnValues<'a, i64>,
    sector: ColumnValues<'a, i64>,
    vsector: ColumnValues<'a, i64>,
    sectors: ColumnValues<'a, i64>,
    vm: ColumnValues<'a, u32>,
    vdisk: ColumnValues<'a, u32>,
    pdisk: ColumnValues<'a, u32>,
    host: ColumnValues<'a, u32>,
    level: ColumnValues<'a, u32>,
    in_flight: ColumnValues<'a, i64>,
    wait: ColumnValues<'a, i64>,
    service: ColumnValues<'a, i64>,
    latency: ColumnValues<'a, i64>,
    error: ColumnValues<'a, i64>,
    process: ColumnValues<'a, u32>,
    texts: Texts,
}

/// The texts that kinds, operations and levels have.
struct Texts {
    request: Symbol,
    response: Symbol,
    ops: [(Symbol, Op); Op::ALL.len()],
    block: Symbol,
}

/// A row.
pub struct Row {
    /// The subject.
    pub subject: Subject,
    /// The event.
    pub event: RequestEvent,
    /// The host of the disk.
    pub host: Option<Symbol>,
    /// Requests in flight when the request was issued, itself included, by the source's own count.
    pub in_flight: Option<i64>,
    /// The command name of the process, if it is read.
    pub process: Option<Symbol>,
}

impl<'a> Rows<'a> {
    /// The rows of `batch`.
    pub fn new(batch: &'a Batch) -> Rows<'a> {
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
            wait,
            service,
            latency,
            error,
            process @ ..,
        ] = &batch.columns[..]
        else {
            unreachable!("the query has these columns");
        };
        Rows {
            ts: ts.int_values(),
            kind: kind.text_ids(),
            op: op.text_ids(),
            id: id.int_values(),
            sector: sector.int_values(),
            vsector: vsector.int_values(),
            sectors: sectors.int_values(),
            vm: vm.text_ids(),
            vdisk: vdisk.text_ids(),
            pdisk: pdisk.text_ids(),
            host: host.text_ids(),
            level: level.text_ids(),
            in_flight: in_flight.int_values(),
            wait: wait.int_values(),
            service: service.int_values(),
            latency: latency.int_values(),
            error: error.int_values(),
            process: process.first().map(Column::text_ids).unwrap_or_default(),
            texts: Texts {
                request: EventKind::Request.symbol(),
                response: EventKind::Response.symbol(),
                ops: Op::ALL.map(|op| (op.symbol(), op)),
                block: Level::Block.symbol(),
            },
        }
    }

    /// A row; `None` for one that is neither a request nor a response.
    pub fn row(&self, row: usize) -> Option<Row> {
        let subject = Subject {
            vm: self.vm.symbol(row),
            vdisk: self.vdisk.symbol(row),
            pdisk: self.pdisk.symbol(row),
            ..Subject::default()
        };
        let ts = self.ts.get(row)?;
        let id = self.id.get(row).unwrap_or_default();
        let letter = self.op.symbol(row)?;
        let (_, op) = *self.texts.ops.iter().find(|(text, _)| *text == letter)?;
        let event = match self.kind.symbol(row)? {
            kind if kind == self.texts.request => RequestEvent::Issued(IssuedRequest {
                ts,
                id,
                op,
                sector: self.vsector.get(row).or_else(|| self.sector.get(row)),
                sectors: self.sectors.get(row).unwrap_or_default(),
            }),
            kind => RequestEvent::Finished(Response {
                ts,
                id,
                op,
                wait_ns: self.wait.get(row),
                service_ns: self.service.get(row),
                latency_ns: self.latency.get(row),
                failed: kind != self.texts.response || self.error.get(row).is_some(),
            }),
        };
        // A tap in the disk path counts on several queues at once, not in the order of its
        // timestamps, and it receives every completion.
        let in_order = self.level.symbol(row) == Some(self.texts.block);
        Some(Row {
            subject,
            event,
            host: self.host.symbol(row),
            in_flight: self.in_flight.get(row).filter(|_| in_order),
            process: self.process.symbol(row),
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
