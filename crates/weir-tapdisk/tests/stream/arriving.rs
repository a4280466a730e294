//! Every event arrives once, in order of time, or is counted as lost.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weir_tap::Tap;
use weir_tapdisk::Hub;

use super::lanes::{Heard, Key, Lane, MadeUp, all, assert_same, count};

/// Lanes of two disks with two queues each, on threads of their own.
fn lanes(hub: &Arc<Hub>, events: usize) -> Vec<thread::JoinHandle<Vec<Key>>> {
    let lane = |number: u16| {
        let lane = Lane::new(hub, usize::from(number / 2), number % 2, 2);
        thread::spawn(move || lane.run(events))
    };
    (0..4).map(lane).collect()
}

fn join(lanes: Vec<thread::JoinHandle<Vec<Key>>>) -> Vec<Key> {
    lanes
        .into_iter()
        .flat_map(|lane| lane.join().unwrap())
        .collect()
}

#[test]
fn every_event_arrives_once_and_in_order_of_time() {
    let mut made_up = MadeUp::new(2);
    let mut tap = made_up.open(&all(), 64 << 20);
    // More than a ring holds would be lost if this thread were slow.
    let lanes = lanes(&made_up.hub, 20_000);
    let mut heard = Heard::default();
    heard.hear(&mut tap, |_| {
        lanes.iter().all(thread::JoinHandle::is_finished)
    });
    let told = join(lanes);
    made_up.end();
    heard.hear(&mut tap, |_| false);
    assert_eq!(count(&mut tap, "events_late"), 0);
    assert_eq!(count(&mut tap, "events_lost"), 0);
    assert_eq!(count(&mut tap, "events_in"), told.len() as i64);
    assert!(
        tap.messages()[0].contains("told to end"),
        "{:?}",
        tap.messages()
    );
    assert_same(told, heard.rows);
}

#[test]
fn what_finds_no_room_is_counted_by_disk() {
    let mut made_up = MadeUp::new(2);
    let mut tap = made_up.open(&all(), 0);
    // Nobody reads meanwhile.
    let told = join(lanes(&made_up.hub, 20_000));
    let status = made_up.hub.status();
    made_up.end();
    let mut heard = Heard::default();
    heard.hear(&mut tap, |_| false);
    let lost = count(&mut tap, "events_lost");
    assert!(lost > 0, "a ring is smaller than that");
    assert_eq!(told.len() as i64, heard.rows.len() as i64 + lost);
    assert_eq!(status.consumers[0].lost as i64, lost);
    assert_eq!(status.consumers[0].records, heard.rows.len() as u64);
    let by_disk = |disk: &str| {
        let of = |keys: &[Key]| keys.iter().filter(|k| k.0 == disk).count() as i64;
        let counts = tap.counts();
        let lost = counts
            .iter()
            .find(|c| c.counter == "events_lost" && c.device.is_some_and(|d| d.as_str() == disk));
        of(&told) - of(&heard.rows) == lost.map_or(0, |c| c.total)
    };
    assert_eq!(
        ["/images/0.img", "/images/1.img"].map(by_disk),
        [true, true]
    );
    let known: HashSet<&Key> = told.iter().collect();
    assert!(
        heard.rows.iter().all(|row| known.contains(row)),
        "nothing is made up"
    );
}

#[test]
fn consumers_come_and_go_while_lanes_run() {
    let made_up = MadeUp::new(2);
    let stop = Arc::new(AtomicBool::new(false));
    let running: Vec<_> = (0..2)
        .map(|disk| {
            let (mut lane, stop) = (Lane::new(&made_up.hub, disk, 0, 1), stop.clone());
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    lane.round();
                    lane.told.clear();
                    // Two lanes that never rest would leave a small machine to nobody else.
                    thread::sleep(Duration::from_micros(50));
                }
            })
        })
        .collect();
    let mut steady = made_up.open(&all(), 64 << 20);
    let mut steady_heard = Heard::default();
    for _ in 0..20 {
        let mut tap = made_up.open(&all(), 16 << 20);
        let mut heard = Heard::default();
        heard.hear(&mut tap, |heard| heard.rows.len() > 200);
        if count(&mut tap, "events_lost") == 0 {
            assert_without_gaps(&heard.rows);
        }
        drop(tap);
        let mut looks = 0;
        steady_heard.hear(&mut steady, |_| {
            looks += 1;
            looks > 3
        });
    }
    stop.store(true, Ordering::Relaxed);
    running.into_iter().for_each(|lane| lane.join().unwrap());
    if count(&mut steady, "events_lost") == 0 {
        assert_without_gaps(&steady_heard.rows);
    }
    while made_up.hub.status().consumers.len() > 1 {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Of each disk's requests none is missing between the first and the last.
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
fn a_lane_that_comes_after_its_consumer_is_heard_and_its_number_is_used_again() {
    let mut made_up = MadeUp::new(1);
    let mut tap = made_up.open(&all(), 16 << 20);
    let mut told = Vec::new();
    for generation in 0..200 {
        let mut lane = Lane::new(&made_up.hub, 0, generation, 200);
        (0..5).for_each(|_| lane.round());
        lane.finish();
        told.append(&mut lane.told);
    }
    made_up.end();
    let mut heard = Heard::default();
    heard.hear(&mut tap, |_| false);
    assert_same(told, heard.rows);
}

#[test]
fn a_request_that_was_taken_before_has_no_request_row_and_says_so() {
    use weir_model::event::io_schema;
    let mut made_up = MadeUp::new(1);
    let mut lane = Lane::new(&made_up.hub, 0, 0, 1);
    (0..50).for_each(|_| lane.round());
    let mut tap = made_up.open(&all(), 16 << 20);
    lane.told.clear();
    (0..50).for_each(|_| lane.round());
    lane.finish();
    let told = std::mem::take(&mut lane.told);
    drop(lane);
    made_up.end();
    let mut heard = Heard::default();
    heard.hear(&mut tap, |_| false);
    assert_same(told, heard.rows.clone());
    let asked: HashSet<i64> = heard
        .rows
        .iter()
        .filter(|r| r.2 == "Q")
        .map(|r| r.1)
        .collect();
    let issue_ts = io_schema().index("issue_ts");
    let mut told_as_asked = Vec::new();
    for batch in &heard.batches {
        let known = (0..batch.len()).map(|row| !batch.columns[issue_ts].is_null(row));
        told_as_asked.extend(known);
    }
    for (row, known) in heard.rows.iter().zip(told_as_asked) {
        assert_eq!(known, row.2 != "Q" && asked.contains(&row.1), "{row:?}");
    }
    assert!(
        heard
            .rows
            .iter()
            .any(|r| r.2 != "Q" && !asked.contains(&r.1)),
        "some were under way"
    );
}
