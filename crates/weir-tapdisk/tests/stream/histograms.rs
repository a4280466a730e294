//! The tap's histograms equal those of a recording of the same requests.

use std::thread;

use weir_model::event::io_schema;
use weir_model::{Batch, EventKind, Op, Value};
use weir_tap::tapdisk::TapdiskClient;
use weir_tap::tapdisk::words::{Answer, Ask, HistogramsWord};
use weir_workload::{
    Class, Counter, Histograms, IssuedRequest, Metric, RequestEvent, Response, json,
};

use super::simulated_queues::{Received, SimulatedQueue, TestTap, all};

fn histograms(client: &mut TapdiskClient, ask: Ask) -> HistogramsWord {
    match client.ask(ask).unwrap() {
        Answer::Histograms(word) => word,
        other => panic!("{other:?}"),
    }
}

/// The events of one disk in a recording's rows.
fn counted(batches: &[Batch], pdisk: &str) -> Histograms {
    let schema = io_schema();
    let mut counter = Counter::new(16);
    for batch in batches {
        for row in 0..batch.len() {
            let value = |name: &str| batch.columns[schema.index(name)].value(row);
            let int = |name: &str| match value(name) {
                Value::Int(x) => Some(x),
                _ => None,
            };
            if value("pdisk") != Value::text(pdisk) {
                continue;
            }
            let op = Op::ALL
                .into_iter()
                .find(|op| value("op") == Value::text(op.as_str()))
                .unwrap();
            let (ts, id) = (batch.ts[row], int("req_id").unwrap());
            counter.take(
                &match value("type") == Value::text(EventKind::Request.as_str()) {
                    true => RequestEvent::Issued(IssuedRequest {
                        ts,
                        id,
                        op,
                        sector: int("vsector"),
                        sectors: int("sectors").unwrap(),
                    }),
                    false => RequestEvent::Finished(Response {
                        ts,
                        id,
                        op,
                        wait_ns: int("wait"),
                        service_ns: int("service"),
                        latency_ns: int("latency"),
                        failed: int("error").is_some(),
                    }),
                },
            );
        }
    }
    counter.histograms().clone()
}

#[test]
fn the_histograms_of_the_tap_equal_those_of_a_recording() {
    let mut test_tap = TestTap::new(2);
    let mut client = TapdiskClient::connect(&test_tap.scratch.socket()).unwrap();
    assert_eq!(histograms(&mut client, Ask::Histograms).disks, []);
    let mut tap = test_tap.open(&all(), 64 << 20);
    // Two queues of one disk at the same time, and one of another.
    let io_queues = [(0, 0), (0, 1), (1, 0)].map(|(disk, queue)| {
        let io_queue = SimulatedQueue::new(&test_tap.hub, disk, queue, 2);
        thread::spawn(move || io_queue.run(5_000).len())
    });
    let recorded: usize = io_queues
        .into_iter()
        .map(|io_queue| io_queue.join().unwrap())
        .sum();
    let kept = histograms(&mut client, Ask::Histograms);
    assert_eq!(kept.lost, 0);
    test_tap.end();
    let mut received = Received::default();
    received.receive_until(&mut tap, |_| false);
    assert_eq!(received.rows.len(), recorded);
    assert_eq!(kept.disks.len(), 2);
    for (disk, recorded) in &kept.disks {
        let recorded = json::to_histograms(recorded).unwrap();
        let expected = counted(&received.batches, disk.pdisk.as_deref().unwrap());
        assert!(recorded.of(Metric::Latency, Class::All).count > 1_000);
        assert_eq!(recorded, expected, "{disk:?}");
    }
}

#[test]
fn counting_can_be_reset_and_ends_with_its_client() {
    let test_tap = TestTap::new(1);
    let mut client = TapdiskClient::connect(&test_tap.scratch.socket()).unwrap();
    histograms(&mut client, Ask::Histograms);
    let requests = |word: &HistogramsWord| {
        let (_, recorded) = word.disks.first()?;
        Some(
            json::to_histograms(recorded)?
                .of(Metric::Outstanding, Class::All)
                .count,
        )
    };
    let mut io_queue = SimulatedQueue::new(&test_tap.hub, 0, 0, 1);
    (0..100).for_each(|_| io_queue.round());
    let before = requests(&histograms(&mut client, Ask::Histograms)).unwrap();
    assert!(before > 0);
    assert_eq!(requests(&histograms(&mut client, Ask::Reset)), Some(0));
    let recorded = io_queue.recorded.len();
    (0..100).for_each(|_| io_queue.round());
    let asked = io_queue.recorded[recorded..]
        .iter()
        .filter(|key| key.2 == "Q")
        .count();
    let after = requests(&histograms(&mut client, Ask::Histograms));
    assert_eq!(after, Some(asked as u64));
    assert_eq!(test_tap.hub.status().consumers.len(), 1);
    drop(client);
    while !test_tap.hub.status().consumers.is_empty() {
        thread::yield_now();
    }
}
