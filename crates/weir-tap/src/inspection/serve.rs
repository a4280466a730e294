//! [`run`]: the main function of the inspection process.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use rustix::net::{RecvFlags, Shutdown as Direction, shutdown};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::message::{
    ANSWER_BYTES_MAX, Begin, ConversationKind, OfVm, PollAnswer, PollsRequest, REQUEST_BYTES_MAX,
    Sent, SymbolsRequest,
};
use crate::control::{channel, frame};
use crate::ebpf::privileges;
use crate::inventory::{Looker, ScanScope, Snapshot, WatchOptions};
use crate::qmp::{Cause, QmpSubject, poll};
use crate::symbols::{ADDRESSES_MAX, KALLSYMS, Symbolizer};
use crate::vdisk::drives;

/// Most conversations at a time: an agent has a few for each query of QEMU's counters.
const CONVERSATIONS_MAX: usize = 256;

/// State shared by conversations.
#[derive(Debug)]
struct Shared {
    /// True once the inventory was started. There is only one, started before the main process
    /// drops its privileges: its first request contains the root of the host's files, and no later
    /// one may.
    has_inventory: AtomicBool,
    /// The most recent inventory.
    snapshot: Mutex<Arc<Snapshot>>,
    /// The list of the kernel's functions. The addresses in it are those that the right to see them
    /// at the start shows (CAP_SYSLOG), which is not kept.
    kallsyms: Option<File>,
    /// The error with which the process ends, if there is one.
    failure: Mutex<Option<String>>,
    /// The end of the control socket; shut down to end the process.
    control: OwnedFd,
}

/// A conversation with its thread.
#[derive(Debug)]
struct Running {
    kind: ConversationKind,
    socket: UnixStream,
    thread: JoinHandle<()>,
}

/// Runs the inspection process: receives conversations by the socket that is standard input until
/// that is closed, and answers their requests.
///
/// # Errors
/// If standard input is not such a socket, or an invalid request is received.
pub fn run() -> Result<(), String> {
    close_inherited();
    let kallsyms = File::open(KALLSYMS).ok();
    // The program was run by a link, so the thread's name would be `exe`.
    let _ = rustix::thread::set_name(c"weir-inspection");
    // Dropping fails only if there are no rights to drop.
    let _ = privileges::begin_inspection();
    let control = io::stdin().as_fd().try_clone_to_owned();
    let shared = Arc::new(Shared {
        has_inventory: AtomicBool::new(false),
        snapshot: Mutex::default(),
        kallsyms,
        failure: Mutex::default(),
        control: control.map_err(|error| format!("standard input: {error}"))?,
    });
    let mut running: Vec<Running> = Vec::new();
    loop {
        let (kind, socket) = match receive(&shared.control) {
            Ok(Some(conversation)) => conversation,
            Ok(None) => break,
            Err(error) => {
                shared.fail(format!("standard input: {error}"));
                break;
            }
        };
        running.retain(|one| !one.thread.is_finished());
        if running.len() >= CONVERSATIONS_MAX {
            shared.fail(format!("more than {CONVERSATIONS_MAX} conversations"));
            break;
        }
        match Running::begin(kind, socket, &shared) {
            Ok(one) => running.push(one),
            Err(error) => shared.fail(format!("no thread: {error}")),
        }
        // Only the first scan needs more, and its thread has been started before this.
        let _ = privileges::keep_what_asking_takes();
    }
    for one in &running {
        // The thread may have closed it.
        let _ = one.socket.shutdown(Shutdown::Both);
    }
    // Polls disable what they enabled. Others may be in a scan, and end with the process.
    for one in running
        .into_iter()
        .filter(|one| one.kind == ConversationKind::Polls)
    {
        // A panic of the thread has been printed on standard error.
        let _ = one.thread.join();
    }
    let failure = shared.failure().take();
    failure.map_or(Ok(()), Err)
}

