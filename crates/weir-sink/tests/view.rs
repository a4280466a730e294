//! [`RelationView`] and [`Subscribers`] against a recomputation from all changes: random changes,
//! any number of readers at any speed, memory limits.

use std::collections::BTreeMap;

use fastrand::Rng;
use weir_model::{Batch, Column, Field, Nanos, Schema, Type, Value};
use weir_sink::{RelationView, SubscriberLimits, Subscribers, Update};

/// Rows and their counts, without zeros.
type Rows = BTreeMap<Vec<Value>, i64>;

const SEEDS: u64 = 60;

fn schema() -> Schema {
    let fields = [("vm", Type::Text), ("n", Type::Int)];
    Schema::new(fields.map(|(name, ty)| Field::new(name, ty)).to_vec())
}

fn row(key: i64) -> Vec<Value> {
    vec![
        Value::text(["a", "b", "c"][key as usize % 3]),
        Value::Int(key),
    ]
}

/// Changes at one instant.
fn batch(at: Nanos, changes: &[(i64, i64)]) -> Batch {
    let keys = changes.iter().map(|change| change.0);
    let texts = keys.clone().map(|key| row(key)[0].clone());
    let columns = vec![
        Column::from_values(Type::Text, texts),
        Column::ints(keys.collect()),
    ];
    let weights: Vec<i64> = changes.iter().map(|change| change.1).collect();
    Batch::deltas(vec![at; changes.len()], weights, columns)
}

/// The content of a relation after these batches, from scratch.
fn recomputed<'b>(batches: impl IntoIterator<Item = &'b Batch>) -> Rows {
    let mut rows = Rows::new();
    for batch in batches {
        for i in 0..batch.len() {
            *rows.entry(batch.row(i)).or_default() += batch.weight(i);
        }
    }
    rows.retain(|_, count| *count != 0);
    rows
}

fn content(view: &RelationView) -> Rows {
    view.rows()
        .map(|(row, count)| (row.to_vec(), count))
        .collect()
}

/// Changes that a relation with these rows can have: what is retracted is there.
fn random_changes(rng: &mut Rng, at: Nanos, rows: &Rows) -> Batch {
    let mut changes = BTreeMap::new();
    for _ in 0..rng.usize(0..6) {
        let key = rng.i64(0..12);
        let present = rows.get(&row(key)).copied().unwrap_or(0);
        let weight = rng.i64(-present..=3);
        if weight != 0 {
            changes.insert(key, weight);
        }
    }
    let mut changes: Vec<(i64, i64)> = changes.into_iter().collect();
    rng.shuffle(&mut changes);
    batch(at, &changes)
}

#[test]
fn a_view_equals_the_recomputation_at_every_instant() {
    for seed in 0..SEEDS {
        let mut rng = Rng::with_seed(seed);
        let mut view = RelationView::new(1 << 20);
        let mut batches = Vec::new();
        for at in 1..40 {
            let changes = random_changes(&mut rng, at, &recomputed(&batches));
            view.apply(&changes);
            batches.push(changes);
            let rows = recomputed(&batches);
            assert_eq!(content(&view), rows, "seed {seed}");
            assert_eq!(recomputed(&[view.snapshot(&schema(), at)]), rows);
            assert_eq!(view.len(), rows.values().sum::<i64>());
            assert_eq!(view.is_empty(), rows.is_empty());
            let count = rng.usize(0..14);
            let first: Vec<Vec<Value>> = view
                .first(count, |a, b| a.cmp(b))
                .iter()
                .map(|(row, _)| row.to_vec())
                .collect();
            let expected: Vec<Vec<Value>> = rows.keys().take(count).cloned().collect();
            assert_eq!(first, expected, "seed {seed}");
        }
        assert_eq!((view.omitted(), view.remarks()), (0, vec![]));
    }
}

#[test]
fn the_difference_of_two_snapshots_leads_from_one_to_the_other() {
    for seed in 0..SEEDS {
        let mut rng = Rng::with_seed(seed);
        let mut view = RelationView::new(1 << 20);
        let mut emitted = Vec::new();
        for at in 1..20 {
            let mut next = RelationView::new(1 << 20);
            next.apply(&random_changes(&mut rng, at, &Rows::new()));
            let rows = content(&next);
            let difference = view.replace(next, &schema(), at);
            assert_eq!(
                difference.is_none(),
                rows == recomputed(&emitted),
                "seed {seed}"
            );
            if let Some(batch) = &difference {
                assert!(batch.ts.iter().all(|ts| *ts == at));
                assert!((0..batch.len()).all(|i| batch.weight(i) != 0));
            }
            emitted.extend(difference);
            assert_eq!(content(&view), rows, "seed {seed}");
            assert_eq!(recomputed(&emitted), rows, "seed {seed}");
        }
        // Retractions are not before the last change.
        let rows = content(&view);
        let cleared = view.clear(&schema(), 3);
        assert_eq!(cleared.is_none(), rows.is_empty());
        emitted.extend(cleared);
        assert!(recomputed(&emitted).is_empty() && view.is_empty());
        assert!(emitted.iter().all(|batch| batch.ts.is_sorted()));
        assert!(emitted.is_sorted_by_key(|batch| batch.ts[0]), "seed {seed}");
    }
}

