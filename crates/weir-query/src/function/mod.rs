//! Functions: one description each, which the checker, the engine, `weir functions` and the
//! reference page read.

pub mod aggregate;
pub mod arguments;
mod by_name;
mod element;
#[cfg(test)]
mod examples;
pub mod over;
pub mod scalar;

pub use aggregate::{Aggregate, AggregateCall, AggregateState, Shared};
pub use scalar::{Scalar, ScalarCall};

use std::fmt;

use weir_model::{Type, Unit};

use crate::expr::Expr;

/// Every function that a query can call, with its kind.
pub fn documented() -> impl Iterator<Item = (&'static str, &'static FunctionDoc)> {
    let aggregates = aggregate::AGGREGATES.iter();
    let aggregates = aggregates.map(|f| ("aggregate", f.doc()));
    let windows = over::WINDOW_FUNCTIONS.iter().map(|f| ("window", f.doc));
    let scalars = scalar::SCALARS.iter().map(|f| ("scalar", f.doc()));
    aggregates.chain(windows).chain(scalars)
}

/// The description of a function.
#[derive(Debug)]
pub struct FunctionDoc {
    /// Its name, lower case.
    pub name: &'static str,
    /// Other names, accepted as synonyms.
    pub aliases: &'static [&'static str],
    /// How it is called: `quantile(x, q)`.
    pub signature: &'static str,
    /// Its result, in one sentence.
    pub summary: &'static str,
    /// Units, NULLs, errors, sources; full sentences, or empty.
    pub details: &'static str,
    /// Worked examples; each is a test.
    pub examples: &'static [Example],
}

/// A worked example of a function, run as a test.
#[derive(Debug)]
pub struct Example {
    /// For a scalar function an expression without columns: `abs(-3)`. For an aggregate a call over
    /// columns `x`, `y`: `sum(x)`.
    pub call: &'static str,
    /// For an aggregate, the rows, one a line, values separated by commas, named `x`, `y`; `NULL`
    /// is NULL. Empty for a scalar function.
    pub rows: &'static str,
    /// The result, as `Display` of [`weir_model::Value`] prints it.
    pub result: &'static str,
}

impl Example {
    /// An example of a scalar function.
    const fn of(call: &'static str, result: &'static str) -> Example {
        Example::over(call, "", result)
    }

    /// An example of an aggregate, over these rows.
    const fn over(call: &'static str, rows: &'static str, result: &'static str) -> Example {
        Example { call, rows, result }
    }
}

/// An argument as the checker sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    /// Its type.
    pub ty: Type,
    /// Its unit.
    pub unit: Unit,
    /// Its value, where it is a constant.
    pub constant: Option<weir_model::Value>,
}

impl Argument {
    /// The type, unit and constant value of an expression.
    pub fn of(expr: &Expr) -> Argument {
        Argument {
            ty: expr.ty(),
            unit: expr.unit(),
            constant: match expr {
                Expr::Literal { value, .. } => Some(value.clone()),
                _ => None,
            },
        }
    }

    /// Its type and unit, as those of the result.
    fn returned(&self) -> Returns {
        Returns::new(self.ty, self.unit)
    }
}

/// The type and unit of a call's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returns {
    /// Its type.
    pub ty: Type,
    /// Its unit.
    pub unit: Unit,
}

impl Returns {
    fn new(ty: Type, unit: Unit) -> Returns {
        Returns { ty, unit }
    }

    /// A result without unit.
    fn plain(ty: Type) -> Returns {
        Returns::new(ty, Unit::None)
    }
}

/// Why a call is rejected: a message for the diagnostic, and the argument it concerns (`None`:
/// their number).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentError {
    /// Position of the wrong argument.
    pub argument: Option<usize>,
    /// What is wrong, lower case, no full stop.
    pub message: String,
}

/// A run-time error of a query; it ends that query only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvalError {
    /// The message: `integer overflow in sum(bytes)`.
    pub message: String,
    /// The remedy.
    pub help: Option<String>,
}

impl EvalError {
    /// An error without remedy.
    pub fn new(message: impl Into<String>) -> EvalError {
        EvalError {
            message: message.into(),
            help: None,
        }
    }

    /// The same error with a remedy.
    pub fn help(self, help: impl Into<String>) -> EvalError {
        EvalError {
            help: Some(help.into()),
            ..self
        }
    }
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for EvalError {}
