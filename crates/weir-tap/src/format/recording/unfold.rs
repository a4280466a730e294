//! Restores the events of a recording of requests from its rows, one for each request; see
//! [`super::folded`].

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, Int64Array, UInt32Array};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use arrow_select::concat::concat;
use weir_model::{Batch, Column, EventKind, Nanos};

use super::folded::{
    AT, BLOCK, BLOCK_ROWS, IssueOrder, KNOWN_AT_ISSUE, REQUEST, REQUEST_AGENT_TS,
    REQUEST_MONITOR_TS, RequestOrder, added, issues, restored, services, stored_as, vsectors,
};
use super::rows::Row;

/// The columns of the file that a request in the row of its response has for itself.
#[derive(Clone)]
pub struct Requests {
    agent_ts: Column,
    monitor_ts: Column,
    kind: Column,
}

/// The derived columns that follow from other rows of a block.
const OF_BLOCK: [&str; 3] = ["req_id", "seek", "interarrival"];

/// Names of columns, of `IO` and of the file, that reading `names` needs as well.
///
/// `names` are columns of `IO`; `with_requests` is true if requests are delivered. The file has the
/// columns for which `is_in_file` is true.
pub fn needed(names: &mut Vec<&str>, with_requests: bool, is_in_file: impl Fn(&str) -> bool) {
    names.push(REQUEST);
    if with_requests {
        names.extend(["issue_ts", "req_id", BLOCK]);
        let own = [
            ("agent_ts", REQUEST_AGENT_TS),
            ("monitor_ts", REQUEST_MONITOR_TS),
        ];
        for (own, of_request) in own {
            if names.contains(&own) {
                names.push(of_request);
            }
        }
    }
    // A column after those that are predicted from it.
    let of_disk = &["sector", "sectors", "req_id", "pdisk", "vm", "vdisk"][..];
    let of_order = &["type", "issue_ts", "req_id", "pdisk", "vm", "vdisk"][..];
    let predicted_from = [
        ("seek", of_disk),
        ("interarrival", of_order),
        ("req_id", &["type", "issue_ts"]),
        ("vsector", &["sector"]),
        ("issue_ts", &["service", "latency"]),
        ("service", &["latency", "wait"]),
    ];
    for (derived, from) in predicted_from {
        let stored = stored_as(derived).filter(|stored| is_in_file(stored));
        if let Some(stored) = stored.filter(|_| names.contains(&derived)) {
            names.extend(from);
            names.push(stored);
            if OF_BLOCK.contains(&derived) {
                names.extend([BLOCK, BLOCK_ROWS]);
            }
        }
    }
}

/// Restores the derived columns among `own`, the columns of `IO` of these rows, from the columns
/// `of_file`; those of [`OF_BLOCK`] only if the rows are a block. Returns the order of issue if it
/// was needed for that.
///
/// # Errors
/// If rows of the block are missing, or there are others, a sentence. Columns that follow from them
/// are NULL.
pub fn derive(
    own: &mut [Column],
    of_file: &[Column],
    ts: &[Nanos],
    is_block: bool,
) -> Result<Option<IssueOrder>, String> {
    let (at, len) = (&*AT, ts.len());
    let difference = |name: &str| &of_file[added(name)];
    let is_stored = |name: &str| !matches!(difference(name), Column::Nulls(_));
    if is_stored("weir.vsector") {
        let predicted = vsectors(len, &own[at.sector]);
        own[at.vsector] = restored(difference("weir.vsector"), &predicted);
    }
    if is_stored("weir.service") {
        let predicted = services(len, &own[at.latency], &own[at.wait]);
        own[at.service] = restored(difference("weir.service"), &predicted);
    }
    if is_stored("weir.issue_ts") {
        let predicted = issues(ts, &own[at.service], &own[at.latency]);
        own[at.issue_ts] = restored(difference("weir.issue_ts"), &predicted);
    }
    let [number, seek, interarrival] =
        ["weir.req_id", "weir.seek", "weir.interarrival"].map(is_stored);
    if !is_block || !(number || seek || interarrival) {
        return Ok(None);
    }
    let rows = of_file[added(BLOCK_ROWS)].int_values().get(0);
    if let Some(rows) = rows.filter(|rows| *rows != len as i64) {
        for column in [at.req_id, at.seek, at.interarrival] {
            own[column] = Column::Nulls(len);
        }
        return Err(format!(
            "{len} rows of a block of {rows}: some cannot be read, or another program has selected \
             or joined rows; their req_id, seek and interarrival are unknown"
        ));
    }
    let of_issue = number.then(|| IssueOrder::of(ts, own));
    if let Some(order) = &of_issue {
        own[at.req_id] = order.restored(difference("weir.req_id"));
    }
    if !(seek || interarrival) {
        return Ok(of_issue);
    }
    let order = RequestOrder::of(len, own);
    if seek {
        own[at.seek] = restored(difference("weir.seek"), &order.seeks(own));
    }
    if interarrival {
        let predicted = order.interarrivals(ts, own);
        own[at.interarrival] = restored(difference("weir.interarrival"), &predicted);
    }
    Ok(of_issue)
}

