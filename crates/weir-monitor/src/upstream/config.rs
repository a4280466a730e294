//! [`UpstreamConfig`]: section `[upstream]` of a monitor's configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::info;
use weir_runtime::config::{Fault, Size, Time};
use weir_runtime::failure::Failure;
use weir_runtime::run_loop::wall_clock;
use weir_tap::ebpf;
use weir_wire::outbox::OutboxCapacity;
use weir_wire::{Dial, FleetClock, Hello, Uplink, UplinkOptions, read_token};

use super::Upstream;
use super::state::UpstreamState;
use crate::Monitor;

/// The directory of what concerns the upstream monitor, below the state directory.
const DIRECTORY: &str = "upstream";

/// How long a monitor that ends waits until its messages are acknowledged.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest wait for a silent agent of a site: the upstream monitor waits for the site twice as
/// long.
const IDLE: Duration = Duration::from_secs(1);

/// The smallest memory for messages that wait.
const MEMORY_BYTES_MIN: usize = 256 << 10;

/// The monitor whose agent this one is (`[upstream]`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamConfig {
    /// `HOST[:PORT]`; with standbys the addresses of all, separated by commas. By default this
    /// monitor is no agent.
    pub monitor: Option<String>,
    /// The name of the site in the list of hosts there; by default this host's name.
    pub host: Option<String>,
    /// The file that contains the token of an agent.
    #[serde(serialize_with = "weir_runtime::config::optional_path_shown")]
    pub token_file: Option<PathBuf>,
    /// The authority that signs that monitor's certificate, PEM. With it, TLS is used.
    #[serde(serialize_with = "weir_runtime::config::optional_path_shown")]
    pub ca: Option<PathBuf>,
    /// The certificate chain of this monitor as an agent, PEM.
    #[serde(serialize_with = "weir_runtime::config::optional_path_shown")]
    pub certificate: Option<PathBuf>,
    /// The key of the certificate, PEM.
    #[serde(serialize_with = "weir_runtime::config::optional_path_shown")]
    pub key: Option<PathBuf>,
    /// The name in that monitor's certificate, if it differs from the host of `monitor`.
    pub server_name: Option<String>,
    /// Maximum bytes of messages that wait in memory.
    pub memory: Size,
    /// Maximum bytes of messages that wait on disk, below the state directory.
    pub spool: Size,
}

impl Default for UpstreamConfig {
    fn default() -> UpstreamConfig {
        UpstreamConfig {
            monitor: None,
            host: None,
            token_file: None,
            ca: None,
            certificate: None,
            key: None,
            server_name: None,
            memory: Size(32 << 20),
            spool: Size(1 << 30),
        }
    }
}

impl UpstreamConfig {
    /// Checks the values.
    pub fn check(&self, faults: &mut Vec<Fault>) {
        let mut fault = |key: &str, why: String| {
            let key = format!("upstream.{key}");
            faults.push(Fault { key, why });
        };
        if let Some(Err(error)) = self.monitor.as_deref().map(Dial::to) {
            fault("monitor", error.to_string());
        }
        if self.certificate.is_some() != self.key.is_some() {
            let why = "`certificate` and `key` must both be set";
            fault("certificate", why.to_owned());
        }
        if self.certificate.is_some() && self.ca.is_none() {
            let why = "is missing; set it to the certificate of the authority that signs the \
                       upstream monitor's certificate";
            fault("ca", why.to_owned());
        }
        if self.memory.0 < MEMORY_BYTES_MIN {
            fault("memory", "at least 256 KiB are needed".to_owned());
        }
    }

    /// Connects `site` to the upstream monitor, if there is one, as the leader of this term; `clock`
    /// follows that of the upstream monitor.
    ///
    /// # Errors
    /// When the token cannot be read, this host has no name, or the directory cannot be used.
    pub fn connect(
        &self,
        (state, term): (&Path, u64),
        clock: &FleetClock,
        site: &mut Monitor,
    ) -> Result<Option<Upstream>, Failure> {
        let Some(monitor) = &self.monitor else {
            return Ok(None);
        };
        let dial = Dial {
            token: self.token_file.as_deref().map(read_token).transpose()?,
            authority: self.ca.clone(),
            identity: self.certificate.clone().zip(self.key.clone()),
            server_name: self.server_name.clone(),
            ..Dial::to(monitor)?
        };
        let own_name = || ebpf::host_name().map(|name| name.as_str().to_owned());
        let host = self.host.clone().or_else(own_name).ok_or_else(|| {
            Failure::words("this host has no host name; set upstream.host to the name of the site")
        })?;
        let (state, earlier) = UpstreamState::open(&state.join(DIRECTORY), term)?;
        let hello = Hello {
            host: host.clone(),
            instance: state.instance(),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            earlier,
            is_site: true,
            ..Hello::default()
        };
        // They are missing until their agents connect.
        let until = clock.now().saturating_add(site.options.forget_after);
        site.expect_hosts(state.hosts().clone(), until);
        let address = dial.addresses();
        let uplink = Uplink::dial(UplinkOptions {
            leader: state.leader(),
            room: OutboxCapacity {
                memory_bytes: self.memory.0,
                disk_bytes: self.spool.0 as u64,
            },
            spool: Some(state.spool()),
            shutdown_timeout: SHUTDOWN_TIMEOUT,
            ..UplinkOptions::new(dial, hello, Arc::new(wall_clock))
        })?;
        clock.follow(uplink.clock());
        info!(site = %host, upstream = %address, "this monitor is an agent of another one");
        Ok(Some(Upstream::new(uplink, state)))
    }

    /// How long this monitor waits for a silent agent, where its setting is `idle`: with an
    /// upstream monitor, not longer than that one waits for this one, if `heartbeat` permits it.
    pub fn idle(&self, idle: Time, default: Time, heartbeat: Time) -> Duration {
        match self.monitor.is_some() && idle == default {
            true => IDLE.max(2 * heartbeat.0),
            false => idle.0,
        }
    }
}
