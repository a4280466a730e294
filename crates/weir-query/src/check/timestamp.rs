//! Literal texts that are compared with timestamps.

use weir_model::{Type, Unit, Value};

use super::coerce::Operand;
use crate::diagnostic::{Diagnostic, codes};
use crate::expr::{Expr, timestamp::nanos};

/// The timestamp of a text literal.
pub fn read(operand: &Operand) -> Result<Expr, Diagnostic> {
    let text = match &operand.expr {
        Expr::Literal {
            value: Value::Text(text),
            ..
        } => text.as_str(),
        _ => {
            let message = "a timestamp cannot be compared with a text";
            let found = codes::TYPE_MISMATCH.at(operand.span, message);
            return Err(found.help("CAST(x AS timestamp) parses a timestamp"));
        }
    };
    let Some(nanos) = nanos(text) else {
        let message = format!("`{text}` is not a timestamp");
        let found = codes::BAD_TIMESTAMP.at(operand.span, message);
        return Err(found.help("write it as '2026-01-31 12:00:00'"));
    };
    Ok(Expr::Literal {
        value: Value::Int(nanos),
        ty: Type::Time,
        unit: Unit::Nanoseconds,
    })
}
