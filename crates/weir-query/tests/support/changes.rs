//! [`Changes`]: what came out of a query, as a multiset of rows for each instant, and how two of
//! them differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use weir_model::{Shape, Value};

use super::Row;

/// The net change of a relation, or the rows of a stream, at each instant at which there is any.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// By instant, the rows and how often each came (positive) or went (negative), never 0.
    pub instants: BTreeMap<i64, BTreeMap<Row, i64>>,
}

impl Changes {
    /// Notes that `row` came or went `weight` times at `ts`.
    pub fn add(&mut self, ts: i64, row: Row, weight: i64) {
        let rows = self.instants.entry(ts).or_default();
        let sum = rows.entry(row.clone()).or_default();
        *sum += weight;
        if *sum == 0 {
            rows.remove(&row);
        }
        if rows.is_empty() {
            self.instants.remove(&ts);
        }
    }

    /// The changes before `ts`.
    pub fn before(&self, ts: i64) -> Changes {
        let earlier = self.instants.range(..ts);
        Changes {
            instants: earlier.map(|(ts, rows)| (*ts, rows.clone())).collect(),
        }
    }

    /// Each change by its instant and as a case file writes it, once for each time it came: first
    /// what went, then what came.
    pub fn lines(&self, shape: Shape) -> Vec<(i64, String)> {
        let mut lines = Vec::new();
        for (ts, rows) in &self.instants {
            let (gone, come): (Vec<_>, Vec<_>) = rows.iter().partition(|(_, weight)| **weight < 0);
            for (row, weight) in gone.into_iter().chain(come) {
                let sign = match (shape, *weight < 0) {
                    (Shape::Stream, _) => "",
                    (Shape::Relation, false) => "+ ",
                    (Shape::Relation, true) => "- ",
                };
                let values: Vec<String> = row.iter().map(write_value).collect();
                for _ in 0..weight.abs() {
                    lines.push((*ts, format!("{sign}{}", values.join(" "))));
                }
            }
        }
        lines
    }

    /// Nothing when both say the same, up to the rounding of floats; else a readable difference.
    ///
    /// # Errors
    /// The instants that differ and the rows that only one side has.
    pub fn agree(&self, other: &Changes, names: [&str; 2]) -> Result<(), String> {
        let mut report = String::new();
        let mut instants: Vec<i64> = self.instants.keys().copied().collect();
        instants.extend(other.instants.keys());
        instants.sort_unstable();
        instants.dedup();
        for ts in instants {
            let (left, right) = (self.rounded(ts), other.rounded(ts));
            if left == right {
                continue;
            }
            let _ = writeln!(report, "  at {ts}:");
            let rows: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            for row in rows {
                let weights = [&left, &right].map(|rows| rows.get(row).copied().unwrap_or(0));
                if weights[0] != weights[1] {
                    let [l, r] = weights;
                    let _ = writeln!(
                        report,
                        "    {row}   {}: {l:+}, {}: {r:+}",
                        names[0], names[1]
                    );
                }
            }
        }
        if report.is_empty() {
            Ok(())
        } else {
            Err(report)
        }
    }

    fn rounded(&self, ts: i64) -> BTreeMap<String, i64> {
        let mut rounded = BTreeMap::new();
        for (row, weight) in self.instants.get(&ts).into_iter().flatten() {
            let text: Vec<String> = row.iter().map(round).collect();
            *rounded.entry(text.join(" ")).or_default() += weight;
        }
        rounded.retain(|_, weight| *weight != 0);
        rounded
    }
}

/// A value as a case file writes it; texts that would be read as something else are quoted.
pub fn write_value(value: &Value) -> String {
    let Value::Text(text) = value else {
        return value.to_string();
    };
    let text = text.as_str();
    let plain = |c: char| c.is_ascii_alphanumeric() || "_/.:%-".contains(c);
    let number = text.parse::<f64>().is_ok();
    let word = ["NULL", "true", "false", "-", "+", "#"].contains(&text);
    if text.is_empty() || !text.chars().all(plain) || number || word {
        format!("{text:?}")
    } else {
        text.to_string()
    }
}

/// Two ways to add the same floats differ in the last bits; 9 digits are enough to tell wrong from
/// right.
fn round(value: &Value) -> String {
    match value {
        Value::Float(x) if x.is_finite() && x.fract() != 0.0 => {
            let short = format!("{x:.8e}");
            if short.parse::<f64>().is_ok_and(|y| y.abs() < 1e-12) {
                "0".into()
            } else {
                short
            }
        }
        Value::Float(x) if *x == 0.0 => "0".into(),
        Value::Float(x) if x.is_finite() => format!("{x:.8e}"),
        // A case has only the text of a tally.
        Value::Tally(tally) => write_value(&Value::text(&tally.to_string())),
        other => write_value(other),
    }
}
