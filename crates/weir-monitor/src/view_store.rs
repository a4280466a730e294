//! [`ViewStore`]: the stored views on disk.

use std::path::{Path, PathBuf};

use weir_model::{Catalog, StoredView};
use weir_query::library::{ViewChange, changed};
use weir_query::{CheckOptions, Checked, compile};
use weir_runtime::question::{QueryText, is_foreign, with_views};
use weir_wire::Refusal;

use super::state::{StateError, read, write};

/// The name of the file in the state directory.
const FILE: &str = "views.json";

/// The stored views on disk.
pub struct ViewStore {
    directory: PathBuf,
    views: Vec<StoredView>,
}

impl ViewStore {
    /// Opens the file in the state directory and reads its views.
    ///
    /// # Errors
    /// If it cannot be read or is not valid.
    pub fn open(directory: &Path) -> Result<ViewStore, StateError> {
        Ok(ViewStore {
            directory: directory.to_owned(),
            views: read(&directory.join(FILE))?.unwrap_or_default(),
        })
    }

    /// The views.
    pub fn views(&self) -> &[StoredView] {
        &self.views
    }

    /// Applies CREATE VIEW and DROP VIEW statements. On return the result is on disk.
    ///
    /// # Errors
    /// The diagnostics of the text, or if it cannot be written; nothing is changed then.
    pub fn change(&mut self, text: &str) -> Result<Vec<ViewChange>, Refusal> {
        let question = QueryText::new(text);
        let catalog = with_views(Catalog::builtin(), &self.views);
        let found = changed(text, &catalog, &CheckOptions::live());
        let found = found.map_err(|d| Refusal::Invalid(question.failure(&d).text()))?;
        let bytes = serde_json::to_vec_pretty(&found.views).expect("texts are JSON");
        let failed = |e: StateError| Refusal::Failed(format!("the views are not stored: {e}"));
        write(&self.directory, FILE, &bytes).map_err(failed)?;
        self.views = found.views;
        Ok(found.changes)
    }

    /// A query with the definitions of the stored views that it reads, so that a later change of
    /// them does not change a query that runs. A text with errors stays as it is.
    pub fn expanded(&self, text: String) -> String {
        let options = CheckOptions::live();
        let checked = match compile(&text, &Catalog::builtin(), &options) {
            Err(found) if is_foreign(&found) && !self.views.is_empty() => compile(
                &text,
                &with_views(Catalog::builtin(), &self.views),
                &options,
            ),
            _ => return text,
        };
        let with_views = |checked: Checked| checked.with_views(&text);
        checked.map(with_views).unwrap_or(text)
    }
}
