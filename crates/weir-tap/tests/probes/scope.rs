//! Probes of one process or of a cgroup, at files that only its processes see: each program prints
//! how often it called the function or passed the probe.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use weir_model::{ProbeDefinition, ProbeScope};
use weir_tap::probe::ProbeStream;
use weir_testing::{Scratch, run, skip};

use super::{Watched, all, definition, int, usdt, watch};

/// Calls a function as often as its argument states, when its input ends. `PADDING` moves the
/// function.
const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>

volatile long done;

__attribute__((noinline, section(".text.a"))) void padding(void)
{
	asm volatile(".skip " PADDING ", 0x90");
}

__attribute__((noinline, section(".text.b"))) void work(long step)
{
	done += step;
}

int main(int argc, char **argv)
{
	long i, steps = atol(argv[1]);

	getchar();
	for (i = 0; i < steps; i++)
		work(1);
	printf("%ld\n", done);
	return argc != 2;
}
"#;

/// Compiles `source` to `file`.
fn compile(source: &str, file: &Path, more: &[&str]) -> Result<(), String> {
    fs::create_dir_all(file.parent().expect("in a directory")).expect("a temporary directory");
    let text = file.with_extension("c");
    fs::write(&text, source).expect("a temporary file");
    let (text, file) = (text.display().to_string(), file.display().to_string());
    let arguments = ["-O1", "-fno-omit-frame-pointer", "-o", &file, &text];
    let compiled = run("gcc", &[&arguments[..], more].concat());
    compiled.map(|_| ()).map_err(|error| error.to_string())
}

/// Two programs `work` whose functions are at different places, in directories `a` and `b`.
fn programs(scratch: &Scratch) -> Result<[PathBuf; 2], String> {
    let directories = ["a", "b"].map(|name| scratch.path().join(name));
    for (directory, padding) in directories.iter().zip(["16", "4096"]) {
        let padding = format!("-DPADDING=\"{padding}\"");
        compile(SOURCE, &directory.join("work"), &[&padding])?;
    }
    Ok(directories)
}

/// A program that waits for the end of its input.
struct Waiting(Child);

