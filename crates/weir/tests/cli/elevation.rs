//! A binary whose file has capabilities, run by an unprivileged user: it shows live I/O, and has no
//! more access to the files of other users than that user.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::live::watchable;
use crate::support::{CommandOutput, Scratch, requests, skipped};

/// The capabilities that weir requests anywhere, and one that opens every file for writing.
const CAPABILITIES: &str =
    "cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search,cap_dac_override+ep";

/// Bits of CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE, which the inventory's thread raises.
const READING: u64 = 1 << 2 | 1 << 19;

/// A copy of the binary with mode `mode`; `None`, with the reason in the log, where the test cannot
/// run.
fn copy(test: &str, scratch: &Scratch, mode: u32) -> Option<PathBuf> {
    if !rustix::process::geteuid().is_root() {
        skipped(test, "it takes root to set capabilities");
        return None;
    }
    let flags = statvfs(scratch.path()).unwrap().f_flag;
    if flags.contains(StatVfsMountFlags::NOSUID) {
        skipped(test, "the temporary folder is mounted nosuid");
        return None;
    }
    for tool in ["setcap", "setpriv", "timeout"] {
        if Command::new(tool).arg("--help").output().is_err() {
            skipped(test, format!("{tool} is not installed"));
            return None;
        }
    }
    let path = scratch.path().join("weir");
    fs::copy(env!("CARGO_BIN_EXE_weir"), &path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    Some(path)
}

fn set_capabilities(test: &str, binary: &Path) -> bool {
    let set = Command::new("setcap")
        .arg(CAPABILITIES)
        .arg(binary)
        .output();
    let set = set.unwrap();
    if !set.status.success() {
        skipped(test, String::from_utf8_lossy(&set.stderr));
    }
    set.status.success()
}

/// `binary ARGS` as the unprivileged user; a server that starts is ended after a while.
fn as_user(binary: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .args(["timeout", "60"])
        .arg(binary)
        .args(args)
        .stdin(Stdio::null())
        .current_dir("/");
    command
}

fn refused(binary: &Path, args: &[&str]) {
    let output = CommandOutput::of(as_user(binary, args).output().unwrap());
    assert_eq!(output.code, 1, "{args:?}: {}", output.err);
    assert!(
        output.err.contains("ermission denied"),
        "{args:?}: {}",
        output.err
    );
}

#[test]
fn capabilities_of_the_file_open_no_file_of_other_users() {
    const TEST: &str = "capabilities_of_the_file_open_no_file_of_other_users";
    let scratch = Scratch::new();
    let Some(binary) = copy(TEST, &scratch, 0o755) else {
        return;
    };
    if !set_capabilities(TEST, &binary) {
        return;
    }
    let trace = scratch.write("secret/trace.csv", &requests(20));
    let image = scratch.write("secret/image.raw", "");
    fs::File::options()
        .write(true)
        .open(&image)
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    for path in [&trace, &image] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let inside = |name: &str| scratch.path().join("secret").join(name);
    let target = inside("target").to_str().unwrap().to_owned();
    let disk = format!("unix:{target}");
    refused(&binary, &["tapdisk", "--image", &image, "--nbd", &disk]);
    let read_only = ["--read-only", "--nbd", "unix:/tmp/weir-elevation"];
    let mut tapdisk = vec!["tapdisk", "--image", &image];
    tapdisk.extend(read_only);
    refused(&binary, &tapdisk);
    refused(&binary, &["query", "--from", &trace, "select op from IO"]);
    refused(&binary, &["convert", &trace, "/tmp/weir-elevation.parquet"]);
    refused(&binary, &["record", "--for", "10ms", "-o", &target]);
    let query = "select op from IO";
    refused(&binary, &["query", "--for", "10ms", "-o", &target, query]);
    assert!(!inside("target").exists());
}

#[test]
fn capabilities_of_the_file_show_live_io_and_are_in_effect_nowhere_else() {
    const TEST: &str = "capabilities_of_the_file_show_live_io_and_are_in_effect_nowhere_else";
    let scratch = Scratch::new();
    let Some(binary) = copy(TEST, &scratch, 0o755) else {
        return;
    };
    if !watchable(TEST) || !set_capabilities(TEST, &binary) {
        return;
    }
    let query = "select vm, count(*) from IO [range 100 ms slide 100 ms] group by vm";
    let mut child = as_user(&binary, &["query", "--for", "2s", query])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut seen = Vec::new();
    let until = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() && Instant::now() < until {
        seen.extend(effective(&binary));
        thread::sleep(Duration::from_millis(20));
    }
    let output = CommandOutput::of(child.wait_with_output().unwrap());
    assert_eq!(output.code, 0, "{}", output.err);
    let main = |thread: &&Effective| thread.name == "weir" && !thread.loading();
    assert!(
        seen.iter().any(|thread| main(&thread)),
        "no thread was seen"
    );
    for thread in seen.iter().filter(|thread| !thread.loading()) {
        assert_eq!(thread.set & !READING, 0, "{thread:?}");
    }
    let reads = |thread: &Effective| thread.name == "inventory" && thread.set == READING;
    assert!(
        seen.iter().any(reads),
        "the inventory may not read: {seen:?}"
    );
    // `weir doctor` reports that other users may execute it, and stops reporting it when they may
    // not.
    let doctor = |binary: &Path| {
        let output = as_user(binary, &["doctor", "--json"]).output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let facts = report["facts"].as_array().unwrap().clone();
        let own = facts.into_iter().find(|f| f["name"] == "capabilities");
        own.unwrap()
    };
    let open = doctor(&binary);
    assert_eq!(open["status"], "degraded", "{open}");
    let remedy = open["remedy"].as_str().unwrap();
    assert!(
        remedy.contains("chgrp") && remedy.contains("0750"),
        "{open}"
    );
    std::os::unix::fs::chown(&binary, Some(0), Some(65534)).unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o750)).unwrap();
    assert!(set_capabilities(TEST, &binary));
    assert_eq!(doctor(&binary)["status"], "ok");
}

#[test]
fn a_set_user_id_binary_does_not_run() {
    const TEST: &str = "a_set_user_id_binary_does_not_run";
    let scratch = Scratch::new();
    for mode in [0o4755, 0o2755] {
        let Some(binary) = copy(TEST, &scratch, mode) else {
            return;
        };
        let output = CommandOutput::of(as_user(&binary, &["functions"]).output().unwrap());
        assert_eq!(output.code, 1, "{}", output.out);
        assert!(
            output.err.contains("set-user-ID or set-group-ID"),
            "{}",
            output.err
        );
    }
}

/// The effective set of a thread.
#[derive(Debug)]
struct Effective {
    name: String,
    set: u64,
}

impl Effective {
    /// Whether programs are being loaded; CAP_BPF is effective during that time only.
    fn loading(&self) -> bool {
        self.set >> 39 & 1 == 1
    }
}

/// The effective sets of all threads that run `binary`.
fn effective(binary: &Path) -> Vec<Effective> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let ours =
        processes.filter(|p| fs::read_link(p.path().join("exe")).is_ok_and(|exe| exe == binary));
    let tasks = ours.flat_map(|p| fs::read_dir(p.path().join("task")).into_iter().flatten());
    let set = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let field = |key: &str| status.lines().find_map(|l| l.strip_prefix(key));
        Some(Effective {
            name: field("Name:\t")?.to_owned(),
            set: u64::from_str_radix(field("CapEff:\t")?, 16).ok()?,
        })
    };
    tasks.flatten().filter_map(set).collect()
}
