//! Comparison of results: typed values, as multisets or in order.

use std::cmp::Ordering;

use serde_json::Value;

use crate::oracle::Row;

/// Sums of floats in another order differ in the last digits.
const RELATIVE_TOLERANCE: f64 = 1e-9;

/// The longest list of `string_agg`, and a bound of the texts in it.
const LIST_BYTES_MAX: usize = 1_000;
const TEXT_BYTES_MAX: usize = 100;

/// Whether two results are equal: as lists if they have an order, otherwise as multisets. The error
/// shows both.
pub fn agree(weir: &[Row], duckdb: &[Row], is_ordered: bool) -> Result<(), String> {
    let (mut left, mut right) = (weir.to_vec(), duckdb.to_vec());
    if !is_ordered {
        left.sort_by(order);
        right.sort_by(order);
    }
    let is_equal = left.len() == right.len()
        && match is_ordered {
            true => left.iter().zip(&right).all(|(a, b)| equal(a, b)),
            false => matched(&left, &mut right.clone()),
        };
    match is_equal {
        true => Ok(()),
        false => Err(format!(
            "weir ({} rows)\n{}DuckDB ({} rows)\n{}",
            left.len(),
            listing(&left),
            right.len(),
            listing(&right)
        )),
    }
}

/// Whether each row has a partner. Floats that differ in the last digit may be sorted differently,
/// so the partner need not be the next row.
fn matched(left: &[Row], right: &mut Vec<Row>) -> bool {
    right.reverse();
    left.iter().all(|row| {
        let partner = right.iter().rposition(|other| equal(row, other));
        partner.is_some_and(|at| {
            right.remove(at);
            true
        })
    })
}

fn equal(left: &Row, right: &Row) -> bool {
    let values = || left.iter().zip(right);
    left.len() == right.len() && values().all(|(a, b)| equal_values(a, b))
}

/// Integers are equal if they are the same, floats within the tolerance; no other types mix.
fn equal_values(left: &Value, right: &Value) -> bool {
    if let (Some(a), Some(b)) = (left.as_i64(), right.as_i64()) {
        return a == b;
    }
    match (left.as_f64(), right.as_f64()) {
        (Some(a), Some(b)) => a == b || (a - b).abs() <= RELATIVE_TOLERANCE * a.abs().max(b.abs()),
        _ => left == right || is_cut_list(left, right),
    }
}

/// Whether `left` is the list of `right` as `string_agg` cuts it.
fn is_cut_list(left: &Value, right: &Value) -> bool {
    let (Some(left), Some(right)) = (left.as_str(), right.as_str()) else {
        return false;
    };
    let begin = left
        .strip_suffix("..")
        .filter(|_| right.len() > LIST_BYTES_MAX);
    begin.is_some_and(|begin| {
        right.starts_with(begin) && begin.len() + TEXT_BYTES_MAX > LIST_BYTES_MAX
    })
}

fn order(left: &Row, right: &Row) -> Ordering {
    let pairs = left.iter().zip(right);
    let orders = pairs.map(|(a, b)| order_values(a, b));
    orders.fold(Ordering::Equal, Ordering::then)
}

fn order_values(left: &Value, right: &Value) -> Ordering {
    match (left.as_f64(), right.as_f64()) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        _ => left.to_string().cmp(&right.to_string()),
    }
}

fn listing(rows: &[Row]) -> String {
    let lines = rows.iter().take(40).map(|row| {
        let values: Vec<String> = row.iter().map(Value::to_string).collect();
        format!("    {}\n", values.join(", "))
    });
    lines.collect()
}
