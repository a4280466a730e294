//! `weir monitor`: runs the central monitor of a fleet.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use signal_hook::consts::SIGHUP;
use tracing::{error, info};
use weir_query::engine::EngineOptions;
use weir_tap::ebpf;
use weir_wire::{
    Dial, EventQueue, FleetClock, Limits, Listen, Server, ServerOptions, socket_to_serve,
};

use crate::args::{LogArgs, forward_url};
use weir_alert::fleet::{FleetAlertFile, FleetAlerts};
use weir_forward::Forwarder;
use weir_monitor::config::{self, MonitorAlerts, MonitorConfig};
use weir_monitor::leader::{self, LeaderRecord, LeaseCandidate, Succession};
use weir_monitor::registry::Registry;
use weir_monitor::{self, LoopEvent, Monitor, MonitorOptions};
use weir_runtime::config::{Changes, Loaded};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::quantity::nanos;
use weir_runtime::run_loop::Stop;
use weir_runtime::service::{Endpoint, ServiceStatus};
use weir_sink::metrics::serve::MetricsServer;

/// The directory of the states of alerts, below the state directory.
const ALERTS: &str = "alerts";

/// The directory of the rows that wait to be forwarded, below the state directory.
const FORWARD: &str = "forward";

/// Run the central monitor of a fleet
///
/// Agents connect to the monitor, and clients send their queries to it. By default it accepts
/// connections at a unix socket that only its user and group can open. An IP address requires
/// tokens or certificates, and TLS if it is not a loopback address.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir monitor --state /tmp/fleet                        a fleet on this host\n  \
    weir monitor --config /etc/weir/monitor.toml           as the systemd service does\n  \
    weir monitor --upstream monitor.example.org            the monitor of a site\n  \
    weir monitor --config /etc/weir/monitor.toml --check   check the configuration\n\n\
    Next, run `weir agent` on each host; `weir query --monitor HOST` and `weir fleet` run anywhere.\n\n\
    Options on the command line override the configuration file. SIGHUP reloads the file.")]
pub struct MonitorArgs {
    /// Address at which agents and clients connect: ADDRESS:PORT (port 0 selects a free one) or
    /// unix:PATH [default: unix:/run/weir-monitor/monitor.sock for root, otherwise
    /// unix:$XDG_RUNTIME_DIR/weir-monitor/monitor.sock]
    #[arg(long, value_name = "ADDRESS", value_parser = str::parse::<Listen>)]
    listen: Option<Listen>,
    /// Configuration file [default: /etc/weir/monitor.toml if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory for standing queries and their checkpoints [default: /var/lib/weir]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Forward the rows of standing queries to Kafka, such as kafka://kafka1:9092,kafka2:9092/weir;
    /// ?topics=shared at its end selects one topic for all queries [default: not forwarded]
    #[arg(long, value_name = "URL", value_parser = forward_url)]
    forward: Option<String>,
    /// Be the agent of the monitor on this host, for the hosts of a site: its queries are answered
    /// over the agents of both [default: none]
    #[arg(long, value_name = "HOST")]
    upstream: Option<String>,
    /// Share the state directory with other monitors, of which one leads: wait until it ends or no
    /// longer renews its lease, and take over within seconds. All are started with this option
    #[arg(long)]
    standby: bool,
    /// Check the configuration and exit
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    log: LogArgs,
}

