//! Evaluates expressions over batches: a column of values for a column of rows, with SQL's NULLs
//! and overflow.
//!
//! An expression that can fail (overflow, a full text table) is evaluated only for the rows that
//! need it: behind `AND`, `OR` and in the branches of `CASE`, a guard excludes the other rows.

mod arithmetic;
mod case;
mod cast;
mod compare;
mod divisor;
mod logic;
mod membership;
mod text;

pub use text::LikePattern;

use arrow_array::{BooleanArray, Float64Array, Int64Array, UInt32Array};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use weir_model::{Column, Symbol, Type, Value};

use crate::expr::{BinaryOp, Expr, UnaryOp};
use crate::function::EvalError;
use crate::synopsis::gather::take;

/// The rows an expression is evaluated over.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// Their columns.
    pub columns: &'a [Column],
    /// The number of rows.
    pub len: usize,
}

/// The value of an expression: the same for all rows, or one each.
#[derive(Clone, Debug)]
pub(crate) enum Datum {
    /// One value for all rows.
    Constant(Value),
    /// A value for each row.
    Column(Column),
}

impl Datum {
    /// As a column of `len` values.
    pub(crate) fn into_column(self, len: usize) -> Column {
        let value = match self {
            Datum::Column(column) => return column,
            Datum::Constant(value) => value,
        };
        match value {
            Value::Null => Column::Nulls(len),
            Value::Bool(true) => Column::Bool(BooleanArray::new(BooleanBuffer::new_set(len), None)),
            Value::Bool(false) => {
                Column::Bool(BooleanArray::new(BooleanBuffer::new_unset(len), None))
            }
            Value::Int(x) => Column::ints(vec![x; len]),
            Value::Float(x) => Column::floats(vec![x; len]),
            Value::Text(x) => Column::Text(UInt32Array::new(vec![x.id(); len].into(), None)),
            Value::Tally(x) => {
                Column::from_values(Type::Tally, (0..len).map(|_| Value::Tally(x.clone())))
            }
            Value::Bytes(x) => Column::Bytes((0..len).map(|_| Some(&*x)).collect()),
        }
    }

    /// True when every value is NULL.
    fn is_null(&self) -> bool {
        matches!(
            self,
            Datum::Constant(Value::Null) | Datum::Column(Column::Nulls(_))
        )
    }

    /// Which values are NULL; `None` when none is.
    fn nulls(&self) -> Option<&NullBuffer> {
        match self {
            Datum::Constant(_) => None,
            Datum::Column(column) => column.nulls().filter(|n| n.null_count() > 0),
        }
    }
}

/// The value of `expr` for each of the rows.
///
/// # Errors
/// Overflow of 64-bit integers, or more text than the symbol table holds.
pub(crate) fn eval(expr: &Expr, rows: Rows<'_>) -> Result<Column, EvalError> {
    Ok(evaluate(expr, rows)?.into_column(rows.len))
}

/// The values of expressions, one column each.
///
/// # Errors
/// As [`eval`].
pub(crate) fn eval_all(exprs: &[Expr], rows: Rows<'_>) -> Result<Vec<Column>, EvalError> {
    exprs.iter().map(|expr| eval(expr, rows)).collect()
}

/// Which rows `predicate` is true for; `None` when it is for all of them.
///
/// # Errors
/// As [`eval`].
pub(crate) fn true_rows(
    predicate: &Expr,
    rows: Rows<'_>,
) -> Result<Option<BooleanBuffer>, EvalError> {
    Ok(match evaluate(predicate, rows)? {
        Datum::Constant(Value::Bool(true)) => None,
        Datum::Column(Column::Bool(array)) => Some(logic::is_true(&array)),
        _ => Some(BooleanBuffer::new_unset(rows.len)),
    })
}

fn evaluate(expr: &Expr, rows: Rows<'_>) -> Result<Datum, EvalError> {
    Ok(match expr {
        Expr::Column { index, .. } => Datum::Column(rows.columns[*index].clone()),
        Expr::Literal { value, .. } => Datum::Constant(value.clone()),
        Expr::Unary {
            op: UnaryOp::Negate,
            expr,
        } => arithmetic::negate(evaluate(expr, rows)?)?,
        Expr::Unary {
            op: UnaryOp::Not,
            expr,
        } => logic::not(evaluate(expr, rows)?),
        Expr::Binary {
            op: op @ (BinaryOp::And | BinaryOp::Or),
            left,
            right,
            ..
        } => logic::connect(*op, left, right, rows)?,
        Expr::Binary {
            op, left, right, ..
        } => {
            let (l, r) = (evaluate(left, rows)?, evaluate(right, rows)?);
            match op {
                BinaryOp::Concat => text::concat(&l, &r, rows.len)?,
                op if op.is_comparison() => compare::compare(*op, &l, &r, rows.len),
                _ => arithmetic::apply(*op, &l, &r, rows.len)?,
            }
        }
        Expr::IsNull { expr, negated } => logic::is_null(&evaluate(expr, rows)?, *negated),
        Expr::InList {
            expr,
            list,
            has_null,
            negated,
        } => membership::in_list(&evaluate(expr, rows)?, list, *has_null, *negated, rows.len),
        Expr::Like {
            expr,
            pattern,
            ignore_case,
            negated,
        } => text::like(
            &evaluate(expr, rows)?,
            pattern,
            *ignore_case,
            *negated,
            rows.len,
        ),
        Expr::Case {
            branches,
            otherwise,
            ty,
            ..
        } => case::case(branches, otherwise.as_deref(), *ty, rows)?,
        Expr::Cast {
            expr: inner, ty, ..
        } => cast::cast(evaluate(inner, rows)?, inner.ty(), *ty, rows.len)?,
        Expr::Call(call) => {
            let args = call
                .args
                .iter()
                .map(|a| eval(a, rows))
                .collect::<Result<Vec<_>, _>>()?;
            Datum::Column(call.function.eval(call, &args, rows.len)?)
        }
    })
}

