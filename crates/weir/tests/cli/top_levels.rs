//! `weir top --level file` and `--level app`: figures of real loads against what was written,
//! tables of recordings, and the levels of the screen, which attach nothing while they are not
//! shown.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use weir_testing::LoopDisk;

use crate::live::loop_disk;
use crate::path::has_levels;
use crate::support::{Scratch, interrupt, run, skipped, weir};
use crate::top::{assert_restored, on_terminal};

/// A loop device with a file system, where streams of files can be observed.
fn file_disk(test: &str) -> Option<(LoopDisk, std::path::PathBuf)> {
    if !has_levels(test) {
        return None;
    }
    let disk = loop_disk(test)?;
    let folder = disk.file_system().unwrap();
    Some((disk, folder))
}

/// Tables of a run of `weir top`, while `load` is executed.
fn tables_of(args: &[&str], load: impl FnOnce()) -> Vec<Json> {
    let mut command = weir(&[&["top", "-b", "--json"], args, &["500ms"]].concat());
    let mut top = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
    let mut tables = Vec::new();
    let mut next = |tables: &mut Vec<Json>| {
        let line = lines.next().expect("a table").unwrap();
        tables.push(serde_json::from_str(&line).unwrap());
    };
    next(&mut tables);
    load();
    (0..4).for_each(|_| next(&mut tables));
    interrupt(&top);
    drop(lines);
    top.wait().unwrap();
    tables
}

/// The sum of a rate over the tables, times the interval, for each value of `key`.
fn sums(tables: &[Json], key: &str, rate: &str) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for table in tables {
        let seconds = table["interval"].as_f64().unwrap();
        for row in table["rows"].as_array().unwrap() {
            let name = row[key].as_str().unwrap_or_default().to_owned();
            let value = row[rate].as_f64().unwrap_or_default();
            *sums.entry(name).or_default() += seconds * value;
        }
    }
    sums.into_iter()
        .map(|(name, sum): (String, f64)| (name, sum.round()))
        .collect()
}

/// Copies with dd; `count` blocks of 64 KiB.
fn dd(from: &Path, to: &Path, count: u32, options: &[&str]) {
    let [from, to] = [("if", from), ("of", to)].map(|(key, path)| {
        let mut argument = std::ffi::OsString::from(format!("{key}="));
        argument.push(path);
        argument
    });
    let done = Command::new("dd")
        .args([from, to])
        .args(["bs=64k", &format!("count={count}"), "status=none"])
        .args(options)
        .status();
    assert!(done.unwrap().success());
}

fn write(to: &Path, count: u32) {
    dd(
        Path::new("/dev/zero"),
        to,
        count,
        &["oflag=direct", "conv=notrunc"],
    );
}

const BLOCK: f64 = 65_536.0;

