//! [`fold`]: the rows of a block of requests and responses, one for each request where the request
//! follows from its response; see [`super::folded`].

use std::collections::HashMap;

use arrow_array::{Array, Int64Array, UInt32Array};
use arrow_buffer::NullBuffer;
use foldhash::fast::RandomState;
use weir_model::{Batch, Column, ColumnValues, EventKind};

use super::folded::{
    ADDED, AT, BLOCK, BLOCK_ROWS, EVENT_ONLY, IssueOrder, KNOWN, KNOWN_AT_ISSUE, REQUEST,
    REQUEST_AGENT_TS, REQUEST_MONITOR_TS, RequestOrder, differences, issues, services, vsectors,
};
use super::read::taken;

/// The rows of a block.
pub struct FoldedRows {
    /// The columns of `IO`.
    pub own: Vec<Column>,
    /// The columns of [`ADDED`].
    pub added: Vec<Column>,
}

/// The rows of a batch with the columns of `IO`, as a block after `events` events.
pub fn fold(batch: &Batch, events: i64) -> FoldedRows {
    let requests = requests_of_responses(batch);
    let mut is_folded = vec![false; batch.len()];
    requests
        .iter()
        .flatten()
        .for_each(|&request| is_folded[request as usize] = true);
    let kept = (0..batch.len() as u32).filter(|&row| !is_folded[row as usize]);
    let kept = UInt32Array::from(kept.collect::<Vec<u32>>());
    let own: Vec<Column> = batch
        .columns
        .iter()
        .map(|column| taken(column, &kept))
        .collect();
    let of_row: Vec<Option<u32>> = kept
        .values()
        .iter()
        .map(|&row| requests[row as usize])
        .collect();
    let added = added(batch, &own, &of_row, events);
    FoldedRows { own, added }
}

/// The added columns of the rows `own`, each with its request in `batch`, if it is folded.
fn added(batch: &Batch, own: &[Column], requests: &[Option<u32>], events: i64) -> Vec<Column> {
    let (at, len) = (&*AT, requests.len());
    let of_requests = |column: usize| {
        if let Column::Nulls(_) = batch.columns[column] {
            return Column::Nulls(len);
        }
        let column = batch.columns[column].int_values();
        let value = |request: &Option<u32>| request.and_then(|row| column.get(row as usize));
        Column::Int(requests.iter().map(value).collect::<Int64Array>())
    };
    let has_known = KnownAtIssue::of(batch);
    let ts = own[0].int_values();
    let ts: Vec<i64> = (0..len)
        .map(|row| ts.get(row).unwrap_or_default())
        .collect();
    let order = RequestOrder::of(len, own);
    let each = ADDED.iter().map(|field| match field.name.as_str() {
        REQUEST => {
            let kind = |request: &Option<u32>| match request {
                None => 0,
                Some(request) if has_known.at(*request as usize) => KNOWN_AT_ISSUE,
                Some(_) => EVENT_ONLY,
            };
            let each = requests.iter();
            Column::Int(Int64Array::from(each.map(kind).collect::<Vec<i64>>()))
        }
        BLOCK => Column::Int(Int64Array::from(vec![events; len])),
        BLOCK_ROWS => Column::Int(Int64Array::from(vec![len as i64; len])),
        REQUEST_AGENT_TS => of_requests(at.agent_ts),
        REQUEST_MONITOR_TS => of_requests(at.monitor_ts),
        "weir.req_id" => IssueOrder::of(&ts, own).differences(&own[at.req_id]),
        "weir.vsector" => differences(&own[at.vsector], &vsectors(len, &own[at.sector])),
        "weir.service" => {
            let predicted = services(len, &own[at.latency], &own[at.wait]);
            differences(&own[at.service], &predicted)
        }
        "weir.issue_ts" => {
            let predicted = issues(&ts, &own[at.service], &own[at.latency]);
            differences(&own[at.issue_ts], &predicted)
        }
        "weir.seek" => differences(&own[at.seek], &order.seeks(own)),
        "weir.interarrival" => differences(&own[at.interarrival], &order.interarrivals(&ts, own)),
        other => unreachable!("{other} is not one of the added columns"),
    });
    each.collect()
}

