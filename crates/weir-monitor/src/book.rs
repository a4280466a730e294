//! [`Book`]: the standing queries on disk, as they were placed.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_model::Nanos;
use weir_wire::{OfScript, Submit};

use super::state::{Position, StateError, read, write};

/// The file in the state directory.
const FILE: &str = "standing.json";

/// A standing query as it was placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Its name.
    pub name: String,
    /// The query in CQL, or a script.
    pub query: String,
    /// Which of the script's queries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<OfScript>,
    /// The way that was asked for.
    pub place: Option<String>,
    /// The way that was taken: it is taken again, so that agents go on with what they run.
    pub way: String,
    /// Who placed it; `None` for the configuration, which says after a restart what is to run.
    pub owner: Option<String>,
    /// Since when it runs.
    pub since: Nanos,
    /// How much was in its files when it began: until something was saved of it, what follows is
    /// told again after a restart.
    pub files: Vec<Position>,
}

impl Kept {
    /// True if it is what `submit` asks for under that name.
    pub fn is_of(&self, name: &str, submit: &Submit) -> bool {
        let same_words = self.query == submit.query && self.script == submit.script;
        self.name == name && same_words && self.place == submit.place
    }
}

/// The standing queries on disk.
pub struct Book {
    directory: PathBuf,
    kept: Vec<Kept>,
}

impl Book {
    /// The book in the state directory, and what is in it.
    ///
    /// # Errors
    /// When it cannot be read, or holds something else.
    pub fn open(directory: &Path) -> Result<Book, StateError> {
        Ok(Book {
            directory: directory.to_owned(),
            kept: read(&directory.join(FILE))?.unwrap_or_default(),
        })
    }

    /// What is in it.
    pub fn kept(&self) -> &[Kept] {
        &self.kept
    }

    /// Writes down that a query stands. When this comes back it is on the disk.
    ///
    /// # Errors
    /// When it cannot be written; the book is as before then.
    pub fn keep(&mut self, kept: Kept) -> Result<(), StateError> {
        let mut all = self.kept.clone();
        all.retain(|other| other.name != kept.name);
        all.push(kept);
        self.replace(all)
    }

    /// Strikes out a query, if it is there.
    ///
    /// # Errors
    /// As [`Book::keep`].
    pub fn strike(&mut self, name: &str) -> Result<(), StateError> {
        let mut all = self.kept.clone();
        all.retain(|kept| kept.name != name);
        match all.len() == self.kept.len() {
            true => Ok(()),
            false => self.replace(all),
        }
    }

    fn replace(&mut self, all: Vec<Kept>) -> Result<(), StateError> {
        let bytes = serde_json::to_vec_pretty(&all).expect("texts and numbers are JSON");
        write(&self.directory, FILE, &bytes)?;
        self.kept = all;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_book_from_before_there_were_scripts_is_read() {
        let old = r#"{"name": "q", "query": "select * from IO", "place": null, "way": "rows",
            "owner": "alice", "since": 7, "files": []}"#;
        let kept: Kept = serde_json::from_str(old).unwrap();
        assert_eq!((kept.script.is_none(), kept.since), (true, 7));
        let mut submit = Submit {
            query: kept.query.clone(),
            ..Submit::default()
        };
        assert!(kept.is_of("q", &submit));
        submit.script = Some(OfScript {
            query: 1,
            tick_ns: 1,
        });
        assert!(
            !kept.is_of("q", &submit),
            "the same words mean another query"
        );
    }
}
