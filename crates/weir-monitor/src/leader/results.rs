//! [`detach_results`]: result files that a stopped process may still have open.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::query_store::QueryStore;
use crate::state::{self, StateError};

/// Replaces each result file of standing queries by a copy: an earlier leader that is stopped, and
/// continues later, appends to the previous file, which has no name any more.
///
/// # Errors
/// If the saved state cannot be read, or a file cannot be copied.
pub fn detach_results(state: &Path) -> Result<(), StateError> {
    let mut paths: BTreeSet<PathBuf> = BTreeSet::new();
    for query in QueryStore::open(state)?.kept() {
        paths.extend(query.files.iter().map(|file| file.path.clone()));
    }
    if let Some(saved) = state::saved(state)? {
        let positions = saved.queries.iter().flat_map(|query| &query.positions);
        paths.extend(positions.map(|position| position.path.clone()));
    }
    for path in paths {
        let mut copy = OsString::from(&path);
        copy.push(".copy");
        let copied = fs::copy(&path, &copy).and_then(|_| {
            fs::File::open(&copy)?.sync_all()?;
            fs::rename(&copy, &path)
        });
        match copied {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(StateError {
                    path: path.display().to_string(),
                    error: error.to_string(),
                });
            }
            _ => {}
        }
    }
    Ok(())
}
