//! Connections without requests use no processor time.

use std::fs;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use weir_tapdisk::nbd::{self, Export};
use weir_tapdisk::{DiskOptions, ServedDisk, StopEvent};
use weir_testing::{Scratch, skipped, wait_until};

use crate::client::{Ask, Client, READ, WRITE};
use crate::server::noise;

/// Concurrent connections, more than most test machines have processors.
const CONNECTIONS: u64 = 16;

/// Requests of a connection, enough for several trials of polling.
const REQUESTS: u64 = 500;

/// Whether a thread of this process is in ppoll(2) without a timeout: only an event wakes it.
fn sleeps(thread: i32) -> bool {
    // The number of the system call and its arguments in hexadecimal, or `running`.
    let call = fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap();
    let words: Vec<&str> = call.split_whitespace().collect();
    words.first() == Some(&libc::SYS_ppoll.to_string().as_str()) && words.get(3) == Some(&"0x0")
}

/// Writes and reads a block, one request at a time, beside other connections.
fn work(client: &mut Client, number: u64) {
    for round in 0..REQUESTS / 2 {
        let data = noise(512, number * REQUESTS + round);
        let ask = |kind| Ask {
            kind,
            cookie: round,
            offset: number * 4096,
            length: 512,
            flags: 0,
        };
        assert_eq!(client.ask(ask(WRITE), &data).error, 0);
        assert_eq!(client.ask(ask(READ), &[]).data, data);
    }
}

#[test]
fn the_threads_of_idle_connections_sleep_without_a_timeout() {
    if fs::read_to_string("/proc/thread-self/syscall").is_err() {
        return skipped(
            "the_threads_of_idle_connections_sleep_without_a_timeout",
            "the kernel does not show system calls",
        );
    }
    let folder = Scratch::new();
    let image = folder.path().join("disk.raw");
    fs::write(&image, vec![0; 1 << 20]).unwrap();
    let disk = ServedDisk::open(DiskOptions::new(image)).unwrap();
    let exports = Arc::new([Export::new("disk", disk)]);
    let stop = StopEvent::new().unwrap();
    let (started, threads) = channel();
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (exports, stop, started) = (Arc::clone(&exports), stop.clone(), started.clone());
        servers.push(thread::spawn(move || {
            let thread = rustix::thread::gettid().as_raw_nonzero().get();
            started.send(thread).unwrap();
            nbd::serve_client(theirs.into(), &exports[..], &stop)
        }));
        clients.push(Client::new(ours, "disk", false));
    }
    let threads: Vec<i32> = threads.iter().take(CONNECTIONS as usize).collect();
    let all_sleep = || threads.iter().all(|thread| sleeps(*thread));
    wait_until("connections without a request sleep", all_sleep);
    thread::scope(|scope| {
        for (number, client) in (0..).zip(&mut clients) {
            scope.spawn(move || work(client, number));
        }
    });
    wait_until("connections after their requests sleep", all_sleep);
    // A stop wakes them.
    stop.raise();
    for server in servers {
        server.join().unwrap().unwrap();
    }
}
