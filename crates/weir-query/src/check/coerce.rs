//! Type and unit conversion: literals are converted, columns scaled or cast, and operands that do
//! not match are rejected.

use weir_model::{Dimension, Type, Unit, Value};

use super::factor::converted;
use super::timestamp;
use crate::diagnostic::{Diagnostic, Span, codes};
use crate::expr::fold_expr;
use crate::expr::{BinaryOp, Expr};
use crate::function::ScalarCall;
use crate::function::scalar::iso8601::Iso8601;

/// An expression and its position in the text.
#[derive(Clone, Debug)]
pub struct Operand {
    /// The expression.
    pub expr: Expr,
    /// Its position.
    pub span: Span,
}

impl Operand {
    fn literal(&self) -> Option<&Value> {
        match &self.expr {
            Expr::Literal { value, .. } => Some(value),
            _ => None,
        }
    }

    fn is_null(&self) -> bool {
        self.literal().is_some_and(Value::is_null)
    }
}

/// `x + y`, `x = y` and the like.
pub fn binary(op: BinaryOp, left: Operand, right: Operand) -> Result<Expr, Diagnostic> {
    use BinaryOp::*;
    match op {
        And | Or => Ok(Expr::boolean(op, boolean(left)?, boolean(right)?)),
        Concat => {
            let (left, right) = (text(left)?, text(right)?);
            Ok(Expr::boolean(op, left, right))
        }
        Multiply | Divide => product(op, left, right),
        Add | Subtract | Modulo => sum(op, left, right),
        _ => {
            let (left, right) = pair(op, left, right)?;
            Ok(Expr::boolean(op, left, right))
        }
    }
    .map(fold_expr)
}

/// A condition.
pub fn boolean(x: Operand) -> Result<Expr, Diagnostic> {
    if x.is_null() {
        return Ok(null(Type::Bool, Unit::None));
    }
    if x.expr.ty() == Type::Bool {
        return Ok(x.expr);
    }
    let message = format!("expected a condition, found {}", describe(&x.expr));
    let found = codes::NOT_BOOLEAN.at(x.span, message);
    Err(match x.expr.ty() {
        Type::Int | Type::Float => found.help("compare it, as in `<> 0`"),
        _ => found,
    })
}

/// An operand of `||`: numbers are written as text.
fn text(x: Operand) -> Result<Expr, Diagnostic> {
    match x.expr.ty() {
        _ if x.is_null() => Ok(null(Type::Text, Unit::None)),
        Type::Text => Ok(x.expr),
        Type::Tally | Type::Partial => {
            let message = format!("{} cannot be concatenated", describe(&x.expr));
            Err(codes::TYPE_MISMATCH.at(x.span, message))
        }
        Type::Time => Ok(timestamp_text(x.expr)),
        _ => Ok(cast(x.expr, Type::Text, Unit::None)),
    }
}

/// A timestamp as text.
pub fn timestamp_text(x: Expr) -> Expr {
    Expr::Call(ScalarCall {
        function: &Iso8601,
        args: vec![x],
        ty: Type::Text,
        unit: Unit::None,
    })
}

/// `x * y`, `x / y`.
fn product(op: BinaryOp, left: Operand, right: Operand) -> Result<Expr, Diagnostic> {
    let span = left.span.to(right.span);
    numeric(op, &left)?;
    numeric(op, &right)?;
    let (l, r) = (left.expr.unit(), right.expr.unit());
    let (left, right, unit) = match (op, l, r) {
        (BinaryOp::Multiply, Unit::None, unit) => {
            let unit = converted(op, unit, left.literal());
            (left, right, unit)
        }
        (_, unit, Unit::None) => {
            let unit = converted(op, unit, right.literal());
            (left, right, unit)
        }
        // A ratio: both in one unit, the result is a plain number.
        (BinaryOp::Divide, l, r) if l.dimension() == r.dimension() => {
            let (left, right) = units(op, left, right)?;
            (left, right, Unit::None)
        }
        _ => (left, right, Unit::None),
    };
    typed(op, left, right, span, unit)
}

