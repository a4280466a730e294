//! [`MonitorProcess`]: the monitor that is measured, started here or found by its number.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use weir_model::Nanos;

use weir_runtime::run_loop::process_usage;

/// How long a monitor may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// What it says before its address.
const LISTENS: &str = "listening address=";

/// What the monitor's process takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Memory in bytes, if the process can be looked at.
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

/// A monitor that was started here, with a directory of its own; both go when this is dropped.
#[derive(Debug)]
struct Started {
    child: Child,
    directory: PathBuf,
}

impl MonitorProcess {
    /// A monitor that runs already, if its number is known.
    pub fn found(pid: Option<u32>) -> MonitorProcess {
        MonitorProcess {
            pid,
            _started: None,
        }
    }

    /// Starts `weir monitor` at a socket of its own, with `heartbeat` and room for so many agents and
    /// queries; gives its address as well.
    ///
    /// # Errors
    /// When it does not start or ends at once, with what it said.
    pub fn start(
        heartbeat: Duration,
        agents: usize,
        queries: usize,
    ) -> Result<(MonitorProcess, String)> {
        let name = format!("weir-simulate-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).with_context(|| directory.display().to_string())?;
        let config = directory.join("monitor.toml");
        let text = format!(
            "listen = \"unix:{}\"\nheartbeat = \"{}us\"\n[limits]\nagents = {}\n\
             connections = {}\nqueries = {queries}\nqueries_per_client = {queries}\n",
            directory.join("monitor.sock").display(),
            heartbeat.as_micros(),
            agents.max(1),
            agents + queries + 64,
            queries = queries.max(1),
        );
        fs::write(&config, text).with_context(|| config.display().to_string())?;
        let program = std::env::current_exe().context("where weir itself is")?;
        let mut child = Command::new(program)
            .args(["monitor", "--log-level", "info"])
            .arg("--config")
            .arg(&config)
            .arg("--state")
            .arg(directory.join("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("weir monitor")?;
        let lines = lines_of(&mut child);
        let started = Started { child, directory };
        let address = address(&lines)?;
        let process = MonitorProcess {
            pid: Some(started.child.id()),
            _started: Some(started),
        };
        Ok((process, address))
    }

    /// What it takes now.
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

/// What the child says on standard error, read to its end so that it never waits.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let said = child.stderr.take().expect("it is piped");
    let (tell, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(said).lines().map_while(Result::ok) {
            // Once the address is known nobody listens.
            let _ = tell.send(line);
        }
    });
    lines
}

fn address(lines: &Receiver<String>) -> Result<String> {
    let mut said = String::new();
    while let Ok(line) = lines.recv_timeout(START_TIMEOUT) {
        if let Some((_, address)) = line.split_once(LISTENS) {
            return Ok(address.to_owned());
        }
        said += &line;
        said.push('\n');
    }
    bail!("weir monitor did not start: {}", said.trim())
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
        // A directory that stays is in nobody's way.
        let _ = fs::remove_dir_all(&self.directory);
    }
}