#[test]
fn memory_is_bounded_and_omitted_rows_are_counted_until_they_are_retracted() {
    let mut one = RelationView::new(1 << 20);
    one.apply(&batch(1, &[(1, 1)]));
    for seed in 0..SEEDS {
        let mut rng = Rng::with_seed(seed);
        let bytes_max = one.bytes() * rng.usize(0..6);
        let mut view = RelationView::new(bytes_max);
        let mut batches = Vec::new();
        for at in 1..40 {
            let changes = random_changes(&mut rng, at, &recomputed(&batches));
            view.apply(&changes);
            batches.push(changes);
            let rows = recomputed(&batches);
            assert!(view.bytes() <= bytes_max, "seed {seed}");
            let all: i64 = rows.values().sum();
            assert_eq!(view.len() + view.omitted(), all, "seed {seed}");
            assert!(view.omitted() >= 0 && view.rows().all(|(_, count)| count > 0));
            assert_eq!(view.remarks().is_empty(), view.omitted() == 0);
        }
        let rows = recomputed(&batches);
        let columns = |i: usize| rows.keys().map(move |row| row[i].clone());
        let columns = vec![
            Column::from_values(Type::Text, columns(0)),
            Column::from_values(Type::Int, columns(1)),
        ];
        let weights: Vec<i64> = rows.values().map(|count| -count).collect();
        view.apply(&Batch::deltas(vec![99; rows.len()], weights, columns));
        assert_eq!((view.len(), view.bytes(), view.omitted()), (0, 0, 0));
    }
}

#[test]
fn changes_are_applied_completely_or_not_at_all() {
    let mut refused = 0;
    for seed in 0..SEEDS {
        let mut rng = Rng::with_seed(seed);
        let mut view = RelationView::new(1 << 20);
        let mut batches = Vec::new();
        for at in 1..40 {
            // Retractions of absent rows, too: they change nothing.
            let changes: Vec<(i64, i64)> = (0..rng.usize(0..6))
                .map(|_| {
                    (
                        rng.i64(0..12),
                        rng.i64(1..3) * if rng.bool() { 1 } else { -1 },
                    )
                })
                .collect();
            let mut expected = content(&view);
            for (key, weight) in &changes {
                let count = expected.entry(row(*key)).or_default();
                *count = (*count + weight).max(0);
                expected.retain(|_, count| *count > 0);
            }
            let before = (content(&view), view.omitted(), view.bytes(), view.instant());
            let rows_max = rng.usize(3..9);
            let applied = view.try_apply(&batch(at, &changes), rows_max);
            assert_eq!(applied, expected.len() <= rows_max, "seed {seed}");
            if applied {
                assert_eq!(content(&view), expected, "seed {seed}");
                batches.push(changes);
            } else {
                refused += 1;
                let after = (content(&view), view.omitted(), view.bytes(), view.instant());
                assert_eq!(after, before, "seed {seed}");
            }
        }
    }
    assert!(refused > 0);
}

/// What a reader receives.
#[derive(Clone)]
struct Received {
    /// The number of the update.
    number: usize,
    batch: Batch,
    /// The rows skipped so far, if it is a snapshot.
    snapshot: Option<u64>,
}

/// A reader with its copy of the relation.
struct Reader {
    receiver: tokio::sync::mpsc::Receiver<Received>,
    rows: Rows,
    /// The update that it has received last.
    number: usize,
    skipped: u64,
}

impl Reader {
    fn read(&mut self, updates: &[Batch]) {
        let Ok(received) = self.receiver.try_recv() else {
            return;
        };
        let missed = updates.iter().take(received.number.saturating_sub(1));
        let missed = missed.skip(self.number).map(|batch| batch.len() as u64);
        let missed: u64 = missed.sum();
        match received.snapshot {
            Some(skipped) => {
                self.skipped += missed;
                assert_eq!(skipped, self.skipped);
                self.rows = recomputed(&[received.batch]);
            }
            None => {
                assert_eq!(missed, 0, "a reader of changes misses none");
                for i in 0..received.batch.len() {
                    let count = self.rows.entry(received.batch.row(i)).or_default();
                    *count += received.batch.weight(i);
                }
                self.rows.retain(|_, count| *count != 0);
            }
        }
        self.number = received.number;
        assert_eq!(self.rows, recomputed(&updates[..self.number]));
    }
}

