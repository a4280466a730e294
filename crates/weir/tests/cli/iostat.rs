//! `weir iostat` and `weir diskstats`: compared with the output of sysstat.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::live::{loop_disk, watchable};
use crate::support::{CommandOutput, Scratch, interrupt, run, run_in, shared, skipped, weir};
use weir_testing::wait_until;

/// The number of instants in sysstat's sample trees.
pub const MOMENTS: usize = 3;

/// Arguments of iostat; each must give the same output from weir.
const OPTIONS: &[&str] = &[
    "",
    "-x",
    "-d",
    "-c",
    "-xd",
    "-xs",
    "-s",
    "-k",
    "-m",
    "-xm",
    "-xz",
    "-z",
    "-t",
    "-N",
    "-p",
    "-p ALL",
    "-p sda",
    "-x -p sda",
    "-xp",
    "-d sda sdq",
    "ALL",
    "-xd ALL",
    "-o JSON",
    "-x -o JSON",
    "-xs -o JSON",
    "-m -o JSON",
    "-t -x -d -o JSON",
    "-c -o JSON",
    "--dec=0",
    "-x --dec=1",
    "-m --dec=0",
    "--human",
    "-x --human",
    "-s --human --dec=0",
    "-m --human --dec=1",
    "--pretty",
    "-x --pretty",
    "-xs --pretty --human",
    "-x --pretty --human --dec=0",
    // sysstat's %util of a group decreases with each report, and it misreads a replaced sdb.
    "-d -g sum sda sdq",
    "-d -g sum -H sda sdq",
    "-g sum --human --pretty sda sdq",
    "-g sum -o JSON sda sdq",
    "-d --human --pretty --dec=0 -o JSON",
];

/// Runs iostat with the sample trees in place of /proc and /sys, one for each report: `$1` contains
/// three trees, `$2` is an empty directory, `$3` the number of reports, then iostat's options.
///
/// Its interval is so long that it never ends. The next report is triggered by the signal of
/// iostat's timer, which is sent when the next files are in place and iostat sleeps, as it does
/// only between reports.
const SYSSTAT: &str = r#"
trees=$1 work=$2 reports=$3; shift 3
files="stat diskstats uptime"
lay() {
    for file in $files; do cat "$trees/root$1/proc/$file" > "$work/$file"; done
    rm -rf /sys/block /sys/dev; cp -r "$trees/root$1/sys/." /sys/
}
for file in $files; do : > "$work/$file"; mount --bind "$work/$file" "/proc/$file"; done
mount -t tmpfs none /sys
lay 1
iostat "$@" 600 "$reports" > "$work/out" &
iostat=$!
for i in 2 3; do
    until grep -q "iostat" "/proc/$iostat/comm" && grep -q "^State:.S" "/proc/$iostat/status"; do
        sleep 0.05
    done
    lay "$i"
    kill -ALRM "$iostat"
done
wait "$iostat"
"#;

pub fn trees(test: &str) -> Option<PathBuf> {
    shared(test, "iostat-sysstat").map(|folder| folder.join("tests"))
}

/// `weir iostat --from root1 --from root2 .. OPTIONS`
fn ours(trees: &Path, options: &[&str]) -> String {
    let roots = (1..=MOMENTS).map(|i| trees.join(format!("root{i}")));
    let roots: Vec<String> = roots.map(|r| r.to_str().unwrap().to_owned()).collect();
    let from = roots.iter().flat_map(|root| ["--from", root]);
    let args: Vec<&str> = ["iostat"].into_iter().chain(from).collect();
    run(&[&args[..], options].concat()).fine()
}

/// The text without the day and the time at which it was made.
pub fn timeless(text: &str) -> String {
    let is_time = |word: &str| {
        let word = word.trim_matches(['"', ',']);
        word.len() == 8 && word.chars().all(|c| c.is_ascii_digit() || "/:".contains(c))
    };
    let blank = |word: &str| {
        if is_time(word) {
            "T".to_owned()
        } else {
            word.to_owned()
        }
    };
    let line = |line: &str| {
        let words: Vec<String> = line.split(' ').map(blank).collect();
        words.join(" ").replace("\"T\",", "T").replace("\"T", "T")
    };
    let lines: Vec<String> = text
        .split('\n')
        .map(|l| line(&l.replace('\t', " \t ")))
        .collect();
    lines.join("\n")
}

