//! The tap's records equal the client's requests: each request, in order, with its length and its
//! outcome, with any consumers at any time.

mod records;
mod served;

use records::{by_queue, check};
use served::{SECTORS, Served};
use weir_model::event::value;
use weir_model::{Clause, Predicate, Symbol, Test};
use weir_tap::tapdisk::TapdiskOptions;
use weir_testing::vhost::{
    BlockRequest, ClientShape, LoadReport, LoggedRequest, RequestKind, RequestStatus, VhostLoad,
};

const SHAPE: ClientShape = ClientShape {
    queues: 3,
    depth: 16,
    bytes_max: 32 << 10,
    segments: 2,
    skew_bytes: 0,
};

/// Room for all events of a load, which are read when it has ended.
fn room() -> TapdiskOptions {
    TapdiskOptions {
        ring_bytes: 256 << 20,
        host: None,
        ..TapdiskOptions::default()
    }
}

fn mixed(seed: u64) -> VhostLoad {
    VhostLoad {
        read: 45,
        write: 35,
        flush: 4,
        discard: 8,
        write_zeroes: 8,
        bytes_min: 512,
        bytes_max: 32 << 10,
        requests: 1000,
        seed,
        ..VhostLoad::default()
    }
}

/// Many quick requests.
fn plain(seed: u64) -> VhostLoad {
    VhostLoad {
        flush: 0,
        discard: 0,
        write_zeroes: 0,
        ..mixed(seed)
    }
}

/// The events of a load: a row for each request and one for its end.
fn events(report: &LoadReport) -> i64 {
    2 * report.requests as i64
}

#[test]
fn every_request_of_every_queue_is_recorded_once_with_its_end() {
    let served = Served::new(|options| {
        let rules = [
            "EIO,op=w,rate=5%",
            "ENOSPC,op=rf,rate=3%,seed=2",
            "EOPNOTSUPP,op=z,rate=20%",
        ];
        options.injections.errors = rules.map(|rule| rule.parse().unwrap()).to_vec();
        options.injections.delays = vec!["2ms,op=r,rate=1%".parse().unwrap()];
    });
    let mut consumer = served.consumer(Predicate::all(), TapdiskOptions::default());
    for (seed, queues) in [(1, 3), (2, 1), (3, 2)] {
        let mut client = served.client(ClientShape { queues, ..SHAPE });
        let report = client.run(&mixed(seed), None).unwrap();
        assert!(
            report.failed > 10 * queues as u64 && report.unsupported > 0,
            "{report:?}"
        );
        let rows = consumer.rows();
        check(&rows, &report.log, SECTORS);
        let errors = |errno| rows.iter().filter(|row| row.error == Some(errno)).count() as u64;
        assert_eq!(errors(EIO) + errors(ENOSPC), report.failed);
        let image = served.image();
        let names = ["web", "/dev/vda", image.to_str().unwrap(), "vdisk"];
        assert!(rows.iter().all(|row| row.names == names));
    }
    assert_eq!(consumer.count("events_lost"), 0);
    assert_eq!(served.disk().counters().in_flight, 0);
}

/// Of Linux, asm-generic/errno-base.h.
const EIO: i64 = 5;
const ENOSPC: i64 = 28;

#[test]
fn recording_does_not_change_data() {
    let served = Served::new(|_| {});
    let mut contents = Served::contents();
    let mut consumer = served.consumer(Predicate::all(), TapdiskOptions::default());
    let mut client = served.client(SHAPE);
    for seed in 10..13 {
        let report = client.run(&mixed(seed), Some(&mut contents)).unwrap();
        assert_eq!((report.failed, report.unsupported), (0, 0));
        check(&consumer.rows(), &report.log, SECTORS);
    }
    contents.check_image(&served.image()).unwrap();
}

#[test]
fn invalid_requests_are_recorded_as_errors() {
    let served = Served::new(|options| options.block_size = Some(4096));
    let mut consumer = served.consumer(Predicate::all(), TapdiskOptions::default());
    let mut client = served.client(ClientShape { queues: 1, ..SHAPE });
    let asks = [
        (RequestKind::Read, SECTORS, 4096, RequestStatus::Failed),
        (RequestKind::Read, SECTORS - 8, 8192, RequestStatus::Failed),
        (
            RequestKind::Write,
            u64::MAX / 512,
            4096,
            RequestStatus::Failed,
        ),
        (RequestKind::Write, 1, 4096, RequestStatus::Failed),
        (RequestKind::Write, 8, 512, RequestStatus::Failed),
        (RequestKind::Read, SECTORS - 8, 4096, RequestStatus::Done),
        (
            RequestKind::Discard,
            SECTORS - 8,
            8192,
            RequestStatus::Failed,
        ),
    ];
    for (kind, sector, bytes, status) in asks {
        let ask = BlockRequest {
            kind,
            sector,
            bytes,
        };
        let has_data = matches!(kind, RequestKind::Read | RequestKind::Write);
        let mut data = vec![0; if has_data { bytes } else { 0 }];
        assert_eq!(client.ask(0, &ask, &mut data).unwrap(), status, "{ask:?}");
    }
    // Reading the serial number is not I/O.
    client.id().unwrap();
    let rows = consumer.rows();
    let starts: Vec<_> = rows.iter().filter(|row| row.kind == "Q").collect();
    assert_eq!(starts.len(), asks.len());
    for (row, (kind, sector, bytes, status)) in starts.iter().zip(asks) {
        assert_eq!(row.op.chars().next(), kind.letter(), "{row:?}");
        assert_eq!(row.sector, Some(sector as i64));
        assert_eq!(row.sectors, bytes as i64 / 512);
        let end = rows
            .iter()
            .find(|end| end.kind != "Q" && end.id == row.id)
            .unwrap();
        assert_eq!(
            end.kind,
            if status == RequestStatus::Done {
                "R"
            } else {
                "E"
            }
        );
    }
    assert_eq!(rows.len(), 2 * asks.len());
}

