//! [`Fleet`]: a monitor and its agents as processes, over TLS with certificates on both sides, and all
//! that they write in a folder in memory.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use weir_guest::{Fleet, Host};
//!
//! let fleet = Fleet::new("target/release/weir".as_ref(), &["a"], 512)?;
//! let host = Host::new()?;
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

use crate::host::Host;
use crate::memory::MemoryFolder;
use crate::run::run;

/// Where processes of one fleet have their certificates, settings, state, results and words.
#[derive(Debug)]
pub struct Fleet {
    weir: PathBuf,
    folder: MemoryFolder,
}

/// A process of a fleet. It is killed when it is dropped.
#[derive(Debug)]
pub struct Member {
    name: String,
    child: Child,
    log: PathBuf,
}

/// A monitor that listens.
#[derive(Debug)]
pub struct Monitor {
    member: Member,
    address: SocketAddr,
}

/// What the monitor is called in its certificate, wherever it listens.
const MONITOR: &str = "monitor";

/// Who asks it.
const CLIENT: &str = "field";

/// The exit code of a program that ended in order because it was asked to: 128 and SIGTERM.
const ASKED_TO_END: i32 = 143;

/// How long a process has to begin and to end.
const PATIENCE: Duration = Duration::from_secs(60);

impl Fleet {
    /// A fleet of the program `weir` whose agents may be called `hosts`. All that it writes takes at
    /// most `mebibytes`. It needs root.
    ///
    /// # Errors
    /// When there is no folder in memory, or no certificates.
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

    /// A file or folder of the fleet's, as command lines and settings take it.
    pub fn file(&self, name: &str) -> String {
        self.folder.file(name)
    }

    /// Starts a monitor that listens at `listen`, with these settings (TOML) besides those for its
    /// place and security. Another one has the state that an earlier one left.
    ///
    /// # Errors
    /// When it does not come to listen.
    pub fn monitor(&self, listen: SocketAddr, settings: &str) -> Result<Monitor> {
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
        let said = member.says("listening address=")?;
        let address = said.parse().context("the address where it listens")?;
        Ok(Monitor { member, address })
    }

    /// Starts agent `name` on a host, with these settings (TOML) and options besides those that let
    /// it find its monitor. Another one of that name has the state that an earlier one left.
    ///
    /// # Errors
    /// When it does not start.
    pub fn agent(
        &self,
        name: &str,
        host: &Host,
        monitor: SocketAddr,
        settings: &str,
        options: &[&str],
    ) -> Result<Member> {
        let config = format!(
            "monitor = \"{monitor}\"\nhost = \"{name}\"\nstate = \"{}\"\n{settings}\n[tls]\nca = \"{}\"\ncertificate = \"{}\"\nkey = \"{}\"\n\
             server_name = \"{MONITOR}\"\n",
            self.file(name),
            self.file("authority.crt"),
            self.file(&format!("agent-{name}.crt")),
            self.file(&format!("agent-{name}.key")),
        );
        let path = self.file(&format!("{name}.toml"));
        fs::write(&path, config)?;
        let mut command = host.command(&self.weir.to_string_lossy());
        command.args(["agent", "--config", &path]).args(options);
        self.start(name, command)
    }

    /// Asks the monitor by a command of `weir`, as `fleet hosts`; what it says on standard output.
    ///
    /// # Errors
    /// Its complaint.
    pub fn ask(&self, monitor: &Monitor, args: &[&str]) -> Result<String> {
        let output = self.command(monitor, args).output()?;
        answer(&output).with_context(|| format!("weir {}", args.join(" ")))
    }

    /// A command of `weir` that asks the monitor.
    pub fn command(&self, monitor: &Monitor, args: &[&str]) -> Command {
        let mut command = Command::new(&self.weir);
        command.args(args).args(["--server-name", MONITOR]);
        command.arg("--monitor").arg(monitor.address.to_string());
        command.args(["--ca", &self.file("authority.crt")]);
        command.args(["--certificate", &self.file(&format!("client-{CLIENT}.crt"))]);
        command.args(["--key", &self.file(&format!("client-{CLIENT}.key"))]);
        command.stdin(Stdio::null());
        command
    }

    fn start(&self, name: &str, mut command: Command) -> Result<Member> {
        let log = PathBuf::from(self.file(&format!("{name}.log")));
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let name = name.to_owned();
        Ok(Member { name, child, log })
    }
}

impl Monitor {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl std::ops::Deref for Monitor {
    type Target = Member;

    fn deref(&self) -> &Member {
        &self.member
    }
}

impl Monitor {
    /// As [`Member::stop`].
    ///
    /// # Errors
    /// As there.
    pub fn stop(self) -> Result<()> {
        self.member.stop()
    }

    /// As [`Member::kill`].
    ///
    /// # Errors
    /// As there.
    pub fn kill(self) -> Result<()> {
        self.member.kill()
    }
}

impl Member {
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has said on standard error.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// How it has ended, if it has.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Asks it to end, as systemd does, and sees that it was still there and ends well.
    ///
    /// # Errors
    /// When it had ended before, ends badly, or does not end.
    pub fn stop(mut self) -> Result<()> {
        if let Some(status) = self.ended()? {
            bail!("{} had ended, with {status}: {}", self.name, self.said());
        }
        run("kill", &[&self.pid().to_string()])?;
        match self.wait()? {
            status if status.success() || status.code() == Some(ASKED_TO_END) => Ok(()),
            status => bail!("{} ended with {status}: {}", self.name, self.said()),
        }
    }

    /// Ends it as a failure of the machine does: kill -9.
    ///
    /// # Errors
    /// When it had ended before.
    pub fn kill(mut self) -> Result<()> {
        if let Some(status) = self.ended()? {
            bail!("{} had ended, with {status}: {}", self.name, self.said());
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits until it has ended by itself; how.
    ///
    /// # Errors
    /// When it does not.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if begun.elapsed() > PATIENCE {
                bail!("{} does not end: {}", self.name, self.said());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a line says `words`; what follows them there.
    fn says(&mut self, words: &str) -> Result<String> {
        let begun = Instant::now();
        loop {
            let said = self.said();
            let whole = said.rfind('\n').map_or("", |end| &said[..end]);
            if let Some((_, rest)) = whole.split_once(words) {
                return Ok(rest.lines().next().unwrap_or_default().to_owned());
            }
            if let Some(status) = self.ended()? {
                bail!("{} ended with {status}: {said}", self.name);
            }
            if begun.elapsed() > PATIENCE {
                bail!("{} does not say \"{words}\": {said}", self.name);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a command gave, or its complaint.
fn answer(output: &Output) -> Result<String> {
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout.clone())?)
}
