//! Findings stored in `target/experiments`, so that one experiment can be repeated without the
//! others.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Figure, Findings, Pace, Row};
use crate::root;

/// Findings, and the parameters of the measurement.
pub struct Kept {
    /// The number and duration of measurements.
    pub pace: Pace,
    /// The findings.
    pub findings: Findings,
}

/// Stores the findings of experiment `number`.
///
/// # Errors
/// When they cannot be written.
pub fn keep(number: u32, kept: &Kept) -> Result<()> {
    let row = |row: &Row| {
        let figures: Vec<&Vec<f64>> = row.figures.iter().map(|f| &f.runs).collect();
        json!({ "configuration": row.name, "figures": figures })
    };
    let Findings {
        columns,
        rows,
        conclusion,
    } = &kept.findings;
    let all = json!({
        "runs": kept.pace.runs,
        "seconds": kept.pace.seconds,
        "columns": columns,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "conclusion": conclusion,
    });
    let path = path(number);
    let folder = path.parent().expect("it is in a folder");
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    fs::write(&path, format!("{all:#}\n")).with_context(|| path.display().to_string())
}

/// The stored findings of experiment `number`, if there are any.
pub fn known(number: u32) -> Option<Kept> {
    let text = fs::read_to_string(path(number)).ok()?;
    let all: Value = serde_json::from_str(&text).ok()?;
    let row = |row: &Value| {
        let figures = row["figures"].as_array()?;
        let figure = |runs: &Value| {
            Some(Figure {
                runs: list(runs, Value::as_f64)?,
            })
        };
        Some(Row {
            name: row["configuration"].as_str()?.to_owned(),
            figures: figures.iter().map(figure).collect::<Option<_>>()?,
        })
    };
    Some(Kept {
        pace: Pace {
            runs: all["runs"].as_u64()? as usize,
            seconds: u32::try_from(all["seconds"].as_u64()?).ok()?,
        },
        findings: Findings {
            columns: list(&all["columns"], |c| c.as_str().map(str::to_owned))?,
            rows: list(&all["rows"], row)?,
            conclusion: all["conclusion"].as_str()?.to_owned(),
        },
    })
}

fn list<T>(values: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    values.as_array()?.iter().map(read).collect()
}

fn path(number: u32) -> PathBuf {
    root().join(format!("target/experiments/{number}.json"))
}
