//! `weir act`: actions on the disks of VMs, under a lease.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use weir_act::ActError;
use weir_act::lease::{EndCause, EndOutcome, EndedLease, LEASE_NS_MAX, Lease, recover};
use weir_act::limit::{IOPS_FLOOR, Limit};
use weir_act::store::LeaseStore;
use weir_act::target::{KnobKind, LimitTarget};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::{Stop, wall_clock};
use weir_runtime::source::{self, SourceOptions};
use weir_sink::text::aligned;
use weir_sink::time;

use super::act_serve::{self, ServeArgs};
use super::act_test::{self, ActTestArgs};

/// Where leases are stored.
pub const DIRECTORY: &str = weir_tap::journal::ACTIONS_DIRECTORY;

/// The interval at which a lease's knob is compared.
const COMPARE_EVERY: Duration = Duration::from_millis(500);

/// Limit the disks of VMs for some time
///
/// A limit is a lease: it ends after its time, with the command, or with `weir act undo`, and the
/// value from before is restored. What a killed command has left, the next `weir act` undoes. A
/// value that another program has set meanwhile stays.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir act limit --vm mail --iops 500 --for 10m\n  \
    weir act limit --vm mail --iops 500 --for 10m --apply\n  \
    weir act status\n  \
    weir act undo --all")]
pub struct ActCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    Limit(LimitCommand),
    Test(ActTestArgs),
    Status(StatusArgs),
    Undo(UndoArgs),
    Log(LogArgs),
    Serve(ServeArgs),
}

/// Limit a disk of a VM, or a device in a cgroup
///
/// Without --apply it prints what it would write, and changes nothing. With it, it keeps the limit
/// for the time of --for, or until Ctrl-C. The limit is set by the tapdisk that serves the disk, by
/// libvirt where it owns the VM, by QEMU's own throttling where QEMU serves the disk, else by the
/// cgroup of the VM's process, through systemd if that owns the cgroup; a limit of a cgroup is for
/// reads and for writes each. A limit that is lower already stays.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir act limit --vm mail --iops 500 --for 10m\n  \
    weir act limit --vm mail --disk vda --bytes-per-second 50MiB --for 1h --apply\n  \
    weir act limit --vm mail --weight 20 --for 1h --apply\n  \
    weir act limit --cgroup /sys/fs/cgroup/jobs --device /dev/sda --iops 200 --for 5m --apply")]
struct LimitCommand {
    /// Name of the VM
    #[arg(long, value_name = "NAME", required_unless_present = "cgroup")]
    vm: Option<String>,
    /// The disk, by its name in the VM (vda, /dev/vda), or by its device or node in QEMU; of a
    /// process or container, a device of this host [default: the only one]
    #[arg(long, value_name = "NAME", requires = "vm")]
    disk: Option<String>,
    /// Treat processes as a VM: NAME=pid:PID, NAME=comm:COMMAND, NAME=cgroup:PATH, or @FILE with
    /// one of these a line; may be repeated [default: only the VMs that weir finds]
    #[arg(long, value_name = "NAME=PROCESSES", value_parser = source::declarations)]
    declare: Vec<source::Declarations>,
    /// Directory of a cgroup, instead of a VM [default: that of the VM's process]
    #[arg(long, value_name = "DIR", conflicts_with = "vm", requires = "device")]
    cgroup: Option<PathBuf>,
    /// The device that is limited in the cgroup
    #[arg(long, value_name = "DEVICE", value_parser = source::device, requires = "cgroup")]
    device: Option<String>,
    /// Limit of requests per second [default: no limit of requests]
    #[arg(long, value_name = "COUNT")]
    iops: Option<u64>,
    /// Limit of bytes per second [default: no limit of bytes]
    #[arg(long, value_name = "SIZE", value_parser = quantity::size)]
    bytes_per_second: Option<usize>,
    /// Weight of the cgroup, 1 to 10000, instead of a limit: its share of a device that others use
    /// as well [default: no weight]
    #[arg(long, value_name = "WEIGHT", conflicts_with_all = ["iops", "bytes_per_second"])]
    weight: Option<u64>,
    /// Length of the lease, at most 24 hours
    #[arg(long = "for", value_name = "DURATION", default_value = "10m", value_parser = quantity::span)]
    span: Duration,
    /// Apply the limit; without it, it is only printed
    #[arg(long)]
    apply: bool,
    /// End the limit also when standard input ends
    #[arg(long, hide = true)]
    while_input: bool,
    /// Lowest limit of requests per second that is accepted
    #[arg(long, value_name = "COUNT", default_value_t = IOPS_FLOOR)]
    floor: u64,
    #[command(flatten)]
    store: StoreArgs,
    /// Print JSON objects
    #[arg(short = 'j', long)]
    json: bool,
}

