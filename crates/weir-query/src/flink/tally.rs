//! Tallies in Flink: arrays of rows with a value and its count, such as
//! `ARRAY<ROW<value STRING, count BIGINT>>`. CQL has one type for all of them; Flink has one for
//! each type of values.

use weir_model::{Field, Type};

use super::table::type_name;
use super::{Untranslatable, refuse};
use crate::expr::Expr;
use crate::function::AggregateCall;
use crate::plan::{JoinKind, Node, Plan};

/// The type of a column of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// A single value.
    Single(Type),
    /// A tally of values of this type.
    Tally(Type),
}

impl ColumnType {
    /// The type of the column of a plan at this position.
    ///
    /// # Errors
    /// If Flink has no such type, or the values of a tally have different ones.
    pub fn of(plan: &Plan, at: usize) -> Result<ColumnType, Untranslatable> {
        let ty = plan.schema.fields[at].ty;
        let found = match ty {
            Type::Tally => ColumnType::Tally(values(plan, at)?),
            ty => ColumnType::Single(ty),
        };
        found.sql()?;
        Ok(found)
    }

    /// The type of Flink.
    pub(super) fn sql(self) -> Result<String, Untranslatable> {
        Ok(match self {
            ColumnType::Single(ty) => type_name(ty)?.to_owned(),
            ColumnType::Tally(ty) => {
                let value = type_name(ty)?;
                format!("ARRAY<ROW<`value` {value}, `count` BIGINT>>")
            }
        })
    }
}

/// The type of the values of a tally.
fn values(plan: &Plan, at: usize) -> Result<Type, Untranslatable> {
    match &plan.node {
        Node::Window { input, .. }
        | Node::Select { input, .. }
        | Node::Distinct { input }
        | Node::Order { input, .. }
        | Node::ToStream { input, .. } => values(input, at),
        Node::Project { input, exprs } => of_column(input, &exprs[at]),
        Node::Aggregate {
            input, keys, calls, ..
        } => match at.checked_sub(keys.len()) {
            None => of_column(input, &keys[at]),
            Some(call) => of_call(&calls[call]),
        },
        Node::Merge { keys, calls, .. } if at >= *keys => of_call(&calls[at - keys]),
        Node::Join(join) => {
            let columns = join.left.schema.fields.len();
            match at.checked_sub(columns) {
                Some(at) if !matches!(join.kind, JoinKind::Semi | JoinKind::Anti) => {
                    values(&join.right, at)
                }
                _ => values(&join.left, at),
            }
        }
        // Both have the same type, see [`same_tallies`].
        Node::SetOp { left, .. } => values(left, at),
        _ => refuse("Flink has no type for such a tally"),
    }
}

fn of_column(input: &Plan, expr: &Expr) -> Result<Type, Untranslatable> {
    match expr {
        Expr::Column { index, .. } => values(input, *index),
        _ => refuse("Flink has no type for a tally that is not the result of an aggregate"),
    }
}

fn of_call(call: &AggregateCall) -> Result<Type, Untranslatable> {
    match (call.function.doc().name, call.args.first()) {
        ("top" | "histogram", Some(of)) => Ok(of.ty()),
        _ => refuse("Flink has no type for such a tally"),
    }
}

/// Refuses a union of tallies with values of different types.
pub(super) fn same_tallies(inputs: [&Plan; 2]) -> Result<(), Untranslatable> {
    for (at, field) in inputs[0].schema.fields.iter().enumerate() {
        if field.ty != Type::Tally {
            continue;
        }
        let [left, right] = inputs.map(|input| values(input, at));
        let (left, right) = (left?, right?);
        if left != right {
            return refuse(format!(
                "column `{}` has tallies with values that are {left} and {right}, for which Flink \
                 has no type",
                field.name
            ));
        }
    }
    Ok(())
}

/// Refuses `what` where one of these columns is a tally: Flink orders and compares NULL and NaN in
/// arrays in another way.
pub(super) fn without_tallies(fields: &[Field], what: &str) -> Result<(), Untranslatable> {
    match fields.iter().find(|field| field.ty == Type::Tally) {
        Some(field) => refuse(format!(
            "column `{}` is a tally: {what} compares tallies, which Flink does in another way",
            field.name
        )),
        None => Ok(()),
    }
}

/// As [`without_tallies`], of expressions.
pub(super) fn without_tally_keys<'a>(
    mut keys: impl Iterator<Item = &'a Expr>,
    what: &str,
) -> Result<(), Untranslatable> {
    match keys.any(|key| key.ty() == Type::Tally) {
        true => refuse(format!(
            "{what} compares tallies, which Flink does in another way"
        )),
        false => Ok(()),
    }
}
