//! `weir tune` under a database: SQLite commits on a disk whose settings are tried.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde_json::Value;
use weir_testing::{LoopDisk, is_root};

use crate::live::{loop_disk, watchable};
use crate::support::{Scratch, run, skipped};

/// A process of SQLite that commits one transaction after the other.
struct Commits {
    sqlite: Child,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Commits {
    fn start(file: &Path) -> std::io::Result<Commits> {
        // Without stdbuf it collects its answers.
        let mut sqlite = Command::new("stdbuf")
            .args(["-oL", "sqlite3"])
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut statements = sqlite.stdin.take().unwrap();
        let mut answers = BufReader::new(sqlite.stdout.take().unwrap()).lines();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let create = "pragma synchronous = full; \
                          create table accounts (id integer primary key, data); \
                          create table commits (count); insert into commits values (0);\n";
            statements.write_all(create.as_bytes()).unwrap();
            let mut acknowledged = 0;
            while !stopped.load(Ordering::Relaxed) {
                // The last statement is executed when the transaction is on the disk.
                let transaction = format!(
                    "begin; insert or replace into accounts values ({}, randomblob(2000)); \
                     update commits set count = count + 1; commit; select count from commits;\n",
                    acknowledged % 500
                );
                statements.write_all(transaction.as_bytes()).unwrap();
                acknowledged += 1;
                let answer = answers.next().unwrap().unwrap();
                assert_eq!(answer, acknowledged.to_string());
            }
            acknowledged
        });
        Ok(Commits {
            sqlite,
            stop,
            thread,
        })
    }

    /// Ends it; returns the number of transactions that were acknowledged.
    fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let acknowledged = self.thread.join().unwrap();
        assert!(self.sqlite.wait().unwrap().success());
        acknowledged
    }
}

/// The settings of a queue and its scheduler.
fn settings(disk: &LoopDisk) -> BTreeMap<String, String> {
    let folders = ["queue", "queue/iosched"].map(|folder| disk.sysfs().join(folder));
    let entries = folders
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok());
    let paths = entries.flatten().map(|entry| entry.unwrap().path());
    let read = paths.filter_map(|path| {
        let text = fs::read_to_string(&path).ok()?;
        Some((path.to_string_lossy().into_owned(), text))
    });
    read.collect()
}

#[test]
fn a_database_is_intact_after_a_trial_and_the_settings_are_those_before() {
    let test = "a_database_is_intact_after_a_trial_and_the_settings_are_those_before";
    if !is_root() || !watchable(test) {
        return skipped(test, "needs root, and the tap");
    }
    let Some(disk) = loop_disk(test) else { return };
    let file = disk.file_system().unwrap().join("accounts.db");
    let Ok(commits) = Commits::start(&file) else {
        return skipped(test, "sqlite3 cannot be run");
    };
    let before = settings(&disk);
    assert!(before.len() > 10, "{before:?}");
    let state = Scratch::new();
    let state = state.file("state");
    let mut args = vec![
        "tune",
        "-i",
        disk.path(),
        "--for",
        "iops",
        "--try",
        "--json",
    ];
    args.extend(["--candidates", "none,rq_affinity=2"]);
    args.extend(["--rounds", "3", "--block", "500ms", "--settle", "200ms"]);
    args.extend([
        "--observe",
        "2s",
        "--seed",
        "1",
        "--abort-factor",
        "1000000",
    ]);
    args.extend(["--state", &state]);
    let report: Value = serde_json::from_str(&run(&args).fine()).unwrap();
    assert!(report["trial"].is_object(), "{report}");
    assert!(report["observation"]["requests"].as_u64().unwrap() > 10);
    assert_eq!(settings(&disk), before);
    let acknowledged = commits.stop();
    assert!(acknowledged > 10, "{acknowledged}");
    // Every transaction that was acknowledged is there.
    let check = "pragma integrity_check; select count from commits;";
    let output = Command::new("sqlite3").arg(&file).arg(check).output();
    let printed = String::from_utf8(output.unwrap().stdout).unwrap();
    assert_eq!(printed, format!("ok\n{acknowledged}\n"));
}