/// Where leases are stored.
#[derive(Args, Debug)]
pub struct StoreArgs {
    /// Directory of the leases
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    pub state: PathBuf,
}

/// List the leases
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  weir act status\n  weir act status --json")]
struct StatusArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Print a JSON array
    #[arg(short = 'j', long)]
    json: bool,
}

/// End leases now
///
/// The exit status is 1 if a knob could not be restored.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  weir act undo mail-1795526134\n  weir act undo --all")]
struct UndoArgs {
    /// Ids of the leases, as listed by `weir act status`
    #[arg(value_name = "ID", required_unless_present = "all")]
    ids: Vec<String>,
    /// End all leases
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    store: StoreArgs,
    /// Print a JSON array: id, outcome
    #[arg(short = 'j', long)]
    json: bool,
}

/// Print what was done
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  weir act log\n  weir act log --json")]
struct LogArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Print a JSON object per line
    #[arg(short = 'j', long)]
    json: bool,
}

pub fn run(args: &ActCommand, verbose: bool) -> Result<Ending, Failure> {
    match &args.action {
        Action::Limit(args) => limit(args),
        Action::Test(args) => act_test::run(args, verbose),
        Action::Serve(args) => act_serve::run(args),
        Action::Status(args) => status(args),
        Action::Undo(args) => undo(args),
        Action::Log(args) => log(args),
    }
}

/// An error of an action.
pub fn failure(error: ActError) -> Failure {
    match error {
        ActError::Refused(why) => Failure::words(why),
        error => Failure::world(error),
    }
}

fn limit(args: &LimitCommand) -> Result<Ending, Failure> {
    let limit = Limit {
        iops: args.iops,
        bytes: args.bytes_per_second.map(|bytes| bytes as u64),
        weight: args.weight,
    };
    limit.check(args.floor).map_err(failure)?;
    let length = quantity::nanos(args.span);
    if length > LEASE_NS_MAX {
        return Err(Failure::words("--for: a lease has at most 24 hours"));
    }
    let stop = Stop::on_signals()?;
    let mut lease = planned(args, &limit, length)?;
    if !args.apply {
        propose(args, &lease)?;
        return Ok(Ending::Done);
    }
    let store = LeaseStore::open(&args.store.state).map_err(failure)?;
    {
        let _lock = store.lock().map_err(failure)?;
        report_recovered(recover(&store, &mut |_| {}).map_err(failure)?);
        // The value from before is that after the recovery.
        lease.before = lease.knob.read().map_err(failure)?;
        lease.ours = limit.setting(&lease.knob, &lease.before);
        lease.refuse_another(&store).map_err(failure)?;
        lease.apply(&store, &mut |_| {}).map_err(failure)?;
    }
    report(
        args.json,
        "applied",
        &lease,
        &format!("limited to {}", lease.ours),
    )?;
    hold(args, &store, &mut lease, &stop)
}

/// The lease, as it would be applied now.
fn planned(args: &LimitCommand, limit: &Limit, length: i64) -> Result<Lease, Failure> {
    let mut host = SourceOptions::default();
    host.vm.clone_from(&args.declare);
    let snapshot = host.inventory()?.snapshot();
    let kind = match args.weight {
        Some(_) => KnobKind::Weight,
        None => KnobKind::Limit,
    };
    let target = match (&args.vm, &args.cgroup, &args.device) {
        (Some(vm), _, _) => LimitTarget::of_vm(&snapshot, vm, args.disk.as_deref(), kind),
        (None, Some(group), Some(device)) => LimitTarget::of_group(&snapshot, group, device, kind),
        _ => return Err(Failure::words("give --vm, or --cgroup and --device")),
    };
    let target = target.map_err(failure)?;
    Lease::planned(target, limit, wall_clock(), length).map_err(failure)
}

