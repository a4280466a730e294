//! The NBD front end: disks as exports of a Network Block Device server, for its clients such as
//! QEMU, `nbdcopy` and the kernel. A tap is inserted below the disk of a running VM in this way.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use weir_tapdisk::nbd::{self, Export, Listener, NbdOptions};
//! use weir_tapdisk::{SocketAccess, ServedDisk, DiskOptions, StopEvent};
//!
//! let disk = ServedDisk::open(DiskOptions::new("/images/web.raw"))?;
//! let exports = [Export::new("vda", disk)];
//! let listener = Listener::bind(&"unix:/run/web.nbd".parse()?, SocketAccess::default())?;
//! let stop = StopEvent::new()?;
//! nbd::serve(&exports, &[listener], &NbdOptions::default(), &stop)?; // until `stop` is raised
//! # Ok(())
//! # }
//! ```
//!
//! It supports "fixed newstyle" with `NBD_OPT_GO`, simple and structured replies, and read, write,
//! flush, trim and write zeroes with FUA; no TLS, so it listens on this machine only. A connection
//! is a thread with an I/O queue of its own; several may be open to one export, and a flush on one
//! covers what was written through the others.
//!
//! Source: doc/proto.md of the NBD project.

mod address;
mod buffer;
mod clients;
mod connection;
mod handshake;
mod protocol;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

pub use address::{Listener, NbdAddress};
use clients::{Activity, Client, ClientSlot, Clients};
use connection::Ending;
use handshake::{NAME_BYTES_MAX, Offer};
use protocol::Geometry;

use crate::disk::{DiskError, ServedDisk};
use crate::polling::POLL_DEFAULT;
use crate::socket::SocketError;
use crate::stop::StopEvent;

/// The pause when no client can be accepted, because the process has no memory or descriptors for
/// one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The minimum interval between reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// A disk and the export name.
#[derive(Clone, Debug)]
pub struct Export {
    name: String,
    disk: Arc<ServedDisk>,
    poll: Duration,
}

impl Export {
    /// `disk` under that name. A client that sends no name gets the only export.
    pub fn new(name: impl Into<String>, disk: Arc<ServedDisk>) -> Export {
        Export {
            name: name.into(),
            disk,
            poll: POLL_DEFAULT,
        }
    }

    /// How long a connection polls for the next request before its thread sleeps, at most; zero: it
    /// sleeps at once. It polls only where polling finds requests. The default is 50 µs.
    pub fn poll(self, poll: Duration) -> Export {
        Export { poll, ..self }
    }
}

/// How exports are served.
#[derive(Clone, Copy, Debug)]
pub struct NbdOptions {
    /// Maximum number of clients; each may have 32 MiB of data in flight.
    pub connections_max: u16,
    /// A client that has been idle for this time is disconnected if another one needs its slot. As
    /// long as there is room, it stays connected.
    pub idle: Duration,
    /// The process for which disks are served, such as the QEMU into whose disk a tap was inserted:
    /// it is never disconnected for others, and replaces a connection of any idle time.
    pub owner: Option<u32>,
    /// Only the owner may connect by a unix socket.
    pub owner_only: bool,
    /// Receives errors of clients, a line at a time and at a bounded rate.
    pub report: fn(&str),
}

impl Default for NbdOptions {
    /// 32 clients, which can be replaced after 30 s, and no reports.
    fn default() -> NbdOptions {
        NbdOptions {
            connections_max: 32,
            idle: Duration::from_secs(30),
            owner: None,
            owner_only: false,
            report: |_| {},
        }
    }
}

