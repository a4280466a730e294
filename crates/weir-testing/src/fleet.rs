//! [`Fleet`]: a monitor and its agents as processes, over TLS with certificates on both sides, with
//! all their files in a folder in memory.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use weir_testing::{Fleet, TestHost};
//!
//! let fleet = Fleet::new("target/release/weir".as_ref(), &["a"], 512)?;
//! let host = TestHost::new()?;
//! let monitor = fleet.monitor((host.gateway(), 0).into(), "")?;
//! let agent = fleet.agent("a", &host, monitor.address(), "devices = [\"/dev/loop3\"]", &[])?;
//! println!("{}", fleet.ask(&monitor, &["fleet", "hosts", "--json"])?);
//! agent.stop()?;
//! # Ok(())
//! # }
//! ```

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::host::TestHost;
use crate::memory::MemoryFolder;
use crate::run::run;

/// The folder of a fleet, with certificates, settings, state, results and logs of its processes.
#[derive(Debug)]
pub struct Fleet {
    weir: PathBuf,
    folder: MemoryFolder,
}

/// A process of a fleet. It is killed when it is dropped.
#[derive(Debug)]
pub struct FleetProcess {
    name: String,
    child: Child,
    log: PathBuf,
}

/// A monitor that listens.
#[derive(Debug)]
pub struct MonitorProcess {
    member: FleetProcess,
    address: SocketAddr,
}

/// The monitor's name in its certificate, independent of its address.
const MONITOR: &str = "monitor";

/// The client's name.
const CLIENT: &str = "field";

/// The exit code of a program that was terminated by SIGTERM: 128 plus the signal's number.
const TERMINATED: i32 = 143;

/// How long a process may take to start and to end.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Fleet {
    /// A fleet of the program `weir` with agents named `hosts`. Its files take at most `mebibytes`.
    /// Needs root.
    ///
    /// # Errors
    /// When the folder in memory or the certificates cannot be created.
    pub fn new(weir: &Path, hosts: &[&str], mebibytes: u64) -> Result<Fleet> {
        let fleet = Fleet {
            weir: weir
                .canonicalize()
                .with_context(|| weir.display().to_string())?,
            folder: MemoryFolder::new(mebibytes)?,
        };
        fleet.certify("authority", &[])?;
        fleet.certify("monitor", &[MONITOR])?;
        fleet.certify("client", &[CLIENT, "--role", "place"])?;
        fleet.certify("agent", hosts)?;
        Ok(fleet)
    }

    fn certify(&self, what: &str, names: &[&str]) -> Result<()> {
        let folder = self.file("");
        let args = [&["certificates", what, "-d", &folder], names].concat();
        run(&self.weir.to_string_lossy(), &args).map(drop)
    }

    /// The path of a file or folder of the fleet, for command lines and settings.
    pub fn file(&self, name: &str) -> String {
        self.folder.file(name)
    }

    /// Starts a monitor that listens at `listen`, with these settings (TOML) besides those for its
    /// address and security. It continues with the state of an earlier one.
    ///
    /// # Errors
    /// When it does not listen in time.
    pub fn monitor(&self, listen: SocketAddr, settings: &str) -> Result<MonitorProcess> {
        let config = format!(
            "listen = \"{listen}\"\nstate = \"{}\"\n{settings}\n[tls]\ncertificate = \"{}\"\nkey = \"{}\"\nclient_ca = \"{}\"\n",
            self.file("monitor"),
            self.file("monitor.crt"),
            self.file("monitor.key"),
            self.file("authority.crt"),
        );
        let path = self.file("monitor.toml");
        fs::write(&path, config)?;
        let mut command = Command::new(&self.weir);
        command.args(["monitor", "--config", &path]);
        let mut member = self.start(MONITOR, command)?;
        let output = member.wait_for_line("listening address=")?;
        let address = output.parse().context("the address where it listens")?;
        Ok(MonitorProcess { member, address })
    }

    /// Starts agent `name` on a host, with these settings (TOML) and options besides those for its
    /// monitor. It continues with the state of an earlier one of that name.
    ///
    /// # Errors
    /// When it does not start.
    pub fn agent(
        &self,
        name: &str,
        host: &TestHost,
        monitor: SocketAddr,
        settings: &str,
        options: &[&str],
    ) -> Result<FleetProcess> {
        let command = host.command(&self.weir.to_string_lossy());
        self.start_agent(command, name, monitor, settings, options)
    }

    /// The same on this machine.
    ///
    /// # Errors
    /// When it does not start.
    pub fn local_agent(
        &self,
        name: &str,
        monitor: SocketAddr,
        settings: &str,
        options: &[&str],
    ) -> Result<FleetProcess> {
        let command = Command::new(&self.weir);
        self.start_agent(command, name, monitor, settings, options)
    }

    fn start_agent(
        &self,
        mut command: Command,
        name: &str,
        monitor: SocketAddr,
        settings: &str,
        options: &[&str],
    ) -> Result<FleetProcess> {
        let state = format!("state = \"{}\"\n{settings}", self.file(name));
        let config = agent_config(name, &monitor.to_string(), &self.file(""), &state);
        let path = self.file(&format!("{name}.toml"));
        fs::write(&path, config)?;
        command.args(["agent", "--config", &path]).args(options);
        self.start(name, command)
    }

    /// Copies what agent `name` needs on another machine to a folder: `agent.toml` and the files
    /// that it names, which the agent finds in `place` there. `monitor` is the monitor's address as
    /// that machine knows it.
    ///
    /// # Errors
    /// When a file cannot be copied.
    pub fn export_agent(
        &self,
        name: &str,
        monitor: &str,
        settings: &str,
        folder: &Path,
        place: &str,
    ) -> Result<()> {
        fs::create_dir_all(folder)?;
        for file in agent_files(name) {
            fs::copy(self.file(&file), folder.join(&file)).with_context(|| file.clone())?;
        }
        let config = agent_config(name, monitor, &format!("{place}/"), settings);
        Ok(fs::write(folder.join("agent.toml"), config)?)
    }

    /// Runs a client command of `weir`, such as `fleet hosts`; returns its standard output.
    ///
    /// # Errors
    /// The error message of the command, if it fails.
    pub fn ask(&self, monitor: &MonitorProcess, args: &[&str]) -> Result<String> {
        let output = self.command(monitor, args).output()?;
        answer(&output).with_context(|| format!("weir {}", args.join(" ")))
    }

    /// The items of `weir fleet queries` or `hosts`.
    ///
    /// # Errors
    /// When the command fails, or its output is not a list.
    pub fn listed(&self, monitor: &MonitorProcess, what: &str) -> Result<Vec<Value>> {
        let text = self.ask(monitor, &["fleet", what, "--json"])?;
        serde_json::from_str(&text).with_context(|| format!("weir fleet {what}: {text}"))
    }

    /// The program.
    pub fn weir(&self) -> &Path {
        &self.weir
    }

    /// A client command of `weir` for the monitor.
    pub fn command(&self, monitor: &MonitorProcess, args: &[&str]) -> Command {
        let mut command = Command::new(&self.weir);
        command.args(args).args(["--server-name", MONITOR]);
        command.arg("--monitor").arg(monitor.address.to_string());
        command.args(["--ca", &self.file("authority.crt")]);
        command.args(["--certificate", &self.file(&format!("client-{CLIENT}.crt"))]);
        command.args(["--key", &self.file(&format!("client-{CLIENT}.key"))]);
        command.stdin(Stdio::null());
        command
    }

    /// Starts a program as a process of the fleet; its log is the file `NAME.log`.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(&self, name: &str, mut command: Command) -> Result<FleetProcess> {
        let log = PathBuf::from(self.file(&format!("{name}.log")));
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let name = name.to_owned();
        Ok(FleetProcess { name, child, log })
    }
}

