//! [`Traces`]: the trace files and pipes of a run, each opened once.
//!
//! A pipe delivers its bytes once, and the capabilities of a source are needed before the demands
//! are known. A trace that was opened for this purpose is kept here until it is read.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use weir_model::Capabilities;
use weir_tap::TapError;
use weir_tap::format::source::is_standard_input;
use weir_tap::format::{
    Cancel, Input, Options, SNIFF_BYTES, Source, Trace, first_file, stream_source,
};

use crate::question;
use crate::run_loop::Stop;

/// The traces of a run. Clones share them.
#[derive(Clone, Default)]
pub struct Traces {
    opened: Arc<Mutex<HashMap<PathBuf, Opened>>>,
    cancel: Cancel,
}

/// The state of a trace.
enum Opened {
    /// Its first bytes may have been read.
    Input(Input),
    /// Its format is known.
    Trace(Trace),
    /// It could not be opened: its reader reports the error.
    Failed(TapError),
    /// A pipe that was read completely.
    Spent,
}

/// The first line of a script's source.
pub enum Beginning {
    /// The type line of a STREAM source file.
    TypeLine,
    /// It is empty.
    Nothing,
    /// Something else: it is a trace.
    Other,
}

impl Traces {
    /// Waiting for a pipe ends at `stop`.
    pub fn end_with(&self, stop: &Stop) {
        let stop = stop.clone();
        self.cancel
            .when(move || stop.signal().is_some() || stop.is_abandoned());
    }

    /// The first bytes of a trace, as many as the detection of a format needs.
    ///
    /// # Errors
    /// When it cannot be opened or read.
    pub fn head(&self, path: &Path) -> Result<Vec<u8>, TapError> {
        let mut input = self.input(path)?;
        let head = input.peek(SNIFF_BYTES)?.to_vec();
        self.keep(path, Opened::Input(input));
        Ok(head)
    }

    /// The type of a script's source.
    ///
    /// # Errors
    /// When it cannot be opened or read.
    pub fn beginning(&self, path: &Path) -> Result<Beginning, TapError> {
        if let Some(Opened::Trace(_)) = self.opened().get(path) {
            return Ok(Beginning::Other);
        }
        let head = self.head(path)?;
        Ok(match stream_source::has_type_line(&head) {
            true => Beginning::TypeLine,
            false if head.is_empty() => Beginning::Nothing,
            false => Beginning::Other,
        })
    }

    /// The capabilities of a trace.
    ///
    /// # Errors
    /// When it cannot be opened, as a sentence without full stop.
    pub fn capabilities(&self, path: &Path, options: &Options) -> Result<Capabilities, String> {
        match self.trace(path, options) {
            Ok(trace) => {
                let capabilities = trace.capabilities();
                self.keep(path, Opened::Trace(trace));
                Ok(capabilities)
            }
            Err(error) => {
                let why = error.to_string();
                self.keep(path, Opened::Failed(error));
                Err(why)
            }
        }
    }

    /// The bytes of a trace, from the first on.
    ///
    /// # Errors
    /// When it cannot be opened, or is a pipe that was read.
    pub fn input(&self, path: &Path) -> Result<Input, TapError> {
        match self.take(path) {
            Some(Opened::Input(input)) => Ok(input),
            None => self.open(path),
            Some(Opened::Failed(error)) => Err(error),
            Some(Opened::Trace(_) | Opened::Spent) => Err(read_before(path)),
        }
    }

    /// A trace, ready to be started.
    ///
    /// # Errors
    /// When it cannot be opened, its format is unknown, or it is a pipe that was read.
    pub fn trace(&self, path: &Path, options: &Options) -> Result<Trace, TapError> {
        let input = match self.take(path) {
            Some(Opened::Trace(trace)) => return Ok(trace),
            Some(Opened::Input(input)) => input,
            None => self.open(path)?,
            Some(Opened::Failed(error)) => return Err(error),
            Some(Opened::Spent) => return Err(read_before(path)),
        };
        Trace::open(input, options)
    }

    fn open(&self, path: &Path) -> Result<Input, TapError> {
        if is_standard_input(path) && question::is_on_standard_input() {
            return Err(TapError::Unavailable {
                what: format!("{}: is already used for the query", path.display()),
                remedy: "pass the query on the command line, or in a file with -f".into(),
            });
        }
        let input = Input::open_until(&Source::file(first_file(path)), &self.cancel)?;
        if input.is_pipe() {
            self.keep(path, Opened::Spent);
        }
        Ok(input)
    }

    fn keep(&self, path: &Path, opened: Opened) {
        self.opened().insert(path.into(), opened);
    }

    /// Removes the opened trace. For a pipe it remains recorded that it was read.
    fn take(&self, path: &Path) -> Option<Opened> {
        let mut all = self.opened();
        let opened = all.remove(path)?;
        let is_pipe = match &opened {
            Opened::Input(input) => input.is_pipe(),
            Opened::Trace(trace) => trace.is_pipe(),
            Opened::Failed(_) => false,
            Opened::Spent => true,
        };
        if is_pipe {
            all.insert(path.into(), Opened::Spent);
        }
        Some(opened)
    }

    fn opened(&self) -> MutexGuard<'_, HashMap<PathBuf, Opened>> {
        self.opened.lock().expect("no panic while held")
    }
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.opened().keys()).finish()
    }
}

fn read_before(path: &Path) -> TapError {
    TapError::Unavailable {
        what: format!(
            "{}: a pipe can be read only once, but this command reads its input twice",
            path.display()
        ),
        remedy: "write the input to a file first".into(),
    }
}
