//! [`QueueSession`]: changes of a queue, each in the journal before it is made, and [`recover`].

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::journal::{Journal, JournalEntry, Recorded};
use super::{
    IOSCHED, Queue, QueueError, QueueState, SCHEDULER, changed, depends, in_order, read_state,
};

/// Settings that the kernel changes as others are restored are written again, this often.
const PASSES_MAX: usize = 3;

/// A queue whose settings are changed and then restored.
#[derive(Debug)]
pub struct QueueSession<Q: Queue> {
    queue: Q,
    path: PathBuf,
    journal: Journal,
    before: QueueState,
    /// The settings as they were read last.
    state: QueueState,
}

/// What [`recover`] has done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueRecovery {
    /// The settings that were restored.
    pub restored: Vec<RestoredSetting>,
    /// The settings that another program has changed meanwhile; they are left as they are.
    pub foreign: Vec<ForeignChange>,
}

/// A setting that was restored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RestoredSetting {
    /// Its name.
    pub setting: String,
    /// The value that weir had written, or the kernel as its consequence; `None` if the setting
    /// did not exist.
    pub from: Option<String>,
    /// The value before.
    pub to: String,
}

/// A setting that another program has changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForeignChange {
    /// Its name.
    pub setting: String,
    /// The value that weir had written or found.
    pub expected: Option<String>,
    /// Its value now.
    pub found: Option<String>,
}

impl<Q: Queue> QueueSession<Q> {
    /// Reads the settings and begins a journal. Nothing is changed.
    ///
    /// # Errors
    /// When the settings cannot be read or the journal cannot be written.
    pub fn begin(queue: Q, journal: &Path) -> Result<QueueSession<Q>, QueueError> {
        let before = read_state(&queue)?;
        Ok(QueueSession {
            path: journal.to_owned(),
            journal: Journal::begin(journal, &before)?,
            state: before.clone(),
            before,
            queue,
        })
    }

    /// The settings at the start.
    pub fn before(&self) -> &QueueState {
        &self.before
    }

    /// The settings as they were read last.
    pub fn state(&self) -> &QueueState {
        &self.state
    }

    /// Changes the settings to those before with these `changes`.
    ///
    /// # Errors
    /// When another program has changed settings since the last call, the kernel rejects or adjusts
    /// a value, or the journal cannot be written. The session is then to be restored.
    pub fn set(&mut self, changes: &QueueState) -> Result<(), QueueError> {
        self.check()?;
        let target = changed(&self.before, changes);
        // The kernel resets what depends on the scheduler only when the scheduler changes.
        let keeps_scheduler = target.get(SCHEDULER) == self.state.get(SCHEDULER);
        if keeps_scheduler && target.get(SCHEDULER) != self.before.get(SCHEDULER) {
            let before = self.before.clone();
            self.write_all(&before)?;
        }
        self.write_all(&target)?;
        for (setting, value) in changes {
            let actual = self.state.get(setting).cloned().unwrap_or_default();
            if actual != *value {
                return Err(QueueError::Adjusted {
                    setting: setting.clone(),
                    value: value.clone(),
                    actual,
                });
            }
        }
        Ok(())
    }

    /// Whether the settings are those that were read last.
    ///
    /// # Errors
    /// [`QueueError::Foreign`] if another program has changed any, or when they cannot be read.
    pub fn check(&self) -> Result<(), QueueError> {
        let now = read_state(&self.queue)?;
        let foreign = foreign(&now, &self.before, &self.state, None);
        match foreign.is_empty() {
            true => Ok(()),
            false => Err(QueueError::Foreign(listed(&foreign))),
        }
    }

    fn write_all(&mut self, target: &QueueState) -> Result<(), QueueError> {
        write_all(&self.queue, target, &mut self.journal, &mut self.state)
    }

    /// Restores the settings that were found, and ends.
    ///
    /// # Errors
    /// When a setting cannot be restored; the journal then remains for [`recover`].
    pub fn restore(self) -> Result<QueueRecovery, QueueError> {
        let recovery = recover(&self.queue, &self.path)?;
        Ok(recovery.unwrap_or_default())
    }

    /// Ends and leaves the settings as they are; the journal becomes `kept`, with which [`recover`]
    /// restores them later. If `kept` exists and its last state is the one before this session,
    /// the state before that one is kept.
    ///
    /// # Errors
    /// When the journal cannot be written.
    pub fn keep(self, kept: &Path) -> Result<(), QueueError> {
        if let Some(earlier) = Journal::read(kept)?
            && earlier.last == self.before
        {
            let beside = kept.with_extension("new");
            let mut journal = Journal::begin(&beside, &earlier.before)?;
            journal.append(&JournalEntry::State(self.state))?;
            Journal::rename(&beside, kept)?;
            return Journal::remove(&self.path);
        }
        Journal::rename(&self.path, kept)
    }
}

