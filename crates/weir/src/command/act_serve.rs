//! `weir act serve`: carries out the actions of alerts, for the agent of this host, which connects
//! to its socket, or for `weir alert watch`, which starts it and drops its own privileges.

use std::fs::DirBuilder;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use weir_act::limit::IOPS_FLOOR;
use weir_act::link::{SOCKET, read_lines};
use weir_act::policy::{ActMode, ActPolicy, TARGETS_MAX};
use weir_act::service::{ActMessage, ActService, FindTarget, POLL_EVERY};
use weir_act::store::LeaseStore;
use weir_act::target::LimitTarget;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::run_loop::{Stop, wall_clock};
use weir_runtime::source::{self, SourceOptions};
use weir_sink::{text, time};
use weir_tapdisk::service::group;
use weir_tapdisk::socket::SocketType;
use weir_tapdisk::{ServerSocket, SocketAccess};

use super::act::StoreArgs;

/// The wait between two looks at the socket.
const ACCEPT_EVERY: Duration = Duration::from_millis(100);

/// The longest wait until a step is read.
const STEP_MAX: Duration = Duration::from_secs(1);

/// The group whose members may connect, if it exists.
const GROUP: &str = "weir";

/// Carry out the actions of a fleet's alerts on this host
///
/// The agent of this host connects to the socket, and requests what the alerts of its monitor do
/// here. The policy is that of this command: without --act, actions are only proposed. It keeps its
/// privileges; the agent has none to write limits. When the agent ends, or has lost its monitor for
/// 30 seconds, everything is undone; so it is at SIGTERM and Ctrl-C.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir act serve\n  \
    weir act serve --act 'batch-*' --act-targets 1")]
pub struct ServeArgs {
    /// Socket for the agent of this host
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
    /// Group whose members may connect [default: weir if it exists, else the owner only]
    #[arg(long, value_name = "GROUP", value_parser = group)]
    socket_group: Option<u32>,
    /// Receive messages on standard input, and print steps as JSON
    #[arg(long, hide = true)]
    stdin: bool,
    #[command(flatten)]
    policy: PolicyArgs,
    /// Treat processes as a VM: NAME=pid:PID, NAME=comm:COMMAND, NAME=cgroup:PATH, or @FILE with
    /// one of these a line; may be repeated [default: only the VMs that weir finds]
    #[arg(long, value_name = "NAME=PROCESSES", value_parser = source::declarations)]
    declare: Vec<source::Declarations>,
    #[command(flatten)]
    store: StoreArgs,
}

/// What alerts may do.
#[derive(Args, Debug)]
#[command(next_help_heading = "Actions")]
pub struct PolicyArgs {
    /// Carry out the actions of alerts on these VMs: a name, in which * stands for any text; may be
    /// repeated [default: actions are proposed only]
    #[arg(long, value_name = "VM")]
    pub act: Vec<String>,
    /// Lowest limit of requests per second; a lower one is raised to it
    #[arg(long, value_name = "COUNT", default_value_t = IOPS_FLOOR)]
    pub act_floor: u64,
    /// Maximum number of actions at a time
    #[arg(long, value_name = "COUNT", default_value_t = TARGETS_MAX)]
    pub act_targets: usize,
}

impl PolicyArgs {
    fn policy(&self) -> ActPolicy {
        ActPolicy {
            mode: match self.act.is_empty() {
                true => ActMode::Propose,
                false => ActMode::Apply,
            },
            allow: self.act.clone(),
            iops_floor: self.act_floor,
            targets_max: self.act_targets,
        }
    }
}

pub fn run(args: &ServeArgs) -> Result<Ending, Failure> {
    match args.stdin {
        true => serve_input(args),
        false => serve_socket(args),
    }
}

/// The service for the life of this process, and the steps of what others have left.
fn open(args: &ServeArgs) -> Result<(ActService, Vec<Value>), Failure> {
    // A directory that is in use is no error of the command line: the service is started again.
    let store = LeaseStore::open(&args.store.state).map_err(Failure::world)?;
    ActService::open(store, args.policy.policy(), find(args)).map_err(Failure::world)
}

/// Serves the process that has started this one.
fn serve_input(args: &ServeArgs) -> Result<Ending, Failure> {
    // When a service is stopped, this process receives the signal as well. It ends when its input
    // is closed, and then undoes what lasts.
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::default()).map_err(Failure::world)?;
    }
    let mut print = |steps: &[Value]| steps.is_empty() || output::print(&lines(steps)).is_ok();
    let (mut service, steps) = open(args)?;
    print(&steps);
    serve(&mut service, io::stdin(), &Stop::new(), &mut print);
    ended(&service)
}