/// The columns that requests have for themselves.
pub fn of_requests(of_file: &[Column]) -> Requests {
    Requests {
        agent_ts: of_file[added(REQUEST_AGENT_TS)].clone(),
        monitor_ts: of_file[added(REQUEST_MONITOR_TS)].clone(),
        kind: of_file[added(REQUEST)].clone(),
    }
}

/// The events of a block with these rows and columns of `IO`: the rows, and the requests in them
/// where `is_folded` is true, in order. `of_issue` is the order of issue of the block, if it is
/// known.
pub fn events(
    rows: &[Row],
    own: &[Column],
    is_folded: impl Fn(usize) -> bool,
    of_issue: Option<&IssueOrder>,
) -> Vec<Row> {
    let issued = own[AT.issue_ts].int_values();
    let number = own[AT.req_id].int_values();
    let request = |row: &Row| {
        let at = row.at as usize;
        let ts = issued.get(at).filter(|_| is_folded(at))?;
        Some(Row {
            ts,
            at: row.at,
            is_request: true,
            is_in_response: true,
        })
    };
    // Those with the instant of their response are delivered with it.
    let other = |row: &Row| request(row).filter(|request| request.ts != row.ts);
    let of_issue = of_issue.map(IssueOrder::rows);
    let mut requests: Vec<Row> = match of_issue.filter(|order| order.len() == rows.len()) {
        Some(order) => {
            let in_order = order.iter().map(|at| &rows[*at as usize]);
            in_order.filter_map(other).collect()
        }
        None => rows.iter().filter_map(other).collect(),
    };
    let number_of = |request: &Row| number.get(request.at as usize);
    let in_order = |a: &Row, b: &Row| {
        let by_time = a.ts.cmp(&b.ts);
        by_time.then_with(|| number_of(a).cmp(&number_of(b)))
    };
    if !requests.is_sorted_by(|a, b| in_order(a, b).is_le()) {
        requests.sort_by(in_order);
    }
    let mut requests = requests.into_iter().peekable();
    let mut events = Vec::with_capacity(2 * rows.len());
    for row in rows {
        while let Some(request) = requests.next_if(|request| request.ts < row.ts) {
            events.push(request);
        }
        events.extend(request(row).filter(|request| request.ts == row.ts));
        events.push(*row);
    }
    events.extend(requests);
    events
}

/// Which rows have a value in columns that requests in the rows of their responses do not have.
pub struct Valid {
    /// Columns of finished requests.
    finished: NullBuffer,
    /// Columns that some requests have.
    known: NullBuffer,
}

