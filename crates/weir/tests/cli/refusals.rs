//! Live commands with CAP_BPF and CAP_PERFMON alone, where all of them work, and where the kernel
//! refuses BPF programs: each reports the cause and the remedy in one sentence.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use weir_testing::{LoopDisk, wait_until};

use crate::agent::monitor::{Monitor, UNPRIVILEGED_UID, with_rights};
use crate::live::{loop_disk, watchable};
use crate::support::{CommandOutput, Scratch, run, skipped};

const BINARY: &str = env!("CARGO_BIN_EXE_weir");

/// A query of every request, with its disk.
const EVERY_REQUEST: &str = "select pdisk, op from IO";

/// The arguments of each command that observes live I/O, without those that limit it; `{}` is a
/// folder for its files.
const LIVE_COMMANDS: &[&[&str]] = &[
    &["query", EVERY_REQUEST],
    &["query", "--no-fold", EVERY_REQUEST],
    &[
        "query",
        "select pdisk, comm, latency from IO where latency > 0",
    ],
    &[
        "query",
        "select pdisk, count(*) from IO [range 200 ms slide 200 ms] group by pdisk",
    ],
    &["run", "{}/script"],
    &["top", "-b"],
    &["iostat", "0.5"],
    &["hist", "--json"],
    &["characterise"],
    &["record", "-o", "{}/io.parquet"],
    &["diskstats", "{}/tree", "--keep"],
];

/// A folder that the other user may write to, with the script of [`LIVE_COMMANDS`].
fn folder() -> Scratch {
    let scratch = Scratch::new();
    scratch.write("script", "query : select pdisk, op from IOstream [now];\n");
    std::os::unix::fs::chown(scratch.path(), Some(UNPRIVILEGED_UID), None).unwrap();
    scratch
}

/// `args` in `scratch`, appended to the command that `started_by` starts.
fn command(mut started_by: Command, scratch: &Scratch, args: &[&str]) -> Command {
    let folder = scratch.path().display().to_string();
    started_by
        .arg(BINARY)
        .args(args.iter().map(|arg| arg.replace("{}", &folder)))
        .current_dir(scratch.path())
        .env("RUNTIME_DIRECTORY", &folder)
        .stdin(Stdio::null());
    started_by
}

/// How long a command runs until it has reported requests. `weir top` prints pages at whole
/// seconds, and the first may be of a second without requests.
pub fn run_time(command: &str) -> &'static str {
    match command {
        "top" => "3500ms",
        _ => "1500ms",
    }
}

/// Reads the disk directly until the value is dropped.
pub fn while_read<T>(disk: &LoopDisk, run: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    let source = format!("if={}", disk.path());
    /// Ends the reads, also when the test fails.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    thread::scope(|scope| {
        let _end = End(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let args = ["of=/dev/null", "bs=64k", "count=64", "iflag=direct"];
                let mut read = Command::new("dd");
                let read = read.arg(&source).args(args).stderr(Stdio::null());
                assert!(read.status().unwrap().success());
            }
        });
        run()
    })
}

#[test]
fn each_live_command_works_with_cap_bpf_and_cap_perfmon_alone() {
    let test = "each_live_command_works_with_cap_bpf_and_cap_perfmon_alone";
    let rights = || with_rights(&["bpf", "perfmon"]);
    let can_change = rights().arg("true").status();
    if !can_change.is_ok_and(|status| status.success()) {
        return skipped(test, "setpriv cannot change the capabilities");
    }
    let Some(disk) = watchable(test).then(|| loop_disk(test)).flatten() else {
        return;
    };
    let name = disk.path().trim_start_matches("/dev/");
    let scratch = folder();
    while_read(&disk, || {
        for args in LIVE_COMMANDS {
            let limits = ["--device", disk.path(), "--for", run_time(args[0])];
            let args = [*args, &limits].concat();
            let output = CommandOutput::of(command(rights(), &scratch, &args).output().unwrap());
            assert_eq!(output.code, 0, "{args:?}: {}", output.err);
            assert!(
                !output.err.contains("ermission denied"),
                "{args:?}: {}",
                output.err
            );
            let found = match args[0] {
                "record" => {
                    let recording = scratch.path().join("io.parquet").display().to_string();
                    run(&["query", "--from", &recording, EVERY_REQUEST]).fine()
                }
                "diskstats" => fs::read_to_string(scratch.path().join("tree/diskstats")).unwrap(),
                _ => output.out,
            };
            assert!(found.contains(name), "{args:?}: {found}");
        }
        the_exporter_reports(command(rights(), &scratch, &["exporter"]), &disk);
        for (verb, found) in [("-s", ""), ("-p", name), ("-x", "")] {
            let which = if verb == "-p" { &["ioLength"][..] } else { &[] };
            let args = [&["hist", verb], which].concat();
            wait_until("the histograms have counted the disk", || {
                let output = command(rights(), &scratch, &args).output().unwrap();
                CommandOutput::of(output).fine().contains(found)
            });
        }
        let doctor = command(rights(), &scratch, &["doctor", "--json"]).output();
        let page: serde_json::Value = serde_json::from_slice(&doctor.unwrap().stdout).unwrap();
        assert_eq!(page["live"], true, "{page}");
    });
    let (scratch, monitor) = (Scratch::new(), Monitor::start());
    let agent = monitor.agent_with(&scratch, &["bpf", "perfmon"]);
    monitor.run(1, EVERY_REQUEST);
    while_read(&disk, || {
        monitor.until("requests of the disk are sent", |received| {
            assert!(received.failed.is_empty(), "{:?}", received.failed);
            received.count(1) > 0
        });
    });
    agent.signal("TERM");
    agent.end();
}

