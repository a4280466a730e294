//! A minimal client of QMP, QEMU's control protocol, for tests: independent of weir's own client.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// A connection to one QEMU.
#[derive(Debug)]
pub struct Qmp {
    lines: BufReader<UnixStream>,
}

/// How long QEMU may take for an answer: it may be busy with emulation.
const ANSWER: Duration = Duration::from_secs(20);

impl Qmp {
    /// Connects and completes the greeting.
    pub fn connect(socket: &Path) -> Result<Qmp> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("cannot connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(ANSWER))?;
        let mut qmp = Qmp {
            lines: BufReader::new(stream),
        };
        qmp.line()?;
        qmp.call("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Runs a command; returns its result.
    pub fn call(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let request = json!({"execute": command, "arguments": arguments});
        let stream = self.lines.get_mut();
        stream.write_all(format!("{request}\n").as_bytes())?;
        loop {
            let mut answer = self
                .line()
                .with_context(|| format!("asking for {command}"))?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU refuses {command}: {error}");
            }
            // Events may come in between.
            if let Some(returned) = answer.get_mut("return") {
                return Ok(returned.take());
            }
        }
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            bail!("QEMU closed the connection");
        }
        Ok(serde_json::from_str(&line)?)
    }
}
