//! [`VhostClient`]: a connection to a disk, for single requests and for loads.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::contents::Part;
use super::link::{ClientShape, DiskFacts, Link};
use super::memory::Shared;
use super::worker::{Signal, Worker};
use super::{BlockRequest, Contents, LoadReport, RequestKind, RequestStatus, VhostLoad};

/// The interval at which a load checks that the back end is still there.
const PROBE_EVERY: Duration = Duration::from_millis(200);

/// How long a single request may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The interval between attempts to reconnect.
const RETRY_EVERY: Duration = Duration::from_millis(20);

/// A connection to a disk's back end.
pub struct VhostClient {
    link: Link,
    shape: ClientShape,
    /// Dropped after the queues, whose buffers it contains.
    memory: Shared,
}

impl VhostClient {
    /// Connects to the back end that listens at `socket`.
    pub fn connect(socket: &Path, shape: ClientShape) -> Result<VhostClient> {
        let memory = Shared::new(shape.queues * shape.depth * shape.stride())?;
        let link = Link::connect(socket, shape, &memory)?;
        Ok(VhostClient {
            link,
            shape,
            memory,
        })
    }

    /// The back end's description of its disk.
    pub fn disk(&self) -> DiskFacts {
        self.link.facts
    }

    /// Reconnects, as a guest does when its back end was restarted; tries for at most `limit`.
    pub fn reconnect(&mut self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            match Link::connect(&self.link.socket, self.shape, &self.memory) {
                Ok(link) => {
                    self.link = link;
                    return Ok(());
                }
                Err(error) if Instant::now() >= deadline => {
                    return Err(error.context("the back end did not come back"));
                }
                Err(_) => thread::sleep(RETRY_EVERY),
            }
        }
    }

    /// Submits one request to a queue and waits for its end. `data` are written to the disk, or
    /// read from it.
    pub fn ask(
        &mut self,
        queue: usize,
        ask: &BlockRequest,
        data: &mut [u8],
    ) -> Result<RequestStatus> {
        let probe = self.link.probe();
        let queue = &mut self.link.queues[queue];
        if ask.kind.has_data() {
            queue.buffer(0, ask.bytes).copy_from_slice(data);
        }
        queue.put(0, ask)?;
        queue.kick()?;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some((_, status)) = queue.take()? {
                if matches!(ask.kind, RequestKind::Read | RequestKind::Id) {
                    data.copy_from_slice(queue.buffer(0, ask.bytes));
                }
                return Ok(status);
            }
            queue.wait(Duration::ZERO, PROBE_EVERY)?;
            if Instant::now() >= deadline {
                bail!("no answer to {ask:?} for {TIMEOUT:?}");
            }
            probe.ask().with_context(|| format!("{ask:?}"))?;
        }
    }

    /// Reads from a sector on, through the first queue, like the other single requests.
    pub fn read(&mut self, sector: u64, bytes: usize) -> Result<Vec<u8>> {
        let mut data = vec![0; bytes];
        let ask = BlockRequest {
            kind: RequestKind::Read,
            sector,
            bytes,
        };
        self.ask(0, &ask, &mut data)?.done()?;
        Ok(data)
    }

    /// Writes.
    pub fn write(&mut self, sector: u64, data: &[u8]) -> Result<()> {
        let ask = BlockRequest {
            kind: RequestKind::Write,
            sector,
            bytes: data.len(),
        };
        self.ask(0, &ask, &mut data.to_vec())?.done()
    }

    /// Waits until everything written is on stable storage.
    pub fn flush(&mut self) -> Result<()> {
        let ask = BlockRequest {
            kind: RequestKind::Flush,
            sector: 0,
            bytes: 0,
        };
        self.ask(0, &ask, &mut [])?.done()
    }

    /// Discards.
    pub fn discard(&mut self, sector: u64, bytes: usize) -> Result<()> {
        let ask = BlockRequest {
            kind: RequestKind::Discard,
            sector,
            bytes,
        };
        self.ask(0, &ask, &mut [])?.done()
    }

    /// Writes zeroes.
    pub fn write_zeroes(&mut self, sector: u64, bytes: usize, unmap: bool) -> Result<()> {
        let ask = BlockRequest {
            kind: RequestKind::WriteZeroes { unmap },
            sector,
            bytes,
        };
        self.ask(0, &ask, &mut [])?.done()
    }

    /// The disk's serial (virtio 1.2, section 5.2.6: 20 bytes, ended by a zero if shorter).
    pub fn id(&mut self) -> Result<String> {
        let mut data = [0; 20];
        let ask = BlockRequest {
            kind: RequestKind::Id,
            sector: 0,
            bytes: data.len(),
        };
        self.ask(0, &ask, &mut data)?.done()?;
        let text = data.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// Runs a load on all queues concurrently. With `contents`, data that are read are compared
    /// with them, and they are updated with the writes.
    ///
    /// # Errors
    /// When a block has wrong content, or the back end disconnects (and does not come back, with
    /// [`VhostLoad::reconnect`]) or leaves requests unanswered.
    pub fn run(&mut self, load: &VhostLoad, contents: Option<&mut Contents>) -> Result<LoadReport> {
        load.check(self.shape)?;
        let mut contents = contents;
        let mut workers = self.workers(load, contents.as_deref_mut())?;
        let began = Instant::now();
        let mut report = LoadReport::default();
        while let Some(gone) = self.work(&mut workers)? {
            let Some(limit) = load.reconnect else {
                return Err(gone);
            };
            self.reconnect(limit)?;
            report.reconnects += 1;
        }
        report.elapsed = began.elapsed();
        let generation = workers.iter().map(Worker::generation).max().unwrap_or(0);
        for worker in workers {
            report.merge(worker.report);
        }
        if let Some(contents) = contents {
            contents.used(generation);
        }
        Ok(report)
    }

    fn workers<'a>(
        &self,
        load: &'a VhostLoad,
        contents: Option<&'a mut Contents>,
    ) -> Result<Vec<Worker<'a>>> {
        let queues = self.shape.queues;
        let disk = self.link.facts.sectors;
        let sectors = if load.span_sectors == 0 {
            disk
        } else {
            load.span_sectors.min(disk)
        };
        let depth = if load.depth == 0 {
            self.shape.depth
        } else {
            load.depth
        };
        let unit = load.bytes_min as u64 / 512;
        let each = sectors / queues as u64 / unit * unit;
        let parts = (0..queues as u64).map(|queue| Part {
            first_sector: queue * each,
            sectors: each,
        });
        let parts: Vec<Part> = parts.collect();
        let mut areas: Vec<Option<_>> = match contents {
            Some(contents) if !load.bytes_min.is_multiple_of(contents.block_bytes()) => {
                bail!(
                    "requests of {} bytes do not fit blocks of {}",
                    load.bytes_min,
                    contents.block_bytes()
                )
            }
            Some(contents) => contents.areas(&parts)?.into_iter().map(Some).collect(),
            None => Vec::new(),
        };
        areas.resize_with(queues, || None);
        let each = parts.into_iter().zip(areas).enumerate();
        each.map(|(queue, (part, area))| Worker::new(load, queue, depth, part, area))
            .collect()
    }

    /// Runs the workers on the queues of this connection until all have finished: `None`, or the
    /// back end has disconnected.
    fn work(&mut self, workers: &mut [Worker]) -> Result<Option<anyhow::Error>> {
        let signal = Signal::default();
        let probe = self.link.probe();
        let (mut gone, mut failed, mut done) = (None, None, 0);
        thread::scope(|scope| {
            let (ended, ends) = mpsc::channel();
            for (worker, queue) in workers.iter_mut().zip(&mut self.link.queues) {
                let (ended, signal) = (ended.clone(), &signal);
                scope.spawn(move || drop(ended.send(worker.run(queue, signal))));
            }
            drop(ended);
            loop {
                match ends.recv_timeout(PROBE_EVERY) {
                    Ok(Ok(is_done)) => done += usize::from(is_done),
                    Ok(Err(error)) => {
                        failed.get_or_insert(error);
                        signal.raise();
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        if let (None, Err(error)) = (&gone, probe.ask()) {
                            gone = Some(error);
                            signal.raise();
                        }
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
        });
        let socket = &self.link.socket;
        match failed {
            Some(error) => Err(error.context(socket.display().to_string())),
            None if done == workers.len() => Ok(None),
            None => {
                Ok(gone.map(|error: anyhow::Error| error.context(socket.display().to_string())))
            }
        }
    }
}
