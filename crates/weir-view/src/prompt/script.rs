//! Statements from a file or a pipe: each runs when it is complete, the first failure ends the
//! script.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use weir_query::syntax::{TEXT_BYTES_MAX, split};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;

use super::session::{Next, PromptSession};

/// Runs the statements of a file; `-` is standard input.
///
/// # Errors
/// When it cannot be read, or is not UTF-8.
pub fn run_file(session: &mut PromptSession, path: &Path) -> Result<Ending, Failure> {
    if path == Path::new("-") {
        return run_lines(session, std::io::stdin().lock(), "standard input");
    }
    let name = path.display().to_string();
    let file = File::open(path).map_err(|e| Failure::world(format!("{name}: {e}")))?;
    run_lines(session, BufReader::new(file), &name)
}

/// Runs the statements of a reader. The last one may lack its `;`.
///
/// # Errors
/// When it cannot be read, or is not UTF-8.
pub fn run_lines(
    session: &mut PromptSession,
    reader: impl BufRead,
    name: &str,
) -> Result<Ending, Failure> {
    let mut script = OpenScript {
        session,
        name,
        text: String::new(),
        first_line: 1,
        ending: Ending::Done,
    };
    for (at, line) in reader.lines().enumerate() {
        let line = line.map_err(|e| Failure::world(format!("{name}, line {}: {e}", at + 1)))?;
        if script.line(at + 1, &line)? == Next::Leave {
            return Ok(script.ending);
        }
    }
    let rest = std::mem::take(&mut script.text);
    script.statements(&format!("{rest};"))?;
    Ok(script.ending)
}

/// A script that is being read.
struct OpenScript<'a> {
    session: &'a mut PromptSession,
    name: &'a str,
    /// The lines that were read and did not run.
    text: String,
    /// The number of the first of them.
    first_line: usize,
    ending: Ending,
}

impl OpenScript<'_> {
    /// Reads a line, and runs what is complete with it.
    fn line(&mut self, number: usize, line: &str) -> Result<Next, Failure> {
        let is_open = split(&self.text).open.is_some();
        if !is_open && line.trim_start().starts_with('\\') {
            let ran = self.session.command(line.trim());
            return self.ended(number, ran);
        }
        if !is_open {
            self.text.clear();
            self.first_line = number;
        }
        self.text += line;
        self.text.push('\n');
        if self.text.len() > TEXT_BYTES_MAX {
            return Err(Failure::words(format_args!(
                "{}, line {}: the statement has more than {TEXT_BYTES_MAX} bytes",
                self.name, self.first_line
            )));
        }
        if !line.contains([';', '/']) {
            return Ok(Next::Read);
        }
        let text = std::mem::take(&mut self.text);
        let next = self.statements(&text)?;
        if let Some(open) = split(&text).open {
            self.first_line += text[..open.start].matches('\n').count();
            self.text = text[open.start..].to_owned();
        }
        Ok(next)
    }

    /// Runs the complete statements of a text.
    fn statements(&mut self, text: &str) -> Result<Next, Failure> {
        for span in split(text).complete {
            let line = self.first_line + text[..span.start].matches('\n').count();
            let ran = self.session.statement(&text[span.range()]);
            if self.ended(line, ran)? == Next::Leave {
                return Ok(Next::Leave);
            }
        }
        Ok(Next::Read)
    }

    /// What follows a statement or command that began at a line.
    fn ended(&mut self, line: usize, ran: Result<Next, Failure>) -> Result<Next, Failure> {
        self.ending = match ran {
            Ok(Next::Ended(Ending::Done)) | Ok(Next::Read) => return Ok(Next::Read),
            Ok(Next::Leave) => return Ok(Next::Leave),
            Ok(Next::Ended(ending)) => ending,
            Err(failure) => self.session.report(&failure),
        };
        if !matches!(self.ending, Ending::Signal(_)) {
            output::notice(format_args!("weir: {}, line {line}: failed", self.name));
        }
        Ok(Next::Leave)
    }
}