#[test]
fn files_have_the_load_that_was_written_whatever_their_names() {
    let test = "files_have_the_load_that_was_written_whatever_their_names";
    let Some((disk, folder)) = file_disk(test) else {
        return;
    };
    let name = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let strange = "it's \u{1b}[2J\ta \u{e9}\"\n;";
    let tables = tables_of(&["--level", "file", "-i", disk.path()], || {
        write(&folder.join("two"), 20);
        dd(
            &folder.join("two"),
            Path::new("/dev/null"),
            10,
            &["iflag=direct"],
        );
        write(&folder.join(strange), 5);
        // A line has the name that the file has when its request begins.
        write(&folder.join("before"), 3);
        fs::rename(folder.join("before"), folder.join("after")).unwrap();
        write(&folder.join("after"), 4);
        let mut unlinked = fs::File::create(folder.join("unlinked")).unwrap();
        fs::remove_file(folder.join("unlinked")).unwrap();
        unlinked.write_all(&[0; 8 * 65_536]).unwrap();
        unlinked.sync_all().unwrap();
    });
    let bytes = sums(&tables, "path", "throughput");
    let requests = sums(&tables, "path", "iops");
    for (path, blocks) in [
        (name("two"), 30.0),
        (name(strange), 5.0),
        (name("before"), 3.0),
        (name("after"), 4.0),
    ] {
        assert_eq!(
            bytes.get(&path),
            Some(&(blocks * BLOCK)),
            "{path:?}: {bytes:?}"
        );
        assert_eq!(requests.get(&path), Some(&blocks), "{path:?}: {requests:?}");
    }
    let unlinked = name("unlinked (deleted)");
    assert_eq!(bytes.get(&unlinked), Some(&(8.0 * BLOCK)), "{bytes:?}");
    for row in tables
        .iter()
        .flat_map(|table| table["rows"].as_array().unwrap())
    {
        assert_eq!(
            (&row["pdisk"], &row["fs"]),
            (&disk.path().into(), &"ext4".into()),
            "{row}"
        );
        assert!(
            row["inode"].as_i64().is_some_and(|inode| inode > 0),
            "{row}"
        );
        let direct = if row["path"] == unlinked { 0.0 } else { 100.0 };
        assert_eq!(row["direct"], direct, "{row}");
    }
    let all: f64 = bytes.values().sum();
    let total: f64 = tables
        .iter()
        .map(|t| t["totals"]["throughput"].as_f64().unwrap_or(0.0) / 2.0)
        .sum();
    assert_eq!(total.round(), all, "the totals are those of the lines");
}

#[test]
fn reads_that_the_page_cache_serves_are_beside_the_requests() {
    let test = "reads_that_the_page_cache_serves_are_beside_the_requests";
    let Some((disk, folder)) = file_disk(test) else {
        return;
    };
    let cache = run(&["query", "--for", "10ms", "select hits from PageCache"]);
    if cache.code != 0 {
        return skipped(test, cache.err.trim_end());
    }
    let file = folder.join("read");
    write(&file, 16);
    let read = || dd(&file, Path::new("/dev/null"), 16, &[]);
    let tables = tables_of(&["--level", "file", "-i", disk.path()], || {
        (0..5).for_each(|_| read())
    });
    let path = file.to_str().unwrap();
    let requested = sums(&tables, "path", "throughput")[path];
    assert_eq!(requested, 16.0 * BLOCK, "the file is read once");
    let served = sums(&tables, "path", "cache")[path];
    assert!(
        (4.0 * 16.0 * BLOCK..=5.0 * 16.0 * BLOCK).contains(&served),
        "{served}"
    );
    let rows = tables
        .iter()
        .flat_map(|table| table["rows"].as_array().unwrap());
    let shares = rows.filter_map(|row| row["cached"].as_f64());
    assert!(shares.into_iter().any(|share| share >= 80.0), "{tables:?}");
}

#[test]
fn processes_have_what_they_wrote_and_the_device_is_part_of_their_latency() {
    let test = "processes_have_what_they_wrote_and_the_device_is_part_of_their_latency";
    let Some((disk, folder)) = file_disk(test) else {
        return;
    };
    let tables = tables_of(&["--level", "app", "-i", disk.path()], || {
        write(&folder.join("one"), 12);
        dd(
            &folder.join("one"),
            Path::new("/dev/null"),
            12,
            &["iflag=direct"],
        );
    });
    // The processes also read some blocks of metadata.
    let bytes = sums(&tables, "comm", "throughput")["dd"];
    assert!((24.0 * BLOCK..=25.0 * BLOCK).contains(&bytes), "{bytes}");
    let rows = tables
        .iter()
        .flat_map(|table| table["rows"].as_array().unwrap());
    let dd: Vec<&Json> = rows.filter(|row| row["comm"] == "dd").collect();
    let mut processes: Vec<i64> = dd.iter().map(|row| row["pid"].as_i64().unwrap()).collect();
    processes.dedup();
    assert_eq!(processes.len(), 2, "{dd:?}");
    for row in dd {
        let value = |name: &str| row[name].as_f64().unwrap();
        assert!(value("service_mean") <= value("mean"), "{row}");
        assert!(
            value("service_max") <= value("max") && value("service_mean") > 0.0,
            "{row}"
        );
        assert!(
            row.get("wait_p99").is_none() && row.get("direct").is_none(),
            "{row}"
        );
    }
}

