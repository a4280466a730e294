//! A slow client: it misses rows, receives their number and then the current state; other clients
//! miss nothing.

use std::collections::BTreeSet;

use tokio::sync::mpsc::Receiver;
use weir_model::{Batch, Column, Nanos};
use weir_query::place::fleet::PlacementStrategy;
use weir_sink::InstantUnit;
use weir_wire::ResultUpdate;

use super::super::Publisher;
use super::super::completeness::FleetCompleteness;
use super::super::publish::PublisherLimits;
use super::fleet::cut_of;
use crate::client::{MissedRows, UpdateNote};
use weir_runtime::plans;

/// A query whose queue for a slow client has room for one message.
fn publisher(text: &str) -> Publisher {
    let cut = cut_of(text, PlacementStrategy::Rows);
    let answer = plans::answer(&cut.monitor, InstantUnit::Nanoseconds, false, false);
    let bounds = PublisherLimits {
        clients_max: 2,
        backlog_bytes_max: 1,
        snapshot_bytes_max: 1 << 20,
        rows_per_second_max: 1 << 20,
    };
    Publisher::new(answer, bounds, Vec::new())
}

/// Publishes a row at `at`, and all results up to then.
fn publish(publisher: &mut Publisher, at: Nanos, row: &Batch) {
    publisher.write(row, 0);
    let completeness = FleetCompleteness {
        at,
        ..FleetCompleteness::default()
    };
    publisher.complete_instant(&completeness, &BTreeSet::new());
}

/// The received messages: the number of rows, of rows of a snapshot, and of rows skipped so far.
fn received(results: &mut Receiver<ResultUpdate>) -> Vec<(usize, Option<u64>, Option<u64>)> {
    let message = |update: ResultUpdate| {
        let note = |key: &str| update.note[key].as_u64();
        (update.batch.num_rows(), note("reset"), note("skipped"))
    };
    std::iter::from_fn(|| results.try_recv().ok().map(message)).collect()
}

fn change(at: Nanos) -> Batch {
    Batch::deltas(vec![at], vec![1], vec![Column::ints(vec![at])])
}

fn event(at: Nanos) -> Batch {
    Batch::stream(vec![at], vec![Column::ints(vec![at])])
}

#[test]
fn a_slow_client_of_a_relation_receives_all_of_it() {
    let mut publisher = publisher("SELECT a FROM R");
    let (mut slow, mut quick) = (publisher.watch().unwrap(), publisher.watch().unwrap());
    assert_eq!(received(&mut quick), [(0, Some(0), None)]);
    for at in 1..=5 {
        publish(&mut publisher, at, &change(at));
        assert_eq!(received(&mut quick), [(1, None, None)]);
    }
    assert_eq!(received(&mut slow), [(0, Some(0), None)], "what waited");
    publish(&mut publisher, 6, &change(6));
    assert_eq!(received(&mut slow), [(6, Some(6), Some(5))]);
    publish(&mut publisher, 7, &change(7));
    assert_eq!(received(&mut slow), [(1, None, None)]);
    assert_eq!(
        received(&mut quick),
        [(1, None, None)],
        "one waited, one is lost"
    );
}

#[test]
fn a_slow_client_of_a_stream_receives_the_number_of_skipped_rows() {
    let mut publisher = publisher("SELECT a FROM S");
    let mut slow = publisher.watch().unwrap();
    for at in 1..=5 {
        publish(&mut publisher, at, &event(at));
    }
    assert_eq!(received(&mut slow), [(0, None, None)], "what waited");
    publish(&mut publisher, 6, &event(6));
    assert_eq!(received(&mut slow), [(1, None, Some(5))]);
    publish(&mut publisher, 7, &event(7));
    publish(&mut publisher, 8, &event(8));
    publisher.end("cancelled");
    let last = |results: &mut Receiver<ResultUpdate>| {
        let update = std::iter::from_fn(|| results.try_recv().ok());
        update.last().expect("there is room for the end").note
    };
    let note = last(&mut slow);
    assert_eq!(
        (&note["ended"], &note["skipped"]),
        (&"cancelled".into(), &6.into())
    );
}

#[test]
fn a_client_that_reconnects_counts_the_rows_emitted_meanwhile() {
    for (text, row) in [
        ("SELECT a FROM S", event as fn(Nanos) -> Batch),
        ("SELECT a FROM R", change),
    ] {
        let mut publisher = publisher(text);
        let mut missed = MissedRows::default();
        let mut missed_rows = |results: &mut Receiver<ResultUpdate>| {
            while let Ok(update) = results.try_recv() {
                missed.count(
                    &UpdateNote::from_json(&update.note),
                    update.batch.num_rows() as u64,
                );
            }
            missed.rows()
        };
        publish(&mut publisher, 1, &row(1));
        let mut first = publisher.watch().unwrap();
        assert_eq!(missed_rows(&mut first), 0, "what was before is not missed");
        publish(&mut publisher, 2, &row(2));
        assert_eq!(missed_rows(&mut first), 0);
        // Two rows are skipped because it is slow; then its connection is lost.
        for at in 3..=5 {
            publish(&mut publisher, at, &row(at));
        }
        assert_eq!(missed_rows(&mut first), 0, "one waited");
        drop(first);
        for at in 6..=9 {
            publish(&mut publisher, at, &row(at));
        }
        let mut second = publisher.watch().unwrap();
        assert_eq!(missed_rows(&mut second), 6, "{text}");
        publish(&mut publisher, 10, &row(10));
        assert_eq!(missed_rows(&mut second), 6, "{text}");
        publisher.end("cancelled");
        assert_eq!(missed_rows(&mut second), 6, "{text}");
    }
}
