//! The collector's own process: accepts connections, serves one after the other, and ends with its
//! collections.

use std::fs;
use std::io::{self, BufReader, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::collections::{Collections, Open};
use super::place::Place;
use super::protocol::{End, Order, QUESTION_BYTES_MAX, Question, read_line};
use crate::hist::gauge::Gauge;
use weir_runtime::failure::Failure;

/// The timeout for a client to send or receive a line.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a collector waits for its first collection.
const FIRST_ORDER: Duration = Duration::from_secs(10);

/// How long the lock may still be held by a collector that is about to end.
const LOCK: Duration = Duration::from_secs(5);

/// The line that the collector prints when it accepts connections.
pub const READY: &str = "ready";

/// The line that it prints when another one is running.
pub const RUNNING: &str = "running";

/// Runs the collector of `place` in a process of its own, until nothing is collected any more. The
/// parent process reads a line of standard output: [`READY`], [`RUNNING`] or the error.
///
/// # Errors
/// When the place cannot be locked, or the socket cannot be opened.
pub fn run<G: Gauge>(
    place: &Place,
    open: impl FnMut(&Order) -> Result<G, Failure> + 'static,
) -> Result<(), Failure> {
    // A session of its own does not receive Ctrl-C or the hangup of a terminal. The call fails if
    // the process already leads one.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    let (signals, told) = UnixStream::pair()?;
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, told.try_clone()?)?;
    }
    let said = |word: &str| {
        let mut out = io::stdout().lock();
        // The parent process may have ended.
        let _ = writeln!(out, "{word}").and_then(|()| out.flush());
    };
    serve(place, signals, Box::new(open), said)
}

/// Serves at `place` until nothing is collected, or `signals` can be read.
pub(super) fn serve<G: Gauge>(
    place: &Place,
    signals: UnixStream,
    open: Open<G>,
    said: impl Fn(&str),
) -> Result<(), Failure> {
    place.make()?;
    let until = Instant::now() + LOCK;
    // Held until the end.
    let _lock = loop {
        match place.lock()? {
            Some(lock) => break lock,
            None if UnixStream::connect(place.socket()).is_ok() || Instant::now() > until => {
                said(RUNNING);
                return Ok(());
            }
            // It has closed its socket and is about to end.
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let server = Server {
        listener: listen(place)?,
        place: place.clone(),
        signals,
        collections: Collections::new(place.clone(), open),
        ordered: false,
    };
    said(READY);
    server.serve()
}

/// Opens the socket; one that a killed collector left is removed.
fn listen(place: &Place) -> Result<UnixListener, Failure> {
    let socket = place.socket();
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket)
        .map_err(|error| Failure::world(format_args!("{}: {error}", socket.display())))?;
    // The directory is already inaccessible to others.
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

struct Server<G> {
    listener: UnixListener,
    place: Place,
    /// Readable once a signal was received.
    signals: UnixStream,
    collections: Collections<G>,
    /// A collection was started.
    ordered: bool,
}

impl<G: Gauge> Server<G> {
    fn serve(mut self) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            let patience = match self.collections.next_stop() {
                None if self.collections.is_empty() => {
                    Some(FIRST_ORDER.saturating_sub(begun.elapsed()))
                }
                patience => patience,
            };
            let (asked, signalled) = self.wait(patience)?;
            self.collections.stop_what_is_over();
            if signalled {
                self.collections.stop_all();
                self.close();
                return Ok(());
            }
            if asked && !self.is_over(begun) {
                self.answer_next();
            }
            if self.is_over(begun) {
                self.close();
                return Ok(());
            }
        }
    }

    /// True if nothing is collected, and the time for the first collection has passed.
    fn is_over(&self, begun: Instant) -> bool {
        self.collections.is_empty() && (self.ordered || begun.elapsed() >= FIRST_ORDER)
    }

    /// Removes the socket. A client that has just connected receives the end of the connection, and
    /// connects again.
    fn close(&self) {
        let _ = fs::remove_file(self.place.socket());
    }

    /// Waits for a connection or a signal; returns which of them occurred.
    fn wait(&self, patience: Option<Duration>) -> Result<(bool, bool), Failure> {
        let mut ready = [
            PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ];
        // The kernel may wake the thread a little early; one more iteration is harmless.
        let patience = patience.and_then(|p| Timespec::try_from(p).ok());
        match poll(&mut ready, patience.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Failure::world(error)),
        }
        let [asked, signalled] = ready.map(|fd| !fd.revents().is_empty());
        Ok((asked, signalled))
    }

    fn answer_next(&mut self) {
        let Ok((stream, _)) = self.listener.accept() else {
            // The client has disconnected.
            return;
        };
        // A client that disconnects or is too slow receives no response.
        let _ = self.answer(stream);
    }

    fn answer(&mut self, stream: UnixStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut from = BufReader::new(stream.try_clone()?);
        let Some(line) = read_line(&mut from, QUESTION_BYTES_MAX)? else {
            return Ok(());
        };
        let answer = match Question::of_line(&line) {
            Some(question) => self.collections.answer(question),
            None => Err(Failure::world(
                "the collector does not understand the question: it is of another version; \
                 end it, as with `kill`, and start anew",
            )),
        };
        self.ordered = true;
        if self.collections.is_empty() {
            self.close();
        }
        let (lines, end) = match answer {
            Ok(lines) => (lines, End::Done),
            Err(Failure::Words(text)) => {
                let text = text.strip_prefix("weir: ").unwrap_or(&text);
                (Vec::new(), End::Refused(text.to_owned(), true))
            }
            Err(Failure::World(error)) => (Vec::new(), End::Refused(format!("{error:#}"), false)),
        };
        let mut to = BufWriter::new(stream);
        for line in lines.into_iter().chain([end.to_line()]) {
            to.write_all(line.as_bytes())?;
            to.write_all(b"\n")?;
        }
        to.flush()
    }
}
