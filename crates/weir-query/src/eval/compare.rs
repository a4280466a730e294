//! `= <> < <= > >=`: NULL where an operand is; floats by their total order, texts by their bytes.

use std::cmp::Ordering;

use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer};
use weir_model::types::float_order;
use weir_model::{Symbol, Value};

use super::{Datum, Pair, Values, bool_column, pair, text_of, value};
use crate::expr::BinaryOp;

/// `left op right`, both of one type.
pub(super) fn compare(op: BinaryOp, left: &Datum, right: &Datum, len: usize) -> Datum {
    if left.is_null() || right.is_null() {
        return Datum::Constant(Value::Null);
    }
    if let (Datum::Constant(l), Datum::Constant(r)) = (left, right) {
        return Datum::Constant(Value::Bool(holds(op, l.cmp(r))));
    }
    let values = match pair(left, right) {
        Pair::Ints(l, r) => match op {
            BinaryOp::Equal => test(l, r, |a, b| a == b),
            BinaryOp::NotEqual => test(l, r, |a, b| a != b),
            BinaryOp::Less => test(l, r, |a, b| a < b),
            BinaryOp::LessEqual => test(l, r, |a, b| a <= b),
            BinaryOp::Greater => test(l, r, |a, b| a > b),
            _ => test(l, r, |a, b| a >= b),
        },
        Pair::Floats(l, r) => test(l, r, |a, b| holds(op, float_order(a, b))),
        Pair::Texts(l, r) => match op {
            BinaryOp::Equal => test(l, r, |a, b| a == b),
            BinaryOp::NotEqual => test(l, r, |a, b| a != b),
            _ => Symbol::with_texts(|texts| {
                test(l, r, |a, b| {
                    holds(op, text_of(texts, a).cmp(text_of(texts, b)))
                })
            }),
        },
        Pair::Other => BooleanBuffer::collect_bool(len, |row| {
            holds(op, value(left, row).cmp(&value(right, row)))
        }),
    };
    bool_column(values, NullBuffer::union(left.nulls(), right.nulls()))
}

/// Whether `a op b` when `a` compares to `b` like this.
fn holds(op: BinaryOp, order: Ordering) -> bool {
    match op {
        BinaryOp::Equal => order.is_eq(),
        BinaryOp::NotEqual => order.is_ne(),
        BinaryOp::Less => order.is_lt(),
        BinaryOp::LessEqual => order.is_le(),
        BinaryOp::Greater => order.is_gt(),
        BinaryOp::GreaterEqual => order.is_ge(),
        _ => unreachable!("{op:?} is no comparison"),
    }
}

/// `f` of each pair, as bits. At least one side has a value for each row.
fn test<T: Copy>(
    left: Values<'_, T>,
    right: Values<'_, T>,
    f: impl Fn(T, T) -> bool,
) -> BooleanBuffer {
    match (left, right) {
        (Values::Each(a), Values::Constant(b)) => bits(a, |a| f(a, b)),
        (Values::Constant(a), Values::Each(b)) => bits(b, |b| f(a, b)),
        (Values::Each(a), Values::Each(b)) => {
            let words = a.chunks(64).zip(b.chunks(64)).map(|(a, b)| {
                let pairs = a.iter().zip(b).enumerate();
                pairs.fold(0u64, |word, (i, (&a, &b))| word | (u64::from(f(a, b)) << i))
            });
            from_words(words.collect(), a.len())
        }
        (Values::Constant(_), Values::Constant(_)) => unreachable!("constants are compared once"),
    }
}

/// `f` of each value, as bits.
pub(super) fn bits<T: Copy>(values: &[T], f: impl Fn(T) -> bool) -> BooleanBuffer {
    let word = |chunk: &[T]| {
        chunk
            .iter()
            .enumerate()
            .fold(0u64, |word, (i, &x)| word | (u64::from(f(x)) << i))
    };
    from_words(values.chunks(64).map(word).collect(), values.len())
}

fn from_words(words: Vec<u64>, len: usize) -> BooleanBuffer {
    BooleanBuffer::new(Buffer::from_vec(words), 0, len)
}
