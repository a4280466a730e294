//! [`Hub`]: connects the I/O queues of a process with the consumers of their records.
//!
//! Consumers connect and disconnect while I/O queues run. Every change of consumers increments
//! [`Hub::generation`]; an I/O queue that finds another number at the start of a round reads the
//! list again. So an I/O queue locks only then, and nothing waits for an I/O queue.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use weir_tap::tapdisk::layout::{DISKS_MAX, Layout, RECORD_WORDS, RINGS_MAX, VERSION};
use weir_tap::tapdisk::ring::Memory;
use weir_tap::tapdisk::words::{
    ConsumerStatus, DiskFigures, DiskStatus, DiskWord, StatusWord, Wanted,
};

use crate::throttle::Throttle;

/// Maximum number of consumers.
pub const CONSUMERS_MAX: usize = 8;

/// Minimum and maximum size of all rings of a consumer, while no I/O queue joins.
const RINGS_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=256 << 20;

/// Rings are sized for at least this number of I/O queues: a booting guest opens more.
const RINGS_EXPECTED: usize = 32;

/// Why a disk, I/O queue or consumer is rejected.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// More disks than [`DISKS_MAX`].
    #[error("a tap serves {DISKS_MAX} disks at most; start another for the rest")]
    TooManyDisks,
    /// More I/O queues than [`RINGS_MAX`].
    #[error(
        "a tap serves {RINGS_MAX} queues and connections at a time; start another for the rest"
    )]
    TooManyRings,
    /// More consumers than [`CONSUMERS_MAX`].
    #[error("the limit of {CONSUMERS_MAX} consumers is reached; wait until one has disconnected")]
    TooManyConsumers,
    /// No memory for the rings.
    #[error("no memory for the rings: {0}; request smaller ones or raise the limit")]
    NoMemory(#[from] io::Error),
}

/// The I/O queues and consumers of one process.
pub struct Hub {
    generation: AtomicU64,
    since_ns: i64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    disks: Vec<RegisteredDisk>,
    /// The disk of each I/O queue that is open.
    rings: Vec<Option<u16>>,
    consumers: Vec<Arc<Subscription>>,
    /// Consumers that have left, until every I/O queue has noticed: I/O queues must not be the ones
    /// to free their memory.
    removed: Vec<Arc<Subscription>>,
}

struct RegisteredDisk {
    names: DiskWord,
    statistics: StatisticsProvider,
    throttle: Arc<Throttle>,
}

/// Provides a disk's statistics on request.
pub type StatisticsProvider = Arc<dyn Fn() -> DiskFigures + Send + Sync>;

/// A consumer of records.
#[derive(Debug)]
pub struct Subscription {
    wanted: Wanted,
    memory: Arc<Memory>,
    rings: Vec<RingCounts>,
    /// Its process.
    pid: Option<i32>,
    since_ns: i64,
    /// An I/O queue was opened for which there was no memory.
    starved: AtomicU64,
}

/// The counts of one I/O queue for one consumer; only the I/O queue writes them.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct RingCounts {
    written: AtomicU64,
    avoided: AtomicU64,
    lost: AtomicU64,
    grouped: AtomicU64,
}

/// What became of the events of an I/O queue for one consumer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EventTotals {
    /// Records written.
    pub written: u64,
    /// Events that it did not request.
    pub avoided: u64,
    /// Records lost because the ring was full.
    pub lost: u64,
    /// Events that groups contain, without a record.
    pub grouped: u64,
}

impl EventTotals {
    pub fn all(&self) -> u64 {
        self.written + self.avoided + self.lost + self.grouped
    }
}