fn propose(args: &LimitCommand, lease: &Lease) -> Result<(), Failure> {
    if args.json {
        let mut event = object(lease);
        event["event"] = json!("proposed");
        event["command"] = json!(lease.knob.command(&lease.ours));
        return output::print(&format!("{event}\n"));
    }
    output::print(&format!(
        "{} would be limited by {}\nbefore:  {}\nlimit:   {}\n{}\nnothing was changed; --apply does \
         it, for {:?}\n",
        name(lease),
        lease.knob,
        lease.before,
        lease.ours,
        lease.knob.command(&lease.ours),
        args.span
    ))
}

/// Keeps a lease until its end.
fn hold(
    args: &LimitCommand,
    store: &LeaseStore,
    lease: &mut Lease,
    stop: &Stop,
) -> Result<Ending, Failure> {
    // The wall clock may be set meanwhile.
    let left = lease.ends.saturating_sub(wall_clock());
    let deadline = Instant::now() + Duration::from_nanos(left.max(0).unsigned_abs());
    let has_input = Arc::new(AtomicBool::new(true));
    if args.while_input {
        watch_input(has_input.clone());
    }
    let cause = loop {
        if stop.signal().is_some() || !has_input.load(Ordering::Relaxed) {
            break EndCause::Stopped;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break EndCause::Expired;
        }
        if store.get(&lease.id).map_err(failure)?.is_none() {
            report(args.json, "ended", lease, "undone by another command")?;
            return Ok(Ending::Done);
        }
        match lease.knob.read() {
            Ok(found) if !found.is(&lease.ours) => break EndCause::Overwritten,
            Err(error) if lease.knob.is_gone(&error) => break EndCause::Overwritten,
            _ => {}
        }
        stop.wait(COMPARE_EVERY.min(left));
    };
    let outcome = {
        let _lock = store.lock().map_err(failure)?;
        lease.end(store, cause, &mut |_| {}).map_err(failure)?
    };
    let text = format!("{}: {}", cause.text(), outcome.text(&lease.before));
    report(args.json, "ended", lease, &text)?;
    Ok(match (outcome, stop.signal()) {
        (EndOutcome::ChangedByAnother { .. }, _) => Ending::Failed,
        (_, Some(number)) => Ending::Signal(number),
        _ => Ending::Done,
    })
}

/// Clears `has_input` at the end of standard input.
fn watch_input(has_input: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        // An error ends the input as its end does.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        has_input.store(false, Ordering::Relaxed);
    });
}

/// The disk of a lease, for users.
fn name(lease: &Lease) -> String {
    match &lease.vm {
        Some(vm) => format!("{vm} {}", lease.disk),
        None => lease.disk.clone(),
    }
}

fn object(lease: &Lease) -> Value {
    json!({
        "id": lease.id,
        "vm": lease.vm,
        "disk": lease.disk,
        "knob": lease.knob.to_string(),
        "before": lease.before,
        "limit": lease.ours,
        "begins": time::timestamp(lease.begins),
        "ends": time::timestamp(lease.ends),
        "alert": lease.alert,
    })
}

fn report(is_json: bool, event: &str, lease: &Lease, text: &str) -> Result<(), Failure> {
    if is_json {
        let mut object = object(lease);
        object["event"] = json!(event);
        object["text"] = json!(text);
        return output::print(&format!("{object}\n"));
    }
    let until = match event {
        "applied" => format!(", until {} UTC or Ctrl-C", time::readable(lease.ends)),
        _ => String::new(),
    };
    output::print(&format!("{} ({}): {text}{until}\n", name(lease), lease.id))
}

/// Reports leases of processes that have ended; returns whether all are undone.
fn report_recovered(recovered: Vec<EndedLease>) -> bool {
    let mut all = true;
    for (lease, outcome) in recovered {
        let (name, id) = (name(&lease), &lease.id);
        match outcome {
            Ok(outcome) => output::notice(format_args!(
                "weir: {name} ({id}): its process had ended: {}",
                outcome.text(&lease.before)
            )),
            Err(error) => {
                all = false;
                output::fail(format_args!("weir: {name} ({id}): {error}"));
            }
        }
    }
    all
}

/// An existing store; `None` if there never was a lease.
fn existing(args: &StoreArgs) -> Result<Option<LeaseStore>, Failure> {
    let path: &Path = &args.state;
    match path.is_dir() {
        true => LeaseStore::open(path).map(Some).map_err(failure),
        false => Ok(None),
    }
}

