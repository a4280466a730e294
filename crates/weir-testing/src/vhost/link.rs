//! The connection to a back end: its negotiation, and how the client detects that it was closed.

// The rings are in memory that the connection has mapped, and live as long as it.
#![allow(unsafe_code)]

use std::path::{Path, PathBuf};
use std::slice;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use virtio_driver::virtqueue::{Virtqueue, VirtqueueLayout};
use virtio_driver::{
    VhostUser, VirtioBlkConfig, VirtioBlkFeatureFlags, VirtioFeatureFlags, VirtioTransport,
};

use super::memory::Shared;
use super::queue::{Frame, Queue, Slots};

/// The number and size of a client's requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientShape {
    /// Virtqueues, each with a thread of its own in a load.
    pub queues: usize,
    /// Requests in flight in each.
    pub depth: usize,
    /// The longest request.
    pub bytes_max: usize,
    /// The number of memory pieces of each request's data.
    pub segments: usize,
    /// The offset of the data from the start of a page: 1 makes every buffer unaligned.
    pub skew_bytes: usize,
}

impl Default for ClientShape {
    /// One queue, 16 requests of up to 64 KiB, each in one piece of whole pages.
    fn default() -> ClientShape {
        ClientShape {
            queues: 1,
            depth: 16,
            bytes_max: 64 << 10,
            segments: 1,
            skew_bytes: 0,
        }
    }
}

/// Maximum number of descriptors of a virtqueue where QEMU's library is the other side.
const DESCRIPTORS_MAX: usize = 1024;

impl ClientShape {
    /// Bytes from one buffer to the next.
    pub(super) fn stride(&self) -> usize {
        (self.bytes_max + self.skew_bytes).next_multiple_of(4096)
    }

    /// Descriptors of a queue: header, data and status of each request, or header, range and
    /// status.
    fn descriptors(&self) -> usize {
        (self.depth * (2 + self.segments)).next_power_of_two()
    }

    fn check(&self) -> Result<()> {
        if self.queues == 0 || self.depth == 0 || self.segments == 0 || self.bytes_max == 0 {
            bail!("a client has at least one queue, one request, one byte and one piece");
        }
        if self.descriptors() > DESCRIPTORS_MAX {
            bail!(
                "{} requests of {} pieces need more descriptors than {DESCRIPTORS_MAX}",
                self.depth,
                self.segments
            );
        }
        Ok(())
    }
}

/// The back end's description of its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFacts {
    /// Its size in sectors of 512 bytes.
    pub sectors: u64,
    /// Its logical block.
    pub block_bytes: u32,
    /// Maximum number of queues.
    pub queues: usize,
    /// Writes are rejected.
    pub read_only: bool,
    /// Flushes are supported.
    pub flush: bool,
    /// Discards are supported.
    pub discard: bool,
    /// Writes of zeroes are supported.
    pub write_zeroes: bool,
    /// The negotiated features.
    pub features: u64,
}

type Transport = Box<dyn VirtioTransport<VirtioBlkConfig, Frame>>;

/// How long the back end may take to answer on its socket.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// A connection with its queues set up.
pub(super) struct Link {
    /// Dropped before the transport, whose memory contains their rings.
    pub queues: Vec<Queue>,
    transport: Arc<Mutex<Transport>>,
    pub facts: DiskFacts,
    pub socket: PathBuf,
}

impl Link {
    /// Connects, and shares `memory`, which contains the buffers, with the back end.
    pub fn connect(socket: &Path, shape: ClientShape, memory: &Shared) -> Result<Link> {
        shape.check()?;
        let shown = socket.display().to_string();
        let (base, bytes, fd) = (memory.base() as usize, memory.bytes(), memory.fd());
        let path = shown.clone();
        let connected = with_timeout(move || connected(&path, shape, base, bytes, fd));
        let (transport, rings, facts) = connected.with_context(|| shown)?;
        let slots = |queue| Slots::new(memory.base(), queue, shape);
        let queues = rings.into_iter().enumerate().map(|(i, ring)| {
            let notifier = transport.get_submission_notifier(i);
            Queue::new(ring, notifier, transport.get_completion_fd(i), slots(i))
        });
        Ok(Link {
            queues: queues.collect(),
            transport: Arc::new(Mutex::new(transport)),
            facts,
            socket: socket.to_owned(),
        })
    }

