//! Columns `in_flight`, `seek` and `interarrival` of `IO`, which the kernel programs determine, are
//! those that follow from the times and places of all requests, for each load and scheduler, and
//! whatever is selected.

use std::collections::BTreeMap;

use weir_model::event::value;
use weir_model::{Symbol, Test, Value};

use crate::bench;
use crate::load::fio;
use crate::skip;
use crate::traps::read_direct;
use crate::watch::{Rows, Watch, demand, only};

const COLUMNS: &str = "ts pdisk op sector sectors in_flight seek interarrival issue_ts";

/// Several processes on all processors, sequential and random, with flushes and discards.
const LOADS: [&str; 4] = [
    "--direct=1 --ioengine=libaio --iodepth=8 --numjobs=4 --rw=randrw --fsync=16 --size=48m \
     --bssplit=4k/60:12k/30:64k/10 --time_based --runtime=1",
    "--direct=1 --ioengine=psync --numjobs=2 --rw=read --bs=4k --io_size=8m --size=24m",
    "--direct=1 --ioengine=libaio --iodepth=32 --numjobs=3 --rw=randtrimwrite --bs=4k \
     --io_size=8m --size=48m",
    "--ioengine=psync --rw=write --bs=64k --io_size=24m --size=48m --fsync=32",
];

/// What was observed of a request: time of issue and of completion, the sectors, and the columns.
struct Request {
    issued: i64,
    completed: i64,
    /// The first sector, and the one after the last; a flush has none.
    sectors: Option<(i64, i64)>,
    relation: Relation,
}

/// `in_flight`, `seek` and `interarrival`.
type Relation = [Value; 3];

fn requests(rows: &Rows) -> Vec<Request> {
    let int = |row: usize, column: &str| match rows.value(row, column) {
        Value::Int(value) => Some(value),
        _ => None,
    };
    let of = |row: usize| Request {
        issued: int(row, "issue_ts").expect("every issue was observed"),
        completed: int(row, "ts").expect("every row has a time"),
        sectors: int(row, "sector").map(|first| (first, first + int(row, "sectors").unwrap())),
        relation: ["in_flight", "seek", "interarrival"].map(|name| rows.value(row, name)),
    };
    let mut requests: Vec<Request> = (0..rows.len()).map(of).collect();
    requests.sort_by_key(|request| request.issued);
    requests
}

/// The relation of each request, by its time of issue, as it follows from all requests.
fn expected(requests: &[Request]) -> BTreeMap<i64, Relation> {
    let mut completed: Vec<i64> = requests.iter().map(|request| request.completed).collect();
    completed.sort_unstable();
    let mut end = None;
    let of = |(before, request): (usize, &Request)| {
        let ended = completed.partition_point(|at| *at < request.issued);
        let seek = match (request.sectors, end) {
            (Some((first, _)), Some(end)) => Value::Int(first - end + 1),
            _ => Value::Null,
        };
        end = request.sectors.map(|(_, end)| end).or(end);
        let in_flight = Value::Int((before + 1 - ended) as i64);
        let since = before.checked_sub(1).map(|at| requests[at].issued);
        let interarrival = since.map_or(Value::Null, |at| Value::Int(request.issued - at));
        (request.issued, [in_flight, seek, interarrival])
    };
    requests.iter().enumerate().map(of).collect()
}