pub fn run(args: &MonitorArgs, verbose: bool) -> Result<Ending, Failure> {
    let mut loaded = load(args)?;
    let config = &loaded.config;
    weir_monitor::check_queries(&config.queries)?;
    let options = server_options(config)?;
    Server::check(&options)?;
    alerts(config)?;
    if args.check {
        config.forward.check_files()?;
        output::notice("weir: the configuration is valid");
        return Ok(Ending::Done);
    }
    args.log.open(verbose)?;
    let stop = Stop::on_signals()?;
    let again = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGHUP, again.clone())?;

    let status = ServiceStatus::new("monitor");
    let mut candidate = candidate(config)?;
    let (leadership, network) = match candidate.poll()? {
        Some(leadership) => (leadership, None),
        None if config.standby => {
            let mut network = Network::open(config, options.clone(), &status)?;
            candidate.listens_at(network.server.address());
            status.started();
            let reload = &mut || {
                if again.swap(false, Ordering::Relaxed) {
                    reload_standby(args, &mut loaded, &network.server);
                }
            };
            let (server, events) = (&network.server, &mut network.events);
            match leader::stand_by(&mut candidate, server, events, &status, &stop, reload)? {
                Some(leadership) => (leadership, Some(network)),
                None => return Ok(stop.signal().map_or(Ending::Done, Ending::of_service)),
            }
        }
        None => (leader::lead(&mut candidate)?, None),
    };
    let config = &loaded.config;
    if leadership.succession() == Succession::Expired {
        leader::detach_results(&config.state).map_err(state)?;
    }
    let clock = options.clock.clone();
    let now = clock.now();
    let mut monitor = Monitor::open(&config.state, engine_options(config), now).map_err(state)?;
    monitor.lead(leadership.term(), config.standby);
    let forwarder = Forwarder::open(&config.forward, &config.state.join(FORWARD))?;
    if let Some(forwarder) = forwarder {
        monitor.forward_to(forwarder);
    }
    let mut registry = Registry::open(config, &mut monitor, now).map_err(state)?;
    let alerts_state = config.state.join(ALERTS);
    let mut alerts = FleetAlerts::start(alerts(config)?, &alerts_state, &mut monitor, now)?;
    let Network {
        server,
        mut events,
        metrics,
    } = match network {
        Some(network) => network,
        None => Network::open(config, options, &status)?,
    };
    let mut upstream =
        config
            .upstream
            .connect((&config.state, leadership.term()), &clock, &mut monitor)?;
    server.set_standby(None);
    info!(term = leadership.term(), "leading");
    status.started();
    let mut reload = Reload {
        args,
        loaded,
        server,
        clock: clock.clone(),
    };
    let signal = weir_monitor::run(
        &mut monitor,
        &mut events,
        &clock,
        &stop,
        &mut |monitor, event, now| {
            match event {
                LoopEvent::Request(asked) => {
                    if let Some(asked) = alerts.answer(asked, monitor, now) {
                        registry.answer(asked, monitor, now);
                    }
                }
                LoopEvent::Received => {
                    if let Some(upstream) = &mut upstream {
                        upstream.write_tallies(monitor);
                    }
                    return;
                }
                LoopEvent::Advanced => {
                    status.turned();
                    registry.look(monitor, now);
                    let readings = monitor.read_counters(|| reload.server.counters(), now);
                    if let Some(readings) = readings {
                        monitor.report(readings, &status, now);
                    }
                    alerts.advance(monitor);
                    if let Some(upstream) = &mut upstream {
                        upstream.advance(monitor, now);
                    }
                }
            }
            if again.swap(false, Ordering::Relaxed) {
                status.reloading();
                reload.reload(&mut registry, monitor, &mut alerts);
                status.started();
            }
        },
    );
    status.stopping();
    drop(metrics);
    if let Some(upstream) = upstream {
        upstream.close(&mut monitor, clock.now());
    }
    registry.close(&mut monitor);
    alerts.close();
    monitor.end_forwarding();
    Ok(signal.map_or(Ending::Done, Ending::of_service))
}

/// What agents and clients connect to.
struct Network {
    server: Server,
    events: EventQueue,
    metrics: Option<MetricsServer>,
}

impl Network {
    /// Listens. All requests are rejected until the server is no standby.
    fn open(
        config: &MonitorConfig,
        options: ServerOptions,
        status: &Arc<ServiceStatus>,
    ) -> Result<Network, Failure> {
        let endpoint = Endpoint::bind(&config.metrics)?;
        let (server, events) = Server::bind(ServerOptions {
            standby: Some("is starting".to_owned()),
            ..options
        })?;
        info!(address = %server.address(), "listening");
        let metrics = endpoint.map(|e| e.serve(status)).transpose()?;
        Ok(Network {
            server,
            events,
            metrics,
        })
    }
}

/// This monitor, which wants to lead.
fn candidate(config: &MonitorConfig) -> Result<LeaseCandidate, Failure> {
    let record = LeaderRecord {
        host: ebpf::host_name().map_or_else(String::new, |host| host.as_str().to_owned()),
        address: config.listen.clone().unwrap_or_default(),
        expires: config.standby,
        ..LeaderRecord::default()
    };
    LeaseCandidate::open(&config.state, record)
}

/// Reads the configuration again while this monitor is a standby.
fn reload_standby(args: &MonitorArgs, loaded: &mut Loaded<MonitorConfig>, server: &Server) {
    let reload = || {
        let now = load(args)?;
        weir_monitor::check_queries(&now.config.queries)?;
        alerts(&now.config)?;
        server.reload()?;
        Ok::<_, Failure>(now)
    };
    match reload() {
        Ok(now) => {
            let changes = Changes::between(&loaded.config, &now.config, config::APPLIED);
            info!("reloaded: {changes}");
            *loaded = now;
        }
        Err(failure) => {
            error!(reason = %failure.text(), "not reloaded, the configuration is unchanged");
        }
    }
}

