//! [`AgentConfig`]: the keys of `/etc/weir/agent.toml`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use weir_forward::{ForwardConfig, ForwardedQuery};
use weir_query::place::fleet::PlacementStrategy;
use weir_runtime::config::{Configuration, Fault, Size, Time, text};
use weir_runtime::failure::Failure;
use weir_runtime::quantity;
use weir_runtime::service::MetricsConfig;
use weir_tap::source::LIVE;
use weir_wire::Dial;

use crate::Budget;

/// The default path of the configuration file.
pub const FILE: &str = "/etc/weir/agent.toml";

/// The keys that a reload applies; the others need a restart.
pub const APPLIED: &[&str] = &["limits.cpu", "limits.memory", "query "];

/// The configuration of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentConfig {
    /// The monitor, `HOST[:PORT]`; with standbys the addresses of all, separated by commas.
    pub monitor: Option<String>,
    /// The name of this host, unique in the fleet; by default its host name.
    pub host: Option<String>,
    /// The directory of the state that survives a restart, the spool included.
    #[serde(serialize_with = "weir_runtime::config::path_shown")]
    pub state: PathBuf,
    /// The source of events, as `--from`.
    pub from: String,
    /// Devices to observe, as `--device`.
    pub devices: Vec<String>,
    /// Observe stacked devices too, as `--stacked`.
    pub stacked: bool,
    /// Processes to be treated as VMs, as `--vm`.
    pub vms: Vec<String>,
    /// The agent runs in a VM, and this is its name or UUID, or `auto` for the UUID that the
    /// firmware reports, as `--guest`.
    pub guest: Option<String>,
    /// Files with definitions of streams of probes that queries of the fleet can name, as
    /// `--define`.
    pub define: Vec<PathBuf>,
    /// The only VM whose rows the monitor may read; by default it may read all.
    pub only_vm: Option<String>,
    /// The socket of `weir act serve`, which carries out the actions of the monitor's alerts.
    #[serde(serialize_with = "weir_runtime::config::path_shown")]
    pub act_socket: PathBuf,
    /// The file that contains the agent's token.
    #[serde(serialize_with = "weir_runtime::config::optional_path_shown")]
    pub token_file: Option<PathBuf>,
    /// The agent's side of TLS.
    pub tls: AgentTls,
    /// The connection to the monitor.
    pub uplink: UplinkConfig,
    /// Resource limits of the agent.
    pub limits: AgentLimits,
    /// Its metrics and health checks.
    pub metrics: MetricsConfig,
    /// Where the rows of `queries` are forwarded to, without a monitor.
    pub forward: ForwardConfig,
    /// Queries whose rows are forwarded.
    #[serde(rename = "query")]
    pub queries: Vec<ForwardedQuery>,
}

/// The agent's side of TLS (`[tls]`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentTls {
    /// The authority that signs the monitor's certificate, PEM. With it, TLS is used.
    #[serde(serialize_with = "weir_runtime::config::optional_path_shown")]
    pub ca: Option<PathBuf>,
    /// The agent's certificate chain, PEM.
    #[serde(serialize_with = "weir_runtime::config::optional_path_shown")]
    pub certificate: Option<PathBuf>,
    /// The key of the certificate, PEM.
    #[serde(serialize_with = "weir_runtime::config::optional_path_shown")]
    pub key: Option<PathBuf>,
    /// The name in the monitor's certificate, if it differs from the host of `monitor`.
    pub server_name: Option<String>,
}

/// The connection to the monitor (`[uplink]`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UplinkConfig {
    /// Maximum bytes of messages that wait in memory.
    pub memory: Size,
    /// Maximum bytes of messages that wait on disk.
    pub spool: SpoolSize,
    /// The directory of the spool; by default below the state directory.
    #[serde(serialize_with = "weir_runtime::config::optional_path_shown")]
    pub spool_directory: Option<PathBuf>,
    /// The maximum time between two attempts to connect.
    pub retry: Time,
}

/// Resource limits of the agent (`[limits]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentLimits {
    /// Processor time of the agent; above it events are sampled.
    pub cpu: Option<Share>,
    /// Memory of the agent; above it events are sampled.
    pub memory: Option<Size>,
    /// Memory of one query's fragment.
    pub query_memory: Size,
}

/// The size of the spool in bytes: a size, or `"none"` for 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoolSize(pub usize);

/// A share of one processor: `"20 %"` is 0.2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub f64);

impl Default for AgentConfig {
    fn default() -> AgentConfig {
        AgentConfig {
            monitor: None,
            host: None,
            state: PathBuf::from("/var/lib/weir"),
            from: LIVE.name.to_owned(),
            devices: Vec::new(),
            stacked: false,
            vms: Vec::new(),
            guest: None,
            define: Vec::new(),
            only_vm: None,
            act_socket: PathBuf::from(weir_act::link::SOCKET),
            token_file: None,
            tls: AgentTls::default(),
            uplink: UplinkConfig::default(),
            limits: AgentLimits::default(),
            metrics: MetricsConfig::default(),
            forward: ForwardConfig::default(),
            queries: Vec::new(),
        }
    }
}