impl Waiting {
    /// Starts a script of sh that ends with the program; `is_started` is true when it runs.
    fn start(script: &str, name: &str) -> Result<Waiting, String> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().map_err(|error| error.to_string())?;
        let mut waiting = Waiting(child);
        let comm = format!("/proc/{}/comm", waiting.pid());
        for _ in 0..500 {
            if fs::read_to_string(&comm).is_ok_and(|comm| comm.trim() == name) {
                return Ok(waiting);
            }
            if waiting.0.try_wait().is_ok_and(|status| status.is_some()) {
                return Err(format!("`{script}` ended"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Err(format!("`{script}` does not start {name}"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Ends its input; the number that it prints.
    fn finish(mut self) -> i64 {
        drop(self.0.stdin.take());
        let mut text = String::new();
        let mut output = self.0.stdout.take().expect("a pipe");
        output.read_to_string(&mut text).expect("text");
        text.trim().parse().expect("a number")
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A cgroup (v2) of the test with `a` and `b` below it.
struct TestCgroup {
    directory: PathBuf,
    /// Its path below the root.
    path: String,
}

impl TestCgroup {
    fn new() -> Result<TestCgroup, String> {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("Linux");
        let of_line = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            (words[2] == "cgroup2").then(|| words[1].to_owned())
        };
        let root = mounts.lines().find_map(of_line);
        let root = root.ok_or("cgroup v2 is not mounted")?;
        let path = format!("/weir-test-{}", std::process::id());
        let directory = PathBuf::from(format!("{root}{path}"));
        for name in ["", "a", "b"] {
            fs::create_dir(directory.join(name)).map_err(|error| error.to_string())?;
        }
        Ok(TestCgroup { directory, path })
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        for name in ["a", "b", ""] {
            let _ = fs::remove_dir(self.directory.join(name));
        }
    }
}

fn of_process(probe: &str, pid: u32) -> ProbeDefinition {
    let scope = ProbeScope {
        pid: Some(pid),
        cgroup: None,
    };
    ProbeDefinition {
        scope,
        ..definition(probe)
    }
}

fn of_cgroup(probe: &str, path: &str) -> ProbeDefinition {
    let scope = ProbeScope {
        pid: None,
        cgroup: Some(path.into()),
    };
    ProbeDefinition {
        scope,
        ..definition(probe)
    }
}

/// The number of hits of each of `pids`, and that of all hits.
fn hits(watched: Watched, pids: &[u32]) -> (Vec<i64>, i64) {
    let at = watched.at("pid");
    let seen = watched.seen();
    assert_eq!(seen.total("events_lost", None), 0);
    let rows = &seen.rows[0];
    let of = |pid: &u32| {
        rows.iter()
            .filter(|row| int(&row[at]) == i64::from(*pid))
            .count() as i64
    };
    (pids.iter().map(of).collect(), rows.len() as i64)
}

/// What two processes call is each at another file, which this one does not see.
#[test]
fn a_path_is_that_of_the_process() {
    const TEST: &str = "scope of a process";
    let scratch = Scratch::new();
    let directories = match programs(&scratch) {
        Ok(directories) => directories,
        Err(why) => return skip(TEST, why).unwrap_or_default(),
    };
    let seen_at = scratch.path().join("seen");
    fs::create_dir(&seen_at).expect("a temporary directory");
    let file = seen_at.join("work").display().to_string();
    let start = |directory: &Path, steps: i64| {
        let bind = format!("mount --bind {} {}", directory.display(), seen_at.display());
        Waiting::start(&format!("{bind}; exec {file} {steps}"), "work")
    };
    let started = (start(&directories[0], 300), start(&directories[1], 200));
    let (Ok(a), Ok(b)) = started else {
        return skip(TEST, "no mount namespaces").unwrap_or_default();
    };
    let probe = format!("uprobe:{file}:work");
    let missing = ProbeStream::new(&definition(&probe)).expect_err("this process has no such file");
    assert!(missing.message.contains(&file), "{}", missing.message);
    let pids = [a.pid(), b.pid()];
    let [Some(of_a), Some(of_b)] = pids.map(|pid| watch(TEST, &of_process(&probe, pid), all))
    else {
        return;
    };
    // Tracepoints have the same scope.
    let writes = of_process("tp:syscalls:sys_enter_write", pids[0]);
    let writes = watch(TEST, &writes, all).expect("as the others");
    // The other process has the inode through another mount: it is probed without a scope.
    let direct = format!("uprobe:{}:work", directories[0].join("work").display());
    let direct = watch(TEST, &definition(&direct), all).expect("as the others");
    let outside = format!("exec {} 70", directories[0].join("work").display());
    let outside = Waiting::start(&outside, "work").expect("as the others");
    let pids = [pids[0], pids[1], outside.pid()];
    assert_eq!([a.finish(), b.finish(), outside.finish()], [300, 200, 70]);
    assert_eq!(hits(of_a, &pids), (vec![300, 0, 0], 300));
    assert_eq!(hits(of_b, &pids), (vec![0, 200, 0], 200));
    assert_eq!(hits(direct, &pids), (vec![300, 0, 70], 370));
    assert_eq!(hits(writes, &pids), (vec![1, 0, 0], 1));
}

/// The processes of a cgroup have different files under one path, or one file in two overlays.
#[test]
fn a_cgroup_has_the_hits_and_the_files_of_its_processes() {
    const TEST: &str = "scope of a cgroup";
    let scratch = Scratch::new();
    let (directories, cgroup) = match (programs(&scratch), TestCgroup::new()) {
        (Ok(directories), Ok(cgroup)) => (directories, cgroup),
        (Err(why), _) | (_, Err(why)) => return skip(TEST, why).unwrap_or_default(),
    };
    let seen_at = scratch.path().join("seen");
    fs::create_dir(&seen_at).expect("a temporary directory");
    let file = seen_at.join("work").display().to_string();
    let probe = format!("uprobe:{file}:work");
    let empty = ProbeStream::new(&of_cgroup(&probe, &cgroup.path)).expect_err("it is empty");
    assert!(
        empty.message.contains("no process runs"),
        "{}",
        empty.message
    );
    let in_cgroup = |name: &str, mount: &str, steps: i64| {
        let join = format!(
            "echo $$ > {}/{name}/cgroup.procs",
            cgroup.directory.display()
        );
        Waiting::start(&format!("{join}; {mount}; exec {file} {steps}"), "work")
    };
    let bind = |at: usize| {
        format!(
            "mount --bind {} {}",
            directories[at].display(),
            seen_at.display()
        )
    };
    let started = (in_cgroup("a", &bind(0), 300), in_cgroup("b", &bind(1), 200));
    let (Ok(a), Ok(b)) = started else {
        return skip(TEST, "no mount namespaces").unwrap_or_default();
    };
    let outside = format!("exec {} 70", directories[0].join("work").display());
    let outside = Waiting::start(&outside, "work").expect("as the others");
    let pids = [a.pid(), b.pid(), outside.pid()];
    let Some(both) = watch(TEST, &of_cgroup(&probe, &cgroup.path), all) else {
        return;
    };
    let below = format!("{}/b", cgroup.directory.display());
    let of_b = watch(TEST, &of_cgroup(&probe, &below), all).expect("as the other");
    assert_eq!([a.finish(), b.finish(), outside.finish()], [300, 200, 70]);
    assert_eq!(hits(both, &pids), (vec![300, 200, 0], 500));
    assert_eq!(hits(of_b, &pids), (vec![0, 200, 0], 200));

    let overlay = |name: &str| {
        let layer = |part: &str| {
            let layer = scratch.path().join(format!("{name}-{part}"));
            fs::create_dir(&layer).expect("a temporary directory");
            layer.display().to_string()
        };
        let (lower, upper, work) = (directories[0].display(), layer("upper"), layer("work"));
        let layers = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        format!("mount -t overlay overlay -o {layers} {}", seen_at.display())
    };
    let started = (
        in_cgroup("a", &overlay("first"), 30),
        in_cgroup("b", &overlay("second"), 20),
    );
    let (Ok(a), Ok(b)) = started else {
        return skip(TEST, "no overlays").unwrap_or_default();
    };
    let pids = [a.pid(), b.pid()];
    let both = watch(TEST, &of_cgroup(&probe, &cgroup.path), all).expect("as the others");
    assert_eq!([a.finish(), b.finish()], [30, 20]);
    assert_eq!(hits(both, &pids), (vec![30, 20], 50));
}

/// A symbolic link to an absolute path is followed in the root directory of the process.
#[test]
fn links_stay_in_the_root_directory_of_the_process() {
    const TEST: &str = "scope in a root directory";
    let scratch = Scratch::new();
    let root = scratch.path().join("root");
    let program = root.join("weir-test-real/work");
    if let Err(why) = compile(SOURCE, &program, &["-static", "-DPADDING=\"16\""]) {
        return skip(TEST, why).unwrap_or_default();
    }
    std::os::unix::fs::symlink("/weir-test-real/work", root.join("work")).expect("a link");
    let started = Waiting::start(&format!("exec chroot {} /work 40", root.display()), "work");
    let Ok(process) = started else {
        return skip(TEST, "no chroot").unwrap_or_default();
    };
    let pid = process.pid();
    let Some(watched) = watch(TEST, &of_process("uprobe:/work:work", pid), all) else {
        return;
    };
    assert_eq!(process.finish(), 40);
    assert_eq!(hits(watched, &[pid]), (vec![40], 40));
}

/// The counter of a USDT probe enables it in the process of the scope alone.
#[test]
fn a_usdt_probe_is_enabled_in_its_process_alone() {
    const TEST: &str = "scope of a USDT probe";
    let scratch = Scratch::new();
    let program = scratch.path().join("steps");
    if let Err(why) = compile(usdt::SOURCE, &program, &[]) {
        return skip(TEST, why).unwrap_or_default();
    }
    let start = || Waiting::start(&format!("exec {} 50", program.display()), "steps");
    let (Ok(probed), Ok(other)) = (start(), start()) else {
        return skip(TEST, "no mount namespaces").unwrap_or_default();
    };
    let probe = format!("usdt:{}:weir_test:step", program.display());
    let pids = [probed.pid(), other.pid()];
    let Some(watched) = watch(TEST, &of_process(&probe, pids[0]), all) else {
        return;
    };
    assert_eq!([probed.finish(), other.finish()], [100, 0]);
    assert_eq!(hits(watched, &pids), (vec![100, 0], 100));
}

#[test]
fn an_unknown_process_or_cgroup_is_refused() {
    let refused = |definition| ProbeStream::new(&definition).expect_err("unknown").message;
    let process = refused(of_process("tp:sched:sched_switch", 4_000_000_000));
    assert_eq!(process, "there is no process 4000000000");
    let cgroup = refused(of_cgroup("tp:sched:sched_switch", "/weir-test-unknown"));
    assert!(cgroup.contains("cgroup"), "{cgroup}");
}

/// A probe stays at the inode: a program that is replaced is hit by the processes that run the old
/// file, and the end of a process, also by a signal, ends nothing.
#[test]
fn a_replaced_program_and_a_killed_process_end_nothing() {
    const TEST: &str = "scope after an upgrade";
    let scratch = Scratch::new();
    let [old, new] = match programs(&scratch) {
        Ok(directories) => directories.map(|directory| directory.join("work")),
        Err(why) => return skip(TEST, why).unwrap_or_default(),
    };
    let start = |steps: i64| Waiting::start(&format!("exec {} {steps}", old.display()), "work");
    let (Ok(first), Ok(killed)) = (start(300), start(500)) else {
        return skip(TEST, "no mount namespaces").unwrap_or_default();
    };
    let probe = format!("uprobe:{}:work", old.display());
    let Some(watched) = watch(TEST, &definition(&probe), all) else {
        return;
    };
    fs::rename(&new, &old).expect("it replaces the program");
    let second = start(70).expect("as the first");
    let pids = [first.pid(), second.pid(), killed.pid()];
    drop(killed);
    assert_eq!([first.finish(), second.finish()], [300, 70]);
    assert_eq!(hits(watched, &pids), (vec![300, 0, 0], 300));
    // A new definition is of the new file.
    let upgraded = watch(TEST, &definition(&probe), all).expect("as before");
    let third = start(40).expect("as the first");
    let pids = [third.pid()];
    assert_eq!(third.finish(), 40);
    assert_eq!(hits(upgraded, &pids), (vec![40], 40));
}