    /// A probe of whether the back end is still there.
    pub fn probe(&self) -> Probe {
        Probe(self.transport.clone())
    }
}

/// Sends a request to the back end that it answers at once.
pub(super) struct Probe(Arc<Mutex<Transport>>);

impl Probe {
    /// An error when the back end has disconnected, or does not answer in time.
    pub fn ask(&self) -> Result<()> {
        let transport = self.0.clone();
        with_timeout(move || {
            // The transport is only read: it is valid after a panic.
            let transport = transport.lock().unwrap_or_else(PoisonError::into_inner);
            transport
                .get_config()
                .map(drop)
                .context("the back end has disconnected")
        })
    }
}

/// Runs requests to the back end on a thread of its own, which is abandoned if no answer arrives:
/// the driver's socket has no timeout.
fn with_timeout<T: Send + 'static>(ask: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (answer, answers) = mpsc::sync_channel(1);
    thread::spawn(move || drop(answer.send(ask())));
    answers
        .recv_timeout(ANSWER_TIME)
        .unwrap_or_else(|_| bail!("the back end does not answer on its socket"))
}

type Rings = Vec<Virtqueue<'static, Frame>>;

fn connected(
    path: &str,
    shape: ClientShape,
    base: usize,
    bytes: usize,
    fd: i32,
) -> Result<(Transport, Rings, DiskFacts)> {
    let block = VirtioBlkFeatureFlags::all() - VirtioBlkFeatureFlags::GEOMETRY;
    let ring = VirtioFeatureFlags::VERSION_1 | VirtioFeatureFlags::RING_EVENT_IDX;
    let vhost = VhostUser::<VirtioBlkConfig, Frame>::new(path, block.bits() | ring.bits());
    let mut transport: Transport = Box::new(vhost.context("cannot connect to the back end")?);
    let facts = facts(&*transport)?;
    if facts.queues < shape.queues {
        bail!("the disk has {} queues, not {}", facts.queues, shape.queues);
    }
    let rings = rings(&mut transport, shape)?;
    transport
        .map_mem_region(base, bytes, fd, 0)
        .context("the back end does not take memory")?;
    transport
        .setup_queues(&rings)
        .context("the back end does not take queues")?;
    Ok((transport, rings, facts))
}

fn facts(transport: &dyn VirtioTransport<VirtioBlkConfig, Frame>) -> Result<DiskFacts> {
    let config = transport
        .get_config()
        .context("the back end provides no configuration")?;
    let features = transport.get_features();
    let has = |flag: VirtioBlkFeatureFlags| features & flag.bits() != 0;
    let (queues, block_bytes) = (config.num_queues.to_native(), config.blk_size.to_native());
    Ok(DiskFacts {
        sectors: config.capacity.to_native(),
        block_bytes: if has(VirtioBlkFeatureFlags::BLK_SIZE) {
            block_bytes
        } else {
            512
        },
        queues: if has(VirtioBlkFeatureFlags::MQ) {
            queues.into()
        } else {
            1
        },
        read_only: has(VirtioBlkFeatureFlags::RO),
        flush: has(VirtioBlkFeatureFlags::FLUSH),
        discard: has(VirtioBlkFeatureFlags::DISCARD),
        write_zeroes: has(VirtioBlkFeatureFlags::WRITE_ZEROES),
        features,
    })
}

fn rings(transport: &mut Transport, shape: ClientShape) -> Result<Rings> {
    let features = VirtioFeatureFlags::from_bits_truncate(transport.get_features());
    let layout = VirtqueueLayout::new::<Frame>(shape.queues, shape.descriptors(), features)?;
    let translators: Vec<_> = (0..shape.queues)
        .map(|_| transport.iova_translator())
        .collect();
    let size = u16::try_from(shape.descriptors()).context("too many descriptors")?;
    let base = transport.alloc_queue_mem(&layout)?.as_mut_ptr();
    let rings = translators.into_iter().enumerate().map(|(i, translator)| {
        // SAFETY: the transport has allocated `end_offset` bytes for each queue; the rings do not
        // overlap, and are dropped before the transport (`Link`).
        let memory = unsafe {
            slice::from_raw_parts_mut(base.add(i * layout.end_offset), layout.end_offset)
        };
        Virtqueue::new(translator, memory, size, features)
    });
    Ok(rings.collect::<std::io::Result<_>>()?)
}
