//! [`Session`]: the state that a front end sets up message by message during its connection (the
//! vhost-user protocol of QEMU's documentation, `interop/vhost-user`).
//!
//! A ring runs while it is set up and enabled. Changes while it runs are either passed to its
//! thread (memory, call), or the ring is halted, changed and started again; halting waits for
//! requests in flight.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Error, GpuBackend, Result, VhostUserBackendReqHandlerMut as VhostUserBackend,
};

use super::channel::Channel;
use super::config::{self, EVENT_IDX, FLUSH, INDIRECT_DESC, PROTOCOL_FEATURES};
use super::guard::Share;
use super::inflight::{self, Inflight, InflightMemory};
use super::log::EventLog;
use super::memory::MemoryTable;
use super::ring::{Layout, QUEUE_SIZE_MAX, Ring};
use super::worker::{JoinTimeout, Signals, Worker, WorkerSetup};
use super::{VhostError, VhostOptions};
use crate::StopEvent;
use crate::disk::ServedDisk;

/// The supported protocol features. Logging of dirty memory is not supported, so QEMU does not
/// migrate a VM with such a disk.
const PROTOCOL: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::REPLY_ACK)
    .union(VhostUserProtocolFeatures::CONFIG)
    .union(VhostUserProtocolFeatures::BACKEND_REQ)
    .union(VhostUserProtocolFeatures::INFLIGHT_SHMFD)
    .union(VhostUserProtocolFeatures::RESET_DEVICE)
    .union(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS);

/// Maximum size of a device's configuration space in bytes (virtio 1.2, section 4.1.4).
const SPACE_BYTES: usize = 4096;

/// A connection's state.
pub struct Session {
    disk: Arc<ServedDisk>,
    options: VhostOptions,
    log: Arc<EventLog>,
    end: JoinTimeout,
    /// The acknowledged features.
    features: Option<u64>,
    protocol: VhostUserProtocolFeatures,
    /// The channel for messages of the back end.
    channel: Option<Channel>,
    /// The size of the disk in sectors, as the front end last read it, and as it was last reported
    /// since a ring was started.
    sectors_read: Option<u64>,
    sectors_reported: Option<u64>,
    memory: MemoryTable,
    share: Arc<Share>,
    inflight: Option<Arc<InflightMemory>>,
    rings: Vec<RingState>,
}

/// The settings of a ring.
#[derive(Debug, Default)]
struct RingState {
    size: Option<u16>,
    base: u16,
    /// In the front end's address space: descriptors, available, used.
    addresses: Option<(u64, u64, u64)>,
    /// `Some(None)`: it is polled.
    kick: Option<Option<OwnedFd>>,
    signals: Signals,
    enabled: bool,
    worker: Option<Worker>,
}

impl Session {
    /// Nothing is set up.
    pub fn new(
        disk: &Arc<ServedDisk>,
        options: &VhostOptions,
        log: &Arc<EventLog>,
        stop: &StopEvent,
    ) -> Session {
        let rings = std::iter::repeat_with(RingState::default);
        // While a table or the in-flight memory is replaced, the old one is mapped, too.
        let share = Share::new(2 * (usize::from(options.memory_slots) + 1));
        Session {
            disk: Arc::clone(disk),
            options: options.clone(),
            log: Arc::clone(log),
            end: JoinTimeout {
                stop: stop.clone(),
                drain_timeout: options.drain_timeout,
            },
            features: None,
            protocol: VhostUserProtocolFeatures::empty(),
            channel: None,
            sectors_read: None,
            sectors_reported: None,
            memory: MemoryTable::new(options.memory_slots, &share),
            share,
            inflight: None,
            rings: rings.take(usize::from(options.queues)).collect(),
        }
    }

    /// Halts all rings, and waits until no request is in flight.
    pub fn halt(&mut self) -> std::result::Result<(), VhostError> {
        // All at once, so that the wait is that for the slowest.
        self.rings
            .iter()
            .filter_map(|r| r.worker.as_ref())
            .for_each(Worker::stop);
        let mut halted = Ok(());
        for ring in &mut self.rings {
            halted = halted.and(ring.halt(&self.end));
        }
        halted
    }

    /// Sets the channel for messages of the back end.
    ///
    /// # Errors
    /// It was not negotiated.
    pub fn set_channel(&mut self, channel: Channel) -> std::result::Result<(), String> {
        if !self
            .protocol
            .contains(VhostUserProtocolFeatures::BACKEND_REQ)
        {
            return Err(
                "it has a channel for messages of the back end, but has not agreed on it".into(),
            );
        }
        self.channel = Some(channel);
        Ok(())
    }

