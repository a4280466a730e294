//! A tapdisk as a separate process, and the helpers of its tests.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

pub use weir_testing::{Scratch, TIMEOUT, skip, wait_until};

/// The binary.
pub const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Allows one test with a guest at a time: they share two processors.
static TURN: Mutex<()> = Mutex::new(());

/// Waits for the turn of `test`, which needs these programs; logs the reason and returns `None`
/// where it cannot run.
pub fn ready(test: &str, programs: &[&str]) -> Option<MutexGuard<'static, ()>> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
    let missing = programs
        .iter()
        .find(|program| !std::env::split_paths(&path).any(|folder| folder.join(program).is_file()));
    match missing {
        None => Some(turn),
        Some(program) => skip(test, format!("no {program} on this host")),
    }
}

/// The exit code of a process, and its standard error.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; `None` if a signal killed it.
    pub code: Option<i32>,
    /// Its standard error.
    pub printed: String,
}

/// A running tapdisk.
pub struct Tapdisk {
    child: Child,
    printed: Arc<Mutex<String>>,
    reading: Option<JoinHandle<()>>,
    tap: String,
}

/// The prefix of the last line that it logs at startup.
const READY: &str = "requests are reported socket=";

impl Tapdisk {
    /// Starts one; it accepts connections on return.
    pub fn start(args: &[&str]) -> Tapdisk {
        let mut command = Command::new(WEIR);
        command.arg("tapdisk").args(args);
        Tapdisk::run(command)
    }

    /// The same from a given command.
    pub fn run(mut command: Command) -> Tapdisk {
        let mut child = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let printed: Arc<Mutex<String>> = Arc::default();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = printed.clone();
        let reading = std::thread::spawn(move || {
            for line in lines {
                let line = line.unwrap() + "\n";
                log.lock().unwrap().push_str(&line);
            }
        });
        let mut tapdisk = Tapdisk {
            child,
            printed,
            reading: Some(reading),
            tap: String::new(),
        };
        let within = Instant::now() + TIMEOUT;
        while tapdisk.tap.is_empty() {
            let ended = tapdisk.child.try_wait().unwrap();
            let printed = tapdisk.printed();
            assert!(
                ended.is_none() && Instant::now() < within,
                "it does not serve: {ended:?} {printed}"
            );
            let tap = printed.lines().find_map(|line| line.split(READY).nth(1));
            tapdisk.tap = tap.unwrap_or_default().to_owned();
            std::thread::sleep(Duration::from_millis(5));
        }
        tapdisk
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The socket on which it reports requests.
    pub fn tap(&self) -> &str {
        &self.tap
    }

    /// Its standard error so far.
    pub fn printed(&self) -> String {
        self.printed.lock().unwrap().clone()
    }

    /// The output of `weir tapdisk status --json`.
    pub fn status(&self) -> Value {
        let output = Command::new(WEIR)
            .args(["tapdisk", "status", "--json", &self.tap])
            .output();
        let output = output.unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{printed}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The number of completed requests of an operation (`r`, `w`, `f`, `d`, `z`), over all its
    /// disks.
    pub fn requests(&self, op: &str) -> u64 {
        self.figure(op, "requests")
    }

    /// A counter of an operation, over all disks.
    pub fn figure(&self, op: &str, name: &str) -> u64 {
        let status = self.status();
        let disks = status["disks"].as_array().unwrap().iter();
        let ops = disks.flat_map(|disk| disk["ops"].as_array().unwrap());
        ops.filter(|o| o["op"] == op)
            .map(|o| o[name].as_u64().unwrap())
            .sum()
    }

    /// Sends it a signal, by name.
    pub fn signal(&self, name: &str) {
        let kill = Command::new("kill")
            .args(["-s", name, &self.pid().to_string()])
            .status();
        assert!(kill.unwrap().success());
    }

    /// Kills it, as the kernel does when memory is exhausted.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Ended {
        let within = Instant::now() + TIMEOUT;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                Instant::now() < within,
                "it does not end: {}",
                self.printed()
            );
            std::thread::sleep(Duration::from_millis(10));
        };
        self.reading.take().unwrap().join().unwrap();
        Ended {
            code: status.code(),
            printed: self.printed(),
        }
    }

    /// Ends it by a signal, and asserts a clean exit.
    pub fn stop(self) {
        self.signal("TERM");
        let ended = self.finish();
        assert_eq!(ended.code, Some(0), "{}", ended.printed);
    }
}

impl Drop for Tapdisk {
    fn drop(&mut self) {
        // It has ended, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running `weir query` on a tap.
pub struct Query(Child);

impl Query {
    /// Starts the query; requests after its return are reported.
    pub fn start(tapdisk: &Tapdisk, text: &str) -> Query {
        let source = format!("tapdisk:{}", tapdisk.tap());
        let child = Command::new(WEIR)
            .args([
                "query", "--from", &source, "--format", "json", "--final", text,
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let query = Query(child.unwrap());
        wait_until("somebody listens", || {
            let status = tapdisk.status();
            !status["consumers"].as_array().unwrap().is_empty()
        });
        query
    }

    /// Interrupts it; returns its rows and its messages.
    pub fn stop(self) -> (Vec<Value>, String) {
        let kill = Command::new("kill")
            .args(["-s", "INT", &self.0.id().to_string()])
            .status();
        assert!(kill.unwrap().success());
        let output = self.0.wait_with_output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(130), "{printed}");
        let text = String::from_utf8(output.stdout).unwrap();
        let rows = text.lines().map(|line| serde_json::from_str(line).unwrap());
        (rows.collect(), printed)
    }
}
