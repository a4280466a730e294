//! [`StateFile`]: the states of alerts across restarts.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_runtime::private;

use crate::event::AlertKey;
use crate::instances::RuleRun;
use crate::machine::SavedMachine;

/// The version of the file; another one is not read.
const VERSION: u32 = 1;

/// The file in its directory.
const NAME: &str = "alerts.json";

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Content {
    version: u32,
    rules: Vec<SavedRule>,
}

#[derive(Serialize, Deserialize)]
struct SavedRule {
    name: String,
    /// The definition: a state is that of this one only.
    text: String,
    machine: SavedMachine<AlertKey>,
}

impl StateFile {
    /// The file in `directory`, which is created.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn new(directory: &Path) -> io::Result<StateFile> {
        private::directory(directory)?;
        Ok(StateFile {
            path: directory.join(NAME),
        })
    }

    /// The states of the rules whose definition is the same; none if there is no file.
    ///
    /// # Errors
    /// When it cannot be read, or is not such a file.
    pub fn read<'r>(
        &self,
        definitions: impl Iterator<Item = (&'r str, &'r str)>,
    ) -> io::Result<HashMap<String, SavedMachine<AlertKey>>> {
        let content: Option<Content> =
            read_versioned(&self.path, VERSION, |c: &Content| c.version)?;
        let Some(content) = content else {
            return Ok(HashMap::new());
        };
        let definitions: HashMap<&str, &str> = definitions.collect();
        let is_same = |rule: &SavedRule| definitions.get(rule.name.as_str()) == Some(&&*rule.text);
        let rules = content.rules.into_iter().filter(is_same);
        Ok(rules.map(|rule| (rule.name, rule.machine)).collect())
    }

    /// Replaces the file by the present states; it is complete at every instant.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, rules: &[RuleRun]) -> io::Result<()> {
        let saved = |run: &RuleRun| SavedRule {
            name: run.rule().name.clone(),
            text: run.rule().text.clone(),
            machine: run.saved(),
        };
        let content = Content {
            version: VERSION,
            rules: rules.iter().map(saved).collect(),
        };
        private::replace(&self.path, &serde_json::to_vec(&content)?)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The content of a file, which has this version; none if there is no file.
///
/// # Errors
/// When it cannot be read, is not such a file, or has another version.
pub(crate) fn read_versioned<C: DeserializeOwned>(
    path: &Path,
    version: u32,
    version_of: impl Fn(&C) -> u32,
) -> io::Result<Option<C>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let content = serde_json::from_slice(&text)?;
    match version_of(&content) {
        found if found == version => Ok(Some(content)),
        found => {
            let why = format!("its version is {found}, expected {version}");
            Err(io::Error::new(io::ErrorKind::InvalidData, why))
        }
    }
}
