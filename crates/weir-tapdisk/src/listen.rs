//! [`Listening`]: the tap's own socket, where consumers ask for status, records and histograms.
//!
//! One thread serves all of them and never waits for one: what cannot be written now is written when the
//! peer reads, and who does not read is let go. It rests after every round in which somebody was
//! served, so that nobody can keep it busy.

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

use crate::histograms::Counting;
use crate::hub::{Hub, Subscription};
use crate::{Access, ServerSocket, SocketError, Stop};

/// Most connections at a time. Of those beyond, the one that has been silent for longest goes.
const CONNECTIONS_MAX: usize = 32;

/// Who asked for no records and says nothing for so long is let go.
const SILENCE: Duration = Duration::from_secs(60);

/// Who takes nothing of his answer for so long is let go.
const DEAFNESS: Duration = Duration::from_secs(10);

/// The thread's rest after having served somebody, and after having let somebody in or out.
const REST: Duration = Duration::from_millis(1);
const LONG_REST: Duration = Duration::from_millis(5);

/// How often it is looked who is deaf, silent or starved.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long lanes may take to end after the tap was told to.
const LANES_END: Duration = Duration::from_secs(3);

/// How long last words may take.
const FAREWELL: Duration = Duration::from_millis(200);

/// How much is read at once.
const READ_BYTES: usize = 16 << 10;

/// The tap's socket and the thread that serves it.
#[derive(Debug)]
pub struct Listening {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Listening {
    /// Listens at `path` until `stop` is raised; then everyone is told so, once the lanes have ended.
    ///
    /// # Errors
    /// When there can be no socket or no thread.
    pub fn start(
        hub: &Arc<Hub>,
        path: &Path,
        access: Access,
        stop: &Stop,
    ) -> Result<Listening, SocketError> {
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
        Ok(Listening {
            stop: stop.clone(),
            thread: Some(thread),
        })
    }
}

impl Drop for Listening {
    /// Ends it, and waits for that.
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
    stop: Stop,
    connections: Vec<Connection>,
}

impl Server {
    fn serve(mut self) {
        let mut looked = Instant::now();
        while !self.stop.is_raised() {
            let busy = self.wait();
            let mut rest = if busy { REST } else { Duration::ZERO };
            if self.accept() {
                rest = LONG_REST;
            }
            let before = self.hub.generation();
            for connection in &mut self.connections {
                connection.serve(&self.hub);
            }
            if looked.elapsed() > LOOK_EVERY {
                looked = Instant::now();
                self.connections.iter_mut().for_each(Connection::look);
            }
            self.connections.retain(|c| !c.over);
            if before != self.hub.generation() {
                rest = LONG_REST;
            }
            thread::sleep(rest);
        }
        self.take_leave();
    }

    /// Waits until somebody can be served, or it is time to look. True if somebody can.
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
        let asked = self.connections.iter().any(Connection::has_question);
        let patience = Timespec::try_from(if asked { Duration::ZERO } else { LOOK_EVERY }).ok();
        // An interrupted wait is a short one.
        poll(&mut all, patience.as_ref()).is_ok_and(|ready| ready > 0) || asked
    }

    /// Lets one in who waits; false if nobody does.
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
            // There is one: fewer take records or histograms than may be connected.
            if let Some((at, _)) = idle.min_by_key(|(_, c)| c.heard) {
                self.connections.remove(at);
            }
        }
        if let Ok(connection) = Connection::new(stream) {
            self.connections.push(connection);
        }
        true
    }

    /// Says that it is over, once all that was to tell is told.
    fn take_leave(mut self) {
        let until = Instant::now() + LANES_END;
        while self.hub.lanes_open() > 0 && Instant::now() < until {
            thread::sleep(REST);
        }
        let bye = Reply::to_line(Answer::Bye("it was told to end".into()));
        for connection in &mut self.connections {
            let _ = connection.stream.set_nonblocking(false);
            let _ = connection.stream.set_write_timeout(Some(FAREWELL));
            if connection.output.is_empty() {
                let _ = connection.stream.write_all(bye.as_bytes());
            }
            connection.leave(&self.hub, Hub::unsubscribe);
        }
    }
}

