//! [`Companion`]: a process with which a tapdisk ends: the VM under whose disk it was put.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use weir_runtime::failure::Failure;

/// A process whose end ends the tapdisk.
#[derive(Debug, Default)]
pub struct Companion {
    /// Readable once it has ended.
    process: Option<OwnedFd>,
}

impl Companion {
    /// The process of that number, if there is to be one.
    ///
    /// # Errors
    /// When no such process runs.
    pub fn new(pid: Option<u32>) -> Result<Companion, Failure> {
        let open = |pid: u32| {
            let failed = |error: rustix::io::Errno| {
                Failure::words(format_args!("--until-exit {pid}: {error}"))
            };
            let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let number = number.ok_or_else(|| failed(rustix::io::Errno::SRCH))?;
            pidfd_open(number, PidfdFlags::empty()).map_err(failed)
        };
        Ok(Companion {
            process: pid.map(open).transpose()?,
        })
    }

    /// Sleeps for so long, or until it has ended; true if it has.
    pub fn wait_for_end(&self, timeout: Duration) -> bool {
        let mut fds: Vec<PollFd> = self
            .process
            .iter()
            .map(|process| PollFd::new(process, PollFlags::IN))
            .collect();
        let timeout = Timespec::try_from(timeout).expect("naps are short");
        // A signal ends the wait; the caller checks for signals.
        poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn it_is_known_when_a_companion_has_gone() {
        let brief = Duration::from_millis(1);
        assert!(!Companion::new(None).unwrap().wait_for_end(brief));
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let companion = Companion::new(Some(child.id())).unwrap();
        assert!(!companion.wait_for_end(brief));
        child.kill().unwrap();
        assert!(companion.wait_for_end(Duration::from_secs(60)));
        child.wait().unwrap();
        assert!(Companion::new(Some(u32::MAX)).is_err());
    }
}
