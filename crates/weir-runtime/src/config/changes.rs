//! [`Changes`]: which settings differ between two readings of a configuration file.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::serialized;

/// The settings that differ, one line each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Those that apply from now on.
    pub applied: Vec<String>,
    /// Those that apply after a restart only.
    pub restart: Vec<String>,
}

impl Changes {
    /// The differences. Keys that begin with one of `applied` need no restart.
    pub fn between<T: Serialize>(before: &T, after: &T, applied: &[&str]) -> Changes {
        let (before, after) = (settings(before), settings(after));
        let new = after.keys().filter(|key| !before.contains_key(*key));
        let mut changes = Changes::default();
        for key in before.keys().chain(new) {
            let line = match (before.get(key), after.get(key)) {
                (None, Some(after)) => format!("{key} = {after} (new)"),
                (Some(before), None) => format!("{key} is no longer set (was {before})"),
                (Some(before), Some(after)) if before != after => {
                    format!("{key} = {after} (was {before})")
                }
                _ => continue,
            };
            match applied.iter().any(|begin| key.starts_with(begin)) {
                true => changes.applied.push(line),
                false => changes.restart.push(line),
            }
        }
        changes
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.applied.is_empty() && self.restart.is_empty() {
            return f.write_str("nothing changed");
        }
        let restart = self.restart.iter();
        let restart = restart.map(|line| format!("{line}: needs a restart"));
        let lines: Vec<String> = self.applied.iter().cloned().chain(restart).collect();
        f.write_str(&lines.join("; "))
    }
}

/// Every value with the path of its key.
fn settings(config: &impl Serialize) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    flatten("", &serialized(config), &mut settings);
    settings
}

/// Tables of a list are distinguished by their name, or by their position.
fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    match value {
        Value::Null => {}
        Value::Object(table) => {
            for (key, value) in table {
                let dot = if path.is_empty() { "" } else { "." };
                flatten(&format!("{path}{dot}{key}"), value, into);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            for (number, item) in (1..).zip(items) {
                let name = item["name"].as_str().map(str::to_owned);
                let name = name.unwrap_or_else(|| number.to_string());
                flatten(&format!("{path} {name}"), item, into);
            }
        }
        Value::Array(items) if items.is_empty() => {}
        other => {
            into.insert(path.to_owned(), other.to_string());
        }
    }
}
