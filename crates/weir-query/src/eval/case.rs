//! `CASE WHEN .. THEN .. ELSE .. END`: each branch is evaluated for its own rows only.

use weir_model::{Column, Type, Value};

use super::{Datum, Rows, evaluate, evaluate_some, truth_rows};
use crate::expr::Expr;
use crate::function::EvalError;
use crate::synopsis::slots::MutableColumn;

/// The value of the first branch whose condition is true, else `otherwise`.
pub(super) fn case(
    branches: &[(Expr, Expr)],
    otherwise: Option<&Expr>,
    ty: Type,
    rows: Rows<'_>,
) -> Result<Datum, EvalError> {
    let mut result = MutableColumn::new(ty);
    result.resize(rows.len);
    let mut open: Option<Vec<u32>> = None;
    for (condition, value) in branches {
        let truth = match &open {
            None => evaluate(condition, rows)?,
            Some(open) => evaluate_some(condition, rows, open)?,
        };
        let all = open
            .take()
            .unwrap_or_else(|| (0..rows.len as u32).collect());
        let (mine, rest) = truth_rows(&truth, &all);
        fill(&mut result, value, rows, &mine)?;
        if rest.is_empty() {
            return Ok(Datum::Column(result.into_column()));
        }
        open = Some(rest);
    }
    let rest = open.unwrap_or_else(|| (0..rows.len as u32).collect());
    if let Some(otherwise) = otherwise {
        fill(&mut result, otherwise, rows, &rest)?;
    } else {
        result.write(&rest, &Column::Nulls(rest.len()));
    }
    Ok(Datum::Column(result.into_column()))
}

fn fill(
    result: &mut MutableColumn,
    value: &Expr,
    rows: Rows<'_>,
    mine: &[u32],
) -> Result<(), EvalError> {
    if mine.is_empty() {
        return Ok(());
    }
    let values = match value {
        Expr::Literal {
            value: Value::Null, ..
        } => Column::Nulls(mine.len()),
        value => evaluate_some(value, rows, mine)?.into_column(mine.len()),
    };
    result.write(mine, &values);
    Ok(())
}
