//! A host's cable forwards and counts packets, and can be disconnected, reconnected and limited.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Stdio};
use std::time::Duration;

use weir_testing::{Cable, TestHost};

/// A host, or a message that `test` is skipped.
fn host(test: &str) -> Option<TestHost> {
    match TestHost::new() {
        Ok(host) => Some(host),
        Err(why) => {
            weir_testing::skipped(test, format_args!("{why:#}"));
            None
        }
    }
}

/// A program on the host that sends its input over `protocol` to `to`.
fn sender(host: &TestHost, protocol: &str, to: SocketAddr) -> Child {
    let wait_for_line = format!("exec cat > /dev/{protocol}/{}/{}", to.ip(), to.port());
    let mut command = host.command("bash");
    command.args(["-c", &wait_for_line]).stdin(Stdio::piped());
    command.spawn().unwrap()
}

fn connected(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    let timeout = Some(Duration::from_secs(60));
    stream.set_read_timeout(timeout).unwrap();
    stream
}

#[test]
fn traffic_is_counted_and_a_cut_cable_drops_everything() {
    let Some(host) = host("traffic_is_counted_and_a_cut_cable_drops_everything") else {
        return;
    };
    let listener = TcpListener::bind((host.gateway(), 0)).unwrap();
    let mut sender = sender(&host, "tcp", listener.local_addr().unwrap());
    let mut output = sender.stdin.take().unwrap();
    let mut stream = connected(&listener);
    assert_eq!(stream.peer_addr().unwrap().ip(), host.address());

    let before = host.traffic().unwrap();
    let piece = vec![7; 1 << 20];
    let writing = piece.clone();
    let writer = std::thread::spawn(move || {
        output.write_all(&writing).unwrap();
        output
    });
    let mut received = vec![0; piece.len()];
    stream.read_exact(&mut received).unwrap();
    assert!(received == piece);
    let mut output = writer.join().unwrap();
    let after = host.traffic().unwrap();
    let sent = after.sent_bytes - before.sent_bytes;
    // Headers are a few percent of full packets, and acknowledgements are sent back.
    assert!((1 << 20..5 << 18).contains(&sent), "{sent} bytes sent");
    assert!(after.received_bytes > before.received_bytes);

    host.cut().unwrap();
    let before = host.traffic().unwrap();
    output.write_all(b"x").unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    assert!(stream.read(&mut [0; 1]).is_err(), "a cut passes nothing");
    assert_eq!(host.traffic().unwrap().sent_bytes, before.sent_bytes);
    host.mend().unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut received = [0; 1];
    stream.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"x");
    drop(output);
    sender.wait().unwrap();
}

#[test]
fn a_short_queue_drops_bursts() {
    let Some(host) = host("a_short_queue_drops_bursts") else {
        return;
    };
    host.shape(Cable {
        bytes_per_second: 20_000,
        queue_bytes: 3_000,
    })
    .unwrap();
    let socket = UdpSocket::bind((host.gateway(), 0)).unwrap();
    // Each line is a packet of its own, more than the bucket and the queue can hold.
    let to = socket.local_addr().unwrap();
    let line = "x".repeat(1_000);
    let all = format!(
        "exec 3>/dev/udp/{}/{}; for i in {{1..20}}; do echo {line} >&3; done",
        to.ip(),
        to.port()
    );
    let status = host.command("bash").args(["-c", &all]).status().unwrap();
    assert!(status.success());
    socket
        .set_read_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    let mut received = 0;
    while socket.recv(&mut [0; 2_000]).is_ok() {
        received += 1;
    }
    assert!((1..20).contains(&received), "{received} of 20 packets came");
}

#[test]
fn hosts_reach_this_machine_at_any_of_its_addresses() {
    let Some(host) = host("hosts_reach_this_machine_at_any_of_its_addresses") else {
        return;
    };
    let other = TestHost::new().unwrap();
    let listener = TcpListener::bind((host.gateway(), 0)).unwrap();
    let mut sender = sender(&other, "tcp", listener.local_addr().unwrap());
    let stream = connected(&listener);
    assert_eq!(stream.peer_addr().unwrap().ip(), other.address());
    drop(sender.stdin.take());
    sender.wait().unwrap();
    let name = other.name().to_owned();
    assert!(std::path::Path::new("/run/netns").join(&name).exists());
    drop(other);
    assert!(!std::path::Path::new("/run/netns").join(&name).exists());
    assert!(!std::path::Path::new("/sys/class/net").join(&name).exists());
}