#[test]
fn files_of_xfs_and_btrfs_have_the_load_that_was_written() {
    let test = "files_of_xfs_and_btrfs_have_the_load_that_was_written";
    if !has_levels(test) {
        return;
    }
    for (fs, make) in [
        ("xfs", LoopDisk::xfs as fn(&LoopDisk) -> _),
        ("btrfs", LoopDisk::copy_on_write),
    ] {
        let disk = match LoopDisk::new(400) {
            Ok(disk) => disk,
            Err(why) => return skipped(test, format!("{why:#}")),
        };
        let folder = match make(&disk) {
            Ok(folder) => folder,
            Err(why) => {
                skipped(test, format!("{why:#}"));
                continue;
            }
        };
        let file = folder.join("f");
        let tables = tables_of(&["--level", "file", "-i", disk.path()], || write(&file, 16));
        let path = file.to_str().unwrap();
        assert_eq!(
            sums(&tables, "path", "throughput").get(path),
            Some(&(16.0 * BLOCK)),
            "{fs}"
        );
        let rows = tables
            .iter()
            .flat_map(|table| table["rows"].as_array().unwrap());
        assert!(
            rows.filter(|row| row["path"] == path)
                .all(|row| row["fs"] == fs)
        );
    }
}

/// A recording of a stream, while two files are written.
fn recorded(stream: &str, folder: &Path, file: &str) {
    let args = ["record", "--stream", stream, "-o", file, "--for", "4s"];
    let mut record: Child = weir(&args).stderr(Stdio::null()).spawn().unwrap();
    let process = record.id().to_string();
    wait_until("the programs are attached", || attached(&process) > 0);
    std::thread::sleep(Duration::from_millis(1_500));
    write(&folder.join("one"), 12);
    write(&folder.join("two"), 6);
    assert!(record.wait().unwrap().success());
}

#[test]
fn tables_of_a_recording_have_all_its_requests() {
    let test = "tables_of_a_recording_have_all_its_requests";
    let Some((disk, folder)) = file_disk(test) else {
        return;
    };
    let scratch = Scratch::new();
    for (stream, level, other) in [("FileIO", "file", "app"), ("IOpath", "app", "file")] {
        let file = scratch.file(&format!("{level}.parquet"));
        recorded(stream, &folder, &file);
        let args = [
            "top",
            "-b",
            "--json",
            "--level",
            level,
            "-i",
            disk.path(),
            "--from",
            &file,
        ];
        let stdout = run(&args).fine();
        let tables: Vec<Json> = stdout
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        let (key, names) = match level {
            "file" => (
                "path",
                ["one", "two"].map(|f| folder.join(f).to_str().unwrap().to_owned()),
            ),
            _ => ("comm", ["dd"; 2].map(str::to_owned)),
        };
        let bytes = sums(&tables, key, "throughput");
        let written: f64 = match level {
            "file" => names.iter().map(|name| bytes[name]).sum(),
            _ => bytes["dd"],
        };
        assert_eq!(written, 18.0 * BLOCK, "{bytes:?}");

        let absent = run(&["top", "-b", "--level", other, "--from", &file]);
        assert_eq!(absent.code, 2, "{}", absent.err);
        let remedy = "weir record --stream";
        assert!(absent.err.contains(remedy) && absent.err.contains(level_stream(other)));
        // The screen opens at the level that the recording has.
        let command = format!(
            "{} top --level {level} --speed 1000 --from {file}",
            env!("CARGO_BIN_EXE_weir")
        );
        let keys = [(3_000, "\r"), (1_500, "\x1b"), (300, "l"), (700, "q")];
        let Some(seen) = on_terminal(test, &command, &keys) else {
            continue;
        };
        assert_restored(&seen);
        assert!(
            seen.contains("code=0") && seen.contains(&format!("level {level}")),
            "{seen:?}"
        );
        let opened = if level == "file" {
            "processes of"
        } else {
            "files of"
        };
        assert!(seen.contains(opened), "{seen:?}");
    }
}

