//! [`Changes`]: the output of a query, as a multiset of rows for each instant, and the difference
//! of two outputs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use weir_model::{Shape, Value};

use super::Row;

/// The net change of a relation, or the rows of a stream, at each instant at which there is any.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// By instant, the rows and their multiplicities, positive when inserted, never 0.
    pub instants: BTreeMap<i64, BTreeMap<Row, i64>>,
}

impl Changes {
    /// Adds `weight` insertions of `row` at `ts`, or retractions.
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

    /// The sum of all changes, at instant 0.
    pub fn content(&self) -> Changes {
        let mut content = Changes::default();
        for (row, weight) in self.instants.values().flatten() {
            content.add(0, row.clone(), *weight);
        }
        content
    }

    /// The changes before `ts`.
    pub fn before(&self, ts: i64) -> Changes {
        let earlier = self.instants.range(..ts);
        Changes {
            instants: earlier.map(|(ts, rows)| (*ts, rows.clone())).collect(),
        }
    }

    /// Each change with its instant in the format of a case file, once for each copy: retractions
    /// first, then insertions.
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

    /// Compares two outputs, up to the rounding of floats.
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

/// A value in the format of a case file; ambiguous texts are quoted.
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

/// Sums of the same floats in different order differ in the last bits; 9 digits distinguish right
/// from wrong.
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
        // A case contains only the text of a tally.
        Value::Tally(tally) => write_value(&Value::text(&tally.to_string())),
        other => write_value(other),
    }
}
