//! [`Children`]: a query in a process of its own, and the signals that arrive meanwhile.

use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Write, stderr, stdin, stdout};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use weir_runtime::failure::{Ending, Failure};

/// This executable, also when its file has been replaced.
const PROGRAM: &str = "/proc/self/exe";

/// Maximum size of a statement. The kernel accepts arguments of up to 128 KiB (`MAX_ARG_STRLEN`).
pub const STATEMENT_BYTES_MAX: usize = 120 << 10;

/// Exit codes above this one are those of signals, as in a shell.
const OF_SIGNALS: i32 = 128;

/// Starts one process after the other. SIGTERM ends the present one, then this process. SIGINT,
/// which a terminal sends to all processes in the foreground, ends the present one only.
pub struct Children {
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// The process that runs.
    running: Mutex<Option<Pid>>,
    /// The last signal; 0 without one.
    signal: AtomicUsize,
}

impl Children {
    /// No process; signals are handled from now on.
    ///
    /// # Errors
    /// When the signal handlers cannot be installed.
    pub fn new() -> Result<Children, Failure> {
        let state = Arc::<State>::default();
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let handled = state.clone();
        // The line editor changes the terminal's mode.
        let mode = tcgetattr(stdin()).ok();
        std::thread::spawn(move || {
            for number in signals.forever() {
                handled.handle(number, mode.as_ref());
            }
        });
        Ok(Children { state })
    }

    /// Runs `weir COMMAND OPTIONS` with the `definitions` and the `statement`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn run(
        &self,
        command: &[&str],
        options: Vec<OsString>,
        definitions: &str,
        statement: Option<&str>,
    ) -> Result<Ending, Failure> {
        let mut child = Command::new(PROGRAM);
        child.arg0("weir").args(command).args(options);
        child.stdin(Stdio::null());
        let file = match definitions.is_empty() {
            true => None,
            false => Some(memory_file(definitions)?),
        };
        if let Some(file) = &file {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            child.arg("--define").arg(path);
        }
        if let Some(statement) = statement {
            child.arg("--").arg(statement);
        }
        self.wait(&mut child)
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn wait(&self, command: &mut Command) -> Result<Ending, Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        let failed = |error| Failure::world(format_args!("{name}: {error}"));
        let mut child = {
            // A signal waits until the process is known.
            let mut running = self.state.lock();
            let child = command.spawn().map_err(failed)?;
            *running = Pid::from_raw(child.id().cast_signed());
            child
        };
        let status = child.wait();
        *self.state.lock() = None;
        Ok(ending(status.map_err(failed)?))
    }

    /// Forgets a signal that has ended its process.
    pub fn begin(&self) {
        self.state.signal.store(0, Ordering::Relaxed);
    }

    /// The signal that has arrived, if any.
    pub fn signal(&self) -> Option<i32> {
        match self.state.signal.load(Ordering::Relaxed) {
            0 => None,
            number => i32::try_from(number).ok(),
        }
    }
}

impl State {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Pid>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, number: i32, mode: Option<&Termios>) {
        self.signal
            .store(number.unsigned_abs() as usize, Ordering::Relaxed);
        let running = *self.lock();
        match (number, running) {
            (SIGTERM, Some(child)) => forward(child, Signal::TERM),
            (SIGTERM, None) => {
                if let Some(mode) = mode {
                    let _ = tcsetattr(stdin(), OptionalActions::Now, mode);
                }
                std::process::exit(OF_SIGNALS + SIGTERM);
            }
            // A terminal has sent it to that process as well; a second one would kill it.
            (_, Some(child)) if !has_terminal() => forward(child, Signal::INT),
            _ => {}
        }
    }
}

fn forward(child: Pid, signal: Signal) {
    // It fails when the process has just ended.
    let _ = kill_process(child, signal);
}

fn has_terminal() -> bool {
    stdin().is_terminal() || stdout().is_terminal() || stderr().is_terminal()
}

/// A file in memory, which a process that is started inherits.
fn memory_file(text: &str) -> Result<File, Failure> {
    let file = memfd_create("definitions", MemfdFlags::empty()).map_err(std::io::Error::from)?;
    let mut file = File::from(file);
    file.write_all(text.as_bytes())?;
    Ok(file)
}

/// The ending of a process, as it would be that of this one.
fn ending(status: ExitStatus) -> Ending {
    match (status.code(), status.signal()) {
        (Some(0), _) => Ending::Done,
        (Some(2), _) => Ending::Refused,
        (Some(code), _) if code > OF_SIGNALS => Ending::Signal(code - OF_SIGNALS),
        (None, Some(number)) => Ending::Signal(number),
        _ => Ending::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_of_a_process_is_that_of_its_exit_code() {
        for (script, expected) in [
            ("exit 0", Ending::Done),
            ("exit 1", Ending::Failed),
            ("exit 2", Ending::Refused),
            ("exit 77", Ending::Failed),
            ("exit 130", Ending::Signal(2)),
            ("kill -KILL $$", Ending::Signal(9)),
        ] {
            let status = Command::new("sh").args(["-c", script]).status().unwrap();
            assert_eq!(ending(status), expected, "{script}");
        }
    }
}
