//! `weir sql`: a prompt that reads CQL statements and `\` commands, from a terminal or a script.
//!
//! | module | is |
//! | --- | --- |
//! | [`session`] | the settings and definitions of a prompt, and the run of a statement |
//! | [`command`] | the `\` commands |
//! | [`child`] | a query in a process of its own, and the signals meanwhile |
//! | [`names`] | the streams, columns and functions that a statement can name |
//! | [`complete`] | the completions of a word |
//! | [`highlight`] | the colours of a statement |
//! | [`terminal`] | the line editor and its history |
//! | [`script`] | statements from a file or a pipe |
//!
//! Each query runs in a process of its own, `weir query`: it attaches its probes, drops its
//! privileges and ends with all that it holds, and the prompt remains.

mod child;
mod command;
mod complete;
mod highlight;
mod names;
mod script;
mod session;
mod terminal;

use std::ffi::OsString;
use std::io::{IsTerminal, stdin, stdout};
use std::path::PathBuf;

use weir_runtime::failure::{Ending, Failure};
use weir_runtime::question::QueryText;
use weir_runtime::source::SourceOptions;
use weir_tap::source::{STANDARD_INPUT, SourceName};

use session::PromptSession;

/// Options of a prompt.
pub struct PromptOptions {
    /// The sources of the queries.
    pub source: SourceOptions,
    /// The address of the monitor that runs the queries; otherwise this host does.
    pub monitor: Option<String>,
    /// The output format; otherwise that of `weir query`.
    pub format: Option<String>,
    /// The other options, as `weir query` parses them.
    pub query_options: Vec<OsString>,
    /// The other options, as `weir explain` parses them.
    pub explain_options: Vec<OsString>,
    /// The other options, as `weir fleet queries` parses them.
    pub fleet_options: Vec<OsString>,
    /// Definitions of streams and views.
    pub define: Vec<PathBuf>,
    /// The script to run instead of a prompt.
    pub file: Option<PathBuf>,
}

/// Whether the user can type at a prompt: standard input and output are a terminal.
pub fn is_interactive() -> bool {
    stdin().is_terminal() && stdout().is_terminal()
}

/// Runs the statements of a script, of standard input, or those that are typed on a terminal. A
/// script ends with the first statement that fails, with its ending.
///
/// # Errors
/// When a file cannot be read, or the definitions are wrong.
pub fn run(options: PromptOptions) -> Result<Ending, Failure> {
    let is_input = |from: &String| SourceName::new(from).is(&STANDARD_INPUT);
    if options.source.from.iter().any(is_input) {
        return Err(Failure::words(
            "--from -: statements are read from standard input; use `weir query --from -`",
        ));
    }
    let file = options.file.clone();
    let is_interactive = file.is_none() && is_interactive();
    let definitions = options.define.clone();
    let mut session = PromptSession::new(options, is_interactive)?;
    for path in definitions {
        session.define_all(QueryText::read(&path)?)?;
    }
    match file {
        Some(path) => script::run_file(&mut session, &path),
        None if is_interactive => terminal::run(&mut session),
        None => script::run_lines(&mut session, stdin().lock(), "standard input"),
    }
}
