//! `weir agent`: runs a monitor's queries on the I/O of this host.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use clap::Args;
use signal_hook::consts::SIGHUP;
use tracing::{error, info, warn};
use weir_model::{Demand, Predicate, Symbol};
use weir_tap::ebpf::{CheckStatus, Fact, LiveOptions};
use weir_tap::{ebpf, format};
use weir_wire::outbox::OutboxCapacity;
use weir_wire::{Address, Dial, Hello, Uplink, UplinkOptions, read_token};

use crate::args::{DefineArgs, LogArgs, forward_url};
use weir_agent::config::{self, AgentConfig};
use weir_agent::guest;
use weir_agent::{Agent, AgentClock, AgentOptions, Budget, ReplayClock, SourceConfig};
use weir_forward::{ForwardConfig, ForwardedQuery};
use weir_monitor::local::{LocalMonitor, LocalOptions, check_forwarded};
use weir_runtime::config::{Changes, Loaded, load};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::leader_file::LeaderFile;
use weir_runtime::lock::Lock;
use weir_runtime::output;
use weir_runtime::private;
use weir_runtime::quantity;
use weir_runtime::run_loop::Stop;
use weir_runtime::service::{Endpoint, ServiceStatus};
use weir_runtime::shipped::ShippedStream;
use weir_runtime::source::SourceOptions;
use weir_runtime::tally_file::TallyFile;
use weir_tap::source::{QEMU, SourceName};
use weir_wire::random;

/// How long an agent that ends waits for the monitor's acknowledgement of its last messages.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// The same after the replay of a recording with `--once`.
const SHUTDOWN_TIMEOUT_REPLAY: Duration = Duration::from_secs(120);

/// The size of all rings of the self-test.
const SELF_TEST_RING_BYTES: usize = 4 << 20;

/// The agent's subdirectory of the state directory.
const HOME: &str = "agent";

/// The directory of the monitor in this process, below that.
const FORWARD: &str = "forward";

/// Run a monitor's queries on the I/O of this host
///
/// The agent connects to the monitor, and reconnects whenever the connection is lost. At its start
/// it reads a few blocks of each disk with direct I/O and verifies that the reads are observed
/// (`weir doctor` does the same). Afterwards it attaches probes only while a query runs. Messages
/// that the monitor has not acknowledged are kept in memory and on disk, up to configured limits;
/// rows that are dropped at the limits are counted.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir agent --monitor monitor.example\n  \
    weir agent --config /etc/weir/agent.toml\n  \
    weir agent --check\n  \
    weir agent --guest --monitor https://monitor.example\n  \
    weir agent --monitor unix: --host replayed --state /tmp/replayed --from recording.parquet --once\n  \
    weir agent --forward kafka://kafka1:9092 --query 'load=select vm, count(*) from IO [range 1 s slide 1 s] group by vm'\n\n\
    Options on the command line override the configuration file. SIGHUP reloads the file: limits are \
    applied immediately, other changes are logged and need a restart. At SIGTERM or SIGINT the agent \
    ends after the monitor has acknowledged its last messages, at the latest after 5 seconds (with \
    --once, 120 seconds).")]
pub struct AgentArgs {
    /// Address of the monitor: HOST or HOST:PORT (default port 7733), https://HOST for TLS, or
    /// unix:PATH; unix: without a path is the default socket of this host. With standbys, the
    /// addresses of all monitors, separated by commas
    #[arg(long, value_name = "ADDRESS")]
    monitor: Option<String>,
    /// Forward the rows of --query to Kafka without a monitor, such as
    /// kafka://kafka1:9092,kafka2:9092/weir, to topics of this host; ?topics=shared at its end
    /// selects one topic for all queries [default: not forwarded]
    #[arg(long, value_name = "URL", conflicts_with = "monitor", value_parser = forward_url)]
    forward: Option<String>,
    /// Query whose rows are forwarded, with its name; may be repeated [default: those of the
    /// configuration file]
    #[arg(long, value_name = "NAME=QUERY", conflicts_with = "monitor")]
    query: Vec<ForwardedQuery>,
    /// Configuration file [default: /etc/weir/agent.toml if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration and exit
    #[arg(long)]
    check: bool,
    /// Name of this host, unique in the fleet [default: the host name of the system]
    #[arg(long, value_name = "NAME", value_parser = config::host)]
    host: Option<String>,
    /// Directory for the state that survives a restart [default: /var/lib/weir]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// File with the token of this agent
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Socket of `weir act serve`, which carries out what the monitor's alerts do on this host
    /// [default: /run/weir-act/act.sock]
    #[arg(long, value_name = "PATH")]
    act_socket: Option<PathBuf>,
    #[command(flatten)]
    source_config: SourceConfigArgs,
    #[command(flatten)]
    log: LogArgs,
}

