//! The log of a service: its events, and the format of a line.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::support::{Scratch, run, weir};

/// The time that a monitor may take to start.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A command that runs a monitor.
fn monitor(scratch: &Scratch, args: &[&str]) -> Command {
    let listen = format!("unix:{}", scratch.path().join("monitor.sock").display());
    let state = scratch.path().join("state").display().to_string();
    let own = ["monitor", "--listen", &listen, "--state", &state];
    let mut command = weir(&[&own, args].concat());
    command.env_remove("WEIR_LOG").env_remove("JOURNAL_STREAM");
    command
}

/// Runs it until it accepts connections, and returns what it logged to file `log`.
fn logged(scratch: &Scratch, mut command: Command) -> String {
    let mut options = File::options();
    let log = options
        .append(true)
        .create(true)
        .open(scratch.path().join("log"));
    let log = log.unwrap();
    let mut child: Child = command.stderr(log).spawn().unwrap();
    let started = Instant::now();
    while !scratch.path().join("monitor.sock").exists() {
        assert!(started.elapsed() < TIMEOUT, "{}", scratch.read("log"));
        assert!(
            child.try_wait().unwrap().is_none(),
            "{}",
            scratch.read("log")
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").arg(pid).status().unwrap().success());
    assert!(child.wait().unwrap().success());
    scratch.read("log")
}

#[test]
fn a_line_has_its_time_and_level() {
    let scratch = Scratch::new();
    let log = logged(&scratch, monitor(&scratch, &[]));
    let (time, event) = log.split_once(' ').unwrap();
    let digits = time.replace(|c: char| c.is_ascii_digit(), "0");
    assert_eq!(digits, "0000-00-00T00:00:00.000000Z", "{log}");
    assert!(event.starts_with(" INFO listening address=unix:/"), "{log}");
}

#[test]
fn the_journal_receives_priorities_without_time() {
    let scratch = Scratch::new();
    let log = fs::metadata(scratch.write("log", "")).unwrap();
    let mut command = monitor(&scratch, &[]);
    command.env("JOURNAL_STREAM", format!("{}:{}", log.dev(), log.ino()));
    let log = logged(&scratch, command);
    assert!(log.starts_with("<6>listening address=unix:/"), "{log}");
    // If the log is redirected to another file, its lines have no priority prefix.
    let scratch = Scratch::new();
    let mut command = monitor(&scratch, &[]);
    command.env("JOURNAL_STREAM", "8:12345");
    assert!(!logged(&scratch, command).starts_with('<'));
}

#[test]
fn the_level_is_chosen_by_option_or_variable() {
    for (args, variable, is_logged) in [
        (&["--log-level", "warn"][..], None, false),
        (&[][..], Some("error"), false),
        (&[][..], Some("info,weir=warn"), false),
        (&["--log-level", "info"][..], Some("error"), true),
    ] {
        let scratch = Scratch::new();
        let mut command = monitor(&scratch, args);
        command.envs(variable.map(|filter| ("WEIR_LOG", filter)));
        let log = logged(&scratch, command);
        assert_eq!(log.contains("listening"), is_logged, "{args:?}: {log}");
    }
}

#[test]
fn a_wrong_level_is_refused_before_anything_runs() {
    let scratch = Scratch::new();
    let output = run(&["monitor", "--log-level", "loud"]);
    assert_eq!(output.code, 2);
    assert!(
        output.err.contains("error, warn, info, debug, trace"),
        "{}",
        output.err
    );
    let mut command = monitor(&scratch, &[]);
    let output = command.env("WEIR_LOG", "weir=loud").output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.starts_with("weir: WEIR_LOG=weir=loud: "), "{err}");
}

#[test]
fn a_service_that_fails_logs_an_error() {
    let scratch = Scratch::new();
    let image = scratch.path().join("no\x1b[31m.raw");
    let socket = scratch.path().join("s").display().to_string();
    let args = [
        "tapdisk",
        "--image",
        image.to_str().unwrap(),
        "--socket",
        &socket,
    ];
    let output = run(&args);
    assert_eq!(output.code, 1);
    assert!(output.err.contains("Z ERROR "), "{}", output.err);
    assert!(output.err.contains("no\\x1b[31m.raw"), "{}", output.err);
}
