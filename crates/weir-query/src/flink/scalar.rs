//! Scalar functions in Flink SQL.

use weir_model::{Type, Unit, Value};

use super::{Untranslatable, refuse};
use crate::function::ScalarCall;
use crate::function::arguments::{as_f64, literal};

/// A call with these arguments.
pub(super) fn call(call: &ScalarCall, args: &[String]) -> Result<String, Untranslatable> {
    let name = call.function.doc().name;
    let types: Vec<Type> = call.args.iter().map(|arg| arg.ty()).collect();
    let x = args.first().map_or("", String::as_str);
    let float = || match types[0] {
        Type::Float => x.to_owned(),
        _ => format!("CAST({x} AS DOUBLE)"),
    };
    let list = args.join(", ");
    if TERMS_OF_RESULT.contains(&name) && !has_one_scale(call) {
        return refuse(format!(
            "{name} of quantities in different units: Flink does not convert them"
        ));
    }
    // The result where it is a real number.
    let above = |bound: &str, function: &str| {
        let x = float();
        format!("CASE WHEN {x} {bound} 0E0 THEN {function}({x}) END")
    };
    Ok(match name {
        "abs" => format!("ABS({x})"),
        "sign" => format!(
            "CAST(CASE WHEN {x} > 0 THEN 1 WHEN {x} < 0 THEN -1 WHEN {x} = 0 THEN 0 END AS BIGINT)"
        ),
        "floor" | "ceil" if types[0] != Type::Float => x.to_owned(),
        "floor" => format!("FLOOR({x})"),
        "ceil" => format!("CEIL({x})"),
        "bucket" if types[0] != Type::Float => {
            let width = format!("CAST({} AS BIGINT)", args[1]);
            // MOD has the sign of the dividend.
            format!("({x} - MOD(MOD({x}, {width}) + {width}, {width}))")
        }
        "sqrt" => above(">=", "SQRT"),
        "ln" => above(">", "LN"),
        "log2" => above(">", "LOG2"),
        "log10" => above(">", "LOG10"),
        "exp" => format!("EXP({})", float()),
        "coalesce" => format!("COALESCE({list})"),
        // Flink's has the type of the first argument.
        "nullif" if call.ty == Type::Float => format!("NULLIF({}, {})", float(), args[1]),
        "nullif" => format!("NULLIF({list})"),
        "is_distinct_from" => format!("({} IS DISTINCT FROM {})", args[0], args[1]),
        "lower" => format!("LOWER({x})"),
        "upper" => format!("UPPER({x})"),
        "length" => format!("CAST(CHAR_LENGTH({x}) AS BIGINT)"),
        // Flink replaces an empty text between all letters.
        "replace" if is_a_text(call, 1) => format!("REPLACE({list})"),
        "position" => format!("CAST(POSITION({} IN {}) AS BIGINT)", args[0], args[1]),
        "starts_with" => {
            let prefix = &args[1];
            format!("(LEFT({x}, CHAR_LENGTH({prefix})) = {prefix})")
        }
        // Flink's are NULL beside a NULL.
        "least" | "greatest" => {
            let function = name.to_uppercase();
            let pair = |x: String, y: &String| {
                format!(
                    "CASE WHEN {x} IS NULL THEN {y} WHEN {y} IS NULL THEN {x} \
                     ELSE {function}({x}, {y}) END"
                )
            };
            let rest = &args[1..];
            rest.iter().fold(x.to_owned(), pair)
        }
        "concat" => {
            if types.iter().any(|ty| !matches!(ty, Type::Text | Type::Int)) {
                return refuse("Flink writes floats and booleans as texts in another way");
            }
            let texts = args.iter().zip(&types).map(|(x, ty)| match ty {
                Type::Text => format!("COALESCE({x}, '')"),
                _ => format!("COALESCE(CAST({x} AS STRING), '')"),
            });
            format!("CONCAT({})", texts.collect::<Vec<_>>().join(", "))
        }
        "left" | "right" if is_at_least(call, 1, 0) => {
            format!("{}({list})", name.to_uppercase())
        }
        "substr" if is_at_least(call, 1, 1) && is_at_least(call, 2, 0) => {
            format!("SUBSTRING({list})")
        }
        "trim" if args.len() == 1 => format!("TRIM({x})"),
        "ltrim" if args.len() == 1 => format!("LTRIM({x})"),
        "rtrim" if args.len() == 1 => format!("RTRIM({x})"),
        "round" if types[0] == Type::Int && args.len() == 1 => x.to_owned(),
        "round" if args.len() == 1 => {
            format!("CASE WHEN {x} < 0 THEN CEIL({x} - 0.5E0) ELSE FLOOR({x} + 0.5E0) END")
        }
        "split_part" if is_at_least(call, 2, 1) && is_a_text(call, 1) => {
            let (separator, n) = (&args[1], &args[2]);
            format!(
                "CASE WHEN {x} IS NOT NULL THEN \
                 COALESCE(SPLIT_INDEX({x}, {separator}, {n} - 1), '') END"
            )
        }
        "seconds" | "millis" | "micros" | "kib" | "mib" | "gib" => {
            let scale = call.args[0].unit().scale() as f64;
            let size = match name {
                "seconds" => 1e9,
                "millis" => 1e6,
                "micros" => 1e3,
                "kib" => 1024.0,
                "mib" => 1024.0 * 1024.0,
                _ => 1024.0 * 1024.0 * 1024.0,
            };
            format!("({} * {scale:E} / {size:E})", float())
        }
        _ => return refuse(format!("{name} is not translated with these arguments")),
    })
}

/// Whether the result is one of the arguments.
pub(super) fn returns_an_argument(call: &ScalarCall) -> bool {
    let name = call.function.doc().name;
    ["coalesce", "greatest", "least", "nullif"].contains(&name)
}

/// Functions whose arguments have the unit of the result.
const TERMS_OF_RESULT: [&str; 6] = [
    "bucket",
    "coalesce",
    "greatest",
    "is_distinct_from",
    "least",
    "nullif",
];

/// Whether the arguments that have a unit have one of the same size.
fn has_one_scale(call: &ScalarCall) -> bool {
    let units = call.args.iter().map(|argument| argument.unit());
    let units: Vec<Unit> = units.filter(|unit| *unit != Unit::None).collect();
    units.iter().all(|unit| unit.scale() == units[0].scale())
}

/// Whether an argument is a constant text, and not empty.
fn is_a_text(call: &ScalarCall, position: usize) -> bool {
    let text = literal(&call.args[position]);
    text.is_some_and(|text| matches!(text, Value::Text(text) if !text.as_str().is_empty()))
}

/// Whether an argument is a constant of at least this which Flink has as an INT, or absent.
fn is_at_least(call: &ScalarCall, position: usize, least: i64) -> bool {
    let Some(argument) = call.args.get(position) else {
        return true;
    };
    literal(argument)
        .as_ref()
        .and_then(as_f64)
        .is_some_and(|x| (least as f64..=f64::from(i32::MAX)).contains(&x))
}
