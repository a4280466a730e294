//! The tree of statements on stored views and on what queries can use.

use super::ast::{Ident, Query, Spanned};

/// `DROP VIEW [IF EXISTS] name`
#[derive(Clone, Debug, PartialEq)]
pub struct DropView {
    /// The name.
    pub name: Ident,
    /// Without such a view nothing is done.
    pub if_exists: bool,
}

/// A statement whose result is what queries can use.
#[derive(Clone, Debug, PartialEq)]
pub enum CatalogQuery {
    /// `DESCRIBE name` or `DESCRIBE query`: the columns. A name becomes the query of all its
    /// columns.
    Describe {
        /// The name, if it is one.
        name: Option<Ident>,
        /// The query.
        query: Box<Query>,
    },
    /// `SHOW STREAMS [LIKE 'pattern']`
    Show {
        /// What is listed.
        what: CatalogList,
        /// The pattern of the names.
        like: Option<Spanned<String>>,
    },
    /// `SHOW CREATE VIEW name`
    ShowView(Ident),
}

/// What SHOW lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatalogList {
    /// Streams and relations.
    Streams,
    /// Stored views.
    Views,
    /// Functions.
    Functions,
    /// The queries that run at a monitor.
    Queries,
}

impl CatalogList {
    /// All of them, with their words.
    pub const WORDS: [(&'static str, CatalogList); 4] = [
        ("streams", CatalogList::Streams),
        ("views", CatalogList::Views),
        ("functions", CatalogList::Functions),
        ("queries", CatalogList::Queries),
    ];

    /// Its word, in upper case.
    pub fn word(self) -> String {
        let found = CatalogList::WORDS
            .iter()
            .find(|(_, listed)| *listed == self);
        found.map_or(String::new(), |(word, _)| word.to_uppercase())
    }
}
