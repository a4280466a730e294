//! Standing queries over a program whose output the test writes: what subscribers receive, skip and
//! resume with.

use std::fs::{self, File};
use std::io::{Cursor, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use tokio::sync::Notify;
use weir_console::frame::{FrameHeader, HEADER_BYTES, SNAPSHOT};
use weir_console::program::{Program, ResultSource};
use weir_console::standing::{Cursor as Subscription, ROWS_MAX, StandingQueries};
use weir_model::{Batch, Column, Field, Schema, Shape, Type, Value};
use weir_sink::{InstantUnit, ResultSchema, arrow};

/// A program that copies a pipe to its output.
struct Source {
    writer: StreamWriter<File>,
    answer: ResultSchema,
}

struct Scene {
    folder: tempfile::TempDir,
    queries: Arc<StandingQueries>,
    changed: Arc<Notify>,
}

impl Scene {
    fn new(live: bool) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let program = folder.path().join("program");
        let starts = folder.path().join("starts");
        let script = format!(
            "#!/bin/sh\necho >> '{}'\nexec cat '{}'\n",
            starts.display(),
            pipe.display()
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let program = Program {
            executable: program,
            live,
            // A process for each query: the program of this test is not weir.
            monitor: Some("unix:".into()),
            ..Program::default()
        };
        Scene {
            folder,
            queries: Arc::new(StandingQueries::new(program, 4)),
            changed: Arc::default(),
        }
    }

    fn subscribe(&self) -> Subscription {
        let subscribed = self
            .queries
            .subscribe(&ResultSource::Own, "select 1", &self.changed);
        subscribed.unwrap_or_else(|error| panic!("{error:?}"))
    }

    fn source(&self, shape: Shape) -> Source {
        let answer = ResultSchema {
            schema: Arc::new(Schema::new(vec![Field::new("n", Type::Int)])),
            shape,
            clock: InstantUnit::Nanoseconds,
            order: vec![],
            raw: false,
        };
        let pipe = File::options()
            .write(true)
            .open(self.folder.path().join("pipe"));
        let writer = StreamWriter::try_new(pipe.unwrap(), &arrow::schema(&answer)).unwrap();
        Source { writer, answer }
    }

    fn starts(&self) -> usize {
        let starts = fs::read_to_string(Path::join(self.folder.path(), "starts"));
        starts.unwrap().lines().count()
    }
}

impl Source {
    fn put(&mut self, batch: &Batch) {
        let schema = Arc::new(arrow::schema(&self.answer));
        let rows = arrow::record_batch(&self.answer, &schema, batch);
        self.writer.write(&rows).unwrap();
        self.writer.get_mut().flush().unwrap();
    }

    /// Replaces `before` by `after`.
    fn replace(&mut self, at: i64, before: i64, after: i64) {
        let columns = vec![Column::ints(vec![before, after])];
        self.put(&Batch::deltas(vec![at; 2], vec![-1, 1], columns));
    }

    fn rows(&mut self, values: std::ops::Range<i64>) {
        let values: Vec<i64> = values.collect();
        let columns = vec![Column::ints(values.clone())];
        self.put(&Batch::stream(values, columns));
    }
}

/// Waits until `condition` holds.
fn wait_until(condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The header and values of the next frame.
fn next(subscription: &mut Subscription) -> (FrameHeader, Vec<i64>) {
    wait_until(|| subscription.is_behind());
    let frame = subscription.frame(9).unwrap();
    let header = FrameHeader::decode(&frame).unwrap();
    let rows = StreamReader::try_new(Cursor::new(&frame[HEADER_BYTES..]), None).unwrap();
    let answer = arrow::answer_of(&rows.schema()).unwrap();
    let mut values = Vec::new();
    for rows in rows {
        let batch = arrow::batch_of(&answer, &rows.unwrap()).unwrap();
        for row in 0..batch.len() {
            match batch.row(row)[0] {
                Value::Int(value) => values.push(value),
                ref other => panic!("{other:?}"),
            }
        }
    }
    (header, values)
}

/// The frames up to the one that ends with `last`.
fn until(subscription: &mut Subscription, last: i64) -> Vec<(FrameHeader, Vec<i64>)> {
    let mut frames = vec![next(subscription)];
    while frames.last().unwrap().1.last() != Some(&last) {
        frames.push(next(subscription));
    }
    frames
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_state_replaces_unsent_ones_which_are_counted() {
    let scene = Scene::new(true);
    let mut slow = scene.subscribe();
    let mut source = scene.source(Shape::Relation);
    source.put(&Batch::deltas(
        vec![0],
        vec![1],
        vec![Column::ints(vec![0])],
    ));
    until(&mut slow, 0);
    // A second subscriber reads each state; the first one has no credit meanwhile.
    let mut fast = scene.subscribe();
    until(&mut fast, 0);
    for state in 1..=50 {
        source.replace(state, state - 1, state);
        until(&mut fast, state);
    }
    let (header, values) = next(&mut slow);
    assert_eq!(values, [50], "only the newest state is sent");
    assert_eq!((header.skipped, header.rows), (49, 1));
    assert_eq!(header.flags & SNAPSHOT, SNAPSHOT);
    assert!(!slow.is_behind());
    assert_eq!(scene.starts(), 1, "both share a process");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_continued_and_a_reconnect_receives_recent_rows() {
    let scene = Scene::new(true);
    let mut first = scene.subscribe();
    let mut source = scene.source(Shape::Stream);
    source.rows(0..10);
    until(&mut first, 9);
    source.rows(10..15);
    let frames = until(&mut first, 14);
    let rows: Vec<i64> = frames.into_iter().flat_map(|frame| frame.1).collect();
    assert_eq!(rows, (10..15).collect::<Vec<_>>(), "each row once");
    first.leave(&scene.changed);
    source.rows(15..20);
    let other = Arc::new(Notify::new());
    let subscribed = scene
        .queries
        .subscribe(&ResultSource::Own, "select 1", &other);
    let mut again = subscribed.unwrap_or_else(|error| panic!("{error:?}"));
    let frames = until(&mut again, 19);
    assert_eq!(frames[0].0.flags, SNAPSHOT);
    let rows: Vec<i64> = frames.into_iter().flat_map(|frame| frame.1).collect();
    assert_eq!(rows, (0..20).collect::<Vec<_>>());
    assert_eq!(scene.starts(), 1, "the query has run on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_of_a_live_stream_skips_the_oldest_rows() {
    let scene = Scene::new(true);
    let mut slow = scene.subscribe();
    let mut fast = scene.subscribe();
    let mut source = scene.source(Shape::Stream);
    source.rows(0..1);
    until(&mut slow, 0);
    let total = 3 * ROWS_MAX as i64;
    for start in (1..total).step_by(1_000) {
        source.rows(start..(start + 1_000).min(total));
    }
    until(&mut fast, total - 1);
    let (header, rows) = next(&mut slow);
    assert!(rows.len() <= ROWS_MAX);
    assert_eq!(header.skipped + rows.len() as u64 + 1, total as u64);
    assert_eq!(rows.last(), Some(&(total - 1)));
    assert_eq!(header.rows, total as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_process_is_reported_after_its_rows() {
    let scene = Scene::new(false);
    let mut subscription = scene.subscribe();
    let mut source = scene.source(Shape::Stream);
    source.rows(0..3);
    source.writer.finish().unwrap();
    drop(source);
    assert_eq!(subscription.end(), None);
    until(&mut subscription, 2);
    wait_until(|| subscription.end().is_some());
    assert_eq!(subscription.end().unwrap().reason, "end");
}
