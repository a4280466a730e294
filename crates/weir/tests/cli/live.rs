//! Live I/O, on a host where it can be observed.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use weir_testing::LoopDisk;

use crate::support::{CommandOutput, Scratch, interrupt, run, skipped, weir};

/// Whether live I/O can be observed on this host; otherwise logs that `test` is skipped.
pub fn watchable(test: &str) -> bool {
    let output = run(&["query", "--for", "10ms", "select op from IO"]);
    let refusals = ["live I/O cannot be observed", "permission denied"];
    if output.code == 1 && refusals.iter().any(|why| output.err.contains(why)) {
        skipped(test, output.err.trim_end());
        return false;
    }
    output.fine();
    true
}

/// A loop device for `test`; otherwise logs that it is skipped.
pub fn loop_disk(test: &str) -> Option<LoopDisk> {
    match LoopDisk::new(64) {
        Ok(disk) => Some(disk),
        Err(why) => {
            skipped(test, format!("{why:#}"));
            None
        }
    }
}

/// The same where its requests can be observed, and fio exists to generate some.
pub fn watched_disk(test: &str) -> Option<LoopDisk> {
    if Command::new("fio").arg("--version").output().is_err() {
        skipped(test, "fio is not installed");
        return None;
    }
    watchable(test).then(|| loop_disk(test)).flatten()
}

/// Whether writes below `directory` reach a disk.
pub fn on_disk(test: &str, directory: &Path) -> bool {
    let kind = Command::new("stat")
        .args(["-f", "-c", "%T"])
        .arg(directory)
        .output()
        .unwrap();
    let kind = String::from_utf8(kind.stdout).unwrap();
    let disk = !["tmpfs", "ramfs"].contains(&kind.trim());
    if !disk {
        let place = format!("{} is on {}", directory.display(), kind.trim());
        skipped(test, &place);
    }
    disk
}

/// Writes `count` times 1 MiB to the disk.
fn write_to_disk(path: &Path, count: usize) {
    let mut file = File::create(path).unwrap();
    for i in 0..count {
        file.write_all(&vec![i as u8 + 1; 1 << 20]).unwrap();
        file.sync_all().unwrap();
    }
}

/// Runs `weir ARGS`, which must end without a signal, during such writes.
pub fn run_under_writes(args: &[&str], scratch: &Scratch) -> CommandOutput {
    let mut command = weir(args);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Long enough to attach the probes, and well before the end.
    std::thread::sleep(std::time::Duration::from_millis(1_200));
    write_to_disk(&scratch.path().join("data"), 8);
    CommandOutput::of(child.wait_with_output().unwrap())
}

#[test]
fn what_is_written_is_seen_and_the_recording_agrees_with_the_answer() {
    let test = "what_is_written_is_seen_and_the_recording_agrees_with_the_answer";
    let scratch = Scratch::new();
    if !watchable(test) || !on_disk(test, scratch.path()) {
        return;
    }
    let path = scratch.path().join("live.parquet");
    let path = path.to_str().unwrap();
    run_under_writes(&["record", "--for", "6s", "-o", path], &scratch).fine();
    let query = "select op, count(*) as n, sum(bytes) as b from IO where op = 'w' group by op";
    let args = [
        "query", "--from", path, "--final", "--format", "json", query,
    ];
    let row: serde_json::Value = serde_json::from_str(&run(&args).fine()).unwrap();
    assert!(row["b"].as_i64().unwrap() >= 8 << 20, "{row}");

    let query = "select count(*) as n from IOstream where type = 'R'";
    let args = ["query", "--from", path, "--final", "--format", "csv", query];
    let events = run(&args).fine();
    let finished: i64 = events
        .trim_end()
        .rsplit(',')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!(finished >= row["n"].as_i64().unwrap(), "{events} {row}");
}

#[test]
fn a_live_answer_is_complete_after_an_interrupt() {
    let test = "a_live_answer_is_complete_after_an_interrupt";
    let scratch = Scratch::new();
    if !watchable(test) || !on_disk(test, scratch.path()) {
        return;
    }
    let query = "select ts, op, bytes, latency from IO where op = 'w'";
    let mut command = weir(&["query", "--format", "json", query]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let file = scratch.path().join("data");
    // Until the first row shows that the probes are attached.
    let (done, stop) = std::sync::mpsc::channel::<()>();
    let writer = std::thread::spawn(move || {
        while stop.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            write_to_disk(&file, 1);
        }
    });
    let mut text = String::new();
    out.read_line(&mut text).unwrap();
    interrupt(&child);
    out.read_to_string(&mut text).unwrap();
    drop(done);
    writer.join().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    for line in text.lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(row["op"], "w");
        // The issue time of a request in flight when the probes were attached is unknown.
        assert!(row["latency"].as_i64().is_none_or(|ns| ns > 0), "{line}");
    }
}