impl Default for UplinkConfig {
    fn default() -> UplinkConfig {
        UplinkConfig {
            memory: Size(16 << 20),
            spool: SpoolSize(256 << 20),
            spool_directory: None,
            retry: Time(Duration::from_secs(5)),
        }
    }
}

impl Default for AgentLimits {
    fn default() -> AgentLimits {
        AgentLimits {
            cpu: None,
            memory: None,
            query_memory: Size(256 << 20),
        }
    }
}

impl Configuration for AgentConfig {
    fn complete(&mut self, faults: &mut Vec<Fault>) {
        self.metrics.check(faults);
        self.forward.check(faults);
        let mut fault = |key: &str, why: String| {
            let key = key.to_owned();
            faults.push(Fault { key, why });
        };
        if let Some(Err(error)) = self.monitor.as_deref().map(Dial::to) {
            fault("monitor", error.to_string());
        }
        if let Some(Err(why)) = self.host.as_deref().map(host) {
            fault("host", why);
        }
        if let Some(Err(why)) = self.guest.as_deref().map(guest_vm) {
            fault("guest", why);
        }
        let tls = &self.tls;
        if tls.certificate.is_some() != tls.key.is_some() {
            let why = "`certificate` and `key` must both be set";
            fault("tls", why.to_owned());
        }
        if tls.certificate.is_some() && tls.ca.is_none() {
            let why = "`ca` is missing; set it to the certificate of the authority that signs \
                       the monitor's certificate";
            fault("tls", why.to_owned());
        }
        if self.forward.partitions.is_some() {
            let why = "the topics of a host have one partition; leave it out";
            fault("forward.partitions", why.to_owned());
        }
        for (number, query) in self.queries.iter().enumerate() {
            let strategy = query.place.as_ref().map(|p| p.parse::<PlacementStrategy>());
            if let Some(Err(error)) = strategy {
                fault(&format!("query.{number}.place"), error.to_string());
            }
        }
    }
}

impl AgentConfig {
    /// Whether the agent forwards the rows of its own queries, without a monitor.
    ///
    /// # Errors
    /// If what is configured contradicts that.
    pub fn forwards(&self) -> Result<bool, Failure> {
        let refuse = |why: String| Err(Failure::words(why));
        let is_named_twice = |(at, query): (usize, &ForwardedQuery)| {
            self.queries[..at].iter().any(|q| q.name == query.name)
        };
        let twice = self.queries.iter().enumerate().find(|q| is_named_twice(*q));
        if let Some((_, query)) = twice {
            return refuse(format!("two queries have the name `{}`", query.name));
        }
        match (&self.forward.to, &self.monitor, &self.queries[..]) {
            (Some(_), Some(_), _) => refuse(format!(
                "an agent sends to a monitor or to Kafka: remove `monitor` or section [forward] from \
                 {FILE}; with a monitor, `weir monitor --forward` forwards"
            )),
            (Some(_), None, []) => refuse(
                "an agent without a monitor forwards the rows of its own queries, and has none; use \
                 --query NAME=QUERY, or add [[query]] to the configuration"
                    .to_owned(),
            ),
            (Some(_), None, _) if self.token_file.is_some() || self.tls != AgentTls::default() => {
                refuse(
                    "token_file and [tls] are those of a connection to a monitor, and this agent \
                     forwards to Kafka: remove them; [forward.tls] and [forward.sasl] are for Kafka"
                        .to_owned(),
                )
            }
            (Some(_), None, _) => Ok(true),
            (None, _, []) => Ok(false),
            (None, ..) => refuse(
                "[[query]] and --query are for agents without a monitor, and there is nothing to \
                 forward to; set forward.to or --forward"
                    .to_owned(),
            ),
        }
    }

    /// The limits above which the agent samples events.
    pub fn budget(&self) -> Budget {
        Budget {
            cpu_share: self.limits.cpu.map(|share| share.0),
            memory_bytes: self.limits.memory.map(|size| size.0 as u64),
        }
    }

    /// The spool directory of an agent with the state directory `home`; `None` without spool.
    pub fn spool_directory(&self, home: &Path) -> Option<PathBuf> {
        let named = self.uplink.spool_directory.clone();
        (self.uplink.spool.0 > 0).then(|| named.unwrap_or_else(|| home.join("spool")))
    }
}

