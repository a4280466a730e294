//! [`Backup`]: the standing queries, stored views and placed alerts of a monitor as a file (`weir
//! fleet backup`, `weir fleet restore`).

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_sink::text;
use weir_wire::{Client, OfScript, Submit};

use weir_runtime::failure::Failure;
use weir_runtime::output;

/// The version of the file.
const VERSION: u32 = 1;

/// The content of a backup.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backup {
    version: u32,
    views: Vec<StoredText>,
    queries: Vec<StandingQuery>,
    #[serde(default)]
    alerts: Vec<StoredText>,
}

/// A stored view, or a placed alert.
#[derive(Serialize, Deserialize)]
struct StoredText {
    name: String,
    text: String,
}

/// A standing query that a client has placed.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StandingQuery {
    name: String,
    query: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    place: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    script: Option<OfScript>,
}

impl Backup {
    /// The standing queries and alerts that clients have placed at the monitor, and its views.
    /// Queries that are not included are reported.
    ///
    /// # Errors
    /// If the monitor cannot be reached or rejects the request.
    pub fn of_monitor(client: &mut Client) -> Result<Backup, Failure> {
        let listed = client.queries()?;
        let mut queries = Vec::new();
        for listed in listed.as_array().into_iter().flatten() {
            queries.extend(of_listed(listed)?);
        }
        Ok(Backup {
            version: VERSION,
            views: of_json(client.views()?)?,
            queries,
            alerts: placed_alerts(&client.alerts()?),
        })
    }

    /// The content of the file.
    pub fn text(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("texts and numbers are JSON");
        format!("{text}\n")
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or is no backup of this version.
    pub fn read(path: &Path) -> Result<Backup, Failure> {
        let shown = path.display();
        let text = fs::read_to_string(path)
            .map_err(|error| Failure::words(format_args!("{shown}: {error}")))?;
        let backup: Backup = serde_json::from_str(&text).map_err(|error| {
            Failure::words(format_args!(
                "{shown}: {error}; expected a file that `weir fleet backup` wrote"
            ))
        })?;
        if backup.version != VERSION {
            return Err(Failure::words(format_args!(
                "{shown}: version {} of the file is not supported; this program reads version \
                 {VERSION}",
                backup.version
            )));
        }
        Ok(backup)
    }

    /// Places what the monitor does not have yet; with `check` it only reports what it has. What is
    /// not placed is reported. Returns the numbers of placed and of rejected views, queries
    /// and alerts.
    ///
    /// # Errors
    /// If the monitor cannot be reached.
    pub fn restore(self, client: &mut Client, check: bool) -> Result<(usize, usize), Failure> {
        let running = names(&client.queries()?);
        let stored = names(&client.views()?);
        let alerts = names(&client.alerts()?);
        let (mut placed, mut rejected) = (0, 0);
        let mut count = |result: Result<(), Failure>, kind: &str, name: &str| match result {
            Ok(()) => placed += 1,
            Err(failure) => {
                rejected += 1;
                let (name, why) = (text::shown(name), failure.text());
                output::notice(format_args!("weir: {kind} {name} is not restored: {why}"));
            }
        };
        for view in &self.views {
            if stored.contains(&view.name) {
                exists("view", &view.name);
            } else if !check {
                let changed = client.change_views(&view.text);
                count(changed.map(drop).map_err(Failure::from), "view", &view.name);
            }
        }
        for query in self.queries {
            if running.contains(&query.name) {
                exists("query", &query.name);
            } else if !check {
                let name = query.name.clone();
                count(place(client, query), "query", &name);
            }
        }
        for alert in &self.alerts {
            if alerts.contains(&alert.name) {
                exists("alert", &alert.name);
            } else if !check {
                let placed = client.place_alerts(&alert.text);
                count(
                    placed.map(drop).map_err(Failure::from),
                    "alert",
                    &alert.name,
                );
            }
        }
        Ok((placed, rejected))
    }
}

/// A standing query of the monitor's list; `None` for the others. Which queries are omitted is
/// reported.
fn of_listed(listed: &Value) -> Result<Option<StandingQuery>, Failure> {
    if listed["standing"] != true {
        return Ok(None);
    }
    let name = listed["name"].as_str().unwrap_or_default();
    let omitted = match (&listed["configured"], &listed["vm"]) {
        (Value::Bool(true), _) => Some("it is defined in the monitor's configuration".to_owned()),
        // Placed by another client, it would read the rows of all VMs.
        (_, Value::String(vm)) => Some(format!("it belongs to the owner of VM {vm}")),
        _ => None,
    };
    if let Some(why) = omitted {
        let (name, why) = (text::shown(name), text::shown(&why));
        output::notice(format_args!("weir: query {name} is not included: {why}"));
        return Ok(None);
    }
    let mut kept = serde_json::Map::new();
    for key in ["name", "query", "place", "script"] {
        kept.extend(listed.get(key).map(|value| (key.to_owned(), value.clone())));
    }
    of_json(Value::Object(kept)).map(Some)
}

/// The alerts of the monitor's list that clients have placed.
fn placed_alerts(listed: &Value) -> Vec<StoredText> {
    let listed = listed.as_array().into_iter().flatten();
    let placed = listed.filter(|alert| alert["placed_by"].is_string());
    let text = |alert: &Value| {
        let text = |name: &str| Some(alert[name].as_str()?.to_owned());
        Some(StoredText {
            name: text("name")?,
            text: text("text")?,
        })
    };
    placed.filter_map(text).collect()
}

/// A part of the monitor's response.
fn of_json<T: for<'de> Deserialize<'de>>(json: Value) -> Result<T, Failure> {
    serde_json::from_value(json)
        .map_err(|error| Failure::world(format_args!("the monitor's response: {error}")))
}

/// The names in a list of the monitor.
fn names(listed: &Value) -> Vec<String> {
    let name = |entry: &Value| Some(entry["name"].as_str()?.to_owned());
    listed
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(name)
        .collect()
}

fn place(client: &mut Client, query: StandingQuery) -> Result<(), Failure> {
    client.submit(&Submit {
        query: query.query,
        name: Some(query.name),
        standing: true,
        place: query.place,
        script: query.script,
    })?;
    Ok(())
}

fn exists(kind: &str, name: &str) {
    output::notice(format_args!(
        "weir: {kind} {} exists already and is not changed",
        text::shown(name)
    ));
}
