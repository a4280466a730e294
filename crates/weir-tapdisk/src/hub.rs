//! [`Hub`]: where the lanes of a process and those who want their records meet.
//!
//! Consumers come and go while lanes run. Whoever changes who is there counts [`Hub::generation`] up;
//! a lane that sees another number at the beginning of a round looks again. So a lane takes a lock only
//! then, and nobody waits for a lane.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use weir_tap::tapdisk::layout::{DISKS_MAX, LANES_MAX, Layout, RECORD_WORDS};
use weir_tap::tapdisk::ring::Memory;
use weir_tap::tapdisk::words::{
    ConsumerStatus, DiskFigures, DiskStatus, DiskWord, StatusWord, Wanted,
};

/// Most consumers at a time.
pub const CONSUMERS_MAX: usize = 8;

/// All rings of a consumer together take so many bytes at least and at most, while no lane joins.
const RINGS_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=256 << 20;

/// Rings are made as if there were so many lanes at least: a guest that boots opens more.
const LANES_EXPECTED: usize = 32;

/// Why somebody is not let in.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// More disks than [`DISKS_MAX`].
    #[error("a tap serves {DISKS_MAX} disks at most; start another for the rest")]
    TooManyDisks,
    /// More lanes than [`LANES_MAX`].
    #[error(
        "a tap serves {LANES_MAX} queues and connections at a time; start another for the rest"
    )]
    TooManyLanes,
    /// More consumers than [`CONSUMERS_MAX`].
    #[error("{CONSUMERS_MAX} consumers take records already; wait until one has ended")]
    TooManyConsumers,
    /// No memory for the rings.
    #[error("no memory for the rings: {0}; ask for smaller ones or allow more")]
    NoMemory(#[from] io::Error),
}

/// The lanes and consumers of one process.
pub struct Hub {
    generation: AtomicU64,
    since_ns: i64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    disks: Vec<Enlisted>,
    /// The disk of each lane that is open.
    lanes: Vec<Option<u16>>,
    present: Vec<Arc<Subscription>>,
    /// Those who have left, until every lane has seen it: their memory is not for lanes to give back.
    left: Vec<Arc<Subscription>>,
}

struct Enlisted {
    names: DiskWord,
    figures: Figures,
}

/// What tells a disk's figures when somebody asks for them.
pub type Figures = Arc<dyn Fn() -> DiskFigures + Send + Sync>;

/// Somebody who takes records.
#[derive(Debug)]
pub struct Subscription {
    wanted: Wanted,
    memory: Arc<Memory>,
    lanes: Vec<LaneCounts>,
    /// Its process.
    pid: Option<i32>,
    since_ns: i64,
    /// A lane came for which there was no memory.
    starved: AtomicU64,
}

/// What one lane did for one consumer; the lane is the only one that writes it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct LaneCounts {
    written: AtomicU64,
    avoided: AtomicU64,
    lost: AtomicU64,
}

impl Default for Hub {
    fn default() -> Hub {
        Hub {
            // A lane that has not looked yet is at 0.
            generation: AtomicU64::new(1),
            since_ns: epoch_ns(),
            state: Mutex::default(),
        }
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generation = self.generation.load(Ordering::Relaxed);
        f.debug_struct("Hub")
            .field("generation", &generation)
            .finish_non_exhaustive()
    }
}

/// Disks.
impl Hub {
    /// Takes a disk in: its number, by which records name it. `names.number` is of no meaning.
    ///
    /// # Errors
    /// When there are too many.
    pub fn enlist(&self, names: DiskWord, figures: Figures) -> Result<u16, HubError> {
        let mut state = self.lock();
        if state.disks.len() >= DISKS_MAX {
            return Err(HubError::TooManyDisks);
        }
        let number = state.disks.len() as u16;
        let names = DiskWord { number, ..names };
        state.disks.push(Enlisted { names, figures });
        Ok(number)
    }

    /// What a disk is called on the host.
    pub fn pdisk(&self, disk: u16) -> Option<String> {
        let state = self.lock();
        state.disks.get(usize::from(disk))?.names.pdisk.clone()
    }

    /// The names of all disks.
    pub fn disks(&self) -> Vec<DiskWord> {
        self.lock().disks.iter().map(|d| d.names.clone()).collect()
    }

    /// What is served, what was counted, and who listens.
    pub fn status(&self) -> StatusWord {
        let (disks, consumers) = {
            let state = self.lock();
            let lanes = |disk: usize| {
                let of = |lane: &&Option<u16>| **lane == Some(disk as u16);
                state.lanes.iter().filter(of).count()
            };
            let disks = state.disks.iter().enumerate();
            let disks = disks.map(|(i, d)| (d.names.clone(), lanes(i), d.figures.clone()));
            let consumers = state.present.iter().map(|s| s.status());
            (disks.collect::<Vec<_>>(), consumers.collect())
        };
        // Whoever tells figures may take his time.
        let disk = |(disk, lanes, figures): (DiskWord, usize, Figures)| DiskStatus {
            disk,
            lanes,
            figures: figures(),
        };
        StatusWord {
            program: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            since_ns: self.since_ns,
            disks: disks.into_iter().map(disk).collect(),
            consumers,
        }
    }
}

/// Lanes.
impl Hub {
    /// Counts how often somebody has come or gone.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// A lane of a disk begins: its number, which no other open lane has.
    pub(crate) fn open_lane(&self, disk: u16) -> Result<usize, HubError> {
        let mut state = self.lock();
        let free = state.lanes.iter().position(Option::is_none);
        let lane = free.unwrap_or(state.lanes.len());
        if lane >= LANES_MAX {
            return Err(HubError::TooManyLanes);
        }
        if lane == state.lanes.len() {
            state.lanes.push(None);
        }
        state.lanes[lane] = Some(disk);
        for subscription in &state.present {
            subscription.make_room(lane, state.lanes.len());
        }
        Ok(lane)
    }