/// Of each response whose request is folded into it, the row of the request.
fn requests_of_responses(batch: &Batch) -> Vec<Option<u32>> {
    let mut pairs = pairs(batch);
    if !batch.ts.is_sorted() {
        pairs.clear();
    }
    retain_equal(batch, &mut pairs);
    let mut requests = vec![None; batch.len()];
    for (request, response) in pairs {
        requests[response as usize] = Some(request);
    }
    keep_order(batch, &mut requests);
    requests
}

/// Requests with their responses in the batch, by their numbers and the time of issue.
fn pairs(batch: &Batch) -> Vec<(u32, u32)> {
    let at = &*AT;
    let Column::Text(kinds) = &batch.columns[at.kind] else {
        return Vec::new();
    };
    let [request, ..] = EventKind::ALL.map(|kind| kind.symbol().id());
    let number = batch.columns[at.req_id].int_values();
    let issued = batch.columns[at.issue_ts].int_values();
    let mut open = OpenRequests::of(number, batch.len());
    let mut pairs = Vec::with_capacity(batch.len() / 2);
    for (row, kind) in (0..).zip(kinds.values()) {
        let at = row as usize;
        let Some(number) = number.get(at).filter(|_| kinds.is_valid(at)) else {
            continue;
        };
        if *kind == request {
            open.insert(number, row);
        } else if let Some(issued) = issued.get(at)
            && let Some(request) = open.remove(number)
            && batch.ts[request as usize] == issued
        {
            pairs.push((request, row));
        }
    }
    pairs
}

/// The rows of requests without a response so far, by the numbers of the requests.
enum OpenRequests {
    /// At the position of the number after the first one: the numbers of a trace and of a disk
    /// follow each other.
    Dense {
        first: i64,
        rows: Vec<Option<u32>>,
    },
    Sparse(HashMap<i64, u32, RandomState>),
}

impl OpenRequests {
    /// Positions for each row, at most, if there is one for each number.
    const POSITIONS_PER_ROW: u64 = 4;

    /// Without a request, for the numbers of so many rows.
    fn of(numbers: ColumnValues<i64>, rows: usize) -> OpenRequests {
        let each = || (0..rows).filter_map(|row| numbers.get(row));
        let first = each().min().unwrap_or(0);
        let last = each().max().unwrap_or(0);
        let between = last.abs_diff(first);
        match between < Self::POSITIONS_PER_ROW * rows as u64 {
            true => OpenRequests::Dense {
                first,
                rows: vec![None; between as usize + 1],
            },
            false => OpenRequests::Sparse(HashMap::default()),
        }
    }

    fn insert(&mut self, number: i64, row: u32) {
        match self {
            OpenRequests::Dense { first, rows } => {
                rows[number.abs_diff(*first) as usize] = Some(row);
            }
            OpenRequests::Sparse(rows) => {
                rows.insert(number, row);
            }
        }
    }

    fn remove(&mut self, number: i64) -> Option<u32> {
        match self {
            OpenRequests::Dense { first, rows } => rows[number.abs_diff(*first) as usize].take(),
            OpenRequests::Sparse(rows) => rows.remove(&number),
        }
    }
}

/// Removes the pairs whose request has values that do not follow from the response.
fn retain_equal(batch: &Batch, pairs: &mut Vec<(u32, u32)>) {
    let at = &*AT;
    let of_request_only = [at.kind, at.agent_ts, at.monitor_ts, at.error];
    let has_known = KnownAtIssue::of(batch);
    for (position, column) in batch.columns.iter().enumerate() {
        // The first one is the time of the row.
        let is_shared = (1..at.finished).contains(&position);
        if is_shared && !of_request_only.contains(&position) {
            retain_equal_values(column, pairs);
        } else if at.known.contains(&position) {
            pairs.retain(|&(request, response)| {
                let (request, response) = (request as usize, response as usize);
                match has_known.at(request) {
                    true => are_equal(column, request, response),
                    false => column.is_null(request),
                }
            });
        } else if position >= at.finished || position == at.error {
            let nulls = Nulls::of(column);
            pairs.retain(|&(request, _)| nulls.at(request as usize));
        }
    }
}

