//! Journals: the streams `alerts` and `actions`, and the relations `alert_states` and `leases`, as
//! other processes of weir on this host write them to files.
//!
//! | file | writer | sources |
//! | --- | --- | --- |
//! | `events.jsonl` | `weir alert watch --state DIR` | `alerts`, `alert_states` |
//! | `log.jsonl` | `weir act` | `actions`, `leases` |
//!
//! A file has a JSON object per line, and its writer only appends to it. A file that is full is
//! emptied in place, and begins again with lines that restate what is present. A reader therefore
//! opens a file once, before it drops its privileges. A stream has what is reported after the start
//! of a query; a relation has what is present.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde_json::Value as Json;
use weir_model::alert::{ActionStep, AlertChange, AlertInstance, LeaseRow, reported};
use weir_model::capabilities::Rate;
use weir_model::inventory::{Row, changes};
use weir_model::{Batch, Capabilities, Demand, Nanos, Symbol};

use crate::ebpf::LiveOptions;
use crate::ebpf::clock::epoch_ns;
use crate::live::LiveTap;
use crate::{EventCount, Tap, TapError, TapEvent};

/// The default directory of `weir alert watch --state`.
pub const ALERTS_DIRECTORY: &str = "/var/lib/weir/alerts";

/// The default directory of `weir act --state`.
pub const ACTIONS_DIRECTORY: &str = "/var/lib/weir-act";

/// The file of changes of alerts, in the directory of `weir alert watch --state`.
pub const ALERTS_FILE: &str = "events.jsonl";

/// The file of steps of actions, in the directory of `weir act --state`.
pub const ACTIONS_FILE: &str = "log.jsonl";

/// Maximum bytes that one poll reads from a file.
const READ_BYTES_MAX: u64 = 16 << 20;

/// Maximum number of rows of a relation.
const ROWS_MAX: usize = 100_000;

/// The live tap of the journals in their default directories.
pub static TAP: LiveTap = LiveTap {
    name: "journal",
    streams: STREAMS,
    open: |demands, options| {
        let alerts = Path::new(ALERTS_DIRECTORY).join(ALERTS_FILE);
        let actions = Path::new(ACTIONS_DIRECTORY).join(ACTIONS_FILE);
        Ok(Box::new(JournalTap::open(
            demands, options, &alerts, &actions,
        )?))
    },
    capabilities,
    needs_inventory: |_| false,
};

const STREAMS: &[&str] = &[
    AlertChange::RELATION,
    AlertInstance::RELATION,
    ActionStep::RELATION,
    LeaseRow::RELATION,
];

/// The capabilities for all of them.
pub fn capabilities() -> Capabilities {
    Capabilities::of_rows(
        STREAMS,
        Rate::Polled,
        "what is read from a file is not folded",
    )
}

/// What serves a demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Alerts,
    AlertStates,
    Actions,
    Leases,
}

impl Part {
    fn of(stream: &str) -> Part {
        let at = STREAMS.iter().position(|s| s.eq_ignore_ascii_case(stream));
        match at {
            Some(0) => Part::Alerts,
            Some(1) => Part::AlertStates,
            Some(2) => Part::Actions,
            _ => Part::Leases,
        }
    }

    fn is_of_alerts(self) -> bool {
        matches!(self, Part::Alerts | Part::AlertStates)
    }
}

/// The journals as a source of rows.
pub struct JournalTap {
    demands: Vec<Part>,
    alerts: Option<JournalFile>,
    actions: Option<JournalFile>,
    /// The rows of the relations, by their keys.
    states: BTreeMap<String, AlertInstance>,
    leases: BTreeMap<String, LeaseRow>,
    host: Option<Symbol>,
    queued: VecDeque<TapEvent>,
    /// The watermark.
    reached: Nanos,
    poll_interval: Duration,
    lines: i64,
    malformed: i64,
}

impl JournalTap {
    /// Opens the files that `demands` need.
    ///
    /// # Errors
    /// If a file cannot be opened.
    pub fn open(
        demands: &[Demand],
        options: &LiveOptions,
        alerts: &Path,
        actions: &Path,
    ) -> Result<JournalTap, TapError> {
        let parts: Vec<Part> = demands.iter().map(|d| Part::of(&d.stream)).collect();
        let needs = |of_alerts: bool| parts.iter().any(|part| part.is_of_alerts() == of_alerts);
        let file = |is_needed: bool, path: &Path, writer: &str| match is_needed {
            true => JournalFile::open(path, writer).map(Some),
            false => Ok(None),
        };
        let mut tap = JournalTap {
            alerts: file(needs(true), alerts, "weir alert watch --state DIR")?,
            actions: file(needs(false), actions, "weir act limit --apply")?,
            demands: parts,
            states: BTreeMap::new(),
            leases: BTreeMap::new(),
            host: options.host,
            queued: VecDeque::new(),
            reached: 0,
            poll_interval: options.poll_interval,
            lines: 0,
            malformed: 0,
        };
        tap.poll(true)?;
        Ok(tap)
    }

