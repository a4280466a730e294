//! Scalar functions, by their definitions.

use weir_model::{Type, Unit, Value};
use weir_query::function::ScalarCall;

use super::aggregate::power_of_two;
use super::{calendar, text};

/// The value of a call for these arguments.
pub fn call(call: &ScalarCall, args: &[Value]) -> Result<Value, String> {
    let name = call.function.doc().name;
    // These functions handle NULLs themselves.
    match name {
        "coalesce" | "greatest" | "least" => {
            let same = args.iter().zip(&call.args);
            let mut found: Vec<Value> = same
                .filter(|(x, _)| !x.is_null())
                .map(|(x, arg)| alike(x, arg.unit(), call))
                .collect();
            if name != "coalesce" {
                found.sort();
            }
            let found = if name == "greatest" {
                found.pop()
            } else {
                found.into_iter().next()
            };
            return Ok(found.unwrap_or_default());
        }
        "nullif" => {
            let [x, y] = [0, 1].map(|i| alike(&args[i], call.args[i].unit(), call));
            return Ok(if x == y { Value::Null } else { x });
        }
        "format" => {
            let mut values = args[1..].iter();
            let mut text = String::new();
            for (i, part) in args[0].to_string().split("%%").enumerate() {
                text += if i > 0 { "%" } else { "" };
                for (i, part) in part.split("%s").enumerate() {
                    let value = (i > 0).then(|| values.next().expect("a value for each"));
                    let shown = value.filter(|value| !value.is_null());
                    text += &shown.map_or(String::new(), Value::to_string);
                    text += part;
                }
            }
            return Ok(Value::text(&text));
        }
        "concat" => {
            let there = args.iter().filter(|x| !x.is_null());
            let texts: Vec<String> = there.map(Value::to_string).collect();
            return Ok(Value::text(&texts.concat()));
        }
        "is_distinct_from" => return Ok(text::differ(call, args)),
        _ => {}
    }
    if args.iter().any(Value::is_null) {
        return Ok(Value::Null);
    }
    if name == "sample" {
        return Ok(sampled(&args[0], float(&args[1])));
    }
    if let Some(value) = text::call(call, args) {
        return Ok(value);
    }
    match &args[0] {
        Value::Text(_) => Ok(of_text(name, args)),
        _ => of_number(call, args),
    }
}

/// Whether the hash of a value, one of 2^32, is in the first fraction `share` of them.
fn sampled(x: &Value, share: f64) -> Value {
    let number = match x {
        Value::Text(text) => {
            let bytes = text.as_str().bytes();
            bytes.fold(14_695_981_039_346_656_037_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211)
            })
        }
        x => int(x) as u64,
    };
    let mixed = [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53]
        .into_iter()
        .fold(number, |x, factor: u64| (x ^ x >> 33).wrapping_mul(factor));
    let place = (mixed ^ mixed >> 33) >> 32;
    Value::Bool((place as f64) < (share * 2f64.powi(32)).round())
}

fn of_text(name: &str, args: &[Value]) -> Value {
    let text = |i: usize| match &args[i] {
        Value::Text(t) => t.as_str(),
        other => panic!("{other:?} is a text"),
    };
    let t = text(0);
    match name {
        "lower" => Value::text(&t.to_lowercase()),
        "upper" => Value::text(&t.to_uppercase()),
        "length" => Value::Int(t.chars().count() as i64),
        "starts_with" => Value::Bool(t.starts_with(text(1))),
        "replace" if text(1).is_empty() => args[0].clone(),
        "replace" => Value::text(&t.replace(text(1), text(2))),
        "substr" => {
            let from = i128::from(int(&args[1]));
            let upto = args.get(2).map_or(i128::MAX, |n| from + i128::from(int(n)));
            let places = (1i128..).zip(t.chars());
            let kept = places.filter(|(place, _)| *place >= from && *place < upto);
            Value::text(&kept.map(|(_, c)| c).collect::<String>())
        }
        name => panic!("the oracle knows the function {name}"),
    }
}

