//! Every event is received once, in time order, or is counted as lost.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weir_tap::Tap;
use weir_tapdisk::Hub;

use super::simulated_queues::{Key, Received, SimulatedQueue, TestTap, all, assert_same, count};

/// I/O queues of two disks with two queues each, on threads of their own.
fn io_queues(hub: &Arc<Hub>, events: usize) -> Vec<thread::JoinHandle<Vec<Key>>> {
    let io_queue = |number: u16| {
        let io_queue = SimulatedQueue::new(hub, usize::from(number / 2), number % 2, 2);
        thread::spawn(move || io_queue.run(events))
    };
    (0..4).map(io_queue).collect()
}

fn join(io_queues: Vec<thread::JoinHandle<Vec<Key>>>) -> Vec<Key> {
    io_queues
        .into_iter()
        .flat_map(|io_queue| io_queue.join().unwrap())
        .collect()
}

#[test]
fn every_event_arrives_once_and_in_time_order() {
    let mut test_tap = TestTap::new(2);
    let mut tap = test_tap.open(&all(), 64 << 20);
    // More than a ring holds would be lost if this thread were slow.
    let io_queues = io_queues(&test_tap.hub, 20_000);
    let mut received = Received::default();
    received.receive_until(&mut tap, |_| {
        io_queues.iter().all(thread::JoinHandle::is_finished)
    });
    let recorded = join(io_queues);
    test_tap.end();
    received.receive_until(&mut tap, |_| false);
    assert_eq!(count(&mut tap, "events_late"), 0);
    assert_eq!(count(&mut tap, "events_lost"), 0);
    assert_eq!(count(&mut tap, "events_in"), recorded.len() as i64);
    assert!(
        tap.messages()[0].contains("it was stopped"),
        "{:?}",
        tap.messages()
    );
    assert_same(recorded, received.rows);
}

#[test]
fn lost_records_are_counted_by_disk() {
    let mut test_tap = TestTap::new(2);
    let mut tap = test_tap.open(&all(), 0);
    // Nothing is read meanwhile.
    let recorded = join(io_queues(&test_tap.hub, 20_000));
    let status = test_tap.hub.status();
    test_tap.end();
    let mut received = Received::default();
    received.receive_until(&mut tap, |_| false);
    let lost = count(&mut tap, "events_lost");
    assert!(lost > 0, "a ring is smaller than that");
    assert_eq!(recorded.len() as i64, received.rows.len() as i64 + lost);
    assert_eq!(status.consumers[0].lost as i64, lost);
    assert_eq!(status.consumers[0].records, received.rows.len() as u64);
    let by_disk = |disk: &str| {
        let of = |keys: &[Key]| keys.iter().filter(|k| k.0 == disk).count() as i64;
        let counts = tap.counts();
        let lost = counts
            .iter()
            .find(|c| c.counter == "events_lost" && c.device.is_some_and(|d| d.as_str() == disk));
        of(&recorded) - of(&received.rows) == lost.map_or(0, |c| c.total)
    };
    assert_eq!(
        ["/images/0.img", "/images/1.img"].map(by_disk),
        [true, true]
    );
    let known: HashSet<&Key> = recorded.iter().collect();
    assert!(
        received.rows.iter().all(|row| known.contains(row)),
        "nothing is made up"
    );
}

#[test]
fn consumers_connect_and_disconnect_while_queues_run() {
    let test_tap = TestTap::new(2);
    let stop = Arc::new(AtomicBool::new(false));
    let running: Vec<_> = (0..2)
        .map(|disk| {
            let (mut io_queue, stop) =
                (SimulatedQueue::new(&test_tap.hub, disk, 0, 1), stop.clone());
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    io_queue.round();
                    io_queue.recorded.clear();
                    // Two I/O queues that never pause would leave a small machine to no other
                    // thread.
                    thread::sleep(Duration::from_micros(50));
                }
            })
        })
        .collect();
    let mut steady = test_tap.open(&all(), 64 << 20);
    let mut steady_received = Received::default();
    for _ in 0..20 {
        let mut tap = test_tap.open(&all(), 16 << 20);
        let mut received = Received::default();
        received.receive_until(&mut tap, |received| received.rows.len() > 200);
        if count(&mut tap, "events_lost") == 0 {
            assert_without_gaps(&received.rows);
        }
        drop(tap);
        let mut looks = 0;
        steady_received.receive_until(&mut steady, |_| {
            looks += 1;
            looks > 3
        });
    }
    stop.store(true, Ordering::Relaxed);
    running
        .into_iter()
        .for_each(|io_queue| io_queue.join().unwrap());
    if count(&mut steady, "events_lost") == 0 {
        assert_without_gaps(&steady_received.rows);
    }
    weir_testing::wait_until("the others have left", || {
        test_tap.hub.status().consumers.len() == 1
    });
}

/// No request of a disk is missing between the first and the last.
fn assert_without_gaps(rows: &[Key]) {
    for disk in ["/images/0.img", "/images/1.img"] {
        let requests = rows.iter().filter(|row| row.0 == disk && row.2 == "Q");
        let ids: Vec<i64> = requests.map(|row| row.1).collect();
        assert!(
            ids.windows(2).all(|two| two[0] + 1 == two[1]),
            "{disk}: {ids:?}"
        );
    }
}

#[test]
fn records_of_a_later_queue_are_received_and_its_ring_is_reused() {
    let mut test_tap = TestTap::new(1);
    let mut tap = test_tap.open(&all(), 16 << 20);
    let mut recorded = Vec::new();
    for generation in 0..200 {
        let mut io_queue = SimulatedQueue::new(&test_tap.hub, 0, generation, 200);
        (0..5).for_each(|_| io_queue.round());
        io_queue.finish();
        recorded.append(&mut io_queue.recorded);
    }
    test_tap.end();
    let mut received = Received::default();
    received.receive_until(&mut tap, |_| false);
    assert_same(recorded, received.rows);
}

#[test]
fn a_request_from_before_the_start_has_no_request_row() {
    use weir_model::event::io_schema;
    let mut test_tap = TestTap::new(1);
    let mut io_queue = SimulatedQueue::new(&test_tap.hub, 0, 0, 1);
    (0..50).for_each(|_| io_queue.round());
    let mut tap = test_tap.open(&all(), 16 << 20);
    io_queue.recorded.clear();
    (0..50).for_each(|_| io_queue.round());
    io_queue.finish();
    let recorded = std::mem::take(&mut io_queue.recorded);
    drop(io_queue);
    test_tap.end();
    let mut received = Received::default();
    received.receive_until(&mut tap, |_| false);
    assert_same(recorded, received.rows.clone());
    let asked: HashSet<i64> = received
        .rows
        .iter()
        .filter(|r| r.2 == "Q")
        .map(|r| r.1)
        .collect();
    let issue_ts = io_schema().index("issue_ts");
    let mut has_issue_ts = Vec::new();
    for batch in &received.batches {
        let known = (0..batch.len()).map(|row| !batch.columns[issue_ts].is_null(row));
        has_issue_ts.extend(known);
    }
    for (row, known) in received.rows.iter().zip(has_issue_ts) {
        assert_eq!(known, row.2 != "Q" && asked.contains(&row.1), "{row:?}");
    }
    assert!(
        received
            .rows
            .iter()
            .any(|r| r.2 != "Q" && !asked.contains(&r.1)),
        "some were under way"
    );
}
