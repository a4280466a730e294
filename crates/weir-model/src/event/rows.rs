//! Rows of `IOstream` and `IO`: batches from events, and events from batches, by the table of
//! columns.

use std::sync::LazyLock;

use arrow_array::{Int64Array, UInt32Array};
use arrow_buffer::{NullBuffer, NullBufferBuilder};

use super::{Access, Event, EventKind, HasEvent, IoEvent, Op, event_columns, io_columns};
use crate::{Batch, Column, Field, Nanos, Symbol};

/// The columns of `IO`.
static IO_COLUMNS: LazyLock<Vec<(Field, Access<IoEvent>)>> = LazyLock::new(io_columns);

/// Reads the values of a column, of type `V`, from rows of type `R`. There is an implementation for
/// each closure, so that a block of rows is read without a call for each of them.
pub(super) trait Values<R, V: Stored>: Send + Sync {
    /// The value in a row; `None` is NULL.
    fn of(&self, row: &R) -> Option<V>;

    /// Appends the values of a block of rows.
    fn append(&self, block: &[R], values: &mut Vec<V::Raw>, nulls: &mut NullBufferBuilder);
}

/// A value as arrays have it.
pub(super) trait Stored {
    type Raw: Default;

    fn raw(self) -> Self::Raw;
}

impl Stored for i64 {
    type Raw = i64;

    fn raw(self) -> i64 {
        self
    }
}

impl Stored for Symbol {
    type Raw = u32;

    fn raw(self) -> u32 {
        self.id()
    }
}

impl<R, V: Stored, F: Fn(&R) -> Option<V> + Send + Sync> Values<R, V> for F {
    fn of(&self, row: &R) -> Option<V> {
        self(row)
    }

    fn append(&self, block: &[R], values: &mut Vec<V::Raw>, nulls: &mut NullBufferBuilder) {
        let mut missing = 0;
        values.extend(block.iter().map(|row| {
            let value = self(row);
            missing += usize::from(value.is_none());
            value.map(V::raw).unwrap_or_default()
        }));
        match missing {
            0 => nulls.append_n_non_nulls(block.len()),
            _ if missing == block.len() => nulls.append_n_nulls(missing),
            _ => block
                .iter()
                .for_each(|row| nulls.append(self(row).is_some())),
        }
    }
}

impl IoEvent {
    /// The number in a column of `IO`, by position; `None` for NULL and in a text column.
    pub fn number(&self, column: usize) -> Option<i64> {
        match IO_COLUMNS[column].1 {
            Access::Int(values, _) | Access::Derived(values) => values.of(self),
            Access::Text(..) => None,
        }
    }

    /// The text in a column of `IO`, by position; `None` for NULL and in a numeric column.
    pub fn text(&self, column: usize) -> Option<Symbol> {
        match IO_COLUMNS[column].1 {
            Access::Text(values, _) => values.of(self),
            Access::Int(..) | Access::Derived(_) => None,
        }
    }

    /// The events of a batch in the schema of `IO`. A row is omitted if a column that is not
    /// nullable is NULL, or one with a fixed set of values has another value.
    pub fn of_batch(batch: &Batch) -> Vec<IoEvent> {
        let event = |row| IoEvent::of_row(batch, row);
        (0..batch.len()).filter_map(event).collect()
    }

    fn of_row(batch: &Batch, row: usize) -> Option<IoEvent> {
        let mut io = IoEvent::new(Event::new(
            batch.ts[row],
            EventKind::Response,
            Op::Read,
            0,
            None,
            0,
        ));
        for ((field, access), column) in IO_COLUMNS.iter().zip(&batch.columns) {
            store(&mut io, field, *access, column, row)?;
        }
        Some(io)
    }
}

/// Stores a value of a column; `None` if the column cannot have it.
fn store(
    event: &mut IoEvent,
    field: &Field,
    access: Access<IoEvent>,
    column: &Column,
    row: usize,
) -> Option<()> {
    let is_null = column.is_null(row);
    let is_stored = !matches!(access, Access::Derived(_));
    if is_null && is_stored && !field.nullable {
        return None;
    }
    match (access, column) {
        (Access::Int(_, set), Column::Int(a)) => set(event, (!is_null).then(|| a.value(row))),
        (Access::Text(_, set), Column::Text(a)) => {
            let text = (!is_null).then(|| Symbol::from_id(a.value(row)));
            let known = |text: Symbol| field.values.is_none_or(|set| set.has(text.as_str()));
            if !text.is_none_or(known) {
                return None;
            }
            set(event, text);
        }
        (Access::Int(_, set), _) => set(event, None),
        (Access::Text(_, set), _) => set(event, None),
        (Access::Derived(_), _) => {}
    }
    Some(())
}

