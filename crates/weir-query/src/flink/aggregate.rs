//! Aggregates in Flink SQL.

use weir_model::{Type, Unit, Value};

use super::block::is_name;
use super::expr::expr;
use super::table::type_name;
use super::{Untranslatable, quoted, refuse, text};
use crate::expr::Expr;
use crate::function::AggregateCall;
use crate::function::aggregate::histogram;
use crate::function::arguments::{as_f64, literal};
use crate::place::fleet::published::PublishedState;

/// The limits of a histogram without limits, for `packaging/flink/weir/flink/Buckets.java`.
const POWERS: &str = "powers of 2";

/// A call over columns that are these expressions.
pub(super) fn call(call: &AggregateCall, columns: &[String]) -> Result<String, Untranslatable> {
    let name = call.function.doc().name;
    let args = call.args.iter().map(|arg| expr(arg, columns));
    let args = args.collect::<Result<Vec<_>, _>>()?;
    let Some(x) = args.first() else {
        return Ok("COUNT(*)".into());
    };
    let ty = call.args[0].ty();
    let is_float = ty == Type::Float;
    let float = match is_float {
        true => x.clone(),
        false => format!("CAST({x} AS DOUBLE)"),
    };
    // A literal or what is computed of literals is an INT, whose sum would be one.
    let integer = match is_name(x) {
        true => x.clone(),
        false => format!("CAST({x} AS BIGINT)"),
    };
    let distinct = if call.distinct { "DISTINCT " } else { "" };
    if ty == Type::Tally && (call.distinct || name != "count") {
        return refuse(format!(
            "Flink has no {name} of tallies with the same result"
        ));
    }
    Ok(match name {
        "count" => format!("COUNT({distinct}{x})"),
        "sum" if !is_float => format!("SUM({distinct}{integer})"),
        "sum" => format!("SUM({distinct}{x})"),
        "avg" if ty == Type::Time => return refuse("Flink has no mean of timestamps"),
        "avg" if is_float => format!("AVG({distinct}{x})"),
        // The sum is exact. AVG of integers is an integer in Flink.
        "avg" => {
            format!("(CAST(SUM({distinct}{integer}) AS DOUBLE) / COUNT({distinct}{x}))")
        }
        "min" | "max" if ty == Type::Bool => {
            return refuse(format!("Flink has no {name} of booleans"));
        }
        // NaN is greater than every number here and unordered there.
        "min" | "max" => format!("{}({x})", name.to_uppercase()),
        _ if call.distinct => return refuse(format!("{name}(DISTINCT ..) is not translated")),
        "var" => format!("VAR_SAMP({float})"),
        "var_pop" => format!("VAR_POP({float})"),
        "stddev" => format!("STDDEV_SAMP({float})"),
        "stddev_pop" => format!("STDDEV_POP({float})"),
        "median" if ty != Type::Time => format!("PERCENTILE({float}, 0.5E0)"),
        "percentile_cont" => format!("PERCENTILE({float}, {})", args[1]),
        "quantile" => {
            let q = fraction(call);
            match is_float {
                true => format!("weir_double_quantile({x}, {q:E})"),
                false => format!("weir_quantile({integer}, {q:E})"),
            }
        }
        "approx_count_distinct" => match ty {
            Type::Int | Type::Time => format!("weir_approx_count_distinct({integer})"),
            _ => format!("weir_approx_count_distinct({x})"),
        },
        "top" => match ty {
            Type::Int | Type::Time => format!("weir_top({integer}, {})", args[1]),
            _ => format!("weir_top({x}, {})", args[1]),
        },
        "histogram" => {
            let limits = limits(call);
            match is_float {
                true => format!("weir_histogram({x}, {limits})"),
                false => format!("weir_histogram({integer}, {limits})"),
            }
        }
        "first" | "last" => {
            return refuse(format!(
                "{name} needs the order of arrival, which Flink does not keep"
            ));
        }
        _ => return refuse(format!("Flink has no {name} with the same result")),
    })
}

/// The fraction of a quantile.
fn fraction(call: &AggregateCall) -> f64 {
    let q = literal(&call.args[1]).as_ref().and_then(as_f64);
    q.expect("the checker saw a constant number")
}

/// The limits of a histogram as one text: Java's methods have at most 255 arguments.
fn limits(call: &AggregateCall) -> String {
    let limit = |value: Value| match value {
        Value::Float(x) if x.is_infinite() && x > 0.0 => "Infinity".to_owned(),
        Value::Float(x) if x.is_infinite() => "-Infinity".to_owned(),
        Value::Float(x) => format!("{x:E}"),
        other => other.to_string(),
    };
    let limits: Vec<String> = histogram::limits_of(call).map(limit).collect();
    match limits.is_empty() {
        true => text(POWERS),
        false => text(&limits.join(" ")),
    }
}

/// The result of a call, merged from what agents publish of its state.
pub(super) fn merged(
    call: &AggregateCall,
    state: PublishedState<'_>,
) -> Result<String, Untranslatable> {
    let name = call.function.doc().name;
    Ok(match (name, state) {
        ("count", PublishedState::Count(count) | PublishedState::Sum { count, .. }) => {
            format!("SUM({})", quoted(count))
        }
        ("sum", PublishedState::Sum { sum, .. }) => format!("SUM({})", quoted(sum)),
        ("avg", PublishedState::Sum { sum, count }) => {
            let (sum, count) = (quoted(sum), quoted(count));
            format!("(CAST(SUM({sum}) AS DOUBLE) / SUM({count}))")
        }
        ("min" | "max", PublishedState::Extreme(of)) => {
            format!("{}({})", name.to_uppercase(), quoted(of))
        }
        ("quantile", PublishedState::Bytes(state)) => {
            let q = fraction(call);
            let function = match call.args[0].ty() {
                Type::Float => "weir_merged_double_quantile",
                _ => "weir_merged_quantile",
            };
            format!("{function}({}, {q:E})", quoted(state))
        }
        ("approx_count_distinct", PublishedState::Bytes(state)) => {
            format!("weir_merged_approx_count_distinct({})", quoted(state))
        }
        ("top", PublishedState::Bytes(state)) => {
            let k = literal(&call.args[1]).expect("the checker saw a constant number");
            let of = type_name(call.args[0].ty())?;
            format!(
                "weir_merged_top({}, {k}, CAST(NULL AS {of}))",
                quoted(state)
            )
        }
        ("histogram", PublishedState::Bytes(state)) => {
            let (limits, of) = (limits(call), type_name(call.args[0].ty())?);
            let state = quoted(state);
            format!("weir_merged_histogram({state}, {limits}, CAST(NULL AS {of}))")
        }
        _ => {
            return refuse(format!(
                "Flink has nothing that merges partials of {name}; send rows (`place rows`)"
            ));
        }
    })
}

/// The result over no rows.
pub(super) fn over_nothing(call: &AggregateCall) -> Expr {
    let value = match call.function.doc().name {
        "count" | "regr_count" | "approx_count_distinct" => Value::Int(0),
        _ => Value::Null,
    };
    Expr::Literal {
        value,
        ty: call.ty,
        unit: Unit::None,
    }
}
