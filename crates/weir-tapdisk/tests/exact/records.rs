//! Compares the tap's records with the client's requests, request by request.

use std::collections::HashMap;

use weir_model::event::io_schema;
use weir_model::{Batch, Value};
use weir_testing::vhost::{LoggedRequest, RequestKind, RequestStatus};

/// A row of `IOstream`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub ts: i64,
    /// `Q`, `R`, `E`, `N`
    pub kind: String,
    pub op: String,
    pub id: i64,
    pub sector: Option<i64>,
    pub sectors: i64,
    pub error: Option<i64>,
    /// VM, disk, image, level.
    pub names: [String; 4],
}

/// The rows of a batch that has all columns.
pub fn rows(batch: &Batch) -> Vec<Row> {
    let schema = io_schema();
    let at = |name: &str| schema.index(name);
    let (kind, op, id) = (at("type"), at("op"), at("req_id"));
    let (sector, sectors, error) = (at("sector"), at("sectors"), at("error"));
    let names = ["vm", "vdisk", "pdisk", "level"].map(at);
    let row = |i: usize| {
        let row = batch.row(i);
        let int = |column: usize| match row[column] {
            Value::Int(number) => Some(number),
            _ => None,
        };
        Row {
            ts: batch.ts[i],
            kind: row[kind].to_string(),
            op: row[op].to_string(),
            id: int(id).expect("requests have numbers"),
            sector: int(sector),
            sectors: int(sectors).expect("requests have lengths"),
            error: int(error),
            names: names.map(|column| row[column].to_string()),
        }
    };
    (0..batch.len()).map(row).collect()
}

/// A request as both sides see it: operation, first sector, length in sectors.
type RequestKey = (char, Option<i64>, i64);

fn seen(row: &Row) -> RequestKey {
    (
        row.op.chars().next().expect("an operation"),
        row.sector,
        row.sectors,
    )
}

fn asked(asked: &LoggedRequest) -> RequestKey {
    let op = asked.ask.kind.letter().expect("only I/O is logged");
    let sector = (asked.ask.kind != RequestKind::Flush).then_some(asked.ask.sector as i64);
    (op, sector, (asked.ask.bytes / 512) as i64)
}

/// The rows `Q` of each queue, in order. Each queue has a part of the disk of its own; flushes,
/// which have no location, can only be attributed when there is one queue.
pub fn by_queue(rows: &[Row], queues: usize, sectors: u64) -> Vec<Vec<&Row>> {
    let part = (sectors as usize / queues) as i64;
    let mut parts = vec![Vec::new(); queues];
    for row in rows.iter().filter(|row| row.kind == "Q") {
        match row.sector {
            Some(sector) => parts[(sector / part) as usize].push(row),
            None if queues == 1 => parts[0].push(row),
            None => {}
        }
    }
    parts
}

/// Compares all rows of a load with the client's log of it.
pub fn check(rows: &[Row], log: &[Vec<LoggedRequest>], sectors: u64) {
    let with_place =
        |entry: &&LoggedRequest| log.len() == 1 || entry.ask.kind != RequestKind::Flush;
    let ends = ends(rows);
    let mut flushes = Vec::new();
    for (queue, recorded) in by_queue(rows, log.len(), sectors).into_iter().enumerate() {
        let made: Vec<&LoggedRequest> = log[queue].iter().filter(with_place).collect();
        assert_eq!(recorded.len(), made.len(), "requests of queue {queue}");
        for (i, (recorded, made)) in recorded.iter().zip(&made).enumerate() {
            assert_eq!(seen(recorded), asked(made), "request {i} of queue {queue}");
            let end = ends
                .get(&recorded.id)
                .unwrap_or_else(|| panic!("{recorded:?} has no footer"));
            check_end(recorded, end, made);
        }
        flushes.extend(log[queue].iter().filter(|entry| !with_place(entry)));
    }
    check_flushes(rows, &flushes, &ends, log.len());
    let asked: usize = log.iter().map(Vec::len).sum();
    assert_eq!(
        rows.len(),
        2 * asked,
        "a row for each request and one for its end"
    );
    assert!(
        rows.is_sorted_by_key(|row| row.ts),
        "rows come in order of time"
    );
}

fn ends(rows: &[Row]) -> HashMap<i64, &Row> {
    let mut ends = HashMap::new();
    for row in rows.iter().filter(|row| row.kind != "Q") {
        assert!(
            ends.insert(row.id, row).is_none(),
            "{row:?} is the second end of its request"
        );
    }
    ends
}

fn kind_of(status: RequestStatus) -> &'static str {
    match status {
        RequestStatus::Done => "R",
        RequestStatus::Failed => "E",
        RequestStatus::Unsupported => "N",
    }
}

/// Of Linux, asm-generic/errno.h.
const EOPNOTSUPP: i64 = 95;

fn check_end(begin: &Row, end: &Row, made: &LoggedRequest) {
    let status = made.status.expect("the client has seen its end");
    assert_eq!(end.kind, kind_of(status), "{end:?} of {made:?}");
    assert_eq!(seen(end), seen(begin));
    assert_eq!(end.names, begin.names);
    match status {
        RequestStatus::Done => assert_eq!(end.error, None, "{end:?}"),
        RequestStatus::Failed => assert!(end.error.is_some_and(|errno| errno > 0), "{end:?}"),
        RequestStatus::Unsupported => assert_eq!(end.error, Some(EOPNOTSUPP), "{end:?}"),
    }
    // Both clocks have the same rate: the tap's time lies within the client's.
    let (inside, outside) = (end.ts - begin.ts, made.done_ns - made.made_ns);
    assert!(
        (0..=outside).contains(&inside),
        "{begin:?} {end:?} {made:?}"
    );
}

fn check_flushes(rows: &[Row], made: &[&LoggedRequest], ends: &HashMap<i64, &Row>, queues: usize) {
    if queues == 1 {
        return;
    }
    let recorded: Vec<&Row> = rows
        .iter()
        .filter(|row| row.kind == "Q" && row.op == "f")
        .collect();
    assert_eq!(recorded.len(), made.len(), "flushes");
    let kinds = recorded.iter().map(|row| ends[&row.id].kind.as_str());
    let asked = made
        .iter()
        .map(|entry| kind_of(entry.status.expect("the client has seen its end")));
    let sorted = |mut kinds: Vec<&'static str>| {
        kinds.sort_unstable();
        kinds
    };
    let known = |kind: &str| {
        ["R", "E", "N"]
            .into_iter()
            .find(|k| *k == kind)
            .expect("an end")
    };
    assert_eq!(sorted(kinds.map(known).collect()), sorted(asked.collect()));
}