/// The value of `expr` for some of the rows only: those at `picked`.
fn evaluate_some(expr: &Expr, rows: Rows<'_>, picked: &[u32]) -> Result<Datum, EvalError> {
    let mut used = vec![false; rows.columns.len()];
    expr.visit_columns(&mut |i| used[i] = true);
    let column = |(i, c): (usize, &Column)| match used[i] {
        true => take(c, picked),
        false => Column::Nulls(picked.len()),
    };
    let columns: Vec<Column> = rows.columns.iter().enumerate().map(column).collect();
    evaluate(
        expr,
        Rows {
            columns: &columns,
            len: picked.len(),
        },
    )
}

/// Values that are the same for all rows, or one each.
#[derive(Clone, Copy)]
enum Values<'a, T> {
    Constant(T),
    Each(&'a [T]),
}

impl<T: Copy> Values<'_, T> {
    fn get(self, row: usize) -> T {
        match self {
            Values::Constant(x) => x,
            Values::Each(values) => values[row],
        }
    }
}

/// Two operands of the same kind, side by side.
enum Pair<'a> {
    Ints(Values<'a, i64>, Values<'a, i64>),
    Floats(Values<'a, f64>, Values<'a, f64>),
    Texts(Values<'a, u32>, Values<'a, u32>),
    Other,
}

/// The operands by kind. Neither may be NULL throughout.
fn pair<'a>(left: &'a Datum, right: &'a Datum) -> Pair<'a> {
    if let (Some(l), Some(r)) = (ints(left), ints(right)) {
        Pair::Ints(l, r)
    } else if let (Some(l), Some(r)) = (floats(left), floats(right)) {
        Pair::Floats(l, r)
    } else if let (Some(l), Some(r)) = (texts(left), texts(right)) {
        Pair::Texts(l, r)
    } else {
        Pair::Other
    }
}

fn ints(datum: &Datum) -> Option<Values<'_, i64>> {
    match datum {
        Datum::Constant(Value::Int(x)) => Some(Values::Constant(*x)),
        Datum::Column(Column::Int(a)) => Some(Values::Each(a.values())),
        _ => None,
    }
}

fn floats(datum: &Datum) -> Option<Values<'_, f64>> {
    match datum {
        Datum::Constant(Value::Float(x)) => Some(Values::Constant(*x)),
        Datum::Column(Column::Float(a)) => Some(Values::Each(a.values())),
        _ => None,
    }
}

fn texts(datum: &Datum) -> Option<Values<'_, u32>> {
    match datum {
        Datum::Constant(Value::Text(x)) => Some(Values::Constant(x.id())),
        Datum::Column(Column::Text(a)) => Some(Values::Each(a.values())),
        _ => None,
    }
}

/// Value `row` of a datum.
fn value(datum: &Datum, row: usize) -> Value {
    match datum {
        Datum::Constant(value) => value.clone(),
        Datum::Column(column) => column.value(row),
    }
}

/// The text of symbol `id` among all texts.
fn text_of<'a>(texts: &[&'a str], id: u32) -> &'a str {
    texts[Symbol::from_id(id).id() as usize]
}

fn int_column(values: Vec<i64>, nulls: Option<NullBuffer>) -> Datum {
    Datum::Column(Column::Int(Int64Array::new(values.into(), nulls)))
}

fn float_column(values: Vec<f64>, nulls: Option<NullBuffer>) -> Datum {
    Datum::Column(Column::Float(Float64Array::new(values.into(), nulls)))
}

fn bool_column(values: BooleanBuffer, nulls: Option<NullBuffer>) -> Datum {
    Datum::Column(Column::Bool(BooleanArray::new(values, nulls)))
}

/// Splits `rows` by whether `truth`, which has a value for each of them, is true.
fn truth_rows(truth: &Datum, rows: &[u32]) -> (Vec<u32>, Vec<u32>) {
    match truth {
        Datum::Constant(Value::Bool(true)) => (rows.to_vec(), Vec::new()),
        Datum::Column(Column::Bool(array)) => {
            let is_true = logic::is_true(array);
            let (mut yes, mut no) = (Vec::new(), Vec::new());
            for (&row, hit) in rows.iter().zip(&is_true) {
                if hit { yes.push(row) } else { no.push(row) }
            }
            (yes, no)
        }
        _ => (Vec::new(), rows.to_vec()),
    }
}
