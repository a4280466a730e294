//! `weir top`: tables of a recording, and the screen on a pseudo-terminal that script(1) creates.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::live::watched_disk;
use crate::support::{CommandOutput, Scratch, interrupt, requests, run, skipped, weir};

/// The bundled recording.
fn recording() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("samples/fio-loop.parquet")
        .canonicalize()
        .expect("the sample is part of the project")
}

/// The number of requests of a recording, as `weir query` counts them.
fn requests_of(path: &str) -> i64 {
    let args = ["query", "--from", path, "--final", "--format", "csv"];
    let stdout = run(&[&args[..], &["select count(*) from IO"]].concat()).fine();
    let last = stdout.lines().last().and_then(|l| l.rsplit(',').next());
    last.and_then(|n| n.parse().ok()).expect("a count")
}

#[test]
fn every_request_of_a_recording_is_in_a_table() {
    let path = recording();
    let path = path.to_str().unwrap();
    let stdout = run(&["top", "-b", "--json", "--from", path, "500ms"]).fine();
    let mut requests = 0.0;
    let mut tables = 0;
    for line in stdout.lines() {
        let table: serde_json::Value = serde_json::from_str(line).unwrap();
        let number = |value: &serde_json::Value| value.as_f64().unwrap();
        let rows = table["rows"].as_array().unwrap();
        let of_rows: f64 = rows.iter().map(|row| number(&row["iops"])).sum();
        let total = number(&table["totals"]["iops"]);
        assert!((of_rows - total).abs() < 1e-6, "{line}");
        assert_eq!(number(&table["totals"]["rest_iops"]), total, "no VM");
        requests += total * number(&table["interval"]);
        tables += 1;
        for row in rows.iter().filter(|row| row["op"] != "f") {
            let time = |name: &str| number(&row[name]);
            assert!(time("p50") <= time("p99") && time("p99") <= time("max"));
            let parts = time("wait_mean") + time("service_mean");
            assert!((parts / time("mean") - 1.0).abs() < 1e-6, "{row}");
        }
    }
    assert!(tables >= 12, "{tables}");
    assert_eq!(requests.round() as i64, requests_of(path));
}

#[test]
fn a_plain_table_has_the_requested_order_and_count() {
    let path = recording();
    let path = path.to_str().unwrap();
    let stdout = run(&[
        "top",
        "-n",
        "2",
        "--sort",
        "op",
        "--reverse",
        "--from",
        path,
    ])
    .fine();
    assert_eq!(stdout.matches("weir top").count(), 2, "{stdout}");
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(lines[2].starts_with("VM  VDISK  PDISK"), "{stdout}");
    assert!(
        lines[3].contains(" w ") && lines[4].contains(" r "),
        "{stdout}"
    );
    assert!(stdout.contains("not a VM: 100.0 % of IOPS"), "{stdout}");
}

#[test]
fn a_vm_and_a_disk_narrow_the_table() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &requests(2_000));
    let all = run(&["top", "--from", &trace, "1", "1"]).fine();
    assert!(
        all.contains("vm1") && all.contains("not a VM: 0.0 %"),
        "{all}"
    );
    let same = run(&["top", "--from", &trace, "-w", "vm1", "1", "1"]).fine();
    assert_eq!(same, all);
    let none = run(&["top", "--from", &trace, "-w", "it's another"]).fine();
    assert_eq!(none, "", "no table without a line");
}

#[test]
fn the_queries_it_shows_are_those_it_runs() {
    let stdout = run(&["top", "--show-query", "-w", "web", "5"]).fine();
    assert!(stdout.contains("[range 5 s slide 5 s]") && stdout.contains("vm = 'web'"));
    let path = recording();
    for query in stdout.split("\n\n") {
        let from = [
            "query",
            "--format",
            "json",
            "--from",
            path.to_str().unwrap(),
        ];
        // A recording has no counters of QEMU, and stream `weir` has no end.
        let others = ["blockstats", "from weir", "FileIO", "IOpath", "PageCache"];
        let live = others.iter().any(|stream| query.contains(stream));
        let output = match live {
            true => run(&["check", "--", query]),
            false => run(&[&from[..], &["--", query]].concat()),
        };
        output.fine();
    }
    assert_eq!(stdout.split("\n\n").count(), 14);
}

