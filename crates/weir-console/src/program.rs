//! [`Program`]: the processes that run queries.

use std::ffi::{OsStr, OsString};
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
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

/// The maximum size of the messages of a process that are reported.
const MESSAGES_BYTES_MAX: usize = 16 << 10;

/// The exit status of an incorrect query.
const REFUSED: i32 = 2;

/// The program `weir`, and the options with which queries run.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// The executable.
    pub executable: PathBuf,
    /// The sources of this command line: options `--from`, or none.
    pub from: Vec<OsString>,
    /// Definitions for queries: options `--define`.
    pub define: Vec<OsString>,
    /// Further options of `weir query` for these sources.
    pub query_options: Vec<OsString>,
    /// Further options of `weir explain` for these sources.
    pub explain_options: Vec<OsString>,
    /// Options of `weir query` for other recordings.
    pub recording_options: Vec<OsString>,
    /// The VM whose rows clients may read: option `--only-vm`, or none.
    pub owner_options: Vec<OsString>,
    /// Options of the process that reads the live source for all tabs.
    pub shared_options: Vec<OsString>,
    /// Options of `weir alert watch`.
    pub alert_options: Vec<OsString>,
    /// The address of the monitor of a fleet; `None` on a single host.
    pub monitor: Option<OsString>,
    /// Further options of `weir fleet`.
    pub fleet_options: Vec<OsString>,
    /// Whether the sources are live. A recording waits for slow clients.
    pub live: bool,
}

/// The source of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResultSource {
    /// The sources of the command line, or the fleet.
    Own,
    /// The requests that were retained.
    Recent,
    /// A recording of the folder.
    Recording(PathBuf),
}

impl ResultSource {
    /// Whether a result of it has no end, so that slow clients skip states.
    pub fn is_live(&self, program: &Program) -> bool {
        *self == ResultSource::Own && program.live
    }
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
    /// Whether one process reads the live source for all tabs.
    pub fn is_shared(&self) -> bool {
        self.live && self.monitor.is_none()
    }

    /// The option that names the monitor.
    fn monitor_option(&self) -> Vec<OsString> {
        let option = |address: &OsString| ["--monitor".into(), address.clone()];
        self.monitor.iter().flat_map(option).collect()
    }

    /// `weir fleet COMMAND` with the options of the monitor.
    pub fn fleet(&self, command: &str) -> Vec<OsString> {
        self.of_fleet("fleet", command)
    }

    /// `weir GROUP COMMAND` with the options of the monitor.
    pub fn of_fleet(&self, group: &str, command: &str) -> Vec<OsString> {
        let mut arguments = vec![group.into(), command.into()];
        arguments.extend(self.monitor_option());
        arguments.extend(self.fleet_options.iter().cloned());
        arguments
    }

    /// `weir COMMAND`, which ends when its output is closed.
    pub fn process<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut process = Command::new(&self.executable);
        process.arg0("weir").args(arguments).stdin(Stdio::null());
        process.stdout(Stdio::piped()).stderr(Stdio::piped());
        process
    }

    /// The options that name a source.
    fn source_options(&self, source: &ResultSource) -> Vec<OsString> {
        match source {
            ResultSource::Own | ResultSource::Recent => self.from.clone(),
            ResultSource::Recording(path) => vec!["--from".into(), path.into()],
        }
    }

    /// `weir query SOURCE OPTIONS ARGUMENTS -- TEXT`.
    pub fn query(&self, source: &ResultSource, arguments: &[&str], text: &str) -> Command {
        let mut process = self.process(["query"]);
        process.args(self.source_options(source)).args(&self.define);
        match source {
            ResultSource::Recording(_) => process
                .args(&self.recording_options)
                .args(&self.owner_options),
            _ => process
                .args(&self.query_options)
                .args(self.monitor_option()),
        };
        process.args(arguments).arg("--").arg(text);
        process
    }

    /// The result of `weir check --json`.
    ///
    /// # Errors
    /// When the process fails.
    pub async fn check(&self, source: &ResultSource, text: &str) -> Result<Value, ProgramError> {
        let mut process = self.process(["check", "--json"]);
        process.args(self.source_options(source)).args(&self.define);
        process.arg("--").arg(text);
        let output = run(process).await?;
        match output.status.code() {
            Some(0 | REFUSED) if output.stdout.first() == Some(&b'{') => json(&output.stdout),
            _ => Err(error(output.status, &output.stderr)),
        }
    }

    /// The result of `weir explain --json`.
    ///
    /// # Errors
    /// When the query is incorrect, or the process fails.
    pub async fn explain(&self, source: &ResultSource, text: &str) -> Result<Value, ProgramError> {
        let mut process = self.process(["explain", "--json"]);
        process.args(self.source_options(source)).args(&self.define);
        match source {
            ResultSource::Recording(_) => process.args(&self.owner_options),
            _ => process
                .args(&self.explain_options)
                .args(self.monitor_option()),
        };
        process.arg("--").arg(text);
        self.json_of(process).await
    }

    /// The output of `weir ARGUMENTS`, which is JSON.
    ///
    /// # Errors
    /// When the process fails.
    pub async fn json<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Value, ProgramError> {
        self.json_of(self.process(arguments)).await
    }

    /// Runs `weir ARGUMENTS` to its end; returns what it printed.
    ///
    /// # Errors
    /// When the process fails.
    pub async fn run<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<String, ProgramError> {
        let output = run(self.process(arguments)).await?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(error(output.status, &output.stderr)),
        }
    }

    /// `weir alert watch --json` with the rules of this command line.
    pub fn alerts(&self) -> Command {
        let mut process = self.process(["alert", "watch", "--json", "--pending"]);
        process.args(&self.alert_options);
        process
    }

    async fn json_of(&self, process: Command) -> Result<Value, ProgramError> {
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
