//! [`Faults`]: records that a reader could not use, counted by cause; the first ones are kept as
//! text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use weir_model::Symbol;

use crate::{EventCount, TapError};

/// Maximum number of bad records that are kept as text; all are counted.
pub const MESSAGES_MAX: usize = 10;

/// Cause of rows that were received too late to be sorted.
pub const LATE: &str = "late";
/// Cause of records that violate their format.
pub const MALFORMED: &str = "malformed";
/// Cause of entries that were discarded because a bounded table was full.
pub const TABLE_FULL: &str = "table_full";

/// The records that a reader could not use.
#[derive(Debug)]
pub struct Faults {
    path: PathBuf,
    strict: bool,
    totals: BTreeMap<(&'static str, &'static str), i64>,
    messages: Vec<String>,
}

impl Faults {
    /// No faults yet in `path`; a strict reader stops at the first bad record.
    pub fn new(path: &Path, strict: bool) -> Faults {
        Faults {
            path: path.into(),
            strict,
            totals: BTreeMap::new(),
            messages: Vec::new(),
        }
    }

    /// Counts a record at byte `offset` that violates the format, for `reason`.
    ///
    /// # Errors
    /// [`TapError::Malformed`] if the reader is strict.
    pub fn bad(&mut self, offset: u64, reason: impl Into<String>) -> Result<(), TapError> {
        let path = self.path.clone();
        self.bad_in(&path, offset, reason)
    }

    /// As [`Faults::bad`], for one of several files.
    ///
    /// # Errors
    /// [`TapError::Malformed`] if the reader is strict.
    pub fn bad_in(
        &mut self,
        path: &Path,
        offset: u64,
        reason: impl Into<String>,
    ) -> Result<(), TapError> {
        let error = TapError::Malformed {
            path: path.into(),
            offset,
            reason: reason.into(),
        };
        if self.strict {
            return Err(error);
        }
        self.count("bad_records", MALFORMED, 1);
        if self.messages.len() < MESSAGES_MAX {
            self.messages.push(error.to_string());
        }
        Ok(())
    }

    /// Adds `many` to `counter` for `cause`.
    pub fn count(&mut self, counter: &'static str, cause: &'static str, many: i64) {
        if many != 0 {
            *self.totals.entry((counter, cause)).or_default() += many;
        }
    }

    /// The number of bad records so far.
    pub fn bad_records(&self) -> i64 {
        self.totals
            .get(&("bad_records", MALFORMED))
            .copied()
            .unwrap_or(0)
    }

    /// The first bad records, as text.
    pub fn messages(&self) -> &[String] {
        &self.messages
    }

    /// All counts of the file.
    pub fn counts(&self) -> Vec<EventCount> {
        let device = self.path.to_str().and_then(|p| Symbol::try_new(p).ok());
        let totals = self.totals.iter();
        totals
            .map(|(&(counter, cause), &total)| EventCount {
                counter,
                cause: Some(cause),
                device,
                total,
            })
            .collect()
    }
}