#[test]
fn usage_errors_are_reported() {
    for (args, what) in [
        (&["top", "10ms"][..], "at least 100ms"),
        (&["top", "--sort", "beauty"], "beauty"),
        (&["top", "--json"], "--batch"),
        (&["top", "--speed", "0"], "0.001"),
        (&["top", "--level", "file", "--sort", "depth"], "level file"),
        (&["top", "--sort", "cgroup"], "level block"),
        (&["top", "--level", "guest"], "guest"),
    ] {
        let output = run(args);
        assert_eq!(output.code, 2, "{args:?}");
        assert!(output.err.contains(what), "{args:?}: {}", output.err);
    }
    let output = run(&["top", "--from", "/nowhere.parquet"]);
    assert_eq!(output.code, 1);
    assert!(output.err.contains("/nowhere.parquet"), "{}", output.err);
}

/// The output of `command` to a terminal of 80×24, where each key is pressed after its delay in
/// milliseconds, followed by the output of `stty -a`; otherwise logs that `test` is skipped.
pub fn on_terminal(test: &str, command: &str, keys: &[(u64, &str)]) -> Option<String> {
    let command = format!("stty cols 80 rows 24; {command}; echo code=$?; stty -a");
    let script = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env("TERM", "xterm-256color")
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut script = match script {
        Ok(script) => script,
        Err(error) => {
            skipped(test, format!("script(1) does not run here: {error}"));
            return None;
        }
    };
    let mut terminal = script.stdin.take().unwrap();
    for (millis, key) in keys {
        std::thread::sleep(Duration::from_millis(*millis));
        // The terminal may be closed after a failure of the program; the assertions below report
        // it.
        let _ = terminal.write_all(key.as_bytes());
        let _ = terminal.flush();
    }
    let output = script.wait_with_output().unwrap();
    drop(terminal);
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Asserts that the terminal is restored: the alternate screen is left, the cursor is visible,
/// lines are edited and echoed.
pub fn assert_restored(seen: &str) {
    let entered = seen.find("\x1b[?1049h").expect("the screen is taken over");
    let left = seen.rfind("\x1b[?1049l").expect("the screen is left");
    assert!(entered < left, "{seen:?}");
    assert!(
        seen.rfind("\x1b[?25h") > seen.rfind("\x1b[?25l"),
        "{seen:?}"
    );
    let after = &seen[left..];
    for setting in ["icanon", "echo", "isig"] {
        let mut words = after.split_whitespace();
        assert!(words.any(|word| word == setting), "{setting}: {after}");
    }
}

#[test]
fn the_screen_obeys_keys_and_gives_the_terminal_back() {
    let test = "the_screen_obeys_keys_and_gives_the_terminal_back";
    let command = format!(
        "{} top --from {} --speed 1000",
        env!("CARGO_BIN_EXE_weir"),
        recording().display()
    );
    let keys = [
        (3_000, "?"),
        (300, "\x0c"),
        (500, " "),
        (500, "\r"),
        (500, "\r"),
        (500, "q"),
    ];
    let Some(seen) = on_terminal(test, &command, &keys) else {
        return;
    };
    assert_restored(&seen);
    assert!(seen.contains("code=0"), "{seen:?}");
    assert!(seen.contains("/dev/loop1"), "the table: {seen:?}");
    // Only changed cells are written, so only single words can be searched for.
    assert!(seen.contains("redraw"), "the help: {seen:?}");
    assert!(seen.contains("COMMAND"), "the commands: {seen:?}");
}

#[test]
fn control_c_and_sigterm_give_the_terminal_back() {
    let test = "control_c_and_sigterm_give_the_terminal_back";
    let top = format!(
        "{} top --from {}",
        env!("CARGO_BIN_EXE_weir"),
        recording().display()
    );
    let Some(seen) = on_terminal(test, &top, &[(3_000, "\x03")]) else {
        return;
    };
    assert_restored(&seen);
    assert!(seen.contains("code=130"), "{seen:?}");
    let killed = format!("timeout --foreground --preserve-status -s TERM 3 {top}");
    let Some(seen) = on_terminal(test, &killed, &[]) else {
        return;
    };
    assert_restored(&seen);
    assert!(seen.contains("code=143"), "{seen:?}");
}

#[test]
fn a_terminal_that_cannot_move_its_cursor_gets_plain_tables() {
    let test = "a_terminal_that_cannot_move_its_cursor_gets_plain_tables";
    let command = format!(
        "TERM=dumb {} top -n 1 --from {}",
        env!("CARGO_BIN_EXE_weir"),
        recording().display()
    );
    let Some(seen) = on_terminal(test, &command, &[]) else {
        return;
    };
    assert!(!seen.contains('\x1b'), "{seen:?}");
    assert!(seen.contains("W.MEAN") && seen.contains("code=0"), "{seen}");
}

/// All views of a screen are planned together: the kernel computes the groups of all of them.
#[test]
fn the_kernel_computes_the_groups_of_a_screen() {
    let test = "the_kernel_computes_the_groups_of_a_screen";
    let Some(disk) = watched_disk(test) else {
        return;
    };
    let command = format!(
        "{} top -v --device {}",
        env!("CARGO_BIN_EXE_weir"),
        disk.path()
    );
    let path = disk.path().to_owned();
    let load = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(2_500));
        Command::new("fio")
            .args(["--name=reads", "--filename", &path, "--direct=1"])
            .args(["--rw=randread", "--bs=4k", "--ioengine=libaio"])
            .args(["--iodepth=4", "--time_based", "--runtime=2", "--size=64m"])
            .output()
    });
    // The histograms of the disk are opened as well.
    let keys = [(5_500, "\r"), (500, "\r"), (2_000, "q")];
    let seen = on_terminal(test, &command, &keys);
    assert!(load.join().unwrap().unwrap().status.success());
    let Some(seen) = seen else {
        return;
    };
    let number = |what: &str| {
        let (before, _) = seen.split_once(what)?;
        before.rsplit(' ').next()?.parse::<i64>().ok()
    };
    let (events, folded) = (number(" events, "), number(" requests folded\r"));
    assert!(folded.is_some_and(|folded| folded > 100), "{seen}");
    // The first requests of a new process are transferred, since it may belong to a new VM.
    let most = events
        .zip(folded)
        .is_some_and(|(all, folded)| 2 * folded > all);
    assert!(most, "most requests are in a group: {seen}");
}