/// The metrics of the exporter include the disk.
fn the_exporter_reports(mut exporter: Command, disk: &LoopDisk) {
    let args = [
        "--listen",
        "127.0.0.1:0",
        "--device",
        disk.path(),
        "--for",
        "60s",
    ];
    let mut child = exporter.args(args).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    stderr.read_line(&mut line).unwrap();
    let address = line.split('/').nth(2).unwrap_or_else(|| panic!("{line}"));
    wait_until("the disk is in the metrics", || {
        let mut stream = TcpStream::connect(address).unwrap();
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.contains(disk.path())
    });
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A restriction of BPF.
struct Obstacle {
    what: &'static str,
    /// The command that starts another one so.
    starter: fn() -> Command,
    /// What weir reports.
    sentence: &'static str,
}

const OBSTACLES: &[Obstacle] = &[
    Obstacle {
        what: "no capabilities",
        starter: || with_rights(&[]),
        sentence: "permission denied: CAP_BPF and CAP_PERFMON are missing; run as root, or \
                   grant CAP_BPF and CAP_PERFMON",
    },
    Obstacle {
        what: "only CAP_BPF",
        starter: || with_rights(&["bpf"]),
        sentence: "permission denied: CAP_PERFMON is missing; run as root, or grant \
                   CAP_BPF and CAP_PERFMON",
    },
    Obstacle {
        what: "only CAP_PERFMON",
        starter: || with_rights(&["perfmon"]),
        sentence: "permission denied: CAP_BPF is missing; run as root, or grant CAP_BPF \
                   and CAP_PERFMON",
    },
    Obstacle {
        what: "an unprivileged container",
        starter: || {
            let mut command = with_rights(&[]);
            command.args(["unshare", "-Urm"]);
            command
        },
        sentence: "permission denied: the capabilities of a user namespace (an \
                   unprivileged container) do not permit BPF; run weir on the host, or in a \
                   container that has CAP_BPF and CAP_PERFMON and no user namespace",
    },
    Obstacle {
        what: "a container without type information",
        starter: || {
            let hide = "mount -t tmpfs none /sys/kernel/btf && exec \"$0\" \"$@\"";
            let mut command = Command::new("unshare");
            command.args(["-m", "sh", "-c", hide]);
            command
        },
        sentence: "live I/O cannot be observed: the kernel's type information (BTF) is \
                   missing: /sys/kernel/btf/vmlinux: no such file; run a kernel with \
                   CONFIG_DEBUG_INFO_BTF=y; in a container, mount the host's /sys; use --from \
                   FILE to query a recording",
    },
];

#[test]
fn each_live_command_reports_why_bpf_is_refused() {
    let test = "each_live_command_reports_why_bpf_is_refused";
    let servers: [&[&str]; 2] = [&["exporter", "--listen", "127.0.0.1:0"], &["hist", "-s"]];
    for obstacle in OBSTACLES {
        let (what, starter) = (obstacle.what, obstacle.starter);
        let made = starter().arg("true").status();
        if !made.is_ok_and(|status| status.success()) {
            skipped(test, format!("{what} cannot be made here"));
            continue;
        }
        let scratch = folder();
        let run =
            |args: &[&str]| CommandOutput::of(command(starter(), &scratch, args).output().unwrap());
        for args in LIVE_COMMANDS.iter().chain(&servers) {
            let CommandOutput { out, err, code } = run(args);
            assert_eq!((code, out.as_str()), (1, ""), "{what}: {args:?}: {err}");
            let mut lines = err.lines();
            // A service prints the time instead of the name.
            let first = lines.next().unwrap_or_default();
            assert!(
                first.ends_with(obstacle.sentence),
                "{what}: {args:?}: {err}"
            );
            let hints = lines.all(|line| line.contains("`weir doctor` lists"));
            assert!(hints, "{what}: {args:?}: {err}");
        }
        let CommandOutput { out, err, code } = run(&["doctor"]);
        assert_eq!((code, err.as_str()), (1, ""), "{what}: {out}");
        let verdict = out.trim_end().lines().last().unwrap();
        let (_, cause) = obstacle.sentence.rsplit_once("d: ").expect("a cause");
        let (cause, _) = cause.split_once(';').expect("a remedy");
        assert!(verdict.contains(cause), "{what}: {verdict}");
    }
}