/// Closes descriptors that the main process had inherited itself, such as those of a shell: Rust's
/// descriptors are close-on-exec.
fn close_inherited() {
    // SAFETY: this process has not opened a descriptor beyond the standard three yet, and the call
    // takes numbers only. Kernels before 5.9 do not have the call, and the descriptors remain open.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

/// Receives a conversation; `None` when the main process has closed the socket.
fn receive(control: &OwnedFd) -> io::Result<Option<(ConversationKind, UnixStream)>> {
    let mut bytes = [0; 2];
    let (received, descriptors) = channel::receive(control, &mut bytes, true, RecvFlags::empty())?;
    if received == 0 {
        return Ok(None);
    }
    match (
        ConversationKind::of_byte(bytes[0]),
        <[OwnedFd; 1]>::try_from(descriptors),
    ) {
        (Some(kind), Ok([descriptor])) if received == 1 => Ok(Some((kind, descriptor.into()))),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

impl Running {
    fn begin(
        kind: ConversationKind,
        socket: UnixStream,
        shared: &Arc<Shared>,
    ) -> io::Result<Running> {
        let (own, name) = match kind {
            ConversationKind::Inventory => {
                (inventory as fn(&UnixStream, &Shared) -> _, "inventory")
            }
            ConversationKind::Polls => (polls as fn(&UnixStream, &Shared) -> _, "qmp"),
            ConversationKind::Disks => (disks as fn(&UnixStream, &Shared) -> _, "disks"),
            ConversationKind::Memory => (memory as fn(&UnixStream, &Shared) -> _, "memory"),
            ConversationKind::Symbols => (symbols as fn(&UnixStream, &Shared) -> _, "symbols"),
        };
        let (shared, theirs) = (shared.clone(), socket.try_clone()?);
        let run = move || {
            let ended = catch_unwind(AssertUnwindSafe(|| own(&theirs, &shared)));
            // The other side waits for end of file, and this is not the only descriptor.
            let _ = theirs.shutdown(Shutdown::Both);
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) => shared.fail(format!("{name}: {error}")),
                Err(_) => shared.fail(format!("{name}: panicked")),
            }
        };
        Ok(Running {
            kind,
            socket,
            thread: thread::Builder::new().name(name.into()).spawn(run)?,
        })
    }
}

impl Shared {
    fn failure(&self) -> MutexGuard<'_, Option<String>> {
        self.failure.lock().expect("no panic while held")
    }

    /// Ends the process with error `why`, unless there was an error before.
    fn fail(&self, why: String) {
        self.failure().get_or_insert(why);
        // The main process may have closed it.
        let _ = shutdown(&self.control, Direction::Both);
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.lock().expect("no panic while held").clone()
    }

    /// The VM of process `pid`, if its QEMU can be queried.
    fn subject(&self, pid: u32) -> Option<QmpSubject> {
        let subjects = QmpSubject::all(&self.snapshot());
        subjects
            .into_iter()
            .find(|subject| subject.pid == Some(pid))
    }
}

/// The next request; `None` at the end of the conversation.
fn next<T: DeserializeOwned>(socket: &UnixStream) -> io::Result<Option<T>> {
    frame::read(socket, REQUEST_BYTES_MAX)
}

/// Sends one message; false at the end of the conversation.
fn send(socket: &UnixStream, message: &impl Serialize) -> io::Result<bool> {
    is_sent(frame::write(socket, message, ANSWER_BYTES_MAX))
}

fn is_sent(sent: io::Result<()>) -> io::Result<bool> {
    match sent {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
            ) =>
        {
            Ok(false)
        }
        other => other.map(|()| true),
    }
}

/// True if a message was not sent because it exceeds the maximum size of an answer.
fn is_too_long(sent: &io::Result<bool>) -> bool {
    let error = sent.as_ref().err();
    error.is_some_and(|error| error.kind() == io::ErrorKind::FileTooLarge)
}

