//! The NBD front end: disks as exports of a Network Block Device server, for whatever speaks that
//! protocol: QEMU, `nbdcopy`, the kernel's client. This is how a tap is put under the disk of a VM
//! that runs already.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use weir_tapdisk::nbd::{self, Export, Listener, NbdOptions};
//! use weir_tapdisk::{Access, Disk, DiskOptions, Stop};
//!
//! let disk = Disk::open(DiskOptions::new("/images/web.raw"))?;
//! let exports = [Export::new("vda", disk)];
//! let listener = Listener::bind(&"unix:/run/web.nbd".parse()?, Access::default())?;
//! let stop = Stop::new()?;
//! nbd::serve(&exports, &[listener], &NbdOptions::default(), &stop)?; // until somebody raises `stop`
//! # Ok(())
//! # }
//! ```
//!
//! It speaks "fixed newstyle" with `NBD_OPT_GO`, simple and structured replies, and offers read,
//! write, flush, trim and write zeroes with FUA; no TLS, so it listens on this machine only. A
//! connection is a thread with a lane of its own; several may be open to one export, and a flush on
//! one covers what was written through the others.
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

pub use address::{Address, Listener};
use clients::{Activity, Client, Clients, Room};
use connection::Ending;
use handshake::{NAME_BYTES_MAX, Offer};
use protocol::Geometry;

use crate::disk::{Disk, DiskError};
use crate::socket::SocketError;
use crate::stop::Stop;

/// How long to leave it when no client can be accepted: the process has no room for one.
const NO_ROOM: Duration = Duration::from_millis(100);

/// At most one complaint in this time.
const COMPLAIN_EVERY: Duration = Duration::from_secs(1);

/// A disk and the name that clients ask for.
#[derive(Clone, Debug)]
pub struct Export {
    name: String,
    disk: Arc<Disk>,
}

impl Export {
    /// `disk` under that name. A client that names none gets the only export there is.
    pub fn new(name: impl Into<String>, disk: Arc<Disk>) -> Export {
        Export {
            name: name.into(),
            disk,
        }
    }
}

/// How exports are served.
#[derive(Clone, Copy, Debug)]
pub struct NbdOptions {
    /// Clients at a time; each may have 32 MiB of data under way.
    pub connections_max: u16,
    /// A client that has been idle for so long is disconnected if another one needs its place. As
    /// long as there is room, it stays connected.
    pub idle: Duration,
    /// The process for which disks are served, as the QEMU under whose disk a tap was put: it is
    /// never disconnected for others, and needs no one to have been idle.
    pub owner: Option<u32>,
    /// Only the owner may connect by a unix socket.
    pub owner_only: bool,
    /// What went wrong with a client, a line at a time and not often.
    pub report: fn(&str),
}

impl Default for NbdOptions {
    /// 32 clients, which yield after 30 s, and no reports.
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
    #[error("{at}: cannot listen: {error}; another program may have the port, choose another")]
    Port {
        /// The address.
        at: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// Two exports of one name, or a name that does not fit the protocol.
    #[error("export {name:?}: {reason}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A socket or thread failed.
    #[error("a connection failed: {0}")]
    Socket(io::Error),
    /// The disk failed, not just a request.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Serves `exports` at `listeners` until `stop` is raised; then what is in flight is done, its replies are
/// sent, and connections are closed.
///
/// # Errors
/// When names do not do, or the system cannot wait for clients. A client that fails fails alone.
pub fn serve(
    exports: &[Export],
    listeners: &[Listener],
    options: &NbdOptions,
    stop: &Stop,
) -> Result<(), NbdError> {
    check_names(exports)?;
    let complaints = Complaints::new(options.report);
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
                        complaints.add(&format!("{}: {error}", listener.address()));
                        served = wait(&[], stop, Some(NO_ROOM));
                        continue;
                    }
                };
                if options.owner_only && client.process != options.owner {
                    complaints.add(&format!(
                        "{}: a client is refused: process {} is not the one that the disk is served for",
                        listener.address(),
                        client.process.map_or("?".to_owned(), |pid| pid.to_string())
                    ));
                    continue;
                }
                let number = match clients.room_for(client.process) {
                    Room::Free(number) => number,
                    Room::Made(number, idle) => {
                        complaints.add(&format!(
                            "{}: a client that was idle for {} s is disconnected to make room for another",
                            listener.address(),
                            idle.as_secs()
                        ));
                        number
                    }
                    Room::None => {
                        complaints.add(&format!(
                            "{}: a client is refused: {} are connected, and none is idle; allow more clients",
                            listener.address(),
                            options.connections_max
                        ));
                        continue;
                    }
                };
                let (served_client, complaints) = (client.clone(), &complaints);
                let serve = move || {
                    let ending = connection::serve(&served_client, exports, number as u16, stop);
                    complaints.ended(listener.address(), &ending);
                };
                let thread = thread::Builder::new().name(format!("nbd-{number}"));
                match thread.spawn_scoped(scope, serve) {
                    Ok(thread) => clients.enter(number, client, thread),
                    Err(error) => complaints.add(&format!("no thread for a client: {error}")),
                }
            }
        }
        if served.is_err() {
            // Nobody else would tell those who are connected.
            stop.raise();
        }
        served
    })
}

