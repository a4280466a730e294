//! A slow client: it misses rows, receives their number and then the current state; other clients
//! miss nothing.

use tokio::sync::mpsc::Receiver;
use weir_model::{Batch, Column, Nanos};
use weir_query::place::fleet::PlacementStrategy;
use weir_sink::Clock;
use weir_wire::ResultUpdate;

use super::super::Publisher;
use super::super::completeness::Completeness;
use super::super::publish::Bounds;
use super::fleet::cut_of;
use crate::client::{Missed, Note};
use weir_runtime::plans;

/// A query whose queue for a slow client has room for one message.
fn publisher(text: &str) -> Publisher {
    let cut = cut_of(text, PlacementStrategy::Rows);
    let answer = plans::answer(&cut.monitor, Clock::Nanoseconds, false, false);
    let bounds = Bounds {
        watchers_max: 2,
        waiting_bytes_max: 1,
        held_bytes_max: 1 << 20,
        rows_per_second_max: 1 << 20,
    };
    Publisher::new(answer, bounds, Vec::new())
}

/// Publishes a row at `at`, and all results up to then.
fn give(publisher: &mut Publisher, at: Nanos, row: &Batch) {
    publisher.rows(row, 0);
    publisher.whole(&Completeness {
        at,
        ..Completeness::default()
    });
}

/// The received messages: the number of rows, of rows of a snapshot, and of rows skipped so far.
fn seen(results: &mut Receiver<ResultUpdate>) -> Vec<(usize, Option<u64>, Option<u64>)> {
    let message = |shown: ResultUpdate| {
        let note = |key: &str| shown.note[key].as_u64();
        (shown.batch.num_rows(), note("reset"), note("skipped"))
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
fn who_was_too_slow_for_a_relation_is_shown_all_of_it() {
    let mut publisher = publisher("SELECT a FROM R");
    let (mut slow, mut quick) = (publisher.watch().unwrap(), publisher.watch().unwrap());
    assert_eq!(seen(&mut quick), [(0, Some(0), None)]);
    for at in 1..=5 {
        give(&mut publisher, at, &change(at));
        assert_eq!(seen(&mut quick), [(1, None, None)]);
    }
    assert_eq!(seen(&mut slow), [(0, Some(0), None)], "what waited");
    give(&mut publisher, 6, &change(6));
    assert_eq!(seen(&mut slow), [(6, Some(6), Some(5))]);
    give(&mut publisher, 7, &change(7));
    assert_eq!(seen(&mut slow), [(1, None, None)]);
    assert_eq!(
        seen(&mut quick),
        [(1, None, None)],
        "one waited, one is lost"
    );
}

#[test]
fn a_slow_client_of_a_stream_receives_the_number_of_skipped_rows() {
    let mut publisher = publisher("SELECT a FROM S");
    let mut slow = publisher.watch().unwrap();
    for at in 1..=5 {
        give(&mut publisher, at, &event(at));
    }
    assert_eq!(seen(&mut slow), [(0, None, None)], "what waited");
    give(&mut publisher, 6, &event(6));
    assert_eq!(seen(&mut slow), [(1, None, Some(5))]);
    give(&mut publisher, 7, &event(7));
    give(&mut publisher, 8, &event(8));
    publisher.end("cancelled");
    let last = |results: &mut Receiver<ResultUpdate>| {
        let shown = std::iter::from_fn(|| results.try_recv().ok());
        shown.last().expect("there is room for the end").note
    };
    let note = last(&mut slow);
    assert_eq!(
        (&note["ended"], &note["skipped"]),
        (&"cancelled".into(), &6.into())
    );
}

#[test]
fn who_comes_back_finds_out_how_many_rows_were_given_meanwhile() {
    for (text, row) in [
        ("SELECT a FROM S", event as fn(Nanos) -> Batch),
        ("SELECT a FROM R", change),
    ] {
        let mut publisher = publisher(text);
        let mut missed = Missed::default();
        let mut take = |results: &mut Receiver<ResultUpdate>| {
            while let Ok(shown) = results.try_recv() {
                missed.take(&Note::of(&shown.note), shown.batch.num_rows() as u64);
            }
            missed.rows()
        };
        give(&mut publisher, 1, &row(1));
        let mut first = publisher.watch().unwrap();
        assert_eq!(take(&mut first), 0, "what was before is not missed");
        give(&mut publisher, 2, &row(2));
        assert_eq!(take(&mut first), 0);
        // Two rows are skipped because it is slow; then its connection is lost.
        for at in 3..=5 {
            give(&mut publisher, at, &row(at));
        }
        assert_eq!(take(&mut first), 0, "one waited");
        drop(first);
        for at in 6..=9 {
            give(&mut publisher, at, &row(at));
        }
        let mut second = publisher.watch().unwrap();
        assert_eq!(take(&mut second), 6, "{text}");
        give(&mut publisher, 10, &row(10));
        assert_eq!(take(&mut second), 6, "{text}");
        publisher.end("cancelled");
        assert_eq!(take(&mut second), 6, "{text}");
    }
}
