//! [`Hub`]: connects the lanes of a process with the consumers of their records.
//!
//! Consumers connect and disconnect while lanes run. Every change of consumers increments
//! [`Hub::generation`]; a lane that finds another number at the start of a round reads the list
//! again. So a lane locks only then, and nothing waits for a lane.

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

/// Maximum number of consumers.
pub const CONSUMERS_MAX: usize = 8;

/// Minimum and maximum size of all rings of a consumer, while no lane joins.
const RINGS_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=256 << 20;

/// Rings are sized for at least this number of lanes: a booting guest opens more.
const LANES_EXPECTED: usize = 32;

/// Why a disk, lane or consumer is rejected.
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
    #[error("{CONSUMERS_MAX} consumers are connected already; wait until one has disconnected")]
    TooManyConsumers,
    /// No memory for the rings.
    #[error("no memory for the rings: {0}; request smaller ones or raise the limit")]
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
    /// Consumers that have left, until every lane has noticed: lanes must not be the ones to free
    /// their memory.
    departed: Vec<Arc<Subscription>>,
}

struct Enlisted {
    names: DiskWord,
    figures: Figures,
}

/// Provides a disk's statistics on request.
pub type Figures = Arc<dyn Fn() -> DiskFigures + Send + Sync>;

/// A consumer of records.
#[derive(Debug)]
pub struct Subscription {
    wanted: Wanted,
    memory: Arc<Memory>,
    lanes: Vec<LaneCounts>,
    /// Its process.
    pid: Option<i32>,
    since_ns: i64,
    /// A lane was opened for which there was no memory.
    starved: AtomicU64,
}

/// The counts of one lane for one consumer; only the lane writes them.
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
            // A lane that has not read the list yet is at 0.
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
    /// Registers a disk and returns its number, by which records refer to it. `names.number` is
    /// ignored.
    ///
    /// # Errors
    /// When there are too many.
    pub fn register(&self, names: DiskWord, figures: Figures) -> Result<u16, HubError> {
        let mut state = self.lock();
        if state.disks.len() >= DISKS_MAX {
            return Err(HubError::TooManyDisks);
        }
        let number = state.disks.len() as u16;
        let names = DiskWord { number, ..names };
        state.disks.push(Enlisted { names, figures });
        Ok(number)
    }

    /// The disk's name on the host.
    pub fn pdisk(&self, disk: u16) -> Option<String> {
        let state = self.lock();
        state.disks.get(usize::from(disk))?.names.pdisk.clone()
    }

    /// The names of all disks.
    pub fn disks(&self) -> Vec<DiskWord> {
        self.lock().disks.iter().map(|d| d.names.clone()).collect()
    }

    /// The disks, their statistics, and the consumers.
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
        // Providing statistics may take time.
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
    /// The number of changes of consumers.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Opens a lane of a disk: its number, which no other open lane has.
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

    /// Closes a lane, after its last record.
    pub(crate) fn close_lane(&self, lane: usize) {
        self.lock().lanes[lane] = None;
    }

    /// How many lanes there are.
    pub fn lanes_open(&self) -> usize {
        self.lock().lanes.iter().flatten().count()
    }

    /// The current consumers, and the generation.
    pub(crate) fn present(&self) -> (u64, Vec<Arc<Subscription>>) {
        let state = self.lock();
        let present = state.present.iter().filter(|s| !s.is_starved());
        (self.generation(), present.cloned().collect())
    }
}

/// Consumers.
impl Hub {
    /// Adds a consumer. It receives records from each lane's next round on.
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
            state.drop_departed();
            if state.present.len() >= CONSUMERS_MAX {
                return Err(HubError::TooManyConsumers);
            }
            state.lanes.len()
        };
        // Without the lock: allocating memory takes milliseconds.
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

    /// Removes a consumer that has disconnected: its memory is freed at once, though idle lanes may
    /// keep it mapped for long.
    pub fn forget(&self, subscription: &Arc<Subscription>) {
        subscription.memory.release();
        self.unsubscribe(subscription);
    }

    /// Removes a consumer that may still read its records.
    pub fn unsubscribe(&self, subscription: &Arc<Subscription>) {
        let mut state = self.lock();
        let of = |s: &Arc<Subscription>| Arc::ptr_eq(s, subscription);
        if let Some(at) = state.present.iter().position(of) {
            let consumer = state.present.remove(at);
            self.generation.fetch_add(1, Ordering::SeqCst);
            state.departed.push(consumer);
            state.drop_departed();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("the lock is not poisoned: its holders do not panic")
    }
}

impl State {
    /// Drops consumers that have left and that no lane holds any more.
    fn drop_departed(&mut self) {
        self.departed
            .retain(|consumer| Arc::strong_count(consumer) > 1);
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

    /// Its requested records.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// The memory of its records.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Whether a lane was opened for which there was no memory: the consumer must be disconnected,
    /// since it would not receive that lane's records.
    pub fn is_starved(&self) -> bool {
        self.starved.load(Ordering::Relaxed) != 0
    }

    /// The counts of a lane for it.
    pub(crate) fn lane(&self, lane: usize) -> &LaneCounts {
        &self.lanes[lane]
    }

    fn make_room(&self, lane: usize, lanes: usize) {
        if self.memory.reserve(lane).is_err() {
            self.starved.store(1, Ordering::Relaxed);
        }
        self.memory.use_lanes(lanes);
    }

    /// Its counts.
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