    /// Reads what was appended, and queues its rows. At the start, streams have none.
    fn poll(&mut self, is_start: bool) -> Result<(), TapError> {
        let ts = epoch_ns().max(self.reached + 1);
        let of_alerts = self
            .alerts
            .as_mut()
            .map_or(Ok(Vec::new()), JournalFile::lines)?;
        let of_actions = self
            .actions
            .as_mut()
            .map_or(Ok(Vec::new()), JournalFile::lines)?;
        if of_alerts.is_empty() && of_actions.is_empty() && !is_start {
            return Ok(());
        }
        let (states, leases) = (self.states.clone(), self.leases.clone());
        let mut changed: Vec<AlertChange> = Vec::new();
        for line in &of_alerts {
            let Some(line) = self.parsed(line) else {
                continue;
            };
            self.apply_alert(&line, &mut changed);
        }
        let mut steps: Vec<ActionStep> = Vec::new();
        for line in &of_actions {
            let Some(line) = self.parsed(line) else {
                continue;
            };
            self.apply_action(&line, &mut steps);
        }
        for (demand, part) in self.demands.iter().enumerate() {
            let batch = match part {
                Part::Alerts if !is_start => reported(ts, self.host, &changed),
                Part::Actions if !is_start => reported(ts, self.host, &steps),
                Part::Alerts | Part::Actions => continue,
                Part::AlertStates => difference(ts, self.host, &states, &self.states),
                Part::Leases => difference(ts, self.host, &leases, &self.leases),
            };
            if !batch.is_empty() {
                self.queued.push_back(TapEvent::Rows { demand, batch });
            }
        }
        self.reached = ts;
        Ok(())
    }

    fn parsed(&mut self, line: &str) -> Option<Json> {
        self.lines += 1;
        let parsed = serde_json::from_str(line).ok().filter(Json::is_object);
        self.malformed += i64::from(parsed.is_none());
        parsed
    }

    fn apply_alert(&mut self, line: &Json, changed: &mut Vec<AlertChange>) {
        if line.get("reset").is_some() {
            self.states.clear();
            return;
        }
        let (instance, key) = (alert_instance(line), text_of(line, "instance"));
        match text_of(line, "state") == "clear" {
            true => drop(self.states.remove(&key)),
            false if self.states.len() < ROWS_MAX || self.states.contains_key(&key) => {
                self.states.insert(key, instance.clone());
            }
            false => {}
        }
        if line.get("snapshot").is_none() {
            changed.push(AlertChange {
                ts: line["ts"].as_i64().unwrap_or(0),
                from_state: symbol(line, "from"),
                instance,
            });
        }
    }

    fn apply_action(&mut self, line: &Json, steps: &mut Vec<ActionStep>) {
        if line.get("reset").is_some() {
            self.leases.clear();
            return;
        }
        let (lease, key) = (lease_row(line), text_of(line, "id"));
        match text_of(line, "stage").as_str() {
            "announced" | "applied" if self.leases.len() < ROWS_MAX => {
                self.leases.insert(key, lease.clone());
            }
            "ended" => drop(self.leases.remove(&key)),
            _ => {}
        }
        if line.get("snapshot").is_none() {
            steps.push(ActionStep {
                ts: line["at"].as_i64().unwrap_or(0),
                step: symbol(line, "stage"),
                cause: symbol(line, "cause"),
                outcome: outcome(&line["outcome"]),
                effect: symbol(line, "effect"),
                lease,
            });
        }
    }
}

impl Tap for JournalTap {
    fn next(&mut self, timeout: Duration) -> Result<TapEvent, TapError> {
        if let Some(event) = self.queued.pop_front() {
            return Ok(event);
        }
        thread::sleep(self.poll_interval.min(timeout));
        self.poll(false)?;
        Ok(match self.queued.pop_front() {
            Some(event) => event,
            None => {
                self.reached = self.reached.max(epoch_ns());
                TapEvent::Heartbeat(self.reached)
            }
        })
    }

    fn counts(&mut self) -> Vec<EventCount> {
        let count = |counter, cause, total| EventCount {
            counter,
            cause,
            device: None,
            total,
        };
        match self.malformed {
            0 => Vec::new(),
            malformed => vec![count("bad_records", Some("malformed"), malformed)],
        }
    }

    fn describe(&self) -> Vec<String> {
        let files = self.alerts.iter().chain(&self.actions);
        let line =
            |file: &JournalFile| format!("journal: {}, read as it grows", file.path.display());
        files.map(line).collect()
    }
}

