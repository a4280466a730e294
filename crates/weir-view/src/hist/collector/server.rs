//! The collector's own process: accepts connections, serves one after the other, and ends with its
//! collections.

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use weir_tap::control::server::ReplyResult;
use weir_tap::control::{
    self, ControlLimits, ControlPeer, ErrorCode, Implementation, Peers, Reply, ServiceError,
};

use super::collections::{Collections, OpenGauge};
use super::folder::CollectorFolder;
use super::messages::{CollectionRequest, Collector, CollectorRequest, CollectorResponse};
use crate::hist::gauge::Gauge;
use weir_runtime::failure::Failure;

/// How long clients may take to read their last response.
const FINISH: Duration = Duration::from_secs(5);

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
    place: &CollectorFolder,
    open: impl FnMut(&CollectionRequest) -> Result<G, Failure> + 'static,
) -> Result<(), Failure> {
    // A session of its own does not receive Ctrl-C or the hangup of a terminal. The call fails if
    // the process already leads one.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    let (signals, signalled) = UnixStream::pair()?;
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, signalled.try_clone()?)?;
    }
    let log = |word: &str| {
        let mut out = io::stdout().lock();
        // The parent process may have ended.
        let _ = writeln!(out, "{word}").and_then(|()| out.flush());
    };
    serve(place, signals, Box::new(open), log)
}

/// Serves at `place` until nothing is collected, or `signals` can be read.
pub(super) fn serve<G: Gauge>(
    place: &CollectorFolder,
    signals: UnixStream,
    open: OpenGauge<G>,
    log: impl Fn(&str),
) -> Result<(), Failure> {
    place.make()?;
    let until = Instant::now() + LOCK;
    // Held until the end.
    let _lock = loop {
        match place.lock()? {
            Some(lock) => break lock,
            None if UnixStream::connect(place.socket()).is_ok() || Instant::now() > until => {
                log(RUNNING);
                return Ok(());
            }
            // It has closed its socket and is about to end.
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let limits = ControlLimits::default();
    let mut server = control::LocalServer::new(listen(place)?, Peers::OwnUser, limits)?;
    let mut front = Front {
        collections: Collections::new(place.clone(), open),
        place: place.clone(),
        started_at: Instant::now(),
        has_served: false,
    };
    log(READY);
    let mut is_signalled = false;
    while !is_signalled && !front.is_over() {
        let timeout = front.timeout();
        is_signalled = server.round(&mut front, signals.as_fd(), timeout);
        front.collections.stop_what_is_over();
    }
    front.collections.stop_all();
    front.remove_socket();
    server.finish(&mut front, None, FINISH);
    Ok(())
}

/// Opens the socket; one that a killed collector left is removed.
fn listen(place: &CollectorFolder) -> Result<UnixListener, Failure> {
    let socket = place.socket();
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket)
        .map_err(|error| Failure::world(format_args!("{}: {error}", socket.display())))?;
    // The directory is already inaccessible to others.
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// The collections, and whether the collector is still needed.
struct Front<G> {
    collections: Collections<G>,
    place: CollectorFolder,
    started_at: Instant,
    /// A request was served.
    has_served: bool,
}

impl<G: Gauge> Front<G> {
    /// True if nothing is collected, and the time for the first collection has passed.
    fn is_over(&self) -> bool {
        let is_late = self.has_served || self.started_at.elapsed() >= FIRST_ORDER;
        self.collections.is_empty() && is_late
    }

    /// The time until something has to be done without a request.
    fn timeout(&self) -> Duration {
        let first = FIRST_ORDER.saturating_sub(self.started_at.elapsed());
        match self.collections.is_empty() {
            true => first,
            false => self.collections.next_stop().unwrap_or(Duration::MAX),
        }
    }

    /// Removes the socket. A client that has just connected receives the end of the connection, and
    /// connects again.
    fn remove_socket(&self) {
        let _ = fs::remove_file(self.place.socket());
    }
}

impl<G: Gauge> Implementation for Front<G> {
    type Service = Collector;
    type Session = ();

    fn handle(
        &mut self,
        _session: &mut (),
        _peer: ControlPeer,
        request: CollectorRequest,
    ) -> ReplyResult<Front<G>> {
        self.collections.stop_what_is_over();
        let response = self.collections.answer(request);
        self.has_served = true;
        if self.collections.is_empty() {
            self.remove_socket();
        }
        match response {
            Ok(CollectorResponse::Histograms(lines)) => {
                let part = |line| CollectorResponse::Histograms(vec![line]);
                Ok(Reply {
                    parts: lines.into_iter().map(part).collect(),
                    ..CollectorResponse::Histograms(Vec::new()).into()
                })
            }
            Ok(response) => Ok(response.into()),
            Err(Failure::Words(text)) => {
                let text = text.strip_prefix("weir: ").unwrap_or(&text);
                Err(ServiceError::new(ErrorCode::Usage, text))
            }
            Err(Failure::World(error)) => {
                let text = format_args!("{error:#}");
                Err(ServiceError::new(ErrorCode::Failed, text))
            }
        }
    }
}