/// The state of a reload.
struct Reload<'a> {
    args: &'a MonitorArgs,
    loaded: Loaded<MonitorConfig>,
    server: Server,
    clock: FleetClock,
}

impl Reload<'_> {
    /// Applies the configuration file as it is now. If it has errors, nothing changes.
    fn reload(&mut self, registry: &mut Registry, monitor: &mut Monitor, alerts: &mut FleetAlerts) {
        match self.try_reload(registry, monitor, alerts) {
            Ok(changes) => info!("reloaded: {changes}"),
            Err(failure) => {
                error!(reason = %failure.text(), "not reloaded, the configuration is unchanged");
            }
        }
    }

    fn try_reload(
        &mut self,
        registry: &mut Registry,
        monitor: &mut Monitor,
        running: &mut FleetAlerts,
    ) -> Result<Changes, Failure> {
        let loaded = load(self.args)?;
        weir_monitor::check_queries(&loaded.config.queries)?;
        let file = alerts(&loaded.config)?;
        if running.reload(file, monitor, self.clock.now())? {
            info!("the alerts are those of the file as it is now");
        }
        self.server.reload()?;
        let config = &loaded.config;
        monitor.set_pace(nanos(config.heartbeat.0), nanos(idle(config)));
        let reloaded = registry.reload(config, monitor, self.clock.now());
        let changes = Changes::between(&self.loaded.config, config, config::APPLIED);
        self.loaded = loaded;
        reloaded.map_err(state)?;
        Ok(changes)
    }
}

fn load(args: &MonitorArgs) -> Result<Loaded<MonitorConfig>, Failure> {
    let mut loaded: Loaded<MonitorConfig> =
        weir_runtime::config::load(args.config.as_deref(), config::FILE)?;
    let config = &mut loaded.config;
    if let Some(listen) = &args.listen {
        config.listen = Some(listen.to_string());
    }
    if let Some(state) = &args.state {
        config.state.clone_from(state);
    }
    config.standby |= args.standby;
    if let Some(forward) = &args.forward {
        config.forward.to = Some(forward.clone());
    }
    if let Some(upstream) = &args.upstream {
        Dial::to(upstream)?;
        config.upstream.monitor = Some(upstream.clone());
    }
    Ok(loaded)
}

/// The checked alerts of the configuration.
fn alerts(config: &MonitorConfig) -> Result<FleetAlertFile, Failure> {
    let MonitorAlerts { file, routes } = &config.alerts;
    FleetAlertFile::read(file.as_deref(), routes.as_deref())
}

/// How long the monitor waits for an agent that is silent.
fn idle(config: &MonitorConfig) -> Duration {
    let default = MonitorConfig::default().idle;
    config.upstream.idle(config.idle, default, config.heartbeat)
}

fn engine_options(config: &MonitorConfig) -> MonitorOptions {
    MonitorOptions {
        heartbeat: nanos(config.heartbeat.0),
        exclude_after: nanos(idle(config)),
        agents_max: config.limits.agents,
        waiting_bytes_max: config.limits.intake.0,
        engine: EngineOptions {
            query_bytes_max: config.limits.query_memory.0,
            ..EngineOptions::default()
        },
        ..MonitorOptions::default()
    }
}

fn server_options(config: &MonitorConfig) -> Result<ServerOptions, Failure> {
    let default = || socket_to_serve().map(Listen::Unix);
    let listen = match &config.listen {
        Some(text) => text.parse().map_err(Failure::words)?,
        None => default().ok_or_else(|| {
            Failure::words(
                "no default directory for the monitor's socket: XDG_RUNTIME_DIR is not set; use \
                 --listen unix:PATH",
            )
        })?,
    };
    Ok(ServerOptions {
        listen,
        tls: config.tls.clone().map(Into::into),
        tokens: config.tokens.clone(),
        limits: Limits {
            connections_max: config.limits.connections,
            connections_per_address_max: config.limits.connections_per_address,
            ..Limits::default()
        },
        ..ServerOptions::default()
    })
}

fn state(error: weir_monitor::StateError) -> Failure {
    Failure::world(format_args!(
        "{error}; use --state DIR for another state directory"
    ))
}
