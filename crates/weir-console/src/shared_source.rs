//! [`SharedSource`]: the process that reads the live source once, for the queries of all tabs.
//!
//! It is `weir console-source`. It listens on an abstract Unix socket and accepts connections of
//! the console only. Each connection is one query: a line of JSON ([`SourceRequest`]), then the
//! result in chunks: a length (4 bytes, little-endian) and so many bytes. Length 0 ends the result;
//! a last chunk with a [`SourceEnd`] follows. Closing the connection ends the query.
//!
//! The process retains the requests of the last minutes, which queries can read instead of the live
//! rows.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::program::{self, Program, ProgramError};

/// The hidden command that reads the source.
pub const COMMAND: &str = "console-source";

/// The maximum size of a chunk in bytes.
pub const CHUNK_BYTES_MAX: usize = 64 << 10;

/// The maximum size of the message at the end of a result.
const END_BYTES_MAX: usize = 64 << 10;

/// The pause before the process is started again after it has ended.
const RESTART_PAUSE: Duration = Duration::from_secs(5);

/// A request of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum SourceRequest {
    /// Run a query.
    Query {
        /// The query.
        q: String,
        /// Whether it reads the retained rows. Otherwise it reads live rows until the connection is
        /// closed.
        recent: bool,
        /// The format of the result, as for `--format`.
        format: String,
        /// Whether only the final content of a relation is the result.
        last: bool,
    },
    /// Report the interval of the retained rows.
    Interval,
}

/// The end of a result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceEnd {
    /// `end`, `query` (incorrect), `unsuited` (a process of its own has to run it) or `failed`.
    pub reason: String,
    /// The error.
    pub message: String,
    /// The retained rows are all rows after this instant, in nanoseconds since 1970.
    #[serde(default)]
    pub since: Option<i64>,
    /// The last instant of the source.
    #[serde(default)]
    pub until: Option<i64>,
}

impl SourceEnd {
    /// An end without an interval.
    pub fn new(reason: &str, message: impl Into<String>) -> SourceEnd {
        SourceEnd {
            reason: reason.to_owned(),
            message: message.into(),
            ..SourceEnd::default()
        }
    }
}

/// Writes a result in chunks.
pub struct ChunkWriter(pub UnixStream);

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let size = bytes.len().min(CHUNK_BYTES_MAX);
        if size > 0 {
            let mut chunk = (size as u32).to_le_bytes().to_vec();
            chunk.extend_from_slice(&bytes[..size]);
            self.0.write_all(&chunk)?;
        }
        Ok(size)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Ends a result.
///
/// # Errors
/// When the connection is closed.
pub fn write_end(stream: &mut UnixStream, end: &SourceEnd) -> io::Result<()> {
    let text = serde_json::to_vec(end).expect("it has only texts and numbers");
    let mut bytes = 0u32.to_le_bytes().to_vec();
    bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&text);
    stream.write_all(&bytes)
}

/// Reads the result of a query.
pub struct ChunkReader {
    stream: UnixStream,
    /// The rest of the chunk.
    rest: usize,
    end: Option<SourceEnd>,
}

impl ChunkReader {
    /// The end of the result, once it was read. Without it the process has ended.
    pub fn end(&self) -> Option<&SourceEnd> {
        self.end.as_ref()
    }

    /// A handle that ends the query.
    ///
    /// # Errors
    /// When there is no further file descriptor.
    pub fn closer(&self) -> io::Result<UnixStream> {
        self.stream.try_clone()
    }

    fn length(&mut self) -> io::Result<usize> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        Ok(u32::from_le_bytes(length) as usize)
    }

    fn read_end(&mut self) -> io::Result<()> {
        let size = self.length()?;
        if size > END_BYTES_MAX {
            return Err(io::Error::other("the end of a result is too large"));
        }
        let mut text = vec![0; size];
        self.stream.read_exact(&mut text)?;
        self.end = Some(serde_json::from_slice(&text)?);
        Ok(())
    }
}

impl Read for ChunkReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.end.is_some() || into.is_empty() {
            return Ok(0);
        }
        if self.rest == 0 {
            self.rest = self.length()?;
            if self.rest == 0 {
                self.read_end()?;
                return Ok(0);
            }
        }
        let size = self.rest.min(into.len());
        let read = self.stream.read(&mut into[..size])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.rest -= read;
        Ok(read)
    }
}

/// The process, which is started with the first query and again if it ends.
pub struct SharedSource {
    program: Program,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: Option<Running>,
    /// When the process ended, or could not be started.
    failed_at: Option<Instant>,
    why: String,
}

struct Running {
    child: Child,
    socket: String,
}

impl SharedSource {
    /// A source that is not started yet.
    pub fn new(program: Program) -> Arc<SharedSource> {
        Arc::new(SharedSource {
            program,
            state: Mutex::default(),
        })
    }

