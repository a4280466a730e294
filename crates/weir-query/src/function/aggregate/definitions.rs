//! The definitions of the aggregates over a plain list of rows, for comparison in the law tests.

use weir_model::{Tally, Type, Value};
use weir_sketch::Distinct;

use super::AggregateCall;
use crate::expr::Expr;
use crate::function::element::Text;
use crate::function::scalar::sample::number_of;

/// The rows of a group in order of arrival; of equal values the oldest is retracted first.
#[derive(Clone, Default)]
pub struct Naive(pub Vec<Value>);

impl Naive {
    /// Inserts copies, or retracts them when negative.
    pub fn apply(&mut self, value: &Value, weight: i64) {
        for _ in 0..weight.abs() {
            if weight > 0 {
                self.0.push(value.clone());
            } else {
                let oldest = self
                    .0
                    .iter()
                    .position(|v| v == value)
                    .expect("what goes has come");
                self.0.remove(oldest);
            }
        }
    }
}

/// The expected result.
pub enum Expected {
    Exactly(Value),
    Within(f64, f64),
    /// This number, up to an absolute error.
    Near(f64, f64),
    Overflow,
    /// The definition cannot be evaluated in 128 bits.
    Unknown,
}

/// The expected result of a call over the rows.
pub fn expected(call: &AggregateCall, rows: &Naive) -> Expected {
    use Expected::*;
    let values: Vec<Value> = rows.0.iter().filter(|v| !v.is_null()).cloned().collect();
    let name = call.function.doc().name;
    if values.is_empty() && ["approx_count_distinct", "regr_count"].contains(&name) {
        return Exactly(Value::Int(0));
    }
    if values.is_empty() && name != "count" {
        return Exactly(Value::Null);
    }
    let mut sorted = values.clone();
    sorted.sort();
    let n = values.len();
    let floats = call.args[0].ty() == Type::Float;
    let int_sum: i128 = values.iter().map(|v| i128::from(int(v))).sum();
    let float_sum: f64 = values.iter().map(float).sum();
    match name {
        "count" => Exactly(Value::Int(n as i64)),
        "sum" if floats => Exactly(Value::Float(float_sum)),
        "sum" => i64::try_from(int_sum).map_or(Overflow, |sum| Exactly(Value::Int(sum))),
        "avg" if floats => Exactly(Value::Float(float_sum / n as f64)),
        "avg" if call.ty == Type::Time => Exactly(Value::Int(int_sum.div_euclid(n as i128) as i64)),
        "avg" => Exactly(Value::Float(int_sum as f64 / n as f64)),
        "min" => Exactly(sorted[0].clone()),
        "max" => Exactly(sorted[n - 1].clone()),
        "first" => Exactly(values[0].clone()),
        "last" => Exactly(values[n - 1].clone()),
        "median" => {
            let (low, high) = (&sorted[(n - 1) / 2], &sorted[n / 2]);
            let sum = i128::from(int(low)) + i128::from(int(high));
            match call.ty {
                Type::Time => Exactly(Value::Int(sum.div_euclid(2) as i64)),
                _ if floats => Exactly(Value::Float((float(low) + float(high)) / 2.0)),
                _ => Exactly(Value::Float(sum as f64 / 2.0)),
            }
        }
        "quantile" => {
            let Expr::Literal {
                value: Value::Float(q),
                ..
            } = call.args[1]
            else {
                // q as an integer is 0 here.
                return Unknown;
            };
            let rank = ((q * 100.0) as usize * n).div_ceil(100).max(1) - 1;
            let exact = float(&sorted[rank]);
            if exact.is_finite() {
                Within(exact, 1.0 / 127.0)
            } else {
                Exactly(sorted[rank].clone())
            }
        }
        "mode" => {
            let Value::Tally(tally) = top(&sorted, 1) else {
                return Unknown;
            };
            Exactly(tally.0[0].0.clone())
        }
        // In the laws the key is a constant: all rows are equal in it.
        "min_by" => Exactly(sorted[0].clone()),
        "max_by" => Exactly(sorted[n - 1].clone()),
        "string_agg" | "array_agg" => {
            let texts = sorted.iter().map(|value| match value {
                Value::Float(x) => Value::Float(x + 0.0).to_string(),
                value => value.to_string(),
            });
            let texts = texts.collect::<Vec<_>>();
            // Longer lists are cut off.
            if texts.iter().map(|text| text.len() + 2).sum::<usize>() > 900 {
                return Unknown;
            }
            Exactly(match name {
                "string_agg" => Value::text(&texts.join(",")),
                _ => Value::text(&format!("[{}]", texts.join(", "))),
            })
        }
        "approx_count_distinct" => {
            // Few values may have one register, so the number of values is no bound: a sketch
            // that has only the present values is.
            let mut sketch = Distinct::default();
            for value in &sorted {
                sketch.add(number(value));
            }
            Exactly(Value::Int(sketch.count().round() as i64))
        }
        "percentile_disc" | "percentile_cont" => {
            let q = match call.args[1] {
                Expr::Literal {
                    value: Value::Float(q),
                    ..
                } => (q * 100.0) as usize,
                // An integer is 0 or 1 here.
                _ => return Unknown,
            };
            if name == "percentile_disc" {
                return Exactly(sorted[(q * n).div_ceil(100).max(1) - 1].clone());
            }
            let (whole, part) = (q * (n - 1) / 100, q * (n - 1) % 100);
            let (low, high) = (&sorted[whole], &sorted[(whole + 1).min(n - 1)]);
            let part = part as f64 / 100.0;
            match float(low) * (1.0 - part) + float(high) * part {
                _ if part == 0.0 => Within(float(low), 1e-6),
                x if x.is_finite() && float(low).abs().max(float(high).abs()) < 1e12 => {
                    let size = float(low).abs().max(float(high).abs());
                    Near(x, size * 1e-9)
                }
                _ => Unknown,
            }
        }
        "histogram" => Exactly(histogram(call, &sorted)),
        "top" => Exactly(top(&sorted, 2)),
        "var" | "stddev" if n == 1 => Exactly(Value::Null),
        "var" | "stddev" | "var_pop" | "stddev_pop" => {
            let wild = |v: &Value| float(v).abs() > 1e12 || !float(v).is_finite();
            if values.iter().any(wild) {
                return Unknown;
            }
            let mean = values.iter().map(float).sum::<f64>() / n as f64;
            let squares: f64 = values.iter().map(|v| (float(v) - mean).powi(2)).sum();
            let divisor = if name.ends_with("_pop") { n } else { n - 1 };
            let variance = squares / divisor as f64;
            Within(
                if name.starts_with("var") {
                    variance
                } else {
                    variance.sqrt()
                },
                1e-9,
            )
        }
        // Only the first argument is known here, which suffices for a constant second one.
        "regr_count" if is_constant(&call.args[1]) => Exactly(Value::Int(n as i64)),
        "corr" | "regr_slope" | "regr_intercept" | "regr_r2" if is_constant(&call.args[1]) => {
            match values.iter().all(|v| float(v).is_finite()) {
                true => Exactly(Value::Null),
                false => Unknown,
            }
        }
        _ if name.starts_with("regr") || name.starts_with("co") => Unknown,
        other => panic!("{other} has no definition here"),
    }
}

