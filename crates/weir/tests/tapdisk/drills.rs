//! `--delay` and `--error`: the responses to a client, the counters and the reported requests.

use std::process::Command;

use serde_json::json;

use crate::process::{Query, Scratch, Tapdisk, ready};

/// Runs commands of qemu-io on the only export of an NBD socket; returns whether they succeeded,
/// and the output.
fn qemu_io(socket: &str, commands: &[&str]) -> (bool, String) {
    let mut io = Command::new("timeout");
    io.args(["60", "qemu-io", "-f", "raw"]);
    io.args(commands.iter().flat_map(|command| ["-c", command]));
    let output = io
        .arg(format!("nbd+unix:///?socket={socket}"))
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    (
        output.status.success(),
        printed + &String::from_utf8_lossy(&output.stderr),
    )
}

#[test]
fn injected_errors_fail_requests_and_are_recorded() {
    const TEST: &str = "injected_errors_fail_requests_and_are_recorded";
    let Some(_turn) = ready(TEST, &["qemu-io"]) else {
        return;
    };
    let scratch = Scratch::new();
    let (image, socket) = (scratch.image("a.raw", 4), scratch.file("nbd"));
    let nbd = format!("unix:{socket}");
    let tapdisk = Tapdisk::start(&[
        "--image",
        &image,
        "--nbd",
        &nbd,
        "--vm",
        "drill",
        "--vdisk",
        "/dev/vda",
        "--error",
        "ENOSPC,op=w,sectors=2048..4096,times=1",
        "--delay",
        "20ms,op=r",
    ]);
    let query = Query::start(
        &tapdisk,
        "select op, type, error, sector, service >= 20 ms as late, count(*) as n from IO \
         group by op, type, error, sector, service >= 20 ms",
    );
    let (failed, printed) = qemu_io(&socket, &["write -P 1 1M 4k"]);
    assert!(!failed && printed.contains("No space left"), "{printed}");
    let (fine, printed) = qemu_io(
        &socket,
        &["write -P 2 1M 4k", "read -P 2 1M 4k", "write -P 3 0 4k"],
    );
    assert!(
        fine,
        "once is enough, and elsewhere nothing fails: {printed}"
    );
    assert_eq!(tapdisk.figure("w", "errors"), 1);
    let (rows, printed) = query.stop();
    assert!(!printed.contains("lost"), "{printed}");
    let emitted = |kind: &str, op: &str, sector: u64| {
        rows.iter()
            .find(|r| r["type"] == kind && r["op"] == op && r["sector"] == sector)
    };
    let error = emitted("E", "w", 2048).expect("the failure is reported");
    assert_eq!(
        (&error["error"], &error["n"]),
        (&json!(28), &json!(1)),
        "{rows:?}"
    );
    assert_eq!(
        emitted("R", "w", 2048).expect("the second write is reported")["n"],
        1,
        "{rows:?}"
    );
    assert!(emitted("R", "w", 0).is_some(), "{rows:?}");
    let read = emitted("R", "r", 2048).expect("the read is reported");
    assert_eq!(read["late"], true, "a delay is service: {rows:?}");
    tapdisk.stop();
}
