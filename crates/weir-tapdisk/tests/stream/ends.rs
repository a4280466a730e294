//! Either side is killed.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use weir_model::{Demand, Fold, FoldCall, Folded, PartialKind};
use weir_tap::tapdisk::{TapdiskOptions, TapdiskTap, open};
use weir_tap::{FOLDED, Tap, TapEvent};
use weir_tapdisk::{ControlServer, SocketAccess, StopEvent};
use weir_testing::wait_until;

use super::groups_by_definition::column;
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

#[test]
fn the_groups_of_a_killed_tap_are_delivered_and_those_of_the_next_one() {
    const INTERVAL: i64 = 200_000_000;
    let scratch = TapFolder::new();
    let tap = Process::start(&scratch.socket());
    let count_all = FoldCall {
        column: None,
        keep: PartialKind::Moments,
    };
    let demand = Demand {
        stream: "IO".into(),
        fold: Some(Fold {
            interval: INTERVAL,
            keys: vec![column("op")],
            calls: vec![count_all],
        }),
        ..all()[0].clone()
    };
    let patient = TapdiskOptions {
        timeout: Duration::from_secs(120),
        ..options(1 << 20)
    };
    let mut opened = None;
    wait_until("the tap is open", || {
        let demand = demand.clone();
        opened = open(&scratch.socket(), &[demand], patient.clone()).ok();
        opened.is_some()
    });
    let mut tap_of_groups = opened.unwrap();
    let described = tap_of_groups.describe().join("\n");
    assert!(described.contains("tapdisk: groups by op"), "{described}");
    let (mut groups, mut heartbeat) = (Vec::new(), 0);
    let mut receive = |tap: &mut TapdiskTap, enough: &dyn Fn(&[Folded]) -> bool| {
        while !enough(&groups) {
            match tap.next(Duration::from_millis(2)).unwrap() {
                TapEvent::Folded { folded, .. } => {
                    assert!(folded.end > heartbeat, "no interval is late");
                    groups.push(folded);
                }
                TapEvent::Heartbeat(at) => heartbeat = at,
                TapEvent::Rows { .. } | TapEvent::Quiet => {}
                TapEvent::End => panic!("{:?}", tap.messages()),
            }
        }
        groups.len()
    };
    let before = receive(&mut tap_of_groups, &|groups| groups.len() >= 3);
    drop(tap);
    let _tap = Process::start(&scratch.socket());
    receive(&mut tap_of_groups, &|groups| groups.len() > before + 4);
    assert_eq!(count(&mut tap_of_groups, "source_returned"), 1);
    assert_eq!(count(&mut tap_of_groups, "bad_records"), 0);
    // Those of the interval in which it was killed came from the memory that it has left.
    groups.extend(tap_of_groups.close().into_iter().map(|(_, folded)| folded));
    let folded: u64 = groups.iter().map(Folded::requests).sum();
    assert_eq!(count(&mut tap_of_groups, FOLDED), folded as i64);
}
