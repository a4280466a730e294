//! GROUP BY: groups by nested loops, and each aggregate by its definition over all rows of the
//! group.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_model::{Tally, Type, Value};
use weir_query::Expr;
use weir_query::function::AggregateCall;

use super::{expr, relation};
use crate::support::Row;

/// One row per group. Without keys there is one row as soon as it has `started`.
pub fn content(
    rows: &[Row],
    keys: &[Expr],
    calls: &[AggregateCall],
    started: bool,
) -> Result<Vec<Row>, String> {
    let mut groups: BTreeMap<Row, Vec<&Row>> = BTreeMap::new();
    if keys.is_empty() && started {
        groups.insert(vec![], vec![]);
    }
    for row in rows {
        groups.entry(expr::all(keys, row)?).or_default().push(row);
    }
    let mut content = Vec::new();
    for (key, rows) in groups {
        let mut row = key;
        for call in calls {
            row.push(result(call, &rows)?);
        }
        content.push(row);
    }
    Ok(content)
}

/// The value of one call over the rows of a group.
pub fn result(call: &AggregateCall, rows: &[&Row]) -> Result<Value, String> {
    let mut args: Vec<Row> = Vec::new();
    for row in rows {
        args.push(expr::all(&call.args, row)?);
    }
    if call.distinct {
        args = relation::distinct(&args);
    }
    let name = call.function.doc().name;
    if name == "count" {
        let counts = |args: &&Row| args.iter().all(|x| !x.is_null());
        return Ok(Value::Int(args.iter().filter(counts).count() as i64));
    }
    if name == "approx_count_distinct" {
        // Exact for few values.
        let mut values: Vec<&Value> = args.iter().map(|a| &a[0]).collect();
        values.retain(|v| !v.is_null());
        values.sort();
        values.dedup();
        return Ok(Value::Int(values.len() as i64));
    }
    if name == "max_by" || name == "min_by" {
        let mut pairs: Vec<(Value, Value)> = args
            .into_iter()
            .map(|a| (a[1].clone(), a[0].clone()))
            .collect();
        pairs.retain(|(key, value)| !key.is_null() && !value.is_null());
        let end = match name {
            "max_by" => pairs.into_iter().max(),
            _ => pairs.into_iter().min(),
        };
        return Ok(end.map_or(Value::Null, |(_, value)| value));
    }
    if name == "corr" || name.starts_with("covar") || name.starts_with("regr") {
        return Ok(of_pairs(name, args));
    }
    // All other aggregates ignore NULLs.
    let parameters: Row = args.first().map_or(vec![], |a| a[1..].to_vec());
    let values: Vec<Value> = args.into_iter().map(|mut a| a.swap_remove(0)).collect();
    let mut values: Vec<Value> = values.into_iter().filter(|v| !v.is_null()).collect();
    if values.is_empty() {
        return Ok(Value::Null);
    }
    Ok(match name {
        "sum" if call.ty == Type::Float => Value::Float(exact_sum(&floats(&values))),
        "sum" => {
            let sum: i128 = values.iter().map(|v| i128::from(int(v))).sum();
            Value::Int(i64::try_from(sum).map_err(|_| "integer overflow in sum")?)
        }
        "avg" if call.ty == Type::Time => {
            let sum: i128 = values.iter().map(|v| i128::from(int(v))).sum();
            Value::Int(sum.div_euclid(values.len() as i128) as i64)
        }
        "avg" => Value::Float(mean(&floats(&values))),
        "min" => values.into_iter().min().expect("there are values"),
        "max" => values.into_iter().max().expect("there are values"),
        "median" => median(call.ty, values),
        "var" => variance(&values, 1),
        "var_pop" => variance(&values, 0),
        "stddev" => root(variance(&values, 1)),
        "stddev_pop" => root(variance(&values, 0)),
        "quantile" => quantile(values, &parameters[0]),
        "string_agg" => {
            let separator = parameters.first().map_or(",".into(), Value::to_string);
            Value::text(&joined(values, &separator))
        }
        "array_agg" => Value::text(&format!("[{}]", joined(values, ", "))),
        "mode" => match top(values, 1) {
            Value::Tally(tally) => tally.0[0].0.clone(),
            other => other,
        },
        "percentile_disc" => {
            values.sort();
            let share = floats(&parameters)[0];
            let reached = |i: &usize| (i + 1) as f64 >= share * values.len() as f64;
            let rank = (0..values.len()).find(reached).unwrap_or(values.len() - 1);
            values.swap_remove(rank)
        }
        "percentile_cont" => {
            let (sorted, share) = (floats(&values), floats(&parameters)[0]);
            let position = share * (sorted.len() - 1) as f64;
            let (low, part) = (position.trunc() as usize, position.fract());
            let high = sorted[(low + 1).min(sorted.len() - 1)];
            Value::Float(match (part, call.args[0].ty()) {
                (0.0, _) => sorted[low],
                (part, Type::Int) => sorted[low] + (high - sorted[low]) * part,
                (part, _) => sorted[low] * (1.0 - part) + high * part,
            })
        }
        "histogram" => histogram(&values, &parameters),
        "top" => top(values, int(&parameters[0])),
        "first" => values.swap_remove(0),
        "last" => values.pop().expect("there are values"),
        other => panic!("the oracle knows the aggregate {other}"),
    })
}

