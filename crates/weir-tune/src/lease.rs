//! [`TuneLease`]: settings that are applied for some time, and restored at its end.
//!
//! The process that applies them waits for the end: of the time, by a signal, or by
//! `weir tune --restore` of another process, which requests it by a file. The journal of the
//! session is on disk meanwhile, so that after a kill the next `weir tune` restores the settings.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use weir_runtime::failure::Failure;
use weir_runtime::output;
use weir_runtime::private;
use weir_runtime::quantity;
use weir_runtime::run_loop::Stop;

use crate::device::TuneDevice;
use crate::guest::client::GuestSession;
use crate::queue::{QueueError, QueueRecovery, QueueSession, QueueState, SysfsQueue};
use crate::restore::{self, DiskFolder};

/// The longest lease, as of `weir act limit`.
pub const LEASE_MAX: Duration = Duration::from_secs(24 * 3600);

/// The interval at which the settings and requests to end are read.
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// See the module's documentation.
#[derive(Debug)]
pub struct TuneLease {
    session: QueueSession<SysfsQueue>,
    folder: DiskFolder,
    disk: String,
    name: String,
    span: Duration,
    /// The guest that has settings for the same time.
    guest: Option<GuestSession>,
}

/// How a lease ended.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseEnd {
    /// Its time was over.
    Expired,
    /// By a signal.
    Signal(i32),
    /// By `weir tune --restore`.
    Requested,
    /// Another program has changed settings; those are left.
    Overwritten,
}

impl TuneLease {
    /// Sets the candidate's settings.
    ///
    /// # Errors
    /// When they cannot be set; what was changed is restored then.
    pub fn apply(
        device: &TuneDevice,
        folder: DiskFolder,
        (name, settings): (&str, &QueueState),
        span: Duration,
    ) -> Result<TuneLease, Failure> {
        let session = QueueSession::begin(device.queue(), &folder.journal());
        let mut session = session.map_err(restore::failure)?;
        let held = folder.lease();
        let set = session
            .set(settings)
            .map_err(restore::failure)
            .and_then(|()| {
                remove(&folder.end_request())?;
                let pid = format!("{}\n", std::process::id());
                private::replace(&held, pid.as_bytes()).map_err(|error| failed(&held, error))
            });
        if let Err(error) = set {
            session.restore().map_err(restore::failure)?;
            return Err(error);
        }
        Ok(TuneLease {
            session,
            folder,
            disk: device.name.clone(),
            name: name.to_owned(),
            span,
            guest: None,
        })
    }

    /// Keeps the settings of a guest for the same time.
    pub fn keep_guest(&mut self, guest: GuestSession) {
        self.guest = Some(guest);
    }

    /// Waits for the end, and restores the settings.
    ///
    /// # Errors
    /// When a setting cannot be restored; `weir tune --restore` tries again.
    pub fn hold(mut self, stop: &Stop) -> Result<(LeaseEnd, QueueRecovery), Failure> {
        output::notice(format_args!(
            "weir: {} is applied to {} for {}; Ctrl-C or `weir tune --restore` restores earlier",
            self.name,
            self.disk,
            quantity::span_text(self.span)
        ));
        let end = self.end(stop);
        let in_guest = self.guest.take().map(GuestSession::restore);
        let recovery = self.session.restore().map_err(restore::failure)?;
        for path in [self.folder.lease(), self.folder.end_request()] {
            remove(&path)?;
        }
        let cause = match &end {
            LeaseEnd::Expired => "the lease has ended",
            LeaseEnd::Signal(_) => "a signal was received",
            LeaseEnd::Requested => "`weir tune --restore` was called",
            LeaseEnd::Overwritten => "another program has changed a setting",
        };
        output::notice(format_args!("weir: {}: restored: {cause}", self.disk));
        restore::report_foreign(&self.disk, &recovery);
        if let Some(in_guest) = in_guest {
            restore::report_foreign("guest", &in_guest?);
        }
        Ok((end, recovery))
    }

