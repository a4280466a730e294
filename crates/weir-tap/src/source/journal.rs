//! `journal:DIR`: the alerts or actions that another process of weir writes to a directory.

use std::path::PathBuf;

use weir_model::{Capabilities, Demand};

use super::{EventSource, SourceKind, SourceSettings, Started};
use crate::TapError;
use crate::journal::{self, ACTIONS_FILE, ALERTS_FILE, JournalTap};

/// The journals in a directory.
pub static KIND: SourceKind = SourceKind {
    name: "journal:",
    argument: "DIR",
    aliases: &[],
    doc: "the alerts or actions of weir on this host; DIR is that of `weir alert watch --state` or \
          `weir act --state`",
    is_live: true,
    part: "reader",
    open: |path, _| Ok(Box::new(Journal(path.into()))),
};

/// The directory of `--state`.
struct Journal(PathBuf);

impl EventSource for Journal {
    fn probe(&self) -> Result<Capabilities, TapError> {
        let mut all = journal::capabilities();
        let has = |name: &str| self.0.join(name).exists();
        let (alerts, actions) = (has(ALERTS_FILE), has(ACTIONS_FILE));
        if alerts != actions {
            all.streams.retain(|stream| {
                let name = stream.declaration.name.as_str();
                alerts == ["alerts", "alert_states"].contains(&name)
            });
        }
        Ok(all)
    }

    fn start(
        &self,
        demands: &[Demand],
        settings: &SourceSettings,
    ) -> Result<Vec<Started>, TapError> {
        let (alerts, actions) = (self.0.join(ALERTS_FILE), self.0.join(ACTIONS_FILE));
        let tap = JournalTap::open(demands, &settings.live, &alerts, &actions)?;
        Ok(Started::all(Box::new(tap), demands))
    }
}
