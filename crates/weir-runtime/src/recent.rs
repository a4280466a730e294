//! [`RecentRows`]: the rows that a live tap delivered in the last minutes, for queries about them.
//!
//! The rows stay in the columns in which the tap delivered them. Their age and their memory are
//! bounded; the oldest ones are removed first, and [`RecentRows::interval`] begins at the instant
//! from which on nothing was removed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_model::{Batch, Column, Folded, Nanos, Schema};
use weir_tap::{EventCount, Tap, TapError, TapEvent};

/// Batches with fewer rows are joined, because the memory of a small batch is that of its columns.
const JOINED_ROWS: usize = 1024;

/// The memory of a column beside its values, in bytes.
const COLUMN_BYTES: usize = 160;

/// The memory of a value, in bytes. Texts are symbols.
const VALUE_BYTES: usize = 8;

/// The bounds of [`RecentRows`].
#[derive(Clone, Copy, Debug)]
pub struct RecentLimits {
    /// The maximum age of a row.
    pub age: Duration,
    /// The maximum memory in bytes.
    pub bytes: usize,
}

/// The most recent rows of one stream.
pub struct RecentRows {
    schema: Arc<Schema>,
    limits: RecentLimits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    batches: VecDeque<Batch>,
    /// The newest rows, in small batches.
    newest: Vec<Batch>,
    newest_rows: usize,
    bytes: usize,
    /// All rows after this instant are here; `None` before the tap's first message.
    since: Option<Nanos>,
    /// The last instant that the tap has reported.
    until: Nanos,
}

impl RecentRows {
    /// No rows of a stream with this schema.
    pub fn new(schema: Arc<Schema>, limits: RecentLimits) -> Arc<RecentRows> {
        Arc::new(RecentRows {
            schema,
            limits,
            state: Mutex::default(),
        })
    }

    /// The tap, whose rows are retained as they are delivered.
    pub fn of_tap(self: &Arc<RecentRows>, tap: Box<dyn Tap>) -> Box<dyn Tap> {
        Box::new(RetainingTap {
            tap,
            rows: self.clone(),
        })
    }

    /// A tap that delivers the present rows as demand 0, and ends.
    pub fn replay(&self) -> Box<dyn Tap> {
        let state = self.state();
        let batches = state.batches.iter().chain(&state.newest);
        Box::new(ReplayTap {
            batches: batches.cloned().collect(),
            last: None,
        })
    }

    /// The interval of which all rows are here: after the first instant, up to the second.
    pub fn interval(&self) -> Option<(Nanos, Nanos)> {
        let state = self.state();
        state.since.map(|since| (since, state.until))
    }

    fn add(&self, batch: &Batch) {
        let mut state = self.state();
        let (Some(first), Some(last)) = (batch.ts.first(), batch.ts.last()) else {
            return;
        };
        state.since.get_or_insert(first - 1);
        state.until = state.until.max(*last);
        state.bytes += bytes(batch);
        state.newest_rows += batch.len();
        state.newest.push(batch.clone());
        if state.newest_rows >= JOINED_ROWS {
            let small = std::mem::take(&mut state.newest);
            state.newest_rows = 0;
            let batch = joined(&self.schema, &small);
            state.bytes -= small.iter().map(bytes).sum::<usize>();
            state.bytes += bytes(&batch);
            state.batches.push_back(batch);
        }
        self.bound(&mut state);
    }

    fn advance(&self, at: Nanos) {
        let mut state = self.state();
        state.since.get_or_insert(at);
        state.until = state.until.max(at);
        self.bound(&mut state);
    }

