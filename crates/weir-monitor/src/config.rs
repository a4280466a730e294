//! [`MonitorConfig`]: the keys of `/etc/weir/monitor.toml`.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_forward::ForwardConfig;
use weir_model::{NANOS_PER_MICRO, NANOS_PER_SECOND};
use weir_query::place::fleet::PlacementStrategy;
use weir_runtime::config::{Configuration, Fault, Size, Time, count};
use weir_runtime::quantity;
use weir_runtime::service::MetricsConfig;
use weir_sink::SINKS;
use weir_wire::message::{HEARTBEAT_INTERVAL_NS, IDLE_WATERMARK_NS};
use weir_wire::{Listen, ServerTls};

use crate::upstream::UpstreamConfig;

/// The default path of the configuration file.
pub const FILE: &str = "/etc/weir/monitor.toml";

/// Prefixes of the keys that a reload applies; the others need a restart.
pub const APPLIED: &[&str] = &[
    "heartbeat",
    "idle",
    "unwatched",
    "limits.queries",
    "limits.clients",
    "limits.client_queue",
    "limits.snapshot",
    "limits.rows_per_second",
    "query ",
    "alerts.",
];

/// The configuration of a monitor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MonitorConfig {
    /// Where agents and clients connect, `ADDRESS:PORT` or `unix:PATH`; by default the default
    /// socket of this host.
    pub listen: Option<String>,
    /// The directory of standing queries and checkpoints.
    #[serde(serialize_with = "weir_runtime::config::path_shown")]
    pub state: PathBuf,
    /// Other monitors share the state directory, as `--standby`.
    pub standby: bool,
    /// How often agents send heartbeats, and their counters if that is rarer than once a second.
    pub heartbeat: Time,
    /// An agent that is silent for this time no longer delays results.
    pub idle: Time,
    /// A query without clients ends after this time, unless it is standing.
    pub unwatched: Time,
    /// Certificates; without them only local connections are accepted.
    pub tls: Option<MonitorTls>,
    /// The file of the tokens and their roles (see `weir_wire::access`).
    #[serde(serialize_with = "weir_runtime::config::optional_path_shown")]
    pub tokens: Option<PathBuf>,
    /// Limits.
    pub limits: MonitorLimits,
    /// Its metrics and health checks.
    pub metrics: MetricsConfig,
    /// The alerts that run over the fleet.
    pub alerts: MonitorAlerts,
    /// Where the rows of standing queries are forwarded to.
    pub forward: ForwardConfig,
    /// The monitor whose agent this one is.
    pub upstream: UpstreamConfig,
    /// Standing queries.
    #[serde(rename = "query")]
    pub queries: Vec<StandingEntry>,
}

/// The monitor's side of TLS (`[tls]`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MonitorTls {
    /// The monitor's certificate chain, PEM.
    #[serde(serialize_with = "weir_runtime::config::path_shown")]
    pub certificate: PathBuf,
    /// The key of the certificate, PEM.
    #[serde(serialize_with = "weir_runtime::config::path_shown")]
    pub key: PathBuf,
    /// The authorities of the certificates of agents and clients, PEM.
    #[serde(serialize_with = "weir_runtime::config::optional_path_shown")]
    pub client_ca: Option<PathBuf>,
}

/// The alerts that run over the fleet (`[alerts]`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MonitorAlerts {
    /// The file of alerts.
    #[serde(serialize_with = "weir_runtime::config::optional_path_shown")]
    pub file: Option<PathBuf>,
    /// The file of receivers, routes and inhibitions.
    #[serde(serialize_with = "weir_runtime::config::optional_path_shown")]
    pub routes: Option<PathBuf>,
}

