//! The results of window functions over the rows of one partition.

use std::ops::Range;

use weir_model::{Column, ColumnBuilder, Value};

use crate::eval::{Rows, eval, eval_all};
use crate::function::{AggregateCall, EvalError};
use crate::plan::over::{FrameUnit, OverFunction, RowFrame};
use crate::plan::{OverCall, Partitioning};

/// The rows of a partition, in order.
pub(super) struct PartitionRows<'a> {
    rows: Rows<'a>,
    /// The first peer of each row.
    first_peers: Vec<usize>,
    /// The end of the peers of each row.
    peers_end: Vec<usize>,
    /// The first row of each group of peers.
    groups: Vec<usize>,
    /// The values of the only sort key, if it is one of integers and a frame compares them.
    distances: Option<Distances>,
}

/// The sort key as positions on a line on which later rows are further.
struct Distances {
    positions: Vec<i128>,
    /// The rows whose key is not NULL.
    known: Range<usize>,
}

impl<'a> PartitionRows<'a> {
    /// The rows with these columns, for these calls.
    ///
    /// # Errors
    /// When a sort key cannot be computed.
    pub fn new(
        columns: &'a [Column],
        first_peers: Vec<usize>,
        by: &Partitioning,
        calls: &[OverCall],
    ) -> Result<PartitionRows<'a>, EvalError> {
        let len = first_peers.len();
        let rows = Rows { columns, len };
        let mut peers_end = vec![len; len];
        for row in (1..len).rev() {
            let is_same = first_peers[row] == first_peers[row - 1];
            peers_end[row - 1] = if is_same { peers_end[row] } else { row };
        }
        let distances = match &by.order[..] {
            [key] if calls.iter().any(|call| call.frame.has_distance()) => {
                Distances::of(&eval(&key.expr, rows)?, key.descending)
            }
            _ => None,
        };
        let groups = (0..len).filter(|row| first_peers[*row] == *row);
        Ok(PartitionRows {
            rows,
            groups: groups.collect(),
            first_peers,
            peers_end,
            distances,
        })
    }

    /// The result of a call for each of the wanted rows.
    ///
    /// # Errors
    /// When an argument or a result cannot be computed.
    pub fn results(&self, call: &OverCall, wanted: Range<usize>) -> Result<Column, EvalError> {
        let len = self.rows.len;
        let mut out = ColumnBuilder::new(call.function.returns().0, wanted.len());
        let number = |n: usize| Value::Int(n as i64);
        match &call.function {
            OverFunction::RowNumber => wanted.for_each(|row| out.push(number(row + 1))),
            OverFunction::Rank => {
                let ranks = self.first_peers[wanted].iter();
                ranks.for_each(|first| out.push(number(first + 1)));
            }
            OverFunction::DenseRank => {
                wanted.for_each(|row| out.push(number(self.group(row) + 1)));
            }
            OverFunction::Ntile(parts) => {
                let parts = usize::try_from(*parts).unwrap_or(usize::MAX);
                // The first parts have one row more where the rows cannot be divided evenly.
                let (size, longer) = (len / parts, len % parts);
                let in_longer = longer * (size + 1);
                let part = |row: usize| match row.checked_sub(in_longer) {
                    None => row / (size + 1),
                    Some(after) => longer + after / size.max(1),
                };
                wanted.for_each(|row| out.push(number(part(row) + 1)));
            }
            OverFunction::PercentRank => {
                let others = len.saturating_sub(1).max(1) as f64;
                let before = self.first_peers[wanted].iter();
                before.for_each(|before| out.push(Value::Float(*before as f64 / others)));
            }
            OverFunction::CumeDist => {
                let ends = self.peers_end[wanted].iter();
                ends.for_each(|end| out.push(Value::Float(*end as f64 / len as f64)));
            }
            OverFunction::Nth(value, n) => {
                let values = eval(value, self.rows)?;
                let skipped = usize::try_from(*n - 1).unwrap_or(usize::MAX);
                for row in wanted {
                    let nth = self.frame(call.frame, row).nth(skipped);
                    out.push(nth.map_or(Value::Null, |at| values.value(at)));
                }
            }
            OverFunction::Offset {
                value,
                rows,
                default,
            } => {
                let values = eval(value, self.rows)?;
                let defaults = default.as_ref().map(|d| eval(d, self.rows)).transpose()?;
                for row in wanted {
                    let other = (row as i64).checked_add(*rows);
                    let other = other.and_then(|at| usize::try_from(at).ok());
                    out.push(match (other.filter(|at| *at < len), &defaults) {
                        (Some(other), _) => values.value(other),
                        (None, Some(defaults)) => defaults.value(row),
                        (None, None) => Value::Null,
                    });
                }
            }
            OverFunction::First(value) | OverFunction::Last(value) => {
                let values = eval(value, self.rows)?;
                let is_first = matches!(call.function, OverFunction::First(_));
                for row in wanted {
                    let frame = self.frame(call.frame, row);
                    out.push(match (frame.is_empty(), is_first) {
                        (true, _) => Value::Null,
                        (false, true) => values.value(frame.start),
                        (false, false) => values.value(frame.end - 1),
                    });
                }
            }
            OverFunction::Aggregate(aggregate) => {
                self.aggregate(aggregate, call.frame, wanted, &mut out)?;
            }
        }
        Ok(out.finish())
    }

    /// An aggregate over the frame of each wanted row. Both ends of the frame only move forward, so
    /// that each row is inserted and retracted once.
    fn aggregate(
        &self,
        call: &AggregateCall,
        frame: RowFrame,
        wanted: Range<usize>,
        out: &mut ColumnBuilder,
    ) -> Result<(), EvalError> {
        let args = eval_all(&call.args, self.rows)?;
        let mut state = call.function.state(call);
        state.resize(1);
        let mut held = 0..0;
        let mut unread = ColumnBuilder::new(call.ty, 0);
        for row in wanted {
            let frame = self.frame(frame, row);
            if frame.start >= held.end || frame.start < held.start || frame.end < held.end {
                state.clear(0);
                held = frame.start..frame.start;
            }
            let changes = [(held.end..frame.end, 1), (held.start..frame.start, -1)];
            for (rows, weight) in changes {
                let len = rows.len();
                if len > 0 {
                    let args: Vec<Column> =
                        args.iter().map(|arg| arg.slice(rows.start, len)).collect();
                    let (groups, weights) = (vec![0; len], vec![weight; len]);
                    state.update(&groups, &weights, &args, &vec![false; len], &mut unread)?;
                }
            }
            held = frame;
            out.push(state.result(0)?);
        }
        Ok(())
    }

    /// The rows of the frame of a row.
    fn frame(&self, frame: RowFrame, row: usize) -> Range<usize> {
        let len = self.rows.len;
        let start = frame
            .start
            .map_or(0, |by| self.bound(frame.unit, row, by, false));
        let end = frame
            .end
            .map_or(len, |by| self.bound(frame.unit, row, by, true));
        start..end.max(start)
    }

    /// The number of the group of peers of a row, from 0.
    fn group(&self, row: usize) -> usize {
        self.groups.partition_point(|first| *first <= row) - 1
    }

    /// The first row at a distance from a row, or with `past` the first one past it.
    fn bound(&self, unit: FrameUnit, row: usize, by: i64, past: bool) -> usize {
        match (unit, by, &self.distances) {
            (FrameUnit::Rows, ..) => {
                let at = (row as i64).saturating_add(by);
                let at = at.saturating_add(i64::from(past));
                usize::try_from(at).unwrap_or(0).min(self.rows.len)
            }
            (FrameUnit::Groups, ..) => {
                let group = self.group(row) as i64;
                let group = group.saturating_add(by).saturating_add(i64::from(past));
                match usize::try_from(group) {
                    Ok(group) => *self.groups.get(group).unwrap_or(&self.rows.len),
                    Err(_) => 0,
                }
            }
            (FrameUnit::Range, 1.. | ..=-1, Some(distances)) if distances.known.contains(&row) => {
                distances.bound(row, by, past)
            }
            // NULLs are at no distance from each other, and at an unknown one from all others.
            (FrameUnit::Range, ..) if past => self.peers_end[row],
            (FrameUnit::Range, ..) => self.first_peers[row],
        }
    }
}

impl Distances {
    fn of(keys: &Column, descending: bool) -> Option<Distances> {
        let position = |row: usize| match keys.value(row) {
            Value::Int(x) if descending => Some(-i128::from(x)),
            Value::Int(x) => Some(i128::from(x)),
            Value::Null => Some(0),
            _ => None,
        };
        let positions: Option<Vec<i128>> = (0..keys.len()).map(position).collect();
        // NULLs are at one end.
        let start = (0..keys.len()).find(|row| !keys.is_null(*row));
        let end = (0..keys.len()).rfind(|row| !keys.is_null(*row));
        Some(Distances {
            positions: positions?,
            known: start.unwrap_or(0)..end.map_or(0, |end| end + 1),
        })
    }

    fn bound(&self, row: usize, by: i64, past: bool) -> usize {
        let limit = self.positions[row] + i128::from(by);
        let is_before = |x: &i128| if past { *x <= limit } else { *x < limit };
        let known = &self.positions[self.known.clone()];
        self.known.start + known.partition_point(is_before)
    }
}
