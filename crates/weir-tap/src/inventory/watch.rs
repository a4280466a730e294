//! [`InventoryWatch`]: a thread that keeps the inventory up to date, for all taps of a process. It
//! scans in this process ([`Looker`]), or requests scans from the inspection process.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weir_model::text::shown;

use super::declared::Declared;
use super::scanner::Scanner;
use super::snapshot::Snapshot;
use crate::TapError;
use crate::ebpf::privileges;
use crate::elevation::{self, Raised};
use crate::inspection::message::{Begin, ConversationKind, Seen, SnapshotReceiver};
use crate::inspection::{Conversation, Inspection, lost};

/// The thread's name.
const NAME: &str = "inventory";

/// Minimum interval between two scans, regardless of the number of requests.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Timeout for the first scan.
const FIRST_LOOK: Duration = Duration::from_secs(10);

/// Timeout of a scan by the inspection process; after it the process is treated as ended.
const LOOK_MAX: Duration = Duration::from_secs(60);

/// Maximum number of queued requests for a scan; more become [`ScanScope::All`].
const ASKED_MAX: usize = 64;

/// Options of the inventory.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// Interval of the periodic scans.
    pub poll: Duration,
    /// The folder with the host's /proc, /sys, /run, /var and /dev: `/`, or a tree created by a
    /// test.
    pub root: PathBuf,
    /// Processes that the user declared to be VMs.
    pub declared: Vec<Declared>,
    /// The program, with arguments, that calls [`crate::inspection::run`] and scans in place of
    /// this process, which may then drop its privileges. `None` to scan in this process.
    pub inspector: Option<Vec<OsString>>,
}

/// The part of the host that may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ScanScope {
    /// This process is unknown, or no longer known.
    Pid(u32),
    /// Layouts on this whole device may be stale.
    Device(u32),
    /// Anything.
    All,
}

/// The inventory, kept up to date by a thread that ends when the last owner drops it.
#[derive(Debug)]
pub struct InventoryWatch {
    shared: Arc<Shared>,
    /// Dropped after the end of the thread.
    inspection: Option<Arc<Inspection>>,
}

/// Starts the thread.
type Spawn = fn(Box<dyn FnOnce() + Send>) -> io::Result<()>;

/// With the privileges of the caller.
fn plain(run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    let thread = thread::Builder::new().name(NAME.into());
    thread.spawn(run).map(drop)
}

/// Without privileges.
fn reduced(run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    privileges::spawn_reduced(NAME, run).map(drop)
}

/// Scans the host, in the thread that created it.
pub(crate) struct Looker {
    scanner: Scanner,
    /// Whether the thread has only the privileges that scans need.
    reduced: bool,
    _raised: Raised,
}

#[derive(Debug)]
struct Shared {
    generation: AtomicU64,
    state: Mutex<State>,
    /// A scan is requested.
    asked: Condvar,
    /// A scan is complete.
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    snapshot: Arc<Snapshot>,
    /// The requests since the last scan began.
    asked: Vec<ScanScope>,
    /// Number of scans begun and of scans completed.
    started: u64,
    done: u64,
    ended: bool,
    /// The reason why the inventory is no longer updated.
    lost: Option<String>,
}

impl Default for WatchOptions {
    fn default() -> WatchOptions {
        WatchOptions {
            poll: Duration::from_secs(1),
            root: PathBuf::from("/"),
            declared: Vec::new(),
            inspector: None,
        }
    }
}

impl Looker {
    /// A looker before its first scan. The thread must have all available privileges.
    pub(crate) fn new(options: &WatchOptions) -> Looker {
        Looker {
            // First, because the thread that queries monitors must not inherit raised privileges.
            scanner: Scanner::new(options),
            reduced: false,
            _raised: elevation::raise(elevation::READING),
        }
    }

    /// Scans what may have changed; `None` if nothing has.
    pub(crate) fn look(&mut self, asked: &[ScanScope]) -> Option<Snapshot> {
        let seen = self.scanner.look(asked);
        // The first scan has all available privileges: reading a table of the device mapper
        // requires CAP_SYS_ADMIN. A failure to drop privileges means that there are none.
        if !self.reduced
            && let Err(error) = privileges::keep_what_asking_takes()
        {
            self.scanner.remark(error.to_string());
        }
        self.reduced = true;
        seen
    }
}

