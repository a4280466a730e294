//! Either side is killed.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use weir_tap::Tap;
use weir_tap::tapdisk::{TapdiskOptions, TapdiskTap, open};
use weir_tapdisk::{ControlServer, SocketAccess, StopEvent};

use super::simulated_queues::{Received, SimulatedQueue, TapFolder, all, count, hub, options};

/// The socket of the process that is a tap.
const SOCKET: &str = "WEIR_TEST_TAP_SOCKET";

/// Not a test but a tap, in a process that a test starts.
#[test]
fn is_a_tap() {
    let Some(socket) = std::env::var_os(SOCKET) else {
        return;
    };
    let (hub, stop) = (hub(1), StopEvent::new().unwrap());
    let listening = ControlServer::start(&hub, Path::new(&socket), SocketAccess::default(), &stop);
    let _listening = listening.unwrap();
    let mut io_queue = SimulatedQueue::new(&hub, 0, 0, 1);
    loop {
        io_queue.round();
        io_queue.recorded.clear();
        thread::sleep(Duration::from_micros(200));
    }
}

struct Process(Child);

impl Process {
    fn start(socket: &Path) -> Process {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "ends::is_a_tap", "--nocapture"])
            .env(SOCKET, socket)
            .stdout(Stdio::null())
            .spawn();
        Process(child.unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn opened(socket: &Path, options: TapdiskOptions) -> TapdiskTap {
    for _ in 0..2_000 {
        if let Ok(tap) = open(socket, &all(), options.clone()) {
            return tap;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("the tap does not listen at {}", socket.display());
}

#[test]
fn a_killed_tap_is_reported_or_waited_for() {
    let scratch = TapFolder::new();
    let tap = Process::start(&scratch.socket());
    let mut hasty = opened(&scratch.socket(), options(1 << 20));
    let patient = TapdiskOptions {
        timeout: Duration::from_secs(120),
        ..options(1 << 20)
    };
    let mut patient = opened(&scratch.socket(), patient);
    let (mut hasty_received, mut received) = (Received::default(), Received::default());
    hasty_received.receive_until(&mut hasty, |received| received.rows.len() > 100);
    received.receive_until(&mut patient, |received| received.rows.len() > 100);
    drop(tap);
    hasty_received.receive_until(&mut hasty, |_| false);
    assert!(hasty.messages()[0].contains("closed the connection"));
    let before = received.rows.len();
    // The dead process's socket is still there.
    let _tap = Process::start(&scratch.socket());
    received.receive_until(&mut patient, |received| {
        let last = received.rows.last();
        received.rows.len() > before + 100 && last.is_some_and(|row| row.2 == "R")
    });
    assert_eq!(count(&mut patient, "source_returned"), 1);
    assert!(patient.messages().is_empty());
    let mut ids: Vec<i64> = received
        .rows
        .iter()
        .filter(|r| r.2 == "Q")
        .map(|r| r.1)
        .collect();
    let requests = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), requests, "no number is used again");
}
