//! [`ControlServer`]: the tap's control socket, where clients request status, records and
//! histograms.
//!
//! One thread serves all of them and never waits for one: data that cannot be written now are
//! written when the peer reads, and a peer that does not read is disconnected. It sleeps after
//! every round in which a client was served, so that no client can keep it busy.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, sendmsg, sockopt,
};
use weir_tap::tapdisk::layout;
use weir_tap::tapdisk::ring::Memory;
use weir_tap::tapdisk::words::{
    ASK_BYTES_MAX, Answer, Ask, HistogramsWord, Question, RecordsWord, Reply, Wanted,
};

use crate::histograms::HistogramCounter;
use crate::hub::{Hub, Subscription};
use crate::{ServerSocket, SocketAccess, SocketError, StopEvent};

/// Maximum number of connections. Beyond that, the one that has been silent for longest is closed.
const CONNECTIONS_MAX: usize = 32;

/// A client without subscription is disconnected after this time of silence.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A client that reads nothing of its answer for this time is disconnected.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The sleep of the thread after serving a client, and after accepting or closing a connection.
const SLEEP: Duration = Duration::from_millis(1);
const LONG_SLEEP: Duration = Duration::from_millis(5);

/// The interval of the checks for unresponsive, silent and starved clients.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// How long I/O queues may take to end after the tap was stopped.
const QUEUES_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the last messages may take.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);

/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;

/// The tap's socket and the thread that serves it.
#[derive(Debug)]
pub struct ControlServer {
    stop: StopEvent,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Listens at `path` until `stop` is raised; clients are then informed, once the I/O queues
    /// have ended.
    ///
    /// # Errors
    /// When the socket or the thread cannot be created.
    pub fn start(
        hub: &Arc<Hub>,
        path: &Path,
        access: SocketAccess,
        stop: &StopEvent,
    ) -> Result<ControlServer, SocketError> {
        let failed = |what| {
            let path = path.to_owned();
            move |error| SocketError::System { path, what, error }
        };
        let socket = ServerSocket::bind(path, SocketType::STREAM, access)?;
        socket
            .listener()
            .set_nonblocking(true)
            .map_err(failed("listen"))?;
        let server = Server {
            hub: hub.clone(),
            socket,
            stop: stop.clone(),
            connections: Vec::new(),
        };
        let name = thread::Builder::new().name("tap".into());
        let thread = name
            .spawn(move || server.serve())
            .map_err(failed("start a thread"))?;
        Ok(ControlServer {
            stop: stop.clone(),
            thread: Some(thread),
        })
    }
}

