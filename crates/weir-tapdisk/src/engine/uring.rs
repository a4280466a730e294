//! [`UringEngine`]: io_uring(7): all requests of a round are submitted to the kernel in one system
//! call, and the thread is free while they are in flight.
#![allow(unsafe_code)] // The kernel is handed a guest's memory by its address.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use io_uring::types::{Fixed, FsyncFlags};
use io_uring::{IoUring, Probe, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};
use weir_tap::tapdisk::mark::{FREE_BITS, RequestMark};

use super::bounce::Pool;
use super::sync::discard;
use super::work::{Call, Next, Transfer, Work};
use crate::Outcome;
use crate::disk::{QueueFiles, ServedDisk};

/// Maximum number of calls in the ring; further ones wait.
const ENTRIES_MAX: u32 = 4096;

/// The image, by its index in the ring's files.
const IMAGE: Fixed = Fixed(0);

/// The descriptor for flushes.
const FLUSHED: Fixed = Fixed(1);

/// Added to the `user_data` of a discard command.
const DISCARD: u64 = 1;

const _: () = assert!(DISCARD == FREE_BITS, "addresses of marks do not have it");

/// `BLOCK_URING_CMD_DISCARD` (linux/blkdev.h, Linux 6.12): `_IO(0x12, 0)`.
const DISCARD_COMMAND: u32 = 0x1200;

/// An engine with many requests in flight.
pub(crate) struct UringEngine {
    ring: IoUring,
    files: QueueFiles,
    event: OwnedFd,
    pool: Pool,
    /// What the requests in flight are, by slot.
    marks: Box<[RequestMark]>,
    /// Slots whose next call waits for a buffer or for an entry.
    waiting: VecDeque<u32>,
    /// Calls in the ring, submitted to the kernel or not.
    in_ring: u32,
    capacity: u32,
    event_mode: EventMode,
    /// The kernel had no memory for calls.
    unsubmitted: bool,
    /// The error of a submission that is not reported yet.
    broken: Option<io::Error>,
    /// The results of one look at the ring: the `user_data`, and the result.
    results: Vec<(u64, i32)>,
}

/// When the event is signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventMode {
    /// Always: the caller does not announce waiting.
    Always,
    /// Not now: the caller polls the ring.
    Never,
    /// The caller is about to wait.
    Once,
}

/// `IORING_ENTER_GETEVENTS` (linux/io_uring.h)
const GETEVENTS: u32 = 1;

/// A ring that does not interrupt its thread when a call has ended, which costs an interrupt each;
/// the thread enters the kernel often enough. Kernels before 5.19 do not support it.
fn cooperative(entries: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_coop_taskrun().setup_taskrun_flag();
    builder.build(entries)
}

/// Tries whether io_uring has all that is needed: Linux 5.6, and permission.
pub(crate) fn try_uring() -> io::Result<()> {
    let ring = IoUring::new(2)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        opcode::Read::CODE,
        opcode::Readv::CODE,
        opcode::Write::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
    ];
    match needed.iter().all(|code| probe.is_supported(*code)) {
        true => Ok(()),
        false => Err(io::ErrorKind::Unsupported.into()),
    }
}

impl UringEngine {
    /// A ring for `depth` requests, with one more slot for those that are rejected.
    pub(crate) fn new(files: QueueFiles, depth: u32) -> io::Result<UringEngine> {
        let entries = depth.clamp(1, ENTRIES_MAX).next_power_of_two();
        let ring = cooperative(entries).or_else(|_| IoUring::new(entries))?;
        let known = [&files.image, &files.flushed].map(AsRawFd::as_raw_fd);
        ring.submitter().register_files(&known)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        Ok(UringEngine {
            ring,
            files,
            event,
            pool: Pool::default(),
            marks: (0..=depth).map(|_| RequestMark::default()).collect(),
            waiting: VecDeque::with_capacity(depth as usize),
            in_ring: 0,
            capacity: entries,
            event_mode: EventMode::Always,
            unsubmitted: false,
            broken: None,
            results: Vec::with_capacity(entries as usize),
        })
    }

