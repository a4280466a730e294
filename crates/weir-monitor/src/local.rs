//! [`LocalMonitor`]: the monitor of one agent, in the agent's process. It forwards what the agent
//! sends to Kafka, to topics of the agent's host, so that a fleet needs no monitor.
//!
//! It is a monitor as others are: it acknowledges messages once their rows are in its checkpoint
//! and in the spool, so that nothing is lost when the process is killed. It listens at a socket in
//! its directory, at which the agent and `weir fleet` connect.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tracing::{error, info};
use weir_forward::{ForwardTarget, ForwardedQuery, Forwarder, TopicRows};
use weir_model::{NANOS_PER_SECOND, Nanos};
use weir_query::engine::EngineOptions;
use weir_query::place::fleet::CutError;
use weir_query::place::fleet::published::cut_published;
use weir_query::plan::Plan;
use weir_runtime::failure::Failure;
use weir_runtime::run_loop::Stop;
use weir_runtime::service::ServiceStatus;
use weir_wire::{EventQueue, FleetClock, Listen, Server, ServerOptions};

use crate::config::{MonitorConfig, StandingEntry};
use crate::forward::NOTHING_SENT;
use crate::question::check_each;
use crate::registry::Registry;
use crate::{LoopEvent, Monitor, MonitorOptions};

/// The socket, below the directory.
const SOCKET: &str = "monitor.sock";

/// The directory of the rows that wait to be forwarded, below the directory.
const SPOOL: &str = "spool";

/// How long it waits for its only agent. Nothing else waits for it here: Flink has the rows of the
/// other hosts.
const EXCLUDE_AFTER: Nanos = 24 * 3_600 * NANOS_PER_SECOND;

/// The interval of the agent's heartbeats. Watermarks are forwarded once a second.
const HEARTBEAT: Nanos = NANOS_PER_SECOND / 2;

/// The longest path of a unix socket (`sun_path`, `linux/un.h`).
const SOCKET_PATH_MAX: usize = 107;

/// The options of the monitor of one agent.
pub struct LocalOptions {
    /// The name of the agent's host.
    pub host: String,
    /// The directory of its state, which no other process uses.
    pub directory: PathBuf,
    /// Where the rows go.
    pub target: ForwardTarget,
    /// The queries.
    pub queries: Vec<ForwardedQuery>,
    /// Maximum memory of one query.
    pub query_bytes_max: usize,
}

/// The monitor of one agent. See the module's documentation.
pub struct LocalMonitor {
    server: Server,
    /// It returns the bytes that wait for Kafka at its end.
    thread: JoinHandle<u64>,
    /// Changed queries, which do not run yet.
    changed: Arc<Mutex<Option<Vec<ForwardedQuery>>>>,
}

/// What the thread of the monitor owns.
struct LocalLoop {
    monitor: Monitor,
    registry: Registry,
    config: MonitorConfig,
    events: EventQueue,
    clock: FleetClock,
    status: Arc<ServiceStatus>,
    changed: Arc<Mutex<Option<Vec<ForwardedQuery>>>>,
}

/// Checks the queries of an agent: each must be one that is forwarded.
///
/// # Errors
/// The diagnostics of all queries, and why others are not forwarded.
pub fn check_forwarded(queries: &[ForwardedQuery]) -> Result<(), Failure> {
    check_each(&entries(queries), |query, plan| {
        is_forwarded(query, plan)
            .map_err(|why| format!("query `{}` cannot be forwarded: {why}", query.name))
    })
}

/// Whether the rows of a query are forwarded; otherwise the reason.
fn is_forwarded(query: &StandingEntry, plan: &Plan) -> Result<(), String> {
    let strategy = query.place.as_deref().map(str::parse);
    let strategy = strategy.transpose().map_err(|e: CutError| e.to_string())?;
    let cut = cut_published(plan, strategy).map_err(|e| e.to_string())?;
    if cut.fragments.is_empty() {
        return Err(NOTHING_SENT.to_owned());
    }
    cut.comes_from_agents()?;
    (0..cut.fragments.len()).try_for_each(|number| TopicRows::new("", &cut, number).map(drop))
}

