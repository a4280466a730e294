//! `starts_with(t, prefix)`: whether a text starts with a prefix.

use weir_model::{Column, Type};

use super::rows::map_pairs;
use super::{Scalar, ScalarCall};
use crate::function::arguments::{arity, text};
use crate::function::element::Text;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `starts_with(t, prefix)`
pub struct StartsWith;

static DOC: FunctionDoc = FunctionDoc {
    name: "starts_with",
    aliases: &[],
    signature: "starts_with(t, prefix)",
    summary: "whether the text starts with `prefix`",
    details: "A boolean. Case-sensitive.",
    examples: &[
        Example::of("starts_with('nvme0n1', 'nvme')", "true"),
        Example::of("starts_with('sda', 'nvme')", "false"),
        Example::of("starts_with(NULL, 'sd')", "NULL"),
    ],
};

impl Scalar for StartsWith {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 2, 2)?;
        text(DOC.name, args, 0)?;
        text(DOC.name, args, 1)?;
        Ok(Returns::plain(Type::Bool))
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        map_pairs(Type::Bool, &args[0], &args[1], |t: Text, prefix: Text| {
            Ok(Some(t.as_str().starts_with(prefix.as_str())))
        })
    }
}
