//! The `\` commands: one list for the prompt, its help and its completion.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use weir_model::suggest::nearest;
use weir_query::function::documented;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::{output, quantity};
use weir_sink::SINKS;
use weir_sink::text::aligned;

use super::names::NamedSource;
use super::session::{Next, PromptSession};

/// What the argument of a command is, for its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// Nothing that can be completed.
    Other,
    /// A stream, relation or view.
    Source,
    /// A function.
    Function,
    /// A file.
    File,
    /// An output format.
    Format,
    /// `on` or `off`.
    Switch,
    /// A query.
    Query,
}

/// A command of the prompt.
pub struct PromptCommand {
    /// Its names, the first one for the help.
    pub names: &'static [&'static str],
    /// Its arguments, for the help.
    pub usage: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// What its argument is.
    pub argument: Argument,
    run: fn(&mut PromptSession, &str) -> Result<Next, Failure>,
}

const fn command(
    names: &'static [&'static str],
    usage: &'static str,
    doc: &'static str,
    argument: Argument,
    run: fn(&mut PromptSession, &str) -> Result<Next, Failure>,
) -> PromptCommand {
    PromptCommand {
        names,
        usage,
        doc,
        argument,
        run,
    }
}

/// Every command, in the order of the help.
pub static COMMANDS: &[PromptCommand] = &[
    command(
        &["d"],
        "[NAME]",
        "list streams, relations and views, or the columns of one",
        Argument::Source,
        describe,
    ),
    command(
        &["dv"],
        "",
        "list the views and streams defined at this prompt",
        Argument::Other,
        list_definitions,
    ),
    command(
        &["df"],
        "[PATTERN]",
        "list functions, or describe one; * in a pattern is any text",
        Argument::Function,
        list_functions,
    ),
    command(
        &["dq"],
        "",
        "list the queries of the monitor",
        Argument::Other,
        list_queries,
    ),
    command(
        &["explain"],
        "QUERY",
        "print the plan of a query, as EXPLAIN QUERY; does",
        Argument::Query,
        explain,
    ),
    command(
        &["format"],
        "[FORMAT]",
        "set the output format; `default` is that of `weir query`",
        Argument::Format,
        set_format,
    ),
    command(
        &["for"],
        "[DURATION]",
        "end each query after this time, such as 10s, or `off`",
        Argument::Other,
        set_span,
    ),
    command(
        &["timing"],
        "[on|off]",
        "print the time that each statement takes",
        Argument::Switch,
        set_timing,
    ),
    command(
        &["from"],
        "[SOURCE ..]",
        "read these sources: live, files, qemu:VM, tapdisk:PATH",
        Argument::File,
        set_sources,
    ),
    command(
        &["connect"],
        "[ADDRESS]",
        "run queries at this monitor, or with `off` on this host",
        Argument::Other,
        connect,
    ),
    command(
        &["e", "edit"],
        "",
        "edit the last statement in EDITOR, run it if it ends with ;",
        Argument::Other,
        edit,
    ),
    command(
        &["i", "include"],
        "FILE",
        "run the statements of a file",
        Argument::File,
        include,
    ),
    command(
        &["?", "help", "h"],
        "",
        "print this list",
        Argument::Other,
        help,
    ),
    command(&["q", "quit"], "", "leave", Argument::Other, quit),
];

/// The command called `name`, without the `\`.
pub fn find(name: &str) -> Option<&'static PromptCommand> {
    COMMANDS
        .iter()
        .find(|command| command.names.contains(&name))
}

