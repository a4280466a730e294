//! The client with servers that violate the protocol.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::*;

/// Timeout if a response is expected, sufficient for a loaded machine.
const PATIENT: Duration = Duration::from_secs(20);

/// Timeout if no response is expected.
const IMPATIENT: Duration = Duration::from_millis(100);

const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "capabilities": ["oob"]}}"#;

/// A folder that is removed when dropped.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("qmp")
    }
}

/// Serves one client: sends the greeting, negotiates the capabilities, and then responds to each
/// line with the unmodified result of `answer` for its id.
fn serve(path: &Path, answer: impl Fn(&Value) -> String + Send + 'static) -> JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        writeln!(stream, "{GREETING}").unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        for line in lines.map_while(Result::ok) {
            let question: Value = serde_json::from_str(&line).unwrap();
            let id = question["id"].clone();
            let reply = match question["execute"] == "qmp_capabilities" {
                true => json!({"return": {}, "id": id}).to_string() + "\r\n",
                false => answer(&question),
            };
            if stream.write_all(reply.as_bytes()).is_err() {
                break;
            }
        }
    })
}

/// The client's result for the response `reply` (in which `ID` is replaced by the id).
fn ask(reply: &'static str, timeout: Duration) -> Result<Value, QmpError> {
    let folder = Folder::new();
    let server = serve(&folder.socket(), move |question| {
        reply.replace("ID", &question["id"].to_string())
    });
    let mut client = QmpClient::connect(&folder.socket(), PATIENT).unwrap();
    client.timeout_for_test(timeout);
    let answer = client.execute("query-status", Value::Null);
    drop(client);
    server.join().unwrap();
    answer
}

#[test]
fn events_and_stale_answers_in_between_are_skipped() {
    let reply = concat!(
        r#"{"event": "STOP", "timestamp": {"seconds": 1, "microseconds": 2}}"#,
        "\r\n\r\n",
        r#"{"return": {"status": "old"}, "id": 77}"#,
        "\n",
        r#"{"timestamp": {}, "event": "RESUME", "data": {"return": 1}}"#,
        "\n",
        r#"{"return": {"status": "running", "new-field": [1]}, "id": ID}"#,
        "\n",
    );
    assert_eq!(ask(reply, PATIENT).unwrap()["status"], "running");
}

#[test]
fn a_rejection_contains_qemus_message_and_the_connection_continues() {
    let folder = Folder::new();
    let server = serve(&folder.socket(), |question| {
        let id = &question["id"];
        let reply = match question["execute"] == "query-name" {
            true => json!({"return": {"name": "web1"}, "id": id}),
            false => json!({"error": {"class": "GenericError", "desc": "no such node"}, "id": id}),
        };
        format!("{reply}\n")
    });
    let mut client = QmpClient::connect(&folder.socket(), PATIENT).unwrap();
    let error = set_latency_histogram(&mut client, "/machine/x", None).unwrap_err();
    let socket = folder.socket();
    assert_eq!(
        error.to_string(),
        format!(
            "{}: block-latency-histogram-set was rejected: no such node",
            socket.display()
        )
    );
    assert!(error.is_refusal());
    assert_eq!(name(&mut client).unwrap().as_deref(), Some("web1"));
    drop(client);
    server.join().unwrap();
}

#[test]
fn what_is_not_qmp_is_an_error_that_shows_it() {
    for (reply, expected) in [
        ("not json\n", "this is not QMP"),
        ("{\"id\": ID}\n", "neither `return` nor `error`"),
        ("{\"return\": \"\u{1}\"}\n", "this is not QMP"),
    ] {
        let error = ask(reply, PATIENT).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn nested_without_end_is_an_error_and_no_overflow() {
    static DEEP: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let deep = DEEP.get_or_init(|| "[".repeat(1 << 20) + "\n");
    let error = ask(deep, PATIENT).unwrap_err();
    assert!(matches!(error, QmpError::Garbled { .. }), "{error}");
}

#[test]
fn silence_ends_with_the_timeout() {
    let error = ask("", IMPATIENT).unwrap_err();
    assert!(matches!(error, QmpError::Silent { .. }), "{error}");
    assert!(error.to_string().contains("no answer to query-status"));
    // An incomplete line is not a response.
    let error = ask("{\"return\": {}", IMPATIENT).unwrap_err();
    assert!(matches!(error, QmpError::Silent { .. }), "{error}");
}

#[test]
fn an_endless_line_is_cut_off() {
    let folder = Folder::new();
    let listener = UnixListener::bind(folder.socket()).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let chunk = vec![b'x'; 1 << 20];
        // Ends when the client disconnects.
        while stream.write_all(&chunk).is_ok() {}
    });
    let error = QmpClient::connect(&folder.socket(), PATIENT).unwrap_err();
    assert!(error.to_string().contains("a line of more than"), "{error}");
    server.join().unwrap();
}

