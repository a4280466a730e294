//! Window functions by their definitions: for each row, all rows of its partition are compared.

use std::cmp::Ordering;

use weir_model::Value;
use weir_query::plan::over::{FrameUnit, OverFunction, RowFrame};
use weir_query::plan::{OrderBy, OverCall, Partitioning};

use super::{aggregate, expr, relation};
use crate::support::Row;

/// A row with its values of ORDER BY.
struct Ordered<'a> {
    keys: Row,
    row: &'a Row,
}

/// Each row followed by the results of the calls.
pub fn content(rows: &[Row], by: &Partitioning, calls: &[OverCall]) -> Result<Vec<Row>, String> {
    let mut content = Vec::new();
    let mut partitions: Vec<(Row, Vec<Ordered>)> = Vec::new();
    for row in rows {
        let partition = expr::all(&by.keys, row)?;
        let keys = by.order.iter().map(|key| expr::value(&key.expr, row));
        let keys = keys.collect::<Result<Row, String>>()?;
        let ordered = Ordered { keys, row };
        match partitions.iter_mut().find(|(key, _)| *key == partition) {
            Some((_, rows)) => rows.push(ordered),
            None => partitions.push((partition, vec![ordered])),
        }
    }
    for (_, mut rows) in partitions {
        rows.sort_by(|a, b| compare(&by.order, a, b).then_with(|| a.row.cmp(b.row)));
        for at in 0..rows.len() {
            let mut row = rows[at].row.clone();
            for call in calls {
                row.push(result(call, &rows, at, &by.order)?);
            }
            content.push(row);
        }
    }
    Ok(content)
}

fn compare(order: &[OrderBy], a: &Ordered, b: &Ordered) -> Ordering {
    let pairs = order.iter().zip(a.keys.iter().zip(&b.keys));
    let mut pairs = pairs.map(|(key, (a, b))| relation::order(key, a, b));
    pairs.find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
}

fn result(
    call: &OverCall,
    rows: &[Ordered],
    at: usize,
    order: &[OrderBy],
) -> Result<Value, String> {
    let number = |n: usize| Ok(Value::Int(n as i64));
    let is_before = |row: &&Ordered| compare(order, row, &rows[at]).is_lt();
    let frame = || -> Vec<&Ordered> {
        let inside = (0..rows.len()).filter(|other| is_inside(call.frame, rows, at, *other, order));
        inside.map(|other| &rows[other]).collect()
    };
    match &call.function {
        OverFunction::RowNumber => number(at + 1),
        OverFunction::Rank => number(rows.iter().filter(is_before).count() + 1),
        OverFunction::DenseRank => {
            let before = rows.iter().filter(is_before).map(|row| row.keys.clone());
            number(relation::distinct(&before.collect::<Vec<_>>()).len() + 1)
        }
        OverFunction::Offset {
            value,
            rows: by,
            default,
        } => {
            let other = usize::try_from(at as i64 + by).ok();
            match (other.and_then(|other| rows.get(other)), default) {
                (Some(other), _) => expr::value(value, other.row),
                (None, Some(default)) => expr::value(default, rows[at].row),
                (None, None) => Ok(Value::Null),
            }
        }
        OverFunction::First(value) => match frame().first() {
            Some(first) => expr::value(value, first.row),
            None => Ok(Value::Null),
        },
        OverFunction::Last(value) => match frame().last() {
            Some(last) => expr::value(value, last.row),
            None => Ok(Value::Null),
        },
        OverFunction::Nth(value, n) => match frame().get(*n as usize - 1) {
            Some(nth) => expr::value(value, nth.row),
            None => Ok(Value::Null),
        },
        // The parts are filled in turns of one row each.
        OverFunction::Ntile(parts) => {
            let mut sizes = vec![0; rows.len().min(*parts as usize)];
            (0..rows.len()).for_each(|row| sizes[row % *parts as usize] += 1);
            let ends = (1..=sizes.len()).map(|n| sizes[..n].iter().sum::<usize>());
            number(ends.filter(|end| *end <= at).count() + 1)
        }
        OverFunction::PercentRank => Ok(Value::Float(match rows.len() {
            1 => 0.0,
            len => rows.iter().filter(is_before).count() as f64 / (len - 1) as f64,
        })),
        OverFunction::CumeDist => {
            let is_after = |row: &&Ordered| compare(order, row, &rows[at]).is_gt();
            let after = rows.iter().filter(is_after).count();
            Ok(Value::Float(
                (rows.len() - after) as f64 / rows.len() as f64,
            ))
        }
        OverFunction::Aggregate(call) => {
            let rows: Vec<&Row> = frame().into_iter().map(|row| row.row).collect();
            aggregate::result(call, &rows)
        }
    }
}

/// Whether row `other` is in the frame of row `at`.
fn is_inside(
    frame: RowFrame,
    rows: &[Ordered],
    at: usize,
    other: usize,
    order: &[OrderBy],
) -> bool {
    // How many groups of peers `other` is after `at`; negative is before it.
    let groups = || {
        let (low, high) = (at.min(other), at.max(other));
        let steps = (low..high).filter(|i| compare(order, &rows[*i], &rows[i + 1]).is_ne());
        steps.count() as i64 * if other < at { -1 } else { 1 }
    };
    let not_before = |bound: i64| match frame.unit {
        FrameUnit::Rows => other as i64 >= at as i64 + bound,
        FrameUnit::Range => distance(&rows[at], &rows[other], bound, order).is_ge(),
        FrameUnit::Groups => groups() >= bound,
    };
    let not_after = |bound: i64| match frame.unit {
        FrameUnit::Rows => other as i64 <= at as i64 + bound,
        FrameUnit::Range => distance(&rows[at], &rows[other], bound, order).is_le(),
        FrameUnit::Groups => groups() <= bound,
    };
    frame.start.is_none_or(not_before) && frame.end.is_none_or(not_after)
}

/// How the sort key of a row compares with that of the current row plus a distance.
fn distance(current: &Ordered, other: &Ordered, by: i64, order: &[OrderBy]) -> Ordering {
    match (&current.keys[..], &other.keys[..]) {
        ([Value::Int(current)], [Value::Int(other)]) if by != 0 => {
            let (current, other) = (i128::from(*current), i128::from(*other));
            match order[0].descending {
                true => (current - i128::from(by)).cmp(&other),
                false => other.cmp(&(current + i128::from(by))),
            }
        }
        _ => compare(order, other, current),
    }
}