fn inventory(socket: &UnixStream, shared: &Shared) -> io::Result<()> {
    if shared.has_inventory.swap(true, Ordering::SeqCst) {
        let what = "a second inventory";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let Some(Begin { root, declared }) = next(socket)? else {
        return Ok(());
    };
    let declared = declared.iter().map(|text| text.parse());
    let declared = declared.collect::<Result<_, String>>();
    let options = WatchOptions {
        root,
        declared: declared.map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?,
        ..WatchOptions::default()
    };
    let mut looker = Looker::new(&options);
    let mut sent = Sent::default();
    while let Some(asked) = next::<Vec<ScanScope>>(socket)? {
        let seen = looker.look(&asked).map(Arc::new);
        // Stored before sending: the other side may refer to the snapshot at once.
        if let Some(seen) = &seen {
            *shared.snapshot.lock().expect("no panic while held") = seen.clone();
        }
        if !is_sent(sent.write(socket, seen.as_deref()))? {
            break;
        }
    }
    Ok(())
}

fn polls(socket: &UnixStream, shared: &Shared) -> io::Result<()> {
    // Dropping fails only if there are no rights to drop; the same applies below.
    let _ = privileges::keep_what_asking_takes();
    let Some(PollsRequest { histograms }) = next(socket)? else {
        return Ok(());
    };
    let mut polls = poll::QmpPoller::new(histograms);
    let ended = rounds(socket, shared, &mut polls);
    polls.end();
    ended
}

fn rounds(socket: &UnixStream, shared: &Shared, polls: &mut poll::QmpPoller) -> io::Result<()> {
    while let Some(()) = next(socket)? {
        for mut reading in polls.round(&shared.snapshot()) {
            let mut sent = send(socket, &PollAnswer::Reading(Box::new(reading.clone())));
            if is_too_long(&sent) {
                // The failure of one VM must not end the polls of the others.
                reading.drives = Err(poll::PollFailure {
                    cause: Cause::Garbled,
                    text: format!("VM {}: QEMU's answer is too long", reading.vm),
                });
                sent = send(socket, &PollAnswer::Reading(Box::new(reading)));
            }
            if !sent? {
                return Ok(());
            }
        }
        if !send(socket, &PollAnswer::Done)? {
            return Ok(());
        }
    }
    Ok(())
}

fn disks(socket: &UnixStream, shared: &Shared) -> io::Result<()> {
    let _ = privileges::keep_what_asking_takes();
    let Some(OfVm { pid }) = next(socket)? else {
        return Ok(());
    };
    let mut going = send(socket, &shared.subject(pid).is_some())?;
    while going && let Some(()) = next(socket)? {
        let subject = shared.subject(pid);
        let present = subject.and_then(|s| drives::Present::asked_of(&s).ok());
        let sent = send(socket, &present);
        going = match is_too_long(&sent) {
            true => send(socket, &None::<drives::Present>)?,
            false => sent?,
        };
    }
    Ok(())
}

fn memory(socket: &UnixStream, shared: &Shared) -> io::Result<()> {
    let _ = privileges::keep_what_asking_takes();
    let Some(OfVm { pid }) = next(socket)? else {
        return Ok(());
    };
    let memory = shared
        .subject(pid)
        .and_then(|_| File::open(format!("/proc/{pid}/mem")).ok());
    let mut going = send(socket, &memory.is_some())?;
    while going && let Some(address) = next::<u64>(socket)? {
        let paths = memory
            .as_ref()
            .map(|memory| drives::paths_at(memory, address));
        going = send(socket, &paths.unwrap_or_default())?;
    }
    Ok(())
}

fn symbols(socket: &UnixStream, shared: &Shared) -> io::Result<()> {
    let _ = privileges::keep_what_asking_takes();
    let kallsyms = shared.kallsyms.as_ref();
    let mut symbolizer = Symbolizer::new(kallsyms.and_then(|file| file.try_clone().ok()));
    while let Some(SymbolsRequest { space, addresses }) = next(socket)? {
        if addresses.len() > ADDRESSES_MAX {
            let what = "more addresses than a stack has";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        if !send(socket, &symbolizer.names(space, &addresses))? {
            break;
        }
    }
    Ok(())
}
