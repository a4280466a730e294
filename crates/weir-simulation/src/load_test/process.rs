//! [`MonitorProcess`]: the process of the measured monitor, and its resource usage.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use weir_model::Nanos;

use weir_runtime::run_loop::process_usage;

/// How long a monitor may take until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The text of its log before its address.
const LISTENS: &str = "listening address=";

/// The resource usage of the monitor's process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Memory in bytes, if the process can be read.
    pub memory_bytes: Option<i64>,
    /// Processor time in ns.
    pub cpu_ns: Option<Nanos>,
}

/// The monitor's process.
#[derive(Debug, Default)]
pub struct MonitorProcess {
    pid: Option<u32>,
    /// It ends when this is dropped.
    _started: Option<Started>,
}

/// A monitor that was started for the test, with its own folder.
#[derive(Debug)]
struct Started {
    child: Child,
    _folder: TempDir,
}

impl MonitorProcess {
    /// A monitor that runs already, if its process is known.
    pub fn found(pid: Option<u32>) -> MonitorProcess {
        MonitorProcess {
            pid,
            _started: None,
        }
    }

    /// Starts `weir monitor` with its own socket, with `heartbeat` and room for these numbers of
    /// agents and queries; also returns its address.
    ///
    /// # Errors
    /// When it does not start or ends at once, with its output.
    pub fn start(
        weir: &Path,
        heartbeat: Duration,
        agents: usize,
        queries: usize,
    ) -> Result<(MonitorProcess, String)> {
        let folder = tempfile::tempdir().context("a temporary folder")?;
        let config = folder.path().join("monitor.toml");
        let text = format!(
            "listen = \"unix:{}\"\nheartbeat = \"{}us\"\n[limits]\nagents = {}\n\
             connections = {}\nqueries = {queries}\nqueries_per_client = {queries}\n",
            folder.path().join("monitor.sock").display(),
            heartbeat.as_micros(),
            agents.max(1),
            agents + queries + 64,
            queries = queries.max(1),
        );
        std::fs::write(&config, text).with_context(|| config.display().to_string())?;
        let mut child = Command::new(weir)
            .args(["monitor", "--log-level", "info"])
            .arg("--config")
            .arg(&config)
            .arg("--state")
            .arg(folder.path().join("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| weir.display().to_string())?;
        let lines = lines_of(&mut child);
        let started = Started {
            child,
            _folder: folder,
        };
        let address = address(&lines)?;
        let process = MonitorProcess {
            pid: Some(started.child.id()),
            _started: Some(started),
        };
        Ok((process, address))
    }

    /// Its current resource usage.
    pub fn usage(&self) -> Usage {
        let Some(pid) = self.pid else {
            return Usage::default();
        };
        let (memory_bytes, cpu_ns) = process_usage(&pid.to_string());
        Usage {
            memory_bytes,
            cpu_ns,
        }
    }
}

/// The lines of the child's standard error, read to the end so that it never waits.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let output = child.stderr.take().expect("it is piped");
    let (send, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // Lines after the address have no receiver.
            let _ = send.send(line);
        }
    });
    lines
}

fn address(lines: &Receiver<String>) -> Result<String> {
    let mut output = String::new();
    while let Ok(line) = lines.recv_timeout(START_TIMEOUT) {
        if let Some((_, address)) = line.split_once(LISTENS) {
            return Ok(address.to_owned());
        }
        output += &line;
        output.push('\n');
    }
    bail!("weir monitor did not start: {}", output.trim())
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // The process may have exited before.
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}