/// True if sysstat's iostat can run with other files in place of /proc and /sys.
pub fn can_replace_proc() -> bool {
    let script = "iostat -V && mount -t tmpfs none /mnt";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn the_sample_trees_give_sysstats_own_expected_output() {
    let Some(trees) = trees("the_sample_trees_give_sysstats_own_expected_output") else {
        return;
    };
    let expected = fs::read_to_string(trees.join("expected.iostat")).unwrap();
    // The first line names the host on which the output was made.
    let (heading, expected) = expected.split_once('\n').unwrap();
    let ours = ours(&trees, &[]);
    let (our_heading, ours) = ours.split_once('\n').unwrap();
    assert_eq!(ours, expected);
    let processors = |heading: &str| heading.rsplit('\t').next().unwrap().to_owned();
    assert_eq!(processors(our_heading), processors(heading));
}

#[test]
fn sysstat_prints_the_same_with_every_option() {
    let test = "sysstat_prints_the_same_with_every_option";
    let Some(trees) = trees(test) else { return };
    if !can_replace_proc() {
        return skipped(test, "needs root and sysstat's iostat");
    }
    let scratch = Scratch::new();
    let omitting = ["-y -d", "-y -x -o JSON"];
    let runs: Vec<(&str, PathBuf, Child)> = OPTIONS
        .iter()
        .chain(&omitting)
        .enumerate()
        .map(|(i, options)| {
            let work = scratch.path().join(i.to_string());
            fs::create_dir(&work).unwrap();
            // With -y the first of the reports is omitted.
            let omitted = usize::from(options.starts_with("-y"));
            let child = Command::new("timeout")
                .args([
                    "60", "unshare", "--mount", "bash", "-e", "-c", SYSSTAT, "bash",
                ])
                .args([&trees, &work])
                .arg((MOMENTS - omitted).to_string())
                .args(options.split_whitespace())
                .env("LC_ALL", "C")
                .env("TZ", "UTC")
                .stdin(Stdio::null())
                .spawn();
            (*options, work, child.unwrap())
        })
        .collect();
    for (options, work, mut child) in runs {
        assert!(child.wait().unwrap().success(), "iostat {options}");
        let theirs = fs::read_to_string(work.join("out")).unwrap();
        assert!(theirs.lines().count() > 8, "iostat {options}: {theirs}");
        let options: Vec<&str> = options.split_whitespace().collect();
        let ours = ours(&trees, &options);
        assert_eq!(timeless(&ours), timeless(&theirs), "iostat {options:?}");
    }
}

#[test]
fn a_recording_gives_a_row_for_each_virtual_disk() {
    let scratch = Scratch::new();
    // 2,000 requests, 1 ms apart: per second 750 reads of 4 KiB and 250 writes of 8 KiB, 0.5 ms
    // each.
    scratch.write("trace.csv", &crate::support::requests(2_000));
    let report = |options: &[&str]| {
        let args = [&["iostat", "--from", "trace.csv", "-d"], options].concat();
        run_in(scratch.path(), &args).fine()
    };
    let rows = |text: &str| -> Vec<Vec<String>> {
        let rows = text.lines().filter(|line| line.starts_with("vm1:"));
        rows.map(|row| row.split_whitespace().map(str::to_owned).collect())
            .collect()
    };
    let text = report(&["-x", "1"]);
    let seconds = rows(&text);
    assert_eq!(seconds.len(), 2, "{text}");
    let header: Vec<&str> = text
        .lines()
        .find(|l| l.starts_with("Device"))
        .unwrap()
        .split_whitespace()
        .collect();
    let cell =
        |row: &[String], name: &str| row[header.iter().position(|h| *h == name).unwrap()].clone();
    for (name, value) in [
        ("r/s", "750.00"),
        ("rkB/s", "3000.00"),
        ("r_await", "0.50"),
        ("rareq-sz", "4.00"),
        ("w/s", "250.00"),
        ("wkB/s", "2000.00"),
        ("w_await", "0.50"),
        ("wareq-sz", "8.00"),
        ("aqu-sz", "0.50"),
        ("%util", "50.00"),
    ] {
        assert_eq!(cell(&seconds[0], name), value, "{name}: {text}");
    }
    // Without an interval there is one report of the whole trace; nothing is lost at its end.
    let whole = rows(&report(&[]));
    let totals: Vec<&str> = whole[0].iter().rev().take(3).map(String::as_str).collect();
    assert_eq!(totals, ["0", "4000", "6000"]);
    assert!(rows(&report(&["sda"])).is_empty());
    assert_eq!(rows(&report(&["-w", "vm1"])), whole);
    assert!(rows(&report(&["-w", "vm2"])).is_empty());
    // A group has the sum of its disks: here of one, in the second group.
    let name = whole[0][0].as_str();
    let text = report(&["-g", "none", "sda", "-g", "all", name]);
    assert_eq!(rows(&text), whole);
    let sum = text.lines().find(|line| line.starts_with(" all ")).unwrap();
    assert!(sum.split_whitespace().skip(1).eq(&whole[0][1..]), "{text}");
    let alone = report(&["-H", "-g", "all"]);
    assert!(rows(&alone).is_empty() && alone.contains(sum), "{alone}");
}

#[test]
fn json_is_one_document_however_many_reports() {
    let scratch = Scratch::new();
    scratch.write("trace.csv", &crate::support::requests(3_000));
    for (options, expected) in [
        (&["1"][..], 3),
        (&["1", "2"], 2),
        (&["nothing", "1"], 3),
        (&[], 1),
    ] {
        let args = [
            &["iostat", "--from", "trace.csv", "-x", "-t", "-o", "JSON"],
            options,
        ]
        .concat();
        let text = run_in(scratch.path(), &args).fine();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let host = &document["sysstat"]["hosts"][0];
        let reports = host["statistics"].as_array().unwrap();
        assert_eq!(reports.len(), expected, "{text}");
        assert!(reports.iter().all(|r| r["disk"].is_array()), "{text}");
    }
}

#[test]
fn invalid_options_are_refused() {
    let iostat = |args: &[&str]| run(&[&["iostat"], args].concat());
    for (args, word) in [
        (&["1", "2", "3"][..], "`3`"),
        (&["0"], "too short"),
        (&["1", "0"], "`0` is not a number of reports"),
        (&["-j", "NONSENSE"], "by-nonsense"),
        (&["-j", "../x"], "-j ../x"),
    ] {
        let output = iostat(args);
        assert!(
            output.code == 2 && output.err.contains(word),
            "{args:?}: {}",
            output.err
        );
    }
    let scratch = Scratch::new();
    scratch.write("bad/diskstats", "8 0 sda 1 2 x\n");
    scratch.write("bad/uptime", "10.5 3\n");
    scratch.write("none/uptime", "10.5 3\n");
    for (tree, word) in [("bad", "`8 0 sda 1 2 x`"), ("none", "none/diskstats")] {
        let output = run_in(scratch.path(), &["iostat", "--from", tree]);
        assert!(
            output.code == 1 && output.err.contains(word),
            "{}",
            output.err
        );
    }
}

#[test]
fn the_queries_are_shown_and_are_queries() {
    let sample = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../samples/fio-loop.parquet"
    );
    for command in ["iostat", "diskstats", "exporter"] {
        let text = run(&[command, "--from", sample, "--show-query"]).fine();
        let queries: Vec<&str> = text
            .split(';')
            .map(str::trim)
            .filter(|q| !q.is_empty())
            .collect();
        assert!(!queries.is_empty());
        for query in queries {
            let answer = run(&["query", "--from", sample, "--format", "csv", query]).fine();
            assert!(answer.lines().count() > 100, "{command}: {query}");
        }
    }
}