/// Runs a line that begins with `\`.
///
/// # Errors
/// When there is no such command, or its argument is wrong.
pub fn run(session: &mut PromptSession, line: &str) -> Result<Next, Failure> {
    let line = line.trim().trim_start_matches('\\');
    let (name, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let name = name.trim_end_matches(';');
    let argument = argument.trim().trim_end_matches(';').trim_end();
    let Some(command) = find(name) else {
        let names = COMMANDS.iter().flat_map(|command| command.names);
        let near = nearest(name, names.copied());
        let near = near.map_or(String::new(), |near| format!("did you mean \\{near}? "));
        return Err(Failure::words(format_args!(
            "unknown command \\{name}; {near}\\? lists the commands"
        )));
    };
    if command.usage.is_empty() && !argument.is_empty() {
        return Err(Failure::words(format_args!("\\{name}: has no argument")));
    }
    (command.run)(session, argument)
}

/// The help of the prompt.
pub fn help_text() -> String {
    let row = |command: &PromptCommand| {
        let usage = format!("\\{} {}", command.names[0], command.usage);
        vec![usage.trim_end().to_owned(), command.doc.to_owned()]
    };
    let rows: Vec<_> = COMMANDS.iter().map(row).collect();
    format!(
        "A statement ends with ;. It is a query, EXPLAIN [ANALYZE] query, CREATE or DROP\n\
         VIEW or STREAM.\n\
         Ctrl-C ends a query, Ctrl-D leaves, Tab completes, Ctrl-R searches the history.\n\
         \n{}",
        aligned(&rows)
    )
}

fn help(_: &mut PromptSession, _: &str) -> Result<Next, Failure> {
    output::print(&help_text())?;
    Ok(Next::Read)
}

fn quit(_: &mut PromptSession, _: &str) -> Result<Next, Failure> {
    Ok(Next::Leave)
}

fn describe(session: &mut PromptSession, name: &str) -> Result<Next, Failure> {
    let known = session.names.clone();
    let names = known.get();
    if name.is_empty() {
        let row = |s: &NamedSource| vec![s.name.clone(), s.kind.to_owned(), s.doc.clone()];
        let rows: Vec<_> = names.sources.iter().map(row).collect();
        output::print(&aligned(&rows))?;
        return Ok(Next::Read);
    }
    let name = name.trim_matches('`');
    let Some(found) = names.find(name) else {
        let known = names.sources.iter().map(|s| s.name.as_str());
        let near = nearest(name, known).map_or(String::new(), |n| format!("did you mean `{n}`? "));
        return Err(Failure::words(format_args!(
            "unknown stream, relation or view `{name}`; {near}\\d lists them"
        )));
    };
    let header = ["COLUMN", "TYPE", "UNIT", "DESCRIPTION"].map(str::to_owned);
    let columns = found.columns.iter().map(|field| {
        vec![
            field.name.clone(),
            field.ty.name().to_owned(),
            field.unit.symbol().to_owned(),
            field.doc.clone(),
        ]
    });
    let rows: Vec<_> = std::iter::once(header.to_vec()).chain(columns).collect();
    output::print(&format!(
        "{} ({}): {}\n\n{}",
        found.name,
        found.kind,
        found.doc,
        aligned(&rows)
    ))?;
    Ok(Next::Read)
}

fn list_definitions(session: &mut PromptSession, _: &str) -> Result<Next, Failure> {
    let texts = session.definitions.iter().map(|d| format!("{};\n", d.text));
    let texts: String = texts.collect();
    match texts.is_empty() {
        true => output::notice("weir: no views; CREATE VIEW name AS SELECT .. defines one"),
        false => output::print(&texts)?,
    }
    Ok(Next::Read)
}

fn list_functions(session: &mut PromptSession, pattern: &str) -> Result<Next, Failure> {
    let is_name = |doc: &weir_query::function::FunctionDoc| {
        let mut names = std::iter::once(&doc.name).chain(doc.aliases);
        names.any(|name| name.eq_ignore_ascii_case(pattern))
    };
    if documented().any(|(_, doc)| is_name(doc)) {
        let ending = session
            .children
            .run(&["functions"], vec![pattern.into()], "", None)?;
        return Ok(Next::Ended(ending));
    }
    let found = documented().filter(|(_, doc)| matches(pattern, doc.name));
    let row = |(kind, doc): (&str, &weir_query::function::FunctionDoc)| {
        vec![doc.signature.into(), kind.into(), doc.summary.into()]
    };
    let rows: Vec<_> = found.map(row).collect();
    if rows.is_empty() {
        let near = nearest(pattern, documented().map(|(_, doc)| doc.name));
        let near = near.map_or(String::new(), |near| format!("did you mean `{near}`? "));
        return Err(Failure::words(format_args!(
            "no function matches `{pattern}`; {near}\\df lists them"
        )));
    }
    output::print(&aligned(&rows))?;
    Ok(Next::Read)
}

/// Whether a name matches a pattern, in which `*` is any text. The empty pattern is `*`.
fn matches(pattern: &str, name: &str) -> bool {
    let pattern = pattern.to_lowercase();
    let parts: Vec<&str> = pattern.split('*').collect();
    let (Some((first, rest)), false) = (parts.split_first(), pattern.is_empty()) else {
        return true;
    };
    let Some((last, middle)) = rest.split_last() else {
        return name == *first;
    };
    let Some(mut left) = name.strip_prefix(first) else {
        return false;
    };
    for part in middle {
        let Some(at) = left.find(part) else {
            return false;
        };
        left = &left[at + part.len()..];
    }
    left.ends_with(last)
}

fn list_queries(session: &mut PromptSession, _: &str) -> Result<Next, Failure> {
    let Some(monitor) = &session.options.monitor else {
        return Err(Failure::words(
            "\\dq lists the queries of a monitor; \\connect ADDRESS chooses one",
        ));
    };
    let mut options = vec!["--monitor".into(), monitor.into()];
    options.extend(session.options.fleet_options.iter().cloned());
    let children = &session.children;
    let ending = children.run(&["fleet", "queries"], options, "", None)?;
    Ok(Next::Ended(ending))
}

fn explain(session: &mut PromptSession, query: &str) -> Result<Next, Failure> {
    match query.is_empty() {
        true => Err(Failure::words("\\explain: the query is missing")),
        false => session.explain_query(query),
    }
}

fn set_format(session: &mut PromptSession, name: &str) -> Result<Next, Failure> {
    match name {
        "" => {
            let format = session.options.format.as_deref().unwrap_or("default");
            output::print(&format!("{format}\n"))?;
        }
        "default" => session.options.format = None,
        name if weir_sink::format(name).is_some() => {
            session.options.format = Some(name.to_owned());
        }
        name => {
            let names: Vec<&str> = SINKS.iter().map(|format| format.name).collect();
            return Err(Failure::words(format_args!(
                "unknown format `{name}`; the formats are default, {}",
                names.join(", ")
            )));
        }
    }
    Ok(Next::Read)
}

fn set_span(session: &mut PromptSession, text: &str) -> Result<Next, Failure> {
    match text {
        "" => output::print(&format!("{}\n", session.span.as_deref().unwrap_or("off")))?,
        "off" => session.span = None,
        text => {
            let wrong = |why| Failure::words(format_args!("\\for {text}: {why}"));
            quantity::span(text).map_err(wrong)?;
            session.span = Some(text.to_owned());
        }
    }
    Ok(Next::Read)
}

fn set_timing(session: &mut PromptSession, switch: &str) -> Result<Next, Failure> {
    session.is_timed = match switch {
        "" => !session.is_timed,
        "on" => true,
        "off" => false,
        other => {
            let message = format!("\\timing {other}: use on or off");
            return Err(Failure::words(message));
        }
    };
    if switch.is_empty() {
        let state = if session.is_timed { "on" } else { "off" };
        output::notice(format_args!("Timing is {state}."));
    }
    Ok(Next::Read)
}

fn set_sources(session: &mut PromptSession, names: &str) -> Result<Next, Failure> {
    if names.is_empty() {
        let from = session.options.source.from.join(" ");
        output::print(&format!("{from}\n"))?;
        return Ok(Next::Read);
    }
    let names: Vec<String> = names.split_whitespace().map(str::to_owned).collect();
    if names.iter().any(|name| name == "-") {
        let message = "\\from -: statements are read from standard input";
        return Err(Failure::words(message));
    }
    session.read_from(names);
    Ok(Next::Read)
}

fn connect(session: &mut PromptSession, address: &str) -> Result<Next, Failure> {
    match address {
        "" => {
            let monitor = session.options.monitor.as_deref().unwrap_or("off");
            output::print(&format!("{monitor}\n"))?;
        }
        "off" => session.connect(None),
        address => session.connect(Some(address.to_owned())),
    }
    Ok(Next::Read)
}

fn include(session: &mut PromptSession, path: &str) -> Result<Next, Failure> {
    match path {
        "" => Err(Failure::words("\\i: the file is missing")),
        path => session.script(Path::new(path)),
    }
}

/// Opens the last statement in an editor. What is saved runs if it ends with `;`, otherwise it is
/// the start of the next line.
fn edit(session: &mut PromptSession, _: &str) -> Result<Next, Failure> {
    if !session.is_interactive {
        return Err(Failure::words("\\e: needs a terminal"));
    }
    let file = EditedFile::new(&session.last)?;
    let variable = |name| std::env::var(name).ok().filter(|v| !v.trim().is_empty());
    let editor = variable("VISUAL").or_else(|| variable("EDITOR"));
    let editor = editor.unwrap_or_else(|| "vi".to_owned());
    let mut shell = Command::new("sh");
    // The variable may have options.
    shell
        .args(["-c", &format!("{editor} \"$1\""), "sh"])
        .arg(&file.0);
    let ending = session.children.wait(&mut shell)?;
    if ending != Ending::Done {
        let message = format!("`{editor}` failed; EDITOR names an editor");
        return Err(Failure::world(message));
    }
    let text = std::fs::read_to_string(&file.0);
    let text = text.map_err(|e| Failure::world(format_args!("{}: {e}", file.0.display())))?;
    session.edited = Some(text.trim().to_owned());
    Ok(Next::Read)
}

/// A file for an editor, which is removed at the end.
struct EditedFile(PathBuf);

impl EditedFile {
    fn new(text: &str) -> Result<EditedFile, Failure> {
        let folder = std::env::temp_dir();
        let path = folder.join(format!("weir-{}.sql", std::process::id()));
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o600);
        let failed = |e| Failure::world(format_args!("{}: {e}", path.display()));
        let mut file = options.open(&path).map_err(failed)?;
        let text = match text.is_empty() {
            true => String::new(),
            false => format!("{text};\n"),
        };
        file.write_all(text.as_bytes()).map_err(failed)?;
        Ok(EditedFile(path))
    }
}

impl Drop for EditedFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_whole_names() {
        for (pattern, name, expected) in [
            ("", "avg", true),
            ("avg", "avg", true),
            ("AVG", "avg", true),
            ("av", "avg", false),
            ("av*", "avg", true),
            ("*g", "avg", true),
            ("*v*", "avg", true),
            ("*x*", "avg", false),
            ("a*g", "avg", true),
            ("a*b*", "a_b", true),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn every_command_is_in_the_help_within_80_columns() {
        let help = help_text();
        for command in COMMANDS {
            let usage = format!("\n\\{} ", command.names[0]);
            assert!(help.contains(&usage), "{usage} in {help}");
        }
        let long: Vec<&str> = help.lines().filter(|line| line.len() > 80).collect();
        assert!(long.is_empty(), "{long:?}");
        let names: Vec<&&str> = COMMANDS.iter().flat_map(|c| c.names).collect();
        let mut different = names.clone();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), names.len());
    }
}
