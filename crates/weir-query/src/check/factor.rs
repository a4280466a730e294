//! Units of products: the constants that convert a unit into another one.

use weir_model::{Dimension, NANOS_PER_SECOND, Unit, Value};

use crate::expr::BinaryOp;

/// The unit of a number in `unit` multiplied or divided by a plain number. A constant that is the
/// factor between two units converts: the result has the resulting unit where it exists, and is a
/// plain number otherwise, since its old unit would be wrong. Any other number keeps the unit.
pub fn converted(op: BinaryOp, unit: Unit, by: Option<&Value>) -> Unit {
    let Some((op, factor)) = by.and_then(|by| whole_factor(op, by)) else {
        return unit;
    };
    match (op, unit, factor) {
        (BinaryOp::Divide, Unit::Nanoseconds, 1_000) => Unit::Microseconds,
        (BinaryOp::Multiply, Unit::Microseconds, 1_000) => Unit::Nanoseconds,
        (BinaryOp::Multiply, Unit::Sectors, 512) => Unit::Bytes,
        (BinaryOp::Divide, Unit::Bytes, 512) => Unit::Sectors,
        _ if is_between_units(unit, factor) => Unit::None,
        _ => unit,
    }
}

/// A multiplication or division by a constant, with an integer factor: `* 0.001` is `/ 1000`. The
/// sign does not matter.
fn whole_factor(op: BinaryOp, by: &Value) -> Option<(BinaryOp, i64)> {
    const WHOLE_MAX: f64 = 1e18;
    let by = match by {
        Value::Int(x) => return Some((op, x.checked_abs()?)),
        Value::Float(x) if x.is_finite() && *x != 0.0 => x.abs(),
        _ => return None,
    };
    let inverse = match op {
        BinaryOp::Multiply => BinaryOp::Divide,
        _ => BinaryOp::Multiply,
    };
    // The reciprocal of a power of ten is not exact.
    let (op, x, error) = match by < 1.0 {
        true => (inverse, 1.0 / by, 1e-12 / by),
        false => (op, by, 0.0),
    };
    let is_whole = (x - x.round()).abs() <= error && x < WHOLE_MAX;
    is_whole.then(|| (op, x.round() as i64))
}

/// Whether this is the factor between `unit` and another unit of its dimension: from nanoseconds
/// to days, and from bytes to TiB and to terabytes. 2, between sectors and KiB, is none.
fn is_between_units(unit: Unit, factor: i64) -> bool {
    let (bases, others): (&[i64], &[i64]) = match unit.dimension() {
        Dimension::Time => {
            const MINUTE_NS: i64 = 60 * NANOS_PER_SECOND;
            (&[1_000], &[MINUTE_NS, 60 * MINUTE_NS, 24 * 60 * MINUTE_NS])
        }
        Dimension::Data => (&[1_000, 1_024], &[1 << 20, 1 << 30, 1 << 40]),
        Dimension::None => return false,
    };
    let power = |base: &i64| (1..=4).any(|n| base.pow(n) == factor);
    bases.iter().any(power) || others.iter().any(|size| size / unit.scale() == factor)
}

#[cfg(test)]
mod tests {
    use weir_model::Catalog;

    use super::*;
    use crate::{CheckOptions, compile};

    /// The unit of the first column of a query's result.
    fn of_query(text: &str) -> Unit {
        let checked = compile(text, &Catalog::builtin(), &CheckOptions::live());
        let plan = checked
            .unwrap_or_else(|found| panic!("{text}: {found:?}"))
            .plan;
        plan.schema[0].unit
    }

    fn units(expected: Unit, expressions: &[&str]) {
        for x in expressions {
            let texts = [
                format!("select {x} from IO"),
                format!("select avg({x}) from IO"),
                format!("select max({x}) as y from IO [range 1 s slide 1 s] group by op"),
                format!("select y from (select {x} as y from IO [range 1 s]) as t"),
                format!("create view v as select {x} as y from IO; select max(y) from v"),
                format!("with t as (select sum({x}) as y from IO [rows 5]) select y from t"),
                format!("select case when true then {x} else {x} end from IO"),
                format!("select -({x}) + {x} from IO"),
            ];
            for text in texts {
                assert_eq!(of_query(&text), expected, "{text}");
            }
        }
    }

    #[test]
    fn a_factor_between_two_units_converts_in_every_spelling() {
        let us = [
            "latency / 1000",
            "latency/1000.0",
            "latency / 1e3",
            "latency * 1e-3",
        ];
        units(Unit::Microseconds, &us);
        let us = [
            "0.001 * latency",
            "latency * (1 / 1000.0)",
            "latency / (10 * 100)",
        ];
        units(Unit::Microseconds, &us);
        units(
            Unit::Microseconds,
            &[
                "(latency / 2) / 1000",
                "latency / 1000 / 2",
                "latency / -1000",
            ],
        );
        units(
            Unit::Nanoseconds,
            &["(latency / 1000) * 1000", "latency / 1000 / 1e-3"],
        );
        units(Unit::Sectors, &["bytes / 512", "bytes * 0.001953125"]);
        units(
            Unit::Bytes,
            &["sectors * 512", "512 * sectors", "sectors / 0.001953125"],
        );
    }

    #[test]
    fn a_factor_to_a_unit_that_results_do_not_have_makes_a_plain_number() {
        let time = [
            "latency / 1000000",
            "latency / 1e6",
            "latency * 1e-9",
            "latency * 0.000001",
        ];
        units(Unit::None, &time);
        let time = [
            "latency / 1000 / 1000",
            "latency / 60e9",
            "latency / 3600000000000",
        ];
        units(Unit::None, &time);
        units(Unit::None, &["latency / 86400e9", "latency / 1000 / 60e6"]);
        let data = [
            "bytes / 1024",
            "bytes / 1048576.0",
            "bytes / (1024 * 1024)",
            "bytes / 1e9",
        ];
        units(Unit::None, &data);
        units(
            Unit::None,
            &["sectors / 2048", "bytes / 1024 / 1024", "sectors / 2097152"],
        );
    }

    #[test]
    fn any_other_number_keeps_the_unit() {
        let time = [
            "latency / 2",
            "latency * 3",
            "latency / 2000",
            "latency / 1024",
            "2e-3 * latency",
        ];
        units(Unit::Nanoseconds, &time);
        units(
            Unit::Nanoseconds,
            &["latency / 512", "latency * 0.5", "latency / (pid + 1000)"],
        );
        units(Unit::Bytes, &["bytes / 2", "bytes * 100", "bytes / 60e9"]);
        units(Unit::Sectors, &["sectors / 2", "sectors / 3"]);
    }

    #[test]
    fn ratios_and_products_of_units_are_plain_numbers() {
        units(
            Unit::None,
            &[
                "latency / 1 us",
                "latency / latency",
                "bytes / sectors",
                "1 / latency",
            ],
        );
        units(
            Unit::None,
            &["latency * latency", "bytes / latency", "bytes / 1 MiB"],
        );
    }
}