/// The values in order as one text, short ones only.
fn joined(mut values: Vec<Value>, separator: &str) -> String {
    values.sort();
    let texts: Vec<String> = values.iter().map(Value::to_string).collect();
    texts.join(separator)
}

fn median(ty: Type, mut values: Vec<Value>) -> Value {
    values.sort();
    let middle = values.len() / 2;
    let two = match values.len() % 2 {
        1 => [values[middle].clone(), values[middle].clone()],
        _ => [values[middle - 1].clone(), values[middle].clone()],
    };
    match (ty, &two) {
        (Type::Time, [a, b]) => {
            Value::Int((i128::from(int(a)) + i128::from(int(b))).div_euclid(2) as i64)
        }
        _ => Value::Float(mean(&floats(&two))),
    }
}

/// Squared distances from the mean divided by their number less `freedom`, from exact sums where
/// the values allow it: then the result does not depend on the order of the values.
fn variance(values: &[Value], freedom: usize) -> Value {
    if values.len() <= freedom {
        return Value::Null;
    }
    let (count, divisor) = (values.len() as i128, (values.len() - freedom) as i128);
    // The variance does not change when all values are shifted.
    let wholes = |unit: f64| -> Option<Vec<i128>> {
        let least = values.iter().min()?;
        let distance = |v: &Value| match (v, least) {
            (Value::Int(x), Value::Int(least)) => {
                Some((i128::from(*x) - i128::from(*least)) * unit as i128)
            }
            (Value::Float(x), Value::Float(least)) => {
                let distance = (x - least) * unit;
                (distance.fract() == 0.0 && distance < 1e15).then_some(distance as i128)
            }
            _ => None,
        };
        values.iter().map(distance).collect()
    };
    let unit = 1024.0;
    Value::Float(match wholes(unit) {
        Some(wholes) => {
            let sum: i128 = wholes.iter().sum();
            let squares: i128 = wholes.iter().map(|x| x * x).sum();
            (count * squares - sum * sum) as f64 / (count * divisor) as f64 / (unit * unit)
        }
        None => {
            let values = floats(values);
            let mean = mean(&values);
            let squares: Vec<f64> = values.iter().map(|x| (x - mean).powi(2)).collect();
            exact_sum(&squares) / divisor as f64
        }
    })
}

