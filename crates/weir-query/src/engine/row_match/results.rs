//! The emitted rows: for each match the keys of its partition and its results.

use std::collections::BTreeSet;

use weir_model::{Batch, Column, ColumnBuilder, Symbol, Value};

use super::partition::Found;
use crate::eval::{Rows, eval, eval_all};
use crate::function::{AggregateCall, EvalError};
use crate::plan::row_match::{MatchEnd, MatchResult, Navigation, RowMatch};
use crate::synopsis::gather::take_columns;
use crate::synopsis::slots::Slots;

/// The rows of the matches, which are in timestamp order.
pub(super) fn batch(
    by: &RowMatch,
    rows: &Slots,
    found: &[Found],
) -> Result<Option<Batch>, EvalError> {
    if found.is_empty() {
        return Ok(None);
    }
    let firsts: Vec<u32> = found.iter().map(|found| found.rows[0].slot).collect();
    let stored = rows.gather(&firsts);
    let mut columns = eval_all(
        &by.keys,
        Rows {
            columns: &stored,
            len: found.len(),
        },
    )?;
    for result in &by.results {
        columns.push(match result {
            MatchResult::Navigation(navigation) => navigated(navigation, rows, found)?,
            MatchResult::Aggregate { variable, call } => aggregated(*variable, call, rows, found)?,
            MatchResult::MatchNumber => {
                Column::ints(found.iter().map(|found| found.number).collect())
            }
            MatchResult::Classifier => {
                let names: Vec<Symbol> =
                    by.variables.iter().map(|v| Symbol::new(&v.name)).collect();
                let last = |found: &Found| found.rows[found.rows.len() - 1].variable;
                let mut column = ColumnBuilder::new(result.returns().0, found.len());
                let values = found.iter().map(|found| Value::Text(names[last(found)]));
                values.for_each(|name| column.push(name));
                column.finish()
            }
        });
    }
    let ts: Vec<i64> = found.iter().map(|found| found.ts).collect();
    Ok(Some(Batch::stream(ts, columns)))
}

/// The slots of the rows of a variable, or of all rows.
fn slots(found: &Found, variable: Option<usize>) -> impl DoubleEndedIterator<Item = u32> {
    let own = found
        .rows
        .iter()
        .filter(move |row| variable.is_none_or(|variable| row.variable == variable));
    own.map(|row| row.slot)
}

fn navigated(navigation: &Navigation, rows: &Slots, found: &[Found]) -> Result<Column, EvalError> {
    let row = |found: &Found| {
        let mut slots = slots(found, navigation.variable);
        match navigation.end {
            MatchEnd::First => slots.next(),
            MatchEnd::Last => slots.next_back(),
        }
    };
    let read: Vec<Option<u32>> = found.iter().map(row).collect();
    let known: Vec<u32> = read.iter().copied().flatten().collect();
    let stored = rows.gather(&known);
    let values = eval(
        &navigation.value,
        Rows {
            columns: &stored,
            len: known.len(),
        },
    )?;
    if known.len() == found.len() {
        return Ok(values);
    }
    let mut column = ColumnBuilder::new(navigation.value.ty(), found.len());
    let mut next = 0;
    for row in read {
        column.push(match row {
            Some(_) => values.value(next),
            None => Value::Null,
        });
        next += usize::from(row.is_some());
    }
    Ok(column.finish())
}

fn aggregated(
    variable: Option<usize>,
    call: &AggregateCall,
    rows: &Slots,
    found: &[Found],
) -> Result<Column, EvalError> {
    let mut column = ColumnBuilder::new(call.ty, found.len());
    let mut unread = ColumnBuilder::new(call.ty, 0);
    for found in found {
        let slots: Vec<u32> = slots(found, variable).collect();
        let mut state = call.function.state(call);
        state.resize(1);
        if !slots.is_empty() {
            let stored = rows.gather(&slots);
            let rows = Rows {
                columns: &stored,
                len: slots.len(),
            };
            let mut args = eval_all(&call.args, rows)?;
            let mut len = rows.len;
            if call.distinct {
                let first = first_of_each(&args, len);
                args = take_columns(&args, &first);
                len = first.len();
            }
            let (groups, weights) = (vec![0; len], vec![1; len]);
            state.update(&groups, &weights, &args, &vec![false; len], &mut unread)?;
        }
        column.push(state.result(0)?);
    }
    Ok(column.finish())
}

/// The first of the rows with each list of values.
fn first_of_each(columns: &[Column], len: usize) -> Vec<u32> {
    let mut known = BTreeSet::new();
    let values = |row: u32| -> Vec<Value> {
        let values = columns.iter().map(|column| column.value(row as usize));
        values.collect()
    };
    (0..len as u32)
        .filter(|row| known.insert(values(*row)))
        .collect()
}
