//! Scalar functions: one value in a row for the arguments of that row.

pub mod abs;
pub mod bit_and;
pub mod bit_or;
pub mod bit_xor;
pub mod bucket;
mod calendar;
pub mod ceil;
pub mod coalesce;
pub mod concat;
pub mod date_part;
pub mod date_trunc;
pub mod exp;
pub mod floor;
pub mod format;
pub mod gib;
pub mod greatest;
pub mod is_distinct_from;
pub mod iso8601;
pub mod kib;
#[cfg(test)]
mod laws;
pub mod least;
pub mod left;
pub mod length;
pub mod ln;
pub mod log10;
pub mod log2;
pub mod log_bucket;
pub mod lower;
pub mod lpad;
pub mod ltrim;
pub mod mib;
pub mod micros;
pub mod millis;
pub mod now;
pub mod nullif;
mod pattern;
mod pick;
pub mod position;
pub mod pow;
pub mod pow2_bucket;
pub mod regexp_matches;
pub mod regexp_replace;
pub mod replace;
pub mod right;
pub mod round;
mod row_function;
pub(crate) mod rows;
pub mod rpad;
pub mod rtrim;
pub mod sample;
mod scaled;
pub mod seconds;
pub mod shift_left;
pub mod shift_right;
pub mod sign;
pub mod split_part;
pub mod sqrt;
pub mod starts_with;
pub mod substr;
pub mod trim;
pub mod upper;
pub mod width_bucket;

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};
use weir_model::{Column, Type, Unit};

use super::by_name::{self, Listed};
use super::{Argument, ArgumentError, EvalError, FunctionDoc, Returns};
use crate::expr::Expr;

/// Every scalar function of CQL, in the order of the reference.
pub static SCALARS: &[&dyn Scalar] = &[
    &abs::ABS,
    &sign::Sign,
    &round::Round,
    &floor::FLOOR,
    &ceil::CEIL,
    &bucket::Bucket,
    &pow2_bucket::Pow2Bucket,
    &log_bucket::LogBucket,
    &width_bucket::WIDTH_BUCKET,
    &least::LEAST,
    &greatest::GREATEST,
    &sqrt::SQRT,
    &pow::Pow,
    &exp::EXP,
    &ln::LN,
    &log2::LOG2,
    &log10::LOG10,
    &seconds::SECONDS,
    &millis::MILLIS,
    &micros::MICROS,
    &kib::KIB,
    &mib::MIB,
    &gib::GIB,
    &coalesce::Coalesce,
    &nullif::Nullif,
    &sample::Sample,
    &lower::LOWER,
    &upper::UPPER,
    &length::LENGTH,
    &substr::Substr,
    &replace::Replace,
    &starts_with::StartsWith,
    &concat::Concat,
    &format::TextFormat,
    &left::LEFT,
    &right::RIGHT,
    &trim::TRIM,
    &ltrim::LTRIM,
    &rtrim::RTRIM,
    &lpad::LPAD,
    &rpad::RPAD,
    &position::POSITION,
    &split_part::SPLIT_PART,
    &regexp_matches::REGEXP_MATCHES,
    &regexp_replace::REGEXP_REPLACE,
    &bit_and::BIT_AND,
    &bit_or::BIT_OR,
    &bit_xor::BIT_XOR,
    &shift_left::SHIFT_LEFT,
    &shift_right::SHIFT_RIGHT,
    &is_distinct_from::IsDistinctFrom,
    &now::QueryStartTime,
    &date_part::DATE_PART,
    &date_trunc::DATE_TRUNC,
    &iso8601::Iso8601,
];

/// A scalar function.
pub trait Scalar: Sync {
    /// Its description.
    fn doc(&self) -> &'static FunctionDoc;

    /// The return type for such arguments.
    ///
    /// # Errors
    /// When it does not accept them.
    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError>;

    /// Its values for `len` rows of arguments, which passed [`Scalar::check`]. `call` has the
    /// arguments' types and units, which a column of NULLs or of plain numbers lacks.
    ///
    /// # Errors
    /// When a value does not fit its type (overflow); a value that is merely undefined is NULL.
    fn eval(&self, call: &ScalarCall, args: &[Column], len: usize) -> Result<Column, EvalError>;
}

/// A scalar function of one argument.
pub struct UnaryFunction {
    doc: &'static FunctionDoc,
    /// As [`Scalar::check`], of the function's name and its arguments.
    check: fn(&str, &[Argument]) -> Result<Returns, ArgumentError>,
    /// As [`Scalar::eval`], of the one argument.
    eval: fn(&ScalarCall, &Column) -> Result<Column, EvalError>,
}

impl Scalar for UnaryFunction {
    fn doc(&self) -> &'static FunctionDoc {
        self.doc
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        (self.check)(self.doc.name, args)
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        (self.eval)(call, &args[0])
    }
}

/// A checked call of a scalar function.
#[derive(Clone, Serialize, Deserialize)]
pub struct ScalarCall {
    /// The function.
    #[serde(with = "by_name")]
    pub function: &'static dyn Scalar,
    /// Its arguments.
    pub args: Vec<Expr>,
    /// The type of the result.
    pub ty: Type,
    /// Its unit.
    pub unit: Unit,
}

/// The function called `name`, by its own name or an alias, without regard to case.
pub fn find(name: &str) -> Option<&'static dyn Scalar> {
    by_name::find(name)
}

impl fmt::Debug for ScalarCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(self.function.doc().name)
            .field(&self.args)
            .finish()
    }
}

impl PartialEq for ScalarCall {
    fn eq(&self, other: &ScalarCall) -> bool {
        self.function.doc().name == other.function.doc().name && self.args == other.args
    }
}

impl Eq for ScalarCall {}

impl Hash for ScalarCall {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.function.doc().name.hash(state);
        self.args.hash(state);
    }
}

impl Listed for dyn Scalar {
    fn all() -> &'static [&'static dyn Scalar] {
        SCALARS
    }

    fn doc(&self) -> &'static FunctionDoc {
        Scalar::doc(self)
    }
}
