//! [`PromptSession`]: the settings and definitions of a prompt, and the run of a statement.

use std::ffi::OsString;
use std::rc::Rc;
use std::time::Instant;

use weir_model::{Catalog, Field};
use weir_query::syntax::ast::Statement;
use weir_query::syntax::token::{Token, tokens, unquote};
use weir_query::syntax::{parse, split};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::question::QueryText;
use weir_runtime::source::{OpenSources, SourceOptions};
use weir_runtime::{output, quantity};

use super::child::{Children, STATEMENT_BYTES_MAX};
use super::command;
use super::names::{KnownNames, NamedSource};
use super::{PromptOptions, script};

/// Maximum number of definitions of a prompt.
const DEFINITIONS_MAX: usize = 1_000;

/// What follows a statement or a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next statement.
    Read,
    /// The next statement; the process of this one had this ending.
    Ended(Ending),
    /// The prompt is left.
    Leave,
}

/// A view or a stream of probes that was defined at the prompt.
pub struct Definition {
    /// Its name.
    pub name: String,
    /// `view` or `stream`.
    pub kind: &'static str,
    /// The statement.
    pub text: String,
    /// Its columns.
    columns: Vec<Field>,
}

/// A prompt or a script.
pub struct PromptSession {
    /// The options, as the commands have changed them.
    pub options: PromptOptions,
    /// The limit of a query's run.
    pub span: Option<String>,
    /// Whether the time of each statement is printed.
    pub is_timed: bool,
    /// Views and streams, in the order of their definition.
    pub definitions: Vec<Definition>,
    /// The last statement, for the editor.
    pub last: String,
    /// The text of an editor, for the next line.
    pub edited: Option<String>,
    /// Whether statements are typed on a terminal.
    pub is_interactive: bool,
    /// The processes of the statements.
    pub children: Children,
    /// How many scripts run, each within the previous one.
    pub depth: usize,
    /// The names that a statement can use.
    pub names: Rc<KnownNames>,
}

impl PromptSession {
    /// A session without definitions.
    ///
    /// # Errors
    /// When the signal handlers cannot be installed.
    pub fn new(options: PromptOptions, is_interactive: bool) -> Result<PromptSession, Failure> {
        let mut session = PromptSession {
            names: Rc::new(KnownNames::new(None)),
            span: options.source.span.map(quantity::span_text),
            options,
            is_timed: false,
            definitions: Vec::new(),
            last: String::new(),
            edited: None,
            is_interactive,
            children: Children::new()?,
            depth: 0,
        };
        session.sources_changed();
        Ok(session)
    }

    /// Prints a failure; the ending that it is.
    pub fn report(&self, failure: &Failure) -> Ending {
        failure.report(false);
        match failure {
            Failure::Words(_) => Ending::Refused,
            Failure::World(_) => Ending::Failed,
        }
    }

