//! The inspection process of a live command: what it reports, what it inherits, and the effects
//! when it or its command ends.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpgid, kill_process};
use weir_model::Symbol;
use weir_tap::inspection::Inspection;
use weir_tap::inspection::message::{
    Begin, ConversationKind, OfVm, PollsRequest, SnapshotReceiver,
};
use weir_tap::inventory::{Declared, InventoryWatch, ScanScope, Snapshot, WatchOptions};

use crate::live::watchable;
use crate::support::{CommandOutput, run, weir};

/// Names VMs, so that the host is scanned.
const OF_VMS: &str = "select vm, count(*) from IO [range 100 ms slide 100 ms] group by vm";

/// The inspection process of process `pid`.
pub fn inspection_of(pid: u32) -> Option<u32> {
    let parent = format!("PPid:\t{pid}");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let ours = processes.map(|p| p.path()).find(|p| {
        let text = |name| fs::read_to_string(p.join(name)).unwrap_or_default();
        text("status").lines().any(|l| l == parent) && text("cmdline").contains("inspection")
    });
    ours?.file_name()?.to_str()?.parse().ok()
}

/// The same, after the command has dropped its privileges.
fn started(command: &mut Child) -> u32 {
    within("an inspection process", || {
        let ended = command.try_wait().unwrap();
        assert!(ended.is_none(), "it has ended: {ended:?}");
        let found = inspection_of(command.id())?;
        let status = fs::read_to_string(format!("/proc/{}/status", command.id())).ok()?;
        let dropped = status.lines().any(|line| line == "NoNewPrivs:\t1");
        dropped.then_some(found)
    })
}

fn within<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < until, "no {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number.try_into().unwrap()).unwrap()
}

/// Whether a process runs; a zombie does not.
fn runs(number: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
    status
        .lines()
        .any(|l| l.starts_with("State:") && !l.contains("zombie"))
}

