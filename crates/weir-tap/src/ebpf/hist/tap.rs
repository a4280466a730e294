//! [`HistTap`]: histograms in the kernel, from opening until they are dropped, are stopped or reach
//! their time to stop.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{HistOptions, HistSnapshot};
use crate::TapError;
use crate::ebpf::LiveOptions;
use crate::ebpf::cost::RunTime;
use crate::ebpf::privileges::{self, Files};
use crate::ebpf::tap::{BlockTap, open_with_histograms};

/// Interval of the checks of the inventory and of the time to stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Histograms kept by the kernel. A separate thread updates the kernel side for new devices and
/// owners, and stops counting at the configured time. Dropping this value detaches the programs.
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
    /// [`TapError::Unavailable`] if the kernel, the user's rights or the memory do not suffice, or
    /// a number in `options` is out of its range.
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
            // The tables are open. Dropping fails only if there are no rights to drop.
            let _ = privileges::reduce_thread(Files::Open);
            drop(reduced);
            kept.look_after();
        });
        let keeper = keeper.map_err(|error| TapError::Unavailable {
            what: format!("the thread that reads histograms cannot be started: {error}"),
            remedy: "check the load of the host, and retry".into(),
        })?;
        // Afterwards the caller may drop the right to change the user id from all threads. Nothing
        // is sent: the channel is closed.
        let _ = ready.recv();
        Ok(HistTap {
            shared,
            keeper: Some(keeper),
        })
    }

    /// The counts since opening or the last reset. Requests that finish during the call may be in
    /// one distribution already and not yet in another.
    pub fn snapshot(&mut self) -> HistSnapshot {
        let snapshot = self.with(BlockTap::histograms);
        snapshot.expect("a tap of histograms has some")
    }

    /// Restarts counting at 0 while I/O continues. The next request's distance and time are still
    /// relative to the previous one, as with `vscsiStats`.
    pub fn reset(&mut self) {
        self.with(BlockTap::reset_histograms);
    }

    /// Stops counting; the counts remain.
    pub fn stop(&mut self) {
        self.with(BlockTap::stop_histograms);
    }

    /// True while it counts: false once it was stopped or has reached its time to stop.
    pub fn is_counting(&self) -> bool {
        self.with(|tap| tap.has_open_histograms())
    }

    /// The kernel's statistics of the programs' runs, while [`crate::ebpf::cost::Statistics`] are
    /// on.
    pub fn run_times(&self) -> Vec<RunTime> {
        self.with(|tap| tap.run_times())
    }

    /// Size of all tables in bytes; it is constant.
    pub fn memory_bytes(&self) -> u64 {
        self.with(|tap| tap.memory_bytes())
    }

    /// The attached programs and the subjects, as text.
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
        // The programs are detached with the tap, immediately, whatever the thread does.
        self.shared.lock().take();
        self.shared.ended.notify_all();
        if let Some(keeper) = self.keeper.take() {
            // A panic of the thread was reported already.
            let _ = keeper.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<BlockTap>> {
        self.tap.lock().expect("no panic while held")
    }

    /// The thread: maintains the tap until it is dropped.
    fn look_after(&self) {
        let mut tap = self.lock();
        while let Some(open) = tap.as_mut() {
            open.look_after_histograms();
            let waited = self.ended.wait_timeout(tap, LOOK_EVERY);
            tap = waited.expect("no panic while held").0;
        }
    }
}