/// Rows whose columns are built at once: their events stay in the processor's first cache until
/// each column has their values.
const BLOCK_ROWS: usize = 64;

/// Converts events to batches of `IOstream`; columns that were not requested are NULL and cost
/// nothing.
pub struct EventBatch {
    columns: Vec<Option<Access<Event>>>,
}

/// Converts completed requests to batches of `IO`; columns that were not requested are NULL and
/// cost nothing.
pub struct IoBatch {
    columns: Vec<Option<Access<IoEvent>>>,
}

/// Builds batches of `IO` from completed requests that are added one by one; columns that were not
/// requested are NULL and cost nothing.
pub struct IoRows {
    columns: Vec<Option<Access<IoEvent>>>,
    /// Whether any column was requested.
    has_columns: bool,
    ts: Vec<i64>,
    values: Vec<ColumnValues>,
    /// Rows whose values are not in the columns yet.
    block: Vec<IoEvent>,
}

/// The values of a column so far.
enum ColumnValues {
    /// The column was not requested.
    None,
    Int(Vec<i64>, NullBufferBuilder),
    Text(Vec<u32>, NullBufferBuilder),
}

impl EventBatch {
    /// A builder of the columns at the positions `wanted`; `None` means all.
    pub fn new(wanted: Option<&[usize]>) -> EventBatch {
        EventBatch {
            columns: wanted_columns(event_columns(), wanted),
        }
    }

    /// The batch of `events`, which are in timestamp order.
    pub fn build(&self, events: &[Event]) -> Batch {
        batch(&self.columns, events)
    }
}

impl IoBatch {
    /// A builder of the columns at the positions `wanted`; `None` means all.
    pub fn new(wanted: Option<&[usize]>) -> IoBatch {
        IoBatch {
            columns: wanted_columns(io_columns(), wanted),
        }
    }

    /// The batch of `events`, which are in order of completion.
    pub fn build(&self, events: &[IoEvent]) -> Batch {
        batch(&self.columns, events)
    }
}

impl IoRows {
    /// A builder of the columns at the positions `wanted`; `None` means all.
    pub fn new(wanted: Option<&[usize]>) -> IoRows {
        let columns = wanted_columns(io_columns(), wanted);
        IoRows {
            has_columns: columns.iter().any(Option::is_some),
            values: empty_values(&columns, 0),
            columns,
            ts: Vec::new(),
            block: Vec::with_capacity(BLOCK_ROWS),
        }
    }

    /// Adds the row at `ts`, not before the previous one. `event` makes it; it is not called if no
    /// column was requested.
    pub fn push(&mut self, ts: Nanos, event: impl FnOnce() -> IoEvent) {
        self.ts.push(ts);
        if self.has_columns {
            self.block.push(event());
            if self.block.len() == BLOCK_ROWS {
                self.append_block();
            }
        }
    }

    /// True without rows since the last batch.
    pub fn is_empty(&self) -> bool {
        self.ts.is_empty()
    }

    /// The batch of the rows since the last one.
    pub fn finish(&mut self) -> Batch {
        self.append_block();
        let rows = self.ts.len();
        let ts = std::mem::replace(&mut self.ts, Vec::with_capacity(rows));
        Batch::stream(ts, columns(&mut self.values, rows))
    }

    fn append_block(&mut self) {
        append(&mut self.values, &self.columns, &self.block);
        self.block.clear();
    }
}

/// The batch of `rows`, which are in timestamp order.
fn batch<R: HasEvent>(wanted: &[Option<Access<R>>], rows: &[R]) -> Batch {
    let ts: Vec<i64> = rows.iter().map(|row| row.event().ts).collect();
    let mut values = empty_values(wanted, rows.len());
    for block in rows.chunks(BLOCK_ROWS) {
        append(&mut values, wanted, block);
    }
    Batch::stream(ts, columns(&mut values, rows.len()))
}

fn wanted_columns<R>(
    columns: Vec<(Field, Access<R>)>,
    wanted: Option<&[usize]>,
) -> Vec<Option<Access<R>>> {
    let asked = |i: usize| wanted.is_none_or(|w| w.contains(&i));
    columns
        .into_iter()
        .enumerate()
        .map(|(i, (_, access))| asked(i).then_some(access))
        .collect()
}

