//! [`Flink`]: Apache Flink in a process of its own, which runs SQL over files.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value as Json;

use crate::Scratch;
use crate::java::{Java, temporary};
use crate::repository::root;

/// Flink, which ends when this is dropped.
pub struct Flink {
    process: Child,
    files: ChildStdin,
    answers: BufReader<ChildStdout>,
    folder: Scratch,
    runs: usize,
}

/// A row that came or went: whether it came, and its values; NULL is `None`.
pub type FlinkRow = (bool, Vec<Option<String>>);

impl Flink {
    /// Fetches Flink with Maven the first time, and starts it.
    ///
    /// # Errors
    /// When Java or Maven are missing, or Flink cannot be fetched.
    pub fn start() -> Result<Flink> {
        let folder = Scratch::new();
        let mut java = built()?.command(&["-Xmx1g", &temporary(&folder)], "FlinkRunner");
        java.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = java.stderr(Stdio::null()).spawn().context("java")?;
        Ok(Flink {
            files: process.stdin.take().context("its input is a pipe")?,
            answers: BufReader::new(process.stdout.take().context("its output is a pipe")?),
            process,
            folder,
            runs: 0,
        })
    }

    /// A folder for files that statements read.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs statements, the last of which is a query over bounded tables; returns the rows of its
    /// result.
    ///
    /// # Errors
    /// Flink's message.
    pub fn run(&mut self, statements: &[String]) -> Result<Vec<FlinkRow>> {
        self.runs += 1;
        let file = self.folder.file(&format!("statements{}", self.runs));
        fs::write(&file, statements.join("\n;\n"))?;
        writeln!(self.files, "{file}")?;
        let mut answer = String::new();
        // The process may print messages of its own.
        while !answer.starts_with("DONE") && !answer.starts_with("ERROR") {
            answer.clear();
            if self.answers.read_line(&mut answer)? == 0 {
                bail!("Flink has ended");
            }
        }
        if let Some(message) = answer.strip_prefix("ERROR ") {
            bail!("{}", message.trim());
        }
        let rows = fs::read_to_string(format!("{file}.rows"))?;
        rows.lines().map(row).collect()
    }
}

impl Drop for Flink {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The values and counts of an array of rows, as [`Flink::run`] returns it; NULL is `None`.
///
/// # Errors
/// If the text is not such an array.
pub fn entries(text: &str) -> Result<Vec<(Option<String>, i64)>> {
    let entries: Vec<(Json, i64)> = serde_json::from_str(text)?;
    let entry = |(value, count)| match value {
        Json::Null => (None, count),
        Json::String(value) => (Some(value), count),
        other => (Some(other.to_string()), count),
    };
    Ok(entries.into_iter().map(entry).collect())
}

/// Flink, and what runs it, with the functions that queries call: fetched and compiled once,
/// because processes that run read the classes.
pub(crate) fn built() -> Result<&'static Java> {
    static BUILT: OnceLock<Result<Java, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    built.as_ref().map_err(|why| anyhow!("{why}"))
}

fn build() -> Result<Java> {
    let runner = root().join("crates/weir-testing/flink");
    let mut sources = vec![runner.join("FlinkRunner.java")];
    for entry in fs::read_dir(root().join("packaging/flink/weir/flink"))? {
        sources.push(entry?.path());
    }
    Java::build(
        &root().join("target/flink"),
        &runner.join("pom.xml"),
        &sources,
    )
}

fn row(line: &str) -> Result<FlinkRow> {
    let mut parts = line.split('\t');
    let comes = match parts.next() {
        Some("+") => true,
        Some("-") => false,
        _ => bail!("no row of a result: {line}"),
    };
    let value = |text: &str| match text {
        r"\N" => None,
        text => Some(unescaped(text)),
    };
    Ok((comes, parts.map(value).collect()))
}

fn unescaped(text: &str) -> String {
    let mut found = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        found.push(match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('t') => '\t',
                Some('n') => '\n',
                other => other.unwrap_or('\\'),
            },
            (c, false) => c,
        });
    }
    found
}
