//! Expressions in Flink SQL.

use weir_model::{Type, Value};

use super::table::type_name;
use super::{Untranslatable, refuse, scalar, text};
use crate::expr::{BinaryOp, Expr, UnaryOp};

/// An expression over columns that are these expressions.
pub(super) fn expr(e: &Expr, columns: &[String]) -> Result<String, Untranslatable> {
    let is_plain = matches!(
        e,
        Expr::Column { .. } | Expr::Literal { .. } | Expr::IsNull { .. }
    );
    let all = || e.children().into_iter().chain([e]);
    if !is_plain && all().any(|e| e.ty() == Type::Tally) {
        return refuse("Flink has no expression of tallies with the same result");
    }
    let below = |e: &Expr| expr(e, columns);
    let not = |negated: &bool| if *negated { " NOT" } else { "" };
    Ok(match e {
        Expr::Column { index, .. } => columns[*index].clone(),
        Expr::Literal { value, ty, .. } => literal(value, *ty)?,
        Expr::Unary {
            op: UnaryOp::Negate,
            expr,
        } => format!("(-{})", below(expr)?),
        Expr::Unary {
            op: UnaryOp::Not,
            expr,
        } => format!("(NOT {})", below(expr)?),
        Expr::Binary {
            op, left, right, ..
        } => {
            let (l, r) = (below(left)?, below(right)?);
            binary(*op, left, right, &l, &r)?
        }
        Expr::IsNull { expr, negated } => {
            format!("({} IS{} NULL)", below(expr)?, not(negated))
        }
        Expr::InList {
            expr,
            list,
            has_null,
            negated,
        } => {
            let values = list.iter().map(|value| literal(value, expr.ty()));
            let mut values = values.collect::<Result<Vec<_>, _>>()?;
            if *has_null || values.is_empty() {
                values.push(literal(&Value::Null, expr.ty())?);
            }
            format!(
                "({}{} IN ({}))",
                below(expr)?,
                not(negated),
                values.join(", ")
            )
        }
        Expr::Like {
            expr,
            pattern,
            ignore_case: false,
            negated,
        } => {
            let escape = match pattern.contains('\\') {
                true => r" ESCAPE '\'",
                false => "",
            };
            format!(
                "({}{} LIKE {}{escape})",
                below(expr)?,
                not(negated),
                text(pattern)
            )
        }
        Expr::Like { .. } => {
            return refuse("ILIKE ignores the case in another way than Flink; compare lower(..)");
        }
        Expr::Case {
            branches,
            otherwise,
            ty,
            ..
        } => {
            // Texts of different lengths would be padded to one.
            let below = |e: &Expr| match e {
                Expr::Literal {
                    value: Value::Text(x),
                    ..
                } => Ok(format!("CAST({} AS STRING)", text(x.as_str()))),
                _ => below(e),
            };
            let mut sql = "CASE".to_owned();
            for (when, then) in branches {
                sql += &format!(" WHEN {} THEN {}", below(when)?, below(then)?);
            }
            if let Some(otherwise) = otherwise {
                sql += &format!(" ELSE {}", below(otherwise)?);
            }
            match ty {
                // A literal is an INT.
                Type::Int => format!("CAST({sql} END AS BIGINT)"),
                _ => format!("{sql} END"),
            }
        }
        Expr::Cast { expr, ty, .. } => cast(&below(expr)?, expr.ty(), *ty)?,
        Expr::Call(call) => {
            let is_returned = scalar::returns_an_argument(call);
            let below = |e| match is_returned {
                true => value(e, columns),
                false => below(e),
            };
            let args = call.args.iter().map(below);
            scalar::call(call, &args.collect::<Result<Vec<_>, _>>()?)?
        }
    })
}

/// The same with its type in weir: a constant alone is an INT, with which sums would be ones.
pub(super) fn value(e: &Expr, columns: &[String]) -> Result<String, Untranslatable> {
    let sql = expr(e, columns)?;
    Ok(match e {
        Expr::Literal {
            value: Value::Int(_),
            ..
        } => format!("CAST({sql} AS BIGINT)"),
        _ => sql,
    })
}

/// A constant.
pub(super) fn literal(value: &Value, ty: Type) -> Result<String, Untranslatable> {
    Ok(match value {
        Value::Null => format!("CAST(NULL AS {})", type_name(ty)?),
        Value::Bool(x) => x.to_string().to_uppercase(),
        // The magnitude alone does not fit.
        Value::Int(i64::MIN) => "(-9223372036854775807 - 1)".into(),
        Value::Int(x) => x.to_string(),
        Value::Float(x) if x.is_finite() => format!("{x:E}"),
        Value::Float(x) => return refuse(format!("Flink SQL has no literal for {x}")),
        Value::Text(x) => text(x.as_str()),
        Value::Tally(_) | Value::Bytes(_) => return refuse("a histogram is no literal"),
    })
}

fn binary(
    op: BinaryOp,
    left: &Expr,
    right: &Expr,
    l: &str,
    r: &str,
) -> Result<String, Untranslatable> {
    let is_float = left.ty() == Type::Float;
    // Division by zero is NULL.
    let is_zero_free = matches!(right, Expr::Literal { value: Value::Int(x), .. } if *x != 0)
        || matches!(right, Expr::Literal { value: Value::Float(x), .. } if *x != 0.0);
    let divisor = match (is_zero_free, is_float) {
        (true, _) => r.to_owned(),
        (false, true) => format!("NULLIF({r}, 0E0)"),
        (false, false) => format!("NULLIF({r}, 0)"),
    };
    Ok(match op {
        BinaryOp::Divide => format!("({l} / {divisor})"),
        BinaryOp::Modulo if is_float => {
            return refuse("Flink has no remainder of floats");
        }
        // Its type is that of the divisor, and a literal is an INT.
        BinaryOp::Modulo => format!("MOD({l}, CAST({divisor} AS BIGINT))"),
        _ => format!("({l} {} {r})", op.symbol()),
    })
}

fn cast(sql: &str, from: Type, to: Type) -> Result<String, Untranslatable> {
    let is_whole = |ty| matches!(ty, Type::Int | Type::Time);
    Ok(match (from, to) {
        _ if from == to || is_whole(from) && is_whole(to) => sql.to_owned(),
        (Type::Int | Type::Time, Type::Float) => format!("CAST({sql} AS DOUBLE)"),
        (Type::Int, Type::Text) => format!("CAST({sql} AS STRING)"),
        (Type::Bool, Type::Int) => {
            format!("CAST(CASE WHEN {sql} THEN 1 WHEN NOT {sql} THEN 0 END AS BIGINT)")
        }
        (Type::Int, Type::Bool) => format!("({sql} <> 0)"),
        // The bounds of 64 bits as floats; beyond them Flink has the nearest integer.
        (Type::Float, Type::Int) => format!(
            "CASE WHEN {sql} >= -9.223372036854775808E18 AND {sql} < 9.223372036854775808E18 \
             THEN CAST({sql} AS BIGINT) END"
        ),
        _ => return refuse(format!("Flink casts a {from} to a {to} in another way")),
    })
}
