//! [`PreparedReplay`]: a recording on a claimed disk, replayed once under weir's own tap, or as the
//! load of a trial.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use weir_model::{Nanos, Op};
use weir_runtime::failure::Failure;
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::{Stop, wall_clock};
use weir_tapdisk::direct_io::{DirectIo, DirectRequest};

use super::fidelity::compare;
use super::plan::{Pacing, ReplayPlan, ReplayTarget};
use super::player::{Played, ReplayLoad, direct_io, play};
use super::report::ReplayReport;
use super::rows::{LiveRows, RecordingChoice, SeenRequest, recorded};
use super::scratch::ScratchDisk;

/// What is replayed, where and how.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// The requests.
    pub recording: RecordingChoice,
    /// The scratch disk.
    pub device: String,
    /// Whether writes and flushes are left out.
    pub reads_only: bool,
    /// Whether the disk may have data, which is lost.
    pub overwrite: bool,
    /// Whether addresses are scaled to a smaller disk.
    pub scale: bool,
    /// When requests are issued.
    pub pacing: Pacing,
    /// How much faster than recorded.
    pub speed: f64,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct PreparedReplay {
    /// The disk.
    pub disk: ScratchDisk,
    options: ReplayOptions,
    plan: Arc<ReplayPlan>,
}

/// The time for which the tap is awaited.
const ATTACHED_WITHIN: Duration = Duration::from_secs(60);

/// The time for which the last rows are awaited.
const COMPLETE_WITHIN: Duration = Duration::from_secs(30);

/// The difference between the clocks of the tap and of this process, at most.
const CLOCKS_APART_NS: Nanos = 2_000_000;

/// The time between the replay and the reads by which the tap is recognised, so that they differ in
/// spite of the clocks.
const APART: Duration = Duration::from_millis(10);

/// The interval of progress messages.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// Reads the recording and claims the disk. Nothing is written.
///
/// # Errors
/// When the recording cannot be read, the disk is in use or has data, or the requests do not fit.
pub fn prepare(options: &ReplayOptions) -> Result<PreparedReplay, Failure> {
    let disk = ScratchDisk::claim(&options.device, options.reads_only, options.overwrite)?;
    let recorded = recorded(&options.recording)?;
    let target = ReplayTarget {
        sectors: disk.sectors,
        block_sectors: disk.block_sectors,
        scale: options.scale,
        reads_only: options.reads_only,
        pacing: options.pacing,
        speed: options.speed,
    };
    let plan = ReplayPlan::new(&recorded, &target).map_err(|reason| {
        let (path, device) = (&options.recording.path, disk.path());
        Failure::world(format_args!("--replay {path} --on {device}: {reason}"))
    })?;
    Ok(PreparedReplay {
        disk,
        options: options.clone(),
        plan: Arc::new(plan),
    })
}

impl PreparedReplay {
    /// Replays once, and compares what arrived at the disk with the plan.
    ///
    /// # Errors
    /// When the disk cannot be observed or the ring fails.
    pub fn measure(&self, stop: &Stop) -> Result<ReplayReport, Failure> {
        let mut io = direct_io(&self.disk, &self.plan)?;
        let device = self.disk.path();
        let live = LiveRows::start(&device, self.longest())?;
        self.await_tap(&mut io, &live, stop)?;
        thread::sleep(APART);
        let mut seen = Vec::new();
        let began = Instant::now();
        let (played, mut io) = self.play_observed(io, &live, &mut seen, stop)?;
        let seconds = began.elapsed().as_secs_f64();
        thread::sleep(APART);
        let end_ns = wall_clock();
        self.await_rows(&mut io, &live, &mut seen, end_ns)?;
        let notes = live.stop();
        let within = played.start_ns - CLOCKS_APART_NS..end_ns - CLOCKS_APART_NS;
        seen.retain(|request| within.contains(&request.insert_ns));
        Ok(ReplayReport {
            recording: self.options.recording.path.clone(),
            device,
            pacing: self.plan.pacing,
            speed: self.options.speed,
            seconds,
            recorded_sectors: self.plan.recorded_sectors,
            device_sectors: self.disk.sectors,
            is_scaled: self.plan.is_scaled,
            left_out: self.plan.left_out,
            counts: played.counts,
            is_interrupted: played.is_interrupted,
            fidelity: compare(&self.plan, played.start_ns, &seen),
            notes: notes_without_slides(&notes),
        })
    }

    /// The load of a trial.
    ///
    /// # Errors
    /// When the kernel does not permit io_uring.
    pub fn load(&self) -> Result<ReplayLoad, Failure> {
        let io = direct_io(&self.disk, &self.plan)?;
        Ok(ReplayLoad::new(self.plan.clone(), io))
    }

