//! The columns of a recording of requests, which has one row for a request and its response.
//!
//! A row of type `R`, `E` or `N` is a response. If [`REQUEST`] is not 0 it is the row of its
//! request as well: that one has the instant `issue_ts`, type `Q`, `agent_ts` and `monitor_ts` of
//! [`REQUEST_AGENT_TS`] and [`REQUEST_MONITOR_TS`], no error, no column of a finished request, and
//! the other columns of the response. If it is [`KNOWN_AT_ISSUE`], the request has `wait`,
//! `in_flight`, `seek` and `interarrival` of its response as well, as live requests do. A row of
//! type `Q` is a request whose response is in another block, or differs.
//!
//! A column that follows from others is stored as its difference from what they predict
//! ([`DERIVED`]), which is 0 in almost every row. NULL counts as 0 in a prediction, and the
//! difference is NULL where the column is. Numbers wrap, so each value is exact.
//!
//! | column | prediction |
//! | --- | --- |
//! | `service` | `latency` - `wait` |
//! | `issue_ts` | `ts` - `service`, or `ts` - `latency` if `service` is NULL |
//! | `vsector` | `sector` |
//! | `req_id` | that of the previous row in the order of issue plus 1; see below |
//! | `seek` | `sector` minus the last sector of the previous request; see below |
//! | `interarrival` | the time of issue minus that of the previous request; see below |
//!
//! The order of issue is that of the rows of a block by their times of issue: `issue_ts`, or `ts`
//! for type `Q` and where `issue_ts` is NULL. Rows of one time are in the order of the file. A row
//! whose `req_id` is NULL is passed over, and before the first number there is 0.
//!
//! The previous request of a row is that of its disk with the next lower `req_id` among the rows of
//! the block that have a `sector`, or a time of issue: `issue_ts`, and `ts` of type `Q`. Without
//! one, and without a `sector` or a time of issue, the prediction is 0. The disk is `pdisk`, or
//! `vm` and `vdisk` if that is NULL. Of a request and a response that are two rows, the later one
//! counts.
//!
//! Rows with the same value of [`BLOCK`] are a block. It is the number of events before the block,
//! where a request and its response are two events. [`BLOCK_ROWS`] is the number of its rows, so
//! that a reader notices where some are missing or those of another file were added: the order of
//! issue and the previous request are not known then.

use std::collections::HashMap;
use std::sync::LazyLock;

use arrow_array::{Array, Int64Array};
use foldhash::fast::RandomState;
use weir_model::event::{io_schema, iostream_schema};
use weir_model::{Column, EventKind, Field, Nanos, Type};

/// The column that is not 0 where a row is the row of its request as well.
pub const REQUEST: &str = "weir.request";
/// Its value if the request has no column of a finished request.
pub const EVENT_ONLY: i64 = 1;
/// Its value if the request has those columns that are known at its issue.
pub const KNOWN_AT_ISSUE: i64 = 2;
/// The column with the number of events before the block of a row.
pub const BLOCK: &str = "weir.block";
/// The column with the number of rows of the block of a row.
pub const BLOCK_ROWS: &str = "weir.block_rows";
/// The column with `agent_ts` of the request.
pub const REQUEST_AGENT_TS: &str = "weir.request_agent_ts";
/// The column with `monitor_ts` of the request.
pub const REQUEST_MONITOR_TS: &str = "weir.request_monitor_ts";

/// Derived columns, each with the name of the column that has its difference.
pub const DERIVED: [(&str, &str); 6] = [
    ("req_id", "weir.req_id"),
    ("vsector", "weir.vsector"),
    ("service", "weir.service"),
    ("seek", "weir.seek"),
    ("issue_ts", "weir.issue_ts"),
    ("interarrival", "weir.interarrival"),
];

/// The columns of a finished request that are known at its issue.
pub const KNOWN: [&str; 4] = ["wait", "in_flight", "seek", "interarrival"];

/// The columns of the file that are no columns of `IO`, in order.
pub static ADDED: LazyLock<Vec<Field>> = LazyLock::new(|| {
    let time = |name, doc| Field::new(name, Type::Time).nullable().doc(doc);
    let differences = DERIVED.iter().map(|(name, stored)| {
        let doc = format!("{name} minus its prediction from other columns");
        Field::new(*stored, Type::Int).nullable().doc(&doc)
    });
    let own = [
        Field::new(REQUEST, Type::Int).doc("not 0 where the row is that of the request as well"),
        Field::new(BLOCK, Type::Int).doc("number of events before the block of the row"),
        Field::new(BLOCK_ROWS, Type::Int).doc("number of rows of the block"),
        time(REQUEST_AGENT_TS, "agent_ts of the request"),
        time(REQUEST_MONITOR_TS, "monitor_ts of the request"),
    ];
    own.into_iter().chain(differences).collect()
});

