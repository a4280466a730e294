//! Scalar functions in Flink SQL.

use weir_model::Type;

use super::{Untranslatable, refuse};
use crate::function::ScalarCall;

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
        "nullif" => format!("NULLIF({list})"),
        "is_distinct_from" => format!("({} IS DISTINCT FROM {})", args[0], args[1]),
        "lower" => format!("LOWER({x})"),
        "upper" => format!("UPPER({x})"),
        "length" => format!("CAST(CHAR_LENGTH({x}) AS BIGINT)"),
        "replace" => format!("REPLACE({list})"),
        "position" => format!("CAST(POSITION({} IN {}) AS BIGINT)", args[0], args[1]),
        "starts_with" => {
            let prefix = &args[1];
            format!("(LEFT({x}, CHAR_LENGTH({prefix})) = {prefix})")
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
        _ => return refuse(format!("{name} is not translated")),
    })
}
