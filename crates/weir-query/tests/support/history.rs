//! [`History`]: everything that ever happened to the sources of a test, written down.

use std::collections::BTreeMap;

use super::Row;

/// The whole input of a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The rows of each source, by its name in lower case, in time order and within an instant in
    /// order of arrival.
    pub sources: BTreeMap<String, Vec<Element>>,
    /// The first instant, if the query is to know of it.
    pub begin: Option<i64>,
    /// The last instant: time goes no further.
    pub end: i64,
}

/// A row that came into a source, or went from a relation.
#[derive(Clone, Debug, PartialEq)]
pub struct Element {
    /// When.
    pub ts: i64,
    /// How often: positive in a stream, negative for rows that go from a relation.
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

    /// What happened to a source, nothing if it is not there.
    pub fn source(&self, name: &str) -> &[Element] {
        self.sources
            .get(&name.to_ascii_lowercase())
            .map_or(&[], Vec::as_slice)
    }
}
