//! What a tap tells is what a client asked: each request, in order, with its length and its end, whoever
//! listens and whenever.

mod served;
mod told;

use std::time::Duration;

use served::{SECTORS, Served};
use told::{by_queue, check};
use weir_guest::vhost::{Ask, Asked, Kind, Load, Report, Shape, Status};
use weir_model::event::value;
use weir_model::{Clause, Predicate, Symbol, Test};
use weir_tap::tapdisk::TapdiskOptions;

const SHAPE: Shape = Shape {
    queues: 3,
    depth: 16,
    bytes_max: 32 << 10,
    segments: 2,
    skew_bytes: 0,
};

/// Room for all events of a load, which are taken when it is over.
const ROOM: TapdiskOptions = TapdiskOptions {
    ring_bytes: 256 << 20,
    rhythm: Duration::from_millis(20),
    epoch_offset_ns: None,
    host: None,
    patience: Duration::from_secs(10),
};

fn mixed(seed: u64) -> Load {
    Load {
        read: 45,
        write: 35,
        flush: 4,
        discard: 8,
        write_zeroes: 8,
        bytes_min: 512,
        bytes_max: 32 << 10,
        requests: 1000,
        seed,
        ..Load::default()
    }
}

/// Many quick requests.
fn plain(seed: u64) -> Load {
    Load {
        flush: 0,
        discard: 0,
        write_zeroes: 0,
        ..mixed(seed)
    }
}

/// The events of a load: a row for each request and one for its end.
fn events(report: &Report) -> i64 {
    2 * report.requests as i64
}

#[test]
fn every_request_of_every_queue_is_told_once_with_its_end() {
    let served = Served::new("exact-all", |options| {
        let rules = [
            "EIO,op=w,rate=5%",
            "ENOSPC,op=rf,rate=3%,seed=2",
            "EOPNOTSUPP,op=z,rate=20%",
        ];
        options.injections.errors = rules.map(|rule| rule.parse().unwrap()).to_vec();
        options.injections.delays = vec!["2ms,op=r,rate=1%".parse().unwrap()];
    });
    let mut listener = served.listener(Predicate::all(), TapdiskOptions::default());
    for (seed, queues) in [(1, 3), (2, 1), (3, 2)] {
        let mut client = served.client(Shape { queues, ..SHAPE });
        let report = client.run(&mixed(seed), None).unwrap();
        assert!(
            report.failed > 10 * queues as u64 && report.unsupported > 0,
            "{report:?}"
        );
        let rows = listener.rows();
        check(&rows, &report.log, SECTORS);
        let errors = |errno| rows.iter().filter(|row| row.error == Some(errno)).count() as u64;
        assert_eq!(errors(EIO) + errors(ENOSPC), report.failed);
        let image = served.image();
        let names = ["web", "/dev/vda", image.to_str().unwrap(), "vdisk"];
        assert!(rows.iter().all(|row| row.names == names));
    }
    assert_eq!(listener.count("events_lost"), 0);
    assert_eq!(served.disk().counters().in_flight, 0);
}

/// Of Linux, asm-generic/errno-base.h.
const EIO: i64 = 5;
const ENOSPC: i64 = 28;

#[test]
fn what_is_told_does_not_change_what_is_read_and_written() {
    let served = Served::new("exact-data", |_| {});
    let mut contents = Served::contents();
    let mut listener = served.listener(Predicate::all(), TapdiskOptions::default());
    let mut client = served.client(SHAPE);
    for seed in 10..13 {
        let report = client.run(&mixed(seed), Some(&mut contents)).unwrap();
        assert_eq!((report.failed, report.unsupported), (0, 0));
        check(&listener.rows(), &report.log, SECTORS);
    }
    contents.check_image(&served.image()).unwrap();
}

#[test]
fn requests_that_are_wrong_are_told_as_errors() {
    let served = Served::new("exact-wrong", |options| options.block_size = Some(4096));
    let mut listener = served.listener(Predicate::all(), TapdiskOptions::default());
    let mut client = served.client(Shape { queues: 1, ..SHAPE });
    let asks = [
        (Kind::Read, SECTORS, 4096, Status::Failed),
        (Kind::Read, SECTORS - 8, 8192, Status::Failed),
        (Kind::Write, u64::MAX / 512, 4096, Status::Failed),
        (Kind::Write, 1, 4096, Status::Failed),
        (Kind::Write, 8, 512, Status::Failed),
        (Kind::Read, SECTORS - 8, 4096, Status::Done),
        (Kind::Discard, SECTORS - 8, 8192, Status::Failed),
    ];
    for (kind, sector, bytes, status) in asks {
        let ask = Ask {
            kind,
            sector,
            bytes,
        };
        let has_data = matches!(kind, Kind::Read | Kind::Write);
        let mut data = vec![0; if has_data { bytes } else { 0 }];
        assert_eq!(client.ask(0, &ask, &mut data).unwrap(), status, "{ask:?}");
    }
    // To ask for the serial number is no I/O.
    client.id().unwrap();
    let rows = listener.rows();
    let begun: Vec<_> = rows.iter().filter(|row| row.kind == "Q").collect();
    assert_eq!(begun.len(), asks.len());
    for (row, (kind, sector, bytes, status)) in begun.iter().zip(asks) {
        assert_eq!(row.op.chars().next(), kind.letter(), "{row:?}");
        assert_eq!(row.sector, Some(sector as i64));
        assert_eq!(row.sectors, bytes as i64 / 512);
        let end = rows
            .iter()
            .find(|end| end.kind != "Q" && end.id == row.id)
            .unwrap();
        assert_eq!(end.kind, if status == Status::Done { "R" } else { "E" });
    }
    assert_eq!(rows.len(), 2 * asks.len());
}