fn status(args: &StatusArgs) -> Result<Ending, Failure> {
    let store = existing(&args.store)?;
    let active = store.map_or(Ok(Vec::new()), |store| store.active());
    let active = active.map_err(failure)?;
    if args.json {
        let lease = |lease: &Lease| {
            let mut object = object(lease);
            object["held"] = json!(lease.is_held());
            object
        };
        let leases: Vec<Value> = active.iter().map(lease).collect();
        output::print(&format!("{}\n", json!(leases)))?;
        return Ok(Ending::Done);
    }
    if active.is_empty() {
        output::print("no leases\n")?;
        return Ok(Ending::Done);
    }
    let head = ["ID", "DISK", "LIMIT", "BEFORE", "ENDS", "STATE"].map(str::to_owned);
    let row = |lease: &Lease| {
        let state = match lease.is_held() {
            true => "held",
            false => "left behind: `weir act undo` restores it",
        };
        vec![
            lease.id.clone(),
            name(lease),
            lease.ours.to_string(),
            lease.before.to_string(),
            time::readable(lease.ends),
            state.to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = [head.to_vec()]
        .into_iter()
        .chain(active.iter().map(row))
        .collect();
    output::print(&aligned(&rows))?;
    Ok(Ending::Done)
}

fn undo(args: &UndoArgs) -> Result<Ending, Failure> {
    let Some(store) = existing(&args.store)? else {
        return undone(args, Vec::new());
    };
    let _lock = store.lock().map_err(failure)?;
    let active = store.active().map_err(failure)?;
    if let Some(unknown) = args
        .ids
        .iter()
        .find(|id| !active.iter().any(|lease| lease.id == **id))
    {
        return Err(Failure::words(format_args!(
            "there is no lease {unknown}; `weir act status` lists them"
        )));
    }
    let mut ended = Vec::new();
    for mut lease in active {
        if args.all || args.ids.contains(&lease.id) {
            let outcome = lease.end(&store, EndCause::Undone, &mut |_| {});
            ended.push((lease, outcome));
        }
    }
    undone(args, ended)
}

fn undone(args: &UndoArgs, ended: Vec<EndedLease>) -> Result<Ending, Failure> {
    let is_undone = |(_, outcome): &EndedLease| {
        !matches!(outcome, Err(_) | Ok(EndOutcome::ChangedByAnother { .. }))
    };
    let all = ended.iter().all(is_undone);
    let text = |lease: &Lease, outcome: &Result<EndOutcome, ActError>| match outcome {
        Ok(outcome) => outcome.text(&lease.before),
        Err(error) => error.to_string(),
    };
    if args.json {
        let rows = ended.iter();
        let rows: Vec<Value> = rows
            .map(|(lease, outcome)| json!({"id": lease.id, "outcome": text(lease, outcome)}))
            .collect();
        output::print(&format!("{}\n", json!(rows)))?;
    } else if ended.is_empty() {
        output::print("no leases\n")?;
    }
    for (lease, outcome) in ended.iter().filter(|_| !args.json) {
        output::print(&format!(
            "{} ({}): {}\n",
            name(lease),
            lease.id,
            text(lease, outcome)
        ))?;
    }
    Ok(if all { Ending::Done } else { Ending::Failed })
}

fn log(args: &LogArgs) -> Result<Ending, Failure> {
    let store = existing(&args.store)?;
    let events = store.map_or(Ok(Vec::new()), |store| store.log());
    for event in events.map_err(failure)? {
        if args.json {
            output::print(&format!("{event}\n"))?;
            continue;
        }
        let text = |name: &str| event[name].as_str().unwrap_or("").to_owned();
        let at = time::readable(event["at"].as_i64().unwrap_or(0));
        let cause = match event["cause"].as_str() {
            Some(cause) if event["outcome"].is_null() => format!(": {cause}"),
            Some(cause) => format!(": {cause}, {}", event["outcome"]),
            None if event["stage"] == "improved" => format!(": {}", text("effect")),
            None => format!(": {} by {}", event["limit"], text("knob")),
        };
        let disk = [text("vm"), text("disk")].join(" ");
        output::print(&format!(
            "{at} {} {} {}{cause}\n",
            text("id"),
            disk.trim(),
            text("stage")
        ))?;
    }
    Ok(Ending::Done)
}
