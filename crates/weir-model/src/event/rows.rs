//! Rows of `IOstream` and `IO`: batches from events, and events from batches, by the table of
//! columns.

use std::sync::LazyLock;

use arrow_array::{Int64Array, UInt32Array};
use arrow_buffer::{NullBuffer, NullBufferBuilder};

use super::{Access, Event, EventKind, IoEvent, Op, event_columns, io_columns};
use crate::{Batch, Column, Field, Nanos, Symbol};

/// The columns common to `IOstream` and `IO`, and those of `IO` alone.
static EVENT_COLUMNS: LazyLock<Vec<(Field, Access<Event>)>> = LazyLock::new(event_columns);
static IO_COLUMNS: LazyLock<Vec<(Field, Access<IoEvent>)>> = LazyLock::new(io_columns);

impl IoEvent {
    /// The number in a column of `IO`, by position; `None` for NULL and in a text column.
    pub fn number(&self, column: usize) -> Option<i64> {
        match EVENT_COLUMNS.get(column) {
            Some((_, Access::Int(get, _) | Access::Derived(get))) => get(&self.event),
            Some((_, Access::Text(..))) => None,
            None => match IO_COLUMNS[column - EVENT_COLUMNS.len()].1 {
                Access::Int(get, _) | Access::Derived(get) => get(self),
                Access::Text(..) => None,
            },
        }
    }

    /// The text in a column of `IO`, by position; `None` for NULL and in a numeric column.
    pub fn text(&self, column: usize) -> Option<Symbol> {
        match EVENT_COLUMNS.get(column) {
            Some((_, Access::Text(get, _))) => get(&self.event),
            Some(_) => None,
            None => match IO_COLUMNS[column - EVENT_COLUMNS.len()].1 {
                Access::Text(get, _) => get(self),
                Access::Int(..) | Access::Derived(_) => None,
            },
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
        let (common, own) = batch.columns.split_at(EVENT_COLUMNS.len());
        for ((field, access), column) in EVENT_COLUMNS.iter().zip(common) {
            store(&mut io.event, field, *access, column, row)?;
        }
        for ((field, access), column) in IO_COLUMNS.iter().zip(own) {
            store(&mut io, field, *access, column, row)?;
        }
        Some(io)
    }
}

/// Stores a value of a column; `None` if the column cannot have it.
fn store<R>(
    event: &mut R,
    field: &Field,
    access: Access<R>,
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
    event: Vec<Option<Access<Event>>>,
    own: Vec<Option<Access<IoEvent>>>,
}

/// Builds batches of `IO` from completed requests that are added one by one; columns that were not
/// requested are NULL and cost nothing.
pub struct IoRows {
    columns: IoBatch,
    /// Whether any column was requested.
    has_columns: bool,
    ts: Vec<i64>,
    values: Vec<Values>,
    /// Rows whose values are not in the columns yet.
    block: Vec<IoEvent>,
}

/// The values of a column so far.
enum Values {
    /// The column was not requested.
    None,
    Int(Vec<i64>, NullBufferBuilder),
    Text(Vec<u32>, NullBufferBuilder),
}

impl EventBatch {
    /// A builder of the columns at the positions `wanted`; `None` means all.
    pub fn new(wanted: Option<&[usize]>) -> EventBatch {
        EventBatch {
            columns: wanted_columns(event_columns(), 0, wanted),
        }
    }

    /// The batch of `events`, which are in timestamp order.
    pub fn build(&self, events: &[Event]) -> Batch {
        let ts: Vec<i64> = events.iter().map(|e| e.ts).collect();
        let capacity = events.len();
        let mut values: Vec<Values> = empty_values(&self.columns, capacity).collect();
        for block in events.chunks(BLOCK_ROWS) {
            append(&mut values, &self.columns, block, |event| event);
        }
        Batch::stream(ts, columns(&mut values, capacity))
    }
}

impl IoBatch {
    /// A builder of the columns at the positions `wanted`; `None` means all.
    pub fn new(wanted: Option<&[usize]>) -> IoBatch {
        let event = wanted_columns(event_columns(), 0, wanted);
        let own = wanted_columns(io_columns(), event.len(), wanted);
        IoBatch { event, own }
    }