/// The name of a host, as column `host` contains it.
///
/// # Errors
/// A message for the user if `text` is not a host name.
pub fn host(text: &str) -> Result<String, String> {
    let fits = (1..=253).contains(&text.len()) && !text.contains(|c: char| c.is_control());
    match fits {
        true => Ok(text.to_owned()),
        false => Err("expected 1 to 253 bytes without control characters".to_owned()),
    }
}

/// The VM of an agent in a guest: a name, a UUID or `auto`.
///
/// # Errors
/// A message for the user if `text` cannot be the name of a VM.
pub fn guest_vm(text: &str) -> Result<String, String> {
    host(text)
}

fn spool(text: &str) -> Result<SpoolSize, String> {
    match text.trim() {
        "none" => Ok(SpoolSize(0)),
        text => match quantity::size(text) {
            Ok(bytes) => Ok(SpoolSize(bytes)),
            Err(why) => Err(format!("{why}, or \"none\"")),
        },
    }
}

fn share(text: &str) -> Result<Share, String> {
    let percent = text.trim().strip_suffix('%').map(str::trim);
    match percent.and_then(|p| p.parse::<f64>().ok()) {
        Some(percent) if (0.1..=100_000.0).contains(&percent) => Ok(Share(percent / 100.0)),
        _ => Err("expected a share of one processor, such as \"20 %\"".to_owned()),
    }
}

impl<'de> Deserialize<'de> for SpoolSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SpoolSize, D::Error> {
        text(deserializer, spool)
    }
}

impl Serialize for SpoolSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            0 => serializer.serialize_str("none"),
            bytes => Size(bytes).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Share, D::Error> {
        text(deserializer, share)
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // The share was parsed from a percentage; rounding to nine decimals hides the division's
        // error.
        let percent = (self.0 * 1e11).round() / 1e9;
        serializer.collect_str(&format_args!("{percent} %"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_runtime::config::{Changes, parse};

    fn agent(text: &str) -> Result<AgentConfig, Vec<String>> {
        parse("a.toml", text)
    }

    #[test]
    fn an_empty_file_means_the_defaults() {
        assert_eq!(agent(""), Ok(AgentConfig::default()));
    }

    #[test]
    fn keys_have_the_types_of_their_settings() {
        let config = agent(
            "monitor = \"monitor.example:7733\"\nhost = \"a\"\nfrom = \"x.parquet\"\n\
             token_file = \"/t\"\n[tls]\nca = \"/ca\"\n[uplink]\nspool = \"none\"\nmemory = \"4 MiB\"\n\
             [limits]\ncpu = \"20 %\"\nmemory = \"256 MiB\"\n",
        );
        let config = config.unwrap();
        assert_eq!(config.budget().cpu_share, Some(0.2));
        assert_eq!(config.budget().memory_bytes, Some(256 << 20));
        assert_eq!(config.uplink.memory, Size(4 << 20));
        assert_eq!(config.spool_directory(Path::new("/h")), None);
        assert_eq!(config.tls.ca, Some("/ca".into()));
        assert_eq!(config.token_file, Some("/t".into()));
    }

    #[test]
    fn every_wrong_value_names_its_line_and_key() {
        let wrong = "monitor = \"m:x\"\nstate = \"\"\n\n[tls]\nkey = \"/k\"\n";
        let faults = agent(wrong).unwrap_err();
        let begins = [
            "1: `monitor`: `m:x` is not an address",
            "2: `state`: expected a text, found an empty one",
            "4: `tls`: `certificate` and",
        ];
        assert_eq!(faults.len(), begins.len(), "{faults:?}");
        for (fault, begin) in faults.iter().zip(begins) {
            assert!(
                fault.starts_with(&format!("weir: a.toml:{begin}")),
                "{faults:?}"
            );
        }
        for (text, why) in [
            (
                "[limits]\ncpu = \"fast\"",
                "2: `limits.cpu`: expected a share of one processor",
            ),
            ("[uplink]\nspool = \"0\"", "2: `uplink.spool`: "),
            (
                "stacked = 1",
                "1: `stacked`: expected true or false, found integer `1`",
            ),
            (
                "devices = \"sda\"",
                "1: `devices`: expected a list, found string \"sda\"",
            ),
            (
                "state = [1]",
                "1: `state`: expected a path in quotes, found a list",
            ),
        ] {
            let faults = agent(text).unwrap_err();
            assert!(faults[0].contains(why), "{faults:?}");
        }
    }

    #[test]
    fn a_reload_reports_shares_as_the_file_has_them() {
        let limits = |text: &str| agent(&format!("[limits]\n{text}\n")).unwrap();
        let (before, after) = (limits("cpu = \"7 %\""), limits("cpu = \"0.1 %\""));
        let changes = Changes::between(&before, &after, APPLIED);
        assert_eq!(changes.to_string(), "limits.cpu = \"0.1 %\" (was \"7 %\")");
    }
}