/// Reads or writes `count` blocks of `bytes` with direct I/O.
fn dd(path: &str, write: bool, bytes: usize, count: usize) {
    let (from, to) = match write {
        true => ("if=/dev/zero".to_owned(), format!("of={path}")),
        false => (format!("if={path}"), "of=/dev/null".to_owned()),
    };
    let direct: &[&str] = match write {
        true => &["oflag=direct", "conv=fsync,notrunc"],
        false => &["iflag=direct"],
    };
    let status = Command::new("dd")
        .args([from, to, format!("bs={bytes}"), format!("count={count}")])
        .args(direct)
        .arg("status=none")
        .status();
    assert!(status.unwrap().success());
}

fn counters(path: &str) -> Option<Vec<u64>> {
    let text = fs::read_to_string(path).ok()?;
    Some(
        text.split_whitespace()
            .map(|n| n.parse().unwrap())
            .collect(),
    )
}

#[test]
fn the_tree_counts_as_the_kernel_does_and_iostat_reads_it() {
    let test = "the_tree_counts_as_the_kernel_does_and_iostat_reads_it";
    let scratch = Scratch::new();
    if !watchable(test) {
        return;
    }
    let Some(device) = loop_disk(test) else {
        return;
    };
    let tree = scratch.path().join("tree");
    let tree = tree.to_str().unwrap();
    // Devices that are added later are known within a second.
    let partition = device.partition(1, 2048, 65_536).ok();
    let child = weir(&["diskstats", tree, "--device", device.path()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stat = format!("{tree}/block/{}/stat", device.name());
    let kernel = || counters(device.sysfs().join("stat").to_str().unwrap()).unwrap();
    let reads = || counters(&stat).map_or(0, |c| c[0]);
    wait_until("a request is seen", || {
        dd(device.path(), false, 4096, 1);
        reads() > 0
    });
    // All that the kernel has counted since then must be reported, and nothing else. Requests in
    // flight count on both sides, so wait until the counts no longer change.
    let settled = || {
        let mut before = Vec::new();
        wait_until("the counters rest", || {
            let now = counters(&stat).unwrap();
            let rest = before == now;
            before = now;
            std::thread::sleep(Duration::from_millis(500));
            rest
        });
        before
    };
    let (ours_before, kernel_before) = (settled(), kernel());
    dd(device.path(), false, 4096, 100);
    dd(device.path(), true, 65536, 50);
    dd(device.path(), true, 512, 7);
    // Requests to a partition count for its device.
    match &partition {
        Some(partition) => dd(partition, false, 4096, 10),
        None => dd(device.path(), false, 4096, 10),
    }
    let (kernel, ours) = (kernel(), settled());
    let gone = |after: &[u64], before: &[u64]| -> Vec<u64> {
        after.iter().zip(before).map(|(a, b)| a - b).collect()
    };
    let (kernel, ours) = (gone(&kernel, &kernel_before), gone(&ours, &ours_before));
    // Requests, merges and sectors of reads and of writes, discards, and flushes.
    for field in [0, 1, 2, 4, 5, 6, 11, 12, 13, 15] {
        assert_eq!(
            ours[field], kernel[field],
            "field {field}: {ours:?}, kernel {kernel:?}"
        );
    }
    assert_eq!((ours[0], ours[4] - ours[15]), (110, 57));
    assert!(ours[9] > 0 && ours[10] > 0, "{ours:?}");
    let iostat = Command::new("iostat")
        .args(["-d", "-f", tree])
        .env("LC_ALL", "C")
        .output();
    match iostat {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8(output.stdout).unwrap();
            let row = text
                .lines()
                .find(|l| l.split_whitespace().next() == Some(device.name()));
            let cells: Vec<&str> = row
                .unwrap_or_else(|| panic!("{text}"))
                .split_whitespace()
                .collect();
            let all = counters(&stat).unwrap();
            let kilobytes = [all[2] / 2, all[6] / 2, all[13] / 2].map(|kb| kb.to_string());
            assert_eq!(cells[5..], kilobytes, "{text}");
        }
        _ => skipped(test, "the half that needs sysstat's iostat"),
    }
    interrupt(&child);
    let output = CommandOutput::of(child.wait_with_output().unwrap());
    assert_eq!(output.code, 130, "{}", output.err);
    assert!(!Path::new(tree).exists());
}

#[test]
fn an_idle_disk_is_reported_in_each_interval() {
    let test = "an_idle_disk_is_reported_in_each_interval";
    if !watchable(test) {
        return;
    }
    let Some(device) = loop_disk(test) else {
        return;
    };
    let args = [
        "60",
        env!("CARGO_BIN_EXE_weir"),
        "iostat",
        "-d",
        "-o",
        "JSON",
        "--device",
    ];
    let output = Command::new("timeout")
        .args(args)
        .args([device.path(), "0.5", "3"])
        .output();
    let text = CommandOutput::of(output.unwrap()).fine();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let reports = &document["sysstat"]["hosts"][0]["statistics"];
    assert_eq!(reports.as_array().unwrap().len(), 3, "{text}");
}

#[test]
fn a_run_shorter_than_the_interval_has_one_report() {
    let test = "a_run_shorter_than_the_interval_has_one_report";
    if !watchable(test) {
        return;
    }
    let Some(device) = loop_disk(test) else {
        return;
    };
    let args = [
        "iostat",
        "-d",
        "-o",
        "JSON",
        "--device",
        device.path(),
        "60",
        "--for",
        "2s",
    ];
    let mut child = weir(&args).stdout(Stdio::piped()).spawn().unwrap();
    while child.try_wait().unwrap().is_none() {
        dd(device.path(), true, 4096, 10);
    }
    let text = CommandOutput::of(child.wait_with_output().unwrap()).fine();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let reports = &document["sysstat"]["hosts"][0]["statistics"];
    assert_eq!(reports.as_array().unwrap().len(), 1, "{text}");
    let written = reports[0]["disk"][0]["kB_wrtn"].as_u64();
    assert!(written > Some(0), "{text}");
}

#[test]
fn a_recording_without_requests_of_the_selection_is_reported() {
    let recording = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../samples/fio-loop.parquet"
    );
    for selection in [["iostat", "sdq"], ["iostat", "-wnope"], ["top", "-dsdq"]] {
        let [command, of] = selection;
        let output = run(&[command, "--from", recording, of]);
        assert_eq!(output.code, 0, "{}", output.err);
        let message = "weir: no requests were observed";
        assert!(
            output.err.contains(message),
            "{selection:?}: {}",
            output.err
        );
    }
    let output = run(&["iostat", "--from", recording, "loop1"]);
    assert_eq!((output.code, output.err.as_str()), (0, ""));
}
