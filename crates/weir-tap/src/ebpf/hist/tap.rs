//! [`HistTap`]: histograms in the kernel, from opening until they are dropped, stopped or told to end.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{HistOptions, HistSnapshot};
use crate::TapError;
use crate::ebpf::LiveOptions;
use crate::ebpf::cost::RunTime;
use crate::ebpf::privileges::{self, Files};
use crate::ebpf::tap::{BlockTap, open_with_histograms};

/// How often the inventory and the time to stop are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Histograms that the kernel keeps. A thread of its own looks after them: it tells the kernel side of
/// new devices and of whose processes are, and stops when it is time. Dropped, nothing is attached any
/// more.
///
/// ```no_run
/// use weir_tap::hist::{HistOptions, HistTap};
/// use weir_workload::{Class, Metric};
///
/// let mut tap = HistTap::open(&HistOptions::default())?;
/// std::thread::sleep(std::time::Duration::from_secs(10));
/// for (subject, histograms) in tap.snapshot().subjects {
///     let service = histograms.of(Metric::Service, Class::All);
///     println!("{subject:?}: {} requests, 99 % within {:?} ns", service.count, service.quantile(0.99));
/// }
/// # Ok::<(), weir_tap::TapError>(())
/// ```
#[derive(Debug)]
pub struct HistTap {
    shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// `None` at the end.
    tap: Mutex<Option<BlockTap>>,
    ended: Condvar,
}

impl HistTap {
    /// Loads and attaches the programs; from now on everything is counted.
    ///
    /// # Errors
    /// [`TapError::Unavailable`] when the kernel, the user's rights or the memory do not suffice, or a
    /// number in `options` is out of its range.
    pub fn open(options: &HistOptions) -> Result<HistTap, TapError> {
        let live = LiveOptions {
            devices: options.devices.clone(),
            requests_max: options.requests_max,
            without: options.without.clone(),
            inventory: None,
            ring_bytes: 0,
            ..LiveOptions::default()
        };
        let tap = open_with_histograms(&[], &live, options)?;
        let shared = Arc::new(Shared {
            tap: Mutex::new(Some(tap)),
            ended: Condvar::new(),
        });
        let kept = shared.clone();
        let keeper = thread::Builder::new().name("histograms".into());
        let (reduced, ready) = mpsc::channel::<()>();
        let keeper = keeper.spawn(move || {
            // The tables are open. Without the right to give up rights, there are none to give up.
            let _ = privileges::reduce_thread(Files::Open);
            drop(reduced);
            kept.look_after();
        });
        let keeper = keeper.map_err(|error| TapError::Unavailable {
            what: format!("the thread that looks after histograms cannot be started: {error}"),
            remedy: "see what the host is busy with, and try again".into(),
        })?;
        // Afterwards the caller may take the right to change the user id from all threads. Nothing is
        // ever sent: the channel closes.
        let _ = ready.recv();
        Ok(HistTap {
            shared,
            keeper: Some(keeper),
        })
    }

    /// What was counted since opening or the last reset. Requests that finish meanwhile may be in one
    /// distribution already and not yet in another.
    pub fn snapshot(&mut self) -> HistSnapshot {
        let snapshot = self.with(BlockTap::histograms);
        snapshot.expect("a tap of histograms has some")
    }

    /// Counts from 0 again, while I/O goes on. The next request's distance and time are still those from
    /// the one before, as with `vscsiStats`.
    pub fn reset(&mut self) {
        self.with(BlockTap::reset_histograms);
    }

    /// Counts no more; what was counted stays.
    pub fn stop(&mut self) {
        self.with(BlockTap::stop_histograms);
    }

    /// Whether it counts: false once it was stopped or its time has come.
    pub fn is_counting(&self) -> bool {
        self.with(|tap| tap.has_open_histograms())
    }

    /// What the kernel says of the programs' runs, while [`crate::ebpf::cost::Statistics`] are on.
    pub fn run_times(&self) -> Vec<RunTime> {
        self.with(|tap| tap.run_times())
    }

    /// Bytes of all tables, which do not grow.
    pub fn memory_bytes(&self) -> u64 {
        self.with(|tap| tap.memory_bytes())
    }

    /// What is attached and what is counted, in words.
    pub fn describe(&self) -> Vec<String> {
        use crate::Tap;
        self.with(|tap| tap.describe())
    }

    fn with<R>(&self, act: impl FnOnce(&mut BlockTap) -> R) -> R {
        let mut tap = self.shared.lock();
        act(tap.as_mut().expect("only dropping takes it"))
    }
}

impl Drop for HistTap {
    fn drop(&mut self) {
        // The programs go with the tap, at once, whatever the thread is at.
        self.shared.lock().take();
        self.shared.ended.notify_all();
        if let Some(keeper) = self.keeper.take() {
            // A panic there was told already.
            let _ = keeper.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<BlockTap>> {
        self.tap.lock().expect("no panic while held")
    }

    /// The thread: looks after the tap until it is gone.
    fn look_after(&self) {
        let mut tap = self.lock();
        while let Some(open) = tap.as_mut() {
            open.look_after_histograms();
            let waited = self.ended.wait_timeout(tap, LOOK_EVERY);
            tap = waited.expect("no panic while held").0;
        }
    }
}
