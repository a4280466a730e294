//! [`Program`]: the processes that run queries.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The time that a process has to end after SIGTERM.
pub const END_TIME_MAX: Duration = Duration::from_secs(5);

/// The maximum time of a check or an explanation.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

/// The maximum size of the messages of a process that are reported.
const MESSAGES_BYTES_MAX: usize = 16 << 10;

/// The exit status of an incorrect query.
const REFUSED: i32 = 2;

/// The program `weir`, and the options with which queries run.
#[derive(Clone, Debug)]
pub struct Program {
    /// The executable.
    pub executable: PathBuf,
    /// Options of `weir query`, `explain` and `check`: `--from` and `--define`.
    pub sources: Vec<OsString>,
    /// Further options of `weir query`.
    pub query_options: Vec<OsString>,
    /// Further options of `weir explain`.
    pub explain_options: Vec<OsString>,
    /// Whether the sources are live. A recording waits for slow clients.
    pub live: bool,
}

/// An error of a process: what it printed.
#[derive(Debug)]
pub enum ProgramError {
    /// The query is incorrect.
    Refused(String),
    /// Anything else.
    Failed(String),
}

impl Program {
    /// `weir COMMAND SOURCES OPTIONS ARGUMENTS -- TEXT`, which ends when its output is closed.
    pub fn command(&self, command: &str, arguments: &[&str], text: &str) -> Command {
        let mut process = Command::new(&self.executable);
        process.arg0("weir").arg(command).args(&self.sources);
        match command {
            "query" => process.args(&self.query_options),
            "explain" => process.args(&self.explain_options),
            _ => &mut process,
        };
        process.args(arguments).arg("--").arg(text);
        process.stdin(Stdio::null());
        process.stdout(Stdio::piped()).stderr(Stdio::piped());
        process
    }

    /// The result of `weir check --json`.
    ///
    /// # Errors
    /// When the process fails.
    pub async fn check(&self, text: &str) -> Result<Value, ProgramError> {
        let output = run(self.command("check", &["--json"], text)).await?;
        match output.status.code() {
            Some(0 | REFUSED) if output.stdout.first() == Some(&b'{') => json(&output.stdout),
            _ => Err(error(output.status, &output.stderr)),
        }
    }

    /// The result of `weir explain --json`.
    ///
    /// # Errors
    /// When the query is incorrect, or the process fails.
    pub async fn explain(&self, text: &str) -> Result<Value, ProgramError> {
        let output = run(self.command("explain", &["--json"], text)).await?;
        match output.status.success() {
            true => json(&output.stdout),
            false => Err(error(output.status, &output.stderr)),
        }
    }

    /// The result of `weir streams --json`.
    ///
    /// # Errors
    /// When the process fails.
    pub async fn streams(&self) -> Result<Value, ProgramError> {
        let mut process = Command::new(&self.executable);
        process.args(["streams", "--json"]).stdin(Stdio::null());
        process.stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = run(process).await?;
        match output.status.success() {
            true => json(&output.stdout),
            false => Err(error(output.status, &output.stderr)),
        }
    }
}

/// A process that is ended when this is dropped: first by SIGTERM, then by SIGKILL.
pub struct QueryProcess {
    child: Option<tokio::process::Child>,
}

impl QueryProcess {
    /// Starts a process.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(command: Command) -> Result<QueryProcess, ProgramError> {
        let mut command = tokio::process::Command::from(command);
        let child = command.kill_on_drop(true).spawn();
        let child = child.map_err(|e| ProgramError::Failed(format!("weir: {e}")))?;
        Ok(QueryProcess { child: Some(child) })
    }

    /// The process.
    pub fn child(&mut self) -> &mut tokio::process::Child {
        self.child.as_mut().expect("taken when dropped")
    }
}

impl Drop for QueryProcess {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        if let Some(pid) = child.id() {
            terminate(pid);
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // After the timeout the child is dropped, which kills it.
            runtime.spawn(async move { tokio::time::timeout(END_TIME_MAX, child.wait()).await });
        }
    }
}

/// Sends SIGTERM.
pub fn terminate(pid: u32) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        // It may have ended already.
        let _ = kill_process(pid, Signal::TERM);
    }
}

/// The error of a process that has ended.
pub fn error(status: ExitStatus, messages: &[u8]) -> ProgramError {
    let messages = String::from_utf8_lossy(messages);
    let text = match messages.trim_end() {
        "" => format!("weir ended with {status}"),
        text => text.to_owned(),
    };
    match status.code() {
        Some(REFUSED) => ProgramError::Refused(text),
        _ => ProgramError::Failed(text),
    }
}

/// The last messages of a process, up to its end.
pub async fn messages(mut from: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut last = Vec::new();
    let mut part = [0; 4096];
    // An error ends the messages as their end does.
    while let Ok(size @ 1..) = from.read(&mut part).await {
        last.extend_from_slice(&part[..size]);
        let excess = last.len().saturating_sub(MESSAGES_BYTES_MAX);
        last.drain(..excess);
    }
    last
}

async fn run(command: Command) -> Result<Output, ProgramError> {
    let mut command = tokio::process::Command::from(command);
    let output = command.kill_on_drop(true).output();
    let output = tokio::time::timeout(ANSWER_TIME_MAX, output).await;
    let late = || ProgramError::Failed(format!("no answer within {ANSWER_TIME_MAX:?}"));
    let output = output.map_err(|_| late())?;
    output.map_err(|e| ProgramError::Failed(format!("weir: {e}")))
}

fn json(bytes: &[u8]) -> Result<Value, ProgramError> {
    serde_json::from_slice(bytes).map_err(|e| ProgramError::Failed(format!("weir: {e}")))
}