/// The aggregates of pairs (y, x), by the textbook: two passes, distances from the means.
fn of_pairs(name: &str, mut pairs: Vec<Row>) -> Value {
    pairs.retain(|pair| pair.iter().all(|x| !x.is_null()));
    let n = pairs.len() as f64;
    if name == "regr_count" {
        return Value::Int(pairs.len() as i64);
    }
    if pairs.is_empty() || (name == "covar_samp" && pairs.len() < 2) {
        return Value::Null;
    }
    let column = |i: usize| -> Vec<f64> {
        let one = |pair: &Row| floats(&pair[i..=i])[0];
        pairs.iter().map(one).collect()
    };
    let (y, x) = (column(0), column(1));
    let (mean_y, mean_x) = (mean(&y), mean(&x));
    let sum = |a: &[f64], a_mean: f64, b: &[f64], b_mean: f64| {
        let products: Vec<f64> = a
            .iter()
            .zip(b)
            .map(|(a, b)| (a - a_mean) * (b - b_mean))
            .collect();
        exact_sum(&products)
    };
    let (xx, yy) = (sum(&x, mean_x, &x, mean_x), sum(&y, mean_y, &y, mean_y));
    let xy = sum(&x, mean_x, &y, mean_y);
    let (x_level, y_level) = (x.iter().all(|v| *v == x[0]), y.iter().all(|v| *v == y[0]));
    Value::Float(match name {
        "covar_pop" => xy / n,
        "covar_samp" => xy / (n - 1.0),
        "regr_avgx" => mean_x,
        "regr_avgy" => mean_y,
        "regr_sxx" => xx,
        "regr_syy" => yy,
        "regr_sxy" => xy,
        "corr" if y_level => return Value::Null,
        _ if x_level => return Value::Null,
        "corr" => xy / (xx * yy).sqrt(),
        "regr_slope" => xy / xx,
        "regr_intercept" => mean_y - xy / xx * mean_x,
        "regr_r2" if y_level => 1.0,
        "regr_r2" => xy * xy / (xx * yy),
        other => panic!("the oracle knows the aggregate {other}"),
    })
}

fn root(x: Value) -> Value {
    match x {
        Value::Float(x) => Value::Float(x.sqrt()),
        other => other,
    }
}

/// The least value that a fraction `share` of all does not exceed, replaced by the mean of the
/// values in its bucket: 128 buckets of equal width per power of two, none narrower than 1 for
/// integers. Positions within a bucket have a resolution of 2^32 steps, or of 1 where buckets are
/// wider.
fn quantile(mut values: Vec<Value>, share: &Value) -> Value {
    values.sort();
    let share = floats(std::slice::from_ref(share))[0];
    let reached = |i: &usize| (i + 1) as f64 >= share * values.len() as f64;
    let rank = (0..values.len()).find(reached).unwrap_or(values.len() - 1);
    let mean = |steps: Vec<u128>| steps.iter().sum::<u128>() / steps.len() as u128;
    match values[rank] {
        Value::Int(x) => {
            let bucket = |x: i64| {
                let width = 1u64 << (x.unsigned_abs() | 1).ilog2().saturating_sub(7);
                (x < 0, x.unsigned_abs() / width * width, width)
            };
            let (negative, low, width) = bucket(x);
            let step = (width >> 32).max(1);
            let alike = values.iter().map(int).filter(|y| bucket(*y) == bucket(x));
            let steps = alike.map(|y| u128::from((y.unsigned_abs() - low) / step));
            let size = i128::from(low) + (mean(steps.collect()) * u128::from(step)) as i128;
            Value::Int(if negative { -size } else { size } as i64)
        }
        Value::Float(x) if x != 0.0 && x.is_finite() => {
            let bucket = |x: f64| {
                let width = 2f64.powi(x.abs().log2().floor() as i32 - 7);
                (x < 0.0, (x.abs() / width).floor() * width, width)
            };
            let (_, low, width) = bucket(x);
            let per_width = 2f64.powi(32);
            let all = floats(&values);
            let alike = all
                .iter()
                .filter(|y| **y != 0.0 && bucket(**y) == bucket(x));
            let steps = alike.map(|y| ((y.abs() - low) / width * per_width).floor() as u128);
            let size = low + mean(steps.collect()) as f64 / per_width * width;
            Value::Float(size.copysign(x))
        }
        ref other => other.clone(),
    }
}