    /// Runs a statement without its `;`.
    ///
    /// # Errors
    /// When it is wrong, or cannot be started; the process of a query reports its errors itself.
    pub fn statement(&mut self, text: &str) -> Result<Next, Failure> {
        if text.len() > STATEMENT_BYTES_MAX {
            return Err(Failure::words(format_args!(
                "the statement has {} bytes; the maximum is {STATEMENT_BYTES_MAX} at the prompt, \
                 `weir query --file` runs longer ones",
                text.len()
            )));
        }
        self.last = text.to_owned();
        let words = first_words(text);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["explain", "analyze", ..] => self.explain(after(text, 2), true),
            ["explain", ..] => self.explain(after(text, 1), false),
            ["drop", kind @ ("view" | "stream"), ..] => self.drop_named(kind, text),
            ["create", "view"] if self.definitions_for(text).is_empty() => self.store(text),
            ["create", "view" | "stream"] => self.define(text),
            ["create", "or"] => self.store(text),
            _ => self.query(text),
        }
    }

    /// Runs a `\` command.
    ///
    /// # Errors
    /// When there is no such command, or its argument is wrong.
    pub fn command(&mut self, line: &str) -> Result<Next, Failure> {
        command::run(self, line)
    }

    /// Runs a script within this session.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn script(&mut self, path: &std::path::Path) -> Result<Next, Failure> {
        /// Maximum number of scripts, each within the previous one.
        const DEPTH_MAX: usize = 16;
        if self.depth == DEPTH_MAX {
            let message = format!("more than {DEPTH_MAX} scripts are within each other");
            return Err(Failure::words(message));
        }
        self.depth += 1;
        let ending = script::run_file(self, path);
        self.depth -= 1;
        Ok(Next::Ended(ending?))
    }

    fn query(&mut self, text: &str) -> Result<Next, Failure> {
        let mut options = self.source_options();
        if let Some(format) = &self.options.format {
            options.extend(["--format".into(), format.into()]);
        }
        options.extend(self.options.query_options.iter().cloned());
        self.run(&["query"], options, text)
    }

    fn explain(&mut self, text: &str, analyze: bool) -> Result<Next, Failure> {
        let mut options = self.source_options();
        if analyze {
            options.push("--analyze".into());
        }
        options.extend(self.options.explain_options.iter().cloned());
        self.run(&["explain"], options, text)
    }

    /// Prints the plan of a query.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn explain_query(&mut self, text: &str) -> Result<Next, Failure> {
        self.explain(text, false)
    }

    /// The options of the sources, as commands that run queries parse them.
    fn source_options(&self) -> Vec<OsString> {
        let mut options: Vec<OsString> = Vec::new();
        match &self.options.monitor {
            Some(monitor) => options.extend(["--monitor".into(), monitor.into()]),
            None => {
                let from = self.options.source.from.iter();
                options.extend(from.flat_map(|name| ["--from".into(), name.into()]));
            }
        }
        if let Some(span) = &self.span {
            options.extend(["--for".into(), span.into()]);
        }
        options
    }

    fn run(
        &mut self,
        command: &[&str],
        options: Vec<OsString>,
        text: &str,
    ) -> Result<Next, Failure> {
        let definitions = self.definitions_for(text);
        if self.is_interactive {
            self.children.begin();
        } else if let Some(number) = self.children.signal() {
            return Ok(Next::Ended(Ending::Signal(number)));
        }
        let started = Instant::now();
        let ending = self
            .children
            .run(command, options, &definitions, Some(text))?;
        if self.is_timed {
            output::notice(format_args!("Time: {:.3?}", started.elapsed()));
        }
        Ok(Next::Ended(ending))
    }

    /// The definitions that a statement names, also through others, in their order.
    fn definitions_for(&self, text: &str) -> String {
        let mut needed = vec![false; self.definitions.len()];
        let mut named = words(text);
        for (at, definition) in self.definitions.iter().enumerate().rev() {
            if named
                .iter()
                .any(|word| word.eq_ignore_ascii_case(&definition.name))
            {
                needed[at] = true;
                named.extend(words(&definition.text));
            }
        }
        let texts = self.definitions.iter().zip(needed);
        let texts = texts.filter(|(_, needed)| *needed);
        texts.map(|(d, _)| format!("{}\n;\n", d.text)).collect()
    }

    /// Adds the definitions of a file.
    ///
    /// # Errors
    /// Its errors.
    pub fn define_all(&mut self, file: QueryText) -> Result<(), Failure> {
        file.define_streams(&self.options.source)?;
        let statements: Vec<_> = split(&file.text).statements().collect();
        statements.into_iter().try_for_each(|span| {
            self.define(&file.text[span.range()])?;
            Ok(())
        })
    }

    /// Changes the stored views.
    fn store(&mut self, text: &str) -> Result<Next, Failure> {
        let next = self.query(text)?;
        self.forget_names();
        Ok(next)
    }

    /// Adds a stream, or a view that reads one, after a check.
    fn define(&mut self, text: &str) -> Result<Next, Failure> {
        let parsed = parse(text);
        if !parsed.diagnostics.is_empty() {
            return Err(QueryText::new(text).failure(&parsed.diagnostics));
        }
        let (name, kind) = match parsed.tree.first() {
            Some(Statement::View(view)) => (view.name.value.clone(), "view"),
            Some(Statement::Stream(stream)) => (stream.name.value.clone(), "stream"),
            _ => return self.query(text),
        };
        let is_same = |known: &Definition| known.name.eq_ignore_ascii_case(&name);
        if let Some(known) = self.definitions.iter().find(|known| is_same(known)) {
            return Err(Failure::words(format_args!(
                "the {} `{name}` already exists; DROP {} {name} removes it",
                known.kind,
                known.kind.to_uppercase()
            )));
        }
        if self.definitions.len() == DEFINITIONS_MAX {
            let message = format!("more than {DEFINITIONS_MAX} definitions; DROP VIEW removes one");
            return Err(Failure::words(message));
        }
        let columns = self.columns_of(&name, text)?;
        if self.is_interactive {
            output::print(&format!("CREATE {}\n", kind.to_uppercase()))?;
        }
        let text = text.to_owned();
        self.definitions.push(Definition {
            name,
            kind,
            text,
            columns,
        });
        self.definitions_changed();
        Ok(Next::Ended(Ending::Done))
    }

    /// The columns of what a statement defines.
    fn columns_of(&self, name: &str, text: &str) -> Result<Vec<Field>, Failure> {
        let query = format!("{text}\n; select * from {}", super::complete::spelled(name));
        let before = QueryText::new(self.definitions_for(text));
        let source = &self.options.source;
        if self.options.monitor.is_none() {
            before.define_streams(source)?;
        }
        let question = QueryText::new(query).after(before)?;
        let checked = match self.options.monitor {
            Some(_) => question.compile(&Catalog::builtin(), true)?,
            None => question.compile_over(source)?,
        };
        Ok(checked.plan.schema.fields.clone())
    }

    /// `DROP VIEW [IF EXISTS] name`
    fn drop_named(&mut self, kind: &str, text: &str) -> Result<Next, Failure> {
        let mut names = words(text).into_iter().skip(2);
        let mut name = names.next();
        let if_exists = name
            .as_deref()
            .is_some_and(|w| w.eq_ignore_ascii_case("if"));
        if if_exists {
            name = names.nth(1);
        }
        let Some(name) = name.filter(|_| names.next().is_none()) else {
            let usage = format!("use DROP {} [IF EXISTS] name", kind.to_uppercase());
            return Err(Failure::words(usage));
        };
        let is_named = |d: &Definition| d.kind == kind && d.name.eq_ignore_ascii_case(&name);
        let Some(at) = self.definitions.iter().position(is_named) else {
            // It may be a statement of the language itself, on a view that is stored elsewhere.
            if parse(text).diagnostics.is_empty() {
                return self.store(text);
            }
            return match if_exists {
                true => Ok(Next::Ended(Ending::Done)),
                false => Err(Failure::words(format_args!(
                    "there is no {kind} `{name}` of this prompt; \\dv lists them"
                ))),
            };
        };
        let names_it = |d: &&Definition| {
            let mut words = words(&d.text).into_iter();
            words.any(|word| word.eq_ignore_ascii_case(&name))
        };
        if let Some(user) = self.definitions[at + 1..].iter().find(names_it) {
            return Err(Failure::words(format_args!(
                "the {} `{}` reads `{name}`; drop it first",
                user.kind, user.name
            )));
        }
        self.definitions.remove(at);
        self.definitions_changed();
        if self.is_interactive {
            output::print(&format!("DROP {}\n", kind.to_uppercase()))?;
        }
        Ok(Next::Ended(Ending::Done))
    }

    /// Replaces the sources of the next statements.
    pub fn read_from(&mut self, from: Vec<String>) {
        self.options.monitor = None;
        self.options.source.from = from;
        self.sources_changed();
    }

    /// Runs the next statements at a monitor, or on this host.
    pub fn connect(&mut self, monitor: Option<String>) {
        self.options.monitor = monitor;
        self.options.source.from = SourceOptions::default().from;
        self.sources_changed();
    }

    fn sources_changed(&mut self) {
        self.options.source.opened = OpenSources::default();
        self.forget_names();
    }

    /// The names are gathered again when they are needed.
    fn forget_names(&mut self) {
        let source = Some(self.options.source.clone());
        let source = source.filter(|_| self.options.monitor.is_none());
        self.names = Rc::new(KnownNames::new(source));
        self.definitions_changed();
    }

    /// The definitions are other ones.
    fn definitions_changed(&mut self) {
        let defined = self.definitions.iter().map(|d| NamedSource {
            name: d.name.clone(),
            kind: d.kind,
            doc: "defined at this prompt".to_owned(),
            columns: d.columns.clone(),
        });
        self.names = Rc::new(self.names.with(defined.collect()));
    }
}

/// The words and quoted names of a text.
fn words(text: &str) -> Vec<String> {
    let (lexemes, _) = tokens(text, 0, text.len());
    let word = |lexeme: &weir_query::syntax::token::Lexeme| {
        let word = &text[lexeme.span.range()];
        match lexeme.token {
            Token::Word => Some(word.to_owned()),
            Token::QuotedWord => Some(unquote(word)),
            _ => None,
        }
    };
    lexemes.iter().filter_map(word).collect()
}

/// The words at the start of a text, lower case, at most two.
fn first_words(text: &str) -> Vec<String> {
    let (lexemes, _) = tokens(text, 0, text.len());
    let words = lexemes.iter().take_while(|l| l.token == Token::Word);
    let words = words.map(|l| text[l.span.range()].to_lowercase());
    words.take(2).collect()
}

/// The text after so many tokens.
fn after(text: &str, count: usize) -> &str {
    let (lexemes, _) = tokens(text, 0, text.len());
    let end = lexemes.get(count).map_or(text.len(), |l| l.span.start);
    &text[end..]
}
