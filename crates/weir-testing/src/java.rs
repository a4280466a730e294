//! Programs in Java, with libraries that Maven fetches.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::Scratch;

/// Packages of the runtime that Flink opens by reflection.
const OPENED: [&str; 6] = [
    "java.base/java.lang",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.time",
    "java.base/java.util",
    "java.base/java.util.concurrent",
];

/// How long a server may take to start.
const START: Duration = Duration::from_secs(120);

/// Options of the Java runtime for a process that does not run long enough to be optimised.
pub const QUICK: [&str; 1] = ["-XX:TieredStopAtLevel=1"];

/// Classes and the libraries that they use.
pub struct Java {
    classes: PathBuf,
    path: OsString,
}

impl Java {
    /// Fetches the dependencies of a `pom.xml` and compiles sources, if any, below `folder`.
    ///
    /// # Errors
    /// When Maven or the compiler are missing, or fail.
    pub fn build(folder: &Path, pom: &Path, sources: &[PathBuf]) -> Result<Java> {
        let (libraries, classes) = (folder.join("libraries"), folder.join("classes"));
        fs::create_dir_all(&classes)?;
        let mut maven = Command::new("mvn");
        maven
            .args(["--quiet", "--batch-mode", "--file"])
            .arg(pom)
            .arg("dependency:copy-dependencies")
            .arg(format!("-DoutputDirectory={}", libraries.display()));
        done(&mut maven)?;
        let path = format!("{}:{}/*", classes.display(), libraries.display()).into();
        if sources.is_empty() {
            return Ok(Java { classes, path });
        }
        let mut compiler = Command::new("javac");
        compiler
            .args(["-nowarn", "-Xlint:none", "-cp"])
            .arg(&path)
            .arg("-d")
            .arg(&classes)
            .args(sources);
        done(&mut compiler)?;
        Ok(Java { classes, path })
    }

    /// The folder with the compiled classes.
    pub fn classes(&self) -> &Path {
        &self.classes
    }

    /// The command that runs a class with these options of the runtime.
    pub fn command(&self, options: &[&str], class: &str) -> Command {
        let mut java = Command::new("java");
        for package in OPENED {
            java.arg(format!("--add-opens={package}=ALL-UNNAMED"));
        }
        java.args(options).arg("-cp").arg(&self.path).arg(class);
        java
    }
}

/// The option with which Java has its temporary files in this folder, and leaves none elsewhere.
pub fn temporary(folder: &Scratch) -> String {
    format!("-Djava.io.tmpdir={}", folder.path().display())
}

/// Ports that were free a moment ago.
pub fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let listeners: Result<Vec<TcpListener>, _> = (0..N)
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect();
    let ports = listeners?.into_iter().map(|l| l.local_addr());
    let ports: Result<Vec<_>, _> = ports.collect();
    let ports: Vec<u16> = ports?.iter().map(|address| address.port()).collect();
    Ok(ports.try_into().expect("as many were bound"))
}

/// Waits until a process accepts connections at a port of this host.
///
/// # Errors
/// If it ends before, with what is in `log`, or takes too long.
pub fn wait_for_port(process: &mut Child, port: u16, log: &str) -> Result<()> {
    let began = Instant::now();
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        if let Some(status) = process.try_wait()? {
            let log = fs::read_to_string(log).unwrap_or_default();
            bail!("it has ended with {status}: {log}");
        }
        if began.elapsed() > START {
            bail!("it does not accept connections");
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
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
