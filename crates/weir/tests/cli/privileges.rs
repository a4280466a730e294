//! The privileges of the threads of a running command, as the kernel reports them for each thread:
//! after a command has started to observe live I/O, only its inspection process has privileges. It
//! reads the processes of other users and polls QEMUs, and has no more privileges than these need.

use std::collections::HashMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::agent::monitor::Monitor;
use crate::inspection::inspection_of;
use crate::live::watchable;
use crate::support::{Scratch, skipped, weir};

/// Threads that read the answers of the inspection process, which does the privileged work.
const READING: &[&str] = &["inventory", "qmp"];

/// CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE.
const TO_ASK: u64 = 1 << 1 | 1 << 2 | 1 << 19;

/// The same with CAP_SYS_RESOURCE, CAP_PERFMON, CAP_BPF.
const TO_OPEN: u64 = TO_ASK | 1 << 24 | 1 << 38 | 1 << 39;

/// Needed to read the tables of the device mapper, once for each inventory.
const SYS_ADMIN: u64 = 1 << 21;

/// One status file, as fields by name.
pub struct Thread(HashMap<String, String>);

impl Thread {
    fn all(pid: u32) -> Vec<Thread> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten();
        let statuses = tasks
            .flatten()
            .map(|task| fs::read_to_string(task.path().join("status")));
        // A thread that has ended meanwhile has none.
        let statuses = statuses.filter_map(Result::ok);
        let field = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_owned(), value.trim().to_owned()))
        };
        statuses
            .map(|text| Thread(text.lines().filter_map(field).collect()))
            .collect()
    }

    fn name(&self) -> &str {
        &self.0["Name"]
    }

    fn set(&self, name: &str) -> u64 {
        u64::from_str_radix(&self.0[name], 16).unwrap()
    }

    /// The privileges beyond `capabilities` and `users`, as text.
    fn faults(&self, capabilities: u64, users: &[&str]) -> Vec<String> {
        self.faults_within(capabilities, capabilities, users)
    }

    /// The same with a given bounding set: without CAP_SETPCAP it cannot be reduced, and
    /// no_new_privs prevents programs from gaining its capabilities.
    fn faults_within(&self, capabilities: u64, bounding: u64, users: &[&str]) -> Vec<String> {
        let mut faults = Vec::new();
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            let most = if set == "CapBnd" {
                bounding
            } else {
                capabilities
            };
            if self.set(set) & !most != 0 {
                faults.push(format!("{}: {set} is {:x}", self.name(), self.set(set)));
            }
        }
        for (field, expected) in [("NoNewPrivs", "1"), ("Seccomp", "2")] {
            if self.0[field] != expected {
                faults.push(format!("{}: {field} is {}", self.name(), self.0[field]));
            }
        }
        for field in ["Uid", "Gid"] {
            if !self.0[field]
                .split_whitespace()
                .all(|id| users.contains(&id))
            {
                faults.push(format!("{}: {field} is {}", self.name(), self.0[field]));
            }
        }
        faults
    }
}

/// Waits until no thread of `child` has more privileges than `faults` allows, and a thread named
/// `present` and another one exist.
fn assert_reduced(child: &mut Child, present: &str, faults: impl Fn(&Thread) -> Vec<String>) {
    assert!(child.try_wait().unwrap().is_none(), "it has ended");
    assert_process_reduced(child.id(), present, faults);
}

fn assert_process_reduced(pid: u32, present: &str, faults: impl Fn(&Thread) -> Vec<String>) {
    let started = Instant::now();
    loop {
        let threads = Thread::all(pid);
        let is_dead = |thread: &Thread| thread.0["State"].starts_with('Z');
        assert!(!threads.iter().all(is_dead), "it has ended");
        let there = threads.iter().any(|thread| thread.name() == present);
        let found: Vec<String> = threads.iter().flat_map(&faults).collect();
        if there && threads.len() > 1 && found.is_empty() {
            return;
        }
        let names: Vec<&str> = threads.iter().map(Thread::name).collect();
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "of threads {names:?}: {found:#?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A command that is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = Command::new("kill")
            .args(["-INT", &self.0.id().to_string()])
            .status();
        let _ = self.0.wait();
    }
}

/// Whether the test runs as root on a host with live I/O; otherwise `test` is skipped.
fn is_root(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        skipped(test, "takes root, whose rights are given up");
        return false;
    }
    watchable(test)
}

/// The overflow user, who owns nothing.
fn overflow_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap();
    id.trim().to_owned()
}