fn is_constant(arg: &Expr) -> bool {
    matches!(arg, Expr::Literal { .. })
}

/// What a sketch of distinct values takes for a value; there is one zero and one NaN.
fn number(value: &Value) -> u64 {
    match value {
        Value::Bool(x) => u64::from(*x),
        Value::Int(x) => *x as u64,
        Value::Float(x) if x.is_nan() => f64::NAN.to_bits(),
        Value::Float(x) => (x + 0.0).to_bits(),
        Value::Text(x) => number_of(Text::new(*x)) as u64,
        other => panic!("no value to count: {other:?}"),
    }
}

fn int(value: &Value) -> i64 {
    if let Value::Int(x) = value { *x } else { 0 }
}

fn float(value: &Value) -> f64 {
    match value {
        Value::Int(x) => *x as f64,
        Value::Float(x) => *x,
        _ => 0.0,
    }
}

fn histogram(call: &AggregateCall, sorted: &[Value]) -> Value {
    let limits: Vec<f64> = call.args[1..]
        .iter()
        .map(|limit| match limit {
            Expr::Literal { value, .. } => float(value),
            other => panic!("{other:?} is a constant"),
        })
        .collect();
    let limit = |value: &Value| -> Value {
        let x = float(value);
        let in_type = |limit: f64| match value {
            Value::Int(_) => Value::Int(limit as i64),
            _ => Value::Float(limit),
        };
        if !limits.is_empty() {
            return limits
                .iter()
                .find(|&&l| x <= l)
                .map_or(Value::Null, |&l| in_type(l));
        }
        let powers = (-1074..=1024).map(|k| 2f64.powi(k));
        match x {
            _ if x.is_nan() => Value::Null,
            0.0 => in_type(0.0),
            _ if x > 0.0 => in_type(powers.clone().find(|&p| x <= p).unwrap()),
            _ => in_type(-powers.rev().find(|&p| x <= -p).unwrap()),
        }
    };
    let mut buckets: Vec<(Value, i64)> = Vec::new();
    for value in sorted {
        let limit = limit(value);
        match buckets.last_mut() {
            Some((last, count)) if *last == limit => *count += 1,
            _ => buckets.push((limit, 1)),
        }
    }
    Value::Tally(Tally(buckets).into())
}

fn top(sorted: &[Value], k: usize) -> Value {
    let mut counts: Vec<(Value, i64)> = Vec::new();
    for value in sorted {
        match counts.last_mut() {
            Some((last, count)) if last == value => *count += 1,
            _ => counts.push((value.clone(), 1)),
        }
    }
    counts.sort_by_key(|(_, count)| -count);
    counts.truncate(k);
    Value::Tally(Tally(counts).into())
}

/// Whether a result (`None`: an error) is as expected.
pub fn agrees(found: Option<&Value>, expected: &Expected) -> bool {
    match (found, expected) {
        (_, Expected::Unknown) | (None, Expected::Overflow) => true,
        (Some(value), Expected::Exactly(exact)) => value == exact,
        (Some(value), Expected::Near(exact, error)) => (float(value) - exact).abs() <= *error,
        // Infinities and NaN have no distance.
        (Some(value), Expected::Within(exact, _)) if !exact.is_finite() => {
            float(value).total_cmp(exact).is_eq()
        }
        (Some(value), Expected::Within(exact, error)) => {
            (float(value) - exact).abs() <= exact.abs() * error
        }
        _ => false,
    }
}
