//! [`Leadership`]: the term of this process, renewed until it ends.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tracing::{error, warn};
use weir_runtime::lock::Lock;
use weir_runtime::private;

use super::directory::Claim;
use super::record::LeaderRecord;
use super::{LEASE_LOST, RENEW_EVERY, STEP_DOWN_AFTER, Succession};

/// The interval at which the age of the lease is checked.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// The leadership of this process. It is given back when this is dropped.
#[derive(Debug)]
pub struct Leadership {
    record: LeaderRecord,
    succession: Succession,
    shared: Arc<Shared>,
    claim: Option<JoinHandle<Claim>>,
    _lock: Option<Lock>,
}

#[derive(Debug)]
struct Shared {
    lease: Mutex<Lease>,
    changed: Condvar,
}

/// What the threads share.
#[derive(Debug)]
struct Lease {
    /// The start of the last renewal that succeeded.
    renewed: Instant,
    /// Why it was lost.
    lost: Option<String>,
    is_ending: bool,
}

impl Leadership {
    /// Begins the term of a claim: from now on this process writes below `state` only while it
    /// holds the claim.
    pub(super) fn begin(
        state: &Path,
        claim: Claim,
        lock: Option<Lock>,
        succession: Succession,
    ) -> io::Result<Leadership> {
        private::fence(state, claim.staging());
        let record = claim.record().clone();
        let shared = Arc::new(Shared {
            lease: Mutex::new(Lease {
                renewed: Instant::now(),
                lost: None,
                is_ending: false,
            }),
            changed: Condvar::new(),
        });
        let (term, expires) = (record.term, record.expires);
        let watched = shared.clone();
        let watch = move || watch(&watched, term, expires);
        thread::Builder::new()
            .name("lease-check".into())
            .spawn(watch)?;
        let renewed = shared.clone();
        let renew = move || renew(&renewed, claim);
        let claim = thread::Builder::new().name("lease".into()).spawn(renew)?;
        Ok(Leadership {
            record,
            succession,
            shared,
            claim: Some(claim),
            _lock: lock,
        })
    }

    /// The term.
    pub fn term(&self) -> u64 {
        self.record.term
    }

    /// How the previous term ended.
    pub fn succession(&self) -> Succession {
        self.succession
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        self.shared.lease().is_ending = true;
        self.shared.changed.notify_all();
        let claim = self.claim.take().map(JoinHandle::join);
        // A thread that panicked has printed its message; the lease expires then.
        if let Some(Ok(claim)) = claim
            && let Err(error) = claim.release()
        {
            warn!(%error, "the lease is not released, it expires");
        }
    }
}

impl Shared {
    fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().expect("no panic while held")
    }

    /// Waits for `timeout`, or less if the process ends; true if it ends.
    fn wait(&self, timeout: Duration) -> bool {
        let lease = self.lease();
        let ends = |lease: &mut Lease| !lease.is_ending;
        let waited = self.changed.wait_timeout_while(lease, timeout, ends);
        waited.expect("no panic while held").0.is_ending
    }
}

/// Renews the lease until the process ends.
fn renew(shared: &Shared, mut claim: Claim) -> Claim {
    while !shared.wait(RENEW_EVERY) {
        let began = Instant::now();
        match claim.renew() {
            Ok(true) => shared.lease().renewed = began,
            Ok(false) => {
                shared.lease().lost = Some("another monitor has taken over".to_owned());
                return claim;
            }
            Err(error) => warn!(%error, "the lease is not renewed, trying again"),
        }
    }
    claim
}

/// Ends the process when the lease is lost. This thread does no I/O before, which might block.
fn watch(shared: &Shared, term: u64, expires: bool) {
    while !shared.wait(CHECK_EVERY) {
        let lease = shared.lease();
        let age = lease.renewed.elapsed();
        let why = match &lease.lost {
            Some(why) => why.clone(),
            None if expires && age > STEP_DOWN_AFTER => {
                format!("it was not renewed for {:.1} s", age.as_secs_f64())
            }
            None => continue,
        };
        error!(term, reason = %why, "lost the lease, no longer the leader: ending");
        std::process::exit(i32::from(LEASE_LOST));
    }
}
