//! [`Lease`]: a knob with another value for some time, and its undoing.
//!
//! ```text
//! announced (on disk) -> knob written -> read back -> applied (on disk)
//!    -> knob compared -> restored -> read back -> ended (on disk)
//! ```
//!
//! After a kill between any two steps, [`recover`] finds the lease on disk and the knob with the
//! value from before, with that of the lease, or in between. Any other value is of another program
//! and stays.

use std::fs;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weir_model::Nanos;
use weir_runtime::boot::boot_id;
use weir_runtime::run_loop::wall_clock;

use crate::ActError;
use crate::knob::{Knob, KnobSetting};
use crate::limit::Limit;
use crate::store::LeaseStore;
use crate::target::LimitTarget;

/// The version of the file.
pub const VERSION: u32 = 1;

/// The longest lease.
pub const LEASE_NS_MAX: Nanos = 24 * 3_600 * 1_000_000_000;

/// Maximum number of leases at a time.
pub const LEASES_MAX: usize = 8;

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// The version of the file.
    pub version: u32,
    /// Its name.
    pub id: String,
    /// The VM, if it is one.
    pub vm: Option<String>,
    /// The disk or device, for users.
    pub disk: String,
    /// The knob.
    pub knob: Knob,
    /// Its value before.
    pub before: KnobSetting,
    /// Its value meanwhile.
    pub ours: KnobSetting,
    /// When it begins, in nanoseconds since the Unix epoch.
    pub begins: Nanos,
    /// When it ends at the latest.
    pub ends: Nanos,
    /// The process that keeps it.
    pub holder: Holder,
    /// The boot of the kernel: knobs do not outlive it.
    pub boot: String,
    /// The instance of an alert that requested it.
    #[serde(default)]
    pub alert: Option<String>,
    /// How long after its end the action is not repeated for that instance.
    #[serde(default)]
    pub cooldown_ns: Nanos,
    /// What the witness of the alert showed.
    #[serde(default)]
    pub effect: Option<String>,
    /// How far it is.
    pub stage: LeaseStage,
}

/// A process, which a later one with the same number is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// When it was started, in ticks since the boot (proc_pid_stat(5), field 22).
    pub started: u64,
}

/// How far a lease is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum LeaseStage {
    /// The knob is about to be written.
    Announced,
    /// The knob has the value.
    Applied,
    /// It has ended.
    Ended {
        /// Why.
        cause: EndCause,
        /// What became of the knob.
        outcome: EndOutcome,
    },
}

/// Why a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndCause {
    /// Its time was over.
    Expired,
    /// A signal or the end of the process.
    Stopped,
    /// `weir act undo`.
    Undone,
    /// Its process had ended without undoing it.
    Recovered,
    /// The knob could not be set.
    NotApplied,
    /// Another program changed the knob.
    Overwritten,
    /// The alert that requested it has cleared.
    Cleared,
    /// The witness of the alert did not show an improvement in time.
    DidNotHelp,
    /// The monitor that runs the alert was not reachable for some time.
    MonitorLost,
}

/// What became of the knob of a lease that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndOutcome {
    /// It has the value from before.
    Restored,
    /// Another program has changed some limits, which stay; the others are those from before.
    ChangedByAnother {
        /// The value that it has now.
        found: KnobSetting,
    },
    /// The group, the VM or the disk is gone.
    Gone {
        /// The error of reading it.
        error: String,
    },
    /// The host has restarted since.
    Restarted,
}

impl EndCause {
    /// For users.
    pub fn text(self) -> &'static str {
        match self {
            EndCause::Expired => "its time has passed",
            EndCause::Stopped => "it was stopped",
            EndCause::Undone => "it was undone",
            EndCause::Recovered => "its process had ended",
            EndCause::NotApplied => "it could not be applied",
            EndCause::Overwritten => "another program changed the limit",
            EndCause::Cleared => "the alert has cleared",
            EndCause::DidNotHelp => "it did not help",
            EndCause::MonitorLost => "the monitor was not reachable",
        }
    }
}

