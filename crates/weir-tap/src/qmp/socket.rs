//! [`QmpClient`]: QMP on a unix socket: one line of JSON is sent, one line of JSON is received;
//! events in between are skipped.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde_json::{Value, json};

use super::listener::listener;
use super::{LINE_BYTES_MAX, QemuMonitor, QmpError};

/// Bytes per read.
const READ_BYTES: usize = 64 << 10;

/// A connection in command mode.
#[derive(Debug)]
pub struct QmpClient {
    at: String,
    stream: UnixStream,
    /// Bytes received after the last line.
    pending: Vec<u8>,
    timeout: Duration,
    asked: u64,
}

impl QmpClient {
    /// Connects and negotiates. Every wait, here and later for a response, has the timeout
    /// `timeout`.
    ///
    /// # Errors
    /// [`QmpError::Busy`] if QEMU sends no greeting: the kernel has accepted the connection, but
    /// QEMU serves another client.
    pub fn connect(path: &Path, timeout: Duration) -> Result<QmpClient, QmpError> {
        QmpClient::negotiate(path, dial(path)?, timeout)
    }

    /// As [`QmpClient::connect`], if process `pid` is the one that listens on the socket. Nothing
    /// is sent to any other process.
    ///
    /// # Errors
    /// [`QmpError::Foreign`] if another process listens.
    pub fn connect_to(path: &Path, pid: u32, timeout: Duration) -> Result<QmpClient, QmpError> {
        let at = path.display().to_string();
        let stream = dial(path)?;
        match listener(&stream) {
            Ok(found) if found == pid => QmpClient::negotiate(path, stream, timeout),
            Ok(found) => Err(QmpError::Foreign {
                at,
                named_by: pid,
                listener: found,
            }),
            Err(error) => Err(QmpError::Unreachable { at, error }),
        }
    }

    fn negotiate(
        path: &Path,
        stream: UnixStream,
        timeout: Duration,
    ) -> Result<QmpClient, QmpError> {
        let mut client = QmpClient {
            at: path.display().to_string(),
            stream,
            pending: Vec::new(),
            timeout,
            asked: 0,
        };
        let greeting = match client.read_value("the greeting", Instant::now() + timeout) {
            Err(QmpError::Silent { at, .. }) => return Err(QmpError::Busy { at }),
            other => other?,
        };
        if greeting.get("QMP").is_none() {
            return Err(client.garbled("the greeting is invalid"));
        }
        client.execute("qmp_capabilities", Value::Null)?;
        Ok(client)
    }

    #[cfg(test)]
    pub(super) fn timeout_for_test(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    fn garbled(&self, why: impl Into<String>) -> QmpError {
        QmpError::Garbled {
            at: self.at.clone(),
            why: why.into(),
        }
    }

    fn failed(&self, command: &str, error: io::Error) -> QmpError {
        use io::ErrorKind as Kind;
        let at = self.at.clone();
        match error.kind() {
            Kind::WouldBlock | Kind::TimedOut => QmpError::Silent {
                at,
                command: command.into(),
                waited: self.timeout,
            },
            Kind::BrokenPipe | Kind::ConnectionReset => QmpError::Closed { at },
            _ => QmpError::Unreachable { at, error },
        }
    }

    /// The next line, as JSON.
    fn read_value(&mut self, command: &str, until: Instant) -> Result<Value, QmpError> {
        loop {
            let line = self.read_line(command, until)?;
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            return serde_json::from_slice(&line).map_err(|error| {
                let head = String::from_utf8_lossy(&line[..line.len().min(60)]);
                self.garbled(format!("{error} in {:?}", head.trim_end()))
            });
        }
    }

    fn read_line(&mut self, command: &str, until: Instant) -> Result<Vec<u8>, QmpError> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.pending[searched..].iter().position(|b| *b == b'\n') {
                let rest = self.pending.split_off(searched + end + 1);
                return Ok(std::mem::replace(&mut self.pending, rest));
            }
            searched = self.pending.len();
            if searched > LINE_BYTES_MAX {
                return Err(self.garbled(format!("a line of more than {LINE_BYTES_MAX} bytes")));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.failed(command, io::ErrorKind::TimedOut.into()));
            }
            let read = self.stream.set_read_timeout(Some(left)).and_then(|()| {
                let mut chunk = [0; READ_BYTES];
                let read = self.stream.read(&mut chunk)?;
                self.pending.extend_from_slice(&chunk[..read]);
                Ok(read)
            });
            match read {
                Ok(0) => {
                    return Err(QmpError::Closed {
                        at: self.at.clone(),
                    });
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(command, error)),
            }
        }
    }
}

impl QemuMonitor for QmpClient {
    fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        self.asked += 1;
        let id = self.asked;
        let mut question = json!({"execute": command, "id": id});
        if !arguments.is_null() {
            question["arguments"] = arguments;
        }
        let line = format!("{question}\n");
        let written = self.stream.write_all(line.as_bytes());
        written.map_err(|error| self.failed(command, error))?;
        let until = Instant::now() + self.timeout;
        loop {
            let mut answer = self.read_value(command, until)?;
            let ours = answer.get("id").is_none_or(|i| *i == json!(id));
            // Events, and responses to requests that have timed out.
            if answer.get("event").is_some() || !ours {
                continue;
            }
            if let Some(returned) = answer.get_mut("return") {
                return Ok(returned.take());
            }
            return Err(match answer.get("error") {
                Some(error) => QmpError::Refused {
                    at: self.at.clone(),
                    command: command.into(),
                    reason: words(error),
                },
                None => self.garbled("an answer that is neither `return` nor `error`"),
            });
        }
    }
}

/// An error's description, or the whole error if it has none.
pub fn words(error: &Value) -> String {
    let description = error.get("desc").and_then(Value::as_str);
    description.map_or_else(|| error.to_string(), String::from)
}

/// Connects without blocking: connecting to a listener with a full queue could block indefinitely.
fn dial(path: &Path) -> Result<UnixStream, QmpError> {
    let at = || path.display().to_string();
    let unreachable = |error: Errno| QmpError::Unreachable {
        at: at(),
        error: error.into(),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = socket.map_err(unreachable)?;
    let address = SocketAddrUnix::new(path).map_err(unreachable)?;
    match connect(&socket, &address) {
        Ok(()) => {}
        Err(Errno::AGAIN) => return Err(QmpError::Busy { at: at() }),
        Err(error) => return Err(unreachable(error)),
    }
    let stream = UnixStream::from(socket);
    let ready = stream.set_nonblocking(false).and_then(|()| {
        // Requests are short; a peer that does not read one is treated as not responding.
        stream.set_write_timeout(Some(Duration::from_secs(1)))
    });
    ready.map_err(|error| QmpError::Unreachable { at: at(), error })?;
    Ok(stream)
}
