//! `AND`, `OR`, `NOT`, `IS NULL`: three-valued logic.

use arrow_array::{Array, BooleanArray};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use weir_model::{Column, Value};

use super::{Datum, Rows, bool_column, evaluate, evaluate_some};
use crate::expr::{BinaryOp, Expr};
use crate::function::EvalError;

/// Rows where the value is true and not NULL.
pub(super) fn is_true(array: &BooleanArray) -> BooleanBuffer {
    match array.nulls() {
        None => array.values().clone(),
        Some(nulls) => array.values() & nulls.inner(),
    }
}

/// A truth value: where it is true and where it is false; elsewhere it is NULL.
struct Truth {
    is_true: BooleanBuffer,
    is_false: BooleanBuffer,
}

fn truth(datum: &Datum, len: usize) -> Truth {
    let constant = |is_true, is_false| Truth {
        is_true: if is_true {
            BooleanBuffer::new_set(len)
        } else {
            BooleanBuffer::new_unset(len)
        },
        is_false: if is_false {
            BooleanBuffer::new_set(len)
        } else {
            BooleanBuffer::new_unset(len)
        },
    };
    match datum {
        Datum::Constant(Value::Bool(x)) => constant(*x, !*x),
        Datum::Column(Column::Bool(array)) => {
            let is_false = !array.values();
            Truth {
                is_true: is_true(array),
                is_false: match array.nulls() {
                    None => is_false,
                    Some(nulls) => &is_false & nulls.inner(),
                },
            }
        }
        _ => constant(false, false),
    }
}

/// `left AND right`, `left OR right`. Where the left side decides, a right side that can fail is
/// not evaluated.
pub(super) fn connect(
    op: BinaryOp,
    left: &Expr,
    right: &Expr,
    rows: Rows<'_>,
) -> Result<Datum, EvalError> {
    let is_and = op == BinaryOp::And;
    let l = evaluate(left, rows)?;
    if let Datum::Constant(Value::Bool(x)) = l {
        return if x == is_and {
            evaluate(right, rows)
        } else {
            Ok(l)
        };
    }
    let r = if right.may_fail() {
        let l_datum = l.clone();
        let l = truth(&l, rows.len);
        let decided = if is_and { &l.is_false } else { &l.is_true };
        let open: Vec<u32> = (!decided).set_indices_u32().collect();
        if open.is_empty() {
            return Ok(l_datum);
        }
        let some = truth(&evaluate_some(right, rows, &open)?, open.len());
        spread(&some, &open, rows.len)
    } else {
        let r = evaluate(right, rows)?;
        if let (Datum::Column(Column::Bool(a)), Datum::Column(Column::Bool(b))) = (&l, &r)
            && a.nulls().is_none()
            && b.nulls().is_none()
        {
            let both = if is_and {
                a.values() & b.values()
            } else {
                a.values() | b.values()
            };
            return Ok(bool_column(both, None));
        }
        truth(&r, rows.len)
    };
    let l = truth(&l, rows.len);
    let (is_true, is_false) = match is_and {
        true => (&l.is_true & &r.is_true, &l.is_false | &r.is_false),
        false => (&l.is_true | &r.is_true, &l.is_false & &r.is_false),
    };
    let known = &is_true | &is_false;
    Ok(bool_column(
        is_true,
        Some(NullBuffer::new(known)).filter(|n| n.null_count() > 0),
    ))
}

/// The truth of `len` rows; rows outside `rows` are NULL.
fn spread(some: &Truth, rows: &[u32], len: usize) -> Truth {
    let wide = |narrow: &BooleanBuffer| {
        let mut bits = vec![false; len];
        for at in narrow.set_indices() {
            bits[rows[at] as usize] = true;
        }
        BooleanBuffer::from(bits)
    };
    Truth {
        is_true: wide(&some.is_true),
        is_false: wide(&some.is_false),
    }
}

/// `NOT x`.
pub(super) fn not(x: Datum) -> Datum {
    match x {
        Datum::Constant(Value::Bool(x)) => Datum::Constant(Value::Bool(!x)),
        Datum::Column(Column::Bool(a)) => bool_column(!a.values(), a.nulls().cloned()),
        _ => Datum::Constant(Value::Null),
    }
}

/// `x IS NULL`, or `x IS NOT NULL`.
pub(super) fn is_null(x: &Datum, negated: bool) -> Datum {
    let column = match x {
        Datum::Constant(value) => return Datum::Constant(Value::Bool(value.is_null() != negated)),
        Datum::Column(column) => column,
    };
    match (column, column.nulls()) {
        (Column::Nulls(_), _) => Datum::Constant(Value::Bool(!negated)),
        (Column::Tally(_), _) => bool_column(
            BooleanBuffer::collect_bool(column.len(), |i| column.is_null(i) != negated),
            None,
        ),
        (_, None) => Datum::Constant(Value::Bool(negated)),
        (_, Some(nulls)) if negated => bool_column(nulls.inner().clone(), None),
        (_, Some(nulls)) => bool_column(!nulls.inner(), None),
    }
}