    /// The batch of `events`, which are in order of completion.
    pub fn build(&self, events: &[IoEvent]) -> Batch {
        let ts: Vec<i64> = events.iter().map(|e| e.event.ts).collect();
        let mut values = self.values(events.len());
        for block in events.chunks(BLOCK_ROWS) {
            self.append(&mut values, block);
        }
        Batch::stream(ts, columns(&mut values, events.len()))
    }

    fn values(&self, capacity: usize) -> Vec<Values> {
        let event = empty_values(&self.event, capacity);
        event.chain(empty_values(&self.own, capacity)).collect()
    }

    fn append(&self, values: &mut [Values], block: &[IoEvent]) {
        let (event, own) = values.split_at_mut(self.event.len());
        append(event, &self.event, block, |row| &row.event);
        append(own, &self.own, block, |row| row);
    }
}

impl IoRows {
    /// A builder of the columns at the positions `wanted`; `None` means all.
    pub fn new(wanted: Option<&[usize]>) -> IoRows {
        let columns = IoBatch::new(wanted);
        let is_wanted = |values: &Values| !matches!(values, Values::None);
        let values = columns.values(0);
        IoRows {
            has_columns: values.iter().any(is_wanted),
            columns,
            ts: Vec::new(),
            values,
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
        self.columns.append(&mut self.values, &self.block);
        self.block.clear();
    }
}

fn wanted_columns<R>(
    columns: Vec<(Field, Access<R>)>,
    first: usize,
    wanted: Option<&[usize]>,
) -> Vec<Option<Access<R>>> {
    let asked = |i: usize| wanted.is_none_or(|w| w.contains(&i));
    columns
        .into_iter()
        .enumerate()
        .map(|(i, (_, get))| asked(first + i).then_some(get))
        .collect()
}

/// No values of each column.
fn empty_values<R>(columns: &[Option<Access<R>>], capacity: usize) -> impl Iterator<Item = Values> {
    columns.iter().map(move |access| match access {
        None => Values::None,
        Some(Access::Int(..) | Access::Derived(_)) => Values::Int(
            Vec::with_capacity(capacity),
            NullBufferBuilder::new(capacity),
        ),
        Some(Access::Text(..)) => Values::Text(
            Vec::with_capacity(capacity),
            NullBufferBuilder::new(capacity),
        ),
    })
}

/// Appends the values of a block of rows to each column.
fn append<T, R>(
    values: &mut [Values],
    columns: &[Option<Access<R>>],
    block: &[T],
    of: impl Fn(&T) -> &R,
) {
    for (values, access) in values.iter_mut().zip(columns) {
        match (values, access) {
            (Values::Int(values, nulls), Some(Access::Int(get, _) | Access::Derived(get))) => {
                gather(values, nulls, block, |row| get(of(row)));
            }
            (Values::Text(values, nulls), Some(Access::Text(get, _))) => {
                gather(values, nulls, block, |row| get(of(row)).map(Symbol::id));
            }
            _ => {}
        }
    }
}

fn gather<T, V: Default>(
    values: &mut Vec<V>,
    nulls: &mut NullBufferBuilder,
    block: &[T],
    get: impl Fn(&T) -> Option<V>,
) {
    let mut missing = 0;
    values.extend(block.iter().map(|row| {
        let value = get(row);
        missing += usize::from(value.is_none());
        value.unwrap_or_default()
    }));
    match missing {
        0 => nulls.append_n_non_nulls(block.len()),
        _ if missing == block.len() => nulls.append_n_nulls(missing),
        _ => block
            .iter()
            .for_each(|row| nulls.append(get(row).is_some())),
    }
}

/// The columns of `rows` rows; `values` are then empty.
fn columns(values: &mut [Values], rows: usize) -> Vec<Column> {
    let take = |values: &mut Values| match values {
        Values::None => Column::Nulls(rows),
        Values::Int(values, nulls) => match finished(values, nulls, rows) {
            (_, Some(nulls)) if nulls.null_count() == rows => Column::Nulls(rows),
            (values, nulls) => Column::Int(Int64Array::new(values.into(), nulls)),
        },
        Values::Text(values, nulls) => match finished(values, nulls, rows) {
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