#[test]
fn a_selection_delivers_its_requests_and_no_others() {
    let served = Served::new(|_| {});
    let between = Test::Between {
        operand: value("sector"),
        low: 1000,
        high: 4999,
    };
    let writes = Test::In {
        operand: value("op"),
        texts: vec![Symbol::new("w")],
    };
    let clauses = vec![Clause {
        tests: vec![between, writes],
    }];
    let mut part = served.consumer(Predicate { clauses }, TapdiskOptions::default());
    let mut all = served.consumer(Predicate::all(), TapdiskOptions::default());
    let mut client = served.client(ClientShape { queues: 1, ..SHAPE });
    let report = client.run(&mixed(4), None).unwrap();
    check(&all.rows(), &report.log, SECTORS);
    let wanted = |asked: &&LoggedRequest| {
        asked.ask.kind == RequestKind::Write && (1000..5000).contains(&asked.ask.sector)
    };
    let log: Vec<LoggedRequest> = report.log[0].iter().filter(wanted).copied().collect();
    assert!(log.len() > 20);
    check(&part.rows(), &[log], SECTORS);
}

#[test]
fn a_later_consumer_receives_later_records() {
    let served = Served::new(|_| {});
    let mut client = served.client(SHAPE);
    client.run(&mixed(5), None).unwrap();
    let mut first = served.consumer(Predicate::all(), TapdiskOptions::default());
    let report = client.run(&mixed(6), None).unwrap();
    let mut second = served.consumer(Predicate::all(), TapdiskOptions::default());
    check(&first.rows(), &report.log, SECTORS);
    drop(first);
    let report = client.run(&mixed(7), None).unwrap();
    check(&second.rows(), &report.log, SECTORS);
}

#[test]
fn a_consumer_that_connects_during_a_load_receives_the_rest() {
    let served = Served::new(|_| {});
    let mut client = served.client(SHAPE);
    let load = VhostLoad {
        requests: 20_000,
        ..plain(8)
    };
    let (report, rows) = std::thread::scope(|scope| {
        let run = scope.spawn(|| client.run(&load, None).unwrap());
        // Some way into the load, on a machine of any speed.
        while served
            .disk()
            .counters()
            .ops
            .iter()
            .map(|op| op.requests)
            .sum::<u64>()
            < 3000
        {
            std::thread::yield_now();
        }
        let mut consumer = served.consumer(Predicate::all(), room());
        let report = run.join().unwrap();
        let rows = consumer.rows();
        assert_eq!(consumer.count("events_lost"), 0);
        (report, rows)
    });
    let (mut recorded, mut made) = (0, 0);
    for (queue, part) in by_queue(&rows, SHAPE.queues, SECTORS).iter().enumerate() {
        let with_place = |asked: &&LoggedRequest| asked.ask.kind != RequestKind::Flush;
        let log: Vec<_> = report.log[queue].iter().filter(with_place).collect();
        // The last requests, all of them.
        let rest = &log[log.len() - part.len()..];
        for (row, asked) in part.iter().zip(rest) {
            let (sector, sectors) = (asked.ask.sector as i64, asked.ask.bytes as i64 / 512);
            assert_eq!((row.sector, row.sectors), (Some(sector), sectors));
        }
        (recorded, made) = (recorded + part.len(), made + log.len());
    }
    assert!(0 < recorded && recorded < made, "{recorded} of {made}");
    let starts = rows.iter().filter(|row| row.kind == "Q").count();
    let ended = rows.len() - starts;
    // Requests that were in flight at the start have an end and no beginning.
    assert!(
        (starts..=starts + SHAPE.queues * SHAPE.depth).contains(&ended),
        "{starts} {ended}"
    );
}

#[test]
fn records_lost_by_a_slow_consumer_are_counted() {
    let served = Served::new(|_| {});
    let options = TapdiskOptions {
        ring_bytes: 0,
        ..TapdiskOptions::default()
    };
    // Nothing is read before the end, and rings have the minimum size.
    let mut slow = served.consumer(Predicate::all(), options);
    let mut quick = served.consumer(Predicate::all(), room());
    let mut client = served.client(SHAPE);
    let load = VhostLoad {
        requests: 10_000,
        ..plain(9)
    };
    let report = client.run(&load, None).unwrap();
    check(&quick.rows(), &report.log, SECTORS);
    let recorded = slow.rows().len() as i64;
    let lost = slow.count("events_lost");
    assert!(recorded > 0 && lost > 0, "{recorded} recorded, {lost} lost");
    assert_eq!(recorded + lost, events(&report));
    assert_eq!(quick.count("events_lost"), 0);

    // It receives all records again once it has caught up.
    let report = client
        .run(
            &VhostLoad {
                requests: 100,
                ..mixed(10)
            },
            None,
        )
        .unwrap();
    check(&slow.rows(), &report.log, SECTORS);
    assert_eq!(slow.count("events_lost"), lost);
}
