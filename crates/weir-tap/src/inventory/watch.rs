//! [`Watch`]: a thread that keeps the inventory fresh, for all taps of a process. It looks itself
//! ([`Looker`]), or has the inspection process look.

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
use super::lookout::Lookout;
use super::snapshot::Snapshot;
use crate::TapError;
use crate::ebpf::privileges;
use crate::elevation::{self, Raised};
use crate::inspection::message::{Begin, Kind, Received, Seen};
use crate::inspection::{Conversation, Inspection, lost};

/// The thread's name.
const NAME: &str = "inventory";

/// Between two looks there is at least this much, however many ask.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// How long [`Watch::start`] waits for the first look.
const FIRST_LOOK: Duration = Duration::from_secs(10);

/// How long the inspection process may take for a look. One that takes longer is treated as ended.
const LOOK_MAX: Duration = Duration::from_secs(60);

/// What a fresh look was asked for wait in a list of at most so many; more become [`Look::All`].
const ASKED_MAX: usize = 64;

/// How the inventory is watched.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// How often it looks of its own accord.
    pub poll: Duration,
    /// Where the host's /proc, /sys, /run, /var and /dev are: `/`, or a tree made by a test.
    pub root: PathBuf,
    /// Processes that the user declared to be VMs.
    pub declared: Vec<Declared>,
    /// The program, with arguments, that calls [`crate::inspection::run`] and looks in place of this
    /// process, which may give up its rights then. `None` to look here.
    pub inspector: Option<Vec<OsString>>,
}

/// What may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Look {
    /// This process is not known, or not any more.
    Pid(u32),
    /// Layouts on this whole device may be stale.
    Device(u32),
    /// Anything.
    All,
}

/// The inventory, kept fresh by a thread that ends when the last owner lets go.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    /// Dropped behind the end of the thread.
    inspection: Option<Arc<Inspection>>,
}

/// How the thread is started.
type Spawn = fn(Box<dyn FnOnce() + Send>) -> io::Result<()>;

/// With the rights of the caller.
fn plain(run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    let thread = thread::Builder::new().name(NAME.into());
    thread.spawn(run).map(drop)
}

/// Without rights.
fn reduced(run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    privileges::spawn_reduced(NAME, run).map(drop)
}

/// Looks at the host, in the thread that it was made in.
pub(crate) struct Looker {
    lookout: Lookout,
    /// Whether the thread has no more rights than looking takes.
    reduced: bool,
    _raised: Raised,
}

#[derive(Debug)]
struct Shared {
    generation: AtomicU64,
    state: Mutex<State>,
    /// Somebody asks for a look.
    asked: Condvar,
    /// A look is done.
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    snapshot: Arc<Snapshot>,
    /// What looks were asked for since the last one began.
    asked: Vec<Look>,
    /// Looks begun, and looks done.
    begun: u64,
    done: u64,
    ended: bool,
    /// Why nothing will be seen any more.
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
    /// One that has not looked yet. Its thread has to have all rights there are.
    pub(crate) fn new(options: &WatchOptions) -> Looker {
        Looker {
            // First, as the thread that asks monitors does not inherit what is raised.
            lookout: Lookout::new(options),
            reduced: false,
            _raised: elevation::raise(elevation::READING),
        }
    }

    /// Looks at what may have changed; `None` if nothing has.
    pub(crate) fn look(&mut self, asked: &[Look]) -> Option<Snapshot> {
        let seen = self.lookout.look(asked);
        // The first look has all rights there are: to read a table of the device mapper takes
        // CAP_SYS_ADMIN. Without the right to give up rights, there are none to give up.
        if !self.reduced
            && let Err(error) = privileges::keep_what_asking_takes()
        {
            self.lookout.remark(error.to_string());
        }
        self.reduced = true;
        seen
    }
}

impl Received {
    /// Has the inspection process look; the error says why it does not, behind its name.
    fn look(
        &mut self,
        process: &mut Conversation,
        asked: &[Look],
    ) -> Result<Option<Snapshot>, String> {
        let request = process.request(&asked);
        let seen = request.and_then(|()| self.read(process.socket()).map_err(lost));
        match seen.map_err(|error| error.to_string())? {
            Seen::Unchanged => Ok(None),
            Seen::Snapshot(snapshot) => Ok(Some(*snapshot)),
        }
    }
}

impl Watch {
    /// Starts the thread, and the inspection process if `options` name one; the first snapshot is
    /// complete on return, but for what monitors that are slow to answer would have said.
    ///
    /// # Errors
    /// When no thread or process can be started, or the first look takes longer than ten seconds.
    pub fn start(options: &WatchOptions) -> Result<Arc<Watch>, TapError> {
        let poll = options.poll;
        let Some(program) = &options.inspector else {
            let options = options.clone();
            return Watch::run(poll, None, plain, move || {
                let mut looker = Looker::new(&options);
                move |asked: &[Look]| Ok(looker.look(asked))
            });
        };
        let inspection = Inspection::start(program)?;
        let begin = Begin {
            root: options.root.clone(),
            declared: options.declared.iter().map(Declared::to_string).collect(),
        };
        let conversation = inspection.converse(Kind::Inventory, &begin, Some(LOOK_MAX));
        let mut conversation =
            conversation.map_err(|e| unavailable(format!("the inspection process {}", lost(e))))?;
        let mut received = Received::default();
        Watch::run(poll, Some(inspection), reduced, move || {
            move |asked: &[Look]| received.look(&mut conversation, asked)
        })
    }

