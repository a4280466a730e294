//! [`Worker`]: executes one queue's part of a load and checks the data that it reads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::time::{ClockId, clock_gettime};

use super::contents::{Area, Part};
use super::load::RequestGenerator;
use super::queue::Queue;
use super::{BlockRequest, LoadReport, LoggedRequest, RequestKind, RequestStatus, VhostLoad};

/// The interval at which a sleeping queue checks whether it must end.
const SLEEP: Duration = Duration::from_millis(100);

/// Attempts to find a request that accesses no block of another one.
const ATTEMPTS_MAX: usize = 16;

/// The state that all queues of a load share.
#[derive(Debug, Default)]
pub(super) struct Signal(AtomicBool);

impl Signal {
    /// Ends all queues: the back end has disconnected, or another queue has failed.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// One queue's part of a load: the remainder continues on the next connection after the back end
/// has disconnected.
pub(super) struct Worker<'a> {
    load: &'a VhostLoad,
    generator: RequestGenerator<'a>,
    /// The expected content of the queue's part of the disk, if that is checked.
    area: Option<Area<'a>>,
    /// Blocks of requests in flight, in units of the shortest request, if contents are checked.
    busy: Vec<bool>,
    first_sector: u64,
    slots: Vec<Option<UnderWay>>,
    free: Vec<usize>,
    made: u64,
    deadline: Option<Instant>,
    pub report: LoadReport,
}

/// A request in flight.
#[derive(Clone, Copy)]
struct UnderWay {
    ask: BlockRequest,
    /// The generation of its data.
    generation: u32,
    made_ns: i64,
    /// Its number among all requests of the queue.
    number: u64,
    /// Its index in the log.
    log_index: usize,
}

