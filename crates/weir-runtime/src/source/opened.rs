//! [`OpenSources`]: the sources of a run, each opened once and asked once for its capabilities.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use weir_model::{Capabilities, Demand};
use weir_tap::TapError;
use weir_tap::format::Cancel;
use weir_tap::source::file::FileSource;
use weir_tap::source::{EventSource, STANDARD_INPUT, SourceName, SourceSettings, Started};

use super::SourceOptions;
use crate::question;
use crate::run_loop::Stop;

/// The sources of a run. Clones share them.
#[derive(Clone, Default)]
pub struct OpenSources {
    all: Arc<Mutex<HashMap<String, Arc<OpenSource>>>>,
    /// Ends the wait for a pipe.
    pub cancel: Cancel,
}

/// A source that was opened.
pub struct OpenSource {
    /// Its name.
    pub name: SourceName,
    source: Box<dyn EventSource>,
    capabilities: OnceLock<Capabilities>,
}

impl OpenSources {
    /// Waiting for a pipe ends at `stop`.
    pub fn end_with(&self, stop: &Stop) {
        let stop = stop.clone();
        self.cancel
            .when(move || stop.signal().is_some() || stop.is_abandoned());
    }

    /// The source called `name`, which is opened if it is not open yet.
    pub(super) fn open(
        &self,
        name: &SourceName,
        settings: impl FnOnce() -> SourceSettings,
    ) -> Result<Arc<OpenSource>, TapError> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(&name.to_string()) {
            return Ok(known.clone());
        }
        if name.is(&STANDARD_INPUT) && question::is_on_standard_input() {
            return Err(TapError::Unavailable {
                what: format!("{name}: is already used for the query"),
                remedy: "pass the query on the command line, or in a file with -f".into(),
            });
        }
        let opened = Arc::new(OpenSource {
            name: name.clone(),
            source: name.open(&settings())?,
            capabilities: OnceLock::new(),
        });
        all.insert(name.to_string(), opened.clone());
        Ok(opened)
    }
}

impl fmt::Debug for OpenSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_set().entries(all.keys()).finish()
    }
}

impl OpenSource {
    /// Its own capabilities.
    ///
    /// # Errors
    /// When it cannot be read, or the format of a file is not known.
    pub fn capabilities(&self) -> Result<&Capabilities, TapError> {
        if let Some(known) = self.capabilities.get() {
            return Ok(known);
        }
        let probed = self.source.probe()?;
        Ok(self.capabilities.get_or_init(|| probed))
    }

    /// Starts its taps for `demands`.
    ///
    /// # Errors
    /// When it cannot be observed or read.
    pub fn start(
        &self,
        demands: &[Demand],
        args: &SourceOptions,
    ) -> Result<Vec<Started>, TapError> {
        self.source.start(demands, &args.settings())
    }

    /// The work that it does for `demands` in place of the engine, one line each.
    ///
    /// # Errors
    /// As [`OpenSource::start`].
    pub fn describe(
        &self,
        demands: &[Demand],
        args: &SourceOptions,
    ) -> Result<Vec<String>, TapError> {
        self.source.describe(demands, &args.settings())
    }

    /// The file that it reads, for files that are not traces.
    pub fn file(&self) -> Option<&FileSource> {
        self.source.file()
    }
}