    /// Readable when requests may have ended.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Enables the event; returns false if a request has already ended.
    pub(crate) fn arm(&mut self) -> bool {
        self.event_mode = EventMode::Once;
        let mut completions = self.ring.completion();
        completions.enable_eventfd();
        // Requests that ended before are not signalled; later ones are.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        completions.sync();
        let nothing = completions.is_empty();
        drop(completions);
        nothing && !self.ring.submission().taskrun()
    }

    /// Calls could not be submitted: [`UringEngine::submit`] tries again, or returns the error.
    pub(crate) fn has_unsubmitted(&self) -> bool {
        self.unsubmitted || self.broken.is_some()
    }

    /// Queues the first call of a request.
    pub(crate) fn begin(
        &mut self,
        slot: u32,
        mark: impl FnOnce(&RequestMark),
        work: &mut Work,
        disk: &ServedDisk,
    ) {
        mark(&self.marks[slot as usize]);
        self.start(slot, work, disk);
    }

    /// Queues the next call of a request.
    fn start(&mut self, slot: u32, work: &mut Work, disk: &ServedDisk) {
        if self.in_ring == self.capacity {
            self.waiting.push_back(slot);
            return;
        }
        let Some(call) = work.call(disk, &mut self.pool) else {
            self.waiting.push_back(slot);
            return;
        };
        let entry = entry(call, self.marks[slot as usize].user_data());
        // SAFETY: the memory of the entry stays valid until the request ends, which is not before
        // the kernel has delivered this call's result.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("there are as many entries as calls in the ring");
        self.in_ring += 1;
    }

    /// Submits the queued calls in one system call.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        self.unsubmitted = false;
        while !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::EBUSY) => {
                        self.unsubmitted = true;
                        return Ok(());
                    }
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Reads results, and calls back for each request that ended. `works` are the requests' calls,
    /// by slot. Follow-up calls are submitted at once.
    pub(crate) fn reap(
        &mut self,
        disk: &ServedDisk,
        works: &mut [Work],
        ended: &mut Vec<(u32, Outcome)>,
    ) {
        self.clear_event();
        self.finish_work();
        let before = ended.len();
        let mut results = std::mem::take(&mut self.results);
        let entries = self
            .ring
            .completion()
            .map(|entry| (entry.user_data(), entry.result()));
        results.extend(entries);
        self.in_ring -= results.len() as u32;
        for (user_data, mut result) in results.drain(..) {
            let slot = self.slot_of(user_data);
            let work = &mut works[slot as usize];
            if user_data & DISCARD != 0 && is_unknown_command(result) {
                result = self.discard_here(work, disk);
            }
            match work.ended(result, disk, &mut self.pool) {
                Next::Continue => self.start(slot, work, disk),
                Next::End(outcome) => ended.push((slot, outcome)),
            }
        }
        self.results = results;
        if ended.len() > before {
            for _ in 0..self.waiting.len() {
                let slot = self.waiting.pop_front().expect("it has that many");
                self.start(slot, &mut works[slot as usize], disk);
            }
        }
        // The caller may not return before the next result, which may be of these.
        self.broken = self.submit().err();
    }

    /// Waits until a request has ended, if any is in flight.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        if self.in_ring == 0 {
            return Ok(());
        }
        match self.ring.submit_and_wait(1) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Waits until the kernel has finished all calls. Calls that wait for an entry are never made.
    pub(crate) fn drain_ring(&mut self, disk: &ServedDisk, works: &mut [Work]) {
        self.waiting.clear();
        let mut ended = Vec::new();
        while self.in_ring > 0 {
            if let Err(error) = self.wait() {
                // Memory that the kernel may write must not be freed.
                tracing::error!(reason = %error, "io_uring: cannot wait for requests in flight, aborting");
                std::process::abort();
            }
            self.reap(disk, works, &mut ended);
            self.waiting.clear();
        }
    }

    /// Has the kernel put results into the ring, if it defers that until the thread enters it.
    fn finish_work(&mut self) {
        if !self.ring.submission().taskrun() {
            return;
        }
        // SAFETY: nothing is submitted, and no memory is handed over.
        let entered = unsafe { self.ring.submitter().enter::<()>(0, 0, GETEVENTS, None) };
        // Work that cannot be finished now is finished by the next look.
        let _later = entered;
    }

    /// Clears the event before reading the ring, so that later results signal it again.
    fn clear_event(&mut self) {
        if self.event_mode == EventMode::Never {
            return;
        }
        // Nothing to read is the usual case.
        let _nothing = rustix::io::read(&self.event, &mut [0_u8; 8]);
        if self.event_mode == EventMode::Once {
            self.event_mode = EventMode::Never;
            self.ring.completion().disable_eventfd();
        }
    }

    /// The slot whose mark is there.
    fn slot_of(&self, user_data: u64) -> u32 {
        let bytes = (user_data & !DISCARD) - self.marks[0].user_data();
        (bytes / size_of::<RequestMark>() as u64) as u32
    }

    /// Discards in the I/O queue's thread, where the ring does not support it.
    fn discard_here(&mut self, work: &mut Work, disk: &ServedDisk) -> i32 {
        match work.call(disk, &mut self.pool) {
            Some(Call::Discard { offset, bytes }) => {
                discard(self.files.image.as_raw_fd(), offset, bytes)
            }
            _ => unreachable!("its last call was a discard"),
        }
    }
}