#[test]
fn a_monitor_for_humans_is_not_mistaken() {
    let folder = Folder::new();
    let listener = UnixListener::bind(folder.socket()).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream
            .write_all(b"QEMU 7.2.22 monitor - type 'help'\r\n(qemu) ")
            .unwrap();
        let _ = stream.read(&mut [0; 64]);
    });
    let error = QmpClient::connect(&folder.socket(), PATIENT).unwrap_err();
    assert!(matches!(error, QmpError::Garbled { .. }), "{error}");
    server.join().unwrap();
}

#[test]
fn a_peer_that_hangs_up_is_gone() {
    let folder = Folder::new();
    let listener = UnixListener::bind(folder.socket()).unwrap();
    let server = thread::spawn(move || drop(listener.accept().unwrap()));
    let error = QmpClient::connect(&folder.socket(), PATIENT).unwrap_err();
    assert!(matches!(error, QmpError::Closed { .. }), "{error}");
    server.join().unwrap();
}

#[test]
fn a_missing_peer_is_reported_with_the_socket() {
    let folder = Folder::new();
    let error = QmpClient::connect(&folder.socket(), PATIENT).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains(&folder.socket().display().to_string()),
        "{text}"
    );
    assert!(text.contains("cannot be reached"), "{text}");
}

#[test]
fn a_socket_in_use_is_not_replaced() {
    let folder = Folder::new();
    // As QEMU does while it has a client: it listens, and does not accept.
    let listener = UnixListener::bind(folder.socket()).unwrap();
    let address = QmpAddress::Socket(folder.socket());
    let error = address.visit(IMPATIENT, status).unwrap_err();
    assert!(matches!(error, QmpError::Busy { .. }), "{error}");
    // The first visit waited in the queue; the second is not attempted.
    listener.accept().unwrap();
    listener.set_nonblocking(true).unwrap();
    let error = address.visit(PATIENT, status).unwrap_err();
    assert!(matches!(error, QmpError::Busy { .. }), "{error}");
    assert!(listener.accept().is_err(), "nobody came");
}

#[test]
fn a_full_queue_is_busy_and_no_wait() {
    let folder = Folder::new();
    let listener = UnixListener::bind(folder.socket()).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _first = UnixStream::connect(folder.socket()).unwrap();
    let error = QmpClient::connect(&folder.socket(), PATIENT).unwrap_err();
    assert!(matches!(error, QmpError::Busy { .. }), "{error}");
}

#[test]
fn visits_of_one_process_take_turns() {
    let folder = Folder::new();
    let listener = UnixListener::bind(folder.socket()).unwrap();
    // One client at a time, three in total.
    let server = thread::spawn(move || {
        for _ in 0..3 {
            let (mut stream, _) = listener.accept().unwrap();
            writeln!(stream, "{GREETING}").unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            for line in lines.map_while(Result::ok) {
                let question: Value = serde_json::from_str(&line).unwrap();
                let reply =
                    json!({"return": {"running": true, "status": "running"}, "id": question["id"]});
                writeln!(stream, "{reply}").unwrap();
            }
        }
    });
    let address = QmpAddress::Socket(folder.socket());
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert!(address.visit(PATIENT, status).unwrap().running));
        }
    });
    server.join().unwrap();
}