/// Somebody who asks.
struct Connection {
    stream: UnixStream,
    pid: Option<i32>,
    input: Vec<u8>,
    output: VecDeque<u8>,
    /// Goes with the first byte of the output.
    pass: Option<Arc<Memory>>,
    subscription: Option<Arc<Subscription>>,
    counting: Option<Counting>,
    heard: Instant,
    /// Since when the peer has taken nothing.
    deaf: Option<Instant>,
    over: bool,
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
            pass: None,
            subscription: None,
            counting: None,
            heard: Instant::now(),
            deaf: None,
            over: false,
        })
    }

    /// Whether it has nothing that outlives an answer.
    fn is_idle(&self) -> bool {
        self.subscription.is_none() && self.counting.is_none()
    }

    /// Reads, answers one question, and writes, as far as that goes without waiting.
    fn serve(&mut self, hub: &Arc<Hub>) {
        let served = self.flush().and_then(|()| {
            if !self.output.is_empty() {
                return Ok(());
            }
            self.read()?;
            if let Some(line) = self.line()? {
                self.heard = Instant::now();
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
            self.leave(hub, Hub::forget);
        }
        let starved = self.subscription.as_ref().is_some_and(|s| s.is_starved());
        if starved && !self.over {
            let why = "no memory for the ring of a queue that came; start again with less";
            let _ = self
                .stream
                .write(Reply::to_line(Answer::Error(why.into())).as_bytes());
            self.leave(hub, Hub::unsubscribe);
        }
    }

    /// Lets go who is silent or deaf.
    fn look(&mut self) {
        let silent = self.is_idle() && self.heard.elapsed() > SILENCE;
        let deaf = self.deaf.is_some_and(|since| since.elapsed() > DEAFNESS);
        if silent || deaf {
            // The next round lets it go.
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
            self.output.clear();
        }
    }

    /// It is over.
    fn leave(&mut self, hub: &Hub, let_go: fn(&Hub, &Arc<Subscription>)) {
        self.over = true;
        self.counting = None;
        if let Some(subscription) = self.subscription.take() {
            let_go(hub, &subscription);
        }
    }

    fn answer(&mut self, ask: Ask, hub: &Arc<Hub>) -> Answer {
        match ask {
            Ask::Status => Answer::Status(hub.status()),
            Ask::Disks => Answer::Disks(hub.disks()),
            Ask::Records(wanted) => self.records(wanted, hub),
            Ask::Histograms => self.histograms(hub, |_| {}),
            Ask::Reset => self.histograms(hub, Counting::reset),
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
        self.pass = Some(memory);
        self.subscription = Some(subscription);
        Answer::Records(RecordsWord {
            layout: layout::VERSION,
            ring_records,
            disks: hub.disks(),
        })
    }

    fn histograms(&mut self, hub: &Arc<Hub>, first: impl Fn(&Counting)) -> Answer {
        let begun = match self.counting.take() {
            Some(counting) => Ok(counting),
            None => Counting::begin(hub),
        };
        match begun {
            Ok(counting) => {
                first(&counting);
                let word: HistogramsWord = counting.snapshot();
                self.counting = Some(counting);
                Answer::Histograms(word)
            }
            Err(error) => Answer::Error(error.to_string()),
        }
    }

    /// Writes what waits.
    fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.write() {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.output.drain(..written);
                    self.deaf = None;
                }
                Err(error) if is_passing(&error) => {
                    self.deaf.get_or_insert_with(Instant::now);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<usize> {
        let (first, _) = self.output.as_slices();
        let files = self.pass.as_ref().map(|memory| [memory.as_fd()]);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let Some(files) = &files {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let written = sendmsg(&self.stream, &[IoSlice::new(first)], &mut control, flags)?;
        self.pass = None;
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
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether a line was read that can be answered.
    fn has_question(&self) -> bool {
        self.output.is_empty() && self.input.contains(&b'\n')
    }

    /// A whole line, if one is there.
    fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(end) = self.input.iter().position(|b| *b == b'\n') else {
            return match self.input.len() > ASK_BYTES_MAX {
                true => Err(io::ErrorKind::InvalidData.into()),
                false => Ok(None),
            };
        };
        let rest = self.input.split_off(end + 1);
        let line = std::mem::replace(&mut self.input, rest);
        Ok(Some(line))
    }
}

/// Whether the same may work in the next round.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
