//! [`serve`]: the side in the guest, which changes and restores the settings of permitted disks.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use weir_runtime::failure::Failure;
use weir_runtime::output;
use weir_runtime::run_loop::Stop;

use super::messages::{GuestAnswer, GuestTuneRequest, LEASE, LINE_BYTES_MAX, VERSION};
use crate::device::TuneDevice;
use crate::queue::{QueueRecovery, QueueSession, QueueState, SysfsQueue, read_state};
use crate::restore::{self, DiskFolder, RestoreScope};

/// The longest wait, after which a signal is noticed.
const WAIT: Duration = Duration::from_millis(200);

/// The longest time to send an answer.
const SEND_WITHIN: Duration = Duration::from_secs(2);

/// What the guest permits.
#[derive(Clone, Debug)]
pub struct GuestOptions {
    /// The disks whose settings may be changed, by their names in the kernel.
    pub allowed: Vec<String>,
    /// The state directory.
    pub state: std::path::PathBuf,
    /// The folder of block devices.
    pub block: std::path::PathBuf,
    /// The time without a message after which the settings are restored.
    pub lease: Duration,
}

impl GuestOptions {
    /// The usual ones.
    pub fn new(allowed: Vec<String>, state: &Path) -> GuestOptions {
        GuestOptions {
            allowed,
            state: state.to_owned(),
            block: crate::device::BLOCK.into(),
            lease: LEASE,
        }
    }
}

/// A disk whose settings may have been changed.
struct Held {
    disk: String,
    session: QueueSession<SysfsQueue>,
    // Dropped after the session: no other process may change the disk before.
    _folder: DiskFolder,
}

/// Carries out the host's requests, which come through `port`, until a signal. The port no longer
/// blocks: a write to a virtio port would wait until a host connects.
///
/// # Errors
/// When the port fails, or settings cannot be restored.
pub fn serve(
    port: &mut (impl Read + Write + AsFd),
    options: &GuestOptions,
    stop: &Stop,
) -> Result<(), Failure> {
    for disk in restore::restore(&options.state, &options.block, None, RestoreScope::Killed)? {
        restore::report(&disk.disk, &disk.recovery.unwrap_or_default());
    }
    let flags = fcntl_getfl(&*port).map_err(|error| port_failed(error.into()))?;
    fcntl_setfl(&*port, flags | OFlags::NONBLOCK).map_err(|error| port_failed(error.into()))?;
    let mut held: Option<Held> = None;
    let mut lines = Lines::default();
    let mut received_last = Instant::now();
    loop {
        let received = lines.receive(port).map_err(port_failed)?;
        let is_over = stop.signal().is_some();
        let is_silent = received_last.elapsed() > options.lease;
        if held.is_some() && (is_over || is_silent || received == Received::Disconnected) {
            let reason = match received {
                _ if is_over => "the process ends",
                Received::Disconnected => "the host has disconnected",
                _ => "the host is silent",
            };
            end(&mut held, reason)?;
        }
        if is_over {
            return Ok(());
        }
        match received {
            Received::Nothing => {}
            // Reads end at once until the host connects again.
            Received::Disconnected => {
                lines = Lines::default();
                stop.wait(WAIT);
            }
            Received::Data => {
                while let Some(line) = lines.next() {
                    received_last = Instant::now();
                    let answer = answer(&line, options, &mut held);
                    let mut line = serde_json::to_vec(&answer).map_err(io::Error::from)?;
                    line.push(b'\n');
                    // The host may have disconnected, which the next read reports.
                    let _ = send(port, &line);
                }
            }
        }
    }
}

