//! Random recordings, written by weir: NULLs, ties, negative and huge values, several VMs and
//! disks.

use std::path::Path;

use fastrand::Rng;
use weir_model::{Event, EventKind, IoBatch, IoEvent, Level, Op, Symbol};
use weir_tap::format::Header;
use weir_tap::format::TraceWriter;
use weir_tap::format::recording::RecordingWriter;

#[path = "../../../weir-tap/tests/traces/random_requests.rs"]
mod random_requests;

use random_requests::{Irregularity, Load};

/// The start of a window of 1000 s that contains every recording.
pub const START_NS: i64 = 1_700_000_000_000_000_000;

/// Times are whole microseconds: Python's have no more digits.
const TICK_NS: i64 = 1_000;

/// Texts with ties, upper case, digits, blanks and other characters; one is empty.
pub const TEXTS: [&str; 8] = [
    "fio",
    "Fio",
    "kworker/0:1",
    "42",
    " x ",
    "",
    "Ünal",
    "a-b-c",
];

/// Writes a recording of at most `rows` rows; returns those of `IO`, as their
/// times.
pub fn write(path: &Path, rows: usize, rng: &mut Rng) -> Vec<i64> {
    let header = Header {
        source: "a test".into(),
        ..Header::default()
    };
    let mut writer = RecordingWriter::create(path, &header).expect("the folder is writable");
    let mut ts = START_NS + TICK_NS * rng.i64(1..5_000_000);
    let step_max = [2, 40, 500_000, 4_000_000][rng.usize(0..4)];
    let count = rng.usize(0..=rows);
    let events: Vec<IoEvent> = (0..count)
        .map(|row| {
            ts += TICK_NS * rng.i64(0..step_max);
            event(ts, row as i64, rng)
        })
        .collect();
    for group in events.chunks(1 + rng.usize(0..40)) {
        writer
            .write(&IoBatch::new(None).build(group))
            .expect("the disk has space");
        writer.flush_group().expect("the disk has space");
    }
    Box::new(writer).finish().expect("the disk has space");
    let completed = events
        .iter()
        .filter(|event| event.event.kind != EventKind::Request);
    completed.map(|event| event.event.ts).collect()
}

/// Writes a recording of requests and their responses, some of them special, with times in
/// multiples of `tick_ns`.
pub fn write_requests(path: &Path, seed: u64, tick_ns: i64) {
    let irregularity = Irregularity {
        tick_ns,
        one_in: Some(10),
    };
    let mut load = Load::new(seed, irregularity);
    let mut events = Vec::new();
    (0..400).for_each(|_| load.request(&mut events));
    load.finish(&mut events);
    let mut writer = RecordingWriter::create(path, &Header::default()).expect("it is writable");
    for group in events.chunks(150) {
        let batch = IoBatch::new(None).build(group);
        writer.write(&batch).expect("the disk has space");
        writer.flush_group().expect("the disk has space");
    }
    Box::new(writer).finish().expect("the disk has space");
}

/// A row whose `req_id` is its number, so that an order by it is total.
fn event(ts: i64, row: i64, rng: &mut Rng) -> IoEvent {
    let kinds = [
        EventKind::Response,
        EventKind::Response,
        EventKind::Error,
        EventKind::Request,
    ];
    let kind = rng.choice(kinds).expect("there are kinds");
    let op = rng
        .choice([Op::Read, Op::Write, Op::Flush])
        .expect("there are operations");
    let sector = number(rng, &[0, 8, 16, -8, 1 << 40, (1 << 53) + 1]);
    let sectors = rng
        .choice([0, 1, 8, 8, 8, 64, 1 << 20])
        .expect("there are sizes");
    let mut event = Event::new(ts, kind, op, row, sector, sectors);
    event.vm = text(rng, &["vm1", "vm2", "vm3"]);
    event.vdisk = text(rng, &["/dev/vda", "/dev/vdb"]);
    event.pdisk = text(rng, &["/dev/sda", "/dev/sdb", "/var/x.qcow2"]);
    event.comm = text(rng, &TEXTS);
    event.level = rng
        .choice([Level::Block, Level::Vdisk])
        .expect("there are levels");
    event.pid = number(rng, &[0, 1, 2, 3, 7, 4711]);
    event.cpu = number(rng, &[0, 1]);
    event.error = number(rng, &[5, 28, -5, 1 << 40]);
    event.merges = number(rng, &[0, 1, 2, -3]);
    let is_done = kind != EventKind::Request;
    let mut duration = |values: &[i64]| is_done.then(|| number(rng, values)).flatten();
    IoEvent {
        wait_ns: duration(&[0, 10, 1_500, 20_000, -7]),
        service_ns: duration(&[90, 20_000, 1_000_000, 3_600_000_000_000]),
        latency_ns: duration(&[100, 20_000, 1_000_000, 2_345_678, 1 << 61]),
        in_flight: duration(&[1, 2, 3, 32]),
        seek_sectors: duration(&[1, 8, -16, 1 << 41]),
        interarrival_ns: duration(&[0, 700, 90_000, 1 << 42]),
        issue_ts: duration(&[1, 5, 700_000]).map(|before| ts - TICK_NS * before),
        ..IoEvent::new(event)
    }
}

/// One of `values`, or NULL.
fn number(rng: &mut Rng, values: &[i64]) -> Option<i64> {
    match rng.u8(0..6) {
        0 => None,
        _ => rng.choice(values.iter().copied()),
    }
}

fn text(rng: &mut Rng, values: &[&str]) -> Option<Symbol> {
    match rng.u8(0..6) {
        0 => None,
        _ => rng.choice(values.iter().map(|text| Symbol::new(text))),
    }
}