    /// A limit of the time of the replay, after which the tap ends on its own. A closed loop on a
    /// slower disk takes longer than the recording.
    fn longest(&self) -> Duration {
        let span = Duration::from_nanos(u64::try_from(self.plan.span_ns()).unwrap_or(0));
        let factor = match self.plan.pacing {
            Pacing::Open => 3,
            Pacing::Closed => 100,
        };
        span * factor + Duration::from_secs(300)
    }

    /// Reads the first block until the tap reports it.
    fn await_tap(&self, io: &mut DirectIo, live: &LiveRows, stop: &Stop) -> Result<(), Failure> {
        let until = Instant::now() + ATTACHED_WITHIN;
        while Instant::now() < until && stop.signal().is_none() {
            self.read_first_block(io)?;
            if live.next(Duration::from_millis(50))?.is_some() {
                return Ok(());
            }
        }
        match stop.signal() {
            Some(_) => Ok(()),
            None => Err(Failure::world(format_args!(
                "{}: weir's tap reported no request within {}; `weir doctor` shows what is missing",
                self.disk.path(),
                quantity::span_text(ATTACHED_WITHIN)
            ))),
        }
    }

    fn read_first_block(&self, io: &mut DirectIo) -> Result<(), Failure> {
        let bytes = self.disk.block_sectors * weir_model::SECTOR_BYTES as u64;
        io.push(&DirectRequest {
            op: Op::Read,
            offset_bytes: 0,
            bytes: u32::try_from(bytes).expect("a block is small"),
            token: 0,
        });
        let mut done = Vec::new();
        while done.is_empty() {
            io.wait(Duration::from_secs(1)).map_err(ring_failed)?;
            io.reap(&mut done);
        }
        match done[0].errno {
            None => Ok(()),
            Some(errno) => Err(Failure::world(format_args!(
                "{}: the first block cannot be read: {}",
                self.disk.path(),
                std::io::Error::from_raw_os_error(errno)
            ))),
        }
    }

    /// Replays in a thread, and receives rows meanwhile.
    fn play_observed(
        &self,
        mut io: DirectIo,
        live: &LiveRows,
        seen: &mut Vec<SeenRequest>,
        stop: &Stop,
    ) -> Result<(Played, DirectIo), Failure> {
        let issued = std::sync::atomic::AtomicUsize::new(0);
        let all = self.plan.requests.len();
        thread::scope(|scope| {
            let player = scope.spawn(|| {
                let played = play(&self.plan, &mut io, &mut |next| {
                    issued.store(next, std::sync::atomic::Ordering::Relaxed);
                    stop.signal().is_none()
                });
                (played, io)
            });
            let started = Instant::now();
            let mut shown = started;
            let mut failure = None;
            while !player.is_finished() {
                match live.next(Duration::from_millis(20)) {
                    Ok(row) => seen.extend(row),
                    Err(error) => {
                        // The replay goes on until it ends: it is not interrupted by the tap.
                        failure = Some(error);
                        break;
                    }
                }
                if shown.elapsed() >= PROGRESS_EVERY {
                    shown = Instant::now();
                    let done = issued.load(std::sync::atomic::Ordering::Relaxed);
                    output::notice(format_args!(
                        "weir: {done} of {all} requests replayed in {}",
                        quantity::span_text(Duration::from_secs(started.elapsed().as_secs()))
                    ));
                }
            }
            let (played, io) = player.join().expect("it does not panic");
            match failure {
                Some(error) => Err(error),
                None => Ok((played.map_err(ring_failed)?, io)),
            }
        })
    }

    /// Reads the first block until the tap has reported a read after `end_ns`: all earlier ones are
    /// received then.
    fn await_rows(
        &self,
        io: &mut DirectIo,
        live: &LiveRows,
        seen: &mut Vec<SeenRequest>,
        end_ns: Nanos,
    ) -> Result<(), Failure> {
        let until = Instant::now() + COMPLETE_WITHIN;
        while Instant::now() < until {
            self.read_first_block(io)?;
            let mut wait = Duration::from_millis(200);
            while let Some(row) = live.next(wait)? {
                seen.push(row);
                if row.insert_ns > end_ns + CLOCKS_APART_NS {
                    return Ok(());
                }
                wait = Duration::from_millis(20);
            }
        }
        Err(Failure::world(format_args!(
            "{}: the rows of the replay did not arrive within {}",
            self.disk.path(),
            quantity::span_text(COMPLETE_WITHIN)
        )))
    }
}

fn ring_failed(error: std::io::Error) -> Failure {
    Failure::world(format_args!("io_uring: {error}"))
}

/// What a measuring process has reported, without the remark that it was ended within a slice.
pub fn notes_without_slides(notes: &str) -> String {
    let lines = notes.lines().filter(|line| !line.contains("last slide"));
    let lines = lines.map(|line| line.strip_prefix("weir: ").unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}
