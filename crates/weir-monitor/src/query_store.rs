//! [`QueryStore`]: the standing queries on disk, as submitted.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_model::{Declaration, Nanos};
use weir_wire::{OfScript, Submit};

use super::state::{Position, SavedQuery, StateError, read, write};

/// The name of the file in the state directory.
const FILE: &str = "standing.json";

/// A standing query as submitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredQuery {
    /// Its name.
    pub name: String,
    /// The query in CQL, or a script.
    pub query: String,
    /// The selected query of the script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<OfScript>,
    /// The requested placement strategy.
    pub place: Option<String>,
    /// The selected placement strategy: it is used again after a restart, so that agents continue
    /// with their fragments.
    #[serde(alias = "way")]
    pub strategy: String,
    /// The client that submitted it; `None` for the configuration, which is read again after a
    /// restart.
    pub owner: Option<String>,
    /// The only VM whose rows it reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// The streams that it reads which agents have beside the built-in ones: it starts again before
    /// these have connected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<Declaration>,
    /// The time at which it started. With the name, it identifies its state in checkpoints.
    pub since: Nanos,
    /// It receives what is later than this instant; `None` in files of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Nanos>,
    /// It has failed since it started.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// The size of its files when it started: until a checkpoint contains it, later content is
    /// written again after a restart.
    pub files: Vec<Position>,
    /// The files that the checkpoint lacked from which it last continued, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added: Option<AddedFiles>,
}

/// Files that were added to a query while there was no monitor. Every later checkpoint contains
/// them, unless they could not be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedFiles {
    /// The instant of the checkpoint from which the query continued.
    pub checkpoint: Nanos,
    /// Their sizes when it continued.
    pub files: Vec<Position>,
}

impl StoredQuery {
    /// Whether a state in a checkpoint is that of this query, and not of an earlier one with its
    /// name.
    pub fn has_started_as(&self, saved: &SavedQuery) -> bool {
        self.name == saved.name && (self.from.is_none() || self.since == saved.since)
    }

    /// Its state at its start; `None` if that is unknown, or it has failed: it does not begin there
    /// again.
    pub fn state_at_start(&self) -> Option<SavedQuery> {
        Some(SavedQuery {
            name: self.name.clone(),
            since: self.since,
            from: self.from.filter(|_| !self.failed)?,
            before: Vec::new(),
            positions: self.files.clone(),
            rows: 0,
        })
    }

    /// The sizes of files that were added when the query continued from this checkpoint, which is
    /// still the last one: later content is written again after a restart.
    pub fn added_at(&self, checkpoint: Nanos) -> &[Position] {
        match &self.added {
            Some(added) if added.checkpoint == checkpoint => &added.files,
            _ => &[],
        }
    }

    /// True if it is the query that `submit` requests under that name.
    pub fn is_of(&self, name: &str, submit: &Submit) -> bool {
        let same_words = self.query == submit.query && self.script == submit.script;
        self.name == name && same_words && self.place == submit.place
    }
}

/// The standing queries on disk.
pub struct QueryStore {
    directory: PathBuf,
    kept: Vec<StoredQuery>,
}

impl QueryStore {
    /// Opens the file in the state directory and reads its queries.
    ///
    /// # Errors
    /// If it cannot be read or is not valid.
    pub fn open(directory: &Path) -> Result<QueryStore, StateError> {
        Ok(QueryStore {
            directory: directory.to_owned(),
            kept: read(&directory.join(FILE))?.unwrap_or_default(),
        })
    }

    /// The standing queries.
    pub fn kept(&self) -> &[StoredQuery] {
        &self.kept
    }

    /// Adds a standing query. On return it is on disk.
    ///
    /// # Errors
    /// If it cannot be written; the file is unchanged then.
    pub fn keep(&mut self, kept: StoredQuery) -> Result<(), StateError> {
        let mut all = self.kept.clone();
        all.retain(|other| other.name != kept.name);
        all.push(kept);
        self.replace(all)
    }

    /// Removes a query, if it exists.
    ///
    /// # Errors
    /// As [`QueryStore::keep`].
    pub fn remove_stored(&mut self, name: &str) -> Result<(), StateError> {
        let mut all = self.kept.clone();
        all.retain(|kept| kept.name != name);
        match all.len() == self.kept.len() {
            true => Ok(()),
            false => self.replace(all),
        }
    }

    fn replace(&mut self, all: Vec<StoredQuery>) -> Result<(), StateError> {
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
        let kept: StoredQuery = serde_json::from_str(old).unwrap();
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