impl EndOutcome {
    /// For users.
    pub fn text(&self, before: &KnobSetting) -> String {
        match self {
            EndOutcome::Restored => format!("restored to {before}"),
            EndOutcome::ChangedByAnother { found } => {
                format!(
                    "another program has changed it: {found}, of which what is not from before stays"
                )
            }
            EndOutcome::Gone { error } => format!("nothing to restore: {error}"),
            EndOutcome::Restarted => "nothing to restore: the host has restarted".to_owned(),
        }
    }
}

/// A point between two steps, at which tests end the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeasePoint {
    /// The lease is on disk.
    Announced,
    /// The knob is written.
    Written,
    /// The knob was read back.
    ReadBack,
    /// That is on disk.
    Applied,
    /// The knob was compared.
    Compared,
    /// The value from before is written.
    Restored,
    /// And was read back.
    RestoredReadBack,
}

impl Lease {
    /// Applies it: on disk first, then the knob, which is read back. If that fails, it is undone.
    ///
    /// # Errors
    /// When the journal or the knob cannot be written, or the knob has another value afterwards.
    pub fn apply(
        &mut self,
        store: &LeaseStore,
        at: &mut dyn FnMut(LeasePoint),
    ) -> Result<(), ActError> {
        self.stage = LeaseStage::Announced;
        store.put(self)?;
        at(LeasePoint::Announced);
        let applied = self.write_and_read_back(at);
        if let Err(error) = applied {
            self.end(store, EndCause::NotApplied, at)?;
            return Err(error);
        }
        self.stage = LeaseStage::Applied;
        store.put(self)?;
        at(LeasePoint::Applied);
        Ok(())
    }

    fn write_and_read_back(&self, at: &mut dyn FnMut(LeasePoint)) -> Result<(), ActError> {
        self.knob.write(&self.ours)?;
        at(LeasePoint::Written);
        let found = self.knob.read()?;
        at(LeasePoint::ReadBack);
        match found.is(&self.ours) {
            true => Ok(()),
            false => Err(ActError::NotApplied {
                knob: self.knob.to_string(),
                found: found.to_string(),
                expected: self.ours.to_string(),
            }),
        }
    }

    /// Ends it: a knob that has its value, or the one from before, gets the one from before.
    ///
    /// # Errors
    /// When the journal or the knob cannot be written; then it has not ended.
    pub fn end(
        &mut self,
        store: &LeaseStore,
        cause: EndCause,
        at: &mut dyn FnMut(LeasePoint),
    ) -> Result<EndOutcome, ActError> {
        let outcome = match self.boot == boot_id() {
            true => self.restore(at)?,
            false => EndOutcome::Restarted,
        };
        self.stage = LeaseStage::Ended {
            cause,
            outcome: outcome.clone(),
        };
        store.put(self)?;
        store.remove(&self.id)?;
        Ok(outcome)
    }

    fn restore(&self, at: &mut dyn FnMut(LeasePoint)) -> Result<EndOutcome, ActError> {
        let found = match self.knob.read() {
            Ok(found) => found,
            Err(error) if self.knob.is_gone(&error) => {
                let error = error.to_string();
                return Ok(EndOutcome::Gone { error });
            }
            Err(error) => return Err(error),
        };
        at(LeasePoint::Compared);
        if found.is(&self.before) {
            return Ok(EndOutcome::Restored);
        }
        let expected = found.restored(&self.before, &self.ours);
        self.knob.write(&expected)?;
        at(LeasePoint::Restored);
        let found = self.knob.read()?;
        at(LeasePoint::RestoredReadBack);
        match found.is(&expected) {
            true if expected.is(&self.before) => Ok(EndOutcome::Restored),
            true => Ok(EndOutcome::ChangedByAnother { found }),
            false => Err(ActError::NotApplied {
                knob: self.knob.to_string(),
                found: found.to_string(),
                expected: expected.to_string(),
            }),
        }
    }