/// Requests that the kernel has finished on a device (Documentation/block/stat.rst).
fn finished(device: &str) -> i64 {
    let name = Path::new(device).file_name().unwrap().to_str().unwrap();
    let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
    let fields: Vec<i64> = stat
        .split_whitespace()
        .map(|n| n.parse().unwrap())
        .collect();
    fields[0] + fields[4]
}

fn signal(process: u32, signal: rustix::process::Signal) {
    let process = rustix::process::Pid::from_raw(process as i32).unwrap();
    rustix::process::kill_process(process, signal).unwrap();
}

/// weir is stopped for a while, so that rows arrive faster than they are read, at any speed of the
/// host.
#[test]
fn a_stopped_table_has_no_figure_that_is_too_low() {
    let test = "a_stopped_table_has_no_figure_that_is_too_low";
    let Some(disk) = watched_disk(test) else {
        return;
    };
    let mut command = weir(&["top", "-b", "--json", "--device", disk.path(), "2s"]);
    let top = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let top = top.spawn().unwrap();
    // The first interval that is shown is the first one observed from its beginning.
    std::thread::sleep(Duration::from_millis(4_500));
    let before = finished(disk.path());
    let fio = Command::new("fio")
        .args(["--name=reads", "--filename", disk.path(), "--direct=1"])
        .args(["--rw=randread", "--bs=4k", "--ioengine=libaio"])
        .args(["--iodepth=16", "--numjobs=2", "--size=64m"])
        .args(["--time_based", "--runtime=5", "--thread"])
        .stdout(Stdio::null())
        .spawn();
    let mut fio = fio.unwrap();
    std::thread::sleep(Duration::from_millis(1_000));
    signal(top.id(), rustix::process::Signal::STOP);
    std::thread::sleep(Duration::from_millis(1_800));
    signal(top.id(), rustix::process::Signal::CONT);
    assert!(fio.wait().unwrap().success());
    let requests = finished(disk.path()) - before;
    std::thread::sleep(Duration::from_secs(8));
    interrupt(&top);
    let output = CommandOutput::of(top.wait_with_output().unwrap());
    let missed = output.err.lines().find_map(|line| {
        let (_, rest) = line.strip_prefix("weir: ")?.split_once(" events, ")?;
        rest.split_once(" missed")?.0.parse::<f64>().ok()
    });
    let missed = missed.unwrap_or(0.0);
    let tables: Vec<serde_json::Value> = output
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let shown: f64 = tables
        .iter()
        .map(|table| 2.0 * table["totals"]["iops"].as_f64().unwrap_or(0.0))
        .sum();
    let requests = requests as f64;
    assert!(
        shown + missed >= requests && shown <= requests + 64.0,
        "{shown} shown, {missed} missed, {requests} made: {}",
        output.err
    );
    // Its requests are those in flight, not those of the rows that were received.
    for row in tables.iter().flat_map(|t| t["rows"].as_array().unwrap()) {
        let depth = row["depth"].as_f64();
        assert!(
            depth.is_none_or(|depth| (1.0..=33.0).contains(&depth)),
            "{row}"
        );
    }
    let marked = tables.iter().any(|table| table["lower_bound"] == true);
    assert!(
        marked || missed < 0.02 * requests,
        "{missed} of {requests} missed: {}",
        output.out
    );
}