    /// Checks whether the image has grown, and reports that to the front end if its guest runs and
    /// has not read the current size. A front end may have read the size from an earlier process.
    /// Must be called while the front end does not wait for an answer.
    pub fn report_growth(&mut self) {
        if let Some(bytes) = self.disk.grow() {
            self.log.report(|| {
                format!(
                    "the image has grown: the size of the disk is now {bytes} \
                                    bytes"
                )
            });
        }
        let sectors = Some(self.disk.sectors());
        let is_running = self.rings.iter().any(|ring| ring.worker.is_some());
        if !is_running || self.sectors_read == sectors || self.sectors_reported == sectors {
            return;
        }
        self.sectors_reported = sectors;
        let Some(channel) = &self.channel else {
            // A front end that has not read the size reads it when its device is started, and may
            // have read this one.
            if self.sectors_read.is_some() {
                let message =
                    "the front end cannot be informed of the new size: it has no channel for that";
                self.log.report(|| message.into());
            }
            return;
        };
        if let Err(why) = channel.config_changed() {
            self.log
                .report(|| format!("the front end cannot be informed of the size: {why}"));
        }
    }

    fn offered(&self) -> u64 {
        config::features(&self.disk, self.options.queues)
    }

    fn ring(&mut self, index: u32) -> Result<&mut RingState> {
        let known = self.rings.len();
        let ring = usize::try_from(index)
            .ok()
            .and_then(|i| self.rings.get_mut(i));
        ring.ok_or_else(|| refuse(VhostError::NoQueue { index, known }))
    }

    /// Changes the settings of a ring; a running one is halted first.
    fn change(&mut self, index: u32, change: impl FnOnce(&mut RingState)) -> Result<()> {
        let end = self.end.clone();
        let ring = self.ring(index)?;
        ring.halt(&end).map_err(refuse)?;
        change(ring);
        self.start(index as u16).map_err(refuse)
    }

    /// Starts a ring if it is completely set up.
    fn start(&mut self, index: u16) -> std::result::Result<(), VhostError> {
        let features = self.features;
        let ring = &mut self.rings[usize::from(index)];
        // Without protocol features there is no message to enable a ring.
        let enabled = ring.enabled || features.is_some_and(|f| f & PROTOCOL_FEATURES == 0);
        let (Some(size), Some((table, available, used)), Some(kick), Some(features)) =
            (ring.size, ring.addresses, &ring.kick, features)
        else {
            return Ok(());
        };
        if !enabled || ring.worker.is_some() {
            return Ok(());
        }
        let system = |error| VhostError::Queue { index, error };
        let kick = kick
            .as_ref()
            .map(OwnedFd::try_clone)
            .transpose()
            .map_err(system)?;
        let place = |address| {
            self.memory
                .translate(address)
                .ok_or(VhostError::Address { address })
        };
        let layout = Layout {
            size,
            table: place(table)?,
            available: place(available)?,
            used: place(used)?,
            event_idx: features & EVENT_IDX != 0,
            indirect: features & INDIRECT_DESC != 0,
        };
        let inflight = self.inflight.as_ref();
        let inflight = inflight
            .map(|memory| Inflight::open(memory, index, size))
            .transpose()?;
        let memory = self.memory.mapped();
        let rings = Ring::new(memory, &layout, ring.base, inflight)
            .map_err(|error| VhostError::Ring { index, error })?;
        self.sectors_reported = None;
        ring.worker = Some(Worker::start(WorkerSetup {
            disk: Arc::clone(&self.disk),
            index,
            ring: rings,
            memory: Arc::clone(memory),
            kick,
            signals: ring.signals.clone(),
            write_through: features & FLUSH == 0,
            poll: self.options.poll,
            log: Arc::clone(&self.log),
        })?);
        Ok(())
    }

    fn start_all(&mut self) -> Result<()> {
        (0..self.options.queues)
            .try_for_each(|i| self.start(i))
            .map_err(refuse)
    }

    /// Passes the current memory to all rings; `removed`: a region was removed.
    fn remap(&self, removed: bool) {
        let memory = self.memory.mapped();
        let workers = self.rings.iter().filter_map(|r| r.worker.as_ref());
        workers.for_each(|worker| worker.remap(memory, removed));
    }

    fn signal(&mut self, index: u32, change: impl FnOnce(&mut Signals)) -> Result<()> {
        let ring = self.ring(index)?;
        change(&mut ring.signals);
        if let Some(worker) = &ring.worker {
            worker.signal(&ring.signals);
        }
        Ok(())
    }
}

impl RingState {
    fn halt(&mut self, end: &JoinTimeout) -> std::result::Result<(), VhostError> {
        if let Some(worker) = self.worker.take() {
            self.base = worker.join(end)?;
        }
        Ok(())
    }
}

fn refuse(error: VhostError) -> Error {
    Error::ReqHandlerError(std::io::Error::other(error))
}

fn unknown<T>(what: &'static str) -> Result<T> {
    Err(Error::InvalidOperation(what))
}

