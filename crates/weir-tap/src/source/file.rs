//! `FILE`: a trace file, a recording or a pipe.
//!
//! A pipe delivers its bytes once, and the capabilities of a trace are needed before the demands
//! are known. What was opened is therefore kept here until it is read.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use weir_model::{Capabilities, Demand};

use super::{EventSource, SourceKind, SourceSettings, Started};
use crate::TapError;
use crate::format::source::is_standard_input;
use crate::format::{
    self, Cancel, Input, Trace, TraceInput, TraceOptions, first_file, stream_source,
};

/// A file, by its path; the last of the list, since it accepts any name.
pub static KIND: SourceKind = SourceKind {
    name: "",
    argument: "FILE",
    aliases: &[],
    doc: "a recording, or a trace in a format that `weir convert --formats` lists; also a pipe. \
          blktrace writes a file for each CPU: name any one of them",
    is_live: false,
    part: "reader",
    open: |path, settings| Ok(Box::new(FileSource::open(path.as_ref(), settings)?)),
};

/// A file or a pipe.
pub struct FileSource {
    path: PathBuf,
    options: TraceOptions,
    cancel: Cancel,
    state: Mutex<State>,
}

enum State {
    /// Opened. Its first bytes may have been read.
    Bytes(Input),
    /// Opened, and its format is known.
    Trace(Trace),
    /// It was read. It is opened again, unless it is a pipe.
    Spent { is_pipe: bool },
}

/// The first line of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstLine {
    /// The type line of a STREAM source file.
    TypeLine,
    /// There is none: the file is empty.
    Nothing,
    /// Something else: the file is a trace.
    Other,
}

impl FileSource {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path, settings: &SourceSettings) -> Result<FileSource, TapError> {
        let (cancel, options) = (settings.cancel.clone(), settings.traces.clone());
        let opened = input(path, &cancel)?;
        Ok(FileSource {
            path: path.into(),
            options,
            cancel,
            state: Mutex::new(State::Bytes(opened)),
        })
    }

    /// Its first bytes, as many as the detection of a format needs.
    ///
    /// # Errors
    /// If it cannot be read, or is a pipe that was read.
    pub fn head(&self) -> Result<Vec<u8>, TapError> {
        let mut state = self.state();
        let mut input = self.bytes(&mut state)?;
        let head = format::head(&mut input)?.to_vec();
        *state = State::Bytes(input);
        Ok(head)
    }

    /// Its first line.
    ///
    /// # Errors
    /// As [`FileSource::head`].
    pub fn first_line(&self) -> Result<FirstLine, TapError> {
        if matches!(*self.state(), State::Trace(_)) {
            return Ok(FirstLine::Other);
        }
        let head = self.head()?;
        Ok(match stream_source::has_type_line(&head) {
            true => FirstLine::TypeLine,
            false if head.is_empty() => FirstLine::Nothing,
            false => FirstLine::Other,
        })
    }

    /// Its bytes, from the first on.
    ///
    /// # Errors
    /// As [`FileSource::head`].
    pub fn input(&self) -> Result<Input, TapError> {
        self.bytes(&mut self.state())
    }

    fn bytes(&self, state: &mut State) -> Result<Input, TapError> {
        let spent = match &*state {
            State::Bytes(input) => input.is_pipe(),
            State::Trace(trace) => trace.is_pipe(),
            State::Spent { is_pipe } => *is_pipe,
        };
        // A second descriptor of standard input continues where the first one was read.
        let is_pipe = spent || is_standard_input(&self.path);
        match std::mem::replace(state, State::Spent { is_pipe }) {
            State::Bytes(input) => Ok(input),
            _ if is_pipe => Err(self.read_before()),
            _ => input(&self.path, &self.cancel),
        }
    }

    fn trace(&self, state: &mut State) -> Result<Trace, TapError> {
        if let State::Trace(trace) = state {
            let is_pipe = trace.is_pipe() || is_standard_input(&self.path);
            if let State::Trace(trace) = std::mem::replace(state, State::Spent { is_pipe }) {
                return Ok(trace);
            }
        }
        Trace::open(self.bytes(state)?, &self.options)
    }

    fn read_before(&self) -> TapError {
        TapError::Unavailable {
            what: format!(
                "{}: a pipe can be read only once, but this command reads its input twice",
                self.path.display()
            ),
            remedy: "write the input to a file first".into(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }
}

impl EventSource for FileSource {
    fn probe(&self) -> Result<Capabilities, TapError> {
        let mut state = self.state();
        let trace = self.trace(&mut state)?;
        let capabilities = trace.capabilities();
        *state = State::Trace(trace);
        Ok(capabilities)
    }

    fn start(&self, demands: &[Demand], _: &SourceSettings) -> Result<Vec<Started>, TapError> {
        let trace = self.trace(&mut self.state())?;
        Ok(Started::all(trace.start(demands)?, demands))
    }

    fn file(&self) -> Option<&FileSource> {
        Some(self)
    }
}

/// The bytes of the trace at `path`, from the first on.
///
/// # Errors
/// If it cannot be opened.
pub fn input(path: &Path, cancel: &Cancel) -> Result<Input, TapError> {
    Input::open_until(&TraceInput::file(first_file(path)), cancel)
}
