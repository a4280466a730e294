//! `x IN (1, 2, 3)` over constants.

use std::collections::HashSet;
use std::hash::Hash;

use arrow_buffer::{BooleanBuffer, NullBuffer};
use weir_model::types::float_key;
use weir_model::{Column, Value};

use super::compare::bits;
use super::{Datum, bool_column};

/// Longest list that is searched from front to back.
const SHORT_LIST: usize = 8;

/// `x IN (list)`, or `NOT IN`. With a NULL in the list it is never false (never true for `NOT IN`).
pub(super) fn in_list(
    x: &Datum,
    list: &[Value],
    has_null: bool,
    negated: bool,
    len: usize,
) -> Datum {
    let column = match x {
        Datum::Constant(Value::Null) | Datum::Column(Column::Nulls(_)) => {
            return Datum::Constant(Value::Null);
        }
        Datum::Constant(value) => {
            let found = list.contains(value);
            let unknown = !found && has_null;
            return Datum::Constant(if unknown {
                Value::Null
            } else {
                Value::Bool(found != negated)
            });
        }
        Datum::Column(column) => column,
    };
    let found = match column {
        Column::Int(a) => {
            let ints = list.iter().filter_map(|v| {
                if let Value::Int(x) = v {
                    Some(*x)
                } else {
                    None
                }
            });
            members(a.values(), ints.collect())
        }
        Column::Text(a) => {
            let ids = list.iter().filter_map(|v| {
                if let Value::Text(x) = v {
                    Some(x.id())
                } else {
                    None
                }
            });
            members(a.values(), ids.collect())
        }
        Column::Float(a) => {
            let keys = list.iter().filter_map(|v| {
                if let Value::Float(x) = v {
                    Some(float_key(*x))
                } else {
                    None
                }
            });
            let keys: HashSet<u64> = keys.collect();
            bits(a.values(), |x| keys.contains(&float_key(x)))
        }
        other => BooleanBuffer::collect_bool(len, |row| list.contains(&other.value(row))),
    };
    let mut nulls = match column {
        Column::Tally(_) => Some(NullBuffer::new(BooleanBuffer::collect_bool(len, |row| {
            !column.is_null(row)
        }))),
        _ => column.nulls().cloned(),
    };
    if has_null {
        nulls = NullBuffer::union(nulls.as_ref(), Some(&NullBuffer::new(found.clone())));
    }
    bool_column(if negated { !&found } else { found }, nulls)
}

fn members<T: Copy + Eq + Hash>(values: &[T], list: Vec<T>) -> BooleanBuffer {
    if list.len() <= SHORT_LIST {
        return bits(values, |x| list.contains(&x));
    }
    let set: HashSet<T> = list.into_iter().collect();
    bits(values, |x| set.contains(&x))
}