/// Removes the pairs whose request and response have different values in a column.
fn retain_equal_values(column: &Column, pairs: &mut Vec<(u32, u32)>) {
    fn equal<T: PartialEq>(values: &[T], pairs: &mut Vec<(u32, u32)>) {
        pairs.retain(|&(one, other)| values[one as usize] == values[other as usize]);
    }
    match column {
        Column::Nulls(_) => {}
        Column::Int(values) if values.nulls().is_none() => equal(values.values(), pairs),
        Column::Text(ids) if ids.nulls().is_none() => equal(ids.values(), pairs),
        _ => pairs.retain(|&(one, other)| are_equal(column, one as usize, other as usize)),
    }
}

/// The NULLs of a column.
enum Nulls<'a> {
    None,
    All,
    Some(&'a NullBuffer),
    /// Those of a column without a bitmap.
    Of(&'a Column),
}

impl<'a> Nulls<'a> {
    fn of(column: &'a Column) -> Nulls<'a> {
        match (column, column.nulls()) {
            (Column::Nulls(_), _) => Nulls::All,
            (Column::Tally(_), _) => Nulls::Of(column),
            (_, None) => Nulls::None,
            (_, Some(nulls)) => Nulls::Some(nulls),
        }
    }

    fn at(&self, row: usize) -> bool {
        match self {
            Nulls::None => false,
            Nulls::All => true,
            Nulls::Some(nulls) => nulls.is_null(row),
            Nulls::Of(column) => column.is_null(row),
        }
    }
}

/// Which requests have columns that are known at their issue.
struct KnownAtIssue<'a>([Nulls<'a>; KNOWN.len()]);

impl<'a> KnownAtIssue<'a> {
    fn of(batch: &'a Batch) -> KnownAtIssue<'a> {
        KnownAtIssue(AT.known.map(|at| Nulls::of(&batch.columns[at])))
    }

    fn at(&self, request: usize) -> bool {
        self.0.iter().any(|nulls| !nulls.at(request))
    }
}

fn are_equal(column: &Column, one: usize, other: usize) -> bool {
    match (column.is_null(one), column.is_null(other)) {
        (true, true) => return true,
        (false, false) => {}
        _ => return false,
    }
    match column {
        Column::Int(values) => values.value(one) == values.value(other),
        Column::Text(ids) => ids.value(one) == ids.value(other),
        other_type => other_type.value(one) == other_type.value(other),
    }
}

/// Removes requests that their reader would not deliver at their position among the events of the
/// same instant: it delivers a request directly before a response at its own instant, any other
/// after all rows of the instant, in order of their numbers.
fn keep_order(batch: &Batch, requests: &mut [Option<u32>]) {
    let number = batch.columns[AT.req_id].int_values();
    let mut response_of: Vec<Option<u32>> = vec![None; batch.len()];
    for (response, request) in (0..).zip(requests.iter()) {
        if let Some(request) = request {
            response_of[*request as usize] = Some(response);
        }
    }
    let mut start = 0;
    while start < batch.len() {
        let same = batch.ts[start..]
            .iter()
            .take_while(|ts| **ts == batch.ts[start]);
        let end = start + same.count();
        if end - start == 1 {
            start = end;
            continue;
        }
        let folded = (start..end).filter(|&row| response_of[row].is_some());
        if folded.clone().next().is_some() {
            let folded: Vec<usize> = folded.collect();
            let mut delivered = Vec::with_capacity(end - start);
            for row in (start..end).filter(|&row| response_of[row].is_none()) {
                let own = requests[row].map(|request| request as usize);
                delivered.extend(own.filter(|own| (start..end).contains(own)));
                delivered.push(row);
            }
            let is_later = |row: &&usize| response_of[**row].is_some_and(|r| r as usize >= end);
            let mut later: Vec<usize> = folded.iter().filter(is_later).copied().collect();
            later.sort_by_key(|&row| number.get(row));
            delivered.extend(later);
            if !delivered.into_iter().eq(start..end) {
                for row in folded {
                    let response = response_of[row].expect("it is folded");
                    requests[response as usize] = None;
                }
            }
        }
        start = end;
    }
}