    /// Removes the oldest rows beyond the limits.
    fn bound(&self, state: &mut State) {
        let age = i64::try_from(self.limits.age.as_nanos()).unwrap_or(i64::MAX);
        let oldest = state.until.saturating_sub(age);
        loop {
            let is_small = state.batches.is_empty();
            let first = state.batches.front().or(state.newest.first());
            let last = first.and_then(|batch| batch.ts.last().copied());
            let Some(last) = last.filter(|&last| last < oldest || state.bytes > self.limits.bytes)
            else {
                break;
            };
            let removed = match is_small {
                true => state.newest.remove(0),
                false => state.batches.pop_front().expect("it was found"),
            };
            if is_small {
                state.newest_rows -= removed.len();
            }
            state.bytes -= bytes(&removed);
            state.since = Some(last);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory of a batch in bytes.
fn bytes(batch: &Batch) -> usize {
    let of_column = |column: &Column| match column {
        Column::Nulls(_) => 0,
        column => COLUMN_BYTES + column.len() * VALUE_BYTES,
    };
    let columns: usize = batch.columns.iter().map(of_column).sum();
    columns + batch.len() * VALUE_BYTES
}

/// The rows of all batches of a stream.
fn joined(schema: &Schema, batches: &[Batch]) -> Batch {
    let fields = schema.fields.iter().enumerate();
    let columns = fields.map(|(i, field)| {
        let parts = || batches.iter().map(|batch| &batch.columns[i]);
        if parts().all(|column| matches!(column, Column::Nulls(_))) {
            return Column::Nulls(parts().map(Column::len).sum());
        }
        let values = parts().flat_map(|column| (0..column.len()).map(|row| column.value(row)));
        Column::from_values(field.ty, values)
    });
    let ts: Vec<Nanos> = batches.iter().flat_map(|b| b.ts.iter().copied()).collect();
    Batch::stream(ts, columns.collect())
}

/// A tap whose rows are retained.
struct RetainingTap {
    tap: Box<dyn Tap>,
    rows: Arc<RecentRows>,
}

impl Tap for RetainingTap {
    fn next(&mut self, timeout: Duration) -> Result<TapEvent, TapError> {
        let event = self.tap.next(timeout)?;
        match &event {
            TapEvent::Rows { batch, .. } => self.rows.add(batch),
            TapEvent::Heartbeat(at) => self.rows.advance(*at),
            _ => {}
        }
        Ok(event)
    }

    fn close(&mut self) -> Vec<(usize, Folded)> {
        self.tap.close()
    }

    fn counts(&mut self) -> Vec<EventCount> {
        self.tap.counts()
    }

    fn lost(&self) -> i64 {
        self.tap.lost()
    }

    fn in_flight_since(&mut self) -> Option<Nanos> {
        self.tap.in_flight_since()
    }

    fn progress(&self) -> Option<f64> {
        self.tap.progress()
    }

    fn describe(&self) -> Vec<String> {
        self.tap.describe()
    }

    fn messages(&self) -> Vec<String> {
        self.tap.messages()
    }

    fn responses_assumed(&self) -> bool {
        self.tap.responses_assumed()
    }
}

/// Delivers retained rows.
struct ReplayTap {
    batches: VecDeque<Batch>,
    /// The last instant of the batch that was delivered.
    last: Option<Nanos>,
}

impl Tap for ReplayTap {
    fn next(&mut self, _: Duration) -> Result<TapEvent, TapError> {
        // The next batch may begin with this very instant.
        if let Some(last) = self.last.take() {
            return Ok(TapEvent::Heartbeat(last - 1));
        }
        Ok(match self.batches.pop_front() {
            Some(batch) => {
                self.last = batch.ts.last().copied();
                TapEvent::Rows { demand: 0, batch }
            }
            None => TapEvent::End,
        })
    }

    fn counts(&mut self) -> Vec<EventCount> {
        Vec::new()
    }

    fn describe(&self) -> Vec<String> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use weir_model::{Field, Type};

    use super::*;

    fn schema() -> Arc<Schema> {
        let fields = vec![Field::new("n", Type::Int), Field::new("text", Type::Text)];
        Arc::new(Schema::new(fields))
    }

    fn rows(from: i64, count: i64) -> Batch {
        let ts: Vec<i64> = (from..from + count).collect();
        let columns = vec![
            Column::ints(ts.iter().map(|n| 10 * n).collect()),
            Column::Nulls(ts.len()),
        ];
        Batch::stream(ts, columns)
    }

    fn replayed(recent: &RecentRows) -> Vec<i64> {
        let mut tap = recent.replay();
        let mut found = Vec::new();
        loop {
            match tap.next(Duration::ZERO).unwrap() {
                TapEvent::Rows { batch, .. } => {
                    for row in 0..batch.len() {
                        let n = batch.ts[row];
                        assert_eq!(
                            batch.columns[0].value(row).to_string(),
                            (10 * n).to_string()
                        );
                        found.push(n);
                    }
                }
                TapEvent::End => return found,
                _ => {}
            }
        }
    }

    fn recent(age: u64, bytes: usize) -> Arc<RecentRows> {
        let age = Duration::from_nanos(age);
        RecentRows::new(schema(), RecentLimits { age, bytes })
    }

    #[test]
    fn rows_are_replayed_in_order_also_when_small_batches_are_joined() {
        let recent = recent(1 << 40, 1 << 30);
        let mut next = 0;
        for count in [1, 7, 1030, 3, 1, 900, 900, 2] {
            recent.add(&rows(next, count));
            next += count;
        }
        assert_eq!(replayed(&recent), (0..next).collect::<Vec<i64>>());
        assert_eq!(recent.interval(), Some((-1, next - 1)));
    }

    #[test]
    fn old_rows_are_removed_and_the_interval_begins_after_them() {
        let recent = recent(1_000, 1 << 30);
        recent.add(&rows(0, 10));
        recent.add(&rows(10, 2_000));
        recent.advance(2_500);
        let (since, until) = recent.interval().unwrap();
        assert_eq!(until, 2_500);
        let found = replayed(&recent);
        assert_eq!(found, (since + 1..2_010).collect::<Vec<i64>>());
        recent.advance(10_000);
        assert_eq!(replayed(&recent), Vec::<i64>::new());
        assert_eq!(recent.interval(), Some((2_009, 10_000)));
    }

    #[test]
    fn the_memory_is_bounded() {
        let recent = recent(1 << 40, 100_000);
        for i in 0..1_000 {
            recent.add(&rows(i * 100, 100));
            assert!(recent.state().bytes <= 100_000);
        }
        let (since, _) = recent.interval().unwrap();
        let found = replayed(&recent);
        assert_eq!(found, (since + 1..100_000).collect::<Vec<i64>>());
        let state = recent.state();
        let counted = state.batches.iter().chain(&state.newest).map(bytes);
        assert_eq!(counted.sum::<usize>(), state.bytes);
        assert!(found.len() > 2_000, "{}", found.len());
    }
}