/// The positions of columns in `IO`.
pub struct IoPositions {
    pub kind: usize,
    pub req_id: usize,
    pub sector: usize,
    pub sectors: usize,
    pub vm: usize,
    pub vdisk: usize,
    pub pdisk: usize,
    pub agent_ts: usize,
    pub monitor_ts: usize,
    pub error: usize,
    pub vsector: usize,
    pub wait: usize,
    pub service: usize,
    pub latency: usize,
    pub seek: usize,
    pub interarrival: usize,
    pub issue_ts: usize,
    /// The first of the columns that only finished requests have.
    pub finished: usize,
    /// Those of [`KNOWN`].
    pub known: [usize; KNOWN.len()],
}

/// The positions of columns in `IO`.
pub static AT: LazyLock<IoPositions> = LazyLock::new(|| {
    let schema = io_schema();
    let at = |name| schema.index(name);
    IoPositions {
        kind: at("type"),
        req_id: at("req_id"),
        sector: at("sector"),
        sectors: at("sectors"),
        vm: at("vm"),
        vdisk: at("vdisk"),
        pdisk: at("pdisk"),
        agent_ts: at("agent_ts"),
        monitor_ts: at("monitor_ts"),
        error: at("error"),
        vsector: at("vsector"),
        wait: at("wait"),
        service: at("service"),
        latency: at("latency"),
        seek: at("seek"),
        interarrival: at("interarrival"),
        issue_ts: at("issue_ts"),
        finished: iostream_schema().len(),
        known: KNOWN.map(at),
    }
});

/// The position of an added column.
pub fn added(name: &str) -> usize {
    let at = ADDED.iter().position(|field| field.name == name);
    at.expect("it is one of the added columns")
}

/// The column of the file with the difference of a column of `IO`, if that is derived. Files of
/// version 2 have `req_id` itself.
pub fn stored_as(name: &str) -> Option<&'static str> {
    let found = DERIVED.iter().find(|(derived, _)| *derived == name);
    found.map(|(_, stored)| *stored)
}

/// The difference of each number from its prediction.
pub fn differences(column: &Column, predicted: &[i64]) -> Column {
    combined(column, predicted, i64::wrapping_sub)
}

/// The numbers of which `column` has the differences.
pub fn restored(column: &Column, predicted: &[i64]) -> Column {
    combined(column, predicted, i64::wrapping_add)
}

fn combined(column: &Column, predicted: &[i64], with: fn(i64, i64) -> i64) -> Column {
    let Column::Int(values) = column else {
        return Column::Nulls(column.len());
    };
    let each = values.values().iter().zip(predicted);
    let combined: Vec<i64> = each.map(|(&value, &by)| with(value, by)).collect();
    Column::Int(Int64Array::new(combined.into(), values.nulls().cloned()))
}

/// The predictions of `service`.
pub fn services(len: usize, latency: &Column, wait: &Column) -> Vec<i64> {
    let (latency, wait) = (latency.int_values(), wait.int_values());
    let each = (0..len).map(|row| latency.or_zero(row).wrapping_sub(wait.or_zero(row)));
    each.collect()
}

/// The predictions of `issue_ts`.
pub fn issues(ts: &[Nanos], service: &Column, latency: &Column) -> Vec<i64> {
    let (service, latency) = (service.int_values(), latency.int_values());
    let since = |row: usize| service.get(row).unwrap_or_else(|| latency.or_zero(row));
    let each = ts.iter().enumerate();
    each.map(|(row, ts)| ts.wrapping_sub(since(row))).collect()
}

/// The predictions of `vsector`.
pub fn vsectors(len: usize, sector: &Column) -> Vec<i64> {
    let sector = sector.int_values();
    (0..len).map(|row| sector.or_zero(row)).collect()
}

/// A disk: that of the host, or of a VM.
type Disk = [Option<u32>; 3];

/// What relates a request to the next one of its disk. The prediction is its start minus the end of
/// the previous one.
#[derive(Clone, Copy)]
struct Link {
    start: i64,
    end: i64,
}

/// The last request of a disk.
#[derive(Clone, Copy)]
struct LastRequest {
    number: i64,
    end: i64,
    /// That of the previous request.
    end_before: Option<i64>,
}

/// The time of issue of each row, if it is known.
fn issue_time<'a>(ts: &'a [Nanos], columns: &'a [Column]) -> impl Fn(usize) -> Option<Nanos> + 'a {
    let issued = columns[AT.issue_ts].int_values();
    let request = EventKind::Request.symbol().id();
    move |row| match text(&columns[AT.kind], row) == Some(request) {
        true => Some(ts[row]),
        false => issued.get(row),
    }
}

/// The rows of a block in order of issue.
pub struct IssueOrder {
    rows: Vec<u32>,
}