/// Limits of the resources of the fleet and its users (`[limits]`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MonitorLimits {
    /// Maximum number of agents.
    #[serde(deserialize_with = "count::<_, 100_000>")]
    pub agents: usize,
    /// Maximum number of connections of agents and clients.
    #[serde(deserialize_with = "count::<_, 200_000>")]
    pub connections: usize,
    /// Maximum number of connections from one address (of IPv6, one /64) or local user.
    #[serde(deserialize_with = "count::<_, 200_000>")]
    pub connections_per_address: usize,
    /// Maximum number of queries.
    #[serde(deserialize_with = "count::<_, 100_000>")]
    pub queries: usize,
    /// Maximum number of queries per client, including standing ones.
    #[serde(deserialize_with = "count::<_, 100_000>")]
    pub queries_per_client: usize,
    /// Memory of one query at the monitor.
    pub query_memory: Size,
    /// Maximum number of clients per query.
    #[serde(deserialize_with = "count::<_, 10_000>")]
    pub clients: usize,
    /// Memory of the results that wait for one client.
    pub client_queue: Size,
    /// Memory of the current relation of one query, which new clients receive.
    pub snapshot: Size,
    /// Maximum rows per second of one query's result.
    #[serde(deserialize_with = "count::<_, 1_000_000_000>")]
    pub rows_per_second: usize,
    /// Memory of the messages of all agents at the monitor.
    pub intake: Size,
}

/// A query that runs while it is in the file (`[[query]]`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StandingEntry {
    /// Its name.
    pub name: String,
    /// The text of the query.
    pub text: String,
    /// Its placement strategy.
    pub place: Option<String>,
    /// The files that its result is written to (`[[query.sink]]`).
    #[serde(default, rename = "sink")]
    pub sinks: Vec<SinkEntry>,
}

/// A file that a result is written to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SinkEntry {
    /// One of the formats of `weir query`; by default that of the extension of the file.
    #[serde(default)]
    pub format: String,
    /// The file. A relative path is below the state directory.
    #[serde(serialize_with = "weir_runtime::config::path_shown")]
    pub file: PathBuf,
}

impl Configuration for MonitorConfig {
    const RENAMED: &'static [(&'static str, &'static str)] = &[
        ("limits.watchers", "limits.clients"),
        ("limits.watcher_queue", "limits.client_queue"),
    ];

    fn complete(&mut self, faults: &mut Vec<Fault>) {
        self.metrics.check(faults);
        self.forward.check(faults);
        self.upstream.check(faults);
        let mut fault = |key: String, why: String| faults.push(Fault { key, why });
        if let Some(Err(why)) = self.listen.as_ref().map(|text| text.parse::<Listen>()) {
            fault("listen".to_owned(), why);
        }
        let heartbeat_ns = quantity::nanos(self.heartbeat.0);
        if !HEARTBEAT_INTERVAL_NS.contains(&heartbeat_ns) {
            let (least, most) = HEARTBEAT_INTERVAL_NS.into_inner();
            let (least, most) = (least / (1_000 * NANOS_PER_MICRO), most / NANOS_PER_SECOND);
            let why = format!("expected from {least} ms to {most} s");
            fault("heartbeat".to_owned(), why);
        }
        if quantity::nanos(self.idle.0) < heartbeat_ns.max(IDLE_WATERMARK_NS).saturating_mul(2) {
            let why = "is less than twice `heartbeat`, or less than 1 s: agents without requests \
                       would be excluded; increase it";
            fault("idle".to_owned(), why.to_owned());
        }
        let mut names: Vec<String> = Vec::new();
        for (number, query) in self.queries.iter_mut().enumerate() {
            let name = query.name.clone();
            if names.contains(&name) {
                let why = format!("two [[query]] entries have the name `{name}`");
                fault(format!("query.{number}.name"), why);
            }
            names.push(name);
            if let Some(place) = &mut query.place {
                match place.parse::<PlacementStrategy>() {
                    Ok(strategy) => *place = strategy.to_string(),
                    Err(error) => fault(format!("query.{number}.place"), error.to_string()),
                }
            }
            for (of_query, sink) in query.sinks.iter_mut().enumerate() {
                match sink.format() {
                    Ok(format) => sink.format = format,
                    Err(why) => fault(format!("query.{number}.sink.{of_query}.format"), why),
                }
            }
        }
    }
}

