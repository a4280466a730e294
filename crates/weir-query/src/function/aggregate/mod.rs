//! Aggregates: one value for the rows of a group, updated as rows are inserted and retracted.
//!
//! Every aggregate has four operations: update (inserts a row, or retracts it with a negative
//! weight), result, partial and merge, so that a group split over hosts or threads has the result
//! of the whole.

pub mod approx_count_distinct;
pub mod array_agg;
mod arrivals;
pub mod avg;
mod by;
pub mod corr;
pub mod count;
pub mod covar_pop;
pub mod covar_samp;
#[cfg(test)]
mod definitions;
mod dispersion;
mod extreme;
pub mod first;
pub mod histogram;
pub mod last;
#[cfg(test)]
mod laws;
mod list;
pub mod max;
pub mod max_by;
pub mod median;
pub mod min;
pub mod min_by;
pub mod mode;
mod ordered;
mod paired;
mod per_group;
mod percentile;
pub mod percentile_cont;
pub mod percentile_disc;
pub mod quantile;
pub mod regr_avgx;
pub mod regr_avgy;
pub mod regr_count;
pub mod regr_intercept;
pub mod regr_r2;
pub mod regr_slope;
pub mod regr_sxx;
pub mod regr_sxy;
pub mod regr_syy;
mod shared;
mod single;
pub mod stddev;
pub mod stddev_pop;
pub mod string_agg;
pub mod sum;
pub mod top;
mod total;
pub mod var;
pub mod var_pop;

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};
use weir_model::{Column, ColumnBuilder, PartialKind, PartialState, Type, Unit, Value};

pub use shared::Shared;

use super::by_name::{self, Listed};
use super::{Argument, ArgumentError, EvalError, FunctionDoc, Returns};
use crate::expr::Expr;

/// Every CQL aggregate, in the order of the reference.
pub static AGGREGATES: &[&dyn Aggregate] = &[
    &count::Count,
    &sum::SUM,
    &avg::AVG,
    &min::MIN,
    &max::MAX,
    &median::Median,
    &quantile::Quantile,
    &percentile_cont::PERCENTILE_CONT,
    &percentile_disc::PERCENTILE_DISC,
    &mode::Mode,
    &approx_count_distinct::ApproxCountDistinct,
    &histogram::Histogram,
    &top::Top,
    &max_by::MAX_BY,
    &min_by::MIN_BY,
    &string_agg::STRING_AGG,
    &array_agg::ARRAY_AGG,
    &first::FIRST,
    &last::LAST,
    &stddev::STDDEV,
    &var::VAR,
    &stddev_pop::STDDEV_POP,
    &var_pop::VAR_POP,
    &corr::CORR,
    &covar_pop::COVAR_POP,
    &covar_samp::COVAR_SAMP,
    &regr_count::REGR_COUNT,
    &regr_avgx::REGR_AVGX,
    &regr_avgy::REGR_AVGY,
    &regr_sxx::REGR_SXX,
    &regr_syy::REGR_SYY,
    &regr_sxy::REGR_SXY,
    &regr_slope::REGR_SLOPE,
    &regr_intercept::REGR_INTERCEPT,
    &regr_r2::REGR_R2,
];

/// An aggregate function.
pub trait Aggregate: Sync {
    /// Its description.
    fn doc(&self) -> &'static FunctionDoc;

    /// The return type for such arguments. `count(*)` has none.
    ///
    /// # Errors
    /// When it does not accept them.
    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError>;

    /// The state of `call` for a variable number of groups, initially none.
    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState>;

    /// The state for append-only input, where less may suffice: the greatest value so far instead
    /// of all of them.
    fn append_only_state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        self.state(call)
    }

    /// Whether the state of `other`, a call of this or of another aggregate, holds all that `call`
    /// needs: then [`AggregateState::result_of`] of that state is the result of `call` too. Neither
    /// is `DISTINCT`.
    fn shares(&self, call: &AggregateCall, other: &AggregateCall) -> bool {
        let _ = (call, other);
        false
    }

    /// Whether a group's rows may be distributed over several states in any way, and their partials
    /// merged. False when the order of arrival matters: then [`AggregateState::merge`] treats the
    /// other state's rows as later than its own.
    fn splits(&self) -> bool {
        true
    }

    /// What a source that pre-aggregates rows must compute of the argument, a column of integers,
    /// so that the result is exactly that of the rows. `None`: the source must deliver the rows.
    fn keep(&self, call: &AggregateCall) -> Option<PartialKind> {
        let _ = call;
        None
    }

    /// What a source computed for [`Aggregate::keep`], as the bytes that [`AggregateState::merge`]
    /// of the call reads; `None` when it computed something else.
    fn partial_of(&self, call: &AggregateCall, kept: &PartialState) -> Option<Vec<u8>> {
        let _ = (call, kept);
        None
    }
}

