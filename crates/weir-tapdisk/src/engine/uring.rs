//! [`UringEngine`]: io_uring(7): all requests of a round go to the kernel in one system call, and the
//! thread is free while they are under way.
#![allow(unsafe_code)] // The kernel is handed a guest's memory by its address.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use io_uring::types::{Fixed, FsyncFlags};
use io_uring::{IoUring, Probe, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};

use super::bounce::Pool;
use super::sync::discard;
use super::work::{Call, Next, Span, Work};
use crate::Outcome;
use crate::disk::{Disk, LaneFiles};

/// Calls in the ring at most; further ones wait for their turn.
const ENTRIES_MAX: u32 = 4096;

/// The image, as the ring knows it.
const IMAGE: Fixed = Fixed(0);

/// What is flushed of it.
const FLUSHED: Fixed = Fixed(1);

/// Marks the result of a discard command beside the slot.
const DISCARD: u64 = 1 << 32;

/// `BLOCK_URING_CMD_DISCARD` (linux/blkdev.h, Linux 6.12): `_IO(0x12, 0)`.
const DISCARD_COMMAND: u32 = 0x1200;

/// An engine with many requests under way.
pub(crate) struct UringEngine {
    ring: IoUring,
    files: LaneFiles,
    event: OwnedFd,
    pool: Pool,
    /// Slots whose next call has no room yet: no buffer, or no entry.
    waiting: VecDeque<u32>,
    /// Calls in the ring, whether the kernel has them already or not.
    in_ring: u32,
    capacity: u32,
    telling: Telling,
    /// The kernel had no room for calls.
    owed: bool,
    /// What handing over failed with when nobody could be told.
    broken: Option<io::Error>,
    /// What the ring tells at once: the slot with its marks, and the result.
    results: Vec<(u64, i32)>,
}

/// When the event is to be raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    /// Always: nobody says when he waits.
    Always,
    /// Not now: who polls the ring sees it.
    Not,
    /// Somebody is about to wait.
    Once,
}

/// `IORING_ENTER_GETEVENTS` (linux/io_uring.h)
const GETEVENTS: u32 = 1;

/// A ring that does not interrupt its thread when a call has ended, which takes the host's processors an
/// interrupt for each; the thread comes by often enough. Kernels before 5.19 do not have it.
fn cooperative(entries: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_coop_taskrun().setup_taskrun_flag();
    builder.build(entries)
}

