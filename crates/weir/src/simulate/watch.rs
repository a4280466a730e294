//! [`Watchers`]: each query is watched, and how long its results took is noted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::TimestampNanosecondType;
use weir_model::Nanos;
use weir_wire::event::{ResultUpdate, Submit};
use weir_wire::{Client, WatchEvent};

use weir_monitor::client::Note;
use weir_runtime::failure::Failure;
use weir_runtime::run_loop::wall_clock;

/// Delays that are kept of one query; the results beyond are counted only.
const DELAYS_MAX: usize = 1 << 20;
/// How long one waits for results before it is seen whether the end has come.
const PATIENCE: Duration = Duration::from_millis(100);

/// What those who watch have seen.
#[derive(Debug, Default)]
pub struct Seeing {
    /// Results are noted as long as this is set.
    pub noting: AtomicBool,
    /// Rows that came.
    pub rows: AtomicU64,
    /// From a result's instant to its arrival, in ns.
    delays: Mutex<Vec<Nanos>>,
    /// What was said last of how complete the answers are.
    note: Mutex<Note>,
    /// Why a query ended, if one did.
    ended: Mutex<Option<String>>,
}

/// Those who watch; they go when this is dropped, and with them the queries.
pub struct Watchers {
    pub seeing: Arc<Seeing>,
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Watchers {
    /// Places each query and watches it.
    ///
    /// # Errors
    /// When a query is refused.
    pub fn start(
        connect: impl Fn() -> Result<Client, Failure>,
        queries: &[String],
    ) -> Result<Watchers, Failure> {
        let mut watchers = Watchers {
            seeing: Arc::default(),
            end: Arc::default(),
            threads: Vec::new(),
        };
        let mut client = connect()?;
        for (number, query) in queries.iter().enumerate() {
            // A connection has room for 32 requests; a watch is one as long as it lasts.
            if number % 16 == 15 {
                client = connect()?;
            }
            let submit = Submit {
                query: query.clone(),
                ..Submit::default()
            };
            let placed = client.submit(&submit)?;
            let mut watch = client.watch(&placed.name)?;
            let (seeing, end) = (watchers.seeing.clone(), watchers.end.clone());
            let look = move || {
                while !end.load(Ordering::Relaxed) {
                    match watch.next(PATIENCE) {
                        Ok(WatchEvent::Update(shown)) => seeing.note(&shown),
                        Ok(WatchEvent::Timeout) => {}
                        Ok(WatchEvent::Ended) => return seeing.end("the query ended"),
                        Err(error) => return seeing.end(&error.to_string()),
                    }
                }
            };
            let thread = std::thread::Builder::new().name("weir-watch".to_owned());
            watchers.threads.push(thread.spawn(look)?);
        }
        Ok(watchers)
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // If it panicked it has said so.
            let _ = thread.join();
        }
    }
}

impl Seeing {
    fn note(&self, shown: &ResultUpdate) {
        let now = wall_clock();
        let next = Note::of(&shown.note);
        if let Some(why) = &next.ended {
            self.end(why);
        }
        // What a relation holds already is no news.
        let is_news = next.reset.is_none();
        let mut note = self.note.lock().expect("nobody panics here");
        *note = std::mem::take(&mut *note).then(next);
        drop(note);
        let instants = shown
            .batch
            .column_by_name("instant")
            .and_then(|column| column.as_primitive_opt::<TimestampNanosecondType>());
        let Some(instants) = instants.filter(|_| is_news && self.noting.load(Ordering::Relaxed))
        else {
            return;
        };
        self.rows
            .fetch_add(instants.len() as u64, Ordering::Relaxed);
        let mut delays = self.delays.lock().expect("nobody panics here");
        let room = DELAYS_MAX.saturating_sub(delays.len());
        delays.extend(instants.values().iter().take(room).map(|at| now - at));
    }

    fn end(&self, why: &str) {
        *self.ended.lock().expect("nobody panics here") = Some(why.to_owned());
    }

    /// Why a query ended, if one did.
    pub fn ended(&self) -> Option<String> {
        self.ended.lock().expect("nobody panics here").clone()
    }

    /// What was said last of how complete the answers are.
    pub fn completeness(&self) -> Note {
        self.note.lock().expect("nobody panics here").clone()
    }

    /// The delays so far, the smallest first.
    pub fn delays(&self) -> Vec<Nanos> {
        let mut delays = self.delays.lock().expect("nobody panics here").clone();
        delays.sort_unstable();
        delays
    }
}