    /// Watches what `look` sees in place of the host, as the tests and the benchmark do: it is
    /// called every `poll` and when a look is asked for, with what is asked for, and says `None` when
    /// nothing has changed.
    ///
    /// # Errors
    /// As [`Watch::start`].
    pub fn by(
        poll: Duration,
        mut look: impl FnMut(&[Look]) -> Option<Snapshot> + Send + 'static,
    ) -> Result<Arc<Watch>, TapError> {
        Watch::run(poll, None, plain, move || {
            move |asked: &[Look]| Ok(look(asked))
        })
    }

    /// Starts the thread, which first makes what it looks with.
    fn run<L: FnMut(&[Look]) -> Result<Option<Snapshot>, String>>(
        poll: Duration,
        inspection: Option<Arc<Inspection>>,
        spawn: Spawn,
        make: impl FnOnce() -> L + Send + 'static,
    ) -> Result<Arc<Watch>, TapError> {
        let first = State {
            begun: 1,
            ..State::default()
        };
        let shared = Arc::new(Shared {
            generation: AtomicU64::new(0),
            state: Mutex::new(first),
            asked: Condvar::new(),
            done: Condvar::new(),
        });
        let watch = Arc::new(Watch {
            shared: shared.clone(),
            inspection,
        });
        spawn(Box::new(move || shared.run(poll, make())))
            .map_err(|error| unavailable(format!("its thread cannot be started: {error}")))?;
        let first = watch.shared.wait(1, FIRST_LOOK);
        match (first.generation, watch.notice()) {
            (0, None) => Err(unavailable(format!("no look was done in {FIRST_LOOK:?}"))),
            (0, Some(why)) => Err(unavailable(why)),
            _ => Ok(watch),
        }
    }

    /// The process that looks, if it is one of its own.
    pub fn inspection(&self) -> Option<&Arc<Inspection>> {
        self.inspection.as_ref()
    }

    /// Why the inventory is no longer kept fresh, if it is not.
    pub fn notice(&self) -> Option<String> {
        self.shared.state().lost.clone()
    }

    /// The inventory as it was seen last.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.state().snapshot.clone()
    }

    /// Grows with every change; costs next to nothing to ask.
    pub fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// Asks for a fresh look now and waits at most `patience` for it.
    pub fn look(&self, at: Look, patience: Duration) -> Arc<Snapshot> {
        let ticket = self.shared.ask(at);
        self.shared.wait(ticket, patience)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.asked.notify_all();
    }
}

fn unavailable(what: String) -> TapError {
    TapError::Unavailable {
        what: format!("the inventory cannot be watched: {what}"),
        remedy: "see what the host is busy with, and try again".into(),
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    /// Notes what is asked for; the number of the look that will answer.
    fn ask(&self, at: Look) -> u64 {
        let mut state = self.state();
        if !state.asked.contains(&at) {
            if state.asked.len() >= ASKED_MAX {
                state.asked = vec![Look::All];
            } else {
                state.asked.push(at);
            }
        }
        self.asked.notify_all();
        state.begun + 1
    }

    /// Waits until look number `ticket` is done, at most `patience`.
    fn wait(&self, ticket: u64, patience: Duration) -> Arc<Snapshot> {
        let state = self.state();
        let waited = self
            .done
            .wait_timeout_while(state, patience, |s| s.done < ticket && !s.ended);
        let (state, _) = waited.expect("no panic while held");
        state.snapshot.clone()
    }

    /// The thread: looks when it is time or when asked, until nobody watches any more.
    fn run(
        &self,
        poll: Duration,
        mut look: impl FnMut(&[Look]) -> Result<Option<Snapshot>, String>,
    ) {
        let mut asked = vec![Look::All];
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

    /// Hands out what was seen, `None` for no change.
    fn publish(&self, seen: Option<Snapshot>) {
        let mut state = self.state();
        state.done = state.begun;
        if let Some(mut seen) = seen {
            seen.generation = state.snapshot.generation + 1;
            self.generation.store(seen.generation, Ordering::Release);
            state.snapshot = Arc::new(seen);
        }
        self.done.notify_all();
    }

    /// Ends because the inspection process does not look any more. What was seen stays, with a remark;
    /// who waits for a look is answered by that.
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
            "the inspection process {why}: VMs, their disks and processes, and devices stay as they \
             were last seen, and requests of new ones are not attributed; start weir again"
        );
        let mut last = Snapshot::clone(&state.snapshot);
        last.remarks.push(notice.clone());
        last.generation += 1;
        self.generation.store(last.generation, Ordering::Release);
        state.snapshot = Arc::new(last);
        // Work goes on where it cannot be printed.
        let _ = writeln!(io::stderr(), "weir: {}", shown(&notice));
        state.lost = Some(notice);
        self.done.notify_all();
    }

    /// Waits until the next look is due or asked for, and says for what; `None` at the end.
    fn rest(&self, started: Instant, poll: Duration) -> Option<Vec<Look>> {
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
                // Who asks from now on is answered by the look after this one.
                state.begun += 1;
                return Some(match asked.is_empty() {
                    true => vec![Look::All],
                    false => asked,
                });
            }
            let waited = self.asked.wait_timeout(state, due - since);
            state = waited.expect("no panic while held").0;
        }
    }
}
