//! STREAM's files: sources (`ts,values`, or `ts,+,values` for a relation) and results
//! (`[ts]:+:v1, v2`).

use weir_model::{Declaration, Shape, Type, Value};

use super::changes::Changes;
use super::history::Element;

/// The rows of a source file. Its first line, the types, is skipped: the declaration has the types.
///
/// # Errors
/// The first line that does not match the declaration.
pub fn read_source(text: &str, source: &Declaration) -> Result<Vec<Element>, String> {
    let fields = &source.schema.fields;
    let mut elements = Vec::new();
    for (number, line) in text.lines().enumerate().skip(1) {
        let wrong = || format!("line {}: {line}", number + 1);
        let mut words = line.split(',');
        let ts = words
            .next()
            .and_then(|w| w.parse().ok())
            .ok_or_else(wrong)?;
        let weight = match source.shape {
            Shape::Stream => 1,
            Shape::Relation => match words.next() {
                Some("+") => 1,
                Some("-") => -1,
                _ => return Err(wrong()),
            },
        };
        let words: Vec<&str> = words.collect();
        if words.len() != fields.len() {
            return Err(wrong());
        }
        let values = words.iter().zip(fields).map(|(w, field)| match field.ty {
            Type::Int => w.parse().map(Value::Int).map_err(|_| wrong()),
            Type::Float => w.parse().map(Value::Float).map_err(|_| wrong()),
            _ => Ok(Value::text(w)),
        });
        let row = values.collect::<Result<_, _>>()?;
        elements.push(Element { ts, weight, row });
    }
    Ok(elements)
}

/// The lines that STREAM would write, in timestamp order; lines of one instant are sorted, since
/// their order is undefined.
pub fn write_result(changes: &Changes) -> Vec<String> {
    let mut lines = Vec::new();
    for (ts, rows) in &changes.instants {
        let mut now = Vec::new();
        for (row, weight) in rows {
            let sign = if *weight < 0 { '-' } else { '+' };
            let values: Vec<String> = row.iter().map(write_value).collect();
            for _ in 0..weight.abs() {
                now.push(format!("[{ts}]:{sign}:{}", values.join(", ")));
            }
        }
        now.sort();
        lines.extend(now);
    }
    lines
}

/// The lines of a result file; lines of one instant are sorted.
pub fn sorted_result(text: &str) -> Vec<String> {
    let mut lines: Vec<(i64, String)> = text
        .lines()
        .filter(|l| !l.trim().is_empty())
        .map(|l| {
            let ts = l.strip_prefix('[').and_then(|l| l.split_once(']'));
            let ts = ts.and_then(|(ts, _)| ts.parse().ok());
            (ts.unwrap_or(i64::MIN), l.trim_end().to_string())
        })
        .collect();
    lines.sort();
    lines.into_iter().map(|(_, line)| line).collect()
}

fn write_value(value: &Value) -> String {
    match value {
        Value::Float(x) => general(*x),
        other => other.to_string(),
    }
}

/// A float as C's `%g` prints it: six significant digits, no trailing zeros, and an exponent if the
/// number is very small or very large.
fn general(x: f64) -> String {
    let scientific = format!("{x:.5e}");
    let (digits, exponent) = scientific
        .split_once('e')
        .expect("the format has an exponent");
    let exponent: i32 = exponent.parse().expect("an exponent is an integer");
    if (-4..6).contains(&exponent) {
        let decimals = usize::try_from(5 - exponent).expect("at most 9");
        trimmed(&format!("{x:.decimals$}")).to_string()
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trimmed(digits), exponent.abs())
    }
}

fn trimmed(number: &str) -> &str {
    match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.'),
        false => number,
    }
}

#[cfg(test)]
mod tests {
    use super::general;

    #[test]
    fn floats_are_printed_as_in_c() {
        let cases = [
            (0.0, "0"),
            (1.1, "1.1"),
            (1422.222222, "1422.22"),
            (10834.75, "10834.8"),
            (123456789.0, "1.23457e+08"),
            (0.0000123, "1.23e-05"),
            (-2.5, "-2.5"),
            (1e100, "1e+100"),
        ];
        for (x, text) in cases {
            assert_eq!(general(x), text);
        }
    }
}