impl<'a> Worker<'a> {
    pub fn new(
        load: &'a VhostLoad,
        queue: usize,
        depth: usize,
        part: Part,
        area: Option<Area<'a>>,
    ) -> Result<Worker<'a>> {
        let places = (part.sectors * 512) as usize / load.bytes_min;
        Ok(Worker {
            load,
            generator: RequestGenerator::new(load, queue, part.first_sector, part.sectors)?,
            busy: vec![false; if area.is_some() { places } else { 0 }],
            area,
            first_sector: part.first_sector,
            slots: vec![None; depth],
            free: (0..depth).rev().collect(),
            made: 0,
            deadline: load.time.map(|time| Instant::now() + time),
            report: LoadReport {
                log: vec![Vec::new()],
                ..LoadReport::default()
            },
        })
    }

    /// Continues until everything is done: true, or the signal is raised: false.
    pub fn run(&mut self, queue: &mut Queue, signal: &Signal) -> Result<bool> {
        self.repeat(queue)?;
        let mut last_done = Instant::now();
        loop {
            if self.make(queue)? {
                queue.kick()?;
            }
            if self.free.len() == self.slots.len() {
                return Ok(true);
            }
            if self.reap(queue)? {
                last_done = Instant::now();
            } else {
                queue.wait(self.load.spin, SLEEP)?;
                if last_done.elapsed() > self.load.timeout {
                    bail!(
                        "no answer for {:?} to {} requests",
                        self.load.timeout,
                        self.slots.len() - self.free.len()
                    );
                }
            }
            if signal.is_raised() {
                return Ok(false);
            }
        }
    }

    /// The last generation written.
    pub fn generation(&self) -> u32 {
        self.area.as_ref().map_or(0, |area| area.generation)
    }

    /// Repeats the requests of the last connection that were in flight, in their order.
    fn repeat(&mut self, queue: &mut Queue) -> Result<()> {
        let mut left: Vec<usize> = (0..self.slots.len())
            .filter(|s| self.slots[*s].is_some())
            .collect();
        left.sort_by_key(|slot| self.slots[*slot].map(|request| request.number));
        for &slot in &left {
            let request = self.slots[slot].expect("it is under way");
            self.put(queue, slot, request)?;
        }
        if !left.is_empty() {
            queue.kick()?;
        }
        Ok(())
    }

    /// Submits as many requests as there are free slots; returns whether there were any.
    fn make(&mut self, queue: &mut Queue) -> Result<bool> {
        let over = |deadline| Instant::now() >= deadline;
        if self.free.is_empty() || self.deadline.is_some_and(over) {
            return Ok(false);
        }
        let before = self.made;
        while self.made < self.load.requests {
            let Some(&slot) = self.free.last() else { break };
            let Some(ask) = self.next_disjoint() else {
                break;
            };
            self.free.pop();
            self.reserve(&ask, true);
            let mut generation = 0;
            if let (RequestKind::Write, Some(area)) = (ask.kind, &mut self.area) {
                generation = area.fill(ask.sector, queue.buffer(slot, ask.bytes));
            }
            let request = UnderWay {
                ask,
                generation,
                made_ns: 0,
                number: self.made,
                log_index: 0,
            };
            self.put(queue, slot, request)?;
            self.made += 1;
        }
        Ok(self.made > before)
    }

    fn put(&mut self, queue: &mut Queue, slot: usize, mut request: UnderWay) -> Result<()> {
        request.made_ns = monotonic_ns();
        if self.load.logged {
            let log = &mut self.report.log[0];
            request.log_index = log.len();
            log.push(LoggedRequest {
                ask: request.ask,
                status: None,
                made_ns: request.made_ns,
                done_ns: 0,
            });
        }
        self.slots[slot] = Some(request);
        queue.put(slot, &request.ask)
    }

    /// The next request that accesses no block of one in flight; `None` if none is found.
    fn next_disjoint(&mut self) -> Option<BlockRequest> {
        if self.area.is_none() {
            return Some(self.generator.next());
        }
        (0..ATTEMPTS_MAX).find_map(|_| {
            let ask = self.generator.next();
            let is_free = !self.busy[self.units(&ask)].contains(&true);
            is_free.then_some(ask)
        })
    }

    fn units(&self, ask: &BlockRequest) -> std::ops::Range<usize> {
        if ask.bytes == 0 {
            return 0..0;
        }
        let from = (ask.sector - self.first_sector) as usize * 512 / self.load.bytes_min;
        from..from + ask.bytes / self.load.bytes_min
    }

    fn reserve(&mut self, ask: &BlockRequest, busy: bool) {
        if self.area.is_some() {
            let units = self.units(ask);
            self.busy[units].fill(busy);
        }
    }

    /// Collects completed requests; returns whether there were any.
    fn reap(&mut self, queue: &mut Queue) -> Result<bool> {
        let mut any = false;
        while let Some((slot, status)) = queue.take()? {
            any = true;
            let request = self.slots[slot]
                .take()
                .context("a request was completed twice")?;
            let now_ns = monotonic_ns();
            self.count(&request, status, now_ns);
            self.reserve(&request.ask, false);
            self.check_result(queue, slot, &request, status)?;
            self.free.push(slot);
        }
        Ok(any)
    }

    fn count(&mut self, request: &UnderWay, status: RequestStatus, now_ns: i64) {
        let report = &mut self.report;
        report.requests += 1;
        report.failed += u64::from(status == RequestStatus::Failed);
        report.unsupported += u64::from(status == RequestStatus::Unsupported);
        report.latency.add(now_ns - request.made_ns, 1);
        if self.load.logged {
            let asked = &mut report.log[0][request.log_index];
            (asked.status, asked.done_ns) = (Some(status), now_ns);
        }
    }

    /// Checks data that were read, and updates the expected content.
    fn check_result(
        &mut self,
        queue: &mut Queue,
        slot: usize,
        request: &UnderWay,
        status: RequestStatus,
    ) -> Result<()> {
        let Some(area) = &mut self.area else {
            return Ok(());
        };
        let BlockRequest {
            kind,
            sector,
            bytes,
        } = request.ask;
        match (kind, status) {
            (_, RequestStatus::Unsupported) | (RequestKind::Read, RequestStatus::Failed) => {}
            (RequestKind::Read, RequestStatus::Done) => {
                area.check(sector, queue.buffer(slot, bytes))?
            }
            (RequestKind::Write, RequestStatus::Done) => {
                area.written(sector, bytes, request.generation)
            }
            (RequestKind::WriteZeroes { .. }, RequestStatus::Done) => area.zeroed(sector, bytes),
            (RequestKind::Write | RequestKind::WriteZeroes { .. }, RequestStatus::Failed) => {
                area.failed(sector, bytes)
            }
            (RequestKind::Discard, _) => area.discarded(sector, bytes),
            (RequestKind::Flush | RequestKind::Id | RequestKind::Other(_), _) => {}
        }
        Ok(())
    }
}

fn monotonic_ns() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
