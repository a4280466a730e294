//! Streams `blockstats` and `blocklatency` match the I/O that QEMU performed.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use weir_model::qemu::{blocklatency_schema, blockstats_schema};
use weir_model::{Demand, Predicate, Schema, Value};
use weir_tap::qmp::{BlockStats, QmpTap, block_stats, set_latency_histogram, tap};
use weir_tap::{Tap, TapEvent};

use crate::machine::{Machine, PATIENT};

const DISK0: &str = "/machine/peripheral/disk0/virtio-backend";

/// Rows with their schema.
struct Rows {
    schema: Schema,
    rows: Vec<Vec<Value>>,
}

impl Rows {
    /// The sum of an integer column over the rows of a disk and operation.
    fn sum(&self, column: &str, vdisk: &str, op: &str) -> i64 {
        let of = |row: &&Vec<Value>| {
            self.is(row, "vm", "still") && self.is(row, "vdisk", vdisk) && self.is(row, "op", op)
        };
        let number = |row: &Vec<Value>| match row[self.schema.index(column)] {
            Value::Int(x) => x,
            _ => 0,
        };
        self.rows.iter().filter(of).map(number).sum()
    }

    fn is(&self, row: &[Value], column: &str, text: &str) -> bool {
        row[self.schema.index(column)] == Value::text(text)
    }
}

fn open(machine: &Machine, stream: &str, schema: &Schema) -> QmpTap {
    let demand = Demand {
        stream: stream.into(),
        columns: (0..schema.len()).collect(),
        predicate: Predicate::all(),
        fold: None,
    };
    let snapshot = machine.snapshot();
    let look = Box::new(move || snapshot.clone());
    tap::open(&[demand], look, Duration::from_millis(100)).unwrap()
}

/// Reads from the tap until `enough`.
fn read(tap: &mut QmpTap, schema: Schema, enough: impl Fn(&Rows) -> bool) -> Rows {
    let mut rows = Rows {
        schema,
        rows: Vec::new(),
    };
    let until = Instant::now() + PATIENT;
    let mut last = i64::MIN;
    while !enough(&rows) {
        assert!(Instant::now() < until, "it comes in time: {:?}", rows.rows);
        match tap.next(Duration::from_millis(50)).unwrap() {
            TapEvent::Rows { demand, batch } => {
                assert_eq!(demand, 0);
                assert!(batch.ts.iter().all(|&ts| ts > last), "no row is late");
                rows.rows.extend((0..batch.len()).map(|i| batch.row(i)));
            }
            TapEvent::Heartbeat(at) => last = at,
            other => panic!("{other:?}"),
        }
    }
    rows
}

fn disk0(machine: &Machine) -> BlockStats {
    let all = machine.own().visit(PATIENT, block_stats).unwrap();
    let of = |d: &BlockStats| d.qdev.as_deref() == Some(DISK0);
    all.into_iter().find(of).unwrap()
}

#[test]
fn polls_report_the_requests_since_the_previous_poll() {
    let Some(machine) = Machine::start("polls_report_the_requests_since_the_previous_poll") else {
        return;
    };
    // Before the first poll: in the totals only.
    machine.io(DISK0, &["aio_read 0 4k", "aio_read 4k 8k"]);
    let schema = blockstats_schema();
    let mut tap = open(&machine, "blockstats", &schema);
    let first = read(&mut tap, schema.clone(), |rows| !rows.rows.is_empty());
    assert_eq!(first.rows.len(), 8, "two disks, four operations each");
    assert_eq!(first.sum("operations_total", "/dev/vda", "r"), 2);
    assert_eq!(first.sum("bytes_total", "/dev/vda", "r"), 12 << 10);
    let operations = schema.index("operations");
    assert!(first.rows.iter().all(|row| row[operations].is_null()));

    machine.io(
        DISK0,
        &["aio_read 0 64k", "aio_write 0 4k", "aio_write 8k 4k"],
    );
    machine.io("disk1", &["aio_write 0 512"]);
    let done = |rows: &Rows| {
        rows.sum("operations", "/dev/sda", "w") == 1 && rows.sum("operations", "/dev/sda", "f") == 1
    };
    let rows = read(&mut tap, schema, done);
    let sum = |column, vdisk, op| rows.sum(column, vdisk, op);
    assert_eq!(sum("operations", "/dev/vda", "r"), 1);
    assert_eq!(sum("bytes", "/dev/vda", "r"), 64 << 10);
    assert_eq!(sum("operations", "/dev/vda", "w"), 2);
    assert_eq!(sum("bytes", "/dev/vda", "w"), 8 << 10);
    assert!(
        sum("time", "/dev/vda", "r") >= 5_000_000,
        "it took its 5 ms"
    );
    assert!(sum("time", "/dev/vda", "w") >= 10_000_000);
    assert_eq!(sum("bytes", "/dev/sda", "w"), 512);
    assert_eq!(
        sum("operations", "/dev/sda", "r") + sum("failed", "/dev/sda", "w"),
        0
    );
}