#[test]
fn counters_and_histograms_are_read_and_what_is_absent_is_unknown() {
    let reply = r#"{"return": [
        {"device": "", "qdev": "/machine/peripheral/d/virtio-backend", "node-name": "n0", "stats": {
            "rd_operations": 3, "rd_bytes": 12288, "rd_total_time_ns": 900, "rd_merged": 1,
            "failed_rd_operations": 2, "invalid_rd_operations": 4, "unmap_operations": 5,
            "rd_latency_histogram": {"boundaries": [10, 20], "bins": [1, 0, 2]},
            "wr_latency_histogram": {"boundaries": [10, 20], "bins": [1]}}},
        {"device": "no stats"}], "id": ID}"#;
    static LINE: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let line = LINE.get_or_init(|| reply.replace('\n', "") + "\n");
    let folder = Folder::new();
    let server = serve(&folder.socket(), |question| {
        line.replace("ID", &question["id"].to_string())
    });
    let address = QmpAddress::Socket(folder.socket());
    let all = address.visit(PATIENT, block_stats).unwrap();
    server.join().unwrap();
    assert_eq!(all.len(), 1);
    let disk = &all[0];
    assert_eq!(
        (disk.drive.as_deref(), disk.node.as_deref()),
        (None, Some("n0"))
    );
    let read = OpStats {
        operations: Some(3),
        bytes: Some(12288),
        time_ns: Some(900),
        failed: Some(2),
        invalid: Some(4),
        merged: Some(1),
    };
    assert_eq!((disk.read, disk.write), (read, OpStats::default()));
    assert_eq!(disk.discard.operations, Some(5));
    let histogram = disk.latencies.read.as_ref().unwrap();
    assert_eq!(histogram.bins, [1, 0, 2]);
    assert_eq!(disk.latencies.write, None, "a bin too few");
}

/// A replacement of virsh, with `script` as its body.
fn virsh(folder: &Folder, script: &str, timeout: Duration) -> Virsh {
    let program = folder.0.path().join("virsh");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    Virsh::run_by(
        program.to_str().unwrap(),
        "qemu:///session",
        "web1",
        timeout,
    )
}

#[test]
fn virsh_carries_question_and_answer() {
    let folder = Folder::new();
    let script =
        r#"printf '%s|' "$@" > "$0.args"; echo '{"return":{"name":"web1"},"id":"libvirt-9"}'"#;
    let mut domain = virsh(&folder, script, PATIENT);
    assert_eq!(name(&mut domain).unwrap().as_deref(), Some("web1"));
    let args = fs::read_to_string(folder.0.path().join("virsh.args")).unwrap();
    assert_eq!(
        args,
        "-q|-c|qemu:///session|qemu-monitor-command|--domain|web1|{\"execute\":\"query-name\"}|"
    );
}

#[test]
fn virsh_fails_in_words() {
    let folder = Folder::new();
    let mut domain = virsh(
        &folder,
        "echo \"error: failed to get domain 'web1'\" >&2; exit 1",
        PATIENT,
    );
    let error = status(&mut domain).unwrap_err();
    assert_eq!(
        error.to_string(),
        "qemu:///session (domain web1): cannot be reached: failed to get domain 'web1'"
    );
    let refusal = r#"echo '{"id":"libvirt-9","error":{"class":"CommandNotFound","desc":"what?"}}'"#;
    let error = status(&mut virsh(&folder, refusal, PATIENT)).unwrap_err();
    assert!(
        error.is_refusal() && error.to_string().ends_with("what?"),
        "{error}"
    );
    let error = status(&mut virsh(&folder, "echo hm", PATIENT)).unwrap_err();
    assert!(matches!(error, QmpError::Garbled { .. }), "{error}");
}

#[test]
fn virsh_that_hangs_is_ended() {
    let folder = Folder::new();
    let mut domain = virsh(&folder, "exec sleep 600", IMPATIENT);
    let started = Instant::now();
    let error = status(&mut domain).unwrap_err();
    assert!(matches!(error, QmpError::Silent { .. }), "{error}");
    assert!(
        started.elapsed() < Duration::from_secs(300),
        "it did not wait for the program"
    );
}
