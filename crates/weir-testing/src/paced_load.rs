//! [`PacedLoad`]: direct reads and writes of a device at a fixed rate, in a thread that can be
//! paused; each completed request is counted.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::OFlags;

use crate::plan::DiskLoad;

/// A running load. It is stopped when it is dropped.
#[derive(Debug)]
pub struct PacedLoad {
    control: Arc<Control>,
    thread: Option<JoinHandle<Result<()>>>,
}

#[derive(Debug, Default)]
struct Control {
    phase: Mutex<Phase>,
    changed: Condvar,
    completed: AtomicU64,
}

/// The requested state of the thread, and whether it has closed the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Running,
    Pausing,
    Paused,
    Stopping,
}

/// The time between two bursts of requests.
const BURST_EVERY: Duration = Duration::from_millis(200);

/// The alignment of the buffer for direct I/O.
const ALIGNMENT: usize = 4096;

impl PacedLoad {
    /// Starts the requests of `load`, as many as its `rate` for each second and without an end.
    pub fn start(load: DiskLoad) -> PacedLoad {
        let control = Arc::new(Control::default());
        let of_thread = control.clone();
        let thread = std::thread::spawn(move || {
            let done = work(&load, &of_thread);
            // A pause must not wait for a thread that has failed.
            of_thread.set(Phase::Stopping);
            done.with_context(|| format!("load on {}", load.disk))
        });
        PacedLoad {
            control,
            thread: Some(thread),
        }
    }

    /// The number of completed requests.
    pub fn completed(&self) -> u64 {
        self.control.completed.load(Ordering::Relaxed)
    }

    /// Pauses it: on return no request is in flight and the device is closed.
    pub fn pause(&self) {
        let mut phase = self.control.lock();
        if *phase == Phase::Running {
            *phase = Phase::Pausing;
        }
        while *phase == Phase::Pausing {
            let waited = self.control.changed.wait(phase);
            phase = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Continues after a pause.
    pub fn resume(&self) {
        let mut phase = self.control.lock();
        if *phase == Phase::Paused {
            *phase = Phase::Running;
        }
        self.control.changed.notify_all();
    }

    /// Ends it; returns the number of completed requests.
    ///
    /// # Errors
    /// When a request has failed.
    pub fn stop(mut self) -> Result<u64> {
        self.control.set(Phase::Stopping);
        let thread = self.thread.take().expect("it is stopped once");
        thread.join().expect("errors are returned")?;
        Ok(self.completed())
    }
}

impl Drop for PacedLoad {
    fn drop(&mut self) {
        self.control.set(Phase::Stopping);
        if let Some(thread) = self.thread.take() {
            // Its error was not requested.
            let _ = thread.join();
        }
    }
}

impl Control {
    fn lock(&self) -> std::sync::MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, phase: Phase) {
        *self.lock() = phase;
        self.changed.notify_all();
    }

    /// The device is closed. The load may have been stopped in the meantime.
    fn paused(&self) {
        let mut phase = self.lock();
        if *phase == Phase::Pausing {
            *phase = Phase::Paused;
        }
        self.changed.notify_all();
    }

    /// Waits for this time, or until the phase changes; returns the phase.
    fn wait(&self, time: Duration) -> Phase {
        let phase = self.lock();
        let before = *phase;
        let waited = self
            .changed
            .wait_timeout_while(phase, time, |p| *p == before);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Executes requests until the load is stopped.
fn work(load: &DiskLoad, control: &Control) -> Result<()> {
    let bytes = usize::try_from(load.bytes).context("a request fits into memory")?;
    let mut memory = vec![0; bytes + ALIGNMENT];
    let at = memory.as_ptr().align_offset(ALIGNMENT);
    let buffer = &mut memory[at..at + bytes];
    let mut file: Option<File> = None;
    let (mut started, mut due, mut number) = (Instant::now(), 0, 0);
    loop {
        match control.wait(BURST_EVERY) {
            Phase::Stopping => return Ok(()),
            Phase::Pausing => {
                file = None;
                control.paused();
            }
            Phase::Paused => (started, due) = (Instant::now(), 0),
            Phase::Running => {
                if file.is_none() {
                    file = Some(open(load)?);
                }
                let opened = file.as_ref().expect("it was opened above");
                let elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
                while due * 1_000 < elapsed_ms.saturating_mul(load.rate) {
                    request(load, opened, number, buffer)?;
                    control.completed.fetch_add(1, Ordering::Relaxed);
                    (due, number) = (due + 1, number + 1);
                }
            }
        }
    }
}

fn open(load: &DiskLoad) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(load.write > 0)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(&load.disk);
    Ok(file?)
}

fn request(load: &DiskLoad, file: &File, number: u64, buffer: &mut [u8]) -> Result<()> {
    let request = load.request(number);
    match request.op {
        'r' => file.read_exact_at(buffer, request.sector * 512)?,
        _ => {
            buffer[..8].copy_from_slice(&(number ^ load.seed).to_le_bytes());
            file.write_all_at(buffer, request.sector * 512)?;
        }
    }
    Ok(())
}