#[test]
fn latencies_fall_into_the_right_bins_and_the_histograms_go_again() {
    let Some(machine) =
        Machine::start("latencies_fall_into_the_right_bins_and_the_histograms_go_again")
    else {
        return;
    };
    // A histogram of another client remains unchanged.
    let theirs = [1_000, 1_000_000];
    let set = |qemu: &mut dyn weir_tap::qmp::QemuMonitor| {
        set_latency_histogram(qemu, "disk1", Some(&theirs))
    };
    machine.own().visit(PATIENT, set).unwrap();

    let schema = blocklatency_schema();
    let mut tap = open(&machine, "blocklatency", &schema);
    let until = Instant::now() + PATIENT;
    while disk0(&machine).latencies.read.is_none() {
        assert!(Instant::now() < until, "the histogram is switched on");
        tap.next(Duration::from_millis(10)).unwrap();
    }
    machine.io(
        DISK0,
        &[
            "aio_read 0 4k",
            "aio_read 4k 4k",
            "aio_read 8k 4k",
            "aio_write 0 4k",
        ],
    );
    machine.io("disk1", &["aio_read 0 4k"]);
    let rows = read(&mut tap, schema.clone(), |rows| {
        rows.sum("operations", "/dev/vda", "r") == 3
            && rows.sum("operations", "/dev/vda", "w") == 1
            && rows.sum("operations", "/dev/sda", "r") == 1
    });
    for row in &rows.rows {
        let number = |column| match row[schema.index(column)] {
            Value::Int(x) => Some(x),
            _ => None,
        };
        if rows.is(row, "vdisk", "/dev/vda") && !rows.is(row, "op", "f") {
            let high = number("high").unwrap_or(i64::MAX);
            assert!(high > 5_000_000, "none is quicker than 5 ms: {row:?}");
        } else if rows.is(row, "vdisk", "/dev/sda") {
            let bounds = [Some(1_000), Some(1_000_000), None];
            assert!(bounds.contains(&number("high")), "their bins: {row:?}");
        }
    }
    drop(tap);
    let all = machine.own().visit(PATIENT, block_stats).unwrap();
    let kept: Vec<_> = all.iter().filter(|d| d.latencies.read.is_some()).collect();
    assert_eq!(kept.len(), 1, "ours is gone, theirs is there");
    assert_eq!(
        kept[0].latencies.read.as_ref().unwrap().boundaries_ns,
        theirs
    );
}

#[test]
fn a_vm_that_cannot_be_polled_is_counted_and_reported() {
    let Some(mut machine) = Machine::start("a_vm_that_cannot_be_polled_is_counted_and_reported")
    else {
        return;
    };
    let holder = UnixStream::connect(machine.socket()).unwrap();
    let schema = blockstats_schema();
    let mut tap = open(&machine, "blockstats", &schema);
    let failed = |tap: &mut QmpTap, cause| {
        let until = Instant::now() + PATIENT;
        let counted = |tap: &mut QmpTap| {
            let counts = tap.counts();
            counts
                .iter()
                .any(|c| c.counter == "polls_failed" && c.cause == Some(cause))
        };
        while !counted(tap) {
            assert!(Instant::now() < until, "{cause} is counted");
            tap.next(Duration::from_millis(50)).unwrap();
        }
    };
    failed(&mut tap, "busy");
    let messages = tap.messages().join("\n");
    assert!(
        messages.contains("still: ") && messages.contains("another program"),
        "{messages}"
    );
    drop(holder);
    machine.kill();
    // After the pause, no process listens on the socket.
    failed(&mut tap, "unreachable");
}
