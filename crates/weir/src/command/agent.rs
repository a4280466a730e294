//! `weir agent`: runs a monitor's queries over this host's I/O.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::Args;
use signal_hook::consts::SIGHUP;
use tracing::{error, info, warn};
use weir_model::{Demand, Predicate, Symbol};
use weir_tap::{ebpf, format};
use weir_wire::outbox::OutboxCapacity;
use weir_wire::{Dial, Hello, Uplink, UplinkOptions, read_token};

use crate::args::LogArgs;
use weir_agent::config::{self, AgentConfig};
use weir_agent::{Agent, AgentClock, Budget, Ground, Options, Replay, TallyFile};
use weir_runtime::config::{Changes, Loaded, load};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::lock::Lock;
use weir_runtime::output;
use weir_runtime::private;
use weir_runtime::quantity;
use weir_runtime::random;
use weir_runtime::run_loop::Stop;
use weir_runtime::source::Source;
use weir_runtime::source::SourceOptions;

/// How long the last words may take to reach the monitor.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// The same where a recording was replayed and all of it is to arrive.
const SHUTDOWN_TIMEOUT_REPLAY: Duration = Duration::from_secs(120);

/// Where the agent is at home in the directory of its state.
const HOME: &str = "agent";

/// Run a monitor's queries over this host's I/O
///
/// The agent dials the monitor, and dials again for ever. It watches nothing until a query needs
/// it. What a slow or absent monitor does not take waits in memory and on disk, up to a bound; what
/// is lost then is counted, to the row.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir agent --monitor monitor.example\n  \
    weir agent --config /etc/weir/agent.toml\n  \
    weir agent --check\n  \
    weir agent --monitor unix: --host replayed --state /tmp/replayed --from recording.parquet --once\n\n\
    The command line goes before the file. SIGHUP reads the file again: limits hold at once, the rest is said\n\
    to need a restart. SIGTERM and SIGINT end the agent when the monitor has taken its last words.")]
pub struct AgentArgs {
    /// The monitor: HOST or HOST:PORT (default port 7733), https://HOST for TLS, or unix:PATH
    /// (unix: alone for the monitor of this host)
    #[arg(long, value_name = "HOST[:PORT]")]
    monitor: Option<String>,
    /// The configuration [default: /etc/weir/agent.toml, where it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Say what is wrong with the configuration, and do nothing else
    #[arg(long)]
    check: bool,
    /// What this host is called, unique in the fleet [default: its host name]
    #[arg(long, value_name = "NAME", value_parser = config::host)]
    host: Option<String>,
    /// Where to keep what must outlive the agent [default: /var/lib/weir]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The file that holds the agent's token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    ground: GroundArgs,
    #[command(flatten)]
    log: LogArgs,
}

/// Where events come from.
#[derive(Args, Debug)]
#[command(next_help_heading = "Source")]
struct GroundArgs {
    /// Where events come from: `live`, `tapdisk:PATH` for the disks that a `weir tapdisk` serves,
    /// or a recording, which happens again now
    #[arg(long, value_name = "SOURCE")]
    from: Option<String>,
    /// Replay a recording so many times as fast as it was; a great number is as fast as it can be
    /// read
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = pace)]
    pace: f64,
    /// Replay a recording so much later than it was, not from now on: agents that replay parts of
    /// one recording agree in time then
    #[arg(long, value_name = "TIME", conflicts_with = "pace", value_parser = quantity::span)]
    shift: Option<Duration>,
    /// End when the recording has ended and the monitor has taken what came of it
    #[arg(long)]
    once: bool,
    /// Watch this device only, as /dev/sda; may be repeated
    #[arg(long, value_name = "DEV")]
    device: Vec<String>,
    /// Watch dm, md and loop devices as well as the devices below them, which counts their I/O
    /// twice
    #[arg(long, conflicts_with = "device")]
    stacked: bool,
    /// Treat processes as a VM: NAME=pid:N, NAME=comm:TEXT, NAME=cgroup:PATH, or @FILE with one of
    /// these a line; may be repeated
    #[arg(long, value_name = "NAME=WHICH")]
    vm: Vec<String>,
}

fn pace(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(pace) if pace > 0.0 && pace.is_finite() => Ok(pace),
        _ => Err("expected a number above 0, as in 2 or 0.5".to_owned()),
    }
}

