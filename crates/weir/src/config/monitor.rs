//! [`MonitorConfig`]: what `/etc/weir/monitor.toml` may say.

use std::time::Duration;

use weir_model::{NANOS_PER_MICRO, NANOS_PER_SECOND};
use weir_monitor::config::{Limits, MonitorConfig, SinkEntry, StandingEntry};
use weir_query::place::fleet::Way;
use weir_sink::SINKS;
use weir_wire::message::{HEARTBEAT_INTERVAL_NS, IDLE_WATERMARK_NS};
use weir_wire::{Listen, ServerTls};

use super::table::{Document, Table};
use weir_runtime::quantity;

/// What a reload takes over while the monitor runs.
pub const TAKEN_AT_ONCE: &[&str] = &[
    "heartbeat",
    "idle",
    "unwatched",
    "limits.queries",
    "limits.watchers",
    "limits.watcher_queue",
    "limits.snapshot",
    "limits.rows_per_second",
    "query ",
];

/// The configuration in a document, with defaults for missing keys.
pub(super) fn of(document: &mut Document) -> MonitorConfig {
    let usual = MonitorConfig::default();
    document.read(|top| {
        let config = MonitorConfig {
            listen: top.text("listen", listen),
            state: top.path("state").unwrap_or(usual.state),
            heartbeat: top.text("heartbeat", pace).unwrap_or(usual.heartbeat),
            idle: top.text("idle", quantity::span).unwrap_or(usual.idle),
            unwatched: top
                .text("unwatched", quantity::span)
                .unwrap_or(usual.unwatched),
            tls: top.table("tls", server_tls).flatten(),
            tokens: top.path("tokens"),
            limits: top.table("limits", limits).unwrap_or(usual.limits),
            queries: top.tables("query", query),
        };
        each_once(top, "query", config.queries.iter().map(|q| &*q.name));
        let slowest = config
            .heartbeat
            .max(Duration::from_nanos(IDLE_WATERMARK_NS as u64));
        if config.idle < 2 * slowest {
            top.fault(
                "`idle` is less than two of `heartbeat`, or than a second: agents that have \
                 nothing to tell would be overtaken; make it longer",
            );
        }
        config
    })
}

/// `ADDRESS:PORT` or `unix:PATH`.
pub fn listen(text: &str) -> Result<Listen, String> {
    text.parse()
}

/// The pace of heartbeats.
fn pace(text: &str) -> Result<Duration, String> {
    let pace = quantity::span(text)?;
    match HEARTBEAT_INTERVAL_NS.contains(&quantity::nanos(pace)) {
        true => Ok(pace),
        false => Err(format!(
            "expected from {} ms to {} s",
            HEARTBEAT_INTERVAL_NS.start() / (1_000 * NANOS_PER_MICRO),
            HEARTBEAT_INTERVAL_NS.end() / NANOS_PER_SECOND
        )),
    }
}

fn server_tls(table: &mut Table) -> Option<ServerTls> {
    let certificate = table.path("certificate");
    let key = table.path("key");
    let authority = table.path("client_ca");
    Some(ServerTls {
        certificate: certificate
            .or_else(|| table.missing("certificate", "\"/etc/weir/monitor.crt\""))?,
        key: key.or_else(|| table.missing("key", "\"/etc/weir/monitor.key\""))?,
        authority,
    })
}

fn limits(table: &mut Table) -> Limits {
    let usual = Limits::default();
    let mut size = |key, usual| table.text(key, quantity::size).unwrap_or(usual);
    let (query_memory, watcher_queue) = (
        size("query_memory", usual.query_memory),
        size("watcher_queue", usual.watcher_queue),
    );
    let (snapshot, intake) = (
        size("snapshot", usual.snapshot),
        size("intake", usual.intake),
    );
    let mut count = |key, most, usual| table.count(key, 1..=most).unwrap_or(usual);
    Limits {
        agents: count("agents", 100_000, usual.agents),
        connections: count("connections", 200_000, usual.connections),
        queries: count("queries", 100_000, usual.queries),
        queries_per_client: count("queries_per_client", 100_000, usual.queries_per_client),
        watchers: count("watchers", 10_000, usual.watchers),
        rows_per_second: count("rows_per_second", 1_000_000_000, usual.rows_per_second),
        query_memory,
        watcher_queue,
        snapshot,
        intake,
    }
}

fn query(table: &mut Table) -> Option<StandingEntry> {
    let name = table.text("name", filled);
    let text = table.text("text", filled);
    let place = table.text("place", place);
    let sinks = table.tables("sink", sink);
    Some(StandingEntry {
        name: name.or_else(|| table.missing("name", "\"load\""))?,
        text: text.or_else(|| table.missing("text", "\"select ..\""))?,
        place,
        sinks,
    })
}

fn sink(table: &mut Table) -> Option<SinkEntry> {
    let format = table.text("format", format);
    let file = table.path("file");
    let file = file.or_else(|| table.missing("file", "\"load.csv\""))?;
    let extension = file
        .extension()
        .and_then(|e| e.to_str())
        .unwrap_or_default();
    let by_name = self::format(extension).ok();
    Some(SinkEntry {
        format: format
            .or(by_name)
            .or_else(|| table.missing("format", "\"csv\""))?,
        file,
    })
}

/// A format whose files can be added to: the monitor does so when it starts again.
fn format(text: &str) -> Result<String, String> {
    let why = match weir_sink::format(text) {
        Some(format) if format.resume.is_some() => return Ok(format.name.to_owned()),
        Some(_) => format!("a file of format `{text}` cannot be added to after a restart"),
        None => format!("unknown format `{text}`"),
    };
    let names = SINKS.iter().filter(|sink| sink.resume.is_some());
    let names: Vec<&str> = names.map(|sink| sink.name).collect();
    Err(format!("{why}; there are {}", names.join(", ")))
}

/// Where a query may be told to run.
fn place(text: &str) -> Result<String, String> {
    let way = text.parse::<Way>().map_err(|error| error.to_string())?;
    Ok(way.to_string())
}

fn filled(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("expected a text, found an empty one".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

fn each_once<'n>(table: &mut Table, key: &str, names: impl Iterator<Item = &'n str>) {
    let names: Vec<&str> = names.collect();
    for i in 1..names.len() {
        if names[..i].contains(&names[i]) {
            table.fault(&format!(
                "two [[{key}]] are called `{}`; give each its own name",
                names[i]
            ));
        }
    }
}