/// Why exports cannot be served, or a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// The unix socket.
    #[error(transparent)]
    Unix(#[from] SocketError),
    /// The port.
    #[error("{at}: cannot listen: {error}; if the port is in use, choose another")]
    Port {
        /// The address.
        at: SocketAddr,
        /// The error of the system.
        error: io::Error,
    },
    /// Two exports with one name, or a name that the protocol does not allow.
    #[error("export {name:?}: {reason}")]
    Name {
        /// The name.
        name: String,
        /// The reason.
        reason: &'static str,
    },
    /// A socket or thread failed.
    #[error("a connection failed: {0}")]
    Socket(io::Error),
    /// The disk failed, not just a request.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Serves `exports` at `listeners` until `stop` is raised; then requests in flight are finished,
/// their replies are sent, and connections are closed.
///
/// # Errors
/// When names are invalid, or the system cannot wait for clients. An error of one client affects no
/// other.
pub fn serve(
    exports: &[Export],
    listeners: &[Listener],
    options: &NbdOptions,
    stop: &StopEvent,
) -> Result<(), NbdError> {
    check_names(exports)?;
    let error_reports = ErrorReports::new(options.report);
    thread::scope(|scope| {
        let mut clients = Clients::new(options);
        let mut served = Ok(());
        while served.is_ok() && !stop.is_raised() {
            served = wait(listeners, stop, None);
            for listener in listeners {
                let client = match listener.accept() {
                    Ok(Some((socket, process))) => Client {
                        socket: Arc::new(socket),
                        process,
                        activity: Arc::new(Activity::new()),
                    },
                    Ok(None) => continue,
                    Err(error) => {
                        error_reports.add(&format!("{}: {error}", listener.address()));
                        served = wait(&[], stop, Some(ACCEPT_PAUSE));
                        continue;
                    }
                };
                if options.owner_only && client.process != options.owner {
                    error_reports.add(&format!(
                        "{}: a client is rejected: process {} is not the process for which the \
                         disk is served",
                        listener.address(),
                        client.process.map_or("?".to_owned(), |pid| pid.to_string())
                    ));
                    continue;
                }
                let number = match clients.slot_for(client.process) {
                    ClientSlot::Free(number) => number,
                    ClientSlot::Made(number, idle) => {
                        error_reports.add(&format!(
                            "{}: a client that was idle for {} s is disconnected to make room for another",
                            listener.address(),
                            idle.as_secs()
                        ));
                        number
                    }
                    ClientSlot::None => {
                        error_reports.add(&format!(
                            "{}: a client is rejected: {} are connected, and none is idle; \
                             increase the limit",
                            listener.address(),
                            options.connections_max
                        ));
                        continue;
                    }
                };
                let (served_client, error_reports) = (client.clone(), &error_reports);
                let serve = move || {
                    let ending = connection::serve(&served_client, exports, number as u16, stop);
                    error_reports.ended(listener.address(), &ending);
                };
                let thread = thread::Builder::new().name(format!("nbd-{number}"));
                match thread.spawn_scoped(scope, serve) {
                    Ok(thread) => clients.enter(number, client, thread),
                    Err(error) => error_reports.add(&format!("no thread for a client: {error}")),
                }
            }
        }
        if served.is_err() {
            // Otherwise the connected clients would not be informed.
            stop.raise();
        }
        served
    })
}

/// Serves one client on a connected socket, until it disconnects or `stop` is raised.
///
/// # Errors
/// When names are invalid, or the client violates the protocol.
pub fn serve_client(socket: OwnedFd, exports: &[Export], stop: &StopEvent) -> Result<(), NbdError> {
    check_names(exports)?;
    rustix::io::ioctl_fionbio(&socket, true).map_err(|e| NbdError::Socket(e.into()))?;
    let client = Client {
        socket: Arc::new(socket),
        process: None,
        activity: Arc::new(Activity::new()),
    };
    match connection::serve(&client, exports, 0, stop) {
        Ending::Closed => Ok(()),
        Ending::Failed(error) => Err(error),
        Ending::Broken(why) => Err(NbdError::Socket(io::Error::other(why))),
        Ending::TimedOut => Err(NbdError::Socket(io::ErrorKind::TimedOut.into())),
    }
}

/// Checks that export names are unique and valid.
fn check_names(exports: &[Export]) -> Result<(), NbdError> {
    for (at, export) in exports.iter().enumerate() {
        let name = export.name.clone();
        if name.len() > NAME_BYTES_MAX {
            let reason = "a name has at most 4096 bytes; choose a shorter one";
            return Err(NbdError::Name { name, reason });
        }
        if exports[..at].iter().any(|other| other.name == name) {
            let reason = "another disk has this name; the names of exports must differ";
            return Err(NbdError::Name { name, reason });
        }
    }
    Ok(())
}

/// The current exports: an image may have grown since the last client.
fn offers(exports: &[Export]) -> Vec<Offer> {
    let offer = |export: &Export| {
        let disk = &export.disk;
        disk.grow();
        Offer {
            name: export.name.clone(),
            geometry: Geometry {
                size_bytes: disk.size_bytes(),
                block_bytes: disk.step_bytes(),
                read_only: disk.is_read_only(),
            },
        }
    };
    exports.iter().map(offer).collect()
}

/// Waits until a client connects, `stop` is raised, or for the timeout.
fn wait(
    listeners: &[Listener],
    stop: &StopEvent,
    timeout: Option<Duration>,
) -> Result<(), NbdError> {
    let clients = listeners.iter().map(Listener::fd);
    let sources = clients.chain([stop.fd()]);
    let mut fds: Vec<PollFd> = sources
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let timeout = timeout.map(|d| Timespec::try_from(d).expect("waits are short"));
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(NbdError::Socket(error.into())),
    }
}

/// Reports errors of clients at most once in [`REPORT_INTERVAL`]: one that fails in a loop cannot
/// fill the log.
struct ErrorReports {
    report: fn(&str),
    state: Mutex<ReportState>,
}

#[derive(Default)]
struct ReportState {
    last: Option<Instant>,
    suppressed: u64,
}

impl ErrorReports {
    fn new(report: fn(&str)) -> ErrorReports {
        ErrorReports {
            report,
            state: Mutex::default(),
        }
    }

    fn ended(&self, at: &NbdAddress, ending: &Ending) {
        match ending {
            Ending::Closed => {}
            Ending::Broken(why) => self.add(&format!("{at}: connection closed: {why}")),
            Ending::TimedOut => {
                self.add(&format!("{at}: connection closed: the handshake timed out"))
            }
            Ending::Failed(error) => self.add(&format!("{at}: connection closed: {error}")),
        }
    }

    fn add(&self, line: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state
            .last
            .is_some_and(|last| last.elapsed() < REPORT_INTERVAL)
        {
            state.suppressed += 1;
            return;
        }
        let suppressed = std::mem::take(&mut state.suppressed);
        state.last = Some(Instant::now());
        drop(state);
        match suppressed {
            0 => (self.report)(line),
            _ => (self.report)(&format!("{line} ({suppressed} earlier ones not shown)")),
        }
    }
}