#[test]
fn the_relation_of_requests_follows_from_all_requests() {
    const TEST: &str = "the_relation_of_requests_follows_from_all_requests";
    let Some(bench) = bench(TEST, 64) else {
        return;
    };
    let mut compared = 0;
    for scheduler in ["none", "mq-deadline"] {
        if bench.disk.set("scheduler", scheduler).is_err() {
            skip::<()>(TEST, format!("this kernel has no scheduler {scheduler}"));
            continue;
        }
        for load in LOADS {
            let demands = vec![demand("IO", COLUMNS, Vec::new())];
            let watch = Watch::start(demands, &only(bench.disk.path()));
            fio(&bench.disk, load);
            let seen = watch.stop();
            let what = format!("{scheduler}: {load}: {:?}", seen.counts);
            let incomplete = ["events_lost", "unseen", "events_late", "requests_unordered"];
            if incomplete
                .iter()
                .any(|counter| seen.count(counter, None, None) > 0)
            {
                skip::<()>(TEST, format!("not every request was observed: {what}"));
                continue;
            }
            let kernel =
                "kernel: determines in_flight, seek and interarrival from every request of a disk";
            assert!(seen.described.iter().any(|line| line == kernel), "{what}");
            let all = requests(&seen.rows[0]);
            let expected = expected(&all);
            assert_eq!(
                expected.len(),
                all.len(),
                "each issue has its own time; {what}"
            );
            for request in &all {
                assert_eq!(request.relation, expected[&request.issued], "{what}");
            }
            let deep = |request: &&Request| request.relation[0] > Value::Int(1);
            assert!(
                load.contains("psync") || all.iter().any(|r| deep(&r)),
                "{what}"
            );
            compared += all.len();
        }
    }
    assert!(compared > 5_000, "{compared} requests");
}

#[test]
fn requests_that_are_not_selected_count() {
    let Some(bench) = bench("requests_that_are_not_selected_count", 64) else {
        return;
    };
    let selected = Test::Between {
        operand: value("sectors"),
        low: 16,
        high: 16,
    };
    let demands = vec![demand("IO", COLUMNS, vec![selected])];
    let watch = Watch::start(demands, &only(bench.disk.path()));
    // Each of 8 KiB follows one of 4 KiB at another place.
    for at in 1..=50 {
        read_direct(bench.disk.path(), at * 65_536, 4_096);
        read_direct(bench.disk.path(), at * 32_768, 8_192);
    }
    let seen = watch.stop();
    let expected: Vec<Value> = (1..=50)
        .map(|at| Value::Int(at * 64 - (at * 128 + 7)))
        .collect();
    let rows = seen.all();
    assert_eq!(rows.column("seek"), expected, "{:?}", seen.counts);
    assert_eq!(rows.column("in_flight"), vec![Value::Int(1); 50]);
    // Each was issued after the one of 4 KiB, and that after the selected one before.
    let issued = rows.ints("issue_ts");
    let since = rows.ints("interarrival");
    let apart = issued.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(
        since[1..]
            .iter()
            .zip(apart)
            .all(|(since, apart)| (1..apart).contains(since))
    );
}

#[test]
fn a_partition_is_a_part_of_its_disk_whatever_else_is_selected() {
    const TEST: &str = "a_partition_is_a_part_of_its_disk_whatever_else_is_selected";
    let Some(bench) = bench(TEST, 64) else {
        return;
    };
    let parted = [(1, 2_048), (2, 32_768)].map(|(n, start)| bench.disk.partition(n, start, 16_384));
    let parted: Result<Vec<String>, _> = parted.into_iter().collect();
    let parted = match parted {
        Ok(parted) => parted,
        Err(why) => {
            skip::<()>(TEST, why);
            return;
        }
    };
    let [first, second] = [0, 1].map(|number: usize| parted[number].as_str());
    let only_of = |partition: &str, columns: &str, others: Vec<Test>| {
        let named = Test::In {
            operand: value("pdisk"),
            texts: vec![Symbol::new(partition)],
        };
        demand("IO", columns, [vec![named], others].concat())
    };
    let large = Test::Between {
        operand: value("sectors"),
        low: 16,
        high: i64::MAX,
    };
    let alone = vec![only_of(first, COLUMNS, Vec::new())];
    let beside = [
        alone.clone(),
        vec![only_of(second, "ts latency", vec![large])],
    ]
    .concat();
    for demands in [alone, beside] {
        let watch = Watch::start(demands, &only("/dev/nothing"));
        for at in 1..=20 {
            read_direct(second, at * 32_768, 4_096);
            read_direct(first, at * 32_768, 4_096);
        }
        let seen = watch.stop();
        let rows = seen.rows[0].filter("pdisk", |pdisk| *pdisk == Value::text(first));
        // From the end of the read of the other partition.
        let expected = Value::Int(2_048 - (32_768 + 7));
        assert_eq!(rows.column("seek"), vec![expected; 20], "{:?}", seen.counts);
        assert_eq!(rows.column("in_flight"), vec![Value::Int(1); 20]);
    }
}