/// Sends an answer, if the host reads it within [`SEND_WITHIN`].
fn send(port: &mut (impl Write + AsFd), mut line: &[u8]) -> io::Result<()> {
    let wait = Timespec::try_from(WAIT).map_err(io::Error::other)?;
    let until = Instant::now() + SEND_WITHIN;
    while !line.is_empty() && Instant::now() < until {
        match port.write(line) {
            Ok(count) => line = &line[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut ready = [PollFd::new(port, PollFlags::OUT)];
                poll(&mut ready, Some(&wait))?;
                if ready[0].revents().contains(PollFlags::HUP) {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The answer to a line; an error changes nothing.
fn answer(line: &str, options: &GuestOptions, held: &mut Option<Held>) -> GuestAnswer {
    let request = match serde_json::from_str(line) {
        Ok(request) => request,
        Err(error) => return GuestAnswer::Error(format!("not a request: {error}")),
    };
    let carried_out = match request {
        GuestTuneRequest::Start { version, disk } => begin(version, &disk, options, held),
        GuestTuneRequest::Set(changes) => set(&changes, options, held),
        GuestTuneRequest::Keep => Ok(GuestAnswer::Done),
        GuestTuneRequest::Restore => {
            end(held, "the host has requested it").map(GuestAnswer::Restored)
        }
    };
    carried_out.unwrap_or_else(|error| GuestAnswer::Error(error.text()))
}

fn begin(
    version: u32,
    disk: &str,
    options: &GuestOptions,
    held: &mut Option<Held>,
) -> Result<GuestAnswer, Failure> {
    if version != VERSION {
        return Err(Failure::world(format_args!(
            "the host has version {version} of the messages, the guest {VERSION}: update the older"
        )));
    }
    if !options.allowed.iter().any(|allowed| allowed == disk) {
        return Err(Failure::world(format_args!(
            "the guest does not permit changes of {disk}; it permits {}",
            options.allowed.join(", ")
        )));
    }
    end(held, "the host begins again")?;
    let device = TuneDevice::find(&options.block, disk)?;
    let folder = DiskFolder::take(&options.state, &device.name)?;
    let session = QueueSession::begin(device.queue(), &folder.journal());
    let session = session.map_err(restore::failure)?;
    let present = read_state(&device.queue()).map_err(restore::failure)?;
    *held = Some(Held {
        disk: disk.to_owned(),
        session,
        _folder: folder,
    });
    Ok(GuestAnswer::Started {
        present,
        schedulers: device.schedulers,
    })
}

fn set(
    changes: &QueueState,
    options: &GuestOptions,
    held: &mut Option<Held>,
) -> Result<GuestAnswer, Failure> {
    let Some(held) = held else {
        return Err(Failure::world("no session: it has ended, or was not begun"));
    };
    let device = TuneDevice::find(&options.block, &held.disk)?;
    device.check(held.session.before(), changes)?;
    held.session.set(changes).map_err(restore::failure)?;
    Ok(GuestAnswer::Done)
}

/// Restores the settings, if there is a session.
fn end(held: &mut Option<Held>, reason: &str) -> Result<QueueRecovery, Failure> {
    let Some(held) = held.take() else {
        return Ok(QueueRecovery::default());
    };
    let recovery = held.session.restore().map_err(restore::failure)?;
    output::notice(format_args!("weir: {}: restored: {reason}", held.disk));
    restore::report_foreign(&held.disk, &recovery);
    Ok(recovery)
}

/// What a read gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Nothing within the time.
    Nothing,
    /// Bytes.
    Data,
    /// The other side has disconnected.
    Disconnected,
}

/// Lines of bytes that arrive in parts.
#[derive(Debug, Default)]
pub(super) struct Lines(Vec<u8>);

impl Lines {
    /// Reads what has arrived, and waits for it for a short time.
    pub(super) fn receive(&mut self, port: &mut (impl Read + AsFd)) -> io::Result<Received> {
        let wait = Timespec::try_from(WAIT).map_err(io::Error::other)?;
        let mut ready = [PollFd::new(port, PollFlags::IN)];
        match poll(&mut ready, Some(&wait)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Received::Nothing),
            polled => polled?,
        };
        let mut part = [0; 4096];
        match port.read(&mut part) {
            Ok(0) => Ok(Received::Disconnected),
            Ok(count) if self.0.len() + count > LINE_BYTES_MAX => {
                let reason = "a line is too long";
                Err(io::Error::new(io::ErrorKind::InvalidData, reason))
            }
            Ok(count) => {
                self.0.extend_from_slice(&part[..count]);
                Ok(Received::Data)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Received::Nothing),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Received::Nothing),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                Ok(Received::Disconnected)
            }
            Err(error) => Err(error),
        }
    }

    /// The next complete line.
    pub(super) fn next(&mut self) -> Option<String> {
        let end = self.0.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.0.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }
}

fn port_failed(error: io::Error) -> Failure {
    Failure::world(format_args!("the port to the host: {error}"))
}
