//! [`DuckDb`]: a process of Python that answers queries by DuckDB; and [`weir`], which answers them
//! by weir.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;
use weir_testing::{python_with, skip};

/// A row of a result.
pub type Row = Vec<Value>;

/// The rows of a result, or the message of a failure.
pub type Answer = Result<Vec<Row>, String>;

/// DuckDB in a process of Python.
pub struct DuckDb {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl DuckDb {
    /// Starts it; without DuckDB reports that `test` is skipped.
    pub fn start(test: &str) -> Option<DuckDb> {
        let python = match python_with("duckdb") {
            Ok(python) => python,
            Err(why) => return skip(test, format!("no DuckDB: {why:#}")),
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/duckdb/answers.py");
        let mut process = Command::new(python)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python starts");
        Some(DuckDb {
            input: process.stdin.take().expect("it is piped"),
            output: BufReader::new(process.stdout.take().expect("it is piped")),
            process,
        })
    }

    /// The answer to a query.
    pub fn answer(&mut self, query: &str) -> Answer {
        writeln!(self.input, "{}", Value::from(query)).expect("the process reads");
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .expect("the process writes");
        let answer: Value = serde_json::from_str(&line).expect("an answer is JSON");
        match answer.get("error") {
            Some(error) => Err(error.as_str().expect("an error is a text").to_owned()),
            None => Ok(rows(&answer["rows"])),
        }
    }

    /// Opens a recording as `IO` and `IOstream`.
    pub fn open(&mut self, recording: &Path) {
        let opened = self.answer(&format!("open {}", recording.display()));
        opened.unwrap_or_else(|why| panic!("{}: {why}", recording.display()));
    }
}

impl Drop for DuckDb {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn rows(answer: &Value) -> Vec<Row> {
    let array = |value: &Value| value.as_array().expect("a list").clone();
    array(answer).iter().map(array).collect()
}

/// A row of weir's output with its instant, and with the number of copies that are inserted or, if
/// negative, retracted.
pub struct Line {
    pub instant: String,
    pub weight: i64,
    pub row: Row,
}

/// The output of `weir query` with these further arguments: columns `c0`, `c1` and so on.
pub fn weir(recording: &Path, arguments: &[&str], query: &str) -> Result<Vec<Line>, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["query", "--format", "json", "--from"])
        .arg(recording)
        .args(arguments)
        .arg(query)
        .stdin(Stdio::null())
        .output()
        .expect("weir runs");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    Ok(text.lines().map(line).collect())
}

fn line(text: &str) -> Line {
    let line: Value = serde_json::from_str(text).expect("a line is JSON");
    let columns = (0..).map_while(|i| line.get(format!("c{i}")).cloned());
    let instant = line["instant"].as_str().expect("a row has an instant");
    Line {
        instant: instant.to_owned(),
        weight: line
            .get("weight")
            .map_or(1, |w| w.as_i64().expect("a number")),
        row: columns.collect(),
    }
}
