//! The thread of the sinks: prints answers while the engine computes the next ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_model::Batch;
use weir_sink::{Incomplete, Sink, SinkError, Watermark};

/// Minimum interval between two flushes of written output.
const FLUSH_EVERY: Duration = Duration::from_millis(100);

/// Minimum interval between two flushes of a sink without new rows.
const FLUSH_IDLE_EVERY: Duration = Duration::from_secs(1);

/// Maximum number of batches in the queue to the sinks; then the engine waits.
const SHEETS_MAX: usize = 64;

enum Sheet {
    /// Replaces or removes sink number `number`; the previous one is complete.
    Sink {
        number: usize,
        sink: Option<Box<dyn Sink>>,
    },
    /// Rows for sink number `sink`.
    Rows { sink: usize, batch: Batch },
    /// All rows of the current instant were sent.
    Whole,
    /// All rows up to the watermark were sent.
    Advance(Watermark),
    /// The query of sink number `sink` failed.
    Failed { sink: usize, error: String },
    /// The following rows are of a slide in which the inputs ended.
    Incomplete(Incomplete),
}

/// The sinks, which run in a thread of their own.
pub struct Shows {
    sheets: SyncSender<Sheet>,
    thread: JoinHandle<Result<Vec<String>, SinkError>>,
    rows: Arc<AtomicI64>,
    /// Rows were sent since the last [`Shows::whole`].
    torn: bool,
}

impl Shows {
    /// Starts the thread.
    pub fn start(sinks: Vec<Box<dyn Sink>>) -> Shows {
        let (sheets, arrivals) = sync_channel(SHEETS_MAX);
        let rows: Arc<AtomicI64> = Arc::default();
        let counted = rows.clone();
        let sinks = sinks.into_iter().map(Some).collect();
        Shows {
            sheets,
            thread: std::thread::spawn(move || show(sinks, &arrivals, &counted)),
            rows,
            torn: false,
        }
    }

    /// Sets sink number `number`, or removes the present one; false as in [`Shows::rows`].
    pub fn exchange(&mut self, number: usize, sink: Option<Box<dyn Sink>>) -> bool {
        self.sheets.send(Sheet::Sink { number, sink }).is_ok()
    }

    /// Sends rows to sink number `sink`; false when the sinks have failed: [`Shows::finish`]
    /// returns the error.
    pub fn rows(&mut self, sink: usize, batch: Batch) -> bool {
        self.torn = true;
        self.sheets.send(Sheet::Rows { sink, batch }).is_ok()
    }

    /// Marks the end of an instant; false as in [`Shows::rows`].
    pub fn whole(&mut self) -> bool {
        !std::mem::take(&mut self.torn) || self.sheets.send(Sheet::Whole).is_ok()
    }

    /// Sends the watermark to all sinks; false as in [`Shows::rows`].
    pub fn advance(&mut self, watermark: Watermark) -> bool {
        self.sheets.send(Sheet::Advance(watermark)).is_ok()
    }

    /// Reports the failure of the query of a sink; false as in [`Shows::rows`].
    pub fn failed(&mut self, sink: usize, error: String) -> bool {
        self.sheets.send(Sheet::Failed { sink, error }).is_ok()
    }

    /// Marks the following rows as of a slide in which the inputs ended; false as in
    /// [`Shows::rows`].
    pub fn incomplete(&mut self, slide: Incomplete) -> bool {
        self.sheets.send(Sheet::Incomplete(slide)).is_ok()
    }

    /// True when the sinks have failed or accept no more, also while no rows are sent.
    pub fn ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Rows received by the sinks.
    pub fn rows_taken(&self) -> i64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Completes all output and returns the sinks' remarks.
    ///
    /// # Errors
    /// The first error of a sink.
    pub fn finish(self) -> Result<Vec<String>, SinkError> {
        drop(self.sheets);
        self.thread.join().expect("a sink does not panic")
    }
}

fn show(
    mut sinks: Vec<Option<Box<dyn Sink>>>,
    arrivals: &Receiver<Sheet>,
    rows: &AtomicI64,
) -> Result<Vec<String>, SinkError> {
    let mut flushed = Instant::now() - FLUSH_EVERY;
    let (mut torn, mut news) = (false, false);
    loop {
        match arrivals.recv_timeout(FLUSH_EVERY) {
            Ok(Sheet::Sink { number, sink }) => {
                if number == sinks.len() {
                    sinks.push(None);
                }
                if let Some(mut before) = std::mem::replace(&mut sinks[number], sink) {
                    before.finish()?;
                }
            }
            Ok(Sheet::Rows { sink, batch }) => {
                let sink = sinks[sink].as_mut().expect("rows go where a sink is");
                sink.write(&batch)?;
                rows.fetch_add(batch.len() as i64, Ordering::Relaxed);
                (torn, news) = (true, true);
            }
            Ok(Sheet::Whole) => torn = false,
            Ok(Sheet::Advance(watermark)) => {
                let mut all = sinks.iter_mut().flatten();
                all.try_for_each(|sink| sink.advance(&watermark))?;
                news = true;
            }
            Ok(Sheet::Failed { sink, error }) => {
                if let Some(sink) = sinks[sink].as_mut() {
                    sink.fail(&error)?;
                }
            }
            Ok(Sheet::Incomplete(slide)) => {
                sinks
                    .iter_mut()
                    .flatten()
                    .for_each(|sink| sink.incomplete(slide));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let due = if news { FLUSH_EVERY } else { FLUSH_IDLE_EVERY };
        if !torn && flushed.elapsed() >= due {
            sinks.iter_mut().flatten().try_for_each(|s| s.flush())?;
            flushed = Instant::now();
            news = false;
        }
    }
    sinks.iter_mut().flatten().try_for_each(|s| s.finish())?;
    Ok(sinks.iter().flatten().flat_map(|s| s.remarks()).collect())
}
