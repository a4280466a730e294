//! Executes requests with memory, and waits for them.
#![allow(unsafe_code)] // An I/O queue receives memory by its address.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use libc::iovec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_model::Op;
use weir_tapdisk::{Completion, IoQueue, Outcome, Request};

pub use weir_testing::skipped;

/// More than any machine needs.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Memory of a request, in pieces at offsets that a test chooses.
#[derive(Debug)]
pub struct Memory {
    room: Vec<u8>,
    /// The start of each piece in `room`, and its length.
    pieces: Vec<(usize, usize)>,
}

const PAGE: usize = 4096;

impl Memory {
    /// Pieces of these lengths, each `shift` bytes after the start of a page.
    pub fn new(lengths: &[usize], shift: usize) -> Memory {
        let mut at = shift;
        let mut pieces = Vec::new();
        for length in lengths {
            pieces.push((at, *length));
            at = (at + length).next_multiple_of(PAGE) + shift;
        }
        let mut room = vec![0xee; at + PAGE];
        let page = room.as_ptr().align_offset(PAGE);
        room.truncate(at + page);
        for (start, _) in &mut pieces {
            *start += page;
        }
        Memory { room, pieces }
    }

    /// One aligned piece with these data.
    pub fn of(data: &[u8]) -> Memory {
        let mut memory = Memory::new(&[data.len()], 0);
        memory.fill(data);
        memory
    }

    pub fn fill(&mut self, data: &[u8]) {
        let mut done = 0;
        for (start, length) in &self.pieces {
            self.room[*start..start + length].copy_from_slice(&data[done..done + length]);
            done += length;
        }
    }

    pub fn data(&self) -> Vec<u8> {
        let pieces = self.pieces.iter();
        pieces
            .flat_map(|(start, length)| &self.room[*start..start + length])
            .copied()
            .collect()
    }

    /// Whether nothing was written outside the pieces.
    pub fn is_whole(&self) -> bool {
        let ends = self.pieces.iter().map(|(start, length)| start + length);
        let gaps_start = std::iter::once(0).chain(ends);
        let starts = self.pieces.iter().map(|(start, _)| *start);
        let gaps_end = starts.chain(std::iter::once(self.room.len()));
        let untouched = |gap: &[u8]| gap.iter().all(|byte| *byte == 0xee);
        gaps_start
            .zip(gaps_end)
            .all(|(start, end)| untouched(&self.room[start..end]))
    }

    fn buffers(&mut self) -> Vec<iovec> {
        let start = self.room.as_mut_ptr();
        let piece = |(at, length): &(usize, usize)| iovec {
            iov_base: start.wrapping_add(*at).cast(),
            iov_len: *length,
        };
        self.pieces.iter().map(piece).collect()
    }
}

/// An I/O queue with its requests' memory.
pub struct Rig {
    pub io_queue: IoQueue,
    memory: HashMap<u64, Memory>,
    next: u64,
}

impl Rig {
    pub fn new(io_queue: IoQueue) -> Rig {
        let memory = HashMap::new();
        Rig {
            io_queue,
            memory,
            next: 0,
        }
    }

    /// Has the I/O queue take a request; returns its token.
    pub fn take(&mut self, request: Request, mut memory: Memory) -> u64 {
        self.next += 1;
        let buffers = memory.buffers();
        self.memory.insert(self.next, memory);
        // SAFETY: the memory is kept until the token is reaped, and does not move: it is on the
        // heap.
        unsafe { self.io_queue.enqueue(request, &buffers, self.next) };
        self.next
    }

    /// The ended requests.
    pub fn reap(&mut self) -> Vec<(Completion, Memory)> {
        let mut done = Vec::new();
        self.io_queue.reap(&mut done);
        self.with_memory(done)
    }

    pub fn with_memory(&mut self, done: Vec<Completion>) -> Vec<(Completion, Memory)> {
        let with = |done: Completion| {
            (
                done,
                self.memory.remove(&done.token).expect("it was taken once"),
            )
        };
        done.into_iter().map(with).collect()
    }

    /// Rounds as in a front end, until all requests have ended.
    pub fn finish(&mut self) -> Vec<(Completion, Memory)> {
        let mut all = Vec::new();
        let until = Instant::now() + TIMEOUT;
        while self.io_queue.in_flight() > 0 {
            self.io_queue.begin();
            self.io_queue.submit().unwrap();
            all.extend(self.reap());
            self.io_queue.end();
            if self.io_queue.in_flight() > 0 {
                self.wait();
                assert!(Instant::now() < until, "requests do not end");
            }
        }
        all
    }

    /// Waits as a front end does, until there may be requests to reap.
    pub fn wait(&mut self) {
        let due = self.io_queue.due();
        let left = due.map_or(TIMEOUT, |due| due.saturating_duration_since(Instant::now()));
        let Some(fd) = self.io_queue.completions() else {
            std::thread::sleep(left);
            return;
        };
        let left = Timespec::try_from(left).unwrap();
        let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left)).unwrap();
        assert!(ready > 0 || due.is_some(), "nothing ended in {TIMEOUT:?}");
    }

    /// Whether the event is signalled.
    pub fn is_signalled(&self) -> bool {
        let fd = self
            .io_queue
            .completions()
            .expect("an engine with completions");
        let now = Timespec::default();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).unwrap() > 0
    }

    /// One request, to its end.
    pub fn run(&mut self, request: Request, memory: Memory) -> (Outcome, Memory) {
        let token = self.take(request, memory);
        let mut ended = self.finish();
        assert_eq!(ended.len(), 1);
        let (done, memory) = ended.remove(0);
        assert_eq!(done.token, token);
        (done.outcome, memory)
    }

    pub fn write(&mut self, sector: u64, data: &[u8]) -> Outcome {
        let write = Request::new(Op::Write, sector, data.len() as u64);
        self.run(write, Memory::of(data)).0
    }

    pub fn read(&mut self, sector: u64, bytes: usize) -> (Outcome, Vec<u8>) {
        let read = Request::new(Op::Read, sector, bytes as u64);
        let (outcome, memory) = self.run(read, Memory::new(&[bytes], 0));
        (outcome, memory.data())
    }

    /// A request without memory.
    pub fn run_without_memory(&mut self, request: Request) -> Outcome {
        self.run(request, Memory::new(&[], 0)).0
    }
}
