//! [`Flink`]: Apache Flink in a process of its own, which runs SQL over files.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result, bail};

use crate::Scratch;
use crate::repository::root;

/// Packages of the runtime that Flink opens by reflection.
const OPENED: [&str; 6] = [
    "java.base/java.lang",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.time",
    "java.base/java.util",
    "java.base/java.util.concurrent",
];

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
        let path = built()?;
        let mut java = Command::new("java");
        for package in OPENED {
            java.arg(format!("--add-opens={package}=ALL-UNNAMED"));
        }
        java.args(["-Xmx1g", "-cp", &path, "FlinkRunner"]);
        java.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = java.stderr(Stdio::null()).spawn().context("java")?;
        Ok(Flink {
            files: process.stdin.take().context("its input is a pipe")?,
            answers: BufReader::new(process.stdout.take().context("its output is a pipe")?),
            process,
            folder: Scratch::new(),
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

/// Fetches Flink and compiles what runs it, once; returns the class path.
fn built() -> Result<String> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    let sources = root().join("crates/weir-testing/flink");
    let built = root().join("target/flink");
    let (libraries, classes) = (built.join("libraries"), built.join("classes"));
    fs::create_dir_all(&classes)?;
    let mut maven = Command::new("mvn");
    maven.args(["--quiet", "--batch-mode", "--file"]);
    maven.arg(sources.join("pom.xml"));
    maven.arg("dependency:copy-dependencies");
    maven.arg(format!("-DoutputDirectory={}", libraries.display()));
    done(&mut maven)?;
    let path = format!("{}:{}/*", classes.display(), libraries.display());
    let mut compiler = Command::new("javac");
    compiler.args(["-nowarn", "-cp", &path, "-d"]).arg(&classes);
    compiler.arg(sources.join("FlinkRunner.java"));
    // The functions that queries call.
    for entry in fs::read_dir(root().join("packaging/flink/weir/flink"))? {
        compiler.arg(entry?.path());
    }
    done(&mut compiler)?;
    Ok(path)
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

fn done(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{:?}", command.get_program()))?;
    if !output.status.success() {
        let texts = [output.stdout, output.stderr].concat();
        bail!("{command:?}: {}", String::from_utf8_lossy(&texts));
    }
    Ok(())
}
