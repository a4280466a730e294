//! [`MonitorConfig`]: how a monitor is configured. Names of keys in `monitor.toml` are in
//! parentheses.

use std::path::PathBuf;
use std::time::Duration;

use weir_wire::{Listen, ServerTls};

/// How the monitor is set up.
#[derive(Clone, Debug, PartialEq)]
pub struct MonitorConfig {
    /// Where it listens (`listen`); without, at the default socket of this host.
    pub listen: Option<Listen>,
    /// Where standing queries and what they hold are kept (`state`).
    pub state: PathBuf,
    /// How often agents say how far they have come (`heartbeat`).
    pub heartbeat: Duration,
    /// An agent that is silent for so long holds nobody up (`idle`).
    pub idle: Duration,
    /// A query that nobody watches for so long ends, unless it is standing (`unwatched`).
    pub unwatched: Duration,
    /// Certificates (`[tls] certificate`, `key`, `client_ca`); without them only this host is served.
    pub tls: Option<ServerTls>,
    /// The file that says whose token may do what (`tokens`, see `weir_wire::access`).
    pub tokens: Option<PathBuf>,
    /// Bounds (`[limits]`).
    pub limits: Limits,
    /// Queries that always run (`[[query]]`).
    pub queries: Vec<StandingEntry>,
}

/// Bounds of what the fleet and its users may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Agents (`agents`).
    pub agents: usize,
    /// Connections, agents' and clients' (`connections`).
    pub connections: usize,
    /// Queries (`queries`).
    pub queries: usize,
    /// Queries of one client, standing ones included (`queries_per_client`).
    pub queries_per_client: usize,
    /// Memory of one query at the monitor, bytes (`query_memory`).
    pub query_memory: usize,
    /// Those who watch one query (`watchers`).
    pub watchers: usize,
    /// What waits for one of them, bytes (`watcher_queue`).
    pub watcher_queue: usize,
    /// What is kept of one query's relation for those who come later, bytes (`snapshot`).
    pub snapshot: usize,
    /// Rows that one query may show in a second (`rows_per_second`).
    pub rows_per_second: usize,
    /// Memory that all agents' words may take at the monitor, bytes (`intake`).
    pub intake: usize,
}

/// A query that runs as long as the file says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandingEntry {
    /// What it is called (`name`).
    pub name: String,
    /// The query (`text`).
    pub text: String,
    /// Where it is to run (`place`).
    pub place: Option<String>,
    /// Where its answer goes, besides to whoever watches (`[[query.sink]]`).
    pub sinks: Vec<SinkEntry>,
}

/// A file that an answer goes to.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SinkEntry {
    /// One of `weir query --format`'s (`format`).
    pub format: String,
    /// The file (`file`). A relative path is below the state directory.
    pub file: PathBuf,
}

impl Default for MonitorConfig {
    fn default() -> MonitorConfig {
        MonitorConfig {
            listen: None,
            state: PathBuf::from("/var/lib/weir"),
            heartbeat: Duration::from_millis(50),
            idle: Duration::from_secs(2),
            unwatched: Duration::from_secs(5),
            tls: None,
            tokens: None,
            limits: Limits::default(),
            queries: Vec::new(),
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            agents: 2_000,
            connections: 4_096,
            queries: 1_000,
            queries_per_client: 200,
            query_memory: 256 << 20,
            watchers: 100,
            watcher_queue: 8 << 20,
            snapshot: 64 << 20,
            rows_per_second: 1_000_000,
            intake: 512 << 20,
        }
    }
}