#[test]
fn readers_of_any_number_and_speed_have_the_current_state_or_an_earlier_one() {
    let (mut snapshots, mut readers_seen) = (0, 0);
    for seed in 0..SEEDS {
        let mut rng = Rng::with_seed(seed);
        let limits = SubscriberLimits {
            readers_max: rng.usize(1..6),
            updates_max: rng.usize(1..8),
            bytes_max: rng.usize(1..400),
        };
        let mut view = RelationView::new(1 << 20);
        let mut subscribers = Subscribers::new(limits);
        let mut updates: Vec<Batch> = Vec::new();
        let mut readers: Vec<Reader> = Vec::new();
        let update = |number: usize, batch: Batch, snapshot: Option<u64>| Update {
            bytes: 32 * batch.len(),
            rows: if snapshot.is_some() {
                0
            } else {
                batch.len() as u64
            },
            body: Received {
                number,
                batch,
                snapshot,
            },
        };
        for at in 1..120 {
            let number = updates.len();
            if rng.u8(..) < 40 {
                let state = || update(number, view.snapshot(&schema(), at), Some(0));
                match subscribers.subscribe(|| Some(state())) {
                    None => assert_eq!(readers.len(), limits.readers_max),
                    Some(receiver) => readers.push(Reader {
                        receiver,
                        rows: Rows::new(),
                        number,
                        skipped: 0,
                    }),
                }
                readers_seen += 1;
            }
            let changes = random_changes(&mut rng, at, &recomputed(&updates));
            view.apply(&changes);
            updates.push(changes.clone());
            let state = |skipped| update(number + 1, view.snapshot(&schema(), at), Some(skipped));
            subscribers.publish(&update(number + 1, changes, None), state);
            for reader in &mut readers {
                assert!(reader.receiver.len() <= limits.updates_max);
                if rng.bool() {
                    for _ in 0..rng.usize(0..4) {
                        reader.read(&updates);
                    }
                }
            }
            if !readers.is_empty() && rng.u8(..) < 20 {
                readers.swap_remove(rng.usize(..readers.len()));
            }
            assert_eq!(subscribers.len(), readers.len());
        }
        // Once it has read its backlog, every reader receives the current state.
        let drain = |readers: &mut Vec<Reader>, updates: &[Batch]| {
            for reader in readers {
                while !reader.receiver.is_empty() {
                    reader.read(updates);
                }
            }
        };
        drain(&mut readers, &updates);
        updates.push(batch(200, &[]));
        let number = updates.len();
        let state = |skipped| update(number, view.snapshot(&schema(), 200), Some(skipped));
        let last = update(number, batch(200, &[]), None);
        assert!(subscribers.publish(&last, state));
        drain(&mut readers, &updates);
        for reader in &mut readers {
            assert_eq!((&reader.rows, reader.number), (&content(&view), number));
            snapshots += usize::from(reader.skipped > 0);
        }
        // The last update fits, however full the backlog is.
        for at in 201..220 {
            subscribers.publish(&update(number, batch(at, &[(1, 1)]), None), state);
        }
        subscribers.end(|skipped| Some(update(0, batch(220, &[]), Some(skipped)).body));
        for reader in &mut readers {
            let rest = std::iter::from_fn(|| reader.receiver.try_recv().ok());
            assert!(rest.last().is_some_and(|last| last.number == 0));
        }
    }
    assert!(snapshots > SEEDS as usize / 4 && readers_seen > snapshots);
}

#[test]
fn a_backlog_is_bounded_in_bytes_and_an_update_without_rows_is_optional() {
    let limits = SubscriberLimits {
        readers_max: 1,
        updates_max: 100,
        bytes_max: 10,
    };
    let mut subscribers = Subscribers::new(limits);
    let mut reader = subscribers.subscribe(|| None).unwrap();
    let update = |body: &'static str, bytes, rows| Update { body, bytes, rows };
    let mut publish = |body, bytes, rows| {
        subscribers.publish(&update(body, bytes, rows), |skipped| {
            update(
                if skipped == 7 {
                    "state after 7"
                } else {
                    "state"
                },
                1,
                0,
            )
        })
    };
    assert!(publish("larger than the limit", 50, 1));
    assert!(!publish("watermark", 1, 0), "there is no room");
    assert_eq!(reader.try_recv(), Ok("larger than the limit"));
    assert!(publish("changes", 4, 1), "it missed no rows");
    assert!(publish("changes", 6, 1));
    assert!(!publish("changes", 1, 5));
    assert_eq!(reader.try_recv(), Ok("changes"));
    assert!(!publish("changes", 1, 2), "it reads its backlog first");
    assert_eq!(reader.try_recv(), Ok("changes"));
    assert!(publish("watermark", 1, 0));
    assert_eq!(reader.try_recv(), Ok("state after 7"));
    drop(reader);
    assert!(subscribers.is_empty());
}