pub fn run(args: &AgentArgs, verbose: bool) -> Result<Ending, Failure> {
    let mut loaded: Loaded<AgentConfig> = load(args.config.as_deref(), config::FILE)?;
    args.override_with(&mut loaded.config);
    let config = &loaded.config;
    let dial = dial(config)?;
    let mut source = source(config)?;
    if args.check {
        let file = loaded
            .path
            .as_deref()
            .map(|path| path.display().to_string());
        let file = file.unwrap_or_else(|| format!("no {}", config::FILE));
        output::print(&format!("{file}: nothing wrong with it\n"))?;
        return Ok(Ending::Done);
    }
    args.log.open(verbose)?;
    let stop = Stop::on_signals()?;
    let hangup = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGHUP, hangup.clone())?;
    let host = host(config)?;
    let home = Home::open(&config.state)?;
    let clock = AgentClock::start();
    source.epoch_offset_ns = Some(clock.epoch_offset_ns());
    let ground = Ground {
        first_number: i64::from(home.instance as u32 >> 1),
        args: source,
        replay: args.ground.replay(),
        host,
        clock,
    };
    // Before any thread starts: what taps need to be opened is kept, the rest given up.
    let is_live = ground.is_live();
    if is_live {
        ebpf::keep_what_opening_takes()?;
    }
    let probe_failed = unwatched(&ground);
    let earlier = home.tallies.earlier()?;
    if earlier.left_out > 0 {
        warn!(
            channels = earlier.left_out,
            "the oldest tallies of earlier processes are left out: the monitor accepts no more"
        );
    }
    let (instance, lock) = (home.instance, home.lock);
    let options = Options {
        ground,
        query_bytes: config.limits.query_memory.0,
        budget: config.budget(),
        earlier: earlier.processes,
        tallies: home.tallies,
        probe_failed,
        once: args.ground.once,
    };
    let hello = Hello {
        host: host.as_str().to_string(),
        instance,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        earlier: earlier.told,
        ..Hello::default()
    };
    let address = dial.address.to_string();
    let uplink = UplinkOptions {
        room: OutboxCapacity {
            memory_bytes: config.uplink.memory.0,
            disk_bytes: config.uplink.spool.0 as u64,
        },
        spool: config.spool_directory(&home.path),
        retry_max: config.uplink.retry.0,
        shutdown_timeout: match args.ground.once {
            true => SHUTDOWN_TIMEOUT_REPLAY,
            false => SHUTDOWN_TIMEOUT,
        },
        ..UplinkOptions::new(dial, hello, Arc::new(move || clock.now()))
    };
    let uplink = match is_live {
        true => without_capabilities(move || Uplink::dial(uplink))?,
        false => Uplink::dial(uplink),
    }?;
    info!(%host, monitor = %address, "the agent has started");
    let reload = || {
        hangup
            .swap(false, Ordering::Relaxed)
            .then(|| reload(args, &mut loaded))?
    };
    let all_taken = Agent::new(options, uplink).run(&stop, reload);
    drop(lock);
    if !all_taken {
        warn!(
            "the monitor has not acknowledged everything; the next agent with this state directory \
             reports what is lost"
        );
    }
    Ok(match stop.signal() {
        Some(number) => Ending::of_service(number),
        None if all_taken => Ending::Done,
        None => Ending::Failed,
    })
}

/// What `start` gives in a thread without capabilities. Threads that it starts have none either:
/// those that read what the network brings need none.
fn without_capabilities<T: Send + 'static>(
    start: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let begin = move || {
        // The spool's files are made by name.
        ebpf::reduce_thread(ebpf::Files::Named)?;
        Ok::<T, Failure>(start())
    };
    let name = thread::Builder::new().name("uplink".into());
    let ended = name.spawn(begin)?.join();
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl AgentArgs {
    /// Puts what the command line says in the place of what the file says.
    fn override_with(&self, config: &mut AgentConfig) {
        let put = |from: &Option<String>, to: &mut Option<String>| {
            if from.is_some() {
                to.clone_from(from);
            }
        };
        put(&self.monitor, &mut config.monitor);
        put(&self.host, &mut config.host);
        if let Some(state) = &self.state {
            config.state.clone_from(state);
        }
        if self.token_file.is_some() {
            config.token_file.clone_from(&self.token_file);
        }
        let ground = &self.ground;
        if let Some(from) = &ground.from {
            config.from.clone_from(from);
        }
        if !ground.device.is_empty() {
            config.devices.clone_from(&ground.device);
        }
        if !ground.vm.is_empty() {
            config.vms.clone_from(&ground.vm);
        }
        config.stacked |= ground.stacked;
    }
}