fn of_number(call: &ScalarCall, args: &[Value]) -> Result<Value, String> {
    let name = call.function.doc().name;
    let x = float(&args[0]);
    let scaled = |size: f64| Value::Float(x * call.args[0].unit().scale() as f64 / size);
    Ok(match (name, &args[0]) {
        ("abs", Value::Int(x)) => Value::Int(x.checked_abs().ok_or("integer overflow in abs")?),
        ("abs", _) => Value::Float(x.abs()),
        ("sign", _) if x.is_nan() => Value::Null,
        ("sign", _) => Value::Int(i64::from(x > 0.0) - i64::from(x < 0.0)),
        ("sqrt", _) => real(x.sqrt()),
        ("exp", _) => Value::Float(x.exp()),
        ("ln", _) => logarithm(x, f64::ln),
        ("log2", _) => logarithm(x, f64::log2),
        ("log10", _) => logarithm(x, f64::log10),
        ("pow", _) => real(x.powf(float(&args[1]))),
        ("floor" | "ceil", Value::Int(_)) => args[0].clone(),
        ("floor", _) => Value::Float(x.floor()),
        ("ceil", _) => Value::Float(x.ceil()),
        ("round", Value::Int(x)) => round(*x, args.get(1).map_or(0, int))?,
        ("round", _) => {
            let power = 10f64.powi(args.get(1).map_or(0, int) as i32);
            Value::Float((x * power).round() / power)
        }
        ("width_bucket", _) => {
            let [low, high, n] = [1, 2, 3].map(|i| float(&args[i]));
            let limit = |i: i64| low + (high - low) * i as f64 / n;
            match low < high && n > 0.0 && !x.is_nan() {
                true => Value::Int((0..=n as i64).filter(|i| limit(*i) <= x).count() as i64),
                false => Value::Null,
            }
        }
        ("log_bucket", Value::Int(x)) => {
            let base = args.get(1).map_or(10, int);
            let powers = (0..64).map_while(|k| i128::from(base).checked_pow(k));
            let size = i128::from(*x).abs();
            let power = powers.filter(|p| *p <= size).max().unwrap_or(0);
            Value::Int((power * i128::from(x.signum())) as i64)
        }
        ("log_bucket", _) => {
            let base = args.get(1).map_or(10.0, float);
            let powers = (-1100..1100).map(|k| base.powi(k));
            let size = powers.filter(|p| *p <= x.abs()).fold(0.0, f64::max);
            match x == 0.0 || !x.is_finite() {
                true => Value::Float(x),
                false => Value::Float(size.copysign(x)),
            }
        }
        ("bucket", _) => bucket(call, args)?,
        ("pow2_bucket", _) => power_of_two(&args[0]),
        ("seconds", _) => scaled(1e9),
        ("millis", _) => scaled(1e6),
        ("micros", _) => scaled(1e3),
        ("kib", _) => scaled(1024.0),
        ("mib", _) => scaled(1024.0 * 1024.0),
        ("gib", _) => scaled(1024.0 * 1024.0 * 1024.0),
        ("iso8601", Value::Int(ts)) => Value::text(&calendar::write(*ts)),
        (name, _) => panic!("the oracle knows the function {name}"),
    })
}

/// To tens, hundreds and so on; halves away from zero.
fn round(x: i64, decimals: i64) -> Result<Value, String> {
    if decimals >= 0 {
        return Ok(Value::Int(x));
    }
    let unit = 10i128.pow(-decimals as u32);
    let size = i128::from(x).abs();
    let rounded = (size + unit / 2) / unit * unit * i128::from(x.signum());
    fit(rounded, "round")
}

/// Down to a multiple of a width, which may be in another unit.
fn bucket(call: &ScalarCall, args: &[Value]) -> Result<Value, String> {
    let [own, other] = [0, 1].map(|i| match (call.args[i].ty(), call.args[i].unit()) {
        (Type::Time, _) => Unit::Nanoseconds,
        (_, unit) => unit,
    });
    let ratio = match other {
        Unit::None => 1.0,
        other => other.scale() as f64 / own.scale() as f64,
    };
    match &args[0] {
        Value::Int(x) => {
            let width = (float(&args[1]) * ratio) as i128;
            fit(i128::from(*x).div_euclid(width) * width, "bucket")
        }
        x => {
            let width = float(&args[1]) * ratio;
            Ok(Value::Float((float(x) / width).floor() * width))
        }
    }
}

fn logarithm(x: f64, log: fn(f64) -> f64) -> Value {
    if x > 0.0 {
        Value::Float(log(x))
    } else {
        Value::Null
    }
}

/// NULL where the result is not a real number.
fn real(x: f64) -> Value {
    if x.is_nan() {
        Value::Null
    } else {
        Value::Float(x)
    }
}

/// An argument in the type and unit of the result.
fn alike(value: &Value, unit: Unit, call: &ScalarCall) -> Value {
    let ratio = match unit {
        Unit::None => 1,
        unit => unit.scale() / call.unit.scale().min(unit.scale()),
    };
    match value {
        Value::Int(x) if call.ty == Type::Float => Value::Float(*x as f64 * ratio as f64),
        Value::Int(x) => Value::Int(x * ratio),
        Value::Float(x) => Value::Float(x * ratio as f64),
        other => other.clone(),
    }
}

fn fit(x: i128, name: &str) -> Result<Value, String> {
    let fitting = i64::try_from(x).map_err(|_| format!("integer overflow in {name}"));
    fitting.map(Value::Int)
}

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(x) => *x,
        other => panic!("{other:?} is an integer"),
    }
}

fn float(value: &Value) -> f64 {
    match value {
        Value::Int(x) => *x as f64,
        Value::Float(x) => *x,
        other => panic!("{other:?} is a number"),
    }
}
