//! The operators from relations to relations, as nested loops over bags of rows.

use std::cmp::Ordering;

use weir_model::Value;
use weir_query::Expr;
use weir_query::plan::{JoinKind, OrderBy, SetOp};

use super::expr;
use crate::support::Row;

type Content = Result<Vec<Row>, String>;

/// The rows for which `predicate` is true.
pub fn select(rows: &[Row], predicate: &Expr) -> Content {
    let mut kept = Vec::new();
    for row in rows {
        if expr::is_true(predicate, row)? {
            kept.push(row.clone());
        }
    }
    Ok(kept)
}

/// The values of `exprs` for each row.
pub fn project(rows: &[Row], exprs: &[Expr]) -> Content {
    rows.iter().map(|row| expr::all(exprs, row)).collect()
}

/// Each distinct row once.
pub fn distinct(rows: &[Row]) -> Vec<Row> {
    let mut found: Vec<Row> = Vec::new();
    for row in rows {
        if !found.contains(row) {
            found.push(row.clone());
        }
    }
    found
}

/// The rows of `left` without as many of each as `right` has.
pub fn except_all(left: &[Row], right: &[Row]) -> Vec<Row> {
    let mut right = right.to_vec();
    let stays = |row: &&Row| match right.iter().position(|r| r == *row) {
        Some(i) => {
            right.swap_remove(i);
            false
        }
        None => true,
    };
    left.iter().filter(stays).cloned().collect()
}

/// UNION, INTERSECT, EXCEPT, of bags or of sets.
pub fn combine(op: SetOp, all: bool, left: &[Row], right: &[Row]) -> Vec<Row> {
    let (left, right) = if all {
        (left.to_vec(), right.to_vec())
    } else {
        (distinct(left), distinct(right))
    };
    match op {
        SetOp::Union if all => [left, right].concat(),
        SetOp::Union => distinct(&[left, right].concat()),
        SetOp::Except => except_all(&left, &right),
        // The common rows are those of the left without those that only the left has.
        SetOp::Intersect => except_all(&left, &except_all(&left, &right)),
    }
}

/// The first rows in an order; rows with equal sort keys are ordered by all their columns.
pub fn first(rows: &[Row], by: &[OrderBy], limit: Option<u64>, offset: u64) -> Content {
    let mut keyed: Vec<(Row, &Row)> = Vec::new();
    for row in rows {
        let keys: Row = by
            .iter()
            .map(|key| expr::value(&key.expr, row))
            .collect::<Result<_, _>>()?;
        keyed.push((keys, row));
    }
    keyed.sort_by(|(a, row_a), (b, row_b)| {
        let keys = by.iter().zip(a.iter().zip(b));
        keys.map(|(key, (a, b))| order(key, a, b))
            .find(|o| o.is_ne())
            .unwrap_or_else(|| row_a.cmp(row_b))
    });
    let skip = usize::try_from(offset).unwrap_or(usize::MAX);
    let take = limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let rows = keyed.into_iter().skip(skip).take(take);
    Ok(rows.map(|(_, row)| row.clone()).collect())
}

/// The order of two values of a sort key.
pub fn order(by: &OrderBy, a: &Value, b: &Value) -> Ordering {
    match (a.is_null(), b.is_null()) {
        (true, true) => Ordering::Equal,
        (true, false) if by.nulls_first => Ordering::Less,
        (true, false) => Ordering::Greater,
        (false, true) if by.nulls_first => Ordering::Greater,
        (false, true) => Ordering::Less,
        (false, false) if by.descending => b.cmp(a),
        (false, false) => a.cmp(b),
    }
}

/// A join of any kind.
pub struct Join<'a> {
    /// How rows without partner are treated.
    pub kind: JoinKind,
    /// Pairs of expressions that must be equal.
    pub on: &'a [(Expr, Expr)],
    /// A further condition.
    pub residual: Option<&'a Expr>,
    /// How many columns the left and the right have.
    pub columns: [usize; 2],
}

impl Join<'_> {
    /// The joined rows.
    pub fn content(&self, left: &[Row], right: &[Row]) -> Content {
        let mut pairs = Vec::new();
        for (i, l) in left.iter().enumerate() {
            for (j, r) in right.iter().enumerate() {
                if self.equal(l, r)? == Some(true) && self.residual_holds(l, r)? {
                    pairs.push((i, j));
                }
            }
        }
        let lonely_left = || (0..left.len()).filter(|i| pairs.iter().all(|(l, _)| l != i));
        let lonely_right = || (0..right.len()).filter(|j| pairs.iter().all(|(_, r)| r != j));
        let joined = pairs
            .iter()
            .map(|(i, j)| [left[*i].clone(), right[*j].clone()].concat());
        let padded_left = lonely_left().map(|i| {
            let mut row = left[i].clone();
            row.resize(self.columns[0] + self.columns[1], Value::Null);
            row
        });
        let padded_right = lonely_right().map(|j| {
            let mut row = vec![Value::Null; self.columns[0]];
            row.extend(right[j].iter().cloned());
            row
        });
        Ok(match self.kind {
            JoinKind::Inner => joined.collect(),
            JoinKind::Left => joined.chain(padded_left).collect(),
            JoinKind::Right => joined.chain(padded_right).collect(),
            JoinKind::Full => joined.chain(padded_left).chain(padded_right).collect(),
            JoinKind::Semi => {
                let partnered = (0..left.len()).filter(|i| pairs.iter().any(|(l, _)| l == i));
                partnered.map(|i| left[i].clone()).collect()
            }
            JoinKind::Anti => lonely_left().map(|i| left[i].clone()).collect(),
            JoinKind::NotIn => {
                let mut kept = Vec::new();
                for l in left {
                    if self.in_none_of(l, right)? {
                        kept.push(l.clone());
                    }
                }
                kept
            }
        })
    }

    /// `l NOT IN right` in SQL's logic: the comparison with each row is false, not merely unknown.
    fn in_none_of(&self, l: &Row, right: &[Row]) -> Result<bool, String> {
        for r in right {
            if self.residual_holds(l, r)? && self.equal(l, r)? != Some(false) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether all pairs of keys are equal; `None` is SQL's unknown.
    fn equal(&self, l: &Row, r: &Row) -> Result<Option<bool>, String> {
        let mut result = Some(true);
        for (x, y) in self.on {
            let (x, y) = (expr::value(x, l)?, expr::value(y, r)?);
            if x.is_null() || y.is_null() {
                result = None;
            } else if x != y {
                return Ok(Some(false));
            }
        }
        Ok(result)
    }

    fn residual_holds(&self, l: &Row, r: &Row) -> Result<bool, String> {
        match self.residual {
            None => Ok(true),
            Some(residual) => expr::is_true(residual, &[l.as_slice(), r].concat()),
        }
    }
}
