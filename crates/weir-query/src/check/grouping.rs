//! ROLLUP, CUBE and GROUPING SETS: the union of the groups by each set of keys.

use std::sync::Arc;

use weir_model::{Field, Type, Unit};

use super::call::Written;
use super::coerce;
use super::expr::Names;
use super::select::{Block, aggregated};
use super::{Checker, Dialect};
use crate::diagnostic::{Span, codes};
use crate::expr::{BinaryOp, Expr};
use crate::plan::{Plan, SetOp};
use crate::syntax::ast::{self, SETS_MAX};

/// `grouping(key)` of each key is numbered from here on, until the groups exist.
pub(super) const GROUPINGS: usize = 1 << 43;

impl Checker<'_> {
    /// The sets of keys by which a block is grouped; `positions` are those of the keys as written.
    pub(super) fn grouping_sets(
        &mut self,
        select: &ast::SelectBlock,
        positions: &[usize],
    ) -> Option<Vec<Vec<usize>>> {
        let sets = select.grouping.sets(select.group_by.len())?;
        if sets.len() > SETS_MAX {
            let place = select
                .group_by
                .first()
                .map_or(Span::new(0, 0), |key| key.span);
            let message = format!("more than {SETS_MAX} grouping sets");
            self.diagnostics.push(codes::TOO_DEEP.at(place, message));
            return Some(Vec::new());
        }
        let set = |set: &Vec<usize>| {
            let mut keys: Vec<usize> = set.iter().map(|i| positions[*i]).collect();
            keys.sort_unstable();
            keys.dedup();
            keys
        };
        Some(sets.iter().map(set).collect())
    }

    /// `grouping(a, b)`: a bit for each key, 1 where the row is not grouped by it.
    pub(super) fn grouping(&mut self, call: Written, names: &mut Names) -> Option<Expr> {
        let args = self.operands(call.args, names)?;
        let (keys, has_sets) = self.group_keys.clone().unwrap_or_default();
        let mut bits: Option<Expr> = None;
        for arg in &args {
            let Some(key) = keys.iter().position(|key| *key == arg.expr) else {
                let message = "`grouping` takes keys of GROUP BY";
                self.diagnostics
                    .push(codes::BAD_ARGUMENTS.at(arg.span, message));
                return None;
            };
            let bit = match has_sets {
                true => Expr::column(GROUPINGS + key, Type::Int, Unit::None),
                false => Expr::int(0),
            };
            bits = Some(match bits {
                None => bit,
                Some(higher) => {
                    let doubled = integer(BinaryOp::Multiply, higher, Expr::int(2));
                    integer(BinaryOp::Add, doubled, bit)
                }
            });
        }
        if bits.is_none() {
            let message = "`grouping` is missing its argument";
            self.diagnostics
                .push(codes::BAD_ARGUMENTS.at(call.span, message));
        }
        bits
    }
}

fn integer(op: BinaryOp, left: Expr, right: Expr) -> Expr {
    Expr::Binary {
        op,
        left: Box::new(left),
        right: Box::new(right),
        unit: Unit::None,
    }
}

/// The groups by each of `sets`: all keys, NULL where the row is not grouped by one; for each key
/// whether this is so; then the results of aggregates.
pub(super) fn grouped_by_sets(
    input: &Arc<Plan>,
    block: &Block,
    sets: &[Vec<usize>],
    dialect: Dialect,
) -> Option<Arc<Plan>> {
    let parts = sets.iter().map(|set| {
        let mut by_set = Block::over(block.scope());
        by_set.keys = set.iter().map(|i| block.keys[*i].clone()).collect();
        by_set.calls = block.calls.clone();
        let groups = aggregated(input.clone(), &by_set, dialect);
        let columns = groups.columns();
        let key = |i: usize| match set.binary_search(&i) {
            Ok(at) => (columns[at].clone(), groups.schema[at].clone()),
            Err(_) => {
                let (ty, unit) = (block.keys[i].ty(), block.keys[i].unit());
                let field = Field::new(format!("key{}", i + 1), ty).unit(unit);
                (coerce::null(ty, unit), field)
            }
        };
        let bit = |i: usize| {
            let is_left_out = i64::from(set.binary_search(&i).is_err());
            let field = Field::new(format!("grouping{}", i + 1), Type::Int);
            (Expr::int(is_left_out), field)
        };
        let keys = 0..block.keys.len();
        let calls =
            (set.len()..columns.len()).map(|i| (columns[i].clone(), groups.schema[i].clone()));
        let keyed = keys
            .clone()
            .map(key)
            .map(|(expr, field)| (expr, field.nullable()));
        let (exprs, fields) = keyed.chain(keys.map(bit)).chain(calls).unzip();
        Plan::project(groups.clone(), exprs, fields)
    });
    parts.reduce(|all, part| Plan::set_op(all, part, SetOp::Union, true))
}