/// Restores the settings of a queue by its journal, and removes it. A setting that is neither as
/// before nor as weir has left it was changed by another program: it is left as it is. `None`
/// without a journal.
///
/// # Errors
/// When the journal cannot be read or a setting cannot be restored; the journal then remains.
pub fn recover<Q: Queue>(queue: &Q, path: &Path) -> Result<Option<QueueRecovery>, QueueError> {
    let Some(recorded) = Journal::read(path)? else {
        // An incomplete or old journal has nothing to restore.
        return match path.exists() {
            true => Journal::remove(path).map(|()| None),
            false => Ok(None),
        };
    };
    let mut now = read_state(queue)?;
    let Recorded {
        before,
        last,
        pending,
        foreign: earlier,
    } = &recorded;
    let pending = pending.as_ref().map(|(name, value)| (&**name, &**value));
    let mut foreign = foreign(&now, before, last, pending);
    for change in earlier {
        if !foreign.iter().any(|other| other.setting == change.setting) {
            foreign.push(change.clone());
        }
    }
    let mut target = before.clone();
    for change in &foreign {
        // The tunables of another scheduler do not exist any more.
        let restored = if change.setting == SCHEDULER {
            IOSCHED
        } else {
            ""
        };
        target.retain(|name, _| restored.is_empty() || !name.starts_with(restored));
        if let Some(found) = &change.found {
            target.insert(change.setting.clone(), found.clone());
        }
    }
    if foreign.iter().any(|change| change.setting == SCHEDULER) {
        target.retain(|name, _| !depends(name, SCHEDULER));
    }
    let mut restored = Vec::new();
    for (setting, value) in in_order(&target) {
        let from = now.get(setting).cloned();
        let is_kept = foreign.iter().any(|change| change.setting == *setting);
        if from.as_ref() != Some(value) && !is_kept {
            let (setting, to) = (setting.clone(), value.clone());
            restored.push(RestoredSetting { setting, from, to });
        }
    }
    let mut journal = Journal::resume(path)?;
    journal.append(&JournalEntry::Found {
        state: now.clone(),
        foreign: foreign.clone(),
    })?;
    write_all(queue, &target, &mut journal, &mut now)?;
    let left: Vec<String> = target
        .iter()
        .filter(|(name, value)| now.get(*name) != Some(value))
        .map(|(name, value)| format!("{name} (to {value})"))
        .collect();
    if !left.is_empty() {
        return Err(QueueError::NotRestored(left.join(", ")));
    }
    Journal::remove(path)?;
    Ok(Some(QueueRecovery { restored, foreign }))
}

/// Writes the settings of `target` that differ, in order; `state` is what is read afterwards.
fn write_all<Q: Queue>(
    queue: &Q,
    target: &QueueState,
    journal: &mut Journal,
    state: &mut QueueState,
) -> Result<(), QueueError> {
    for _ in 0..PASSES_MAX {
        let mut is_complete = true;
        for (setting, value) in in_order(target) {
            // A tunable that does not exist belongs to another scheduler.
            if state.get(setting).is_none_or(|now| now == value) {
                continue;
            }
            is_complete = false;
            journal.append(&JournalEntry::Write {
                setting: setting.clone(),
                value: value.clone(),
            })?;
            let written = queue.write(setting, value);
            *state = read_state(queue)?;
            journal.append(&JournalEntry::State(state.clone()))?;
            written.map_err(|error| QueueError::Setting {
                action: format!("write {value} to"),
                setting: setting.clone(),
                error,
            })?;
        }
        if is_complete {
            break;
        }
    }
    Ok(())
}

/// The settings that neither weir nor the kernel as a consequence has set to their values in `now`:
/// they are neither as in `before` nor as in `last`, and not the result of the `pending` write.
fn foreign(
    now: &QueueState,
    before: &QueueState,
    last: &QueueState,
    pending: Option<(&str, &str)>,
) -> Vec<ForeignChange> {
    let own_scheduler = [before.get(SCHEDULER), last.get(SCHEDULER)];
    let pending_scheduler = pending.filter(|(name, _)| *name == SCHEDULER);
    let scheduler = now.get(SCHEDULER);
    let is_own = own_scheduler.contains(&scheduler)
        || pending_scheduler.is_some_and(|(_, value)| scheduler.is_some_and(|now| now == value));
    let is_foreign = |name: &&String| {
        let value = now.get(*name);
        if value == before.get(*name) || value == last.get(*name) {
            return false;
        }
        match pending {
            Some((setting, written)) if name.as_str() == setting => {
                value.is_none_or(|value| value != written)
            }
            Some((setting, _)) if depends(name, setting) => false,
            // It follows from the change of the scheduler, which is reported.
            _ => is_own || !depends(name, SCHEDULER),
        }
    };
    let names = now.keys().filter(is_foreign);
    let changes = names.map(|name| ForeignChange {
        setting: name.clone(),
        expected: last.get(name).cloned(),
        found: now.get(name).cloned(),
    });
    changes.collect()
}

fn listed(foreign: &[ForeignChange]) -> String {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "absent".to_owned());
    let lines = foreign.iter().map(|change| {
        let (expected, found) = (text(&change.expected), text(&change.found));
        format!("{} was {expected} and is {found}", change.setting)
    });
    lines.collect::<Vec<_>>().join(", ")
}
