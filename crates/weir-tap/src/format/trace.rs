//! [`Trace`]: an opened trace, before the demands are known.

use std::path::PathBuf;

use weir_model::capabilities::recording;
use weir_model::{Capabilities, Declaration, Demand};

use super::recording::Recording;
use super::wanted::capabilities;
use super::{
    Faults, Format, FormatReader, Input, Provenance, Reader, Replay, SPOOL_BYTES_MAX, detect, named,
};
use crate::{Tap, TapError};

/// Options for reading a trace.
#[derive(Clone, Debug)]
pub struct TraceOptions {
    /// Stop at the first bad record instead of counting it.
    pub strict: bool,
    /// The format's name, to override the detection.
    pub format: Option<String>,
    /// Maximum size of a temporary file for a recording that is read from a pipe.
    pub spool_bytes_max: u64,
}

impl Default for TraceOptions {
    fn default() -> TraceOptions {
        TraceOptions {
            strict: false,
            format: None,
            spool_bytes_max: SPOOL_BYTES_MAX,
        }
    }
}

/// The reason why a trace does not support folds.
const ROW_BY_ROW: &str = "a file is read row by row";

/// An opened trace. Its format is known and only its first bytes are read.
pub struct Trace {
    format: &'static Format,
    path: PathBuf,
    is_pipe: bool,
    strict: bool,
    opened: Opened,
}

enum Opened {
    Records(Box<dyn Reader>),
    Recording(Box<Recording>),
}

impl Trace {
    /// Finds the format of `input`, unless the options name it.
    ///
    /// # Errors
    /// If the input cannot be read, or no format matches.
    pub fn open(mut input: Input, options: &TraceOptions) -> Result<Trace, TapError> {
        let format = match &options.format {
            Some(name) => named(name)?,
            None => detect(&mut input)?,
        };
        Ok(Trace {
            format,
            path: input.path().into(),
            is_pipe: input.is_pipe(),
            strict: options.strict,
            opened: match format.read {
                FormatReader::Records(open) => Opened::Records(open(input)?),
                FormatReader::Recording => {
                    Opened::Recording(Box::new(Recording::open(input, options)?))
                }
            },
        })
    }

    /// True if its bytes can be read only once: those of a pipe.
    pub fn is_pipe(&self) -> bool {
        self.is_pipe
    }

    /// Its format.
    pub fn format(&self) -> &'static Format {
        self.format
    }

    /// What the file reports about its origin.
    pub fn provenance(&self) -> Provenance {
        match &self.opened {
            Opened::Records(_) => Provenance::default(),
            Opened::Recording(recording) => recording.provenance(),
        }
    }

    /// Its capabilities.
    pub fn capabilities(&self) -> Capabilities {
        match &self.opened {
            // `Replay` numbers requests, and derives both streams from the same rows.
            Opened::Records(reader) => capabilities(
                ROW_BY_ROW,
                match reader.knows_responses() {
                    true => Ok(()),
                    false => Err("the trace does not record when requests finished".into()),
                },
            ),
            Opened::Recording(recording) => recording.capabilities(ROW_BY_ROW),
        }
    }

    /// The stream or relation with all of its rows.
    pub fn content(&self) -> Declaration {
        match &self.opened {
            Opened::Records(_) => recording(),
            Opened::Recording(recording) => recording.stored.declaration.clone(),
        }
    }

    /// See [`Tap::responses_assumed`].
    pub fn responses_assumed(&self) -> bool {
        match &self.opened {
            Opened::Records(reader) => !reader.knows_responses(),
            Opened::Recording(recording) => recording.responses_assumed(),
        }
    }

    /// A tap that serves `demands`.
    ///
    /// # Errors
    /// If a recording lacks a column that a row of its stream must have.
    pub fn start(self, demands: &[Demand]) -> Result<Box<dyn Tap>, TapError> {
        Ok(match self.opened {
            Opened::Records(reader) => {
                let faults = Faults::new(&self.path, self.strict);
                Box::new(Replay::new(self.format.name, reader, faults, demands))
            }
            Opened::Recording(recording) => Box::new(recording.start(demands)?),
        })
    }
}
