//! Output files of scripts, `[ts]:+:v1, v2`, and the comparison of their rows.

use std::collections::BTreeMap;

/// Rows as texts, in any order.
pub type Cells = Vec<Vec<String>>;

/// C's `%g`, in which floats are written, has six digits.
const RELATIVE_TOLERANCE: f64 = 1e-5;

/// A parsed output file.
pub struct Output {
    /// By instant, inserted and retracted rows.
    changes: BTreeMap<i64, Vec<(bool, Vec<String>)>>,
    /// The content of the relation after the instants that were read.
    content: BTreeMap<Vec<String>, i64>,
    /// The last instant that was read.
    read: i64,
}

impl Output {
    pub fn parse(text: &str) -> Output {
        let mut changes: BTreeMap<i64, Vec<(bool, Vec<String>)>> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let parts = line.strip_prefix('[').and_then(|l| l.split_once("]:"));
            let (ts, rest) = parts.unwrap_or_else(|| panic!("no line of STREAM: {line}"));
            let (sign, row) = rest.split_once(':').expect("a sign and a row");
            let row = row.split(", ").map(|cell| cell.trim().to_owned()).collect();
            let at = changes.entry(ts.parse().expect("an instant")).or_default();
            at.push((sign == "+", row));
        }
        Output {
            changes,
            content: BTreeMap::new(),
            read: i64::MIN,
        }
    }

    /// The relation at an instant that is not before the ones of earlier calls.
    pub fn relation(&mut self, at: i64) -> Cells {
        assert!(self.read <= at, "instants are read in order");
        for (_, rows) in self.changes.range(self.read..=at) {
            for (is_inserted, row) in rows {
                let weight = if *is_inserted { 1 } else { -1 };
                *self.content.entry(row.clone()).or_default() += weight;
            }
        }
        self.read = at + 1;
        let mut rows = Vec::new();
        for (row, count) in &self.content {
            assert!(
                *count >= 0,
                "a row is retracted that was not inserted: {row:?}"
            );
            rows.extend(std::iter::repeat_n(row.clone(), *count as usize));
        }
        rows
    }

    /// The rows of a stream at an instant.
    pub fn emitted(&self, at: i64) -> Cells {
        let rows = self.changes.get(&at).into_iter().flatten();
        rows.map(|(_, row)| row.clone()).collect()
    }
}

/// Compares two multisets of rows.
pub fn agree(mut got: Cells, mut wanted: Cells) -> Result<(), String> {
    let lists = format!("weir {got:?}, expected {wanted:?}");
    got.sort();
    while let Some(row) = wanted.pop() {
        let Some(at) = got.iter().position(|other| is_equal(other, &row)) else {
            return Err(format!("{row:?} is missing: {lists}"));
        };
        got.swap_remove(at);
    }
    match got.first() {
        Some(row) => Err(format!("{row:?} is not expected: {lists}")),
        None => Ok(()),
    }
}

fn is_equal(left: &[String], right: &[String]) -> bool {
    let is_equal_cell = |(a, b): (&String, &String)| match (a.parse::<f64>(), b.parse::<f64>()) {
        _ if a == b => true,
        (Ok(a), Ok(b)) => (a - b).abs() <= RELATIVE_TOLERANCE * a.abs().max(b.abs()),
        _ => false,
    };
    left.len() == right.len() && left.iter().zip(right).all(is_equal_cell)
}

/// A row of values.
#[macro_export]
macro_rules! row {
    ($($value:expr),* $(,)?) => { vec![$($value.to_string()),*] };
}
