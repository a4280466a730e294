//! [`AgentConfig`]: what `/etc/weir/agent.toml` may say.

use std::path::PathBuf;
use std::time::Duration;

use weir_wire::Address;

use super::table::{Document, Table};
use weir_runtime::quantity;
use weir_runtime::source::LIVE;

/// How an agent is set up.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentConfig {
    /// The monitor, `HOST[:PORT]` (`monitor`).
    pub monitor: Option<String>,
    /// What this host is called, unique in the fleet (`host`); otherwise its host name.
    pub host: Option<String>,
    /// Where it keeps what must outlive it, the spool included (`state`).
    pub state: PathBuf,
    /// Where events come from, as `--from` (`from`).
    pub from: String,
    /// Devices to watch, as `--device` (`devices`).
    pub devices: Vec<String>,
    /// Watch stacked devices too, as `--stacked` (`stacked`).
    pub stacked: bool,
    /// Processes to be treated as a VM, as `--vm` (`vms`).
    pub vms: Vec<String>,
    /// TLS and token (`[tls]`, `token_file`).
    pub security: UplinkSecurity,
    /// Words that wait in memory for the monitor, bytes (`[uplink] memory`).
    pub uplink_bytes: usize,
    /// Words that wait on disk, bytes; 0 for no spool (`[uplink] spool`).
    pub spool_bytes: usize,
    /// Where they wait, if not with the state (`[uplink] spool_directory`).
    pub spool: Option<PathBuf>,
    /// A new attempt to reach the monitor comes at the latest after so long (`[uplink] retry`).
    pub retry: Duration,
    /// Processor time the agent may take, as a share of one processor; beyond it events are sampled
    /// (`[limits] cpu`).
    pub cpu_share: Option<f64>,
    /// Memory the agent may take, bytes (`[limits] memory`).
    pub memory_bytes: Option<usize>,
    /// Memory of one query's part, bytes (`[limits] query_memory`).
    pub query_bytes: usize,
}

/// The agent's side of TLS, and its token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UplinkSecurity {
    /// Who signs the monitor's certificate, PEM (`[tls] ca`). With it, TLS is spoken.
    pub ca: Option<PathBuf>,
    /// The agent's certificate chain, PEM (`[tls] certificate`).
    pub certificate: Option<PathBuf>,
    /// The key that goes with it, PEM (`[tls] key`).
    pub key: Option<PathBuf>,
    /// The name in the monitor's certificate, where it is not the one that is dialled
    /// (`[tls] server_name`).
    pub server_name: Option<String>,
    /// The file that holds the agent's token (`token_file`).
    pub token_file: Option<PathBuf>,
}

/// What a reload takes over while the agent runs.
pub const TAKEN_AT_ONCE: &[&str] = &["limits.cpu", "limits.memory"];

impl Default for AgentConfig {
    fn default() -> AgentConfig {
        AgentConfig {
            monitor: None,
            host: None,
            state: PathBuf::from("/var/lib/weir"),
            from: LIVE.to_owned(),
            devices: Vec::new(),
            stacked: false,
            vms: Vec::new(),
            security: UplinkSecurity::default(),
            uplink_bytes: 16 << 20,
            spool_bytes: 256 << 20,
            spool: None,
            retry: Duration::from_secs(5),
            cpu_share: None,
            memory_bytes: None,
            query_bytes: 256 << 20,
        }
    }
}

impl AgentConfig {
    /// What a document says, defaults where it says nothing.
    pub(super) fn of(document: &mut Document) -> AgentConfig {
        let usual = AgentConfig::default();
        document.read(|top| {
            let mut config = AgentConfig {
                monitor: top.text("monitor", monitor),
                host: top.text("host", host),
                state: top.path("state").unwrap_or(usual.state),
                from: top.text("from", any).unwrap_or(usual.from),
                devices: top.texts("devices", any).unwrap_or(usual.devices),
                stacked: top.flag("stacked").unwrap_or(usual.stacked),
                vms: top.texts("vms", any).unwrap_or(usual.vms),
                ..usual
            };
            config.security = top.table("tls", security).unwrap_or_default();
            config.security.token_file = top.path("token_file");
            top.table("uplink", |table| uplink(table, &mut config));
            top.table("limits", |table| limits(table, &mut config));
            config
        })
    }
}

fn uplink(table: &mut Table, config: &mut AgentConfig) {
    if let Some(bytes) = table.text("memory", quantity::size) {
        config.uplink_bytes = bytes;
    }
    if let Some(bytes) = table.text("spool", size_or_none) {
        config.spool_bytes = bytes;
    }
    config.spool = table.path("spool_directory");
    if let Some(span) = table.text("retry", quantity::span) {
        config.retry = span;
    }
}

fn limits(table: &mut Table, config: &mut AgentConfig) {
    config.cpu_share = table.text("cpu", share);
    config.memory_bytes = table.text("memory", quantity::size);
    if let Some(bytes) = table.text("query_memory", quantity::size) {
        config.query_bytes = bytes;
    }
}

fn security(table: &mut Table) -> UplinkSecurity {
    let security = UplinkSecurity {
        ca: table.path("ca"),
        certificate: table.path("certificate"),
        key: table.path("key"),
        server_name: table.text("server_name", any),
        token_file: None,
    };
    if security.certificate.is_some() != security.key.is_some() {
        table.fault("`tls.certificate` and `tls.key` go together; name both");
    }
    if security.certificate.is_some() && security.ca.is_none() {
        table.fault("`tls.ca` is missing; name the file that signs the monitor's certificate");
    }
    security
}

fn any(text: &str) -> Result<String, String> {
    match text {
        "" => Err("expected a text, found an empty one".to_owned()),
        text => Ok(text.to_owned()),
    }
}

/// `HOST`, `HOST:PORT`, or one of them with `http://` or `https://` before it.
fn monitor(text: &str) -> Result<String, String> {
    match text.parse::<Address>() {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// A host's name, as it is to appear in column `host`.
///
/// # Errors
/// A text for the user when it is none.
pub fn host(text: &str) -> Result<String, String> {
    let fits = (1..=253).contains(&text.len()) && !text.contains(|c: char| c.is_control());
    match fits {
        true => Ok(text.to_owned()),
        false => Err("expected 1 to 253 bytes without control characters".to_owned()),
    }
}

/// A size, or `none`.
fn size_or_none(text: &str) -> Result<usize, String> {
    match text.trim() {
        "none" => Ok(0),
        text => quantity::size(text).map_err(|why| format!("{why}, or \"none\"")),
    }
}

/// A share of one processor: `"20 %"`.
fn share(text: &str) -> Result<f64, String> {
    let percent = text.trim().strip_suffix('%').map(str::trim);
    match percent.and_then(|p| p.parse::<f64>().ok()) {
        Some(percent) if (0.1..=100_000.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("expected a share of one processor, as in \"20 %\"".to_owned()),
    }
}