/// The state of one aggregate call over all groups. Groups are numbered by the engine, from 0, and
/// reused.
pub trait AggregateState: Send {
    /// Resizes to `groups` groups, new ones empty.
    fn resize(&mut self, groups: usize);

    /// Adds rows, in order, and appends to `out` the group's result after each row `i` for which
    /// `requested[i]`.
    ///
    /// Row `i` belongs to group `groups[i]`, is inserted (weight > 0) or retracted (weight < 0)
    /// `|weights[i]|` times, and its arguments are `args[..]` at `i`. A retracted row was inserted
    /// before.
    ///
    /// # Errors
    /// When a result does not fit its type (integer overflow).
    fn update(
        &mut self,
        groups: &[u32],
        weights: &[i64],
        args: &[Column],
        requested: &[bool],
        out: &mut ColumnBuilder,
    ) -> Result<(), EvalError>;

    /// The result of a group.
    ///
    /// # Errors
    /// As [`AggregateState::update`].
    fn result(&self, group: u32) -> Result<Value, EvalError>;

    /// The result of a group for a call that [`Aggregate::shares`] this state.
    ///
    /// # Errors
    /// As [`AggregateState::update`].
    fn result_of(&self, call: &AggregateCall, group: u32) -> Result<Value, EvalError> {
        let _ = call;
        self.result(group)
    }

    /// Empties a group.
    fn clear(&mut self, group: u32);

    /// Appends the group's state as bytes that [`AggregateState::merge`] of the same call reads.
    fn partial(&self, group: u32, out: &mut Vec<u8>);

    /// Adds a state written by [`AggregateState::partial`] to that of the group.
    ///
    /// # Errors
    /// When the bytes are not such a state, or the sum does not fit its type.
    fn merge(&mut self, group: u32, partial: &[u8]) -> Result<(), EvalError>;

    /// Approximate size in bytes.
    fn bytes(&self) -> usize;
}

/// A checked call of an aggregate.
#[derive(Clone, Serialize, Deserialize)]
pub struct AggregateCall {
    /// The aggregate.
    #[serde(with = "by_name")]
    pub function: &'static dyn Aggregate,
    /// Its arguments over the input's columns, constants (such as the q of a quantile) included.
    /// Empty for `count(*)`.
    pub args: Vec<Expr>,
    /// `agg(DISTINCT x)`: each distinct value counts once. Done by the engine, not by the state.
    pub distinct: bool,
    /// The type of the result.
    pub ty: Type,
    /// Its unit.
    pub unit: Unit,
}

impl AggregateCall {
    /// Whether its result can be read from the state of `other`.
    pub fn shares(&self, other: &AggregateCall) -> bool {
        !self.distinct && !other.distinct && (self == other || self.function.shares(self, other))
    }

    /// Whether its rows may be distributed over several states in any way, and their partials
    /// merged.
    pub fn splits(&self) -> bool {
        !self.distinct && self.function.splits()
    }

    /// Whether it is a call of `function`.
    fn is_of(&self, function: &dyn Aggregate) -> bool {
        self.function.doc().name == function.doc().name
    }
}

/// `keep`, if the call is of integers, which is what sources pre-aggregate.
fn of_integers(call: &AggregateCall, keep: impl FnOnce() -> PartialKind) -> Option<PartialKind> {
    (call.args.first()?.ty() == Type::Int).then(keep)
}

/// The aggregate called `name`, by its own name or an alias, without regard to case.
pub fn find(name: &str) -> Option<&'static dyn Aggregate> {
    by_name::find(name)
}

/// The fraction of a percentile that is a name: 0.99 for `p99`.
pub(crate) fn percentile_of(name: &str) -> Option<f64> {
    let digits = name.strip_prefix(['p', 'P'])?;
    let is_percentile = (2..=5).contains(&digits.len())
        && digits.bytes().all(|b| b.is_ascii_digit())
        && digits != "100";
    is_percentile.then(|| format!("0.{digits}").parse().ok())?
}

/// Whether `name` is that of an aggregate, or of a percentile.
pub(crate) fn is_aggregate(name: &str) -> bool {
    find(name).is_some() || percentile_of(name).is_some()
}

impl fmt::Debug for AggregateCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let distinct = if self.distinct { " distinct" } else { "" };
        write!(f, "{}{distinct}", self.function.doc().name)?;
        f.debug_list().entries(&self.args).finish()
    }
}

impl PartialEq for AggregateCall {
    fn eq(&self, other: &AggregateCall) -> bool {
        self.function.doc().name == other.function.doc().name
            && self.args == other.args
            && self.distinct == other.distinct
    }
}

impl Eq for AggregateCall {}

impl Hash for AggregateCall {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.function.doc().name.hash(state);
        self.args.hash(state);
        self.distinct.hash(state);
    }
}

impl Listed for dyn Aggregate {
    fn all() -> &'static [&'static dyn Aggregate] {
        AGGREGATES
    }

    fn doc(&self) -> &'static FunctionDoc {
        Aggregate::doc(self)
    }
}