/// Tries whether there is an io_uring with all that is needed: Linux 5.6, not forbidden.
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
    /// A ring for `depth` requests.
    pub(crate) fn new(files: LaneFiles, depth: u32) -> io::Result<UringEngine> {
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
            waiting: VecDeque::with_capacity(depth as usize),
            in_ring: 0,
            capacity: entries,
            telling: Telling::Always,
            owed: false,
            broken: None,
            results: Vec::with_capacity(entries as usize),
        })
    }

    /// Readable when something may have ended.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Raises the event from now on; false if something has ended already.
    pub(crate) fn arm(&mut self) -> bool {
        self.telling = Telling::Once;
        let mut completions = self.ring.completion();
        completions.enable_eventfd();
        // An end that came before is not told; one that comes later is.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        completions.sync();
        let nothing = completions.is_empty();
        drop(completions);
        nothing && !self.ring.submission().taskrun()
    }

    /// Calls could not be handed over: [`UringEngine::submit`] is to try again, or tells why not.
    pub(crate) fn is_owed(&self) -> bool {
        self.owed || self.broken.is_some()
    }

    /// Queues the next call of a request.
    pub(crate) fn start(&mut self, slot: u32, work: &mut Work, disk: &Disk) {
        if self.in_ring == self.capacity {
            self.waiting.push_back(slot);
            return;
        }
        let Some(call) = work.call(disk, &mut self.pool) else {
            self.waiting.push_back(slot);
            return;
        };
        let entry = entry(call, slot);
        // SAFETY: what the entry points to stays valid until the request ends, and it does not end
        // before the kernel has told this call's result.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("there are as many entries as calls in the ring");
        self.in_ring += 1;
    }

    /// Hands over what is queued, in one system call.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        self.owed = false;
        while !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::EBUSY) => {
                        self.owed = true;
                        return Ok(());
                    }
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Takes results, and tells of each request that ended. `works` is what requests take, by slot. What
    /// follows from a result is handed over at once.
    pub(crate) fn reap(
        &mut self,
        disk: &Disk,
        works: &mut [Work],
        ended: &mut Vec<(u32, Outcome)>,
    ) {
        self.hush();
        self.finish_work();
        let before = ended.len();
        let mut results = std::mem::take(&mut self.results);
        let told = self
            .ring
            .completion()
            .map(|told| (told.user_data(), told.result()));
        results.extend(told);
        self.in_ring -= results.len() as u32;
        for (marks, mut result) in results.drain(..) {
            let slot = marks as u32;
            let work = &mut works[slot as usize];
            if marks & DISCARD != 0 && is_unknown_command(result) {
                result = self.discard_here(work, disk);
            }
            match work.ended(result, disk, &mut self.pool) {
                Next::Again => self.start(slot, work, disk),
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
        // Nobody may come by before the next result, and it may be of these.
        self.broken = self.submit().err();
    }

    /// Waits until something has ended, if anything is under way.
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

    /// Waits until the kernel has nothing of ours any more. Calls that wait for room are never made.
    pub(crate) fn settle(&mut self, disk: &Disk, works: &mut [Work]) {
        self.waiting.clear();
        let mut ended = Vec::new();
        while self.in_ring > 0 {
            if let Err(error) = self.wait() {
                // Memory that the kernel may write is not to be given back.
                tracing::error!(reason = %error, "io_uring: cannot wait for requests in flight, aborting");
                std::process::abort();
            }
            self.reap(disk, works, &mut ended);
            self.waiting.clear();
        }
    }

    /// Lets the kernel put what has ended into the ring, if it waits for us to come by.
    fn finish_work(&mut self) {
        if !self.ring.submission().taskrun() {
            return;
        }
        // SAFETY: nothing is submitted, and no memory is handed over.
        let entered = unsafe { self.ring.submitter().enter::<()>(0, 0, GETEVENTS, None) };
        // What could not be done now, the next look finds again.
        let _later = entered;
    }

    /// Takes the sign away before looking, so that what comes after the look is told.
    fn hush(&mut self) {
        if self.telling == Telling::Not {
            return;
        }
        // Nothing to read is the usual case.
        let _nothing = rustix::io::read(&self.event, &mut [0_u8; 8]);
        if self.telling == Telling::Once {
            self.telling = Telling::Not;
            self.ring.completion().disable_eventfd();
        }
    }

    /// Where a ring knows no discard, the lane's thread does it.
    fn discard_here(&mut self, work: &mut Work, disk: &Disk) -> i32 {
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
        // The kernel takes a ring apart when it has time; until then it would keep the image locked.
        let _gone_anyway = self.ring.submitter().unregister_files();
    }
}

/// Kernels before 6.12 know no discard in a ring.
fn is_unknown_command(result: i32) -> bool {
    let unknown = [libc::EOPNOTSUPP, libc::EINVAL, libc::ENOTTY, libc::ENOSYS];
    unknown.contains(&-result)
}

fn entry(call: Call, slot: u32) -> squeue::Entry {
    let slot = u64::from(slot);
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
            return entry.user_data(slot | DISCARD);
        }
    }
    .user_data(slot)
}

/// A span of one piece that a call's length can tell. It needs no list, which the kernel would have to
/// read in.
fn piece(span: Span) -> Option<(*mut u8, u32)> {
    if span.count != 1 {
        return None;
    }
    // SAFETY: a span's pieces are valid until the result of its call is told.
    let piece = unsafe { *span.pieces };
    let bytes = u32::try_from(piece.iov_len).ok()?;
    Some((piece.iov_base.cast(), bytes))
}