/// Only an event counter can be read and written without ever waiting for the other side.
fn event(file: Option<File>) -> Result<Option<OwnedFd>> {
    use std::os::fd::AsRawFd;
    let Some(file) = file else {
        return Ok(None);
    };
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    match std::fs::read_link(link) {
        Ok(target) if target.as_os_str() != "anon_inode:[eventfd]" => {
            Err(refuse(VhostError::NotAnEvent))
        }
        // Without /proc it cannot be checked.
        _ => {
            // Adding to a full counter would block until it is read.
            rustix::io::ioctl_fionbio(&file, true).map_err(|e| Error::ReqHandlerError(e.into()))?;
            Ok(Some(file.into()))
        }
    }
}

impl VhostUserBackend for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    /// Ignored: front ends have used it with different meanings.
    fn reset_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.halt().map_err(refuse)?;
        self.rings
            .iter_mut()
            .for_each(|ring| *ring = RingState::default());
        self.inflight = None;
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !self.offered();
        if unknown != 0 {
            return Err(refuse(VhostError::Features { unknown }));
        }
        if self.features == Some(features) {
            return Ok(());
        }
        self.halt().map_err(refuse)?;
        self.features = Some(features);
        self.start_all()
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(PROTOCOL)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        match features & !PROTOCOL.bits() {
            0 => {
                self.protocol = VhostUserProtocolFeatures::from_bits_truncate(features);
                Ok(())
            }
            unknown => Err(refuse(VhostError::Features { unknown })),
        }
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(u64::from(self.options.queues))
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        let mut space = config::space(&self.disk, self.options.queues);
        self.sectors_read = Some(self.disk.sectors());
        space.resize(SPACE_BYTES, 0);
        let (start, bytes) = (offset as usize, size as usize);
        let part = space.get(start..).and_then(|rest| rest.get(..bytes));
        part.map(<[u8]>::to_vec).ok_or(Error::InvalidParam)
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        // The only field that a driver can write needs VIRTIO_BLK_F_CONFIG_WCE. It is not offered:
        // a new process would not have its value, and writes would be reported as done too early.
        unknown("the configuration of this disk cannot be written")
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        self.memory.replace(regions, files).map_err(refuse)?;
        self.remap(false);
        Ok(None)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(u64::from(self.options.memory_slots))
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        self.memory.add(region, file).map_err(refuse)?;
        self.remap(false);
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.memory.remove(region).map_err(refuse)?;
        self.remap(true);
        Ok(())
    }

    fn set_vring_num(&mut self, index: u32, size: u32) -> Result<()> {
        let valid = u16::try_from(size).ok();
        let valid = valid.filter(|s| s.is_power_of_two() && *s <= QUEUE_SIZE_MAX);
        let valid = valid.ok_or_else(|| refuse(VhostError::QueueSize { size }))?;
        self.change(index, |ring| ring.size = Some(valid))
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let addresses = Some((descriptor, available, used));
        self.change(index, |ring| ring.addresses = addresses)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        self.change(index, |ring| ring.base = base)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let end = self.end.clone();
        let ring = self.ring(index)?;
        ring.halt(&end).map_err(refuse)?;
        // The ring starts again with its next kick file descriptor.
        ring.kick = None;
        let base = ring.base;
        Ok(VhostUserVringState::new(index, u32::from(base)))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let kick = event(file)?;
        self.change(index.into(), |ring| ring.kick = Some(kick))
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let call = event(file)?.map(Arc::new);
        self.signal(index.into(), |signals| signals.call = call)
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let error = event(file)?.map(Arc::new);
        self.signal(index.into(), |signals| signals.error = error)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        if self.ring(index)?.enabled == enable {
            return Ok(());
        }
        self.change(index, |ring| ring.enabled = enable)
    }

    fn get_inflight_fd(
        &mut self,
        description: &VhostUserInflight,
    ) -> Result<(VhostUserInflight, File)> {
        self.check_inflight(description)?;
        let made = inflight::create(description.num_queues, description.queue_size);
        made.map_err(Error::ReqHandlerError)
    }

    fn set_inflight_fd(&mut self, description: &VhostUserInflight, file: File) -> Result<()> {
        self.check_inflight(description)?;
        let memory = InflightMemory::map(description, file, &self.share).map_err(refuse)?;
        self.halt().map_err(refuse)?;
        self.inflight = Some(Arc::new(memory));
        self.start_all()
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        unknown("a disk is not a graphics card")
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        unknown("a disk has no shared objects")
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        unknown("a disk has no state to be transferred")
    }

    fn check_device_state(&mut self) -> Result<()> {
        unknown("a disk has no state to be transferred")
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        unknown("a disk shares no memory")
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        unknown("dirty memory is not logged")
    }
}

impl Session {
    fn check_inflight(&self, description: &VhostUserInflight) -> Result<()> {
        let fits = description.num_queues <= self.options.queues
            && description.queue_size <= QUEUE_SIZE_MAX;
        if fits {
            return Ok(());
        }
        Err(refuse(VhostError::Inflight {
            reason: format!(
                "{} queues of {}",
                description.num_queues, description.queue_size
            ),
        }))
    }
}
