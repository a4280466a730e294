//! `least` and `greatest`: one of the arguments, by their order.

use weir_model::{Column, ColumnBuilder, Type};

use super::ScalarCall;
use super::rows::in_result_terms;
use crate::function::arguments::{argument_error, common_type};
use crate::function::element::{Element, Real, Text, nulls_of, only_nulls};
use crate::function::{Argument, ArgumentError, EvalError, Returns};

/// Their return type.
pub fn check(name: &str, args: &[Argument]) -> Result<Returns, ArgumentError> {
    match args.iter().position(|arg| arg.ty == Type::Tally) {
        Some(i) => Err(argument_error(
            i,
            format!("`{name}` requires ordered values, not a tally"),
        )),
        None => common_type(name, args),
    }
}

/// The least (`least`) or the greatest argument of each row, NULLs ignored.
pub fn pick(
    call: &ScalarCall,
    args: &[Column],
    len: usize,
    least: bool,
) -> Result<Column, EvalError> {
    let columns = args
        .iter()
        .enumerate()
        .map(|(i, arg)| in_result_terms(call, i, arg));
    let columns = columns.collect::<Result<Vec<Column>, EvalError>>()?;
    Ok(match call.ty {
        Type::Bool => pick_typed::<bool>(call.ty, &columns, len, least),
        Type::Float => pick_typed::<Real>(call.ty, &columns, len, least),
        Type::Text => pick_typed::<Text>(call.ty, &columns, len, least),
        _ => pick_typed::<i64>(call.ty, &columns, len, least),
    })
}

fn pick_typed<K: Element>(ty: Type, columns: &[Column], len: usize, least: bool) -> Column {
    let columns = columns.iter().filter(|column| !only_nulls(column));
    let columns: Vec<_> = columns
        .map(|column| (K::values(column), nulls_of(column)))
        .collect();
    let mut builder = ColumnBuilder::new(ty, len);
    let mut sink = K::sink(&mut builder);
    for row in 0..len {
        let valid = columns
            .iter()
            .filter(|(_, nulls)| nulls.as_ref().is_none_or(|n| n.is_valid(row)));
        let values = valid.map(|(values, _)| K::read(values, row));
        K::write(&mut sink, if least { values.min() } else { values.max() });
    }
    drop(sink);
    builder.finish()
}