    /// A lane has ended, and everything it had to tell is told.
    pub(crate) fn close_lane(&self, lane: usize) {
        self.lock().lanes[lane] = None;
    }

    /// How many lanes there are.
    pub fn lanes_open(&self) -> usize {
        self.lock().lanes.iter().flatten().count()
    }

    /// Who takes records now, as of which generation.
    pub(crate) fn present(&self) -> (u64, Vec<Arc<Subscription>>) {
        let state = self.lock();
        let present = state.present.iter().filter(|s| !s.is_starved());
        (self.generation(), present.cloned().collect())
    }
}

/// Consumers.
impl Hub {
    /// Lets somebody in who wants records. They come from each lane's next round on.
    ///
    /// # Errors
    /// When there are too many already, or there is no memory.
    pub fn subscribe(
        &self,
        wanted: Wanted,
        pid: Option<i32>,
    ) -> Result<Arc<Subscription>, HubError> {
        let lanes = {
            let mut state = self.lock();
            state.let_go();
            if state.present.len() >= CONSUMERS_MAX {
                return Err(HubError::TooManyConsumers);
            }
            state.lanes.len()
        };
        // Without the lock: to get memory takes milliseconds.
        let subscription = Arc::new(Subscription::new(wanted, pid, lanes)?);
        let mut state = self.lock();
        if state.present.len() >= CONSUMERS_MAX {
            return Err(HubError::TooManyConsumers);
        }
        for lane in lanes..state.lanes.len() {
            subscription.make_room(lane, state.lanes.len());
        }
        state.present.push(subscription.clone());
        self.generation.fetch_add(1, Ordering::SeqCst);
        Ok(subscription)
    }

    /// Lets somebody go who is gone: his memory goes back to the system at once, though lanes that rest
    /// may have it mapped for long.
    pub fn forget(&self, subscription: &Arc<Subscription>) {
        subscription.memory.release();
        self.unsubscribe(subscription);
    }

    /// Lets somebody go who may still read what he has been told.
    pub fn unsubscribe(&self, subscription: &Arc<Subscription>) {
        let mut state = self.lock();
        let of = |s: &Arc<Subscription>| Arc::ptr_eq(s, subscription);
        if let Some(at) = state.present.iter().position(of) {
            let gone = state.present.remove(at);
            self.generation.fetch_add(1, Ordering::SeqCst);
            state.left.push(gone);
            state.let_go();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics while held")
    }
}

impl State {
    /// Forgets those who have left as far as no lane holds them any more.
    fn let_go(&mut self) {
        self.left.retain(|gone| Arc::strong_count(gone) > 1);
    }
}

impl Subscription {
    fn new(wanted: Wanted, pid: Option<i32>, lanes: usize) -> io::Result<Subscription> {
        let (least, most) = (*RINGS_BYTES.start(), *RINGS_BYTES.end());
        let ring_bytes = wanted.ring_bytes.clamp(least, most) / lanes.max(LANES_EXPECTED) as u64;
        let memory = Memory::create(Layout::new(ring_bytes / (8 * RECORD_WORDS as u64)))?;
        (0..lanes).try_for_each(|lane| memory.reserve(lane))?;
        memory.use_lanes(lanes);
        Ok(Subscription {
            wanted,
            memory: Arc::new(memory),
            lanes: (0..LANES_MAX).map(|_| LaneCounts::default()).collect(),
            pid,
            since_ns: epoch_ns(),
            starved: AtomicU64::new(0),
        })
    }

    /// What it wants.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Where its records go.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// True when a lane has come for which there was no memory: the consumer is to be let go, since it
    /// would not hear of it.
    pub fn is_starved(&self) -> bool {
        self.starved.load(Ordering::Relaxed) != 0
    }

    /// What a lane did for it.
    pub(crate) fn lane(&self, lane: usize) -> &LaneCounts {
        &self.lanes[lane]
    }

    fn make_room(&self, lane: usize, lanes: usize) {
        if self.memory.reserve(lane).is_err() {
            self.starved.store(1, Ordering::Relaxed);
        }
        self.memory.use_lanes(lanes);
    }

    /// What was done for it.
    pub fn status(&self) -> ConsumerStatus {
        let sum = |of: fn(&LaneCounts) -> &AtomicU64| {
            let counts = self
                .lanes
                .iter()
                .map(|lane| of(lane).load(Ordering::Relaxed));
            counts.sum()
        };
        ConsumerStatus {
            pid: self.pid,
            since_ns: self.since_ns,
            records: sum(|lane| &lane.written),
            avoided: sum(|lane| &lane.avoided),
            lost: sum(|lane| &lane.lost),
        }
    }
}

impl LaneCounts {
    /// Records written, events avoided, records lost so far.
    pub(crate) fn get(&self) -> (u64, u64, u64) {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (get(&self.written), get(&self.avoided), get(&self.lost))
    }

    /// Sets them.
    #[inline]
    pub(crate) fn set(&self, written: u64, avoided: u64, lost: u64) {
        self.written.store(written, Ordering::Relaxed);
        self.avoided.store(avoided, Ordering::Relaxed);
        self.lost.store(lost, Ordering::Relaxed);
    }
}

/// Nanoseconds since the Unix epoch.
pub(crate) fn epoch_ns() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