impl GroundArgs {
    fn replay(&self) -> Replay {
        match self.shift {
            Some(by) => Replay::Shift(quantity::nanos(by)),
            None => Replay::Pace(self.pace),
        }
    }
}

/// The way to the monitor.
///
/// # Errors
/// When no monitor is named, its address is none, or there is no token in the file for it.
pub fn dial(config: &AgentConfig) -> Result<Dial, Failure> {
    let Some(monitor) = &config.monitor else {
        return Err(Failure::words(format_args!(
            "no monitor is named; give --monitor HOST[:PORT] (unix: for the monitor of this host), or write monitor = \"HOST\" in {}",
            config::FILE
        )));
    };
    let address = monitor.parse()?;
    let tls = &config.tls;
    Ok(Dial {
        token: config.token_file.as_deref().map(read_token).transpose()?,
        authority: tls.ca.clone(),
        identity: tls.certificate.clone().zip(tls.key.clone()),
        server_name: tls.server_name.clone(),
        ..Dial::new(address)
    })
}

/// The source of events.
fn source(config: &AgentConfig) -> Result<SourceOptions, Failure> {
    if let Source::Qemu(vm) = Source::new(&config.from) {
        return Err(Failure::words(format_args!(
            "from {}: an agent watches its whole host; VM {vm} is in column vm of `live`",
            config.from
        )));
    }
    if let Source::File(path) = Source::new(&config.from)
        && format::pipe::is_pipe(&path)
    {
        return Err(Failure::words(format_args!(
            "from {}: an agent reads a recording again for each query, which a pipe does not allow; write it to a file",
            config.from
        )));
    }
    SourceOptions::of(&config.from, &config.devices, config.stacked, &config.vms)
        .map_err(Failure::words)
}

/// What the host is called.
fn host(config: &AgentConfig) -> Result<Symbol, Failure> {
    let named = config.host.as_deref().map(Symbol::try_new);
    let named = named.and_then(Result::ok).or_else(ebpf::host_name);
    named.ok_or_else(|| Failure::words("this host has no name; give it one with --host NAME"))
}

/// Why I/O of this host cannot be watched: told now, not when a query comes that needs it. The
/// agent goes on, since relations and recordings need no such rights.
fn unwatched(ground: &Ground) -> Option<String> {
    let demand = Demand {
        stream: "IO".into(),
        columns: vec![0],
        predicate: Predicate::all(),
        fold: None,
    };
    let opened = ground.is_live().then(|| ground.open(&[demand]));
    let why = opened?.err()?.text();
    warn!(
        reason = %why,
        "queries of I/O will fail on this host; `weir doctor` lists what is missing"
    );
    Some(why)
}

/// Reads the configuration again (SIGHUP): limits apply at once. If it is wrong, nothing changes.
fn reload(args: &AgentArgs, loaded: &mut Loaded<AgentConfig>) -> Option<Budget> {
    let Some(path) = loaded.path.clone() else {
        warn!("not reloaded: there is no configuration file");
        return None;
    };
    match load::<AgentConfig>(Some(&path), config::FILE) {
        Ok(mut now) => {
            args.override_with(&mut now.config);
            let changes = Changes::between(&loaded.config, &now.config, config::APPLIED);
            info!(file = %path.display(), "reloaded: {changes}");
            *loaded = now;
            Some(loaded.config.budget())
        }
        Err(failure) => {
            error!(reason = %failure.text(), "not reloaded, the configuration stays as it was");
            None
        }
    }
}

/// Where the agent keeps what must outlive it; one agent at a time.
struct Home {
    path: PathBuf,
    lock: Lock,
    /// A random number of this process.
    instance: u64,
    tallies: TallyFile,
}

impl Home {
    fn open(state: &Path) -> Result<Home, Failure> {
        let path = state.join(HOME);
        let failed = |e: std::io::Error| {
            Failure::world(format_args!(
                "{}: {e}; --state DIR names a directory that the agent may write to",
                path.display()
            ))
        };
        private::directory(&path).map_err(failed)?;
        let lock = Lock::take(&path).map_err(failed)?.ok_or_else(|| {
            Failure::world(format_args!(
                "{}: another agent is at home there; --state DIR names a directory of its own",
                path.display()
            ))
        })?;
        let instance = u64::from_le_bytes(random::bytes()?);
        let tallies = TallyFile::begin(&path, instance).map_err(failed)?;
        Ok(Home {
            path,
            lock,
            instance,
            tallies,
        })
    }
}
