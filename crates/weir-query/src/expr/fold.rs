//! Constant folding of one expression node; AND and OR with one constant side are simplified.

use weir_model::{Symbol, Type, Unit, Value};

use super::{BinaryOp, Expr, UnaryOp};

/// Folds one node, whose children are already folded.
pub(crate) fn fold_expr(expr: Expr) -> Expr {
    let (ty, unit) = (expr.ty(), expr.unit());
    let value = match &expr {
        Expr::Binary {
            op: op @ (BinaryOp::And | BinaryOp::Or),
            left,
            right,
            ..
        } => {
            return logic(*op, left, right).unwrap_or(expr);
        }
        Expr::Unary { op, expr: inner } => literal(inner).and_then(|x| unary(*op, x)),
        Expr::Binary {
            op, left, right, ..
        } => literal(left)
            .zip(literal(right))
            .and_then(|(x, y)| binary(*op, x, y)),
        Expr::IsNull {
            expr: inner,
            negated,
        } => literal(inner).map(|x| Value::Bool(x.is_null() != *negated)),
        Expr::Cast {
            expr: inner, ty, ..
        } => literal(inner).and_then(|x| cast(x, *ty)),
        Expr::InList {
            expr: inner,
            list,
            has_null,
            negated,
        } => literal(inner).map(|x| in_list(x, list, *has_null, *negated)),
        Expr::Case {
            branches,
            otherwise,
            ty,
            unit,
        } => {
            return case(branches, otherwise.as_deref(), *ty, *unit).unwrap_or(expr);
        }
        _ => None,
    };
    match value {
        Some(value) => Expr::Literal { value, ty, unit },
        None => expr,
    }
}

fn literal(expr: &Expr) -> Option<&Value> {
    match expr {
        Expr::Literal { value, .. } => Some(value),
        _ => None,
    }
}

fn unary(op: UnaryOp, x: &Value) -> Option<Value> {
    Some(match (op, x) {
        (_, Value::Null) => Value::Null,
        (UnaryOp::Not, Value::Bool(x)) => Value::Bool(!x),
        (UnaryOp::Negate, Value::Int(x)) => Value::Int(x.checked_neg()?),
        (UnaryOp::Negate, Value::Float(x)) => Value::Float(-x),
        _ => return None,
    })
}

/// An overflow is left to the engine, which ends the query with an error.
fn binary(op: BinaryOp, x: &Value, y: &Value) -> Option<Value> {
    use BinaryOp::*;
    if x.is_null() || y.is_null() {
        return Some(Value::Null);
    }
    if op.is_comparison() {
        return compare(op, x, y);
    }
    Some(match (op, x, y) {
        (Concat, Value::Text(x), Value::Text(y)) => {
            Value::Text(Symbol::try_new(&format!("{x}{y}")).ok()?)
        }
        (Divide | Modulo, Value::Int(_), Value::Int(0)) => Value::Null,
        (Add, Value::Int(x), Value::Int(y)) => Value::Int(x.checked_add(*y)?),
        (Subtract, Value::Int(x), Value::Int(y)) => Value::Int(x.checked_sub(*y)?),
        (Multiply, Value::Int(x), Value::Int(y)) => Value::Int(x.checked_mul(*y)?),
        (Divide, Value::Int(x), Value::Int(y)) => Value::Int(x.checked_div(*y)?),
        (Modulo, Value::Int(x), Value::Int(y)) => Value::Int(x.checked_rem(*y)?),
        (Divide | Modulo, Value::Float(_), Value::Float(y)) if *y == 0.0 => Value::Null,
        (Add, Value::Float(x), Value::Float(y)) => Value::Float(x + y),
        (Subtract, Value::Float(x), Value::Float(y)) => Value::Float(x - y),
        (Multiply, Value::Float(x), Value::Float(y)) => Value::Float(x * y),
        (Divide, Value::Float(x), Value::Float(y)) => Value::Float(x / y),
        (Modulo, Value::Float(x), Value::Float(y)) => Value::Float(x % y),
        _ => return None,
    })
}

/// Comparisons of one type. NaN is left to the engine.
fn compare(op: BinaryOp, x: &Value, y: &Value) -> Option<Value> {
    let same = matches!(
        (x, y),
        (Value::Int(_), Value::Int(_))
            | (Value::Text(_), Value::Text(_))
            | (Value::Bool(_), Value::Bool(_))
    ) || matches!((x, y), (Value::Float(x), Value::Float(y)) if !x.is_nan() && !y.is_nan());
    same.then(|| {
        Value::Bool(match op {
            BinaryOp::Equal => x == y,
            BinaryOp::NotEqual => x != y,
            BinaryOp::Less => x < y,
            BinaryOp::LessEqual => x <= y,
            BinaryOp::Greater => x > y,
            _ => x >= y,
        })
    })
}

/// AND and OR in three-valued logic.
fn logic(op: BinaryOp, left: &Expr, right: &Expr) -> Option<Expr> {
    // `decides` makes the result whatever the other side is; with its opposite the result is the
    // other side.
    let decides = op == BinaryOp::Or;
    for (x, y) in [(left, right), (right, left)] {
        match literal(x) {
            Some(Value::Bool(b)) if *b == decides => return Some(Expr::bool(decides)),
            Some(Value::Bool(_)) => return Some(y.clone()),
            Some(Value::Null) if literal(y).is_some_and(Value::is_null) => return Some(x.clone()),
            _ => {}
        }
    }
    None
}

fn in_list(x: &Value, list: &[Value], has_null: bool, negated: bool) -> Value {
    match x {
        Value::Null if list.is_empty() && !has_null => Value::Bool(negated),
        Value::Null => Value::Null,
        x if list.contains(x) => Value::Bool(!negated),
        _ if has_null => Value::Null,
        _ => Value::Bool(negated),
    }
}

fn cast(x: &Value, ty: Type) -> Option<Value> {
    Some(match (x, ty) {
        (Value::Null, _) => Value::Null,
        (Value::Int(x), Type::Int | Type::Time) => Value::Int(*x),
        (Value::Int(x), Type::Float) => Value::Float(*x as f64),
        (Value::Float(x), Type::Float) => Value::Float(*x),
        (Value::Text(x), Type::Text) => Value::Text(*x),
        (Value::Bool(x), Type::Bool) => Value::Bool(*x),
        // The engine alone defines how floats are rounded and texts are parsed.
        _ => return None,
    })
}

/// Removes branches that are never taken; one that is always taken ends the list.
fn case(branches: &[(Expr, Expr)], otherwise: Option<&Expr>, ty: Type, unit: Unit) -> Option<Expr> {
    let decided = |(when, _): &(Expr, Expr)| literal(when).is_some();
    if !branches.iter().any(decided) {
        return None;
    }
    let mut left = Vec::new();
    let mut last = otherwise.cloned();
    for (when, then) in branches {
        match literal(when) {
            Some(Value::Bool(true)) => {
                last = Some(then.clone());
                break;
            }
            Some(_) => {}
            None => left.push((when.clone(), then.clone())),
        }
    }
    if left.is_empty() {
        let null = Expr::Literal {
            value: Value::Null,
            ty,
            unit,
        };
        return Some(last.unwrap_or(null));
    }
    Some(Expr::Case {
        branches: left,
        otherwise: last.map(Box::new),
        ty,
        unit,
    })
}