impl Drop for ControlServer {
    /// Stops it, and waits for the end.
    fn drop(&mut self) {
        self.stop.raise();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Server {
    hub: Arc<Hub>,
    socket: ServerSocket,
    stop: StopEvent,
    connections: Vec<Connection>,
}

impl Server {
    fn serve(mut self) {
        let mut checked = Instant::now();
        while !self.stop.is_raised() {
            let busy = self.wait();
            let mut pause = if busy { SLEEP } else { Duration::ZERO };
            if self.accept() {
                pause = LONG_SLEEP;
            }
            let before = self.hub.generation();
            for connection in &mut self.connections {
                connection.serve(&self.hub);
            }
            if checked.elapsed() > CHECK_INTERVAL {
                checked = Instant::now();
                self.connections
                    .iter_mut()
                    .for_each(Connection::check_timeouts);
            }
            self.connections.retain(|c| !c.is_closed);
            if before != self.hub.generation() {
                pause = LONG_SLEEP;
            }
            thread::sleep(pause);
        }
        self.send_end();
    }

    /// Waits until a client can be served, or a check is due. True if a client can.
    fn wait(&self) -> bool {
        let listener = PollFd::new(self.socket.listener(), PollFlags::IN);
        let stop = PollFd::from_borrowed_fd(self.stop.fd(), PollFlags::IN);
        let connections = self.connections.iter().map(|c| {
            let flags = match c.output.is_empty() {
                true => PollFlags::IN,
                false => PollFlags::OUT,
            };
            PollFd::from_borrowed_fd(c.stream.as_fd(), flags)
        });
        let mut all: Vec<PollFd> = [listener, stop].into_iter().chain(connections).collect();
        let has_request = self.connections.iter().any(Connection::has_request);
        let timeout = Timespec::try_from(if has_request {
            Duration::ZERO
        } else {
            CHECK_INTERVAL
        })
        .ok();
        // An interrupted wait is a short one.
        poll(&mut all, timeout.as_ref()).is_ok_and(|ready| ready > 0) || has_request
    }

    /// Accepts a waiting client; false if there is none.
    fn accept(&mut self) -> bool {
        let Ok((stream, _)) = self.socket.listener().accept() else {
            return false;
        };
        if self.connections.len() >= CONNECTIONS_MAX {
            let idle = self
                .connections
                .iter()
                .enumerate()
                .filter(|(_, c)| c.is_idle());
            // There is one: fewer clients receive records or histograms than can be connected.
            if let Some((at, _)) = idle.min_by_key(|(_, c)| c.last_read) {
                self.connections.remove(at);
            }
        }
        if let Ok(connection) = Connection::new(stream) {
            self.connections.push(connection);
        }
        true
    }

    /// Sends the end, after all records.
    fn send_end(mut self) {
        let until = Instant::now() + QUEUES_TIMEOUT;
        while self.hub.open_rings() > 0 && Instant::now() < until {
            thread::sleep(SLEEP);
        }
        let last_message = Reply::to_line(Answer::Bye("it was stopped".into()));
        for connection in &mut self.connections {
            let _ = connection.stream.set_nonblocking(false);
            let _ = connection.stream.set_write_timeout(Some(CLOSE_TIMEOUT));
            if connection.output.is_empty() {
                let _ = connection.stream.write_all(last_message.as_bytes());
            }
            connection.close(&self.hub, Hub::unsubscribe);
        }
    }
}

/// A client.
struct Connection {
    stream: UnixStream,
    pid: Option<i32>,
    input: Vec<u8>,
    output: VecDeque<u8>,
    /// Passed with the first byte of the output.
    passed_memory: Option<Arc<Memory>>,
    subscription: Option<Arc<Subscription>>,
    histograms: Option<HistogramCounter>,
    last_read: Instant,
    /// Since when the peer has read nothing.
    unread_since: Option<Instant>,
    is_closed: bool,
}

impl Connection {
    fn new(stream: UnixStream) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        let pid = sockopt::socket_peercred(&stream).ok();
        Ok(Connection {
            stream,
            pid: pid.map(|peer| peer.pid.as_raw_nonzero().get()),
            input: Vec::new(),
            output: VecDeque::new(),
            passed_memory: None,
            subscription: None,
            histograms: None,
            last_read: Instant::now(),
            unread_since: None,
            is_closed: false,
        })
    }

    /// Whether it has no state that outlives an answer.
    fn is_idle(&self) -> bool {
        self.subscription.is_none() && self.histograms.is_none()
    }

    /// Reads, answers one request, and writes, as far as possible without waiting.
    fn serve(&mut self, hub: &Arc<Hub>) {
        let served = self.flush().and_then(|()| {
            if !self.output.is_empty() {
                return Ok(());
            }
            self.read()?;
            if let Some(line) = self.line()? {
                self.last_read = Instant::now();
                let answer = match Question::of_line(&line) {
                    Ok(ask) => self.answer(ask, hub),
                    Err(why) => Answer::Error(why),
                };
                self.output.extend(Reply::to_line(answer).into_bytes());
                self.flush()?;
            }
            Ok(())
        });
        if served.is_err() {
            self.close(hub, Hub::disconnect);
        }
        let starved = self.subscription.as_ref().is_some_and(|s| s.is_starved());
        if starved && !self.is_closed {
            let why = "no memory for the ring of a queue that came; start again with less";
            let _ = self
                .stream
                .write(Reply::to_line(Answer::Error(why.into())).as_bytes());
            self.close(hub, Hub::unsubscribe);
        }
    }

    /// Disconnects clients that are silent or do not read.
    fn check_timeouts(&mut self) {
        let silent = self.is_idle() && self.last_read.elapsed() > IDLE_TIMEOUT;
        let unread_since = self
            .unread_since
            .is_some_and(|since| since.elapsed() > READ_TIMEOUT);
        if silent || unread_since {
            // The next round closes it.
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
            self.output.clear();
        }
    }

    /// Closes the connection.
    fn close(&mut self, hub: &Hub, remove: fn(&Hub, &Arc<Subscription>)) {
        self.is_closed = true;
        self.histograms = None;
        if let Some(subscription) = self.subscription.take() {
            remove(hub, &subscription);
        }
    }

    fn answer(&mut self, ask: Ask, hub: &Arc<Hub>) -> Answer {
        match ask {
            Ask::Status => Answer::Status(hub.status()),
            Ask::Disks => Answer::Disks(hub.disks()),
            Ask::Records(wanted) => self.records(wanted, hub),
            Ask::Histograms => self.histograms(hub, |_| {}),
            Ask::Reset => self.histograms(hub, HistogramCounter::reset),
        }
    }

    fn records(&mut self, wanted: Wanted, hub: &Hub) -> Answer {
        if self.subscription.is_some() {
            return Answer::Error("this connection has its records; open another".into());
        }
        let subscription = match hub.subscribe(wanted, self.pid) {
            Ok(subscription) => subscription,
            Err(error) => return Answer::Error(error.to_string()),
        };
        let memory = subscription.memory().clone();
        let ring_records = memory.layout().ring_records();
        self.passed_memory = Some(memory);
        self.subscription = Some(subscription);
        Answer::Records(RecordsWord {
            layout: layout::VERSION,
            ring_records,
            disks: hub.disks(),
        })
    }

    fn histograms(&mut self, hub: &Arc<Hub>, first: impl Fn(&HistogramCounter)) -> Answer {
        let started = match self.histograms.take() {
            Some(histograms) => Ok(histograms),
            None => HistogramCounter::begin(hub),
        };
        match started {
            Ok(histograms) => {
                first(&histograms);
                let word: HistogramsWord = histograms.snapshot();
                self.histograms = Some(histograms);
                Answer::Histograms(word)
            }
            Err(error) => Answer::Error(error.to_string()),
        }
    }

    /// Writes pending output.
    fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.write() {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.output.drain(..written);
                    self.unread_since = None;
                }
                Err(error) if is_transient(&error) => {
                    self.unread_since.get_or_insert_with(Instant::now);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<usize> {
        let (first, _) = self.output.as_slices();
        let files = self.passed_memory.as_ref().map(|memory| [memory.as_fd()]);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let Some(files) = &files {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let written = sendmsg(&self.stream, &[IoSlice::new(first)], &mut control, flags)?;
        self.passed_memory = None;
        Ok(written)
    }

    fn read(&mut self) -> io::Result<()> {
        let mut bytes = [0; READ_BYTES];
        if self.input.len() > ASK_BYTES_MAX {
            return Ok(());
        }
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                self.input.extend_from_slice(&bytes[..read]);
                Ok(())
            }
            Err(error) if is_transient(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether a line was read that can be answered.
    fn has_request(&self) -> bool {
        self.output.is_empty() && self.input.contains(&b'\n')
    }

    /// A whole line, if one was read.
    fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(end) = self.input.iter().position(|b| *b == b'\n') else {
            return match self.input.len() > ASK_BYTES_MAX {
                true => Err(io::ErrorKind::InvalidData.into()),
                false => Ok(None),
            };
        };
        let pause = self.input.split_off(end + 1);
        let line = std::mem::replace(&mut self.input, pause);
        Ok(Some(line))
    }
}

/// Whether the operation may succeed in the next round.
fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