impl SnapshotReceiver {
    /// Requests a scan from the inspection process; an error follows the name of the process.
    fn look(
        &mut self,
        process: &mut Conversation,
        asked: &[ScanScope],
    ) -> Result<Option<Snapshot>, String> {
        let request = process.request(&asked);
        let seen = request.and_then(|()| self.read(process.socket()).map_err(lost));
        match seen.map_err(|error| error.to_string())? {
            Seen::Unchanged => Ok(None),
            Seen::Snapshot(snapshot) => Ok(Some(*snapshot)),
        }
    }
}

impl InventoryWatch {
    /// As [`InventoryWatch::begin`]. The first snapshot is complete on return, except for QMP
    /// monitors that respond slowly.
    ///
    /// # Errors
    /// As [`InventoryWatch::begin`] and [`InventoryWatch::ready`].
    pub fn start(options: &WatchOptions) -> Result<Arc<InventoryWatch>, TapError> {
        let watch = InventoryWatch::begin(options)?;
        watch.ready()?;
        Ok(watch)
    }

    /// Starts the thread, and the inspection process if `options` name one.
    ///
    /// # Errors
    /// If no thread or process can be started.
    pub fn begin(options: &WatchOptions) -> Result<Arc<InventoryWatch>, TapError> {
        let poll = options.poll;
        let Some(program) = &options.inspector else {
            let options = options.clone();
            return InventoryWatch::run(poll, None, plain, move || {
                let mut looker = Looker::new(&options);
                move |asked: &[ScanScope]| Ok(looker.look(asked))
            });
        };
        let inspection = Inspection::start(program)?;
        let begin = Begin {
            root: options.root.clone(),
            declared: options.declared.iter().map(Declared::to_string).collect(),
        };
        let conversation = inspection.converse(ConversationKind::Inventory, &begin, Some(LOOK_MAX));
        let mut conversation =
            conversation.map_err(|e| unavailable(format!("the inspection process {}", lost(e))))?;
        let mut received = SnapshotReceiver::default();
        InventoryWatch::run(poll, Some(inspection), reduced, move || {
            move |asked: &[ScanScope]| received.look(&mut conversation, asked)
        })
    }

    /// Watches the snapshots of `look` instead of the host, for tests and the benchmark. `look` is
    /// called every `poll` and for each request, with the requests, and returns `None` if nothing
    /// has changed.
    ///
    /// # Errors
    /// As [`InventoryWatch::start`].
    pub fn by(
        poll: Duration,
        mut look: impl FnMut(&[ScanScope]) -> Option<Snapshot> + Send + 'static,
    ) -> Result<Arc<InventoryWatch>, TapError> {
        let watch = InventoryWatch::run(poll, None, plain, move || {
            move |asked: &[ScanScope]| Ok(look(asked))
        })?;
        watch.ready()?;
        Ok(watch)
    }

    /// Starts the thread, which first creates its scan function.
    fn run<L: FnMut(&[ScanScope]) -> Result<Option<Snapshot>, String>>(
        poll: Duration,
        inspection: Option<Arc<Inspection>>,
        spawn: Spawn,
        make: impl FnOnce() -> L + Send + 'static,
    ) -> Result<Arc<InventoryWatch>, TapError> {
        let first = State {
            started: 1,
            ..State::default()
        };
        let shared = Arc::new(Shared {
            generation: AtomicU64::new(0),
            state: Mutex::new(first),
            asked: Condvar::new(),
            done: Condvar::new(),
        });
        let watch = Arc::new(InventoryWatch {
            shared: shared.clone(),
            inspection,
        });
        spawn(Box::new(move || shared.run(poll, make())))
            .map_err(|error| unavailable(format!("its thread cannot be started: {error}")))?;
        Ok(watch)
    }

    /// Waits for the first scan.
    ///
    /// # Errors
    /// If it takes longer than ten seconds, or the inspection process has ended before.
    pub fn ready(&self) -> Result<(), TapError> {
        match (self.snapshot().generation, self.notice()) {
            (0, None) => Err(unavailable(format!(
                "the first scan did not end within {FIRST_LOOK:?}"
            ))),
            (0, Some(why)) => Err(unavailable(why)),
            _ => Ok(()),
        }
    }

    /// The inspection process, if one is used.
    pub fn inspection(&self) -> Option<&Arc<Inspection>> {
        self.inspection.as_ref()
    }