/// The source of events.
#[derive(Args, Debug)]
#[command(next_help_heading = "Source")]
struct SourceConfigArgs {
    /// Source of the events: `live` for the block layer of this host, `tapdisk:PATH` for the disks
    /// that the `weir tapdisk` at this socket serves, or a recording, which is replayed [default:
    /// live]
    #[arg(long, value_name = "SOURCE")]
    from: Option<String>,
    /// Speed at which a recording is replayed, as a multiple of the recorded speed; a large number
    /// such as 1e6 replays as fast as the recording can be read
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = pace)]
    pace: f64,
    /// Time to add to the timestamps of a recording, such as 1h; for agents that replay parts of
    /// one recording [default: the first timestamp becomes the present time]
    #[arg(long, value_name = "DURATION", conflicts_with = "pace", value_parser = quantity::span)]
    shift: Option<Duration>,
    /// Exit when the recording has ended and the monitor has acknowledged all messages
    #[arg(long)]
    once: bool,
    /// Observe only this device, such as /dev/sda; may be repeated [default: all disks, without dm,
    /// md and loop devices]
    #[arg(long, value_name = "DEVICE")]
    device: Vec<String>,
    /// Also observe dm, md and loop devices; their I/O is then counted twice, there and at the
    /// devices below them
    #[arg(long, conflicts_with = "device")]
    stacked: bool,
    /// Declare processes to be a VM: NAME=pid:PID, NAME=comm:COMMAND or NAME=cgroup:PATH, or @FILE
    /// with one declaration per line; may be repeated
    #[arg(long, value_name = "NAME=PROCESSES")]
    vm: Vec<String>,
    /// The agent runs inside a VM: its rows have level `guest`, and the monitor ties them to the
    /// requests of the VM's disks. VM is its name or UUID on its host [default: the UUID that the
    /// firmware reports]
    #[arg(long, value_name = "VM", num_args = 0..=1, default_missing_value = guest::AUTO)]
    #[arg(value_parser = config::guest_vm, require_equals = true)]
    guest: Option<String>,
    #[command(flatten)]
    define: DefineArgs,
}

fn pace(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(pace) if pace > 0.0 && pace.is_finite() => Ok(pace),
        _ => Err("expected a positive number, such as 2 or 0.5".to_owned()),
    }
}