/// A file that grows.
struct JournalFile {
    path: PathBuf,
    file: File,
    offset: u64,
    /// The beginning of a line whose end was not written yet.
    partial: Vec<u8>,
}

impl JournalFile {
    fn open(path: &Path, writer: &str) -> Result<JournalFile, TapError> {
        let file = File::open(path).map_err(|error| TapError::Unavailable {
            what: format!("{}: {error}", path.display()),
            remedy: format!("`{writer}` writes it"),
        })?;
        Ok(JournalFile {
            path: path.to_owned(),
            file,
            offset: 0,
            partial: Vec::new(),
        })
    }

    /// The complete lines that were appended since the last call.
    fn lines(&mut self) -> Result<Vec<String>, TapError> {
        let failed = |error: std::io::Error, path: &Path| TapError::Unavailable {
            what: format!("{}: {error}", path.display()),
            remedy: "the file must remain while it is read".into(),
        };
        let size = self
            .file
            .metadata()
            .map_err(|e| failed(e, &self.path))?
            .len();
        if size < self.offset {
            self.offset = 0;
            self.partial.clear();
        }
        if size == self.offset {
            return Ok(Vec::new());
        }
        let from = self.file.seek(SeekFrom::Start(self.offset));
        from.map_err(|e| failed(e, &self.path))?;
        let mut bytes = std::mem::take(&mut self.partial);
        let wanted = (size - self.offset).min(READ_BYTES_MAX);
        let read = (&self.file).take(wanted).read_to_end(&mut bytes);
        self.offset += read.map_err(|e| failed(e, &self.path))? as u64;
        let end = bytes
            .iter()
            .rposition(|b| *b == b'\n')
            .map_or(0, |at| at + 1);
        self.partial = bytes.split_off(end);
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.lines().map(str::to_owned).collect())
    }
}

/// The rows that differ, as deltas.
fn difference<R: Row>(
    ts: Nanos,
    host: Option<Symbol>,
    before: &BTreeMap<String, R>,
    after: &BTreeMap<String, R>,
) -> Batch {
    let others = |rows: &BTreeMap<String, R>, than: &BTreeMap<String, R>| -> Vec<R> {
        let differs = |(key, row): &(&String, &R)| than.get(*key) != Some(row);
        rows.iter()
            .filter(differs)
            .map(|(_, row)| row.clone())
            .collect()
    };
    changes(ts, host, &others(before, after), &others(after, before))
}

fn text_of(line: &Json, name: &str) -> String {
    line[name].as_str().unwrap_or("").to_owned()
}

fn symbol(line: &Json, name: &str) -> Option<Symbol> {
    Symbol::try_new(line[name].as_str()?).ok()
}

/// The instance that a line of [`ALERTS_FILE`] states.
pub fn alert_instance(line: &Json) -> AlertInstance {
    let labels = &line["labels"];
    AlertInstance {
        alert: symbol(line, "alert"),
        instance: symbol(line, "instance"),
        state: symbol(line, "state"),
        at: line["at"].as_i64(),
        fired_at: line["fired_at"].as_i64(),
        flaps: line["flaps"].as_i64(),
        severity: symbol(labels, "severity"),
        summary: symbol(line, "summary"),
        vm: symbol(labels, "vm"),
        vdisk: symbol(labels, "vdisk"),
        pdisk: symbol(labels, "pdisk"),
        silenced: line["silenced"].as_bool(),
        host: symbol(labels, "host"),
    }
}

fn lease_row(line: &Json) -> LeaseRow {
    let setting = |name: &str| {
        let limits = line[name].as_object()?;
        let set = limits.iter().filter(|(_, limit)| limit.as_u64() != Some(0));
        let set: Vec<String> = set.map(|(name, limit)| format!("{name}={limit}")).collect();
        let text = match set.is_empty() {
            true => "no limit".to_owned(),
            false => set.join(" "),
        };
        Symbol::try_new(&text).ok()
    };
    LeaseRow {
        id: symbol(line, "id"),
        alert: symbol(line, "alert"),
        vm: symbol(line, "vm"),
        disk: symbol(line, "disk"),
        knob: symbol(line, "knob"),
        before: setting("before"),
        setting: setting("limit"),
        ends: line["ends"].as_i64(),
    }
}