fn level_stream(level: &str) -> &'static str {
    if level == "file" { "FileIO" } else { "IOpath" }
}

/// The number of programs that a process has attached to tracepoints.
fn attached(process: &str) -> usize {
    let infos = fs::read_dir(format!("/proc/{process}/fdinfo")).unwrap();
    let infos = infos.filter_map(|info| fs::read_to_string(info.unwrap().path()).ok());
    infos.filter(|info| info.contains("link_type:")).count()
}

/// Waits until `holds`, for some seconds.
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_level_of_the_screen_is_attached_while_it_is_shown() {
    let test = "a_level_of_the_screen_is_attached_while_it_is_shown";
    let Some((disk, folder)) = file_disk(test) else {
        return;
    };
    let scratch = Scratch::new();
    let (number, seen) = (scratch.file("pid"), scratch.file("seen"));
    let command = format!(
        "stty cols 150 rows 40; echo $$ > {number}; exec {} top -i {} --device {} 500ms",
        env!("CARGO_BIN_EXE_weir"),
        disk.path(),
        disk.path(),
    );
    let script = Command::new("script")
        .args(["-qefc", &command, &seen])
        .env("TERM", "xterm-256color")
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut script = match script {
        Ok(script) => script,
        Err(error) => return skipped(test, format!("script(1) does not run here: {error}")),
    };
    let mut terminal = script.stdin.take().unwrap();
    // Also if an assertion fails: `weir top` ends with its terminal.
    let mut script = EndedScript(script);
    let mut press = |key: &str| {
        terminal.write_all(key.as_bytes()).unwrap();
        terminal.flush().unwrap();
    };
    // The load of the whole test: the file is written again and again.
    let file = folder.join("busy-file");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                write(&file, 16);
            }
        });
        // Also if an assertion fails.
        let _end = Ended(&stop);
        // Only changed cells are written, so the screen is redrawn before it is read.
        let redrawn = |press: &mut dyn FnMut(&str)| {
            let before = fs::metadata(&seen).map_or(0, |seen| seen.len()) as usize;
            press("\x0c");
            std::thread::sleep(Duration::from_millis(400));
            let all = fs::read(&seen).unwrap_or_default();
            String::from_utf8_lossy(&all[before.min(all.len())..]).into_owned()
        };
        let wait_for = |text: &str, press: &mut dyn FnMut(&str)| {
            wait_until(text, || redrawn(press).contains(text));
        };
        wait_for("/dev/loop", &mut press);
        let process = fs::read_to_string(&number).unwrap().trim().to_owned();
        wait_until("level block is attached", || attached(&process) > 0);
        // Until the last of its programs is.
        std::thread::sleep(Duration::from_secs(1));
        let block = attached(&process);
        // Twice, since the programs are then attached again.
        for _ in 0..2 {
            press("l");
            wait_for("busy-file", &mut press);
            let files = attached(&process);
            assert!(files > block, "{files} programs, {block} of level block");
            press("l");
            wait_for("dd[", &mut press);
            let processes = attached(&process);
            assert!(
                processes > block && processes != files,
                "{processes}, {files}, {block}"
            );
            // Level vdisk comes next, if it is available here.
            press("l");
            wait_until("only level block is attached", || {
                attached(&process) == block
            });
            if redrawn(&mut press).contains("vdisk") {
                press("l");
            }
            wait_for("/dev/loop", &mut press);
        }
        // The files of the disk, and their processes.
        press("f");
        wait_for("busy-file", &mut press);
        assert!(attached(&process) > block);
        press("\r");
        wait_for("dd[", &mut press);
        wait_for("processes", &mut press);
        press("\x7f");
        wait_for("busy-file", &mut press);
        press("\x7f");
        wait_until("nothing else is attached", || attached(&process) == block);
        press("q");
        assert!(script.0.wait().unwrap().success());
    });
}

struct EndedScript(Child);

impl Drop for EndedScript {
    fn drop(&mut self) {
        // It has ended already unless the test has failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Ended<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}