/// The operation on operands of one type; its result has this unit.
fn typed(
    op: BinaryOp,
    left: Operand,
    right: Operand,
    span: Span,
    unit: Unit,
) -> Result<Expr, Diagnostic> {
    let (left, right) = types(op, left, right, span)?;
    let (left, right) = (Box::new(left), Box::new(right));
    Ok(Expr::Binary {
        op,
        left,
        right,
        unit,
    })
}

/// `x + y`, `x - y`, `x % y`.
fn sum(op: BinaryOp, left: Operand, right: Operand) -> Result<Expr, Diagnostic> {
    let span = left.span.to(right.span);
    let (time_left, time_right) = (left.expr.ty() == Type::Time, right.expr.ty() == Type::Time);
    if time_left || time_right {
        return time_sum(op, left, right);
    }
    numeric(op, &left)?;
    numeric(op, &right)?;
    let (left, right) = units(op, left, right)?;
    let unit = common_unit(&left.expr, &right.expr);
    typed(op, left, right, span, unit)
}

/// Arithmetic on timestamps: the difference of two is a duration, a timestamp and a duration make a
/// timestamp.
fn time_sum(op: BinaryOp, left: Operand, right: Operand) -> Result<Expr, Diagnostic> {
    let span = left.span.to(right.span);
    let times = (left.expr.ty() == Type::Time, right.expr.ty() == Type::Time);
    let allowed = match times {
        (true, true) => op == BinaryOp::Subtract,
        (true, false) => matches!(op, BinaryOp::Add | BinaryOp::Subtract),
        _ => op == BinaryOp::Add,
    };
    if !allowed {
        let sides = (describe(&left.expr), describe(&right.expr));
        let message = format!(
            "`{}` cannot be applied to {} and {}",
            op.symbol(),
            sides.0,
            sides.1
        );
        return Err(codes::TYPE_MISMATCH.at(span, message));
    }
    // An operand that is not a timestamp is a duration, in nanoseconds.
    let span_of = |x: Operand| match x.expr.ty() {
        Type::Time => Ok(x.expr),
        Type::Int | Type::Float if x.expr.unit().dimension() != Dimension::Data => Ok(cast(
            to_unit(x.expr, Unit::Nanoseconds),
            Type::Int,
            Unit::Nanoseconds,
        )),
        _ if x.is_null() => Ok(null(Type::Int, Unit::Nanoseconds)),
        Type::Int | Type::Float => {
            let message = format!("a timestamp and {} cannot be added", describe(&x.expr));
            Err(codes::UNIT_MISMATCH.at(x.span, message))
        }
        _ => {
            let message = format!(
                "`{}` requires a duration, not {}",
                op.symbol(),
                describe(&x.expr)
            );
            Err(codes::TYPE_MISMATCH.at(x.span, message))
        }
    };
    let (left, right) = (Box::new(span_of(left)?), Box::new(span_of(right)?));
    Ok(Expr::Binary {
        op,
        left,
        right,
        unit: Unit::Nanoseconds,
    })
}

fn numeric(op: BinaryOp, x: &Operand) -> Result<(), Diagnostic> {
    if x.expr.ty().is_numeric() || x.is_null() {
        return Ok(());
    }
    let message = format!("`{}` takes numbers, not {}", op.symbol(), describe(&x.expr));
    let found = codes::TYPE_MISMATCH.at(x.span, message);
    Err(match x.expr.ty() {
        Type::Text if op == BinaryOp::Add => found.help("`||` concatenates texts"),
        Type::Text => found.help("CAST(x AS integer) parses a number"),
        _ => found,
    })
}

/// Two values that are compared, of one type and unit.
pub fn pair(op: BinaryOp, left: Operand, right: Operand) -> Result<(Expr, Expr), Diagnostic> {
    let span = left.span.to(right.span);
    let (left, right) = units(op, left, right)?;
    types(op, left, right, span)
}

