//! [`Failure`]: why a command failed, and its exit code.

use std::fmt::Display;
use std::process::ExitCode;

use weir_sink::SinkError;
use weir_tap::TapError;
use weir_wire::{Refusal, WireError};

use crate::{log, output};

/// The hint after the error of a user who has no permission to observe live I/O.
const NOT_PERMITTED_HINT: &str = "weir: `weir doctor` lists what is missing, -v prints the \
                                  kernel's message; --from FILE reads a recording";

/// The reason why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// A usage error: the command line or the query is wrong (exit code 2). The text is complete,
    /// excerpts of the query included.
    Words(String),
    /// A runtime error (exit code 1).
    World(anyhow::Error),
}

/// How a command that ran to its end has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Normally.
    Done,
    /// By a signal, after everything was flushed.
    Signal(i32),
    /// Normally, with a failure that was reported already.
    Failed,
    /// With the result that the query is wrong.
    Refused,
}

impl Failure {
    /// A usage error: the text names the option or query and the remedy.
    pub fn words(text: impl Display) -> Failure {
        Failure::Words(format!("weir: {text}"))
    }

    /// A runtime error: the text names the object and the remedy.
    pub fn world(text: impl Display) -> Failure {
        Failure::World(anyhow::anyhow!("{text}"))
    }

    /// The error as text.
    pub fn text(&self) -> String {
        match self {
            Failure::Words(text) => text.trim_end().to_owned(),
            Failure::World(error) => format!("{error:#}"),
        }
    }

    /// Prints the error on standard error, with `verbose` also the details that a tap adds for
    /// debugging.
    pub fn report(&self, verbose: bool) -> ExitCode {
        match self {
            Failure::Words(text) => {
                match log::is_open() {
                    true => text.lines().for_each(output::fail),
                    false => output::notice_lines(text.trim_end()),
                }
                ExitCode::from(2)
            }
            Failure::World(error) => {
                output::fail(format_args!("weir: {error:#}"));
                if let Some(TapError::NotPermitted { detail, .. }) = error.downcast_ref() {
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
    /// The ending of a service by a signal. Service managers stop services by SIGTERM: it is not a
    /// failure.
    pub fn of_service(signal: i32) -> Ending {
        match signal {
            signal_hook::consts::SIGTERM => Ending::Done,
            other => Ending::Signal(other),
        }
    }

    /// The exit code for the shell: 128 plus the signal number, as the shell does itself.
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
            // Diagnostics are complete texts.
            WireError::Refused(Refusal::Invalid(text)) => Failure::Words(text),
            WireError::Refused(Refusal::NotFound(_) | Refusal::AlreadyExists(_))
            | WireError::Address { .. }
            | WireError::Unprotected(_)
            | WireError::Option { .. } => Failure::words(error),
            error => Failure::World(error.into()),
        }
    }
}
