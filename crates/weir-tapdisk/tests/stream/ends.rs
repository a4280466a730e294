//! What happens when either side is killed.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use weir_tap::Tap;
use weir_tap::tapdisk::{TapdiskOptions, TapdiskTap, open};
use weir_tapdisk::{Access, Listening, Stop};

use super::lanes::{Heard, Lane, Scratch, all, count, hub, options};

/// Tells the process that is a tap where to listen.
const SOCKET: &str = "WEIR_TEST_TAP_SOCKET";

/// Not a test but a tap, in a process that a test starts.
#[test]
fn is_a_tap() {
    let Some(socket) = std::env::var_os(SOCKET) else {
        return;
    };
    let (hub, stop) = (hub(1), Stop::new().unwrap());
    let listening = Listening::start(&hub, Path::new(&socket), Access::default(), &stop);
    let _listening = listening.unwrap();
    let mut lane = Lane::new(&hub, 0, 0, 1);
    loop {
        lane.round();
        lane.told.clear();
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
        if let Ok(tap) = open(socket, &all(), options) {
            return tap;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("the tap does not listen at {}", socket.display());
}

#[test]
fn a_tap_that_is_killed_ends_with_a_word_or_is_waited_for() {
    let scratch = Scratch::new();
    let tap = Process::start(&scratch.socket());
    let mut hasty = opened(&scratch.socket(), options(1 << 20));
    let patient = TapdiskOptions {
        patience: Duration::from_secs(120),
        ..options(1 << 20)
    };
    let mut patient = opened(&scratch.socket(), patient);
    let (mut hasty_heard, mut heard) = (Heard::default(), Heard::default());
    hasty_heard.hear(&mut hasty, |heard| heard.rows.len() > 100);
    heard.hear(&mut patient, |heard| heard.rows.len() > 100);
    drop(tap);
    hasty_heard.hear(&mut hasty, |_| false);
    assert!(hasty.messages()[0].contains("ended without a word"));
    let before = heard.rows.len();
    // The dead one's socket is still there.
    let _tap = Process::start(&scratch.socket());
    heard.hear(&mut patient, |heard| {
        let last = heard.rows.last();
        heard.rows.len() > before + 100 && last.is_some_and(|row| row.2 == "R")
    });
    assert_eq!(count(&mut patient, "source_returned"), 1);
    assert!(patient.messages().is_empty());
    let mut ids: Vec<i64> = heard
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
