//! [`PlacedAlerts`]: the alerts that clients have placed at a monitor, on disk.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_model::{Catalog, Nanos};
use weir_query::CheckOptions;
use weir_query::alert::{AlertRule, compile_alerts};
use weir_runtime::private;

use crate::state_file::read_versioned;

/// The version of the file; another one is not read.
const VERSION: u32 = 1;

/// The file in the directory of the states.
const NAME: &str = "placed.json";

/// Maximum number of alerts that clients may place.
pub const PLACED_MAX: usize = 1_000;

/// Maximum number of them that one client may place.
pub const OWN_MAX: usize = 100;

/// See the module's documentation.
#[derive(Debug)]
pub struct PlacedAlerts {
    path: PathBuf,
    alerts: Vec<PlacedAlert>,
}

/// An alert that a client has placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedAlert {
    /// Its name.
    pub name: String,
    /// Its definition, a CREATE ALERT statement.
    pub text: String,
    /// Who has placed it.
    pub placed_by: String,
    /// When.
    pub placed_at: Nanos,
}

#[derive(Serialize, Deserialize)]
struct Content {
    version: u32,
    alerts: Vec<PlacedAlert>,
}

impl PlacedAlerts {
    /// The file in `directory`, with what it has.
    ///
    /// # Errors
    /// When it cannot be read, or is not such a file.
    pub fn open(directory: &Path) -> io::Result<PlacedAlerts> {
        let path = directory.join(NAME);
        let content: Option<Content> = read_versioned(&path, VERSION, |c: &Content| c.version)?;
        Ok(PlacedAlerts {
            path,
            alerts: content.map_or_else(Vec::new, |content| content.alerts),
        })
    }

    /// The alerts, in the order in which they were placed first.
    pub fn alerts(&self) -> &[PlacedAlert] {
        &self.alerts
    }

    /// The alert with this name.
    pub fn find(&self, name: &str) -> Option<&PlacedAlert> {
        let mut alerts = self.alerts.iter();
        alerts.find(|alert| alert.name.eq_ignore_ascii_case(name))
    }

    /// Replaces all of them; they are on disk on return.
    ///
    /// # Errors
    /// When the file cannot be written: then nothing has changed.
    pub fn replace(&mut self, alerts: Vec<PlacedAlert>) -> io::Result<()> {
        let content = Content {
            version: VERSION,
            alerts,
        };
        private::replace(&self.path, &serde_json::to_vec_pretty(&content)?)?;
        self.alerts = content.alerts;
        Ok(())
    }
}

impl PlacedAlert {
    /// The checked rule.
    ///
    /// # Errors
    /// The first reason why this version of weir does not accept the text.
    pub fn rule(&self) -> Result<AlertRule, String> {
        let file = compile_alerts(&self.text, &Catalog::builtin(), &CheckOptions::live());
        let file = file.map_err(|diagnostics| {
            let first = diagnostics.iter().find(|d| d.is_error());
            first.map_or_else(String::new, |d| d.message.clone())
        })?;
        let mut rules = file.rules.into_iter();
        rules.next().ok_or_else(|| "it has no alert".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn placed_alerts_are_read_again_and_a_later_version_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let alert = PlacedAlert {
            name: "busy".to_owned(),
            text: "create alert busy as select vm, count(*) as n from IO [range 1 s] group by vm \
                   when n > 5"
                .to_owned(),
            placed_by: "alice".to_owned(),
            placed_at: 7,
        };
        let mut placed = PlacedAlerts::open(folder.path()).unwrap();
        assert!(placed.alerts().is_empty());
        placed.replace(vec![alert.clone()]).unwrap();
        let placed = PlacedAlerts::open(folder.path()).unwrap();
        assert_eq!(placed.find("BUSY"), Some(&alert));
        assert_eq!(alert.rule().unwrap().name, "busy");
        let wrong = PlacedAlert {
            text: alert.text.replace("from IO", "from OI"),
            ..alert
        };
        assert!(wrong.rule().unwrap_err().contains("OI"));
        let later = r#"{"version": 2, "alerts": []}"#;
        fs::write(folder.path().join(NAME), later).unwrap();
        assert!(PlacedAlerts::open(folder.path()).is_err());
    }
}
