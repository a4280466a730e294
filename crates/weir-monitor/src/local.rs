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
use weir_forward::{ForwardConfig, ForwardedQuery, Forwarder};
use weir_query::engine::EngineOptions;
use weir_runtime::failure::Failure;
use weir_runtime::run_loop::Stop;
use weir_runtime::service::ServiceStatus;
use weir_wire::{EventQueue, FleetClock, Listen, Server, ServerOptions};

use crate::config::{MonitorConfig, StandingEntry};
use crate::registry::Registry;
use crate::{LoopEvent, Monitor, MonitorOptions};

/// The socket, below the directory.
const SOCKET: &str = "monitor.sock";

/// The directory of the rows that wait to be forwarded, below the directory.
const SPOOL: &str = "spool";

/// The options of the monitor of one agent.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// The name of the agent's host.
    pub host: String,
    /// The directory of its state, which no other process uses.
    pub directory: PathBuf,
    /// Where the rows go.
    pub forward: ForwardConfig,
    /// The queries.
    pub queries: Vec<ForwardedQuery>,
    /// Maximum memory of one query.
    pub query_bytes_max: usize,
}

/// The monitor of one agent. See the module's documentation.
pub struct LocalMonitor {
    server: Server,
    thread: JoinHandle<()>,
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

/// Checks the queries of an agent, as those of a monitor.
///
/// # Errors
/// The diagnostics of all queries, or a placement strategy that does not exist.
pub fn check_forwarded(queries: &[ForwardedQuery]) -> Result<(), Failure> {
    crate::check_queries(&entries(queries))
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
            forward,
            queries,
            query_bytes_max,
        } = options;
        weir_runtime::private::directory(&directory)
            .map_err(|e| Failure::world(format_args!("{}: {e}", directory.display())))?;
        let forward = ForwardConfig {
            partitions: Some(1),
            ..forward
        };
        let forwarder = Forwarder::open(&forward, &directory.join(SPOOL))?;
        let clock = FleetClock::default();
        let (server, events) = Server::bind(ServerOptions {
            listen: Listen::Unix(LocalMonitor::socket(&directory)),
            clock: clock.clone(),
            ..ServerOptions::default()
        })?;
        let config = MonitorConfig {
            state: directory,
            queries: entries(&queries),
            forward,
            ..MonitorConfig::default()
        };
        let now = clock.now();
        let options = MonitorOptions {
            agents_max: 1,
            engine: EngineOptions {
                query_bytes_max,
                ..EngineOptions::default()
            },
            ..MonitorOptions::default()
        };
        let mut monitor = Monitor::open(&config.state, options, now).map_err(Failure::world)?;
        if let Some(forwarder) = forwarder {
            monitor.forward_to(forwarder.of_host(&host));
        }
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
    pub fn socket(directory: &Path) -> PathBuf {
        directory.join(SOCKET)
    }

    /// Runs these queries instead.
    pub fn reload(&self, queries: &[ForwardedQuery]) {
        *self.changed.lock().expect("no panic while held") = Some(queries.to_vec());
    }

    /// Ends after all messages of the agent that have arrived, and sends what is left to be
    /// forwarded for some seconds; the rest stays on disk.
    pub fn close(self) {
        drop(self.server);
        // The panic message was printed by the thread.
        let _ = self.thread.join();
    }
}

impl LocalLoop {
    fn run(self) {
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
                    if monitor.read_counters(Vec::new, now).is_some() {
                        let families = monitor.forward_families().into_iter().collect();
                        status.publish_part(monitor.forward_readings(), families);
                    }
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
        monitor.end_forwarding();
    }
}

/// As a monitor has them.
fn entries(queries: &[ForwardedQuery]) -> Vec<StandingEntry> {
    let entry = |query: &ForwardedQuery| StandingEntry {
        name: query.name.clone(),
        text: query.text.clone(),
        place: query.place.clone(),
        sinks: Vec::new(),
    };
    queries.iter().map(entry).collect()
}