    fn end(&self, stop: &Stop) -> LeaseEnd {
        let started = Instant::now();
        loop {
            let left = self.span.saturating_sub(started.elapsed());
            if let Some(signal) = stop.signal() {
                return LeaseEnd::Signal(signal);
            }
            if left.is_zero() {
                return LeaseEnd::Expired;
            }
            if self.folder.end_request().exists() {
                return LeaseEnd::Requested;
            }
            // A setting that cannot be read now is compared at the end.
            if let Err(QueueError::Foreign(_)) = self.session.check() {
                return LeaseEnd::Overwritten;
            }
            stop.wait(left.min(CHECK_EVERY));
        }
    }
}

fn remove(path: &Path) -> Result<(), Failure> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(path, error)),
        _ => Ok(()),
    }
}

fn failed(path: &Path, error: std::io::Error) -> Failure {
    Failure::world(format_args!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use weir_testing::Scratch;

    use super::*;
    use crate::restore::{RestoreScope, RestoredDisk};

    /// A disk whose read-ahead is 128, and a state directory.
    struct Fixture {
        block: Scratch,
        state: Scratch,
    }

    impl Fixture {
        fn new() -> Fixture {
            let (block, state) = (Scratch::new(), Scratch::new());
            block.write("sda/queue/scheduler", "[none]\n");
            block.write("sda/queue/read_ahead_kb", "128\n");
            block.write("sda/mq/0/cpu_list", "0\n");
            Fixture { block, state }
        }

        fn value(&self) -> String {
            self.block.read("sda/queue/read_ahead_kb").trim().to_owned()
        }

        fn lease(&self, span: Duration) -> TuneLease {
            let device = TuneDevice::find(self.block.path(), "sda").unwrap();
            let folder = DiskFolder::take(self.state.path(), "sda").unwrap();
            let settings = QueueState::from([("read_ahead_kb".into(), "512".into())]);
            let settings = ("read_ahead_kb=512", &settings);
            let lease = TuneLease::apply(&device, folder, settings, span).unwrap();
            assert_eq!(self.value(), "512");
            lease
        }

        fn restore(&self, scope: RestoreScope) -> Vec<RestoredDisk> {
            restore::restore(self.state.path(), self.block.path(), None, scope).unwrap()
        }

        /// Nothing is left of a lease.
        fn is_clean(&self) -> bool {
            let folder = self.state.path().join("sda");
            let left = ["journal", "lease", "end"];
            !left.iter().any(|file| folder.join(file).exists())
        }
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn settings_are_restored_when_the_time_has_passed_and_at_a_signal() {
        let fixture = Fixture::new();
        let (end, recovery) = fixture.lease(Duration::ZERO).hold(&Stop::new()).unwrap();
        assert_eq!(end, LeaseEnd::Expired);
        assert_eq!((recovery.restored.len(), &*fixture.value()), (1, "128"));
        assert!(fixture.is_clean());
    }

    #[test]
    fn another_process_ends_a_lease_by_a_request() {
        let fixture = Fixture::new();
        let lease = fixture.lease(LONG);
        let restored = std::thread::scope(|scope| {
            let holder = scope.spawn(|| lease.hold(&Stop::new()).unwrap().0);
            // What is left by killed trials does not concern a lease that is held.
            assert_eq!(fixture.restore(RestoreScope::Killed), []);
            assert_eq!(fixture.value(), "512");
            let restored = fixture.restore(RestoreScope::All);
            assert_eq!(holder.join().unwrap(), LeaseEnd::Requested);
            restored
        });
        assert_eq!(restored.len(), 1);
        assert_eq!(fixture.value(), "128");
        assert!(fixture.is_clean());
    }

    #[test]
    fn a_change_of_another_program_ends_a_lease_and_is_left() {
        let fixture = Fixture::new();
        let lease = fixture.lease(LONG);
        fixture.block.write("sda/queue/read_ahead_kb", "64\n");
        let (end, recovery) = lease.hold(&Stop::new()).unwrap();
        assert_eq!(end, LeaseEnd::Overwritten);
        assert_eq!(recovery.foreign[0].setting, "read_ahead_kb");
        assert_eq!(fixture.value(), "64");
        assert!(fixture.is_clean());
    }

    #[test]
    fn the_next_start_restores_after_a_kill() {
        let fixture = Fixture::new();
        drop(fixture.lease(LONG));
        assert_eq!(fixture.value(), "512");
        assert_eq!(fixture.restore(RestoreScope::Killed).len(), 1);
        assert_eq!(fixture.value(), "128");
    }
}
