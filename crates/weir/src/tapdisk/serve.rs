//! Serves: opens images and sockets, and gives each disk its thread until a signal comes.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use weir_model::{Op, Unit};
use weir_sink::number::scaled;
use weir_tap::tapdisk::words::{DiskFigures, OpFigures};
use weir_tapdisk::hub::Hub;
use weir_tapdisk::listen::Listening;
use weir_tapdisk::nbd::{self, Export, NbdOptions};
use weir_tapdisk::socket::SocketType;
use weir_tapdisk::{Disk, ServerSocket, Stop as Halt, vhost};

use super::{Companion, DiskEntry, Setup};
use crate::failure::{Ending, Failure};
use crate::output;
use crate::run_loop::Stop;

/// How often signals are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Serves until a signal comes or `companion` ends, then until the requests under way are done.
///
/// # Errors
/// When an image or a socket cannot be opened: then nothing is served. When serving one fails: then the
/// others are ended in order.
pub fn serve(setup: &Setup, companion: &Companion, signals: &Stop) -> Result<Ending, Failure> {
    let halt = Halt::new()?;
    let hub = Arc::new(Hub::default());
    // Everything is opened before anything is served, and nobody is let in before all of it is there.
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
    let export = |(disk, name): (&Served, &String)| Export::new(name, disk.disk.clone());
    let exports: Vec<Export> = disks.iter().zip(&names).map(export).collect();
    let nbd = setup
        .nbd
        .as_ref()
        .map(|address| nbd::Listener::bind(address, setup.access));
    let nbd = nbd.transpose().map_err(world)?;
    let tap = Listening::start(&hub, &setup.tap, setup.access, &halt).map_err(world)?;
    for disk in &disks {
        output::say(format_args!("weir tapdisk: {}", disk.told()));
    }
    if let Some(listener) = &nbd {
        let (address, names) = (listener.address(), names.join(", "));
        output::say(format_args!("weir tapdisk: over NBD at {address}: {names}"));
    }
    output::say(format_args!(
        "weir tapdisk: requests are told at {}",
        setup.tap.display()
    ));
    let mut threads = Vec::new();
    for disk in disks {
        threads.extend(disk.start(&halt)?);
    }
    if let Some(listener) = nbd {
        let stop = halt.clone();
        threads.push(spawn("nbd", move || {
            let options = NbdOptions {
                report: |line| output::say(format_args!("weir tapdisk: {line}")),
                ..NbdOptions::default()
            };
            nbd::serve(&exports, &[listener], &options, &stop).map_err(world)
        })?);
    }
    let mut alone = false;
    while !alone && signals.signal().is_none() && threads.iter().all(|t| !t.is_finished()) {
        alone = companion.nap(LOOK_EVERY);
    }
    halt.raise();
    let failed = end(threads);
    drop(tap);
    Ok(match (failed, signals.signal()) {
        (false, Some(number)) => Ending::Signal(number),
        (false, None) if alone => Ending::Done,
        _ => Ending::Failed,
    })
}

/// Serving something; why it failed, if it did.
type Serving = JoinHandle<Result<(), Failure>>;

/// Waits for all of them; true if one has failed, which is said.
fn end(threads: Vec<Serving>) -> bool {
    let mut failed = false;
    for thread in threads {
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => {
                failure.report();
                failed = true;
            }
            // It has said so itself.
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

/// A disk that is open, and its socket.
struct Served {
    disk: Arc<Disk>,
    listener: Option<ServerSocket>,
    options: vhost::Options,
}

impl Served {
    fn open(entry: &DiskEntry, setup: &Setup, hub: &Arc<Hub>) -> Result<Served, Failure> {
        let disk = Disk::open(entry.options()).map_err(world)?;
        let listener = entry
            .socket
            .as_deref()
            .map(|path| ServerSocket::bind(path, SocketType::STREAM, setup.access));
        let listener = listener.transpose().map_err(world)?;
        let mut sockets: Vec<String> = Vec::new();
        sockets.extend(
            listener
                .as_ref()
                .map(|listener| listener.path().display().to_string()),
        );
        sockets.extend(setup.nbd.as_ref().map(|address| address.to_string()));
        let shown = disk.clone();
        let figures = Arc::new(move || figures(&shown, &sockets));
        disk.tell(hub, figures).map_err(world)?;
        let tell: vhost::Tell = Arc::new(|line| output::say(format_args!("weir tapdisk: {line}")));
        let usual = vhost::Options::new(tell);
        let options = vhost::Options {
            queues: entry.queues.unwrap_or(usual.queues),
            poll: entry.poll.unwrap_or(usual.poll),
            ..usual
        };
        Ok(Served {
            disk,
            listener,
            options,
        })
    }

    /// What it is called over NBD; without a name of its own it has a number.
    fn export(&self, number: usize) -> String {
        let vdisk = self.disk.subject().vdisk.as_deref();
        let name = vdisk.map(|name| name.trim_start_matches("/dev/").to_owned());
        name.unwrap_or(format!("disk{number}"))
    }

    /// What is served and how, in a line.
    fn told(&self) -> String {
        let (disk, subject) = (&self.disk, self.disk.subject());
        let size = scaled(disk.size_bytes() as f64, Unit::Bytes).expect("bytes have units");
        let mut text = format!("{} ({size}, {}", subject.pdisk, disk.choice());
        if disk.is_read_only() {
            text += ", read-only";
        }
        text += ")";
        if let Some(listener) = &self.listener {
            text += &format!(" at {}", listener.path().display());
        }
        match (&subject.vm, &subject.vdisk) {
            (Some(vm), Some(vdisk)) => text + &format!(", {vdisk} of VM {vm}"),
            (Some(vm), None) => text + &format!(", a disk of VM {vm}"),
            (None, Some(vdisk)) => text + &format!(", {vdisk}"),
            (None, None) => text,
        }
    }

    /// Its thread, if it has a socket of its own.
    fn start(self, halt: &Halt) -> io::Result<Option<Serving>> {
        let Some(listener) = self.listener else {
            return Ok(None);
        };
        let (disk, options, stop) = (self.disk, self.options, halt.clone());
        let serve = move || vhost::serve(&disk, &listener, &options, &stop).map_err(world);
        spawn("vhost-user", serve).map(Some)
    }
}

/// What a disk is and has done, as [`Hub`] tells it.
fn figures(disk: &Disk, sockets: &[String]) -> DiskFigures {
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
        ops: ops.collect(),
    }
}
