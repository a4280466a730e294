//! [`Watchers`]: a client for each query that records the delays of its results.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::TimestampNanosecondType;
use weir_model::Nanos;
use weir_wire::event::{ResultUpdate, Submit};
use weir_wire::{Client, WatchEvent};

use weir_monitor::client::UpdateNote;
use weir_runtime::failure::Failure;
use weir_runtime::run_loop::wall_clock;

/// The maximum number of recorded delays; further results are only counted.
const DELAYS_MAX: usize = 1 << 20;
/// The interval at which a waiting client checks whether to end.
const WATCH_TIMEOUT: Duration = Duration::from_millis(100);

/// What the clients have received.
#[derive(Debug, Default)]
pub struct Seen {
    /// Results are recorded while this is set.
    pub recording: AtomicBool,
    /// Rows that were received.
    pub rows: AtomicU64,
    /// From the instant of a result to its arrival, in ns.
    delays: Mutex<Vec<Nanos>>,
    /// The last note on the completeness of results.
    note: Mutex<UpdateNote>,
    /// Why a query ended, if one did.
    ended: Mutex<Option<String>>,
}

/// The clients. When this is dropped, they and the queries end.
pub struct Watchers {
    /// What they have received.
    pub seen: Arc<Seen>,
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Watchers {
    /// Submits each query and watches it.
    ///
    /// # Errors
    /// When a query is rejected.
    pub fn start(
        connect: impl Fn() -> Result<Client, Failure>,
        queries: &[String],
    ) -> Result<Watchers, Failure> {
        let mut watchers = Watchers {
            seen: Arc::default(),
            end: Arc::default(),
            threads: Vec::new(),
        };
        let mut client = connect()?;
        for (number, query) in queries.iter().enumerate() {
            // A connection has room for 32 requests; a watch is one of them until it ends.
            if number % 16 == 15 {
                client = connect()?;
            }
            let submit = Submit {
                query: query.clone(),
                ..Submit::default()
            };
            let submitted = client.submit(&submit)?;
            let mut watch = client.watch(&submitted.name)?;
            let (seen, end) = (watchers.seen.clone(), watchers.end.clone());
            let receive = move || {
                while !end.load(Ordering::Relaxed) {
                    match watch.next(WATCH_TIMEOUT) {
                        Ok(WatchEvent::Update(update)) => seen.note(&update),
                        Ok(WatchEvent::Timeout) => {}
                        Ok(WatchEvent::Ended) => return seen.end("the query ended"),
                        Err(error) => return seen.end(&error.to_string()),
                    }
                }
            };
            let thread = std::thread::Builder::new().name("weir-watch".to_owned());
            watchers.threads.push(thread.spawn(receive)?);
        }
        Ok(watchers)
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic was already reported.
            let _ = thread.join();
        }
    }
}

impl Seen {
    fn note(&self, update: &ResultUpdate) {
        let now = wall_clock();
        let next = UpdateNote::from_json(&update.note);
        if let Some(why) = &next.ended {
            self.end(why);
        }
        // The current state of a relation is not a new result.
        let is_new = next.reset.is_none();
        let mut note = self.note.lock().expect("no panic while held");
        *note = std::mem::take(&mut *note).updated_by(next);
        drop(note);
        let instants = update
            .batch
            .column_by_name("instant")
            .and_then(|column| column.as_primitive_opt::<TimestampNanosecondType>());
        let Some(instants) = instants.filter(|_| is_new && self.recording.load(Ordering::Relaxed))
        else {
            return;
        };
        self.rows
            .fetch_add(instants.len() as u64, Ordering::Relaxed);
        let mut delays = self.delays.lock().expect("no panic while held");
        let room = DELAYS_MAX.saturating_sub(delays.len());
        delays.extend(instants.values().iter().take(room).map(|at| now - at));
    }

    fn end(&self, why: &str) {
        *self.ended.lock().expect("no panic while held") = Some(why.to_owned());
    }

    /// Why a query ended, if one did.
    pub fn ended(&self) -> Option<String> {
        self.ended.lock().expect("no panic while held").clone()
    }

    /// The last note on the completeness of results.
    pub fn completeness(&self) -> UpdateNote {
        self.note.lock().expect("no panic while held").clone()
    }

    /// The delays so far, in ascending order.
    pub fn delays(&self) -> Vec<Nanos> {
        let mut delays = self.delays.lock().expect("no panic while held").clone();
        delays.sort_unstable();
        delays
    }
}