#[test]
fn a_thesis_query_runs_live() {
    let test = "a_thesis_query_runs_live";
    let scratch = Scratch::new();
    if !watchable(test) || !on_disk(test, scratch.path()) {
        return;
    }
    let script = "source : tap:live\nquery :\nselect IOresp.BlktapTS - IOreq.BlktapTS\n\
        from IOstream [range 3000000 second] as IOreq, IOstream [range 3000000 second] as IOresp\n\
        where IOreq.Type = \"Q\" and IOresp.Type = \"R\" and IOreq.ReqId = IOresp.ReqId;\ndest : out/q4\n";
    let script = scratch.write("q4", script);
    let out_dir = scratch.path().to_str().unwrap();
    run_under_writes(
        &["run", "--for", "6s", "--out-dir", out_dir, &script],
        &scratch,
    )
    .fine();
    let text = scratch.read("out/q4");
    let plus = text.lines().filter(|l| l.contains("]:+:"));
    let times: Vec<i64> = plus
        .map(|l| l.rsplit(':').next().unwrap().parse().unwrap())
        .collect();
    assert!(times.len() >= 8, "{} times", times.len());
    let odd = times.iter().find(|us| !(0..3_000_000).contains(*us));
    assert_eq!(odd, None, "of {} times", times.len());
}

#[test]
fn capabilities_are_given_up_once_the_probes_are_attached() {
    let test = "capabilities_are_given_up_once_the_probes_are_attached";
    if !watchable(test) {
        return;
    }
    let effective = |more: &[&str]| {
        let query = "select count(*) from IO where op = 'f'";
        let args = [&["query", "--for", "20s"][..], more, &[query]].concat();
        let mut child = weir(&args).stdout(Stdio::piped()).spawn().unwrap();
        let status = format!("/proc/{}/status", child.id());
        // The command is running when a thread for the sinks and one for the tap exist.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let field = |name: &str| {
            let text = std::fs::read_to_string(&status).unwrap();
            let line = text
                .lines()
                .find_map(|l| l.strip_prefix(name).map(str::trim));
            line.unwrap().to_owned()
        };
        while field("Threads:") != "3" && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let capabilities = field("CapEff:");
        interrupt(&child);
        child.wait().unwrap();
        capabilities
    };
    assert_eq!(effective(&[]), "0000000000000000");
    assert_ne!(effective(&["--keep-privileges"]), "0000000000000000");
}

#[test]
fn the_doctor_agrees_with_what_works() {
    let output = run(&["doctor", "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    let query = run(&["query", "--for", "10ms", "select op from IO"]);
    assert_eq!(output.code, query.code, "{}", output.out);
    assert_eq!(answer["live"], (output.code == 0), "{}", output.out);
    let facts = answer["facts"].as_array().unwrap();
    assert!(
        facts.len() > 5 && facts.iter().all(|f| f["found"].is_string()),
        "{}",
        output.out
    );
    let page = run(&["doctor"]).out;
    assert!(
        page.contains("\nok ") && page.contains("live I/O can"),
        "{page}"
    );
}

#[test]
fn the_inventory_is_queried_live_without_privileges() {
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    let declared_pid = format!("nap=pid:{}", child.id());
    let scratch = Scratch::new();
    let list = scratch.write("vms", &format!("# asleep\n\n{declared_pid}\n"));
    let ask = |vm: &str, query: &str| {
        let options = ["--for", "300ms", "--final", "--format", "csv"];
        run(&[&["query"], &options[..], &["--vm", vm, query]].concat())
    };
    let declared = "select vm, kind, pid from vms where origin = 'declared'";
    let vms = [
        ask(&declared_pid, declared),
        ask(&format!("@{list}"), declared),
    ];
    let devices = ask(&declared_pid, "select count(*) > 0 from devices");
    child.kill().unwrap();
    child.wait().unwrap();
    for output in vms {
        let row = format!("nap,process,{}", child.id());
        let out = output.fine();
        assert!(out.contains(&row), "{out}");
    }
    let out = devices.fine();
    assert!(out.contains("true"), "{out}");
}

#[test]
fn a_recording_has_no_inventory() {
    let scratch = Scratch::new();
    let trace = scratch.write(
        "a.csv",
        "128166372003061629,usr,0,Read,7014609920,24576,41286\n",
    );
    let output = run(&["query", "--from", &trace, "select * from vms"]);
    assert_eq!(output.code, 1, "{}", output.err);
    assert!(output.err.contains("has no `vms`"), "{}", output.err);
    let output = run(&["query", "--vm", "db=77", "select * from vms"]);
    assert_eq!(output.code, 2, "{}", output.err);
    assert!(output.err.contains("NAME=pid:PID"), "{}", output.err);
}
