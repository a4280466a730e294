//! The columns of a recording of requests, which has one row for a request and its response.
//!
//! A row of type `R`, `E` or `N` is a response. If [`REQUEST`] is not 0 it is the row of its
//! request as well: that one has the instant `issue_ts`, type `Q`, `agent_ts` and `monitor_ts` of
//! [`REQUEST_AGENT_TS`] and [`REQUEST_MONITOR_TS`], no error, no column of a finished request, and
//! the other columns of the response. If it is [`KNOWN_AT_ISSUE`], the request has `wait`,
//! `in_flight` and `seek` of its response as well, as live requests do. A row of type `Q` is a
//! request whose response is in another block, or differs.
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
//! | `seek` | `sector` minus the last sector of the previous request; see below |
//!
//! The previous request of a row is that of its disk with the next lower `req_id` among the rows of
//! the block that have a `sector`. Without one, and without a `sector`, the prediction is 0. The
//! disk is `pdisk`, or `vm` and `vdisk` if that is NULL. Of a request and a response that are two
//! rows, the later one counts.
//!
//! Rows with the same value of [`BLOCK`] are a block. It is the number of events before the block,
//! where a request and its response are two events.

use std::collections::HashMap;
use std::sync::LazyLock;

use arrow_array::{Array, Int64Array};
use foldhash::fast::RandomState;
use weir_model::event::{io_schema, iostream_schema};
use weir_model::{Column, Field, Nanos, Type};

/// The column that is not 0 where a row is the row of its request as well.
pub const REQUEST: &str = "weir.request";
/// Its value if the request has no column of a finished request.
pub const EVENT_ONLY: i64 = 1;
/// Its value if the request has those columns that are known at its issue.
pub const KNOWN_AT_ISSUE: i64 = 2;
/// The column with the number of events before the block of a row.
pub const BLOCK: &str = "weir.block";
/// The column with `agent_ts` of the request.
pub const REQUEST_AGENT_TS: &str = "weir.request_agent_ts";
/// The column with `monitor_ts` of the request.
pub const REQUEST_MONITOR_TS: &str = "weir.request_monitor_ts";

/// Derived columns, each with the name of the column that has its difference.
pub const DERIVED: [(&str, &str); 4] = [
    ("vsector", "weir.vsector"),
    ("service", "weir.service"),
    ("seek", "weir.seek"),
    ("issue_ts", "weir.issue_ts"),
];

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
    pub in_flight: usize,
    pub service: usize,
    pub latency: usize,
    pub seek: usize,
    pub issue_ts: usize,
    /// The first of the columns that only finished requests have.
    pub finished: usize,
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
        in_flight: at("in_flight"),
        service: at("service"),
        latency: at("latency"),
        seek: at("seek"),
        issue_ts: at("issue_ts"),
        finished: iostream_schema().len(),
    }
});

/// The position of an added column.
pub fn added(name: &str) -> usize {
    let at = ADDED.iter().position(|field| field.name == name);
    at.expect("it is one of the added columns")
}

/// The column of the file with the difference of a column of `IO`, if that is derived.
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

/// The last request of a disk.
struct LastRequest {
    number: i64,
    /// The last sector of its extent.
    end: i64,
    /// That of the previous request.
    end_before: Option<i64>,
}

/// The predictions of `seek` in a block with these columns of `IO`.
pub fn seeks(len: usize, columns: &[Column]) -> Vec<i64> {
    let at = &*AT;
    let [number, sector, sectors] =
        [at.req_id, at.sector, at.sectors].map(|at| columns[at].int_values());
    let text = |at: usize, row: usize| match &columns[at] {
        Column::Text(ids) if ids.is_valid(row) => Some(ids.value(row)),
        _ => None,
    };
    let disk = |row: usize| -> Disk {
        match text(at.pdisk, row) {
            None => [None, text(at.vm, row), text(at.vdisk, row)],
            pdisk => [pdisk, None, None],
        }
    };
    let mut order: Vec<(i64, u32)> = (0..len)
        .map(|row| (number.or_zero(row), row as u32))
        .collect();
    order.sort();
    let mut disks: HashMap<Disk, Option<LastRequest>, RandomState> = HashMap::default();
    let mut predicted = vec![0; len];
    for (number, row) in order {
        let row = row as usize;
        let Some(first) = sector.get(row) else {
            continue;
        };
        let end = first.wrapping_add(sectors.or_zero(row)).wrapping_sub(1);
        let last = disks.entry(disk(row)).or_default();
        let before = match &*last {
            // A request and its response that are two rows.
            Some(last) if last.number == number => last.end_before,
            Some(last) => Some(last.end),
            None => None,
        };
        if let Some(before) = before {
            predicted[row] = first.wrapping_sub(before);
        }
        *last = Some(LastRequest {
            number,
            end,
            end_before: before,
        });
    }
    predicted
}