impl SinkEntry {
    /// The format of the file; a restarted monitor must be able to append to it.
    fn format(&self) -> Result<String, String> {
        let extension = self.file.extension().and_then(|e| e.to_str());
        let name = match &*self.format {
            "" => extension.ok_or("is missing; write format = \"csv\"")?,
            name => name,
        };
        let why = match weir_sink::format(name) {
            Some(format) if format.resume.is_some() => return Ok(format.name.to_owned()),
            Some(_) => format!("format `{name}` does not support appending after a restart"),
            None => format!("unknown format `{name}`"),
        };
        let names = SINKS.iter().filter(|sink| sink.resume.is_some());
        let names: Vec<&str> = names.map(|sink| sink.name).collect();
        Err(format!("{why}; the formats are {}", names.join(", ")))
    }
}

impl From<MonitorTls> for ServerTls {
    fn from(tls: MonitorTls) -> ServerTls {
        ServerTls {
            certificate: tls.certificate,
            key: tls.key,
            authority: tls.client_ca,
        }
    }
}

impl Default for MonitorConfig {
    fn default() -> MonitorConfig {
        MonitorConfig {
            listen: None,
            state: PathBuf::from("/var/lib/weir"),
            standby: false,
            heartbeat: Time(Duration::from_millis(50)),
            idle: Time(Duration::from_secs(2)),
            unwatched: Time(Duration::from_secs(5)),
            tls: None,
            tokens: None,
            limits: MonitorLimits::default(),
            metrics: MetricsConfig::default(),
            alerts: MonitorAlerts::default(),
            forward: ForwardConfig::default(),
            upstream: UpstreamConfig::default(),
            queries: Vec::new(),
        }
    }
}