impl Default for Hub {
    fn default() -> Hub {
        Hub {
            // An I/O queue that has not read the list yet is at 0.
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
    /// ignored. Clients set its limits by `throttle`.
    ///
    /// # Errors
    /// When there are too many.
    pub fn register(
        &self,
        names: DiskWord,
        statistics: StatisticsProvider,
        throttle: Arc<Throttle>,
    ) -> Result<u16, HubError> {
        let mut state = self.lock();
        if state.disks.len() >= DISKS_MAX {
            return Err(HubError::TooManyDisks);
        }
        let number = state.disks.len() as u16;
        let names = DiskWord { number, ..names };
        state.disks.push(RegisteredDisk {
            names,
            statistics,
            throttle,
        });
        Ok(number)
    }

    /// The limits of a disk.
    pub fn throttle(&self, disk: u16) -> Option<Arc<Throttle>> {
        let state = self.lock();
        Some(state.disks.get(usize::from(disk))?.throttle.clone())
    }

    /// The names of a disk; none for a number that no disk has.
    pub fn disk(&self, disk: u16) -> DiskWord {
        let state = self.lock();
        let disk = state.disks.get(usize::from(disk));
        disk.map_or_else(DiskWord::default, |disk| disk.names.clone())
    }

    /// The names of all disks.
    pub fn disks(&self) -> Vec<DiskWord> {
        self.lock().disks.iter().map(|d| d.names.clone()).collect()
    }

    /// The disks, their statistics, and the consumers.
    pub fn status(&self) -> StatusWord {
        let (disks, consumers) = {
            let state = self.lock();
            let queues = |disk: usize| {
                let of = |ring: &&Option<u16>| **ring == Some(disk as u16);
                state.rings.iter().filter(of).count()
            };
            let disks = state.disks.iter().enumerate();
            let disks = disks.map(|(i, d)| (d.names.clone(), queues(i), d.statistics.clone()));
            let consumers = state.consumers.iter().map(|s| s.status());
            (disks.collect::<Vec<_>>(), consumers.collect())
        };
        // Providing statistics may take time.
        let disk = |(disk, queues, statistics): (DiskWord, usize, StatisticsProvider)| DiskStatus {
            disk,
            queues,
            figures: statistics(),
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

/// I/O queues.
impl Hub {
    /// The number of changes of consumers.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Opens an I/O queue of a disk: its number, which no other open I/O queue has.
    pub(crate) fn open_ring(&self, disk: u16) -> Result<usize, HubError> {
        let mut state = self.lock();
        let free = state.rings.iter().position(Option::is_none);
        let ring = free.unwrap_or(state.rings.len());
        if ring >= RINGS_MAX {
            return Err(HubError::TooManyRings);
        }
        if ring == state.rings.len() {
            state.rings.push(None);
        }
        state.rings[ring] = Some(disk);
        for subscription in &state.consumers {
            subscription.reserve_ring(ring, state.rings.len());
        }
        Ok(ring)
    }

    /// Closes an I/O queue, after its last record.
    pub(crate) fn close_ring(&self, ring: usize) {
        self.lock().rings[ring] = None;
    }

    /// How many I/O queues there are.
    pub fn open_rings(&self) -> usize {
        self.lock().rings.iter().flatten().count()
    }

    /// The current consumers, and the generation.
    pub(crate) fn consumers(&self) -> (u64, Vec<Arc<Subscription>>) {
        let state = self.lock();
        let consumers = state.consumers.iter().filter(|s| !s.is_starved());
        (self.generation(), consumers.cloned().collect())
    }
}

/// Consumers.
impl Hub {
    /// Adds a consumer. It receives records from each I/O queue's next round on.
    ///
    /// # Errors
    /// When there are too many already, or there is no memory.
    pub fn subscribe(
        &self,
        wanted: Wanted,
        pid: Option<i32>,
    ) -> Result<Arc<Subscription>, HubError> {
        let rings = {
            let mut state = self.lock();
            state.drop_removed();
            if state.consumers.len() >= CONSUMERS_MAX {
                return Err(HubError::TooManyConsumers);
            }
            state.rings.len()
        };
        // Without the lock: allocating memory takes milliseconds.
        let subscription = Arc::new(Subscription::new(wanted, pid, rings)?);
        let mut state = self.lock();
        if state.consumers.len() >= CONSUMERS_MAX {
            return Err(HubError::TooManyConsumers);
        }
        for ring in rings..state.rings.len() {
            subscription.reserve_ring(ring, state.rings.len());
        }
        state.consumers.push(subscription.clone());
        self.generation.fetch_add(1, Ordering::SeqCst);
        Ok(subscription)
    }

    /// Removes a consumer that has disconnected: its memory is freed at once, though idle I/O
    /// queues may keep it mapped for long.
    pub fn disconnect(&self, subscription: &Arc<Subscription>) {
        subscription.memory.release();
        self.unsubscribe(subscription);
    }

    /// Removes a consumer that may still read its records.
    pub fn unsubscribe(&self, subscription: &Arc<Subscription>) {
        let mut state = self.lock();
        let of = |s: &Arc<Subscription>| Arc::ptr_eq(s, subscription);
        if let Some(at) = state.consumers.iter().position(of) {
            let consumer = state.consumers.remove(at);
            self.generation.fetch_add(1, Ordering::SeqCst);
            state.removed.push(consumer);
            state.drop_removed();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("the lock is not poisoned: its holders do not panic")
    }
}

impl State {
    /// Drops consumers that have left and that no I/O queue holds any more.
    fn drop_removed(&mut self) {
        self.removed
            .retain(|consumer| Arc::strong_count(consumer) > 1);
    }
}

impl Subscription {
    fn new(wanted: Wanted, pid: Option<i32>, rings: usize) -> io::Result<Subscription> {
        let (least, most) = (*RINGS_BYTES.start(), *RINGS_BYTES.end());
        let ring_bytes = wanted.ring_bytes.clamp(least, most) / rings.max(RINGS_EXPECTED) as u64;
        // Rather an eighth more than half: the number of records is a power of two.
        let layout = Layout::new((ring_bytes + ring_bytes / 8) / (8 * RECORD_WORDS as u64));
        let version = wanted.layout.clamp(1, VERSION);
        let layout = layout.of_version(version).expect("it is one of them");
        let groups = wanted.group_tables(ring_bytes as usize);
        let memory = Memory::create(layout.with_groups(groups))?;
        (0..rings).try_for_each(|ring| memory.reserve(ring))?;
        memory.use_rings(rings);
        Ok(Subscription {
            wanted,
            memory: Arc::new(memory),
            rings: (0..RINGS_MAX).map(|_| RingCounts::default()).collect(),
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

    /// Whether an I/O queue was opened for which there was no memory: the consumer must be
    /// disconnected, since it would not receive that I/O queue's records.
    pub fn is_starved(&self) -> bool {
        self.starved.load(Ordering::Relaxed) != 0
    }

    /// The counts of an I/O queue for it.
    pub(crate) fn ring(&self, ring: usize) -> &RingCounts {
        &self.rings[ring]
    }

    fn reserve_ring(&self, ring: usize, rings: usize) {
        if self.memory.reserve(ring).is_err() {
            self.starved.store(1, Ordering::Relaxed);
        }
        self.memory.use_rings(rings);
    }

    /// Its counts.
    pub fn status(&self) -> ConsumerStatus {
        let sum = |of: fn(&RingCounts) -> &AtomicU64| {
            let counts = self
                .rings
                .iter()
                .map(|ring| of(ring).load(Ordering::Relaxed));
            counts.sum()
        };
        ConsumerStatus {
            pid: self.pid,
            since_ns: self.since_ns,
            records: sum(|ring| &ring.written),
            avoided: sum(|ring| &ring.avoided),
            lost: sum(|ring| &ring.lost),
            grouped: sum(|ring| &ring.grouped),
        }
    }
}

impl RingCounts {
    /// The counts so far.
    pub(crate) fn get(&self) -> EventTotals {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        EventTotals {
            written: get(&self.written),
            avoided: get(&self.avoided),
            lost: get(&self.lost),
            grouped: get(&self.grouped),
        }
    }

    /// Sets them.
    #[inline]
    pub(crate) fn set(&self, totals: EventTotals) {
        self.written.store(totals.written, Ordering::Relaxed);
        self.avoided.store(totals.avoided, Ordering::Relaxed);
        self.lost.store(totals.lost, Ordering::Relaxed);
        self.grouped.store(totals.grouped, Ordering::Relaxed);
    }
}

/// Nanoseconds since the Unix epoch.
pub(crate) fn epoch_ns() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