    /// The lease of a target for `length_ns` from `now`, as it would be applied.
    ///
    /// # Errors
    /// When the knob cannot be read.
    pub fn planned(
        target: LimitTarget,
        limit: &Limit,
        now: Nanos,
        length_ns: Nanos,
    ) -> Result<Lease, ActError> {
        let before = target.knob.read()?;
        let name = target.vm.as_deref().unwrap_or(&target.disk);
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
        let name: String = name.chars().filter(is_plain).take(40).collect();
        Ok(Lease {
            version: VERSION,
            id: format!("{name}-{}-{}", now / 1_000_000_000, std::process::id()),
            vm: target.vm,
            disk: target.disk,
            ours: limit.setting(&target.knob, &before),
            knob: target.knob,
            before,
            begins: now,
            ends: now.saturating_add(length_ns),
            holder: this_process(),
            boot: boot_id(),
            alert: None,
            cooldown_ns: 0,
            effect: None,
            stage: LeaseStage::Announced,
        })
    }

    /// Refuses a second lease of its knob, and more than [`LEASES_MAX`]. The store is locked.
    ///
    /// # Errors
    /// [`ActError::Refused`], with the other lease.
    pub fn refuse_another(&self, store: &LeaseStore) -> Result<(), ActError> {
        let active = store.active()?;
        if let Some(other) = active.iter().find(|other| other.knob == self.knob) {
            return Err(ActError::Refused(format!(
                "{} is limited already, by {}; `weir act undo {}` ends that",
                self.disk, other.id, other.id
            )));
        }
        match active.len() < LEASES_MAX {
            true => Ok(()),
            false => Err(ActError::Refused(format!(
                "there are {LEASES_MAX} leases already; `weir act status` lists them"
            ))),
        }
    }

    /// Whether the process that keeps it still runs.
    pub fn is_held(&self) -> bool {
        self.boot == boot_id() && started(self.holder.pid) == Some(self.holder.started)
    }

    /// Its line in the log.
    pub fn event(&self) -> Value {
        let mut event = json!({
            "at": wall_clock(),
            "id": self.id,
            "vm": self.vm,
            "disk": self.disk,
            "knob": self.knob.to_string(),
            "before": self.before,
            "limit": self.ours,
            "ends": self.ends,
            "alert": self.alert,
            "effect": self.effect,
        });
        if self.cooldown_ns > 0 {
            event["cooldown_ns"] = self.cooldown_ns.into();
        }
        if let (Value::Object(event), Ok(Value::Object(stage))) =
            (&mut event, serde_json::to_value(&self.stage))
        {
            event.extend(stage);
        }
        event
    }
}

/// A lease, and what became of it.
pub type EndedLease = (Lease, Result<EndOutcome, ActError>);

/// Undoes what ended processes have left: leases whose process does not run any more. Returns them
/// with their outcomes.
///
/// # Errors
/// When the journal cannot be read or written; a knob that cannot be written is reported among the
/// outcomes, and its lease remains.
pub fn recover(
    store: &LeaseStore,
    at: &mut dyn FnMut(LeasePoint),
) -> Result<Vec<EndedLease>, ActError> {
    let mut recovered = Vec::new();
    for mut lease in store.all()? {
        if let LeaseStage::Ended { .. } = lease.stage {
            store.remove(&lease.id)?;
        } else if !lease.is_held() {
            let outcome = lease.end(store, EndCause::Recovered, at);
            recovered.push((lease, outcome));
        }
    }
    Ok(recovered)
}

/// This process.
pub fn this_process() -> Holder {
    let pid = std::process::id();
    Holder {
        pid,
        started: started(pid).unwrap_or(0),
    }
}

/// When a process was started, in ticks since the boot; `None` if there is none, or it has ended
/// and its parent has not noticed yet.
fn started(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which may contain spaces, the state is field 3.
    let fields: Vec<&str> = text.rsplit(')').next()?.split_whitespace().collect();
    if fields
        .first()
        .is_none_or(|state| ["Z", "X"].contains(state))
    {
        return None;
    }
    fields.get(19)?.parse().ok()
}