/// Both sides in one unit. A literal is converted to the other side's unit when that is exact; a
/// plain number has that unit; otherwise the coarser side is scaled to the finer unit.
fn units(op: BinaryOp, left: Operand, right: Operand) -> Result<(Operand, Operand), Diagnostic> {
    let span = left.span.to(right.span);
    let (l, r) = (left.expr.unit(), right.expr.unit());
    if l == r {
        return Ok((left, right));
    }
    let with = |x: Operand, expr: Expr| Operand { expr, ..x };
    if l == Unit::None || r == Unit::None {
        let tagged = |x: Operand, unit: Unit| match x.expr.clone() {
            Expr::Literal { value, ty, .. } if ty.is_numeric() => Operand {
                expr: Expr::Literal { value, ty, unit },
                ..x
            },
            _ => x,
        };
        return Ok((
            if l == Unit::None {
                tagged(left, r)
            } else {
                left
            },
            match r {
                Unit::None => tagged(right, l),
                _ => right,
            },
        ));
    }
    if l.dimension() != r.dimension() {
        let sides = (describe(&left.expr), describe(&right.expr));
        let message = match op.is_comparison() {
            true => format!("{} cannot be compared with {}", sides.0, sides.1),
            false => format!(
                "`{}` cannot be applied to {} and {}",
                op.symbol(),
                sides.0,
                sides.1
            ),
        };
        return Err(codes::UNIT_MISMATCH.at(span, message));
    }
    if let Some(exact) = literal_in(&right.expr, l) {
        return Ok((left, with(right, exact)));
    }
    if let Some(exact) = literal_in(&left.expr, r) {
        return Ok((with(left, exact), right));
    }
    let finer = if l.scale() < r.scale() { l } else { r };
    let (le, re) = (
        to_unit(left.expr.clone(), finer),
        to_unit(right.expr.clone(), finer),
    );
    Ok((with(left, le), with(right, re)))
}

/// The unit of a sum after `units`.
fn common_unit(left: &Expr, right: &Expr) -> Unit {
    match left.unit() {
        Unit::None => right.unit(),
        unit => unit,
    }
}

/// A literal in another unit of its dimension, where that is exact.
pub fn literal_in(expr: &Expr, unit: Unit) -> Option<Expr> {
    let Expr::Literal {
        value,
        ty,
        unit: from,
    } = expr
    else {
        return None;
    };
    if from.dimension() != unit.dimension() {
        return None;
    }
    let (from, to) = (from.scale(), unit.scale());
    let value = match value {
        Value::Null => Value::Null,
        Value::Int(x) => {
            let smallest = i128::from(*x) * i128::from(from);
            if smallest % i128::from(to) != 0 {
                return None;
            }
            Value::Int(i64::try_from(smallest / i128::from(to)).ok()?)
        }
        Value::Float(x) if from >= to => Value::Float(x * (from / to) as f64),
        _ => return None,
    };
    Some(Expr::Literal {
        value,
        ty: *ty,
        unit,
    })
}

/// A number in a unit that is as fine or finer; a plain number has that unit.
pub fn to_unit(expr: Expr, unit: Unit) -> Expr {
    let from = expr.unit();
    if from == unit {
        return expr;
    }
    if let Some(exact) = literal_in(&expr, unit) {
        return exact;
    }
    if from == Unit::None || from.scale() == unit.scale() {
        return cast(expr.clone(), expr.ty(), unit);
    }
    let ratio = from.scale() / unit.scale();
    let factor = match expr.ty() {
        Type::Float => Expr::Literal {
            value: (ratio as f64).into(),
            ty: Type::Float,
            unit: Unit::None,
        },
        _ => Expr::int(ratio),
    };
    let (left, right) = (Box::new(expr), Box::new(factor));
    Expr::Binary {
        op: BinaryOp::Multiply,
        left,
        right,
        unit,
    }
}

