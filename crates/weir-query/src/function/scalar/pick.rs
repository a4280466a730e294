//! `least` and `greatest`: one of the arguments, by their order.

use weir_model::{Column, ColumnBuilder, Type};

use super::rows::in_result_terms;
use super::{Scalar, ScalarCall};
use crate::function::arguments::{argument_error, arity, common_type};
use crate::function::element::{Element, Real, Text, nulls_of, only_nulls};
use crate::function::{Argument, ArgumentError, EvalError, FunctionDoc, Returns};

/// `least` or `greatest`.
pub struct Pick {
    pub doc: &'static FunctionDoc,
    pub is_least: bool,
}

impl Scalar for Pick {
    fn doc(&self) -> &'static FunctionDoc {
        self.doc
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        let name = self.doc.name;
        arity(name, args, 1, usize::MAX)?;
        match args.iter().position(|arg| arg.ty == Type::Tally) {
            Some(i) => Err(argument_error(
                i,
                format!("`{name}` requires ordered values, not a tally"),
            )),
            None => common_type(name, args),
        }
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], len: usize) -> Result<Column, EvalError> {
        let columns = args
            .iter()
            .enumerate()
            .map(|(i, arg)| in_result_terms(call, i, arg));
        let columns = columns.collect::<Result<Vec<Column>, EvalError>>()?;
        Ok(match call.ty {
            Type::Bool => pick::<bool>(call.ty, &columns, len, self.is_least),
            Type::Float => pick::<Real>(call.ty, &columns, len, self.is_least),
            Type::Text => pick::<Text>(call.ty, &columns, len, self.is_least),
            _ => pick::<i64>(call.ty, &columns, len, self.is_least),
        })
    }
}

/// The least or the greatest argument of each row, NULLs ignored.
fn pick<K: Element>(ty: Type, columns: &[Column], len: usize, is_least: bool) -> Column {
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
        K::write(
            &mut sink,
            if is_least { values.min() } else { values.max() },
        );
    }
    drop(sink);
    builder.finish()
}
