//! The cost of an I/O queue without a front end: requests per second and processor time per
//! request, by engine, cache and queue depth.
//!
//! ```text
//! cargo run --release -p weir-tapdisk --example io_queue_bench -- /dev/shm/disk.raw /tmp/disk.raw
//! ```
//!
//! Each image is a file or device whose data may be overwritten, of 64 MiB at least. Lines are
//! tab-separated: image, engine and cache, operation, queue depth, thousand requests per second,
//! processor time of the I/O queue's thread per request in ns.
#![allow(unsafe_code)] // An I/O queue receives memory by its address.

use std::time::{Duration, Instant};

use libc::iovec;
use rustix::event::{PollFd, PollFlags, poll};
use weir_model::Op;
use weir_tapdisk::engine::{CacheOption, EngineOption};
use weir_tapdisk::{DiskOptions, IoQueue, IoQueueOptions, Outcome, Request, ServedDisk};
use weir_testing::cpu_time;

const BLOCK: usize = 4096;
const LASTS: Duration = Duration::from_secs(1);

/// Engines and caches.
const MODES: [(EngineOption, CacheOption); 4] = [
    (EngineOption::Uring, CacheOption::Direct),
    (EngineOption::Sync, CacheOption::Direct),
    (EngineOption::Uring, CacheOption::PageCache),
    (EngineOption::Sync, CacheOption::PageCache),
];

fn main() -> Result<(), weir_tapdisk::DiskError> {
    for image in std::env::args().skip(1) {
        for (engine, cache) in MODES {
            let options = DiskOptions {
                engine,
                cache,
                ..DiskOptions::new(&image)
            };
            let disk = match ServedDisk::open(options) {
                Ok(disk) => disk,
                Err(why) => {
                    eprintln!("skipped: {why}");
                    continue;
                }
            };
            for op in [Op::Read, Op::Write] {
                for depth in [1, 16, 64] {
                    let mut load = Load::new(&disk, op, depth)?;
                    load.run(LASTS / 4)?;
                    let (requests, wall, processor) = load.run(LASTS)?;
                    println!(
                        "{image}\t{}\t{}\t{depth}\t{:.1}\t{:.0}",
                        disk.choice(),
                        op.as_str(),
                        requests as f64 / wall.as_secs_f64() / 1e3,
                        processor.as_nanos() as f64 / requests as f64,
                    );
                }
            }
        }
    }
    Ok(())
}

/// An I/O queue with as many requests in flight as there are pieces of memory.
struct Load {
    io_queue: IoQueue,
    op: Op,
    blocks: u64,
    memory: Vec<u8>,
    start: usize,
    depth: usize,
    /// The state of the generator of offsets: xorshift64 (Marsaglia 2003).
    offset_state: u64,
}

impl Load {
    fn new(
        disk: &std::sync::Arc<ServedDisk>,
        op: Op,
        depth: usize,
    ) -> Result<Load, weir_tapdisk::DiskError> {
        let options = IoQueueOptions {
            queue: 0,
            depth: depth as u32,
        };
        let memory = vec![1; (depth + 1) * BLOCK];
        Ok(Load {
            io_queue: IoQueue::new(disk, options)?,
            op,
            blocks: disk.size_bytes() / BLOCK as u64,
            start: memory.as_ptr().align_offset(BLOCK),
            memory,
            depth,
            offset_state: 0x9e37_79b9_7f4a_7c15,
        })
    }

    /// The number of requests that ended, and the time they took.
    fn run(
        &mut self,
        lasts: Duration,
    ) -> Result<(u64, Duration, Duration), weir_tapdisk::DiskError> {
        let (started, processor) = (Instant::now(), cpu_time());
        let mut done = Vec::new();
        let mut requests = 0;
        let mut free: Vec<u64> = (0..self.depth as u64).collect();
        while started.elapsed() < lasts {
            self.io_queue.begin();
            free.drain(..).for_each(|piece| self.take(piece));
            self.io_queue.submit()?;
            self.io_queue.reap(&mut done);
            self.io_queue.end();
            requests += done.len() as u64;
            for done in done.drain(..) {
                assert_eq!(done.outcome, Outcome::Done);
                free.push(done.token);
            }
            if free.is_empty()
                && self.io_queue.arm()
                && let Some(completions) = self.io_queue.completions()
            {
                let mut sources = [PollFd::new(&completions, PollFlags::IN)];
                poll(&mut sources, None).expect("a poll that nothing interrupts");
            }
        }
        let took = (started.elapsed(), cpu_time() - processor);
        self.io_queue.drain(&mut done)?;
        Ok((requests, took.0, took.1))
    }

    fn take(&mut self, piece: u64) {
        self.offset_state ^= self.offset_state << 13;
        self.offset_state ^= self.offset_state >> 7;
        self.offset_state ^= self.offset_state << 17;
        let request = Request {
            op: self.op,
            sector: self.offset_state % self.blocks * (BLOCK as u64 / 512),
            skip_bytes: 0,
            bytes: BLOCK as u64,
            fua: false,
            unmap: false,
        };
        let at = self.start + piece as usize * BLOCK;
        let buffer = iovec {
            iov_base: self.memory[at..at + BLOCK].as_mut_ptr().cast(),
            iov_len: BLOCK,
        };
        // SAFETY: each piece of memory has one request at a time, and lasts as long as the I/O
        // queue.
        unsafe { self.io_queue.enqueue(request, &[buffer], piece) };
    }
}
