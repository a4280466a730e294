//! Serves: opens images and sockets, and gives each disk its thread until a signal comes.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tracing::{info, warn};
use weir_model::Op;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::run_loop::Stop;
use weir_tap::ebpf::{Files, drop_privileges};
use weir_tap::tapdisk::words::{DiskFigures, OpFigures};
use weir_tap::user::User;

use super::{Companion, DiskEntry, Setup};
use crate::control::ControlServer;
use crate::hub::Hub;
use crate::insertion::run_folder;
use crate::nbd::{self, Export, NbdAddress, NbdOptions};
use crate::socket::SocketType;
use crate::{ServedDisk, ServerSocket, StopEvent as Halt, vhost};

/// How often signals are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Who a tapdisk works for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Owner {
    /// The process with which it ends.
    pub process: Option<u32>,
    /// It was inserted below a disk of that process: no other process may connect, and the tapdisk
    /// has the rights of that process's user.
    pub inserted: bool,
}

/// Serves until a signal comes or `companion` ends, which is the owner's process; then until the
/// requests under way are done.
///
/// 1. All images are opened and locked, which may take seconds.
/// 2. All sockets are bound. From here on a front end may connect, and waits for its answer.
/// 3. A tapdisk that was inserted gives up its rights.
/// 4. All are served.
///
/// # Errors
/// When an image or a socket cannot be opened: then nothing is served. When serving one fails: then
/// the others are ended in order.
pub fn serve(
    setup: &Setup,
    owner: Owner,
    companion: &Companion,
    signals: &Stop,
) -> Result<Ending, Failure> {
    let halt = Halt::new()?;
    let hub = Arc::new(Hub::default());
    let disks: Vec<Served> = setup
        .disks
        .iter()
        .map(|entry| Served::open(entry, setup, &hub))
        .collect::<Result<_, _>>()?;
    let names: Vec<String> = disks
        .iter()
        .enumerate()
        .map(|(number, disk)| disk.export(number))
        .collect();
    let export = |(disk, name): (&Served, &String)| {
        Export::new(name, disk.disk.clone()).poll(disk.options.poll)
    };
    let exports: Vec<Export> = disks.iter().zip(&names).map(export).collect();
    let nbd = setup
        .nbd
        .as_ref()
        .map(|nbd| nbd::Listener::bind(&nbd.address, setup.access));
    let nbd = nbd.transpose().map_err(world)?;
    let tap = tap_path(setup, nbd.as_ref())?;
    let user = owner_user(owner)?;
    if user.as_ref().is_some_and(|user| user.uid == 0) {
        // Root's capabilities belong to a thread: they are dropped before there is another one.
        drop_privileges(Files::Named)?;
    }
    let control = ControlServer::start(&hub, &tap, setup.access, &halt).map_err(world)?;
    let bound: Vec<(Served, Option<ServerSocket>)> = disks
        .into_iter()
        .map(|disk| disk.bind(setup).map(|socket| (disk, socket)))
        .collect::<Result<_, Failure>>()?;
    if let Some(user) = user.filter(|user| user.uid != 0) {
        user.become_for_good().map_err(|error| {
            let uid = user.uid;
            Failure::world(format_args!("cannot become the VM's user {uid}: {error}"))
        })?;
        drop_privileges(Files::Named)?;
    }
    let mut threads = Vec::new();
    for (disk, socket) in bound {
        disk.log();
        threads.extend(disk.start(socket, &halt)?);
    }
    if let Some(listener) = nbd {
        info!(address = %listener.address(), exports = %names.join(","), "serving over NBD");
        let (stop, options) = (halt.clone(), nbd_options(setup, owner));
        let serve = move || nbd::serve(&exports, &[listener], &options, &stop).map_err(world);
        threads.push(spawn("nbd", serve)?);
    }
    info!(socket = %tap.display(), "requests are reported");
    let mut alone = false;
    while !alone && signals.signal().is_none() && threads.iter().all(|t| !t.is_finished()) {
        alone = companion.wait_for_end(LOOK_EVERY);
    }
    halt.raise();
    let failed = end(threads);
    drop(control);
    Ok(match (failed, signals.signal()) {
        (false, Some(number)) => Ending::of_service(number),
        (false, None) if alone => Ending::Done,
        _ => Ending::Failed,
    })
}

/// The user whose rights an inserted tapdisk is to have: that of the VM, if this is root.
fn owner_user(owner: Owner) -> Result<Option<User>, Failure> {
    let Some(process) = owner.process.filter(|_| owner.inserted) else {
        return Ok(None);
    };
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let user = User::of(process);
    let user = user.map_err(|error| Failure::world(format_args!("process {process}: {error}")))?;
    Ok(Some(user))
}

fn nbd_options(setup: &Setup, owner: Owner) -> NbdOptions {
    let usual = NbdOptions::default();
    let (clients_max, idle) = match &setup.nbd {
        Some(nbd) => (nbd.clients_max, nbd.idle),
        None => (None, None),
    };
    NbdOptions {
        connections_max: clients_max.unwrap_or(usual.connections_max),
        idle: idle.unwrap_or(usual.idle),
        owner: owner.process,
        owner_only: owner.inserted,
        report: |line| warn!("{line}"),
    }
}