/// No values of each column.
fn empty_values<R>(columns: &[Option<Access<R>>], capacity: usize) -> Vec<ColumnValues> {
    let empty = |access: &Option<Access<R>>| match access {
        None => ColumnValues::None,
        Some(Access::Int(..) | Access::Derived(_)) => ColumnValues::Int(
            Vec::with_capacity(capacity),
            NullBufferBuilder::new(capacity),
        ),
        Some(Access::Text(..)) => ColumnValues::Text(
            Vec::with_capacity(capacity),
            NullBufferBuilder::new(capacity),
        ),
    };
    columns.iter().map(empty).collect()
}

/// Appends the values of a block of rows to each column.
fn append<R>(values: &mut [ColumnValues], columns: &[Option<Access<R>>], block: &[R]) {
    for (values, access) in values.iter_mut().zip(columns) {
        match (values, access) {
            (ColumnValues::Int(values, nulls), Some(Access::Int(of, _) | Access::Derived(of))) => {
                of.append(block, values, nulls);
            }
            (ColumnValues::Text(values, nulls), Some(Access::Text(of, _))) => {
                of.append(block, values, nulls);
            }
            _ => {}
        }
    }
}

/// The columns of `rows` rows; `values` are then empty.
fn columns(values: &mut [ColumnValues], rows: usize) -> Vec<Column> {
    let take = |values: &mut ColumnValues| match values {
        ColumnValues::None => Column::Nulls(rows),
        ColumnValues::Int(values, nulls) => match finished(values, nulls, rows) {
            (_, Some(nulls)) if nulls.null_count() == rows => Column::Nulls(rows),
            (values, nulls) => Column::Int(Int64Array::new(values.into(), nulls)),
        },
        ColumnValues::Text(values, nulls) => match finished(values, nulls, rows) {
            (_, Some(nulls)) if nulls.null_count() == rows => Column::Nulls(rows),
            (values, nulls) => Column::Text(UInt32Array::new(values.into(), nulls)),
        },
    };
    values.iter_mut().map(take).collect()
}

/// The values with their NULLs, and room for as many.
fn finished<V>(
    values: &mut Vec<V>,
    nulls: &mut NullBufferBuilder,
    rows: usize,
) -> (Vec<V>, Option<NullBuffer>) {
    let next = Vec::with_capacity(rows);
    (std::mem::replace(values, next), nulls.finish())
}

#[cfg(test)]
mod tests {
    use super::super::{Level, io_schema, iostream_schema};
    use super::*;
    use crate::Value;

    #[test]
    fn a_batch_has_the_values_of_the_event() {
        let mut event = Event::new(5_000, EventKind::Request, Op::Write, 7, Some(64), 8);
        event.vm = Some(Symbol::new("muscatvm51"));
        let batch = EventBatch::new(None).build(&[event]);
        let schema = iostream_schema();
        let value = |name: &str| batch.columns[schema.index(name)].value(0);
        assert_eq!(value("type"), Value::text("Q"));
        assert_eq!(value("bytes"), Value::Int(4096));
        assert_eq!(value("vm"), Value::text("muscatvm51"));
        assert_eq!(value("pid"), Value::Null);
    }

    #[test]
    fn an_event_is_read_back_from_its_row() {
        let event = Event {
            pid: Some(7),
            comm: Some(Symbol::new("fio")),
            level: Level::Vdisk,
            vsector: Some(3),
            ..Event::new(5_000, EventKind::Error, Op::Discard, 9, None, 8)
        };
        let event = IoEvent {
            latency_ns: Some(3),
            issue_ts: Some(4_000),
            ..IoEvent::new(event)
        };
        let mut batch = IoBatch::new(None).build(&[event]);
        assert_eq!(IoEvent::of_batch(&batch), [event]);
        let op = io_schema().index("op");
        for unknown in [Column::texts(["?"]), Column::Nulls(1)] {
            batch.columns[op] = unknown;
            assert_eq!(IoEvent::of_batch(&batch), []);
        }
    }

    #[test]
    fn a_column_without_demand_is_not_built() {
        let schema = io_schema();
        let event = IoEvent {
            wait_ns: Some(1),
            service_ns: Some(2),
            latency_ns: Some(3),
            in_flight: Some(1),
            ..IoEvent::new(Event::new(1, EventKind::Response, Op::Read, 1, Some(0), 1))
        };
        let latency = schema.index("latency");
        let batch = IoBatch::new(Some(&[latency])).build(&[event]);
        assert!(matches!(
            batch.columns[schema.index("op")],
            Column::Nulls(1)
        ));
        assert_eq!(batch.columns[latency].value(0), Value::Int(3));
    }
}
