//! Rows of `IOstream` and `IO`: batches from events, and events from batches, by the table of
//! columns.

use std::sync::LazyLock;

use arrow_array::{Int64Array, UInt32Array};
use arrow_buffer::{BooleanBuffer, NullBuffer};

use super::{Access, Event, EventKind, IoEvent, Op, event_columns, io_columns};
use crate::{Batch, Column, Field, Symbol};

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
        let columns = self
            .columns
            .iter()
            .map(|get| column(events, |e| e, *get))
            .collect();
        Batch::stream(ts, columns)
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
        let event = self
            .event
            .iter()
            .map(|get| column(events, |e| &e.event, *get));
        let own = self.own.iter().map(|get| column(events, |e| e, *get));
        Batch::stream(ts, event.chain(own).collect())
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

fn column<T, R>(rows: &[T], of: impl Fn(&T) -> &R, get: Option<Access<R>>) -> Column {
    match get {
        None => Column::Nulls(rows.len()),
        Some(Access::Int(get, _) | Access::Derived(get)) => {
            let (values, nulls) = gather(rows, |row| get(of(row)));
            Column::Int(Int64Array::new(values.into(), nulls))
        }
        Some(Access::Text(get, _)) => {
            let (values, nulls) = gather(rows, |row| get(of(row)).map(Symbol::id));
            Column::Text(UInt32Array::new(values.into(), nulls))
        }
    }
}

fn gather<T, V: Default>(
    rows: &[T],
    get: impl Fn(&T) -> Option<V>,
) -> (Vec<V>, Option<NullBuffer>) {
    let mut missing = 0;
    let values: Vec<V> = rows
        .iter()
        .map(|row| {
            let value = get(row);
            missing += usize::from(value.is_none());
            value.unwrap_or_default()
        })
        .collect();
    let nulls = (missing > 0).then(|| {
        NullBuffer::new(BooleanBuffer::collect_bool(rows.len(), |i| {
            get(&rows[i]).is_some()
        }))
    });
    (values, nulls)
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