impl Requests {
    /// Which of these rows have values.
    pub fn valid(&self, rows: &[Row]) -> Valid {
        let kind = self.kind.int_values();
        let is_own = |at: usize| !rows[at].is_in_response;
        let has = |at: usize| is_own(at) || kind.get(rows[at].at as usize) == Some(KNOWN_AT_ISSUE);
        Valid {
            finished: BooleanBuffer::collect_bool(rows.len(), is_own).into(),
            known: BooleanBuffer::collect_bool(rows.len(), has).into(),
        }
    }

    /// The column at `position` of `IO` or `IOstream` for these rows: `taken` has the values of
    /// their rows in the file.
    pub fn of_rows(&self, position: usize, taken: Column, rows: &[Row], valid: &Valid) -> Column {
        let at = &*AT;
        match position {
            0 => Column::ints(rows.iter().map(|row| row.ts).collect()),
            _ if position == at.kind => kinds(&taken, rows),
            _ if position == at.agent_ts => times(&taken, &self.agent_ts, rows),
            _ if position == at.monitor_ts => times(&taken, &self.monitor_ts, rows),
            _ if at.known.contains(&position) => nulled(taken, &valid.known),
            _ if position == at.error || position >= at.finished => nulled(taken, &valid.finished),
            _ => taken,
        }
    }
}

/// The types of events.
fn kinds(taken: &Column, rows: &[Row]) -> Column {
    let [request, ..] = EventKind::ALL.map(|kind| kind.symbol().id());
    let Column::Text(ids) = taken else {
        return taken.clone();
    };
    let each = rows.iter().zip(ids.values());
    let ids: Vec<u32> = each
        .map(|(row, id)| if row.is_in_response { request } else { *id })
        .collect();
    Column::Text(UInt32Array::from(ids))
}

/// The times of rows, and those of requests in the rows of their responses.
fn times(taken: &Column, of_requests: &Column, rows: &[Row]) -> Column {
    let (own, of_requests) = (taken.int_values(), of_requests.int_values());
    let each = rows.iter().enumerate();
    let time = |(at, row): (usize, &Row)| match row.is_in_response {
        true => of_requests.get(row.at as usize),
        false => own.get(at),
    };
    Column::Int(each.map(time).collect::<Int64Array>())
}

/// The column with NULL where `valid` is false.
fn nulled(column: Column, valid: &NullBuffer) -> Column {
    let both = |nulls: Option<&NullBuffer>| NullBuffer::union(nulls, Some(valid));
    match column {
        Column::Int(a) => Column::Int(Int64Array::new(a.values().clone(), both(a.nulls()))),
        Column::Text(a) => Column::Text(UInt32Array::new(a.values().clone(), both(a.nulls()))),
        other => other,
    }
}

/// Rows that are read: the columns of the stream, and those of [`super::folded::ADDED`].
pub struct ReadColumns {
    /// The number of rows.
    pub len: usize,
    /// The columns of the stream.
    pub own: Vec<Column>,
    /// The columns of [`super::folded::ADDED`].
    pub of_file: Vec<Column>,
}

impl ReadColumns {
    fn slice(&self, offset: usize, len: usize) -> ReadColumns {
        let slices = |columns: &[Column]| columns.iter().map(|c| c.slice(offset, len)).collect();
        ReadColumns {
            len,
            own: slices(&self.own),
            of_file: slices(&self.of_file),
        }
    }

    fn joined(pieces: Vec<ReadColumns>) -> ReadColumns {
        let columns = |of: fn(&ReadColumns) -> &[Column]| -> Vec<Column> {
            let count = pieces.first().map_or(0, |piece| of(piece).len());
            let column = |at: usize| joined(pieces.iter().map(|piece| &of(piece)[at]).collect());
            (0..count).map(column).collect()
        };
        ReadColumns {
            len: pieces.iter().map(|piece| piece.len).sum(),
            own: columns(|piece| &piece.own),
            of_file: columns(|piece| &piece.of_file),
        }
    }
}

