//! The prompt on a terminal: the line editor, and its history in a file of the user.

use std::borrow::Cow;
use std::env;
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::rc::Rc;

use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::config::Configurer;
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{ColorMode, CompletionType, Config, Context, Editor, Helper};
use signal_hook::consts::SIGTERM;
use weir_query::syntax::split;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::{output, private};

use super::complete::complete;
use super::highlight::highlighted;
use super::names::KnownNames;
use super::session::{Next, PromptSession};

/// Maximum number of entries of the history; the oldest ones are removed.
const HISTORY_MAX: usize = 5_000;

/// What is printed before a statement.
const PROMPT: &str = "weir> ";

/// Words that are commands without a `\`, as other prompts have them.
const PLAIN_COMMANDS: [(&str, &str); 3] = [("exit", "\\q"), ("help", "\\?"), ("quit", "\\q")];

/// Reads and runs statements until Ctrl-D or `\q`.
///
/// # Errors
/// When the terminal cannot be read.
pub fn run(session: &mut PromptSession) -> Result<Ending, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    output::print(&format!(
        "weir {version}; \\? lists the commands, Ctrl-D leaves\n"
    ))?;
    let mut editor = editor().map_err(failed)?;
    let history = history();
    if let Some(path) = &history {
        // There is none at the first start.
        let _ = editor.load_history(path);
    }
    loop {
        editor.set_helper(Some(Assistant {
            names: session.names.clone(),
            files: FilenameCompleter::new(),
        }));
        let edited = session.edited.take().unwrap_or_default();
        let read = match !edited.is_empty() && is_complete(&edited) {
            true => output::print(&format!("{PROMPT}{edited}\n")).map(|()| Ok(edited))?,
            false => editor.readline_with_initial(PROMPT, (&edited, "")),
        };
        let line = match read {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(Ending::Done),
            Err(error) => return Err(failed(error)),
        };
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        remember(&mut editor, history.as_ref(), line);
        let next = run_text(session, line);
        if session.children.signal() == Some(SIGTERM) {
            return Ok(Ending::Signal(SIGTERM));
        }
        if next == Next::Leave {
            return Ok(Ending::Done);
        }
    }
}

/// Runs what was typed: a command, or statements. After an error the next one runs; after a signal
/// none does.
pub fn run_text(session: &mut PromptSession, text: &str) -> Next {
    let plain = PLAIN_COMMANDS.iter().find(|(word, _)| is_word(text, word));
    let text = plain.map_or(text, |(_, command)| command);
    if text.starts_with('\\') {
        return shown(session, |session| session.command(text));
    }
    for span in split(text).statements() {
        let next = shown(session, |session| session.statement(&text[span.range()]));
        if next == Next::Leave || matches!(next, Next::Ended(Ending::Signal(_))) {
            return next;
        }
    }
    Next::Read
}

/// Runs a statement, and prints its error.
fn shown(
    session: &mut PromptSession,
    run: impl FnOnce(&mut PromptSession) -> Result<Next, Failure>,
) -> Next {
    match run(session) {
        // The query has reported its errors, and Ctrl-C is none.
        Ok(Next::Ended(Ending::Signal(number))) if number > SIGTERM || number == 9 => {
            output::notice(format_args!("weir: the query was ended by signal {number}"));
            Next::Read
        }
        Ok(next) => next,
        Err(failure) => Next::Ended(session.report(&failure)),
    }
}

/// Whether a text is this word alone.
fn is_word(text: &str, word: &str) -> bool {
    text.trim_end_matches([';', ' ']).eq_ignore_ascii_case(word)
}

fn failed(error: ReadlineError) -> Failure {
    Failure::world(format_args!("the terminal: {error}"))
}

type PromptEditor = Editor<Assistant, FileHistory>;

fn editor() -> rustyline::Result<PromptEditor> {
    let config = Config::builder()
        .max_history_size(HISTORY_MAX)?
        .history_ignore_dups(true)?
        .history_ignore_space(true)
        .completion_type(CompletionType::List)
        .build();
    let mut editor = Editor::with_config(config)?;
    if env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        editor.set_color_mode(ColorMode::Disabled);
    }
    Ok(editor)
}

/// Adds a statement to the history, in the file at once.
fn remember(editor: &mut PromptEditor, history: Option<&PathBuf>, line: &str) {
    let added = editor.add_history_entry(line).unwrap_or(false);
    if let Some(path) = history.filter(|_| added)
        && let Err(error) = editor.append_history(path)
    {
        output::notice(format_args!("weir: {}: {error}", path.display()));
    }
}

/// The file of the history, which only its owner can read: `weir/history` in the user's directory
/// of states. `None` if there is no such directory or the file cannot be opened.
fn history() -> Option<PathBuf> {
    let named = |name| env::var_os(name).map(PathBuf::from);
    let states = named("XDG_STATE_HOME").filter(|path| path.is_absolute());
    let states = states.or_else(|| Some(named("HOME")?.join(".local/state")))?;
    let folder = states.join("weir");
    let path = folder.join("history");
    let opened = private::directory(&folder).and_then(|()| {
        let mut options = OpenOptions::new();
        private::open(options.append(true).create(true), &path)
    });
    match opened {
        Ok(_) => Some(path),
        Err(error) => {
            let path = path.display();
            output::notice(format_args!("weir: {path}: {error}; there is no history"));
            None
        }
    }
}

/// What the line editor asks for: completions, colours, and whether a statement is complete.
struct Assistant {
    names: Rc<KnownNames>,
    files: FilenameCompleter,
}

impl Helper for Assistant {}

impl Hinter for Assistant {
    type Hint = String;
}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let completion = complete(line, at, self.names.get());
        if completion.is_file {
            return self.files.complete_path(line, at);
        }
        let pair = |word: String| Pair {
            display: word.clone(),
            replacement: word,
        };
        let pairs = completion.words.into_iter().map(pair).collect();
        Ok((completion.start, pairs))
    }
}

impl Highlighter for Assistant {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        Cow::Owned(highlighted(line))
    }

    fn highlight_char(&self, _: &str, _: usize, kind: CmdKind) -> bool {
        kind != CmdKind::MoveCursor
    }
}

impl Validator for Assistant {
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        Ok(match is_complete(context.input()) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}

/// Whether Enter runs a text: it is a command, or its last statement ends with `;`.
fn is_complete(text: &str) -> bool {
    let is_plain = PLAIN_COMMANDS
        .iter()
        .any(|(word, _)| is_word(text.trim(), word));
    text.trim_start().starts_with('\\') || is_plain || split(text).open.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enter_runs_commands_and_statements_that_end_with_a_semicolon() {
        for text in [
            "",
            "  ",
            "\\d",
            " \\explain select 1",
            "quit",
            "select ';';",
            "a; -- b",
            "-- a",
        ] {
            assert!(is_complete(text), "{text}");
        }
        for text in ["select 1", "select ';'", "select 1 -- ;", "a; b", "/* a;"] {
            assert!(!is_complete(text), "{text}");
        }
    }
}
