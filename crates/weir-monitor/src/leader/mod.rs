//! Leadership: of the monitors with one state directory, one leads, and the others wait to replace
//! it (decision 0033).
//!
//! 1. A [`LeaseCandidate`] watches the newest term's file. It claims the next term if that file is
//!    released, if the lock of its process is free, or if it has not changed for [`EXPIRES_AFTER`]
//!    by the candidate's own clock. Clocks of two hosts are never compared.
//! 2. [`Leadership`] renews the lease in a thread. Another thread ends the process with
//!    [`LEASE_LOST`] when another monitor has claimed a later term, or when a lease that expires
//!    could not be renewed for [`STEP_DOWN_AFTER`].
//! 3. A process that was stopped meanwhile, and continues, cannot replace any file of the state
//!    directory, because the next leader has removed its staging directory ([`directory`]). Agents
//!    reject it by its term.

mod directory;
mod record;
mod renewal;
mod results;
mod standby;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weir_runtime::boot::boot_id;
use weir_runtime::failure::Failure;
use weir_runtime::lock::Lock;
use weir_runtime::private;
use weir_sink::metrics::Family;
use weir_wire::Address;

use directory::LeaderDirectory;
use record::LeaseState;

pub use record::LeaderRecord;
pub use renewal::Leadership;
pub use results::detach_results;
pub use standby::{lead, stand_by};

/// A candidate claims the next term if the newest one was not renewed for this time.
pub const EXPIRES_AFTER: Duration = Duration::from_secs(3);

/// A leader whose lease expires ends if it was not renewed for this time.
pub const STEP_DOWN_AFTER: Duration = Duration::from_secs(2);

/// The interval of renewals.
const RENEW_EVERY: Duration = Duration::from_millis(400);

/// The exit status of a leader that has lost its lease: EX_TEMPFAIL of sysexits.h.
pub const LEASE_LOST: u8 = 75;

/// A monitor that wants to lead.
#[derive(Debug)]
pub struct LeaseCandidate {
    state: PathBuf,
    directory: LeaderDirectory,
    record: LeaderRecord,
    /// The newest term and its file as last read, and when it was first read so.
    seen: Option<(u64, Vec<u8>)>,
    since: Instant,
    /// The record of the newest term, or why its file is not valid.
    leader: Option<Result<LeaderRecord, String>>,
}

impl LeaseCandidate {
    /// A candidate with the state directory `state`, which is created if it does not exist.
    /// `record` describes it: host, address, and whether its lease expires.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub fn open(state: &Path, record: LeaderRecord) -> Result<LeaseCandidate, Failure> {
        let opened = private::directory(state).and_then(|()| LeaderDirectory::open(state));
        let directory = opened.map_err(|why| failed(state, why))?;
        Ok(LeaseCandidate {
            state: state.to_owned(),
            directory,
            record: LeaderRecord {
                pid: std::process::id(),
                boot: boot_id(),
                ..record
            },
            seen: None,
            since: Instant::now(),
            leader: None,
        })
    }

    /// Sets the address where it accepts agents and clients.
    pub fn listens_at(&mut self, address: &Address) {
        self.record.address = address.to_string();
    }

    /// The monitor that leads, as far as is known.
    pub fn leader(&self) -> Option<&LeaderRecord> {
        self.leader.as_ref()?.as_ref().ok()
    }

    /// The file of the newest term and its defect, if it is not valid.
    pub fn defect(&self) -> Option<(PathBuf, &str)> {
        let (term, _) = self.seen.as_ref()?;
        let why = self.leader.as_ref()?.as_ref().err()?;
        Some((self.directory.claim_path(*term), why))
    }

    /// Claims the next term if it is free. To be called several times a second.
    ///
    /// # Errors
    /// If the directory cannot be read or written.
    pub fn poll(&mut self) -> Result<Option<Leadership>, Failure> {
        let state = self.state.clone();
        self.try_claim().map_err(|why| failed(&state, why))
    }

    fn try_claim(&mut self) -> std::io::Result<Option<Leadership>> {
        self.observe()?;
        let Some(took_over) = self.free()? else {
            return Ok(None);
        };
        let term = self.seen.as_ref().map_or(0, |(term, _)| *term) + 1;
        // Released by the leader of the previous term, if that runs here and has ended, or held by
        // it, if it was stopped; earlier releases of weir know this lock alone.
        let lock = Lock::take(&self.state)?;
        if lock.is_none() && term == 1 {
            return Ok(None);
        }
        let record = LeaderRecord {
            term,
            ..self.record.clone()
        };
        let Some(claim) = self.directory.claim(record)? else {
            return Ok(None);
        };
        Leadership::begin(&self.state, claim, lock, took_over).map(Some)
    }

    /// Reads the newest term's file.
    fn observe(&mut self) -> std::io::Result<()> {
        let newest = self.directory.newest()?;
        if self.seen != newest {
            self.leader = newest
                .as_ref()
                .map(|(_, bytes)| LeaderRecord::parse(bytes).map(|(record, _)| record));
            self.seen = newest;
            self.since = Instant::now();
        }
        Ok(())
    }

    /// Whether the next term is free, and how the newest one has ended.
    fn free(&self) -> std::io::Result<Option<Succession>> {
        let Some((term, bytes)) = &self.seen else {
            return Ok(Some(Succession::Orderly));
        };
        let has_expired = self.since.elapsed() >= EXPIRES_AFTER;
        let Ok((record, state)) = LeaderRecord::parse(bytes) else {
            return Ok(has_expired.then_some(Succession::Expired));
        };
        if state == LeaseState::Released {
            return Ok(Some(Succession::Orderly));
        }
        // A lock is evidence on the kernel of its process; elsewhere a server may have dropped it.
        let is_evident = record.boot == self.record.boot || !record.expires;
        if is_evident && record.locked && self.directory.is_unlocked(*term)? {
            return Ok(Some(Succession::Orderly));
        }
        Ok((has_expired && record.expires).then_some(Succession::Expired))
    }
}

/// The metrics of the leadership.
pub fn families(is_leader: bool, term: u64) -> [Family; 2] {
    [
        Family::gauge(
            "weir_monitor_leader",
            "",
            "1 while this monitor leads, 0 while it is a standby.",
            f64::from(u8::from(is_leader)),
        ),
        Family::gauge(
            "weir_monitor_term",
            "",
            "The term of the monitor that leads, as far as this one knows.",
            term as f64,
        ),
    ]
}

/// How a term ended before the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Succession {
    /// Its process has ended.
    Orderly,
    /// Its lease was not renewed: its process may be stopped, and continue later.
    Expired,
}

fn failed(state: &Path, why: std::io::Error) -> Failure {
    Failure::world(format_args!(
        "{}: {why}; use --state DIR for another state directory",
        state.display()
    ))
}