/// The threads of each live command run as a user who owns nothing, and those of its inspection
/// process have the privileges for inspection only. A query that names no VM has no inspection
/// process.
#[test]
fn no_thread_of_a_live_command_keeps_more_than_it_needs() {
    let test = "no_thread_of_a_live_command_keeps_more_than_it_needs";
    if !is_root(test) {
        return;
    }
    let overflow = overflow_id();
    let scratch = Scratch::new();
    let file = |name: &str| scratch.path().join(name).display().to_string();
    let (recording, page, tree) = (file("x.parquet"), file("x.html"), file("tree"));
    let states = file("states");
    let of_vms = "select vm, count(*) from IO [range 1 s slide 1 s] group by vm";
    let of_ops = "select op, count(*) from IO [range 1 s slide 1 s] group by op";
    let commands: &[(&str, &[&str])] = &[
        ("inventory", &["query", "--no-fold", of_vms]),
        ("weir", &["query", of_ops]),
        ("qmp", &["query", "select * from blockstats"]),
        ("inventory", &["top", "-b", "1"]),
        ("inventory", &["iostat", "1"]),
        ("inventory", &["hist", "--for", "120s"]),
        ("inventory", &["record", "-o", &recording]),
        ("weir-http", &["exporter", "--listen", "127.0.0.1:0"]),
        (
            "inventory",
            &["characterise", "--for", "120s", "--html", &page],
        ),
        ("inventory", &["correlate", "--for", "120s"]),
        ("inventory", &["advise", "--for", "120s"]),
        ("inventory", &["diskstats", &tree]),
        ("inventory", &["alert", "watch", "--rule", "disk_errors"]),
        (
            "inventory",
            &["alert", "watch", "--webhook", "http://127.0.0.1:9/"],
        ),
        ("inventory", &["alert", "watch", "--state", &states]),
    ];
    for (present, args) in commands {
        let mut command = weir(args);
        command.env("RUNTIME_DIRECTORY", scratch.path());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut running = Running(command.spawn().unwrap());
        let named = args[0] == "diskstats" || args.contains(&"--state");
        assert_reduced(&mut running.0, present, |thread| {
            match named && !READING.contains(&thread.name()) {
                // Its files are replaced by name, in a directory of root.
                true => thread.faults(0, &["0"]),
                false => thread.faults(0, &[&overflow]),
            }
        });
        // A query that names no VM has no inspection process.
        let inspection = inspection_of(running.0.id());
        assert_eq!(inspection.is_none(), *present == "weir", "{args:?}");
        if let Some(pid) = inspection {
            assert_process_reduced(pid, "monitors", |thread| thread.faults(TO_ASK, &["0"]));
        }
    }
}

/// An agent attaches further taps for new queries, so its threads keep the privileges for that,
/// except the thread that reads from the network and those that read events.
#[test]
fn threads_of_an_agent_that_read_the_network_and_events_have_no_rights() {
    let test = "threads_of_an_agent_that_read_the_network_and_events_have_no_rights";
    if !is_root(test) {
        return;
    }
    let (scratch, monitor) = (Scratch::new(), Monitor::start());
    let mut agent = monitor.agent(&scratch, &[]);
    monitor.run(1, "select vm, op from IO");
    monitor.until("a channel runs", |received| {
        received.started.contains_key(&1)
    });
    for present in ["weir-uplink", "tap", "inventory"] {
        assert_reduced(agent.child(), present, |thread| {
            let kept = match thread.name() {
                "weir-uplink" | "tap" => 0,
                name if READING.contains(&name) => 0,
                _ => TO_OPEN,
            };
            thread.faults_within(kept, TO_OPEN, &["0"])
        });
    }
    // Without CAP_SETPCAP its bounding set is that of the agent.
    let inspection = inspection_of(agent.child().id()).expect("VMs are named");
    assert_process_reduced(inspection, "monitors", |thread| {
        thread.faults_within(TO_ASK, TO_OPEN, &["0"])
    });
}

/// The background collector attaches further taps on request.
#[test]
fn threads_of_the_collector_keep_what_opening_taps_takes() {
    let test = "threads_of_the_collector_keep_what_opening_taps_takes";
    if !is_root(test) {
        return;
    }
    let scratch = Scratch::new();
    let hist = |args: &[&str]| {
        let mut command = weir(&[&["hist"], args].concat());
        let output = command.env("RUNTIME_DIRECTORY", scratch.path()).output();
        output.unwrap()
    };
    assert!(hist(&["-s"]).status.success());
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let folder = format!("RUNTIME_DIRECTORY={}", scratch.path().display());
    let ours = |pid: &u32| {
        let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let has = |bytes: &[u8], text: &str| bytes.split(|b| *b == 0).any(|w| w == text.as_bytes());
        has(&read("cmdline"), "hist-collector") && has(&read("environ"), &folder)
    };
    let pid = pids.into_iter().find(ours).expect("a collector runs");
    let faults: Vec<String> = Thread::all(pid)
        .iter()
        .flat_map(|thread| {
            let kept = match thread.name() {
                "histograms" => 0,
                name if READING.contains(&name) => 0,
                _ => TO_OPEN | SYS_ADMIN,
            };
            thread.faults_within(kept, TO_OPEN | SYS_ADMIN, &["0"])
        })
        .collect();
    let ended = hist(&["-x"]);
    assert_eq!(faults, Vec::<String>::new());
    assert!(ended.status.success());
}
