//! [`Remarks`]: what a format had no room for, counted while it was written.

use std::collections::BTreeMap;

/// What was changed or left out, and how often.
#[derive(Debug, Default)]
pub struct Remarks(BTreeMap<&'static str, u64>);

impl Remarks {
    /// Once more.
    pub fn note(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    /// A line each: `12 write zeroes written as writes`.
    pub fn lines(&self) -> Vec<String> {
        self.0
            .iter()
            .map(|(what, count)| format!("{count} {what}"))
            .collect()
    }
}