impl MonitorProcess {
    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl std::ops::Deref for MonitorProcess {
    type Target = FleetProcess;

    fn deref(&self) -> &FleetProcess {
        &self.member
    }
}

impl MonitorProcess {
    /// As [`FleetProcess::stop`].
    ///
    /// # Errors
    /// As there.
    pub fn stop(self) -> Result<()> {
        self.member.stop()
    }

    /// As [`FleetProcess::kill`].
    ///
    /// # Errors
    /// As there.
    pub fn kill(self) -> Result<()> {
        self.member.kill()
    }
}

impl FleetProcess {
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its output on standard error.
    pub fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its exit status, if it has ended.
    ///
    /// # Errors
    /// When the system does not report it.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Sends SIGTERM to it, as systemd does, and checks that it was still running and ends without
    /// an error.
    ///
    /// # Errors
    /// When it had ended before, ends with an error, or does not end.
    pub fn stop(mut self) -> Result<()> {
        if let Some(status) = self.ended()? {
            bail!("{} had ended, with {status}: {}", self.name, self.output());
        }
        run("kill", &[&self.pid().to_string()])?;
        match self.wait()? {
            status if status.success() || status.code() == Some(TERMINATED) => Ok(()),
            status => bail!("{} ended with {status}: {}", self.name, self.output()),
        }
    }

    /// Kills it with SIGKILL, as a simulated failure.
    ///
    /// # Errors
    /// When it had ended before.
    pub fn kill(mut self) -> Result<()> {
        if let Some(status) = self.ended()? {
            bail!("{} had ended, with {status}: {}", self.name, self.output());
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits until it has ended without a signal; returns its exit status.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if started.elapsed() > TIMEOUT {
                bail!("{} does not end: {}", self.name, self.output());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a line contains `words`; returns the rest of the line.
    ///
    /// # Errors
    /// When it ends, or does not print such a line in time.
    pub fn wait_for_line(&mut self, words: &str) -> Result<String> {
        let started = Instant::now();
        loop {
            let output = self.output();
            let whole = output.rfind('\n').map_or("", |end| &output[..end]);
            if let Some((_, rest)) = whole.split_once(words) {
                return Ok(rest.lines().next().unwrap_or_default().to_owned());
            }
            if let Some(status) = self.ended()? {
                bail!("{} ended with {status}: {output}", self.name);
            }
            if started.elapsed() > TIMEOUT {
                bail!("{} does not print \"{words}\": {output}", self.name);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for FleetProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The certificate of the authority, and an agent's own certificate and key.
fn agent_files(name: &str) -> [String; 3] {
    let [certificate, key] = ["crt", "key"].map(|kind| format!("agent-{name}.{kind}"));
    ["authority.crt".to_owned(), certificate, key]
}

/// The configuration of an agent whose files are in `folder`, with these settings.
fn agent_config(name: &str, monitor: &str, folder: &str, settings: &str) -> String {
    let [ca, certificate, key] = agent_files(name).map(|file| format!("{folder}{file}"));
    format!(
        "monitor = \"{monitor}\"\nhost = \"{name}\"\n{settings}\n[tls]\nca = \"{ca}\"\n\
         certificate = \"{certificate}\"\nkey = \"{key}\"\nserver_name = \"{MONITOR}\"\n"
    )
}

/// The output of a command, or its error message.
fn answer(output: &Output) -> Result<String> {
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout.clone())?)
}