    /// The reason why the inventory is no longer updated, if it is not.
    pub fn notice(&self) -> Option<String> {
        self.shared.state().lost.clone()
    }

    /// The latest snapshot. Waits for the first one; if there is none, it is empty.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.wait(1, FIRST_LOOK)
    }

    /// Incremented with every change; cheap to read.
    pub fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// Requests a scan now and waits at most `timeout` for it.
    pub fn look(&self, at: ScanScope, timeout: Duration) -> Arc<Snapshot> {
        let ticket = self.shared.ask(at);
        self.shared.wait(ticket, timeout)
    }
}

impl Drop for InventoryWatch {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.asked.notify_all();
    }
}

fn unavailable(what: String) -> TapError {
    TapError::Unavailable {
        what: format!("the inventory cannot be read: {what}"),
        remedy: "check the load of the host, and retry".into(),
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    /// Queues a request; returns the number of the scan that will serve it.
    fn ask(&self, at: ScanScope) -> u64 {
        let mut state = self.state();
        if !state.asked.contains(&at) {
            if state.asked.len() >= ASKED_MAX {
                state.asked = vec![ScanScope::All];
            } else {
                state.asked.push(at);
            }
        }
        self.asked.notify_all();
        state.started + 1
    }

    /// Waits until scan number `ticket` is complete, at most `timeout`.
    fn wait(&self, ticket: u64, timeout: Duration) -> Arc<Snapshot> {
        let state = self.state();
        let waited = self
            .done
            .wait_timeout_while(state, timeout, |s| s.done < ticket && !s.ended);
        let (state, _) = waited.expect("no panic while held");
        state.snapshot.clone()
    }

    /// The thread: scans periodically and on request, until the last owner is dropped.
    fn run(
        &self,
        poll: Duration,
        mut look: impl FnMut(&[ScanScope]) -> Result<Option<Snapshot>, String>,
    ) {
        let mut asked = vec![ScanScope::All];
        loop {
            let started = Instant::now();
            match look(&asked) {
                Ok(seen) => self.publish(seen),
                Err(why) => return self.lose(&why),
            }
            match self.rest(started, poll) {
                Some(more) => asked = more,
                None => return,
            }
        }
    }

    /// Publishes a new snapshot, `None` for no change.
    fn publish(&self, seen: Option<Snapshot>) {
        let mut state = self.state();
        state.done = state.started;
        if let Some(mut seen) = seen {
            seen.generation = state.snapshot.generation + 1;
            self.generation.store(seen.generation, Ordering::Release);
            state.snapshot = Arc::new(seen);
        }
        self.done.notify_all();
    }

    /// Ends because the inspection process no longer responds. The last snapshot remains, with a
    /// remark, and is returned to callers that wait for a scan.
    fn lose(&self, why: &str) {
        let mut state = self.state();
        if state.ended {
            return;
        }
        state.ended = true;
        if state.snapshot.generation == 0 {
            state.lost = Some(format!("the inspection process {why}"));
            self.done.notify_all();
            return;
        }
        let notice = format!(
            "the inspection process {why}: relations vms, disks and devices are no longer updated, \
             and requests of new VMs are not attributed; restart weir"
        );
        let mut last = Snapshot::clone(&state.snapshot);
        last.remarks.push(notice.clone());
        last.generation += 1;
        self.generation.store(last.generation, Ordering::Release);
        state.snapshot = Arc::new(last);
        // Continues if it cannot be printed.
        let _ = writeln!(io::stderr(), "weir: {}", shown(&notice));
        state.lost = Some(notice);
        self.done.notify_all();
    }

    /// Waits until the next scan is due or requested, and returns the requests; `None` at the end.
    fn rest(&self, started: Instant, poll: Duration) -> Option<Vec<ScanScope>> {
        let mut state = self.state();
        loop {
            let since = started.elapsed();
            let due = match state.asked.is_empty() {
                true => poll,
                false => LOOK_PAUSE.min(poll),
            };
            if state.ended {
                return None;
            }
            if since >= due {
                let asked = std::mem::take(&mut state.asked);
                // Requests from here on are served by the scan after this one.
                state.started += 1;
                return Some(match asked.is_empty() {
                    true => vec![ScanScope::All],
                    false => asked,
                });
            }
            let waited = self.asked.wait_timeout(state, due - since);
            state = waited.expect("no panic while held").0;
        }
    }
}