impl IssueOrder {
    /// The order of rows at the instants `ts`, with these columns of `IO`.
    pub fn of(ts: &[Nanos], columns: &[Column]) -> IssueOrder {
        let issued = issue_time(ts, columns);
        let row = |row: usize| (issued(row).unwrap_or(ts[row]), row as u32);
        let mut rows: Vec<(Nanos, u32)> = (0..ts.len()).map(row).collect();
        rows.sort_unstable();
        IssueOrder {
            rows: rows.into_iter().map(|(_, row)| row).collect(),
        }
    }

    /// The rows, the one that was issued first at the beginning.
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// The difference of each number from its prediction.
    pub fn differences(&self, numbers: &Column) -> Column {
        self.each_number(numbers, |number, next| (number.wrapping_sub(next), number))
    }

    /// The numbers of which `differences` has the differences.
    pub fn restored(&self, differences: &Column) -> Column {
        self.each_number(differences, |difference, next| {
            let number = difference.wrapping_add(next);
            (number, number)
        })
    }

    /// The first result of `with` for each value that is not NULL and the number predicted for its
    /// row, in the order of issue. The second one is the number of the row.
    fn each_number(&self, values: &Column, with: impl Fn(i64, i64) -> (i64, i64)) -> Column {
        let of_rows = values.int_values();
        let mut results = vec![0; self.rows.len()];
        let mut next: i64 = 1;
        for &row in &self.rows {
            let Some(value) = of_rows.get(row as usize) else {
                continue;
            };
            let (result, number) = with(value, next);
            results[row as usize] = result;
            next = number.wrapping_add(1);
        }
        let nulls = match values {
            Column::Int(values) => values.nulls().cloned(),
            _ => return Column::Nulls(values.len()),
        };
        Column::Int(Int64Array::new(results.into(), nulls))
    }
}

/// The rows of a block in order of their requests.
pub struct RequestOrder {
    rows: Vec<OrderedRow>,
    disks: usize,
}

/// A row of a block.
struct OrderedRow {
    number: i64,
    row: u32,
    /// Its disk, numbered from 0.
    disk: u32,
}

impl RequestOrder {
    /// The order of a block of `len` rows with these columns of `IO`.
    pub fn of(len: usize, columns: &[Column]) -> RequestOrder {
        let number = columns[AT.req_id].int_values();
        let mut disks: HashMap<Disk, u32, RandomState> = HashMap::default();
        let name = |at: usize, row: usize| text(&columns[at], row);
        let mut ordered = |row: usize| {
            let disk = match name(AT.pdisk, row) {
                None => [None, name(AT.vm, row), name(AT.vdisk, row)],
                pdisk => [pdisk, None, None],
            };
            let next = disks.len() as u32;
            OrderedRow {
                number: number.or_zero(row),
                row: row as u32,
                disk: *disks.entry(disk).or_insert(next),
            }
        };
        let mut rows: Vec<OrderedRow> = (0..len).map(&mut ordered).collect();
        rows.sort_by_key(|row| (row.number, row.row));
        RequestOrder {
            rows,
            disks: disks.len(),
        }
    }

    /// The predictions of `seek`.
    pub fn seeks(&self, columns: &[Column]) -> Vec<i64> {
        let [sector, sectors] = [AT.sector, AT.sectors].map(|at| columns[at].int_values());
        self.since_previous(|row| {
            let start = sector.get(row)?;
            let end = start.wrapping_add(sectors.or_zero(row)).wrapping_sub(1);
            Some(Link { start, end })
        })
    }

    /// The predictions of `interarrival`, of rows at the instants `ts`.
    pub fn interarrivals(&self, ts: &[Nanos], columns: &[Column]) -> Vec<i64> {
        let issued = issue_time(ts, columns);
        self.since_previous(|row| {
            let start = issued(row)?;
            Some(Link { start, end: start })
        })
    }

    /// Of each row with a link, its start minus the end of the previous one of its disk.
    fn since_previous(&self, link: impl Fn(usize) -> Option<Link>) -> Vec<i64> {
        let mut disks: Vec<Option<LastRequest>> = vec![None; self.disks];
        let mut predicted = vec![0; self.rows.len()];
        for ordered in &self.rows {
            let row = ordered.row as usize;
            let Some(Link { start, end }) = link(row) else {
                continue;
            };
            let last = &mut disks[ordered.disk as usize];
            let before = match last {
                // A request and its response that are two rows.
                Some(last) if last.number == ordered.number => last.end_before,
                Some(last) => Some(last.end),
                None => None,
            };
            if let Some(before) = before {
                predicted[row] = start.wrapping_sub(before);
            }
            *last = Some(LastRequest {
                number: ordered.number,
                end,
                end_before: before,
            });
        }
        predicted
    }
}

/// The text of a row, by its symbol.
fn text(column: &Column, row: usize) -> Option<u32> {
    match column {
        Column::Text(ids) if ids.is_valid(row) => Some(ids.value(row)),
        _ => None,
    }
}
