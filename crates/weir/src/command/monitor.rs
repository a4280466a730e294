//! `weir monitor`: the middle of a fleet.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use signal_hook::consts::SIGHUP;
use weir_query::engine::EngineOptions;
use weir_wire::{Limits, Server, ServerOptions};

use crate::config::{self, Loaded, MonitorConfig};
use crate::failure::{Ending, Failure};
use crate::monitor::registry::Registry;
use crate::monitor::{self, Monitor, Options};
use crate::output;
use crate::quantity::nanos;
use crate::run_loop::{Stop, wall_clock};

/// Be the middle of a fleet: agents dial it, queries are asked of it
///
/// It listens on this host only, unless its configuration names a certificate and says who may
/// come. SIGHUP makes it read its configuration again.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir monitor --state /tmp/fleet                                a fleet on this host\n  \
    weir monitor --config /etc/weir/monitor.toml                   as its service does\n  \
    weir monitor --config /etc/weir/monitor.toml --check           what is wrong with it?\n\n\
    Then `weir agent` on each host, `weir query --monitor HOST ..` and `weir fleet` from anywhere.\n\
    Without --config it reads /etc/weir/monitor.toml, if that is there. What the command line says\n\
    goes before what the file says.")]
pub struct MonitorArgs {
    /// Where agents and clients reach it; port 0 lets the system choose one [default: 127.0.0.1:7733]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = config::address)]
    listen: Option<SocketAddr>,
    /// Its configuration (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where standing queries, and how far they are, survive a restart [default: /var/lib/weir]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Only say what is wrong with the configuration
    #[arg(long)]
    check: bool,
}

pub fn run(args: &MonitorArgs) -> Result<Ending, Failure> {
    let loaded = load(args)?;
    let config = &loaded.config;
    monitor::check_queries(&config.queries)?;
    if args.check {
        return Ok(Ending::Done);
    }
    let stop = Stop::on_signals()?;
    let again = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGHUP, again.clone())?;

    let _lock = monitor::hold(&config.state)?;
    let now = wall_clock();
    let mut monitor = Monitor::open(&config.state, options(config), now).map_err(state)?;
    let mut registry = Registry::open(config, &mut monitor, now).map_err(state)?;
    let (server, mut events) = Server::bind(server_options(config))?;
    output::say(format_args!(
        "weir: the monitor listens on {}",
        server.address()
    ));
    let mut reload = Reload {
        args,
        loaded,
        server,
    };
    let signal = monitor::run(
        &mut monitor,
        &mut events,
        &stop,
        &mut |monitor, event, now| {
            match event {
                Some(asked) => registry.answer(asked, monitor, now),
                None => {
                    registry.look(monitor, now);
                    monitor.read_counters(|| reload.server.counters(), now);
                }
            }
            if again.swap(false, Ordering::Relaxed) {
                reload.reload(&mut registry, monitor);
            }
        },
    );
    registry.close(&mut monitor);
    Ok(match signal {
        Some(signal_hook::consts::SIGINT) => Ending::Signal(signal_hook::consts::SIGINT),
        // Whoever looks after services ends them so.
        _ => Ending::Done,
    })
}

/// What a reload needs.
struct Reload<'a> {
    args: &'a MonitorArgs,
    loaded: Loaded<MonitorConfig>,
    server: Server,
}

impl Reload<'_> {
    /// Takes over what the configuration says now. If anything is wrong with it, all stays.
    fn reload(&mut self, registry: &mut Registry, monitor: &mut Monitor) {
        match self.try_reload(registry, monitor) {
            Ok(changes) => output::say(format_args!("weir: reloaded: {changes}")),
            Err(failure) => output::say(format_args!(
                "{}\nweir: not reloaded, all stays as it was",
                failure.text()
            )),
        }
    }

    fn try_reload(
        &mut self,
        registry: &mut Registry,
        monitor: &mut Monitor,
    ) -> Result<config::Changes, Failure> {
        let loaded = load(self.args)?;
        monitor::check_queries(&loaded.config.queries)?;
        self.server.reload()?;
        let config = &loaded.config;
        monitor.set_pace(nanos(config.heartbeat), nanos(config.idle));
        let reloaded = registry.reload(config, monitor, wall_clock());
        let changes = self
            .loaded
            .settings
            .changes(&loaded.settings, config::MONITOR_TAKEN_AT_ONCE);
        self.loaded = loaded;
        reloaded.map_err(state)?;
        Ok(changes)
    }
}

fn load(args: &MonitorArgs) -> Result<Loaded<MonitorConfig>, Failure> {
    let mut loaded = config::monitor(args.config.as_deref())?;
    let config = &mut loaded.config;
    config.listen = args.listen.unwrap_or(config.listen);
    if let Some(state) = &args.state {
        config.state.clone_from(state);
    }
    Ok(loaded)
}

fn options(config: &MonitorConfig) -> Options {
    Options {
        heartbeat: nanos(config.heartbeat),
        overtake_after: nanos(config.idle),
        agents_max: config.limits.agents,
        waiting_bytes_max: config.limits.intake,
        engine: EngineOptions {
            query_bytes_max: config.limits.query_memory,
            ..EngineOptions::default()
        },
        ..Options::default()
    }
}

fn server_options(config: &MonitorConfig) -> ServerOptions {
    ServerOptions {
        listen: config.listen,
        tls: config.tls.clone(),
        tokens: config.tokens.clone(),
        limits: Limits {
            connections_max: config.limits.connections,
            ..Limits::default()
        },
    }
}

fn state(error: monitor::StateError) -> Failure {
    Failure::world(format_args!(
        "{error}; --state names another directory for what must survive a restart"
    ))
}
