//! Aggregates: one value for the rows of a group, kept up to date as rows come and go.
//!
//! Every aggregate has four verbs: update (a row comes, or goes again with a negative weight),
//! result, partial and merge, so that a group split over hosts or threads gives what the whole
//! would have given.

mod arrivals;
pub mod avg;
pub mod count;
#[cfg(test)]
mod definitions;
mod end;
mod extreme;
pub mod first;
pub mod histogram;
pub mod last;
#[cfg(test)]
mod laws;
pub mod max;
pub mod median;
pub mod min;
mod ordered;
mod per_group;
pub mod quantile;
mod shared;
mod spread;
pub mod stddev;
pub mod stddev_pop;
pub mod sum;
pub mod top;
mod total;
pub mod var;
pub mod var_pop;

use std::fmt;
use std::hash::{Hash, Hasher};

use weir_model::{Column, ColumnBuilder, Keep, Kept, Type, Unit, Value};

pub use shared::Shared;

use super::{Argument, EvalError, FunctionDoc, Refusal, Returns};
use crate::expr::Expr;

/// Every aggregate CQL knows, in the order the reference lists them.
pub static AGGREGATES: &[&dyn Aggregate] = &[
    &count::Count,
    &sum::Sum,
    &avg::Avg,
    &min::Min,
    &max::Max,
    &median::Median,
    &quantile::Quantile,
    &histogram::Histogram,
    &top::Top,
    &first::First,
    &last::Last,
    &stddev::Stddev,
    &var::Var,
    &stddev_pop::StddevPop,
    &var_pop::VarPop,
];

/// An aggregate function.
pub trait Aggregate: Sync {
    /// What it is.
    fn doc(&self) -> &'static FunctionDoc;

    /// What it returns for such arguments. `count(*)` has none.
    ///
    /// # Errors
    /// When it does not take them.
    fn check(&self, args: &[Argument]) -> Result<Returns, Refusal>;

    /// The state of `call` for a growing number of groups, none yet.
    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState>;

    /// The same for an input from which no row ever goes, where less state may do: the greatest
    /// value so far instead of all of them.
    fn append_only_state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        self.state(call)
    }

    /// True when the state of `other`, a call of this or of another aggregate, holds all that `call`
    /// needs: then [`AggregateState::result_of`] of that state gives the result of `call` too.
    /// Neither is `DISTINCT`.
    fn shares(&self, call: &AggregateCall, other: &AggregateCall) -> bool {
        let _ = (call, other);
        false
    }

    /// True when a group's rows may be dealt over several states in any way, and their partials
    /// merged. False when the order of arrival counts: then [`AggregateState::merge`] takes the
    /// other state's rows as later than its own.
    fn splits(&self) -> bool {
        true
    }

    /// What a source that folds rows must keep of the argument, a column of integers, so that the
    /// result is exactly that of the rows. `None`: it must be shown the rows.
    fn keep(&self, call: &AggregateCall) -> Option<Keep> {
        let _ = call;
        None
    }

    /// What was kept by [`Aggregate::keep`], as the bytes that [`AggregateState::merge`] of the call
    /// takes; `None` when something else was kept.
    fn partial_of(&self, call: &AggregateCall, kept: &Kept) -> Option<Vec<u8>> {
        let _ = (call, kept);
        None
    }
}

/// The state of one aggregate call over all groups, side by side. Groups are numbered by the
/// engine, from 0, and reused.
pub trait AggregateState: Send {
    /// Makes room for groups up to `groups`, new ones empty.
    fn resize(&mut self, groups: usize);

    /// Folds rows in, in order, and appends to `out` the group's result after each row `i` for
    /// which `wanted[i]`.
    ///
    /// Row `i` belongs to group `groups[i]`, comes (weight > 0) or goes (weight < 0) `|weights[i]|`
    /// times, and its arguments are `args[..]` at `i`. What goes has come before.
    ///
    /// # Errors
    /// When a result cannot be held (integer overflow).
    fn update(
        &mut self,
        groups: &[u32],
        weights: &[i64],
        args: &[Column],
        wanted: &[bool],
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

    /// Forgets a group, which is then empty.
    fn clear(&mut self, group: u32);

    /// The group's state as bytes that [`AggregateState::merge`] of the same call understands.
    fn partial(&self, group: u32, out: &mut Vec<u8>);

    /// Adds a state that [`AggregateState::partial`] gave to the group's own.
    ///
    /// # Errors
    /// When the bytes are not such a state, or the sum cannot be held.
    fn merge(&mut self, group: u32, partial: &[u8]) -> Result<(), EvalError>;

    /// Approximate size in bytes.
    fn bytes(&self) -> usize;
}

/// A checked call of an aggregate.
#[derive(Clone)]
pub struct AggregateCall {
    /// The aggregate.
    pub function: &'static dyn Aggregate,
    /// Its arguments over the input's columns; constants (as the q of a quantile) included. Empty
    /// for `count(*)`.
    pub args: Vec<Expr>,
    /// `agg(DISTINCT x)`: each different value counts once. The engine sees to it, the state does
    /// not know.
    pub distinct: bool,
    /// The type of the result.
    pub ty: Type,
    /// Its unit.
    pub unit: Unit,
}

impl AggregateCall {
    /// Whether its result can be read off the state of `other`.
    pub fn shares(&self, other: &AggregateCall) -> bool {
        !self.distinct && !other.distinct && (self == other || self.function.shares(self, other))
    }

    /// Whether its rows may be dealt over several states in any way, and their partials merged.
    pub fn splits(&self) -> bool {
        !self.distinct && self.function.splits()
    }

    /// Whether it is a call of `function`.
    fn is_of(&self, function: &dyn Aggregate) -> bool {
        self.function.doc().name == function.doc().name
    }
}

/// `keep`, if the call is of integers, which is what sources fold.
fn of_integers(call: &AggregateCall, keep: impl FnOnce() -> Keep) -> Option<Keep> {
    (call.args.first()?.ty() == Type::Int).then(keep)
}

/// The aggregate called `name`, by its own name or an alias, without regard to case.
pub fn find(name: &str) -> Option<&'static dyn Aggregate> {
    let answers = |d: &FunctionDoc| {
        d.name.eq_ignore_ascii_case(name) || d.aliases.iter().any(|a| a.eq_ignore_ascii_case(name))
    };
    AGGREGATES.iter().copied().find(|f| answers(f.doc()))
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
