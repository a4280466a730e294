//! [`Trace`]: a trace that was opened, before it is known what of it is wanted.

use std::path::PathBuf;

use weir_model::Demand;

use super::recording::Recording;
use super::{Faults, Format, Input, Read, Reader, Replay, SPOOL_BYTES_MAX, detect, named};
use crate::{Tap, TapError};

/// How to read a trace.
#[derive(Clone, Debug)]
pub struct Options {
    /// Stop at the first bad record instead of counting it.
    pub strict: bool,
    /// The format's name, where the user knows better than the first bytes.
    pub format: Option<String>,
    /// How much of a recording that comes through a pipe is copied to a temporary file.
    pub spool_bytes_max: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            strict: false,
            format: None,
            spool_bytes_max: SPOOL_BYTES_MAX,
        }
    }
}

/// What a trace can do, known before it is read.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// Whether requests are paired with their responses: each request has a number that no other
    /// has, and `IO` has for each response in `IOstream` the time of its request. Why not, as a
    /// sentence without full stop.
    pub paired: Result<(), String>,
    /// See [`Tap::responses_assumed`].
    pub responses_assumed: bool,
}

/// A trace that was opened. Its format is known and its first bytes are read, no more.
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
    /// When the input cannot be read, or no format knows it.
    pub fn open(mut input: Input, options: &Options) -> Result<Trace, TapError> {
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
                Read::Records(open) => Opened::Records(open(input)?),
                Read::Recording => Opened::Recording(Box::new(Recording::open(input, options)?)),
            },
        })
    }

    /// True if its bytes are delivered once: those of a pipe.
    pub fn is_pipe(&self) -> bool {
        self.is_pipe
    }

    /// What it can do.
    pub fn capabilities(&self) -> Capabilities {
        match &self.opened {
            Opened::Records(reader) => Capabilities {
                // `Replay` numbers requests itself, and makes both streams of the same rows.
                paired: match reader.knows_responses() {
                    true => Ok(()),
                    false => Err("the trace does not record when requests finished".into()),
                },
                responses_assumed: !reader.knows_responses(),
            },
            Opened::Recording(recording) => recording.capabilities(),
        }
    }

    /// A tap that serves `demands`.
    ///
    /// # Errors
    /// When a recording lacks what every recording has.
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