/// Both sides of one type.
fn types(
    op: BinaryOp,
    left: Operand,
    right: Operand,
    span: Span,
) -> Result<(Expr, Expr), Diagnostic> {
    let (l, r) = (left.expr.ty(), right.expr.ty());
    if right.is_null() {
        return Ok((left.expr, null(l, right.expr.unit())));
    }
    if left.is_null() {
        return Ok((null(r, left.expr.unit()), right.expr));
    }
    let ty = match (l, r) {
        (l, r) if l == r => return Ok((left.expr, right.expr)),
        (Type::Int, Type::Float) | (Type::Float, Type::Int) => Type::Float,
        (Type::Time, Type::Int | Type::Float) | (Type::Int | Type::Float, Type::Time) => Type::Time,
        (Type::Time, Type::Text) => return Ok((left.expr, timestamp::read(&right)?)),
        (Type::Text, Type::Time) => return Ok((timestamp::read(&left)?, right.expr)),
        _ => {
            let sides = (describe(&left.expr), describe(&right.expr));
            let message = format!("{} cannot be compared with {}", sides.0, sides.1);
            let found = match op.is_comparison() {
                true => codes::TYPE_MISMATCH.at(span, message),
                false => {
                    let message = format!(
                        "`{}` cannot be applied to {} and {}",
                        op.symbol(),
                        sides.0,
                        sides.1
                    );
                    codes::TYPE_MISMATCH.at(span, message)
                }
            };
            return Err(found.help("CAST(x AS type) converts"));
        }
    };
    let to = |x: Expr| {
        let unit = if ty == Type::Time {
            Unit::Nanoseconds
        } else {
            x.unit()
        };
        cast(x, ty, unit)
    };
    Ok((to(left.expr), to(right.expr)))
}

/// `x` as a `ty` in `unit`; a literal is converted at once.
pub fn cast(expr: Expr, ty: Type, unit: Unit) -> Expr {
    if expr.ty() == ty && expr.unit() == unit {
        return expr;
    }
    fold_expr(Expr::Cast {
        expr: Box::new(expr),
        ty,
        unit,
    })
}

/// NULL of a type.
pub fn null(ty: Type, unit: Unit) -> Expr {
    Expr::Literal {
        value: Value::Null,
        ty,
        unit,
    }
}

/// The common type and unit of `operands`, and the operands converted to them: the results of CASE,
/// the columns of UNION.
pub fn common(operands: Vec<Operand>) -> Result<(Vec<Expr>, Type, Unit), Diagnostic> {
    let mut target: Option<Operand> = None;
    for operand in operands.iter().filter(|o| !o.is_null()) {
        let Some(so_far) = target.take() else {
            target = Some(operand.clone());
            continue;
        };
        let span = operand.span;
        let (left, _) = pair(BinaryOp::Equal, so_far, operand.clone()).map_err(|d| Diagnostic {
            span,
            message: d
                .message
                .replace("cannot be compared with", "cannot be mixed with"),
            ..d
        })?;
        // Of two plain literals the first would hide that the second has a unit.
        let unit = common_unit(&left, &operand.expr);
        target = Some(Operand {
            expr: cast(left.clone(), left.ty(), unit),
            span,
        });
    }
    let (ty, unit) = target.map_or((Type::Int, Unit::None), |t| (t.expr.ty(), t.expr.unit()));
    let exprs = operands.into_iter().map(|o| match o.is_null() {
        true => null(ty, unit),
        false => {
            let finer = o.expr.unit().dimension() == unit.dimension();
            cast(if finer { to_unit(o.expr, unit) } else { o.expr }, ty, unit)
        }
    });
    Ok((exprs.collect(), ty, unit))
}

/// Describes an expression: `an integer in ns`, `a text`.
pub fn describe(expr: &Expr) -> String {
    describe_type(expr.ty(), expr.unit())
}

/// Describes a type and unit.
pub fn describe_type(ty: Type, unit: Unit) -> String {
    let what = match (ty, unit.dimension()) {
        (Type::Bool, _) => "a condition",
        (Type::Text, _) => "a text",
        (Type::Time, _) => "a timestamp",
        (Type::Tally, _) => "a tally",
        (Type::Partial, _) => "a partial aggregate",
        (_, Dimension::Time) => "a duration",
        (_, Dimension::Data) => "an amount of data",
        (Type::Int, _) => "an integer",
        (Type::Float, _) => "a float",
    };
    match (ty, unit) {
        (Type::Int | Type::Float, unit) if unit != Unit::None => format!("{what} ({unit})"),
        _ => what.to_owned(),
    }
}
