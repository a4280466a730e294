//! [`RowGroups`]: the row groups of a recording, read by threads ahead of the reader.

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use super::file::{Recording, guarded};
use super::rows::{Layout, Rows};

/// Most row groups that are read at the same time, each by a thread of its own. Bounds their
/// memory: that of a thread is [`super::pages::PAGES_BYTES_MAX`] at most, usually some MiB.
const THREADS_MAX: usize = 4;

/// Batches of a row group that wait for the reader.
const WAITING_MAX: usize = 8;

/// The batches of a recording, in order.
pub struct RowGroups {
    plan: Arc<ReadPlan>,
    /// The row groups that are being read, the first one in front.
    reading: VecDeque<Reading>,
    /// The next row group to read.
    next: usize,
    threads: usize,
}

/// What is read.
struct ReadPlan {
    recording: Arc<Recording>,
    layout: Arc<Layout>,
}

/// A row group that is being read.
struct Reading {
    group: usize,
    batches: Receiver<Found>,
    thread: JoinHandle<()>,
}

/// What a thread found in its row group.
enum Found {
    Batch(Batch),
    /// The rest of the row group cannot be read.
    Unreadable {
        reason: String,
        /// How many rows were read.
        rows_read: i64,
    },
}

/// A batch of the file.
pub struct Batch {
    /// The number of its rows.
    pub len: usize,
    /// Its rows, or the reason why they cannot be used.
    pub rows: Result<Rows, String>,
}

/// A row group, or the rest of one, that cannot be read.
pub struct UnreadableGroup {
    /// Its offset in the file.
    pub offset: u64,
    /// The reason.
    pub reason: String,
    /// How many rows are lost.
    pub rows_lost: i64,
}

impl RowGroups {
    /// All row groups. Nothing is read before the first call of [`RowGroups::next`].
    pub fn new(recording: Arc<Recording>, layout: Arc<Layout>) -> RowGroups {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        RowGroups {
            plan: Arc::new(ReadPlan { recording, layout }),
            reading: VecDeque::new(),
            next: 0,
            threads: threads.min(THREADS_MAX),
        }
    }

    /// The next batch; `None` at the end. A row group that cannot be read is skipped by the next
    /// call.
    pub fn next(&mut self) -> Option<Result<Batch, UnreadableGroup>> {
        loop {
            self.read_ahead();
            let first = self.reading.front()?;
            match first.batches.recv() {
                Ok(Found::Batch(batch)) => return Some(Ok(batch)),
                Ok(Found::Unreadable { reason, rows_read }) => {
                    let group = self
                        .plan
                        .recording
                        .metadata
                        .metadata()
                        .row_group(first.group);
                    let offset = group.columns().first().map_or(0, |c| c.data_page_offset());
                    return Some(Err(UnreadableGroup {
                        offset: u64::try_from(offset).unwrap_or(0),
                        reason: format!("row group {}: {reason}", first.group),
                        rows_lost: group.num_rows().saturating_sub(rows_read).max(0),
                    }));
                }
                Err(_) => {
                    let ended = self.reading.pop_front().expect("it is in front");
                    if let Err(panic) = ended.thread.join() {
                        resume_unwind(panic);
                    }
                }
            }
        }
    }

    /// Starts threads for the next row groups.
    fn read_ahead(&mut self) {
        let groups = self.plan.recording.metadata.metadata().num_row_groups();
        while self.reading.len() < self.threads && self.next < groups {
            let (out, batches) = sync_channel(WAITING_MAX);
            let (plan, group) = (self.plan.clone(), self.next);
            self.reading.push_back(Reading {
                group,
                batches,
                thread: thread::spawn(move || plan.read(group, &out)),
            });
            self.next += 1;
        }
    }
}

impl ReadPlan {
    /// Reads a row group until its end, or until its receiver is dropped.
    fn read(&self, group: usize, out: &SyncSender<Found>) {
        let mut rows_read = 0;
        let mut reader = match guarded(|| self.recording.reader(&self.layout.read, group)) {
            Ok(reader) => reader,
            Err(reason) => {
                let _ = out.send(Found::Unreadable { reason, rows_read });
                return;
            }
        };
        loop {
            let next = guarded(|| Ok(reader.batches.next().transpose()?));
            let found = match next {
                Ok(Some(batch)) => {
                    rows_read += batch.num_rows() as i64;
                    let stored = &self.recording.stored;
                    Found::Batch(Batch {
                        len: batch.num_rows(),
                        rows: self.layout.rows(&batch, &reader.columns, stored),
                    })
                }
                Ok(None) => return,
                Err(reason) => {
                    let _ = out.send(Found::Unreadable { reason, rows_read });
                    return;
                }
            };
            if out.send(found).is_err() {
                return;
            }
        }
    }
}