/// Serves one agent after the other at the socket.
fn serve_socket(args: &ServeArgs) -> Result<Ending, Failure> {
    let stop = Stop::on_signals()?;
    let socket = bind(args)?;
    // What a killed process has left is undone now, not when an agent connects.
    let (mut service, steps) = open(args)?;
    log(&steps);
    let path = socket.path().display();
    let mode = match args.policy.act.is_empty() {
        true => "actions are proposed only".to_owned(),
        false => format!("actions are carried out on {}", args.policy.act.join(", ")),
    };
    output::print(&format!("weir act serve at {path}: {mode}\n"))?;
    let listener = socket.listener();
    listener.set_nonblocking(true)?;
    let mut polled = Instant::now();
    while stop.signal().is_none() {
        match listener.accept() {
            Ok((stream, _)) => {
                if let Err(error) = serve_agent(args, &mut service, stream, &stop) {
                    output::notice(format_args!("weir: {path}: {error}"));
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => drop(stop.wait(ACCEPT_EVERY)),
            // The process has no file descriptor left: later.
            Err(error) => {
                output::notice(format_args!("weir: {path}: {error}"));
                stop.wait(POLL_EVERY);
            }
        }
        // What could not be undone at the end of a connection is tried again.
        if polled.elapsed() >= POLL_EVERY {
            polled = Instant::now();
            log(&service.poll(wall_clock()));
        }
    }
    log(&service.close(wall_clock()));
    drop(socket);
    ended(&service)?;
    Ok(stop.signal().map_or(Ending::Done, Ending::of_service))
}

fn bind(args: &ServeArgs) -> Result<ServerSocket, Failure> {
    let path = &args.socket;
    if let Some(folder) = path.parent().filter(|folder| *folder != Path::new("")) {
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o755).create(folder);
        let name = folder.display();
        made.map_err(|e| Failure::world(format_args!("{name}: {e}")))?;
    }
    let access = match args.socket_group.or_else(|| group(GROUP).ok()) {
        group @ Some(_) => SocketAccess { mode: 0o660, group },
        None => SocketAccess::default(),
    };
    ServerSocket::bind(path, SocketType::STREAM, access).map_err(Failure::world)
}

/// Serves an agent until it ends.
fn serve_agent(
    args: &ServeArgs,
    service: &mut ActService,
    stream: UnixStream,
    stop: &Stop,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(STEP_MAX))?;
    let mut steps_to = stream.try_clone()?;
    let end = stream.try_clone()?;
    let policy = args.policy.policy();
    let greeting = json!({"event": "serving", "mode": policy.mode, "act": policy.allow});
    let mut print = |steps: &[Value]| {
        log(steps);
        steps.is_empty() || steps_to.write_all(lines(steps).as_bytes()).is_ok()
    };
    if print(&[greeting]) {
        serve(service, stream, stop, &mut print);
    }
    // The thread that reads messages has a part of the connection.
    let _ = end.shutdown(Shutdown::Both);
    Ok(())
}

/// Carries out the messages of an input until it ends, then undoes what lasts.
fn serve(
    service: &mut ActService,
    input: impl Read + Send + 'static,
    stop: &Stop,
    print: &mut dyn FnMut(&[Value]) -> bool,
) {
    let mut is_read = true;
    let messages = read_lines(input);
    while is_read && stop.signal().is_none() {
        let steps = match messages.recv_timeout(POLL_EVERY) {
            Ok(line) => match serde_json::from_str::<ActMessage>(&line) {
                Ok(message) => service.receive(&message, wall_clock()),
                // It is of a process that cannot be trusted any more.
                Err(_) => break,
            },
            Err(RecvTimeoutError::Timeout) => service.poll(wall_clock()),
            Err(RecvTimeoutError::Disconnected) => break,
        };
        is_read = print(&steps);
    }
    print(&service.close(wall_clock()));
}

fn ended(service: &ActService) -> Result<Ending, Failure> {
    match service.leases().count() {
        0 => Ok(Ending::Done),
        left => Err(Failure::world(format_args!(
            "{left} limits could not be undone; `weir act undo --all` tries again"
        ))),
    }
}

/// Finds targets in the inventory, which is scanned from the first request on.
fn find(args: &ServeArgs) -> FindTarget {
    let mut host = SourceOptions::default();
    host.vm.clone_from(&args.declare);
    Box::new(move |vm, disk, kind| {
        let watch = host.inventory().map_err(|error| {
            weir_act::ActError::Refused(format!("the VMs cannot be listed: {error}"))
        })?;
        LimitTarget::of_vm(&watch.snapshot(), vm, disk, kind)
    })
}

/// Steps as JSON, one a line.
fn lines(steps: &[Value]) -> String {
    steps.iter().map(|step| format!("{step}\n")).collect()
}

/// Prints steps for the log of the service.
fn log(steps: &[Value]) {
    let is_step = |step: &&Value| step["event"] != "serving";
    let lines = steps.iter().filter(is_step);
    let lines: String = lines.map(|step| format!("{}\n", step_line(step))).collect();
    if !lines.is_empty() {
        // Without a reader of the log, actions and their undoing continue.
        let _ = output::print(&lines);
    }
}

/// A step of an action in a line.
pub fn step_line(step: &Value) -> String {
    let value = |name: &str| step[name].as_str().unwrap_or("").to_owned();
    let at = time::readable(step["at"].as_i64().unwrap_or(0));
    let disk = [value("vm"), value("disk")].join(" ");
    let line = format!(
        "{} action {} on {}: {}",
        value("alert"),
        value("event"),
        disk.trim(),
        value("text")
    );
    format!("{at} {}", text::shown(line.trim()))
}