/// Counts by upper limit: the given limits and NULL for values above, or else 0 and the powers of
/// two of either sign.
fn histogram(values: &[Value], limits: &[Value]) -> Value {
    let mut buckets: BTreeMap<(bool, Value), i64> = BTreeMap::new();
    for value in values {
        let limit = match limits.is_empty() {
            true => power_of_two(value),
            false => limits
                .iter()
                .find(|l| value <= l)
                .cloned()
                .unwrap_or_default(),
        };
        *buckets.entry((limit.is_null(), limit)).or_default() += 1;
    }
    let buckets = buckets
        .into_iter()
        .map(|((_, limit), count)| (limit, count));
    Value::Tally(Arc::new(Tally(buckets.collect())))
}

/// The least of 0 and ± the powers of two that is not below `value`.
pub fn power_of_two(value: &Value) -> Value {
    match *value {
        Value::Int(0) => Value::Int(0),
        Value::Int(x) if x > 0 => {
            let power = (0..63).map(|k| 1i64 << k).find(|p| *p >= x);
            Value::Int(power.unwrap_or(i64::MAX))
        }
        Value::Int(x) => {
            let power = (0..64)
                .rev()
                .map(|k| -(1i128 << k))
                .find(|p| *p >= i128::from(x));
            Value::Int(power.expect("-1 is not below -1") as i64)
        }
        Value::Float(0.0) => Value::Float(0.0),
        // No limit is above it.
        Value::Float(x) if x.is_nan() => Value::Null,
        Value::Float(x) if x > 0.0 => Value::Float(2f64.powi(x.log2().ceil() as i32)),
        Value::Float(x) => Value::Float(-(2f64.powi((-x).log2().floor() as i32))),
        ref other => panic!("{other:?} is a number"),
    }
}

/// The most frequent values, of equally frequent ones the least first.
fn top(values: Vec<Value>, most: i64) -> Value {
    let mut counts: BTreeMap<Value, i64> = BTreeMap::new();
    for value in values {
        // There is one zero.
        let value = match value {
            Value::Float(x) => Value::Float(x + 0.0),
            value => value,
        };
        *counts.entry(value).or_default() += 1;
    }
    let mut counts: Vec<(Value, i64)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| -count);
    counts.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    Value::Tally(Arc::new(Tally(counts)))
}

fn mean(values: &[f64]) -> f64 {
    exact_sum(values) / values.len() as f64
}

/// The sum rounded once (Shewchuk, Adaptive Precision Floating-Point Arithmetic, 1997): a list of
/// parts that do not overlap is kept exact, and added up from the smallest.
fn exact_sum(values: &[f64]) -> f64 {
    if values.iter().any(|x| !x.is_finite()) {
        return values.iter().sum();
    }
    let mut parts: Vec<f64> = Vec::new();
    for &value in values {
        let mut x = value;
        let mut kept = Vec::new();
        for &part in &parts {
            let (large, small) = if x.abs() < part.abs() {
                (part, x)
            } else {
                (x, part)
            };
            let high = large + small;
            let low = small - (high - large);
            if low != 0.0 {
                kept.push(low);
            }
            x = high;
        }
        kept.push(x);
        parts = kept;
    }
    parts.iter().sum()
}

fn floats(values: &[Value]) -> Vec<f64> {
    let float = |v: &Value| match v {
        Value::Int(x) => *x as f64,
        Value::Float(x) => *x,
        other => panic!("{other:?} is a number"),
    };
    let mut floats: Vec<f64> = values.iter().map(float).collect();
    floats.sort_by(f64::total_cmp);
    floats
}

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(x) => *x,
        other => panic!("{other:?} is an integer"),
    }
}