impl LocalMonitor {
    /// Listens, runs the queries and forwards their rows, in a thread of its own. `status` gets its
    /// counters.
    ///
    /// # Errors
    /// If the directory, a file or the socket cannot be used.
    pub fn start(
        options: LocalOptions,
        status: Arc<ServiceStatus>,
    ) -> Result<LocalMonitor, Failure> {
        let LocalOptions {
            host,
            directory,
            target,
            queries,
            query_bytes_max,
        } = options;
        weir_runtime::private::directory(&directory)
            .map_err(|e| Failure::world(format_args!("{}: {e}", directory.display())))?;
        let forwarder = Forwarder::start(target, &directory.join(SPOOL))?;
        let clock = FleetClock::default();
        let (server, events) = Server::bind(ServerOptions {
            listen: Listen::Unix(LocalMonitor::socket(&directory)?),
            clock: clock.clone(),
            ..ServerOptions::default()
        })?;
        let config = MonitorConfig {
            state: directory,
            queries: entries(&queries),
            ..MonitorConfig::default()
        };
        let now = clock.now();
        let options = MonitorOptions {
            heartbeat: HEARTBEAT,
            agents_max: 1,
            exclude_after: EXCLUDE_AFTER,
            engine: EngineOptions {
                query_bytes_max,
                ..EngineOptions::default()
            },
            ..MonitorOptions::default()
        };
        let mut monitor = Monitor::open(&config.state, options, now).map_err(Failure::world)?;
        monitor.forward_to(forwarder.of_host(&host));
        let registry = Registry::open(&config, &mut monitor, now).map_err(Failure::world)?;
        let changed = Arc::new(Mutex::new(None));
        let own = LocalLoop {
            monitor,
            registry,
            config,
            events,
            clock,
            status,
            changed: changed.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("forward".into())
            .spawn(move || own.run())?;
        Ok(LocalMonitor {
            server,
            thread,
            changed,
        })
    }

    /// The socket at which one with this directory accepts connections.
    ///
    /// # Errors
    /// If its path is too long.
    pub fn socket(directory: &Path) -> Result<PathBuf, Failure> {
        let socket = directory.join(SOCKET);
        match socket.as_os_str().len() {
            ..=SOCKET_PATH_MAX => Ok(socket),
            length => Err(Failure::words(format_args!(
                "{}: the path of a socket has at most {SOCKET_PATH_MAX} bytes, and this one has \
                 {length}; use --state DIR with a shorter path",
                socket.display()
            ))),
        }
    }

    /// Runs these queries instead.
    pub fn reload(&self, queries: &[ForwardedQuery]) {
        *self.changed.lock().expect("no panic while held") = Some(queries.to_vec());
    }

    /// Ends after all messages of the agent that have arrived, and sends what is to be forwarded
    /// for some seconds; the rest stays on disk. Returns its bytes.
    pub fn close(self) -> u64 {
        drop(self.server);
        // If it panicked, the thread has printed the message.
        self.thread.join().unwrap_or(0)
    }
}

impl LocalLoop {
    fn run(self) -> u64 {
        let LocalLoop {
            mut monitor,
            mut registry,
            mut config,
            mut events,
            clock,
            status,
            changed,
        } = self;
        // It ends when the agent does, and not with a signal: messages arrive until then.
        let stop = Stop::new();
        crate::run(
            &mut monitor,
            &mut events,
            &clock,
            &stop,
            &mut |monitor, event, now| match event {
                LoopEvent::Request(asked) => registry.answer(asked, monitor, now),
                LoopEvent::Received => {}
                LoopEvent::Advanced => {
                    registry.look(monitor, now);
                    monitor.report_part(&status, now);
                    let changed = changed.lock().expect("no panic while held").take();
                    if let Some(queries) = changed {
                        config.queries = entries(&queries);
                        match registry.reload(&config, monitor, now) {
                            Ok(()) => info!("the queries are those of the configuration"),
                            Err(why) => error!(reason = %why, "the queries are unchanged"),
                        }
                    }
                }
            },
        );
        registry.close(&mut monitor);
        monitor.end_forwarding()
    }
}

/// The queries as those of the configuration of a monitor.
fn entries(queries: &[ForwardedQuery]) -> Vec<StandingEntry> {
    let entry = |query: &ForwardedQuery| StandingEntry {
        name: query.name.clone(),
        text: query.text.clone(),
        place: query.place.clone(),
        sinks: Vec::new(),
    };
    queries.iter().map(entry).collect()
}