fn live(args: &[&str]) -> Child {
    let mut command = weir(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// The program, as weir starts it.
fn program() -> Vec<OsString> {
    [env!("CARGO_BIN_EXE_weir"), "inspection"]
        .map(OsString::from)
        .into()
}

#[test]
fn it_ends_with_a_command_that_is_killed() {
    if !watchable("it_ends_with_a_command_that_is_killed") {
        return;
    }
    let mut command = live(&["query", "--no-fold", OF_VMS]);
    let inspection = started(&mut command);
    let group = getpgid(Some(pid(inspection))).unwrap();
    assert_eq!(group, pid(inspection), "Ctrl-C reaches it");
    command.kill().unwrap();
    command.wait().unwrap();
    within("end of the inspection process", || {
        (!runs(inspection)).then_some(())
    });
}

#[test]
fn a_command_whose_inspection_process_is_killed_reports_it_and_continues() {
    if !watchable("a_command_whose_inspection_process_is_killed_reports_it_and_continues") {
        return;
    }
    let mut command = weir(&["query", "--no-fold", "--for", "120s", OF_VMS]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut command = Sleeper(command.spawn().unwrap());
    let inspection = started(&mut command.0);
    kill_process(pid(inspection), Signal::KILL).unwrap();
    let errors = BufReader::new(command.0.stderr.take().unwrap());
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut lines = errors.lines().map_while(Result::ok);
        lines.try_for_each(|line| sender.send(line))
    });
    let notice = "the inspection process has ended: relations vms, disks";
    let next = || lines.recv_timeout(Duration::from_secs(60)).expect("a line");
    while !next().contains(notice) {}
    assert!(
        command.0.try_wait().unwrap().is_none(),
        "the command has ended"
    );
    // The summary repeats the message.
    kill_process(pid(command.0.id()), Signal::INT).unwrap();
    while !next().contains("the inspection process has ended") {}
    assert_eq!(command.0.wait().unwrap().code(), Some(130));
}

#[test]
fn counters_of_qemus_end_with_the_inspection_process() {
    if !watchable("counters_of_qemus_end_with_the_inspection_process") {
        return;
    }
    let mut command = live(&["query", "--for", "120s", "select * from blockstats"]);
    let inspection = started(&mut command);
    kill_process(pid(inspection), Signal::KILL).unwrap();
    let output = CommandOutput::of(command.wait_with_output().unwrap());
    assert_eq!(output.code, 1, "{}", output.err);
    let why = "QEMU's counters are no longer polled: the inspection process has ended";
    assert!(output.err.contains(why), "{}", output.err);
}

#[test]
fn it_inherits_neither_descriptors_nor_variables() {
    if !watchable("it_inherits_neither_descriptors_nor_variables") {
        return;
    }
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec 9</dev/zero; exec \"$0\" query --no-fold \"$1\""]);
    shell.args([env!("CARGO_BIN_EXE_weir"), OF_VMS]);
    shell
        .env("WEIR_SECRET", "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut command = shell.spawn().unwrap();
    let inspection = started(&mut command);
    let variables = fs::read(format!("/proc/{inspection}/environ")).unwrap();
    let descriptors = fs::read_dir(format!("/proc/{inspection}/fd"))
        .unwrap()
        .flatten();
    let descriptors = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
    let descriptors: Vec<PathBuf> = descriptors.collect();
    command.kill().unwrap();
    command.wait().unwrap();
    let variables = String::from_utf8_lossy(&variables).into_owned();
    for variable in variables.split_terminator('\0') {
        let name = variable.split('=').next().unwrap();
        let known = ["PATH", "LD_LIBRARY_PATH", "HOME", "XDG_RUNTIME_DIR"];
        assert!(known.contains(&name), "{variable}");
    }
    let text = |path: &PathBuf| path.display().to_string();
    let of_weirs = ["bpf", "perf_event", "/dev/zero"];
    let inherited = |path: &&PathBuf| of_weirs.iter().any(|name| text(path).contains(name));
    assert_eq!(descriptors.iter().find(inherited), None, "{descriptors:?}");
    assert!(
        descriptors
            .iter()
            .any(|path| text(path).starts_with("socket:")),
        "{descriptors:?}"
    );
}

/// A process that is killed when this is dropped.
struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn it_sees_what_a_process_that_looks_itself_sees() {
    let sleeper = Sleeper(Command::new("sleep").arg("600").spawn().unwrap());
    let sleeping = sleeper.0.id();
    let declared: Declared = format!("nap=pid:{sleeping}").parse().unwrap();
    let watch = |inspector| {
        InventoryWatch::start(&WatchOptions {
            declared: vec![declared.clone()],
            inspector,
            ..WatchOptions::default()
        })
        .unwrap()
    };
    let watches = [watch(None), watch(Some(program()))];
    let look = |watch: &InventoryWatch| {
        let mut seen = Snapshot::clone(&watch.look(ScanScope::All, Duration::from_secs(10)));
        (seen.generation, seen.taken) = (0, 0);
        // Other tests start VMs meanwhile, and their QEMUs answer one of the two watches earlier.
        let vms = seen.vms.iter().position(|vm| vm.name == Symbol::new("nap"));
        let sleeper_vm = vms.expect("it is declared") as u32;
        seen.vms.retain(|vm| vm.name == Symbol::new("nap"));
        seen.pids.retain(|_, vm| *vm == sleeper_vm);
        seen.pids.values_mut().for_each(|vm| *vm = 0);
        seen.disks.clear();
        seen.servers.clear();
        seen.cgroups.clear();
        seen.monitors.clear();
        seen.conflicts.clear();
        seen.remarks.clear();
        // Start times are relative to the creation of each of the two.
        seen.vms.iter_mut().for_each(|vm| vm.started = None);
        seen
    };
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let [here, there] = watches.each_ref().map(|watch| look(watch));
        assert!(there.pids.contains_key(&sleeping));
        if here == there {
            break;
        }
        // Other tests create devices meanwhile.
        assert!(Instant::now() < until, "{here:#?}\n{there:#?}");
    }
    let generation = watches[1].generation();
    drop(sleeper);
    within("end of the process in the inventory", || {
        let seen = watches[1].look(ScanScope::Pid(sleeping), Duration::from_secs(10));
        let is_gone = !seen.pids.contains_key(&sleeping) && seen.generation > generation;
        is_gone.then_some(())
    });
}

