//! [`PartialCombiner`]: the partials of several engines, combined into those of one.

use weir_model::{Batch, Column};

use super::interval::Interval;
use super::tumbling::first_columns;
use crate::engine::{batch_bytes, in_time_order};
use crate::function::EvalError;
use crate::plan::{Node, Plan};

/// A combined row above this is not made: a message contains whole rows, and its size is limited.
const ROW_BYTES_MAX: usize = 1 << 20;

/// Combines the partials that several engines emit for one plan.
///
/// The laws of merging hold: merging what it returns gives the result of merging its input, in any
/// order and grouping.
pub struct PartialCombiner {
    keys: usize,
    groups: Interval,
}

impl PartialCombiner {
    /// For the rows of a plan of partials; `None` for other plans.
    pub fn of(plan: &Plan) -> Option<PartialCombiner> {
        let Node::Partial { keys, calls, .. } = &plan.node else {
            return None;
        };
        let columns = first_columns(&plan.schema, keys.len());
        Some(PartialCombiner {
            keys: keys.len(),
            groups: Interval::new(&columns, calls).counting_requests(),
        })
    }

    /// One row for each instant and group, in timestamp order; at an instant where one would be too
    /// large, the rows as they are. The input has all rows of its instants; it need not be in order.
    ///
    /// # Errors
    /// When a row has no valid partials.
    pub fn combine(&mut self, rows: &[Batch]) -> Result<Batch, EvalError> {
        let rows = in_time_order(rows);
        let mut combined = Vec::new();
        let mut from = 0;
        while from < rows.len() {
            let at = rows.ts[from];
            let to = from + rows.ts[from..].partition_point(|&ts| ts <= at);
            let of_instant = rows.slice(from, to - from);
            let one = self.instant(at, &of_instant)?;
            combined.push(match is_too_large(&one) {
                true => of_instant,
                false => one,
            });
            from = to;
        }
        Ok(match combined.is_empty() {
            true => rows,
            false => in_time_order(&combined),
        })
    }

    fn instant(&mut self, at: i64, rows: &Batch) -> Result<Batch, EvalError> {
        let (keys, rest) = rows.columns.split_at(self.keys);
        let Some((Column::Int(requests), partials)) = rest.split_last() else {
            return Err(EvalError::new("the number of requests is missing"));
        };
        let requests = requests.values().iter();
        let requests: Vec<u64> = requests.map(|n| u64::try_from(*n).unwrap_or(0)).collect();
        let merged = self.groups.merge(keys, partials, rows.len());
        let groups = merged.inspect_err(|_| self.groups.clear())?;
        self.groups.count(groups.into_iter().zip(requests));
        let pane = self.groups.pane(at);
        let mut columns = [pane.keys, pane.partials].concat();
        columns.extend(pane.requests);
        Ok(Batch::stream(vec![at; pane.len], columns))
    }
}

fn is_too_large(rows: &Batch) -> bool {
    let is_large = |row| batch_bytes(&rows.slice(row, 1)) > ROW_BYTES_MAX;
    batch_bytes(rows) > ROW_BYTES_MAX && (0..rows.len()).any(is_large)
}