    /// Sends a request; the result is read from the reader.
    ///
    /// # Errors
    /// When the process cannot be started, or has ended recently.
    pub fn open(&self, request: &SourceRequest) -> Result<ChunkReader, ProgramError> {
        let failed = |e: io::Error| ProgramError::Failed(format!("the shared source: {e}"));
        let name = self.socket()?;
        let address = SocketAddr::from_abstract_name(&name).map_err(failed)?;
        let mut stream = UnixStream::connect_addr(&address).map_err(failed)?;
        let mut line = serde_json::to_vec(request).expect("it has only texts");
        line.push(b'\n');
        stream.write_all(&line).map_err(failed)?;
        Ok(ChunkReader {
            stream,
            rest: 0,
            end: None,
        })
    }

    /// The interval of the retained rows, in nanoseconds since 1970.
    pub fn interval(&self) -> Option<(i64, i64)> {
        let mut reader = self.open(&SourceRequest::Interval).ok()?;
        io::copy(&mut reader, &mut io::sink()).ok()?;
        let end = reader.end()?;
        end.since.zip(end.until)
    }

    /// The process identifier, while it runs.
    pub fn pid(&self) -> Option<u32> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.running.as_ref().map(|running| running.child.id())
    }

    /// The name of the socket; starts the process if it does not run.
    fn socket(&self) -> Result<String, ProgramError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = &mut state.running {
            match running.child.try_wait() {
                Ok(None) => return Ok(running.socket.clone()),
                _ => {
                    state.running = None;
                    state.failed_at = Some(Instant::now());
                    state.why = "it has ended".to_owned();
                }
            }
        }
        if state
            .failed_at
            .is_some_and(|at| at.elapsed() < RESTART_PAUSE)
        {
            return Err(ProgramError::Failed(state.why.clone()));
        }
        match self.start() {
            Ok(running) => {
                let socket = running.socket.clone();
                (state.running, state.failed_at) = (Some(running), None);
                Ok(socket)
            }
            Err(error) => {
                let (ProgramError::Failed(why) | ProgramError::Refused(why)) = &error;
                (state.failed_at, state.why) = (Some(Instant::now()), why.clone());
                Err(error)
            }
        }
    }

    fn start(&self) -> Result<Running, ProgramError> {
        let failed = |e: io::Error| ProgramError::Failed(format!("weir: {e}"));
        let mut command = Command::new(&self.program.executable);
        command.arg(COMMAND).args(&self.program.shared_options);
        // The process ends when its standard input is closed.
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let mut first = String::new();
        let output = child.stdout.take().expect("it is a pipe");
        let read = BufReader::new(output).read_line(&mut first);
        let messages = child.stderr.take().expect("it is a pipe");
        match (read, first.trim()) {
            (Ok(_), socket) if !socket.is_empty() => {
                // Its messages are those of a run that ends, which nothing reads.
                std::thread::spawn(move || io::copy(&mut { messages }, &mut io::sink()));
                Ok(Running {
                    child,
                    socket: socket.to_owned(),
                })
            }
            _ => {
                let mut text = Vec::new();
                // Without its messages, its status remains.
                let _ = messages.take(END_BYTES_MAX as u64).read_to_end(&mut text);
                let status = child.wait().map_err(failed)?;
                Err(program::error(status, &text))
            }
        }
    }
}

impl Drop for SharedSource {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let state = state.unwrap_or_else(PoisonError::into_inner);
        if let Some(mut running) = state.running.take() {
            program::terminate(running.child.id());
            // It ends with its input as well.
            drop(running.child.stdin.take());
            let _ = running.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_in_chunks_reads_back_with_its_end() {
        let (mut server, stream) = UnixStream::pair().unwrap();
        let sent: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
        let end = SourceEnd::new("failed", "why");
        let (data, last) = (sent.clone(), end.clone());
        let writer = std::thread::spawn(move || {
            let mut chunks = ChunkWriter(server.try_clone().unwrap());
            chunks.write_all(&data).unwrap();
            write_end(&mut server, &last).unwrap();
        });
        let mut reader = ChunkReader {
            stream,
            rest: 0,
            end: None,
        };
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        writer.join().unwrap();
        assert_eq!(read, sent);
        assert_eq!(reader.end(), Some(&end));
    }

    #[test]
    fn a_result_without_its_end_is_an_error() {
        let (server, stream) = UnixStream::pair().unwrap();
        let mut chunks = ChunkWriter(server);
        chunks.write_all(b"rows").unwrap();
        drop(chunks);
        let mut reader = ChunkReader {
            stream,
            rest: 0,
            end: None,
        };
        let mut read = Vec::new();
        assert!(reader.read_to_end(&mut read).is_err());
        assert_eq!(read, b"rows");
    }
}
