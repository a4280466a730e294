//! [`History`]: the whole input of a test.

use std::collections::BTreeMap;

use super::Row;

/// The whole input of a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The rows of each source, by its name in lower case, in time order and within an instant in
    /// order of arrival.
    pub sources: BTreeMap<String, Vec<Element>>,
    /// The first instant, if the query receives it.
    pub begin: Option<i64>,
    /// The last instant.
    pub end: i64,
}

/// A row that is inserted into a source, or retracted from a relation.
#[derive(Clone, Debug, PartialEq)]
pub struct Element {
    /// The timestamp.
    pub ts: i64,
    /// The multiplicity: negative for retractions.
    pub weight: i64,
    /// Its values.
    pub row: Row,
}

impl History {
    /// A history of these rows, which ends with the last of them.
    pub fn new(sources: impl IntoIterator<Item = (String, Vec<Element>)>) -> History {
        let sources: BTreeMap<String, Vec<Element>> = sources
            .into_iter()
            .map(|(name, elements)| (name.to_ascii_lowercase(), elements))
            .collect();
        let last = sources.values().flatten().map(|e| e.ts).max();
        History {
            sources,
            begin: None,
            end: last.unwrap_or(i64::MIN),
        }
    }

    /// The rows of a source, none if it does not exist.
    pub fn source(&self, name: &str) -> &[Element] {
        self.sources
            .get(&name.to_ascii_lowercase())
            .map_or(&[], Vec::as_slice)
    }
}
