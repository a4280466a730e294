//! Scalar functions: one value in a row for the arguments of that row.

pub mod abs;
pub mod bucket;
pub mod ceil;
pub mod coalesce;
pub mod concat;
pub mod exp;
pub mod floor;
pub mod gib;
pub mod greatest;
pub mod iso8601;
pub mod kib;
#[cfg(test)]
mod laws;
pub mod least;
pub mod length;
pub mod ln;
pub mod log10;
pub mod log2;
pub mod lower;
pub mod mib;
pub mod micros;
pub mod millis;
pub mod nullif;
mod pick;
pub mod pow;
pub mod pow2_bucket;
pub mod replace;
pub mod round;
mod rows;
pub mod sample;
mod scaled;
pub mod seconds;
pub mod sign;
pub mod sqrt;
pub mod starts_with;
pub mod substr;
pub mod upper;

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};
use weir_model::{Column, Type, Unit};

use super::{Argument, ArgumentError, EvalError, FunctionDoc, Returns};
use crate::expr::Expr;

/// Every scalar function of CQL, in the order of the reference.
pub static SCALARS: &[&dyn Scalar] = &[
    &abs::Abs,
    &sign::Sign,
    &round::Round,
    &floor::Floor,
    &ceil::Ceil,
    &bucket::Bucket,
    &pow2_bucket::Pow2Bucket,
    &least::Least,
    &greatest::Greatest,
    &sqrt::Sqrt,
    &pow::Pow,
    &exp::Exp,
    &ln::Ln,
    &log2::Log2,
    &log10::Log10,
    &seconds::Seconds,
    &millis::Millis,
    &micros::Micros,
    &kib::Kib,
    &mib::Mib,
    &gib::Gib,
    &coalesce::Coalesce,
    &nullif::Nullif,
    &sample::Sample,
    &lower::Lower,
    &upper::Upper,
    &length::Length,
    &substr::Substr,
    &replace::Replace,
    &starts_with::StartsWith,
    &concat::Concat,
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
    let answers = |d: &FunctionDoc| {
        d.name.eq_ignore_ascii_case(name) || d.aliases.iter().any(|a| a.eq_ignore_ascii_case(name))
    };
    SCALARS.iter().copied().find(|f| answers(f.doc()))
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

/// Serialisation of a function as its name.
mod by_name {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Scalar;

    pub fn serialize<S: Serializer>(
        function: &&'static dyn Scalar,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(function.doc().name)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<&'static dyn Scalar, D::Error> {
        let name = String::deserialize(deserializer)?;
        let unknown = || D::Error::custom(format!("function `{name}` is unknown here"));
        super::find(&name).ok_or_else(unknown)
    }
}
