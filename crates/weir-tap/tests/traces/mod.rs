//! Common parts of the tests of trace formats: the location of the samples, and the complete output
//! of a tap.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_model::event::io_schema;
use weir_model::{Batch, Catalog, Demand, Predicate, Value};
use weir_tap::format::{self, TraceInput, TraceOptions};
use weir_tap::{EventCount, RECORDING, Tap, TapEvent};
use weir_testing::{skip, skipped};

#[allow(unused_imports, reason = "each test binary uses a part")]
pub use weir_testing::Scratch;

/// The sample at `path` in the folder of shared data; `None`, with a printed line, if it is
/// missing.
pub fn sample(test: &str, path: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let root = std::env::var_os("WEIR_SHARED").map_or(root, PathBuf::from);
    let file = root.join("data").join(path);
    if !file.exists() {
        return skip(test, format_args!("{} is absent", file.display()));
    }
    Some(file)
}

/// Whether a program is installed; prints a line if it is not.
pub fn installed(test: &str, program: &str) -> bool {
    let found = std::process::Command::new(program)
        .arg("--version")
        .output()
        .is_ok();
    if !found {
        skipped(test, format_args!("{program} is not installed"));
    }
    found
}

/// A demand for all rows and columns of a stream.
pub fn all_of(stream: &str) -> Demand {
    let columns = match Catalog::builtin().find(stream) {
        Some(declaration) => declaration.schema.len(),
        None => io_schema().len(),
    };
    Demand {
        stream: stream.into(),
        columns: (0..columns).collect(),
        predicate: Predicate::all(),
        fold: None,
    }
}

/// The rows of one stream.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Rows {
    pub ts: Vec<i64>,
    pub rows: Vec<Vec<Value>>,
}

impl Rows {
    fn extend(&mut self, batch: &Batch) {
        self.ts.extend(batch.ts.iter());
        self.rows.extend((0..batch.len()).map(|i| batch.row(i)));
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Column `name` of all rows.
    pub fn column(&self, name: &str) -> Vec<Value> {
        let at = io_schema().index(name);
        self.rows.iter().map(|row| row[at].clone()).collect()
    }

    /// The integers of column `name` that are not NULL.
    pub fn ints(&self, name: &str) -> Vec<i64> {
        let ints = self.column(name).into_iter().filter_map(|v| match v {
            Value::Int(x) => Some(x),
            _ => None,
        });
        ints.collect()
    }

    /// The number of rows with `text` in column `name`.
    pub fn count(&self, name: &str, text: &str) -> usize {
        self.column(name)
            .into_iter()
            .filter(|v| *v == Value::text(text))
            .count()
    }

    /// The rows with `text` in column `name`.
    pub fn only(&self, name: &str, text: &str) -> Rows {
        let at = io_schema().index(name);
        let kept = (0..self.len()).filter(|&i| self.rows[i][at] == Value::text(text));
        let kept: Vec<usize> = kept.collect();
        Rows {
            ts: kept.iter().map(|&i| self.ts[i]).collect(),
            rows: kept.iter().map(|&i| self.rows[i].clone()).collect(),
        }
    }
}

/// The complete output of a tap.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct CollectedEvents {
    pub io: Rows,
    pub iostream: Rows,
    pub recording: Rows,
    pub counts: Vec<(String, i64)>,
    pub messages: Vec<String>,
}

impl CollectedEvents {
    pub fn total(&self, counter: &str) -> i64 {
        self.counts
            .iter()
            .filter(|(name, _)| name.starts_with(counter))
            .map(|(_, total)| total)
            .sum()
    }
}

/// The demands of [`collect`].
pub fn demands() -> [Demand; 3] {
    [all_of("IO"), all_of("IOstream"), all_of(RECORDING)]
}

/// Reads a tap until it ends.
///
/// # Panics
/// If it violates the guarantees of a tap: rows in timestamp order, none before a heartbeat,
/// progress between 0 and 1.
pub fn collect(tap: &mut dyn Tap) -> Result<CollectedEvents, weir_tap::TapError> {
    let mut collected = CollectedEvents::default();
    let mut passed = i64::MIN;
    let mut progress = 0.0;
    loop {
        match tap.next(Duration::ZERO)? {
            TapEvent::Rows { demand, batch } => {
                assert!(batch.ts.is_sorted() && !batch.is_empty());
                assert!(
                    batch.ts[0] > passed || batch.ts[0] == i64::MIN,
                    "{} after {passed}",
                    batch.ts[0]
                );
                let rows = [
                    &mut collected.io,
                    &mut collected.iostream,
                    &mut collected.recording,
                ];
                let rows = rows.into_iter().nth(demand).unwrap();
                assert!(rows.ts.last().is_none_or(|last| *last <= batch.ts[0]));
                rows.extend(&batch);
            }
            TapEvent::Heartbeat(ts) => {
                assert!(ts >= passed);
                passed = ts;
            }
            TapEvent::Quiet => panic!("a file is never quiet"),
            TapEvent::Folded { .. } => panic!("a file delivers rows"),
            TapEvent::End => break,
        }
        let now = tap.progress().unwrap();
        assert!(
            (0.0..=1.0).contains(&now) && now >= progress,
            "{progress} then {now}"
        );
        progress = now;
    }
    let name = |c: &EventCount| format!("{} {}", c.counter, c.cause.unwrap_or_default());
    collected.counts = tap.counts().iter().map(|c| (name(c), c.total)).collect();
    collected.messages = tap.messages();
    Ok(collected)
}

/// The complete output for the trace at `path`, whose format is detected.
pub fn read(path: &Path) -> CollectedEvents {
    let mut tap = format::open(path, &demands(), &TraceOptions::default()).unwrap();
    collect(tap.as_mut()).unwrap()
}

/// The complete output for `bytes`, in the format called `name`.
pub fn read_bytes(name: &str, bytes: &[u8]) -> Result<CollectedEvents, weir_tap::TapError> {
    let format = format::named(name)?;
    let mut tap = format.tap(&TraceInput::bytes(bytes), &demands())?;
    collect(tap.as_mut())
}