#[test]
fn a_selection_gets_its_requests_and_no_others() {
    let served = Served::new("exact-part", |_| {});
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
    let mut part = served.listener(Predicate { clauses }, TapdiskOptions::default());
    let mut all = served.listener(Predicate::all(), TapdiskOptions::default());
    let mut client = served.client(Shape { queues: 1, ..SHAPE });
    let report = client.run(&mixed(4), None).unwrap();
    check(&all.rows(), &report.log, SECTORS);
    let wanted =
        |asked: &&Asked| asked.ask.kind == Kind::Write && (1000..5000).contains(&asked.ask.sector);
    let log: Vec<Asked> = report.log[0].iter().filter(wanted).copied().collect();
    assert!(log.len() > 20);
    check(&part.rows(), &[log], SECTORS);
}

#[test]
fn who_comes_later_is_told_what_comes_later() {
    let served = Served::new("exact-late", |_| {});
    let mut client = served.client(SHAPE);
    client.run(&mixed(5), None).unwrap();
    let mut first = served.listener(Predicate::all(), TapdiskOptions::default());
    let report = client.run(&mixed(6), None).unwrap();
    let mut second = served.listener(Predicate::all(), TapdiskOptions::default());
    check(&first.rows(), &report.log, SECTORS);
    drop(first);
    let report = client.run(&mixed(7), None).unwrap();
    check(&second.rows(), &report.log, SECTORS);
}

#[test]
fn who_comes_while_a_load_runs_is_told_the_rest_of_it() {
    let served = Served::new("exact-amid", |_| {});
    let mut client = served.client(SHAPE);
    let load = Load {
        requests: 20_000,
        ..plain(8)
    };
    let (report, rows) = std::thread::scope(|scope| {
        let run = scope.spawn(|| client.run(&load, None).unwrap());
        // Some way into the load, however fast it is.
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
        let mut listener = served.listener(Predicate::all(), ROOM);
        let report = run.join().unwrap();
        let rows = listener.rows();
        assert_eq!(listener.count("events_lost"), 0);
        (report, rows)
    });
    let (mut told, mut made) = (0, 0);
    for (queue, part) in by_queue(&rows, SHAPE.queues, SECTORS).iter().enumerate() {
        let with_place = |asked: &&Asked| asked.ask.kind != Kind::Flush;
        let log: Vec<_> = report.log[queue].iter().filter(with_place).collect();
        // The last ones, all of them.
        let rest = &log[log.len() - part.len()..];
        for (row, asked) in part.iter().zip(rest) {
            let (sector, sectors) = (asked.ask.sector as i64, asked.ask.bytes as i64 / 512);
            assert_eq!((row.sector, row.sectors), (Some(sector), sectors));
        }
        (told, made) = (told + part.len(), made + log.len());
    }
    assert!(0 < told && told < made, "{told} of {made}");
    let begun = rows.iter().filter(|row| row.kind == "Q").count();
    let ended = rows.len() - begun;
    // Those that were under way when it came have an end and no beginning.
    assert!(
        (begun..=begun + SHAPE.queues * SHAPE.depth).contains(&ended),
        "{begun} {ended}"
    );
}

#[test]
fn what_a_listener_is_too_slow_for_is_counted() {
    let served = Served::new("exact-slow", |_| {});
    let options = TapdiskOptions {
        ring_bytes: 0,
        ..TapdiskOptions::default()
    };
    // Nothing is read before all is over, and rings are as small as can be.
    let mut slow = served.listener(Predicate::all(), options);
    let mut quick = served.listener(Predicate::all(), ROOM);
    let mut client = served.client(SHAPE);
    let load = Load {
        requests: 10_000,
        ..plain(9)
    };
    let report = client.run(&load, None).unwrap();
    check(&quick.rows(), &report.log, SECTORS);
    let told = slow.rows().len() as i64;
    let lost = slow.count("events_lost");
    assert!(told > 0 && lost > 0, "{told} told, {lost} lost");
    assert_eq!(told + lost, events(&report));
    assert_eq!(quick.count("events_lost"), 0);

    // It is told everything again once it has caught up.
    let report = client
        .run(
            &Load {
                requests: 100,
                ..mixed(10)
            },
            None,
        )
        .unwrap();
    check(&slow.rows(), &report.log, SECTORS);
    assert_eq!(slow.count("events_lost"), lost);
}
