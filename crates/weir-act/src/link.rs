//! [`ActLink`]: the connection to the process that carries out actions ([`crate::service`]), a
//! child of this one or one that serves a socket: messages in one direction, steps in the other.
//!
//! When this process ends for whatever reason, the other one receives the end of its input, and
//! undoes what lasts.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::service::ActMessage;

/// Where `weir act serve` listens for an agent.
pub const SOCKET: &str = "/run/weir-act/act.sock";

/// The longest wait until a message is accepted.
const SEND_MAX: Duration = Duration::from_secs(1);

/// The longest wait until the process that serves a socket answers.
const HANDSHAKE_MAX: Duration = Duration::from_secs(2);

/// Maximum bytes of a line.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Maximum number of lines that wait.
const LINES_MAX: usize = 1_000;

/// See the module's documentation.
#[derive(Debug)]
pub struct ActLink {
    input: Option<Input>,
    steps: Receiver<String>,
}

#[derive(Debug)]
enum Input {
    Pipe(ChildStdin),
    Socket(UnixStream),
}

impl ActLink {
    /// The link to a child.
    pub fn of_child(input: ChildStdin, output: ChildStdout) -> ActLink {
        ActLink {
            input: Some(Input::Pipe(input)),
            steps: read_lines(output),
        }
    }

    /// Connects to the process that serves `socket`.
    ///
    /// # Errors
    /// When none serves it, or it serves another process.
    pub fn connect(socket: &Path) -> io::Result<ActLink> {
        let stream = UnixStream::connect(socket)?;
        stream.set_write_timeout(Some(SEND_MAX))?;
        let link = ActLink {
            steps: read_lines(stream.try_clone()?),
            input: Some(Input::Socket(stream)),
        };
        let greeting = link.steps.recv_timeout(HANDSHAKE_MAX).map_err(|_| {
            let why = "it does not answer, or another process is connected to it";
            io::Error::new(io::ErrorKind::TimedOut, why)
        })?;
        match step(&greeting)["event"] == "serving" {
            true => Ok(link),
            false => Err(io::Error::other("it is not `weir act serve`")),
        }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When the process has ended or accepts nothing.
    pub fn send(&mut self, message: &ActMessage) -> io::Result<()> {
        let line = serde_json::to_string(message)? + "\n";
        match &mut self.input {
            Some(Input::Pipe(pipe)) => pipe.write_all(line.as_bytes()),
            Some(Input::Socket(stream)) => stream.write_all(line.as_bytes()),
            None => Ok(()),
        }
    }

    /// The steps since the last call, as [`crate::service`] prints them.
    ///
    /// # Errors
    /// When the process has ended; its steps before that were returned.
    pub fn steps(&self) -> io::Result<Vec<Value>> {
        let mut steps = Vec::new();
        loop {
            match self.steps.try_recv() {
                Ok(line) => steps.push(step(&line)),
                Err(TryRecvError::Empty) => return Ok(steps),
                Err(TryRecvError::Disconnected) if !steps.is_empty() => return Ok(steps),
                Err(TryRecvError::Disconnected) => {
                    return Err(io::Error::other("the process has ended"));
                }
            }
        }
    }

    /// Ends the input of the process, which undoes what lasts; returns its last steps. False if it
    /// did not end its output within `wait_max`.
    pub fn close(&mut self, wait_max: Duration) -> (Vec<Value>, bool) {
        if let Some(Input::Socket(stream)) = self.input.take() {
            // It may have ended already.
            let _ = stream.shutdown(Shutdown::Write);
        }
        let end = Instant::now() + wait_max;
        let mut steps = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.steps.recv_timeout(left) {
                Ok(line) => steps.push(step(&line)),
                Err(RecvTimeoutError::Disconnected) => return (steps, true),
                Err(RecvTimeoutError::Timeout) => return (steps, false),
            }
        }
    }
}

impl Drop for ActLink {
    /// Ends the connection, of which the thread that reads steps has a part.
    fn drop(&mut self) {
        if let Some(Input::Socket(stream)) = &self.input {
            // It may have ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// The lines of an input, until it ends; one that is too long is split.
pub fn read_lines(input: impl Read + Send + 'static) -> Receiver<String> {
    let (send, lines) = sync_channel(LINES_MAX);
    thread::spawn(move || {
        let mut input = BufReader::new(input);
        loop {
            let mut line = String::new();
            let read = input.by_ref().take(LINE_BYTES_MAX).read_line(&mut line);
            if !read.is_ok_and(|bytes| bytes > 0) || send.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// A step; one that is no JSON is of no known kind.
fn step(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or(Value::Null)
}