/// `restored`, or the name of an outcome with details.
fn outcome(outcome: &Json) -> Option<Symbol> {
    let name = match outcome {
        Json::Object(details) => details.keys().next().map(String::as_str),
        outcome => outcome.as_str(),
    };
    Symbol::try_new(name?).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use serde_json::json;
    use weir_model::{Catalog, Value};

    use super::*;

    fn demands(names: &[&str]) -> Vec<Demand> {
        let catalog = Catalog::builtin();
        let whole = |name: &&str| Demand::whole(catalog.find(name).unwrap());
        names.iter().map(whole).collect()
    }

    fn change(instance: &str, from: &str, state: &str) -> String {
        let labels = json!({"vdisk": instance});
        let line = json!({
            "ts": 7, "at": 5, "alert": "slow", "instance": instance, "from": from, "state": state,
            "labels": labels, "flaps": 0, "silenced": false,
        });
        format!("{line}\n")
    }

    /// The rows until the next heartbeat: demand, weight and column `state`.
    fn rows(tap: &mut JournalTap) -> Vec<(usize, i64, Value)> {
        let mut rows = Vec::new();
        loop {
            match tap.next(Duration::from_millis(1)).unwrap() {
                TapEvent::Rows { demand, batch } => {
                    let schema = match demand {
                        0 => AlertInstance::schema(),
                        _ => AlertChange::schema(),
                    };
                    let states = &batch.columns[schema.index("state")];
                    let row = |row| (demand, batch.weight(row), states.value(row));
                    rows.extend((0..batch.len()).map(row));
                }
                _ => return rows,
            }
        }
    }

    #[test]
    fn the_states_of_a_journal_are_present_and_its_stream_begins_with_the_query() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ALERTS_FILE);
        fs::write(&path, change("a", "pending", "firing") + "{damaged\n").unwrap();
        let demands = demands(&["alert_states", "alerts"]);
        let options = LiveOptions::default();
        let mut tap = JournalTap::open(&demands, &options, &path, Path::new("/none")).unwrap();
        let firing = Value::text("firing");
        assert_eq!(rows(&mut tap), [(0, 1, firing.clone())]);
        let mut file = File::options().append(true).open(&path).unwrap();
        let line = change("a", "firing", "clear");
        let (head, tail) = line.split_at(20);
        file.write_all(head.as_bytes()).unwrap();
        assert_eq!(rows(&mut tap), []);
        file.write_all(tail.as_bytes()).unwrap();
        let clear = (1, 1, Value::text("clear"));
        assert_eq!(rows(&mut tap), [(0, -1, firing.clone()), clear]);
        // A file that was full begins again with what is present.
        file.set_len(0).unwrap();
        file.write_all(b"{\"reset\":9}\n").unwrap();
        let snapshot = change("b", "", "firing").replace("{", "{\"snapshot\":true,");
        file.write_all(
            snapshot
                .replace("\"labels\":{\"snapshot\":true,", "\"labels\":{")
                .as_bytes(),
        )
        .unwrap();
        assert_eq!(rows(&mut tap), [(0, 1, firing)]);
        assert_eq!(tap.counts()[0].total, 1);
    }

    #[test]
    fn a_lease_is_present_until_it_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ACTIONS_FILE);
        let line = |stage: &str| {
            let line = json!({
                "at": 5, "id": "mail-1", "vm": "mail", "disk": "vda", "knob": "io.max",
                "before": {}, "limit": {"riops": 5, "wiops": 0}, "ends": 9, "stage": stage,
                "outcome": {"gone": {"error": "x"}},
            });
            format!("{line}\n")
        };
        fs::write(&path, line("announced") + &line("applied")).unwrap();
        let demands = demands(&["leases", "actions"]);
        let options = LiveOptions::default();
        let mut tap = JournalTap::open(&demands, &options, Path::new("/none"), &path).unwrap();
        let Ok(TapEvent::Rows { demand: 0, batch }) = tap.next(Duration::ZERO) else {
            panic!("a lease is present");
        };
        let setting = &batch.columns[LeaseRow::schema().index("setting")];
        assert_eq!(setting.value(0), Value::text("riops=5"));
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(line("ended").as_bytes()).unwrap();
        let Ok(TapEvent::Rows { demand: 0, batch }) = tap.next(Duration::ZERO) else {
            panic!("it ended");
        };
        assert_eq!(batch.weight(0), -1);
        let Ok(TapEvent::Rows { demand: 1, batch }) = tap.next(Duration::ZERO) else {
            panic!("that is a step");
        };
        let outcome = &batch.columns[ActionStep::schema().index("outcome")];
        assert_eq!(outcome.value(0), Value::text("gone"));
    }

    #[test]
    fn a_journal_that_does_not_exist_is_named() {
        let demands = demands(&["leases"]);
        let (options, none) = (LiveOptions::default(), Path::new("/none/log.jsonl"));
        let Err(error) = JournalTap::open(&demands, &options, none, none) else {
            panic!("there is none");
        };
        assert!(error.to_string().contains("/none/log.jsonl"), "{error}");
    }
}