#[test]
fn what_is_no_request_ends_it() {
    let refused = |kind, first: &dyn Fn(&mut serde_json::Value)| {
        let mut request = serde_json::json!({});
        first(&mut request);
        let process = Inspection::start(&program()).unwrap();
        let mut conversation = process.converse(kind, &request, None).unwrap();
        let answer = conversation.answer::<serde_json::Value>();
        assert_eq!(answer.unwrap_err().to_string(), "has ended", "{request}");
        // Its other connections end too.
        within("end", || {
            let other = process.converse(
                ConversationKind::Polls,
                &PollsRequest { histograms: false },
                None,
            );
            other
                .and_then(|mut other| other.request(&()))
                .is_err()
                .then_some(())
        });
    };
    refused(ConversationKind::Inventory, &|request| {
        *request = serde_json::json!("look")
    });
    // Valid except for an additional field.
    let polls = PollsRequest { histograms: false };
    refused(ConversationKind::Polls, &|request| {
        *request = serde_json::to_value(&polls).unwrap();
        request["execute"] = "quit".into();
    });
    refused(ConversationKind::Disks, &|request| {
        request["pid"] = (-1).into()
    });
    let of_vm = OfVm { pid: 1 };
    refused(ConversationKind::Memory, &|request| {
        *request = serde_json::to_value(&of_vm).unwrap();
        request["path"] = "/proc/1/mem".into();
    });
    let declared = Begin {
        root: "/".into(),
        declared: vec!["nonsense".into()],
    };
    refused(ConversationKind::Inventory, &|request| {
        *request = serde_json::to_value(&declared).unwrap()
    });
    let output = run(&["inspection"]);
    assert_eq!(
        output.code, 1,
        "standard input is no socket: {}",
        output.err
    );
}

/// The first inventory begins before the privileges are dropped. A later one could name a directory
/// tree that an attacker has prepared.
#[test]
fn a_second_inventory_ends_it() {
    let process = Inspection::start(&program()).unwrap();
    let begin = Begin {
        root: "/".into(),
        declared: Vec::new(),
    };
    let mut first = process
        .converse(ConversationKind::Inventory, &begin, None)
        .unwrap();
    first.request(&vec![ScanScope::All]).unwrap();
    SnapshotReceiver::default().read(first.socket()).unwrap();
    // The process may end before it receives where to begin.
    let refused = process
        .converse(ConversationKind::Inventory, &begin, None)
        .and_then(|mut second| second.answer::<serde_json::Value>().map(drop))
        .unwrap_err();
    assert_eq!(refused.to_string(), "has ended");
    within("end of the first", || {
        first.request(&vec![ScanScope::All]).is_err().then_some(())
    });
}

#[test]
fn only_vms_of_its_inventory_have_disks_and_memory() {
    let process = Inspection::start(&program()).unwrap();
    let of_us = OfVm {
        pid: std::process::id(),
    };
    for kind in [ConversationKind::Disks, ConversationKind::Memory] {
        let mut conversation = process.converse(kind, &of_us, None).unwrap();
        assert!(!conversation.answer::<bool>().unwrap());
    }
    let mut memory = process
        .converse(ConversationKind::Memory, &of_us, None)
        .unwrap();
    assert!(!memory.answer::<bool>().unwrap());
    let path = c"/machine/peripheral/disk0".as_ptr();
    let pointer = &raw const path as u64;
    memory.request(&pointer).unwrap();
    assert_eq!(
        memory.answer::<Vec<String>>().unwrap(),
        Vec::<String>::new()
    );
}