impl Default for MonitorLimits {
    fn default() -> MonitorLimits {
        MonitorLimits {
            agents: 2_000,
            connections: 4_096,
            connections_per_address: 2_048,
            queries: 1_000,
            queries_per_client: 200,
            query_memory: Size(256 << 20),
            clients: 100,
            client_queue: Size(8 << 20),
            snapshot: Size(64 << 20),
            rows_per_second: 1_000_000,
            intake: Size(512 << 20),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_runtime::config::{Changes, parse};

    fn monitor(text: &str) -> Result<MonitorConfig, Vec<String>> {
        parse("m.toml", text)
    }

    /// The first error of a file, without the text before its line number.
    fn fault(text: &str) -> String {
        let fault = monitor(text).unwrap_err().remove(0);
        fault.strip_prefix("weir: m.toml:").unwrap().to_owned()
    }

    #[test]
    fn an_empty_file_means_the_defaults() {
        assert_eq!(monitor(""), Ok(MonitorConfig::default()));
    }

    #[test]
    fn a_mistake_names_its_line_its_key_and_the_remedy() {
        let query = "[[query]]\nname = \"a\"\ntext = \"x\"\n\n[[query]]\nname = \"b\"\n";
        let sink = format!("{query}text = \"y\"\n[[query.sink]]\nfile = \"f.csv\"\n");
        for (text, why) in [
            (
                "state = \"/s\"\nlistne = \"127.0.0.1:1\"\n",
                "2: unknown key `listne`; did you mean `listen`?",
            ),
            (
                "[tls]\ncertificate = \"/c\"\nkey = \"/k\"\npassphrase = \"p\"\n",
                "4: unknown key `tls.passphrase`; known here: certificate, key, client_ca",
            ),
            (
                "[limits]\nwatchers = 100\n",
                "2: unknown key `limits.watchers`; its name is now `limits.clients`",
            ),
            (
                "[limits]\nwatcher_queue = \"8 MiB\"\n",
                "2: unknown key `limits.watcher_queue`; its name is now `limits.client_queue`",
            ),
            (
                "\nheartbeat = 50\n",
                "2: `heartbeat`: expected a quoted text with a number and its unit, \
                 found integer `50`",
            ),
            (
                "idle = \"2 parsecs\"\n",
                "1: `idle`: expected a number with ns, us, ms, s, m, h or d, such as 10s or 250ms",
            ),
            (
                "[limits]\nagents = 1\nqueries = 0\n",
                "3: `limits.queries`: expected a whole number from 1 to 100000, found integer `0`",
            ),
            (
                "[limits]\nquery_memory = \"lots\"\n",
                "2: `limits.query_memory`: expected a number with KiB, MiB or GiB, such as 512MiB",
            ),
            (
                query,
                "5: `query.text` is missing; add text = .. to this table",
            ),
            (
                &format!("{query}txt = \"y\"\n"),
                "7: unknown key `query.txt`; did you mean `text`?",
            ),
            (
                &format!("{query}text = 1\n"),
                "7: `query.text`: expected a text in quotes, found integer `1`",
            ),
            (
                &format!("{sink}fromat = \"csv\"\n"),
                "10: unknown key `query.sink.fromat`; did you mean `format`?",
            ),
            (
                &format!("{sink}format = \"\"\n"),
                "10: `query.sink.format`: expected a text, found an empty one",
            ),
            (
                "idle = \"2 s\"\nlisten = \"here\"\n",
                "2: `listen`: expected an address",
            ),
        ] {
            assert!(fault(text).starts_with(why), "{why}\n{}", fault(text));
        }
        // A TOML syntax error contains its line too.
        assert!(fault("idle = \"2 s\"\nlisten = = 3\n").starts_with("2: "));
    }

    #[test]
    fn a_sink_has_a_format_that_can_be_added_to() {
        let with = |sink: &str| {
            let query = "[[query]]\nname = \"q\"\ntext = \"x\"\n[[query.sink]]\n";
            format!("{query}{sink}")
        };
        let config = monitor(&with("file = \"a.csv\"\n")).unwrap();
        assert_eq!(config.queries[0].sinks[0].format, "csv");
        for sink in ["parquet", "table"] {
            let wrong = with(&format!("file = \"a\"\nformat = \"{sink}\"\n"));
            assert!(fault(&wrong).starts_with("6: `query.sink.format`: "));
            assert!(fault(&wrong).contains("does not support appending"));
        }
        assert!(fault(&with("file = \"a.parquet\"\n")).starts_with("4: `query.sink.format`: "));
        assert!(fault(&with("file = \"a\"\n")).contains("is missing; write format"));
    }

    #[test]
    fn an_agent_is_not_excluded_between_two_heartbeats() {
        assert!(monitor("heartbeat = \"1 s\"\nidle = \"2 s\"\n").is_ok());
        for text in ["heartbeat = \"2 s\"\n", "idle = \"999 ms\"\n"] {
            let why = "1: `idle`: is less than twice `heartbeat`";
            assert!(fault(text).starts_with(why), "{}", fault(text));
        }
        // Intervals that agents reject are rejected.
        for text in [
            "heartbeat = \"1 ms\"\n",
            "heartbeat = \"20 s\"\nidle = \"1 h\"\n",
        ] {
            assert!(fault(text).starts_with("1: `heartbeat`: expected from 5 ms to 10 s"));
        }
    }

    #[test]
    fn names_are_unique() {
        let twice =
            "[[query]]\nname = \"q\"\ntext = \"x\"\n[[query]]\nname = \"q\"\ntext = \"y\"\n";
        assert_eq!(
            fault(twice),
            "5: `query.name`: two [[query]] entries have the name `q`"
        );
    }

    #[test]
    fn a_reload_reports_what_needs_a_restart() {
        let before = monitor("idle = \"3 s\"\nlisten = \"127.0.0.1:1\"\nstate = \"/s\"\n").unwrap();
        let after = "idle = \"1500 ms\"\nstate = \"/t\"\n[[query]]\nname = \"q\"\ntext = \"x\"\n";
        let after = monitor(after).unwrap();
        let changes = Changes::between(&before, &after, APPLIED);
        assert_eq!(
            changes.to_string(),
            "idle = \"1500 ms\" (was \"3 s\"); query q.name = \"q\" (new); \
             query q.text = \"x\" (new); \
             listen is no longer set (was \"127.0.0.1:1\"): needs a restart; \
             state = \"/t\" (was \"/s\"): needs a restart"
        );
        let same = Changes::between(&after, &after, &[]);
        assert_eq!(same.to_string(), "nothing changed");
    }
}