/// The columns one after another.
fn joined(columns: Vec<&Column>) -> Column {
    let array = |column: &&Column| -> Option<ArrayRef> {
        Some(match column {
            Column::Int(a) => std::sync::Arc::new(a.clone()),
            Column::Text(a) => std::sync::Arc::new(a.clone()),
            Column::Bool(a) => std::sync::Arc::new(a.clone()),
            Column::Float(a) => std::sync::Arc::new(a.clone()),
            _ => return None,
        })
    };
    let arrays: Vec<Option<ArrayRef>> = columns.iter().map(array).collect();
    let Some(first) = arrays.iter().flatten().next() else {
        return Column::Nulls(columns.iter().map(|column| column.len()).sum());
    };
    let nulls = |len: usize| arrow_array::new_null_array(first.data_type(), len);
    let each = columns.iter().zip(&arrays);
    let whole: Vec<ArrayRef> = each
        .map(|(column, array)| array.clone().unwrap_or_else(|| nulls(column.len())))
        .collect();
    let whole: Vec<&dyn Array> = whole.iter().map(AsRef::as_ref).collect();
    let whole = concat(&whole).expect("columns of a recording have one type");
    match columns
        .iter()
        .find(|column| !matches!(column, Column::Nulls(_)))
    {
        Some(Column::Int(_)) => Column::Int(whole.as_primitive().clone()),
        Some(Column::Text(_)) => Column::Text(whole.as_primitive().clone()),
        Some(Column::Float(_)) => Column::Float(whole.as_primitive().clone()),
        _ => Column::Bool(whole.as_boolean().clone()),
    }
}

/// The rows of the batches, one after another.
pub fn joined_batches(batches: &[Batch]) -> Batch {
    if let [batch] = batches {
        return batch.clone();
    }
    let count = batches.first().map_or(0, |batch| batch.columns.len());
    let column = |at: usize| joined(batches.iter().map(|batch| &batch.columns[at]).collect());
    let ts: Vec<Nanos> = batches.iter().flat_map(|b| b.ts.iter().copied()).collect();
    let is_weighted = batches.iter().any(|batch| batch.weights.is_some());
    let weights =
        |batch: &'_ Batch| -> Vec<i64> { (0..batch.len()).map(|row| batch.weight(row)).collect() };
    Batch {
        ts: ts.into(),
        weights: is_weighted.then(|| batches.iter().flat_map(weights).collect()),
        columns: (0..count).map(column).collect(),
    }
}

/// Most rows of a block. The writer makes blocks of at most 32,768 events.
const BLOCK_ROWS_MAX: usize = 1 << 17;

/// Joins the rows of each block.
#[derive(Default)]
pub struct Blocks {
    pieces: Vec<ReadColumns>,
    rows: usize,
    block: Option<i64>,
}

impl Blocks {
    /// Adds rows; returns the blocks that are complete.
    ///
    /// # Errors
    /// If a block has more rows than any that weir writes.
    pub fn add(&mut self, read: &ReadColumns) -> Result<Vec<ReadColumns>, String> {
        let number = read.of_file[added(BLOCK)].int_values();
        let mut complete = Vec::new();
        let mut start = 0;
        while start < read.len {
            let block = number.get(start);
            let same = (start..read.len).take_while(|&row| number.get(row) == block);
            let end = start + same.count();
            if self.block != block {
                complete.extend(self.finish());
            }
            self.block = block;
            self.rows += end - start;
            if self.rows > BLOCK_ROWS_MAX {
                self.finish();
                return Err(format!("a block of more than {BLOCK_ROWS_MAX} rows"));
            }
            self.pieces.push(read.slice(start, end - start));
            start = end;
        }
        Ok(complete)
    }

    /// The last block.
    pub fn finish(&mut self) -> Option<ReadColumns> {
        let pieces = std::mem::take(&mut self.pieces);
        self.rows = 0;
        (!pieces.is_empty()).then(|| ReadColumns::joined(pieces))
    }
}
