//! [`Virsh`]: QMP through libvirt, by running `virsh qemu-monitor-command`: weir needs no libvirt
//! libraries.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::socket::words;
use super::{LINE_BYTES_MAX, QemuMonitor, QmpError};

/// Interval at which a running virsh is checked.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A libvirt domain to be queried.
#[derive(Debug)]
pub struct Virsh {
    program: String,
    uri: String,
    domain: String,
    timeout: Duration,
}

/// The output of virsh.
struct Outcome {
    status: ExitStatus,
    out: Vec<u8>,
    err: Vec<u8>,
}

impl Virsh {
    /// The domain called `domain` of the libvirt at `uri`, as `qemu:///system`. `timeout` is the
    /// timeout of each response. Nothing is executed yet.
    pub fn new(uri: &str, domain: &str, timeout: Duration) -> Virsh {
        Virsh::run_by("virsh", uri, domain, timeout)
    }

    /// The same, with a replacement of virsh.
    pub(super) fn run_by(program: &str, uri: &str, domain: &str, timeout: Duration) -> Virsh {
        Virsh {
            program: program.into(),
            uri: uri.into(),
            domain: domain.into(),
            timeout,
        }
    }

    fn at(&self) -> String {
        format!("{} (domain {})", self.uri, self.domain)
    }

    fn run(&self, command: &str, question: &str) -> Result<Outcome, QmpError> {
        let unreachable = |error| QmpError::Unreachable {
            at: self.at(),
            error,
        };
        let mut child = Command::new(&self.program)
            .args(["-q", "-c", &self.uri, "qemu-monitor-command", "--domain"])
            .args([&self.domain, question])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                let words = format!("{} cannot be run: {error}", self.program);
                unreachable(io::Error::new(error.kind(), words))
            })?;
        let out = drain(child.stdout.take().expect("it was asked for"));
        let err = drain(child.stderr.take().expect("it was asked for"));
        let status = wait(&mut child, self.timeout).map_err(unreachable)?;
        let Some(status) = status else {
            return Err(QmpError::Silent {
                at: self.at(),
                command: command.into(),
                waited: self.timeout,
            });
        };
        let text = |thread: JoinHandle<Vec<u8>>| thread.join().expect("reading does not panic");
        Ok(Outcome {
            status,
            out: text(out),
            err: text(err),
        })
    }
}

impl QemuMonitor for Virsh {
    fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        let mut question = json!({"execute": command});
        if !arguments.is_null() {
            question["arguments"] = arguments;
        }
        let outcome = self.run(command, &question.to_string())?;
        let refused = |reason: String| QmpError::Refused {
            at: self.at(),
            command: command.into(),
            reason,
        };
        if !outcome.status.success() {
            let err = String::from_utf8_lossy(&outcome.err);
            let reason = err.trim().trim_start_matches("error: ").replace('\n', "; ");
            // virsh has the same exit status if libvirt is unavailable and if QEMU returns an
            // error; only in the latter case can further commands succeed.
            return Err(match reason.contains("unable to execute QEMU command") {
                true => refused(reason),
                false => QmpError::Unreachable {
                    at: self.at(),
                    error: io::Error::other(reason),
                },
            });
        }
        let garbled = |why: String| QmpError::Garbled { at: self.at(), why };
        if outcome.out.len() > LINE_BYTES_MAX {
            let why = format!("an answer of more than {LINE_BYTES_MAX} bytes");
            return Err(garbled(why));
        }
        let mut answer: Value =
            serde_json::from_slice(&outcome.out).map_err(|e| garbled(e.to_string()))?;
        match (answer.get("return").is_some(), answer.get("error")) {
            (true, _) => Ok(answer["return"].take()),
            (false, Some(error)) => Err(refused(words(error))),
            (false, None) => Err(garbled(
                "an answer that is neither `return` nor `error`".into(),
            )),
        }
    }
}

/// Reads all output in a separate thread, so that virsh is never blocked by a full pipe. One byte
/// more than the bound is kept, the rest is discarded.
fn drain(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut kept = Vec::new();
        let bound = LINE_BYTES_MAX as u64 + 1;
        // An error ends the text like its end; missing output is detected by the parser.
        let _ = from.by_ref().take(bound).read_to_end(&mut kept);
        let _ = io::copy(&mut from, &mut io::sink());
        kept
    })
}

/// The exit status; `None` if it was killed after the timeout.
fn wait(child: &mut Child, timeout: Duration) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + timeout;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(LOOK_EVERY);
    }
}
