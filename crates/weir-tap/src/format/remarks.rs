//! [`Remarks`]: what a format cannot represent, counted during writing.

use std::collections::BTreeMap;

/// Changes and omissions, with their counts.
#[derive(Debug, Default)]
pub struct Remarks(BTreeMap<&'static str, u64>);

impl Remarks {
    /// Counts one occurrence of `what`.
    pub fn note(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    /// One line each: `12 write zeroes written as writes`.
    pub fn lines(&self) -> Vec<String> {
        self.0
            .iter()
            .map(|(what, count)| format!("{count} {what}"))
            .collect()
    }
}