/// Where requests are reported: of disks that are served on a port alone, in the folder for such
/// sockets.
fn tap_path(setup: &Setup, nbd: Option<&nbd::Listener>) -> Result<PathBuf, Failure> {
    if let Some(tap) = &setup.tap {
        return Ok(tap.clone());
    }
    let Some(NbdAddress::Loopback(address)) = nbd.map(nbd::Listener::address) else {
        panic!("without a port, the path of a socket gives that of the tap");
    };
    let folder = run_folder()
        .map_err(|failure| Failure::world(format_args!("{failure}; or use --tap PATH")))?;
    Ok(folder.join(format!("port-{}.tap", address.port())))
}

/// Serving something; why it failed, if it did.
type Serving = JoinHandle<Result<(), Failure>>;

/// Waits for all of them; true if one has failed, which is logged.
fn end(threads: Vec<Serving>) -> bool {
    let mut failed = false;
    for thread in threads {
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => {
                failure.report(false);
                failed = true;
            }
            // The failure is already logged.
            Err(_) => failed = true,
        }
    }
    failed
}

fn spawn(
    name: &str,
    serve: impl FnOnce() -> Result<(), Failure> + Send + 'static,
) -> io::Result<Serving> {
    // The kernel keeps 15 bytes of a thread's name.
    thread::Builder::new()
        .name(name.chars().take(15).collect())
        .spawn(serve)
}

fn world(error: impl std::error::Error + Send + Sync + 'static) -> Failure {
    Failure::World(error.into())
}

/// A disk that is open.
struct Served {
    disk: Arc<ServedDisk>,
    /// Where it is served over vhost-user.
    socket: Option<PathBuf>,
    options: vhost::VhostOptions,
}

impl Served {
    fn open(entry: &DiskEntry, setup: &Setup, hub: &Arc<Hub>) -> Result<Served, Failure> {
        let disk = ServedDisk::open(entry.options()).map_err(world)?;
        let socket = entry.socket.clone();
        if socket.is_some() {
            disk.check_blocks().map_err(world)?;
        }
        let mut sockets: Vec<String> = Vec::new();
        sockets.extend(socket.as_ref().map(|path| path.display().to_string()));
        sockets.extend(setup.nbd.as_ref().map(|nbd| nbd.address.to_string()));
        let shown = disk.clone();
        let figures = Arc::new(move || figures(&shown, &sockets));
        disk.attach(hub, figures).map_err(world)?;
        let log: vhost::LogLine = Arc::new(|line| info!("{line}"));
        let usual = vhost::VhostOptions::new(log);
        let options = vhost::VhostOptions {
            queues: entry.queues.unwrap_or(usual.queues),
            poll: entry.poll.unwrap_or(usual.poll),
            memory_slots: vhost::memory_slots(setup.disks.len()),
            ..usual
        };
        Ok(Served {
            disk,
            socket,
            options,
        })
    }

    /// Its socket, at which front ends may connect from now on.
    fn bind(&self, setup: &Setup) -> Result<Option<ServerSocket>, Failure> {
        let bind = |path: &PathBuf| ServerSocket::bind(path, SocketType::STREAM, setup.access);
        self.socket.as_ref().map(bind).transpose().map_err(world)
    }

    /// What it is called over NBD; without a name of its own it has a number.
    fn export(&self, number: usize) -> String {
        let vdisk = self.disk.subject().vdisk.as_deref();
        let name = vdisk.map(|name| name.trim_start_matches("/dev/").to_owned());
        name.unwrap_or(format!("disk{number}"))
    }

    /// Logs what is served and how.
    fn log(&self) {
        let (disk, subject) = (&self.disk, self.disk.subject());
        info!(
            image = %subject.pdisk,
            size_bytes = disk.size_bytes(),
            engine = %disk.choice(),
            read_only = disk.is_read_only(),
            socket = self.socket.as_ref().map(|path| display(path.display())),
            vm = subject.vm.as_ref().map(display),
            vdisk = subject.vdisk.as_ref().map(display),
            "serving a disk"
        );
    }

    /// Its thread, if it has a socket of its own.
    fn start(self, socket: Option<ServerSocket>, halt: &Halt) -> io::Result<Option<Serving>> {
        let Some(listener) = socket else {
            return Ok(None);
        };
        let (disk, options, stop) = (self.disk, self.options, halt.clone());
        let serve = move || vhost::serve(&disk, &listener, &options, &stop).map_err(world);
        spawn("vhost-user", serve).map(Some)
    }
}

/// The description and counters of a disk, for [`Hub`].
fn figures(disk: &ServedDisk, sockets: &[String]) -> DiskFigures {
    let counters = disk.counters();
    let ops = Op::ALL.iter().map(|op| {
        let counted = counters.of(*op);
        OpFigures {
            op: op.as_str().to_owned(),
            requests: counted.requests,
            bytes: counted.bytes,
            errors: counted.errors + counted.unsupported,
            latency_ns: counted.latency_ns,
        }
    });
    DiskFigures {
        size_bytes: disk.size_bytes(),
        block_bytes: disk.block_size(),
        read_only: disk.is_read_only(),
        serial: disk.serial().to_owned(),
        engine: disk.choice().to_string(),
        sockets: sockets.to_vec(),
        in_flight: counters.in_flight,
        limits: disk.throttle().limits(),
        held: disk.throttle().held(),
        ops: ops.collect(),
    }
}
