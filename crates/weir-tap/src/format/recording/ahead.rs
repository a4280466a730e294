//! [`RowGroups`]: the row groups of a recording, read by threads ahead of the reader.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use weir_model::Demand;

use super::file::{Recording, guarded};
use super::rows::{Layout, Rows};
use super::selected::{Selected, SkippedGroups, selected};
use super::unfold::{Blocks, ReadColumns};

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
    /// Row groups that are not yet read; those that share a block are read by one thread.
    waiting: VecDeque<Selected>,
    threads: usize,
}

/// What is read.
struct ReadPlan {
    recording: Arc<Recording>,
    layout: Arc<Layout>,
}

/// Row groups that are being read, or skipped.
enum Reading {
    Thread {
        batches: Receiver<Found>,
        thread: JoinHandle<()>,
    },
    Skipped(SkippedGroups),
}

/// What is next in a recording.
#[expect(clippy::large_enum_variant, reason = "it is moved once for each batch")]
pub enum NextGroups {
    /// A batch of a row group.
    Batch(Batch),
    /// A row group, or the rest of one, that cannot be read.
    Unreadable(UnreadableGroup),
    /// Row groups without rows of the demands.
    Skipped(SkippedGroups),
}

/// What a thread found in its row group.
#[expect(clippy::large_enum_variant, reason = "it is moved once for each batch")]
enum Found {
    Batch(Batch),
    /// The rest of a row group cannot be read.
    Unreadable {
        group: usize,
        reason: String,
        /// How many of its events were read.
        events_read: i64,
    },
}

/// A batch of the file.
pub struct Batch {
    /// The number of events in it.
    pub events: usize,
    /// Its rows, or the reason why they cannot be used.
    pub rows: Result<Rows, String>,
}

/// A row group, or the rest of one, that cannot be read.
pub struct UnreadableGroup {
    /// Its offset in the file.
    pub offset: u64,
    /// The reason.
    pub reason: String,
    /// How many events are lost.
    pub events_lost: i64,
}

impl RowGroups {
    /// The row groups that can have rows of `demands`. Nothing is read before the first call of
    /// [`RowGroups::next`].
    pub fn new(recording: Arc<Recording>, layout: Arc<Layout>, demands: &[Demand]) -> RowGroups {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let parts = match layout.is_by_block() {
            true => recording.groups_with_whole_blocks(),
            false => (0..recording.groups())
                .map(|group| group..group + 1)
                .collect(),
        };
        let waiting = selected(&recording, &layout, demands, parts).into();
        RowGroups {
            plan: Arc::new(ReadPlan { recording, layout }),
            reading: VecDeque::new(),
            waiting,
            threads: threads.min(THREADS_MAX),
        }
    }

    /// The next batch; `None` at the end. A row group that cannot be read is skipped by the next
    /// call.
    pub fn next(&mut self) -> Option<NextGroups> {
        loop {
            self.read_ahead();
            let batches = match self.reading.front()? {
                Reading::Thread { batches, .. } => batches,
                Reading::Skipped(skipped) => {
                    let skipped = *skipped;
                    self.reading.pop_front();
                    return Some(NextGroups::Skipped(skipped));
                }
            };
            match batches.recv() {
                Ok(Found::Batch(batch)) => return Some(NextGroups::Batch(batch)),
                Ok(Found::Unreadable {
                    group,
                    reason,
                    events_read,
                }) => {
                    let recording = &self.plan.recording;
                    let events = recording.events_of_group(group);
                    return Some(NextGroups::Unreadable(UnreadableGroup {
                        offset: recording.offset_of_group(group),
                        reason: format!("row group {group}: {reason}"),
                        events_lost: events.saturating_sub(events_read).max(0),
                    }));
                }
                Err(_) => {
                    let ended = self.reading.pop_front();
                    if let Some(Reading::Thread { thread, .. }) = ended
                        && let Err(panic) = thread.join()
                    {
                        resume_unwind(panic);
                    }
                }
            }
        }
    }

    /// Starts threads for the next row groups.
    fn read_ahead(&mut self) {
        let is_thread = |reading: &&Reading| matches!(reading, Reading::Thread { .. });
        let mut running = self.reading.iter().filter(is_thread).count();
        while running < self.threads
            && let Some(next) = self.waiting.pop_front()
        {
            self.reading.push_back(match next {
                Selected::Skipped(skipped) => Reading::Skipped(skipped),
                Selected::Read(groups) => {
                    running += 1;
                    let (out, batches) = sync_channel(WAITING_MAX);
                    let plan = self.plan.clone();
                    Reading::Thread {
                        batches,
                        thread: thread::spawn(move || plan.read(groups, &out)),
                    }
                }
            });
        }
    }
}

/// The receiver of batches was dropped.
struct Dropped;

impl ReadPlan {
    /// Reads row groups until their end, or until the receiver is dropped.
    fn read(&self, groups: Range<usize>, out: &SyncSender<Found>) {
        let mut blocks = Blocks::default();
        for group in groups {
            if let Err(Dropped) = self.read_group(group, &mut blocks, out) {
                return;
            }
        }
        let _ = self.send(blocks.finish(), &mut 0, out);
    }

    fn read_group(
        &self,
        group: usize,
        blocks: &mut Blocks,
        out: &SyncSender<Found>,
    ) -> Result<(), Dropped> {
        let mut events_read = 0;
        let unreadable = |reason, events_read| {
            let found = Found::Unreadable {
                group,
                reason,
                events_read,
            };
            out.send(found).map_err(|_| Dropped)
        };
        let mut reader = match guarded(|| self.recording.reader(&self.layout.read, group)) {
            Ok(reader) => reader,
            Err(reason) => return unreadable(reason, events_read),
        };
        loop {
            let batch = match guarded(|| Ok(reader.batches.next().transpose()?)) {
                Ok(Some(batch)) => batch,
                Ok(None) => return Ok(()),
                Err(reason) => {
                    // The rest of this block is missing, from which its columns follow.
                    let _ = blocks.finish();
                    return unreadable(reason, events_read);
                }
            };
            let stored = &self.recording.stored;
            let (columns, constants) = (&reader.columns, &reader.constants);
            match self.layout.columns(&batch, columns, constants, stored) {
                Ok(read) if self.layout.is_by_block() => match blocks.add(&read) {
                    Ok(complete) => self.send(complete, &mut events_read, out)?,
                    Err(reason) => return unreadable(reason, events_read),
                },
                Ok(read) => self.send([read], &mut events_read, out)?,
                Err(reason) => {
                    let events = batch.num_rows();
                    events_read += events as i64;
                    let rows = Err(reason);
                    let found = Found::Batch(Batch { events, rows });
                    out.send(found).map_err(|_| Dropped)?;
                }
            }
        }
    }

    /// Sends rows that were read, and counts their events.
    fn send(
        &self,
        read: impl IntoIterator<Item = ReadColumns>,
        events_read: &mut i64,
        out: &SyncSender<Found>,
    ) -> Result<(), Dropped> {
        for read in read {
            let rows = self.layout.rows(read, &self.recording.stored);
            let events = rows.events;
            *events_read += events as i64;
            let rows = Ok(rows);
            let found = Found::Batch(Batch { events, rows });
            out.send(found).map_err(|_| Dropped)?;
        }
        Ok(())
    }
}
