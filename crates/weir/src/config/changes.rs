//! What a configuration file says now and did not say before.

use std::collections::BTreeMap;
use std::fmt;

/// What a file says: values by the paths of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(pub BTreeMap<String, String>);

/// What differs between two readings of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// What holds from now on, one line each.
    pub taken: Vec<String>,
    /// What holds after a restart only.
    pub restart: Vec<String>,
}

impl Settings {
    /// What changed up to `now`. Keys that begin with one of `taken_at_once` need no restart.
    pub fn changes(&self, now: &Settings, taken_at_once: &[&str]) -> Changes {
        let mut changes = Changes::default();
        let keys = self
            .0
            .keys()
            .chain(now.0.keys().filter(|k| !self.0.contains_key(*k)));
        for key in keys {
            let line = match (self.0.get(key), now.0.get(key)) {
                (before, after) if before == after => continue,
                (None, Some(after)) => format!("{key} = {after} (new)"),
                (Some(before), None) => format!("{key} is no longer said (was {before})"),
                (Some(before), Some(after)) => format!("{key} = {after} (was {before})"),
                (None, None) => unreachable!("the key comes from one of them"),
            };
            match taken_at_once.iter().any(|begin| key.starts_with(begin)) {
                true => changes.taken.push(line),
                false => changes.restart.push(line),
            }
        }
        changes
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.taken.is_empty() && self.restart.is_empty() {
            return f.write_str("nothing changed");
        }
        let taken = self.taken.iter().cloned();
        let restart = self
            .restart
            .iter()
            .map(|line| format!("{line}: needs a restart"));
        let lines: Vec<String> = taken.chain(restart).collect();
        f.write_str(&lines.join("; "))
    }
}
