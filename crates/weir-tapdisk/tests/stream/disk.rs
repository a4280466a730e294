//! An I/O queue of a real disk: its records equal the requests and their outcomes.
#![allow(unsafe_code)] // An I/O queue receives memory by its address.

use std::fs::File;
use std::sync::Arc;

use libc::iovec;
use weir_model::event::io_schema;
use weir_model::{Batch, Op, Value};
use weir_tap::tapdisk::words::DiskFigures;
use weir_tapdisk::{DiskOptions, IoQueue, IoQueueOptions, Outcome, Request, ServedDisk};

use super::simulated_queues::{Received, TestTap, all};

const BLOCK: usize = 4096;

/// The columns that are compared, and the values of a row of an end, by CQL's names.
const COLUMNS: [&str; 8] = [
    "type",
    "op",
    "sector",
    "sectors",
    "error",
    "in_flight",
    "seek",
    "flags",
];

fn row(batch: &Batch, row: usize) -> Vec<String> {
    let schema = io_schema();
    let value = |name: &&str| batch.columns[schema.index(name)].value(row).to_string();
    COLUMNS.iter().map(value).collect()
}

fn int(batch: &Batch, row: usize, name: &str) -> Option<i64> {
    match batch.columns[io_schema().index(name)].value(row) {
        Value::Int(x) => Some(x),
        _ => None,
    }
}

/// Requests one by one, each to its end.
fn run(io_queue: &mut IoQueue, requests: &[Request]) -> Vec<Outcome> {
    let mut memory = vec![0_u8; 4 * BLOCK];
    let mut done = Vec::new();
    for (token, request) in requests.iter().enumerate() {
        let moves = matches!(request.op, Op::Read | Op::Write);
        let pieces = [iovec {
            iov_base: memory.as_mut_ptr().cast(),
            iov_len: request.bytes.min(4 * BLOCK as u64) as usize,
        }];
        let pieces = if moves { &pieces[..] } else { &[] };
        io_queue.begin();
        // SAFETY: the memory outlives the request, which is completed here.
        unsafe {
            io_queue.enqueue(*request, pieces, token as u64);
        }
        io_queue.drain(&mut done).unwrap();
        io_queue.end();
    }
    done.iter().map(|done| done.outcome).collect()
}

#[test]
fn records_match_the_requests_of_an_io_queue() {
    let mut test_tap = TestTap::new(0);
    let image = test_tap.scratch.socket().with_extension("raw");
    File::create(&image)
        .unwrap()
        .set_len(256 * BLOCK as u64)
        .unwrap();
    let options = DiskOptions {
        vm: Some("web".into()),
        vdisk: Some("/dev/vda".into()),
        ..DiskOptions::new(&image)
    };
    let disk = ServedDisk::open(options).unwrap();
    disk.attach(&test_tap.hub, Arc::new(DiskFigures::default))
        .unwrap();
    let mut tap = test_tap.open(&all(), 16 << 20);
    let mut io_queue = IoQueue::new(&disk, IoQueueOptions { queue: 3, depth: 8 }).unwrap();
    let request = |op, block: u64, blocks: u64, fua| Request {
        op,
        sector: block * 8,
        skip_bytes: 0,
        bytes: blocks * BLOCK as u64,
        fua,
        unmap: false,
    };
    let requests = [
        request(Op::Write, 0, 2, false),
        request(Op::Write, 2, 1, true),
        request(Op::Read, 0, 1, false),
        request(Op::Flush, 0, 0, false),
        request(Op::WriteZeroes, 8, 4, false),
        // Beyond the end.
        request(Op::Read, 256, 1, false),
    ];
    let outcomes = run(&mut io_queue, &requests);
    assert_eq!(outcomes[..5], [Outcome::Done; 5]);
    assert_eq!(outcomes[5], Outcome::Failed(libc::EINVAL));
    drop(io_queue);
    test_tap.end();
    let mut received = Received::default();
    received.receive_until(&mut tap, |_| false);
    let batches = || {
        received
            .batches
            .iter()
            .flat_map(|b| (0..b.len()).map(move |i| (b, i)))
    };
    let rows: Vec<String> = batches().map(|(b, i)| row(b, i).join(" ")).collect();
    let expected = [
        "w 0 16 NULL 1 NULL",
        "w 16 8 NULL 1 1",
        "r 0 8 NULL 1 -23",
        "f NULL 0 NULL 1 NULL",
        "z 64 32 NULL 1 57",
        "r 2048 8 22 1 NULL",
    ];
    let mut both = Vec::new();
    for (number, recorded) in expected.iter().enumerate() {
        let flags = if number == 1 { "F" } else { "" };
        let asked = recorded.replace("22", "NULL");
        let end = if number == 5 { "E" } else { "R" };
        both.extend([
            format!("Q {asked} {flags}"),
            format!("{end} {recorded} {flags}"),
        ]);
    }
    assert_eq!(rows, both);
    let ends: Vec<_> = batches().filter(|(b, i)| row(b, *i)[0] != "Q").collect();
    let asked: Vec<_> = batches().filter(|(b, i)| row(b, *i)[0] == "Q").collect();
    let mut previous = None;
    for ((end, i), (ask, j)) in ends.iter().zip(asked) {
        let of_end = |name| int(end, *i, name);
        let since = previous.replace(ask.ts[j]).map(|ts| ask.ts[j] - ts);
        assert_eq!(of_end("interarrival"), since);
        assert_eq!(int(ask, j, "interarrival"), since);
        assert_eq!(of_end("req_id"), int(ask, j, "req_id"));
        assert_eq!(of_end("issue_ts"), int(ask, j, "ts"), "the pair is known");
        assert_eq!(of_end("latency"), Some(end.ts[*i] - ask.ts[j]));
        let parts = of_end("wait")
            .zip(of_end("service"))
            .map(|(wait, service)| wait + service);
        // A rejected request was never submitted.
        assert_eq!(parts, of_end("latency").filter(|_| row(end, *i)[0] == "R"));
    }
    let counters = disk.counters();
    assert_eq!(counters.of(Op::Write).requests, 2);
}