impl Drop for UringEngine {
    fn drop(&mut self) {
        // The kernel frees a ring asynchronously; until then it would keep the image locked.
        let _gone_anyway = self.ring.submitter().unregister_files();
    }
}

/// Kernels before 6.12 have no discard command.
fn is_unknown_command(result: i32) -> bool {
    let unknown = [libc::EOPNOTSUPP, libc::EINVAL, libc::ENOTTY, libc::ENOSYS];
    unknown.contains(&-result)
}

fn entry(call: Call, user_data: u64) -> squeue::Entry {
    match call {
        Call::Read(span) => match piece(span) {
            Some((start, bytes)) => opcode::Read::new(IMAGE, start, bytes)
                .offset(span.offset)
                .build(),
            None => opcode::Readv::new(IMAGE, span.pieces, span.count)
                .offset(span.offset)
                .build(),
        },
        Call::Write { span, durable } => {
            let flags = if durable { libc::RWF_DSYNC } else { 0 };
            match piece(span) {
                Some((start, bytes)) => opcode::Write::new(IMAGE, start, bytes)
                    .offset(span.offset)
                    .rw_flags(flags)
                    .build(),
                None => opcode::Writev::new(IMAGE, span.pieces, span.count)
                    .offset(span.offset)
                    .rw_flags(flags)
                    .build(),
            }
        }
        Call::Sync => opcode::Fsync::new(FLUSHED)
            .flags(FsyncFlags::DATASYNC)
            .build(),
        Call::Allocate {
            mode,
            offset,
            bytes,
        } => opcode::Fallocate::new(IMAGE, bytes)
            .offset(offset)
            .mode(mode)
            .build(),
        Call::Discard { offset, bytes } => {
            // The command's start is in `addr` and its length in `addr3`, the first half of `cmd`.
            let mut command = [0; 16];
            command[..8].copy_from_slice(&bytes.to_ne_bytes());
            let entry = opcode::UringCmd16::new(IMAGE, DISCARD_COMMAND)
                .addr(Some(offset))
                .cmd(command)
                .build();
            return entry.user_data(user_data | DISCARD);
        }
    }
    .user_data(user_data)
}

/// A span of one piece that fits a call's length. It needs no list, which the kernel would have to
/// read.
fn piece(span: Transfer) -> Option<(*mut u8, u32)> {
    if span.count != 1 {
        return None;
    }
    // SAFETY: a span's pieces are valid until the result of its call is delivered.
    let piece = unsafe { *span.pieces };
    let bytes = u32::try_from(piece.iov_len).ok()?;
    Some((piece.iov_base.cast(), bytes))
}
