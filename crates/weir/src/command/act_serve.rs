//! `weir act serve`: started by `weir alert watch`, to carry out the actions of alerts after weir
//! itself has dropped its privileges. Not for direct use.

use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;

use clap::Args;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use weir_act::policy::{ActMode, ActPolicy};
use weir_act::service::{ActMessage, ActService, FindTarget, POLL_EVERY};
use weir_act::store::LeaseStore;
use weir_act::target::LimitTarget;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::run_loop::wall_clock;
use weir_runtime::source::{self, SourceOptions};

use super::act::failure;

/// Maximum bytes of a message.
const MESSAGE_BYTES_MAX: u64 = 64 << 10;

/// Maximum number of messages that wait.
const WAITING_MAX: usize = 1_000;

/// Carry out the actions of alerts
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Directory of the leases
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Carry out what the policy allows; otherwise propose
    #[arg(long)]
    apply: bool,
    /// VMs that may be limited
    #[arg(long, value_name = "PATTERN")]
    allow: Vec<String>,
    /// Lowest limit of requests per second
    #[arg(long, value_name = "COUNT")]
    floor: u64,
    /// Maximum number of actions at a time
    #[arg(long, value_name = "COUNT")]
    targets: usize,
    /// Processes that are VMs
    #[arg(long, value_name = "NAME=PROCESSES", value_parser = source::declarations)]
    declare: Vec<source::Declarations>,
}

pub fn run(args: &ServeArgs) -> Result<Ending, Failure> {
    // When a service is stopped, this process receives the signal as well. It ends when its input
    // is closed, and then undoes what lasts.
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::default()).map_err(Failure::world)?;
    }
    let policy = ActPolicy {
        mode: match args.apply {
            true => ActMode::Apply,
            false => ActMode::Propose,
        },
        allow: args.allow.clone(),
        iops_floor: args.floor,
        targets_max: args.targets,
    };
    let store = LeaseStore::open(&args.state).map_err(failure)?;
    let (mut service, steps) = ActService::open(store, policy, find(args)).map_err(failure)?;
    let mut is_read = print(steps);
    let messages = messages();
    loop {
        let steps = match messages.recv_timeout(POLL_EVERY) {
            Ok(Some(message)) => service.receive(&message, wall_clock()),
            Err(RecvTimeoutError::Timeout) => service.poll(wall_clock()),
            // An invalid message is of a process that cannot be trusted any more.
            Ok(None) | Err(RecvTimeoutError::Disconnected) => break,
        };
        is_read &= print(steps);
        if !is_read {
            break;
        }
    }
    print(service.close(wall_clock()));
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

/// The messages on standard input; `None` is an invalid one. The channel closes at its end.
fn messages() -> Receiver<Option<ActMessage>> {
    let (send, receive) = sync_channel(WAITING_MAX);
    thread::spawn(move || {
        let mut input = BufReader::new(io::stdin());
        loop {
            let mut line = String::new();
            let read = input.by_ref().take(MESSAGE_BYTES_MAX).read_line(&mut line);
            if !read.is_ok_and(|bytes| bytes > 0) {
                return;
            }
            let message = serde_json::from_str(&line).ok();
            let is_last = message.is_none();
            if send.send(message).is_err() || is_last {
                return;
            }
        }
    });
    receive
}

/// Prints steps; false if they are not read any more.
fn print(steps: Vec<Value>) -> bool {
    let lines: String = steps.iter().map(|step| format!("{step}\n")).collect();
    lines.is_empty() || output::print(&lines).is_ok()
}
