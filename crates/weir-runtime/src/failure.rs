//! [`Failure`]: why a command ends badly, and the exit code that says so.

use std::fmt::Display;
use std::process::ExitCode;

use weir_sink::SinkError;
use weir_tap::TapError;
use weir_wire::{Refusal, WireError};

use crate::{log, output};

/// What follows the error of a user who may not watch live I/O.
const NOT_PERMITTED_HINT: &str = "weir: `weir doctor` lists what is missing, -v prints the kernel's \
     own words; --from FILE reads a recording";

/// Why a command did not do what was asked.
#[derive(Debug)]
pub enum Failure {
    /// The command line or the query is wrong (exit code 2). The text is complete, pictures of a query
    /// included.
    Words(String),
    /// A runtime error (exit code 1).
    World(anyhow::Error),
}

/// How a command that did its work came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself.
    Done,
    /// By a signal, after everything was flushed.
    Signal(i32),
    /// By itself, with a failure that was reported already.
    Failed,
    /// With the answer that the query is wrong.
    Refused,
}

impl Failure {
    /// Words that are off: the text names them and the remedy.
    pub fn words(text: impl Display) -> Failure {
        Failure::Words(format!("weir: {text}"))
    }

    /// A failure of the world: the text names the thing and the remedy.
    pub fn world(text: impl Display) -> Failure {
        Failure::World(anyhow::anyhow!("{text}"))
    }

    /// What went wrong, in words.
    pub fn text(&self) -> String {
        match self {
            Failure::Words(text) => text.trim_end().to_owned(),
            Failure::World(error) => format!("{error:#}"),
        }
    }

    /// Prints it on standard error, with `verbose` also what a tap adds for those who look into it.
    pub fn report(&self, verbose: bool) -> ExitCode {
        match self {
            Failure::Words(text) => {
                match log::is_open() {
                    true => text.lines().for_each(output::fail),
                    false => output::say_lines(text.trim_end()),
                }
                ExitCode::from(2)
            }
            Failure::World(error) => {
                output::fail(format_args!("weir: {error:#}"));
                if let Some(TapError::NotPermitted { detail }) = error.downcast_ref() {
                    output::fail(match verbose {
                        true => detail.as_str(),
                        false => NOT_PERMITTED_HINT,
                    });
                }
                ExitCode::from(1)
            }
        }
    }
}

impl Ending {
    /// How a service ends on a signal: SIGTERM is how service managers stop one, which is no
    /// failure.
    pub fn of_service(signal: i32) -> Ending {
        match signal {
            signal_hook::consts::SIGTERM => Ending::Done,
            other => Ending::Signal(other),
        }
    }

    /// What the shell is told: 128 and the signal's number, as it does itself.
    pub fn code(self) -> ExitCode {
        match self {
            Ending::Done => ExitCode::SUCCESS,
            Ending::Failed => ExitCode::from(1),
            Ending::Refused => ExitCode::from(2),
            Ending::Signal(number) => ExitCode::from(128 + number as u8),
        }
    }
}

impl From<TapError> for Failure {
    fn from(error: TapError) -> Failure {
        match error {
            TapError::NoSuchFormat { .. } => Failure::words(error),
            error => Failure::World(error.into()),
        }
    }
}

impl From<SinkError> for Failure {
    fn from(error: SinkError) -> Failure {
        match error {
            SinkError::Unsuited { .. } => Failure::words(error),
            error => Failure::World(error.into()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::World(error.into())
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Failure {
        match error {
            // Diagnostics are complete pictures.
            WireError::Refused(Refusal::Invalid(text)) => Failure::Words(text),
            WireError::Refused(Refusal::NotFound(_) | Refusal::AlreadyExists(_))
            | WireError::Address { .. }
            | WireError::Unprotected(_)
            | WireError::Option { .. } => Failure::words(error),
            error => Failure::World(error.into()),
        }
    }
}
