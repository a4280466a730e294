//! [`AlertLog`]: the changes of alerts in a file, which sources of CQL read as it grows
//! ([`weir_tap::journal`]): stream `alerts` and relation `alert_states`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use weir_model::Nanos;
use weir_model::Symbol;
use weir_model::alert::{AlertChange, AlertInstance};
use weir_runtime::private;
use weir_tap::journal::{self, ALERTS_FILE};

use crate::event::AlertEvent;
use crate::instances::RuleRun;
use crate::machine::AlertState;

/// The copy of the file before it was emptied.
const BEFORE: &str = "events.1.jsonl";

/// The size at which the file is copied and emptied.
const BYTES_MAX: u64 = 4 << 20;

/// See the module's documentation.
#[derive(Debug)]
pub struct AlertLog {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// The last line of each instance that is not clear.
    present: BTreeMap<String, Json>,
}

impl AlertLog {
    /// The file in `directory`, which continues where the last process ended: an instance of which
    /// `rules` have no state is not present any more.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn open(directory: &Path, rules: &[RuleRun]) -> io::Result<AlertLog> {
        private::directory(directory)?;
        let path = directory.join(ALERTS_FILE);
        let before = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let mut log = AlertLog {
            file: private::open(File::options().append(true).create(true), &path)?,
            bytes: before.len() as u64,
            path,
            present: BTreeMap::new(),
        };
        for line in before
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
        {
            log.apply(&line);
        }
        let known = rules.iter().flat_map(|run| {
            let states = run.states();
            states.map(|(key, _)| run.instance(key))
        });
        let known: BTreeSet<String> = known.collect();
        log.present.retain(|instance, _| known.contains(instance));
        let partial = !before.is_empty() && !before.ends_with('\n');
        let text = format!("{}{}", if partial { "\n" } else { "" }, log.snapshot());
        log.append(&text)?;
        Ok(log)
    }

    /// Appends a change. `now` is when it is reported; `is_silenced` whether its messages are
    /// withheld.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&mut self, event: &AlertEvent, now: Nanos, is_silenced: bool) -> io::Result<()> {
        let line = line(event, now, is_silenced);
        self.apply(&line);
        if self.bytes >= BYTES_MAX {
            fs::copy(&self.path, self.path.with_file_name(BEFORE))?;
            self.file.set_len(0)?;
            self.bytes = 0;
            let snapshot = self.snapshot();
            self.append(&snapshot)?;
        }
        self.append(&format!("{line}\n"))
    }

    /// The instances that are present.
    pub fn present(&self) -> impl Iterator<Item = AlertInstance> {
        self.present.values().map(journal::alert_instance)
    }

    fn apply(&mut self, line: &Json) {
        if line.get("reset").is_some() {
            self.present.clear();
        } else if let Some(instance) = line["instance"].as_str() {
            match line["state"] == "clear" {
                true => drop(self.present.remove(instance)),
                false => drop(self.present.insert(instance.to_owned(), line.clone())),
            }
        }
    }

    /// The lines that restate what is present.
    fn snapshot(&self) -> String {
        let mut text = format!("{}\n", json!({"reset": true}));
        for line in self.present.values() {
            let mut line = line.clone();
            line["snapshot"] = json!(true);
            text += &format!("{line}\n");
        }
        text
    }

    fn append(&mut self, text: &str) -> io::Result<()> {
        self.file.write_all(text.as_bytes())?;
        self.bytes += text.len() as u64;
        Ok(())
    }
}

fn line(event: &AlertEvent, now: Nanos, is_silenced: bool) -> Json {
    let labels: BTreeMap<&String, &Option<String>> = event
        .labels
        .iter()
        .map(|(name, value)| (name, value))
        .collect();
    json!({
        "ts": now,
        "at": event.at,
        "alert": event.alert,
        "instance": event.instance(),
        "from": event.from.name(),
        "state": event.to.name(),
        "fired_at": event.fired_at,
        "flaps": event.flaps,
        "labels": labels,
        "summary": summary(event),
        "silenced": is_silenced,
    })
}

fn summary(event: &AlertEvent) -> Option<&str> {
    let mut annotations = event.annotations.iter();
    let (_, text) = annotations.find(|(name, _)| name == "summary")?;
    Some(text)
}

/// An event as a row of stream `alerts`, reported at `now`.
pub fn row(event: &AlertEvent, now: Nanos, is_silenced: bool) -> AlertChange {
    let symbol = |text: Option<&str>| Symbol::try_new(text?).ok();
    let label = |name: &str| symbol(event.label(name));
    AlertChange {
        ts: now,
        from_state: symbol(Some(event.from.name())),
        instance: AlertInstance {
            alert: symbol(Some(&event.alert)),
            instance: symbol(Some(&event.instance())),
            state: symbol(Some(event.to.name())),
            at: Some(event.at),
            fired_at: event.fired_at,
            flaps: i64::try_from(event.flaps).ok(),
            severity: label("severity"),
            summary: symbol(summary(event)).filter(|_| event.to != AlertState::Unknown),
            vm: label("vm"),
            vdisk: label("vdisk"),
            pdisk: label("pdisk"),
            silenced: Some(is_silenced),
            host: label("host"),
        },
    }
}