/// Serves one client by itself, on a socket that is connected already, until it leaves or `stop` is raised.
///
/// # Errors
/// When names do not do, or the client breaks the protocol.
pub fn serve_client(socket: OwnedFd, exports: &[Export], stop: &Stop) -> Result<(), NbdError> {
    check_names(exports)?;
    rustix::io::ioctl_fionbio(&socket, true).map_err(|e| NbdError::Socket(e.into()))?;
    let client = Client {
        socket: Arc::new(socket),
        process: None,
        activity: Arc::new(Activity::new()),
    };
    match connection::serve(&client, exports, 0, stop) {
        Ending::Fine => Ok(()),
        Ending::Failed(error) => Err(error),
        Ending::Broken(why) => Err(NbdError::Socket(io::Error::other(why))),
        Ending::Slow => Err(NbdError::Socket(io::ErrorKind::TimedOut.into())),
    }
}

/// Checks that exports can be told apart by their names.
fn check_names(exports: &[Export]) -> Result<(), NbdError> {
    for (at, export) in exports.iter().enumerate() {
        let name = export.name.clone();
        if name.len() > NAME_BYTES_MAX {
            let reason = "a name has at most 4096 bytes; choose a shorter one";
            return Err(NbdError::Name { name, reason });
        }
        if exports[..at].iter().any(|other| other.name == name) {
            let reason = "another disk has this name; each needs one of its own";
            return Err(NbdError::Name { name, reason });
        }
    }
    Ok(())
}

/// What a client may choose now: an image may have grown since the last one.
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

/// Waits until a client comes, `stop` is raised, or for so long.
fn wait(listeners: &[Listener], stop: &Stop, patience: Option<Duration>) -> Result<(), NbdError> {
    let clients = listeners.iter().map(Listener::fd);
    let sources = clients.chain([stop.fd()]);
    let mut fds: Vec<PollFd> = sources
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let patience = patience.map(|d| Timespec::try_from(d).expect("waits are short"));
    match poll(&mut fds, patience.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(NbdError::Socket(error.into())),
    }
}

/// What clients did wrong, told at most once in [`COMPLAIN_EVERY`]: one that fails in a loop does not
/// fill a disk with its log.
struct Complaints {
    report: fn(&str),
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    last: Option<Instant>,
    untold: u64,
}

impl Complaints {
    fn new(report: fn(&str)) -> Complaints {
        Complaints {
            report,
            told: Mutex::default(),
        }
    }

    fn ended(&self, at: &Address, ending: &Ending) {
        match ending {
            Ending::Fine => {}
            Ending::Broken(why) => self.add(&format!("{at}: connection closed: {why}")),
            Ending::Slow => self.add(&format!("{at}: connection closed: the handshake timed out")),
            Ending::Failed(error) => self.add(&format!("{at}: connection closed: {error}")),
        }
    }

    fn add(&self, line: &str) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told
            .last
            .is_some_and(|last| last.elapsed() < COMPLAIN_EVERY)
        {
            told.untold += 1;
            return;
        }
        let untold = std::mem::take(&mut told.untold);
        told.last = Some(Instant::now());
        drop(told);
        match untold {
            0 => (self.report)(line),
            _ => (self.report)(&format!("{line} (and {untold} more before)")),
        }
    }
}
