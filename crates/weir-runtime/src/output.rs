//! Destination and format of results: `--format`, `-o` and related options.

use std::fmt::Display;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use weir_model::Shape;
use weir_sink::last::FinalRelation;
use weir_sink::{ResultSchema, Sink, Target, TerminalTarget, text};

use crate::failure::Failure;
use crate::log;
use crate::run_loop::ProgressKind;

/// Options of every command that prints results.
#[derive(Debug, Clone, Default)]
pub struct OutputOptions {
    /// Output format: on a terminal table, otherwise delta, unless the file's name ends in a format
    pub format: Option<String>,
    /// Write to this file
    pub output: Option<PathBuf>,
    /// Print only the content of the relation at the end, without the instants of insertions and
    /// retractions
    pub last: bool,
    /// Print plain numbers in tables, not 1.2 ms or 4.0 KiB
    pub raw: bool,
    /// Add the unit of each column to its name, except in tables, which print units
    pub units: bool,
}

impl OutputOptions {
    /// Opens the sink for an answer. `live`: the answer changes while it is displayed.
    ///
    /// # Errors
    /// When the file cannot be created, or the format does not suit the answer.
    pub fn open(&self, answer: ResultSchema, live: bool) -> Result<Box<dyn Sink>, Failure> {
        let format = weir_sink::format(self.format_name()).ok_or_else(|| {
            Failure::words(format_args!("unknown format `{}`", self.format_name()))
        })?;
        let target = match &self.output {
            Some(path) => file(path)?,
            None => standard_output(live)?,
        };
        let answer = match self.units && format.name != "table" {
            true => answer.with_units(),
            false => answer,
        };
        Ok(match self.last && format.name != "table" {
            true => Box::new(FinalRelation::open(format, answer, target)?),
            false => (format.open)(answer, target)?,
        })
    }

    /// Whether nothing is printed of a relation but its final content. `live` as for
    /// [`OutputOptions::open`].
    pub fn is_final_only(&self, live: bool) -> bool {
        match self.format_name() {
            "table" => !(live && self.output.is_none() && std::io::stdout().is_terminal()),
            _ => self.last,
        }
    }

    /// What may be printed on standard error: nothing if rows are printed on the same terminal.
    pub fn progress(&self, shape: Shape) -> ProgressKind {
        let to_terminal = self.output.is_none() && std::io::stdout().is_terminal();
        let once = shape == Shape::Relation && (self.last || self.format_name() == "table");
        match to_terminal && !once {
            true => ProgressKind::Nothing,
            false => ProgressKind::Files,
        }
    }

    fn format_name(&self) -> &str {
        let extension = self.output.as_deref().and_then(Path::extension);
        let extension = extension.and_then(|e| e.to_str()).unwrap_or_default();
        match &self.format {
            Some(name) => name,
            None if weir_sink::format(extension).is_some() => extension,
            None if self.output.is_none() && std::io::stdout().is_terminal() => "table",
            None if self.last => "table",
            None => "delta",
        }
    }
}

/// A file as a target.
///
/// # Errors
/// When it cannot be created.
pub fn file(path: &Path) -> Result<Target, Failure> {
    let name = path.display().to_string();
    match File::create(path) {
        Ok(file) => Ok(Target::new(name, Box::new(file), None)),
        Err(error) => Err(Failure::world(format!("{name}: {error}"))),
    }
}

/// Checks that a file can be written, which an error at the end of a measurement would be too late
/// for. Its content is not changed.
///
/// # Errors
/// When it cannot be created or written.
pub fn writable(path: &Path) -> Result<(), Failure> {
    let existed = path.exists();
    let opened = File::options().append(true).create(true).open(path);
    let removed = opened.and_then(|_| match existed {
        true => Ok(()),
        false => std::fs::remove_file(path),
    });
    removed.map_err(|error| Failure::world(format!("{}: {error}", path.display())))
}

/// Rejects a file that exists already, unless `force`.
///
/// # Errors
/// When it exists.
pub fn never_overwrite(path: &Path, force: bool) -> Result<(), Failure> {
    let regular = std::fs::metadata(path).is_ok_and(|m| m.is_file());
    match regular && !force {
        true => Err(Failure::world(format!(
            "{}: already exists; --force overwrites it",
            path.display()
        ))),
        false => Ok(()),
    }
}

/// Rejects an output that would overwrite an input.
///
/// # Errors
/// When `output` is one of the `inputs`.
pub fn never_over(
    output: &Path,
    inputs: impl IntoIterator<Item = impl AsRef<Path>>,
) -> Result<(), Failure> {
    // A file that does not exist is not an input.
    let Ok(written) = output.canonicalize() else {
        return Ok(());
    };
    let mut inputs = inputs.into_iter();
    match inputs.any(|input| {
        input
            .as_ref()
            .canonicalize()
            .is_ok_and(|read| read == written)
    }) {
        true => Err(Failure::words(format!(
            "{}: is an input and cannot be the output; use another file",
            output.display()
        ))),
        false => Ok(()),
    }
}

/// Returns an error if standard output is closed: the answer would be lost.
///
/// # Errors
/// When it is closed.
pub fn never_nowhere() -> Result<(), Failure> {
    match weir_tap::streams::standard_output_was_closed() {
        true => Err(Failure::world(
            "standard output is closed; redirect it to a file or to /dev/null, or use -o FILE",
        )),
        false => Ok(()),
    }
}

/// Standard output as a target.
///
/// # Errors
/// When standard output is closed.
pub fn standard_output(live: bool) -> Result<Target, Failure> {
    never_nowhere()?;
    let size = || {
        let size = terminal_size::terminal_size();
        size.map_or((0, 0), |(w, h)| (w.0.into(), h.0.into()))
    };
    let screen = std::io::stdout()
        .is_terminal()
        .then_some(TerminalTarget { size, live });
    let stdout = Box::new(std::io::stdout());
    Ok(Target::new("standard output", stdout, screen))
}

/// Prints one line on standard error, control characters escaped: parts of it may originate from
/// other processes, hosts or files. Write errors are ignored. In a service it is a warning in its
/// log.
pub fn notice(line: impl Display) {
    let line = line.to_string();
    match log::is_open() {
        true => tracing::warn!("{}", without_program(&line)),
        false => print_error(&text::shown(&line)),
    }
}

/// Prints the reason of a failure like [`notice`]; in a service it is an error in its log.
pub fn fail(line: impl Display) {
    let line = line.to_string();
    match log::is_open() {
        true => tracing::error!("{}", without_program(&line)),
        false => print_error(&text::shown(&line)),
    }
}

/// The line without the name of the program, which a log does not repeat.
fn without_program(line: &str) -> &str {
    line.strip_prefix("weir: ").unwrap_or(line)
}

/// Prints a text of several lines on standard error like [`notice`]; line breaks are kept.
pub fn notice_lines(lines: impl Display) {
    print_error(&text::shown_lines(&lines.to_string()));
}

fn print_error(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Writes `text` to standard output; a closed pipe is not an error.
///
/// # Errors
/// When it cannot be written for another reason.
pub fn print(text: &str) -> Result<(), Failure> {
    never_nowhere()?;
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::world(format!("standard output: {e}")))
        }
        _ => Ok(()),
    }
}