pub fn run(args: &AgentArgs, verbose: bool) -> Result<Ending, Failure> {
    let mut loaded: Loaded<AgentConfig> = load(args.config.as_deref(), config::FILE)?;
    args.override_with(&mut loaded.config);
    let config = &loaded.config;
    config.forwards()?;
    check_forwarded(&config.queries)?;
    let dial = dial(config)?;
    let mut source = source(config)?;
    if args.check {
        config.forward.check_files()?;
        let file = loaded
            .path
            .as_deref()
            .map(|path| path.display().to_string());
        let file = file.unwrap_or_else(|| format!("no {}", config::FILE));
        output::print(&format!("{file}: the configuration is valid\n"))?;
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
    define_probes(config, &source)?;
    let source_config = SourceConfig {
        first_number: i64::from(home.instance as u32 >> 1),
        args: source,
        replay: args.source_config.replay(),
        host,
        clock,
        guest: config.guest.as_deref().map(guest::vm).transpose()?,
    };
    let endpoint = Endpoint::bind(&config.metrics)?;
    // Before any thread starts: the capabilities for opening taps are kept, all others are dropped.
    let is_live = source_config.is_live();
    if is_live {
        ebpf::keep_what_opening_takes()?;
    }
    let probe_failed = unwatched(&source_config);
    let self_test = self_test(&source_config)?;
    let earlier = home.tallies.earlier()?;
    if earlier.omitted > 0 {
        warn!(
            channels = earlier.omitted,
            "the oldest tallies of earlier processes are not sent: the monitor's limit is reached"
        );
    }
    let (instance, lock) = (home.instance, home.lock);
    let leader = home.leader.stored();
    // A recording need not exist before the first query: until then it has no capabilities.
    let served = source_config.served().unwrap_or_default();
    let capabilities = served.capabilities.encode();
    let status = ServiceStatus::new("agent");
    let options = AgentOptions {
        source_config,
        query_bytes: config.limits.query_memory.0,
        budget: config.budget(),
        earlier: earlier.processes,
        tallies: home.tallies,
        leader: home.leader,
        probe_failed,
        only_vm: config.only_vm.clone(),
        self_test,
        once: args.source_config.once,
        status: status.clone(),
        act_socket: config.act_socket.clone(),
    };
    let hello = Hello {
        host: host.as_str().to_string(),
        instance,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        earlier: earlier.reported,
        ..Hello::default()
    };
    // Before capabilities are dropped, with which files are read that others own.
    let target = config.forward.of_one_host().target()?;
    let local = target.map(|target| LocalOptions {
        host: host.as_str().to_owned(),
        directory: forward_directory(config),
        target,
        queries: config.queries.clone(),
        query_bytes_max: config.limits.query_memory.0,
    });
    let address = dial.addresses();
    let uplink = UplinkOptions {
        room: OutboxCapacity {
            memory_bytes: config.uplink.memory.0,
            disk_bytes: config.uplink.spool.0 as u64,
        },
        spool: config.spool_directory(&home.path),
        retry_max: config.uplink.retry.0,
        shutdown_timeout: match args.source_config.once {
            true => SHUTDOWN_TIMEOUT_REPLAY,
            false => SHUTDOWN_TIMEOUT,
        },
        capabilities,
        leader,
        ..UplinkOptions::new(dial, hello, Arc::new(move || clock.now()))
    };
    let served = status.clone();
    let connect = move || -> Result<_, Failure> {
        let metrics = endpoint.map(|e| e.serve(&served)).transpose()?;
        let local = local.map(|local| LocalMonitor::start(local, served));
        Ok((metrics, local.transpose()?, Uplink::dial(uplink)?))
    };
    let forwarded = config.forward.to.clone();
    let (metrics, local, uplink) = match is_live {
        true => without_capabilities(connect)?,
        false => connect(),
    }?;
    status.started();
    match forwarded {
        Some(url) => info!(%host, forward = %url, "the agent has started"),
        None => info!(%host, monitor = %address, "the agent has started"),
    }
    let reload = || {
        hangup.swap(false, Ordering::Relaxed).then(|| {
            status.reloading();
            let budget = reload(args, &mut loaded, local.as_ref());
            status.started();
            budget
        })?
    };
    let all_taken = Agent::new(options, uplink).run(&stop, reload);
    let all_sent = local.is_none_or(|local| local.close() == 0);
    drop(metrics);
    drop(lock);
    if !all_taken {
        warn!(
            "the monitor has not acknowledged all messages; the next agent with this state directory \
             reports the losses"
        );
    }
    Ok(match stop.signal() {
        Some(number) => Ending::of_service(number),
        None if all_taken && all_sent => Ending::Done,
        None => Ending::Failed,
    })
}

/// The result of `start`, run in a thread without capabilities. The threads that it starts, which
/// read from the network, have none either.
fn without_capabilities<T: Send + 'static>(
    start: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let begin = move || {
        // The files of the spool are created by name.
        ebpf::reduce_thread(ebpf::Files::Named)?;
        Ok::<T, Failure>(start())
    };
    let name = thread::Builder::new().name("uplink".into());
    let ended = name.spawn(begin)?.join();
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl AgentArgs {
    /// Overrides the settings of the file by those of the command line.
    fn override_with(&self, config: &mut AgentConfig) {
        let put = |from: &Option<String>, to: &mut Option<String>| {
            if from.is_some() {
                to.clone_from(from);
            }
        };
        if self.monitor.is_some() {
            config.monitor.clone_from(&self.monitor);
            config.forward = ForwardConfig::default();
            config.queries.clear();
        }
        if self.forward.is_some() {
            config.forward.to.clone_from(&self.forward);
            config.monitor = None;
        }
        if !self.query.is_empty() {
            config.queries.clone_from(&self.query);
        }
        put(&self.host, &mut config.host);
        if let Some(state) = &self.state {
            config.state.clone_from(state);
        }
        if let Some(socket) = &self.act_socket {
            config.act_socket.clone_from(socket);
        }
        if self.token_file.is_some() {
            config.token_file.clone_from(&self.token_file);
        }
        let source_config = &self.source_config;
        if let Some(from) = &source_config.from {
            config.from.clone_from(from);
        }
        if !source_config.device.is_empty() {
            config.devices.clone_from(&source_config.device);
        }
        if !source_config.vm.is_empty() {
            config.vms.clone_from(&source_config.vm);
        }
        put(&source_config.guest, &mut config.guest);
        if !source_config.define.define.is_empty() {
            config.define.clone_from(&source_config.define.define);
        }
        config.stacked |= source_config.stacked;
    }
}

impl SourceConfigArgs {
    fn replay(&self) -> ReplayClock {
        match self.shift {
            Some(by) => ReplayClock::Shift(quantity::nanos(by)),
            None => ReplayClock::Pace(self.pace),
        }
    }
}

/// The directory of the monitor in this process.
fn forward_directory(config: &AgentConfig) -> PathBuf {
    config.state.join(HOME).join(FORWARD)
}

/// How to connect to the monitor; an agent that forwards connects to the one in its process.
///
/// # Errors
/// When no monitor is configured, its address is invalid, or the token file contains no token.
pub fn dial(config: &AgentConfig) -> Result<Dial, Failure> {
    let Some(monitor) = &config.monitor else {
        if config.forward.to.is_some() {
            let socket = LocalMonitor::socket(&forward_directory(config))?;
            return Ok(Dial::new(Address::Unix(socket)));
        }
        return Err(Failure::words(format_args!(
            "no monitor is configured; use --monitor HOST[:PORT] (unix: for the monitor of this host), or set monitor = \"HOST\" in {}; without a monitor, --forward kafka://HOST:PORT forwards to Kafka",
            config::FILE
        )));
    };
    let addresses = Dial::to(monitor)?;
    let tls = &config.tls;
    Ok(Dial {
        token: config.token_file.as_deref().map(read_token).transpose()?,
        authority: tls.ca.clone(),
        identity: tls.certificate.clone().zip(tls.key.clone()),
        server_name: tls.server_name.clone(),
        ..addresses
    })
}

/// The source of events.
fn source(config: &AgentConfig) -> Result<SourceOptions, Failure> {
    let name = SourceName::new(&config.from);
    if let Some(vm) = name.argument(&QEMU) {
        return Err(Failure::words(format_args!(
            "from {}: an agent observes its whole host; use `live`, with VM {vm} in column vm",
            config.from
        )));
    }
    if name.path().is_some_and(format::pipe::is_pipe) {
        return Err(Failure::words(format_args!(
            "from {}: an agent reads a recording once for each query, which a pipe does not permit; write it to a file",
            config.from
        )));
    }
    SourceOptions::of(&config.from, &config.devices, config.stacked, &config.vms)
        .map_err(Failure::words)
}

/// The name of the host.
fn host(config: &AgentConfig) -> Result<Symbol, Failure> {
    let named = config.host.as_deref().map(Symbol::try_new);
    let named = named.and_then(Result::ok).or_else(ebpf::host_name);
    named.ok_or_else(|| Failure::words("this host has no host name; set one with --host NAME"))
}

/// Adds the streams of probes that queries of the fleet can name: those of the configuration, and
/// the shipped ones that this host has. Nothing is attached before a query reads them.
fn define_probes(config: &AgentConfig, source: &SourceOptions) -> Result<(), Failure> {
    if !source.has_host() {
        return match config.define.is_empty() {
            true => Ok(()),
            false => Err(Failure::words(
                "define: probes are those of the host, which `from` does not observe",
            )),
        };
    }
    let define = config.define.clone();
    DefineArgs { define }.add_to(source)?;
    for stream in ShippedStream::all() {
        if let Err(why) = source.define_shipped_stream(&stream.name) {
            info!(reason = %why, "queries cannot read a shipped stream here");
        }
    }
    Ok(())
}

/// The reason why the I/O of this host cannot be observed, determined at the start rather than with
/// the first query. The agent continues, since relations and recordings need no privileges.
fn unwatched(source_config: &SourceConfig) -> Option<String> {
    let demand = Demand {
        stream: "IO".into(),
        columns: vec![0],
        predicate: Predicate::all(),
        fold: None,
    };
    let opened = source_config
        .is_live()
        .then(|| source_config.open(&[demand]));
    let why = opened?.err()?.text();
    warn!(
        reason = %why,
        "queries of I/O will fail on this host; `weir doctor` lists what is missing"
    );
    Some(why)
}

/// Starts the self-test of a live source, the same as that of `weir doctor`: a few direct reads of
/// each disk must be reported once. Its result is received when it has ended.
fn self_test(source_config: &SourceConfig) -> Result<Receiver<Fact>, Failure> {
    let (sender, receiver) = channel();
    if source_config.args.has_host() {
        let options = LiveOptions {
            ring_bytes: SELF_TEST_RING_BYTES,
            ..source_config.args.live()
        };
        let run = move || {
            let fact = ebpf::self_test(&options);
            let (status, found) = (fact.status.as_str(), &fact.found);
            match fact.status {
                CheckStatus::Ok => info!(%status, %found, "the self-test has ended"),
                _ => warn!(%status, %found, effect = %fact.costs, "the self-test has ended"),
            }
            // The agent may have ended.
            let _ = sender.send(fact);
        };
        thread::Builder::new().name("self-test".into()).spawn(run)?;
    }
    Ok(receiver)
}

/// Reads the configuration again (SIGHUP): limits apply at once. If it is wrong, nothing changes.
fn reload(
    args: &AgentArgs,
    loaded: &mut Loaded<AgentConfig>,
    local: Option<&LocalMonitor>,
) -> Option<Budget> {
    let Some(path) = loaded.path.clone() else {
        warn!("not reloaded: there is no configuration file");
        return None;
    };
    let load = || {
        let mut now = load::<AgentConfig>(Some(&path), config::FILE)?;
        args.override_with(&mut now.config);
        if now.config.forwards()? != local.is_some() {
            return Err(Failure::words(
                "`monitor` was replaced by `forward.to`, or the reverse: restart the agent",
            ));
        }
        check_forwarded(&now.config.queries)?;
        Ok::<_, Failure>(now)
    };
    match load() {
        Ok(now) => {
            if let Some(local) = local {
                local.reload(&now.config.queries);
            }
            let changes = Changes::between(&loaded.config, &now.config, config::APPLIED);
            info!(file = %path.display(), "reloaded: {changes}");
            *loaded = now;
            Some(loaded.config.budget())
        }
        Err(failure) => {
            error!(reason = %failure.text(), "not reloaded, the configuration is unchanged");
            None
        }
    }
}

/// The state that survives the agent, locked by one agent at a time.
struct Home {
    path: PathBuf,
    lock: Lock,
    /// A random number of this process.
    instance: u64,
    tallies: TallyFile,
    leader: LeaderFile,
}

impl Home {
    fn open(state: &Path) -> Result<Home, Failure> {
        let path = state.join(HOME);
        let failed = |e: std::io::Error| {
            Failure::world(format_args!(
                "{}: {e}; use --state DIR with a directory that the agent can write",
                path.display()
            ))
        };
        private::directory(&path).map_err(failed)?;
        let lock = Lock::take(&path).map_err(failed)?.ok_or_else(|| {
            Failure::world(format_args!(
                "{}: in use by another agent; use --state DIR with another directory",
                path.display()
            ))
        })?;
        let instance = u64::from_le_bytes(random::bytes()?);
        let tallies = TallyFile::begin(&path, instance).map_err(failed)?;
        let leader = LeaderFile::open(&path).map_err(failed)?;
        Ok(Home {
            path,
            lock,
            instance,
            tallies,
            leader,
        })
    }
}
