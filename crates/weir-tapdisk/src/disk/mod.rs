//! [`ServedDisk`]: a virtual disk, its image, and the state that its queues share.
//!
//! Guarantees, for every front end and every engine:
//!
//! - A request is reported as done when it is done: all its bytes were transferred, and those of a
//!   write with `fua` are on stable storage.
//! - A flush that is done has brought every write that was reported as done when the flush was
//!   [received](crate::io_queue::IoQueue::enqueue), on any queue, to stable storage. It is
//!   fdatasync(2) of the image.
//! - When the page cache could not be written back, the flush that receives the error fails, and so
//!   does every later one: data that were reported as written may be lost, and no later success can
//!   restore them.
//! - A partial transfer of the kernel is continued. A transfer that ends early, as on a truncated
//!   file, fails with `EIO`. Errors reach the guest and the stream with their errno.
//! - Concurrent requests may be executed in any order, as on any disk.
//! - Nothing is read or written outside the disk's sectors, and nothing is written to a read-only
//!   disk.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use weir_model::SECTOR_BYTES;
use weir_tap::tapdisk::mark::{RequestMark, disk_key, request_number};
use weir_tap::tapdisk::words::{DiskLimits, DiskWord};

mod counters;
mod error;
mod format;
mod identity;
mod image;

pub(crate) use counters::{DiskCounters, QueueCounters};
pub use counters::{DiskStatistics, OpStatistics};
pub use error::DiskError;
pub use format::ImageFormat;
pub use identity::Identity;
pub use image::Alignment;
pub(crate) use image::QueueFiles;

use crate::engine::{
    CacheOption, ChoiceError, EngineChoice, EngineInputs, EngineOption, choose, try_uring,
};
use crate::hub::{Hub, HubError, StatisticsProvider};
use crate::inject::{Injections, Injector, RULES_MAX};
use crate::recorder::Recorder;
use crate::throttle::Throttle;
use image::Image;

/// How a disk is served. [`DiskOptions::new`] sets the defaults.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// A raw file or a block device.
    pub image: PathBuf,
    /// Whether an image with the signature of another format is served.
    pub format: ImageFormat,
    /// The file or device that the image must be, whatever is at its path.
    pub identity: Option<Identity>,
    /// The size of the disk in bytes; by default the whole image, also when it grows.
    pub size_bytes: Option<u64>,
    /// Writes, discards and write zeroes fail with `EROFS`.
    pub read_only: bool,
    /// The logical block size in bytes: 512, 1024, 2048 or 4096; by default the alignment of
    /// `O_DIRECT`, and 512 through the page cache. An image that was created for one size cannot be
    /// read with another.
    pub block_size: Option<u32>,
    /// The serial number for the guest, at most 20 ASCII characters; by default from the image's
    /// name.
    pub serial: Option<String>,
    /// The VM whose disk it is.
    pub vm: Option<String>,
    /// The disk's name in the VM.
    pub vdisk: Option<String>,
    /// The engine.
    pub engine: EngineOption,
    /// Whether the host's page cache is used.
    pub cache: CacheOption,
    /// Excludes other writers of the image, and writing an image that others use. To be disabled
    /// when a disk is inserted below a running QEMU, which holds the lock itself.
    pub lock: bool,
    /// How long to wait for the lock: a killed tap holds it until its last request has finished.
    pub lock_wait: Duration,
    /// Its limits at first.
    pub limits: DiskLimits,
    /// Delays and errors for tests and drills.
    pub injections: Injections,
}

impl DiskOptions {
    /// The whole image, writable and locked, with the best engine.
    pub fn new(image: impl Into<PathBuf>) -> DiskOptions {
        DiskOptions {
            image: image.into(),
            format: ImageFormat::Probe,
            identity: None,
            size_bytes: None,
            read_only: false,
            block_size: None,
            serial: None,
            vm: None,
            vdisk: None,
            engine: EngineOption::Auto,
            cache: CacheOption::Auto,
            lock: true,
            lock_wait: Duration::from_secs(3),
            limits: DiskLimits::default(),
            injections: Injections::default(),
        }
    }
}

/// The disk's identity in rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskNames {
    /// The VM.
    pub vm: Option<String>,
    /// The disk's name in the VM.
    pub vdisk: Option<String>,
    /// The image: an absolute path.
    pub pdisk: String,
}

/// A virtual disk that is being served.
#[derive(Debug)]
pub struct ServedDisk {
    image: Image,
    size_bytes: AtomicU64,
    /// It covers the whole image, also when that grows.
    grows: bool,
    block_size: u32,
    step_bytes: u32,
    serial: String,
    subject: DiskNames,
    /// The key of its names in the marks of its requests.
    key: u64,
    choice: EngineChoice,
    throttle: Arc<Throttle>,
    injector: Injector,
    counters_by_queue: DiskCounters,
    /// The first request id that no I/O queue has.
    next_id: AtomicU64,
    /// The errno of a flush that could not write the page cache; 0 otherwise.
    write_back_error: AtomicI32,
    /// The hub to which its I/O queues send records, and its number there.
    hub: OnceLock<(Weak<Hub>, u16)>,
}

/// Characters of a serial number: `VIRTIO_BLK_ID_BYTES` (linux/virtio_blk.h).
pub const SERIAL_BYTES: usize = 20;

/// Block sizes that guests support.
const BLOCK_SIZES: [u32; 4] = [512, 1024, 2048, 4096];

/// Maximum size of a disk in bytes: offsets are passed to the kernel as signed numbers of bytes.
const SIZE_MAX: u64 = i64::MAX as u64 - 4095;

impl ServedDisk {
    /// Opens an image, locks it, and chooses an engine.
    ///
    /// # Errors
    /// The image does not exist, is in use, or does not match the options; no engine can serve it.
    pub fn open(options: DiskOptions) -> Result<Arc<ServedDisk>, DiskError> {
        let path = std::path::absolute(&options.image).unwrap_or(options.image.clone());
        check(&options, &path)?;
        let image = Image::open(&path, &options)?;
        let size_bytes = size(&image, options.size_bytes)?;
        let facts = EngineInputs {
            engine: options.engine,
            cache: options.cache,
            block_size: options.block_size,
            size_bytes,
            in_memory: image.in_memory,
            direct: image.direct,
        };
        let block_size = match options.block_size {
            Some(requested) => requested,
            // Not reduced for an image that ends within a block of its file system: it was created
            // with such blocks.
            None => block_size(&facts).map_err(|refusal| refusal.of(&path))?,
        };
        let choice = choose(&facts, try_uring).map_err(|refusal| refusal.of(&path))?;
        let direct = choice.direct.is_some();
        image.set_direct(direct).map_err(|error| DiskError::Image {
            path: path.clone(),
            what: "choose between O_DIRECT and the page cache",
            error,
        })?;
        let subject = DiskNames {
            vm: options.vm,
            vdisk: options.vdisk,
            pdisk: path.to_string_lossy().into_owned(),
        };
        Ok(Arc::new(ServedDisk {
            image,
            size_bytes: AtomicU64::new(size_bytes),
            grows: options.size_bytes.is_none(),
            step_bytes: 1 << size_bytes.trailing_zeros().min(block_size.trailing_zeros()),
            block_size,
            serial: options.serial.unwrap_or_else(|| serial_of(&path)),
            key: disk_key(subject.vm.as_deref(), subject.vdisk.as_deref()),
            subject,
            choice,
            throttle: Arc::new(Throttle::new(options.limits)),
            injector: Injector::new(options.injections),
            counters_by_queue: DiskCounters::new(),
            next_id: AtomicU64::new(1),
            write_back_error: AtomicI32::new(0),
            hub: OnceLock::new(),
        }))
    }

    /// Its size in bytes: the whole image.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }

    /// Its size in whole sectors of 512 bytes.
    pub fn sectors(&self) -> u64 {
        self.size_bytes() / SECTOR_BYTES as u64
    }

    /// The logical block size that a guest sees, in bytes.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// The alignment of offsets and lengths of requests in bytes: the logical block, or its
    /// greatest part, a power of two, of which the size is a multiple. So each byte of an image can
    /// be accessed.
    pub fn step_bytes(&self) -> u32 {
        self.step_bytes
    }

    /// Checks that it can be a guest's disk, which is a whole number of blocks.
    ///
    /// # Errors
    /// Its image ends within a block.
    pub fn check_blocks(&self) -> Result<(), DiskError> {
        let (size, block) = (self.size_bytes(), u64::from(self.block_size));
        if size.is_multiple_of(block) {
            return Ok(());
        }
        let smaller = match size.is_multiple_of(SECTOR_BYTES as u64) {
            true => "use block size 512 if it was created with such blocks, ",
            false => "",
        };
        Err(DiskError::Unsuitable {
            path: self.image.path.clone(),
            reason: format!(
                "its size of {size} bytes is not a multiple of the block size {block}, and a \
                 guest could not access its end"
            ),
            remedy: format!(
                "{smaller}extend it with `truncate -s {}`, or serve it over NBD only",
                size.next_multiple_of(block)
            ),
        })
    }

    /// Extends the disk if its image has grown, in whole steps; returns its new size in bytes if it
    /// has changed. A shortened image does not change the size: accesses beyond its end fail with
    /// `EIO`.
    pub fn grow(&self) -> Option<u64> {
        let there = self.image.length().ok().filter(|_| self.grows)?;
        let there = there.min(SIZE_MAX);
        let whole = there - there % u64::from(self.step_bytes);
        (self.size_bytes.fetch_max(whole, Ordering::Relaxed) < whole).then_some(whole)
    }

    /// Whether writes fail.
    pub fn is_read_only(&self) -> bool {
        self.image.read_only
    }

    /// Whether a discard deallocates space. If not, it ends as unsupported.
    pub fn discards(&self) -> bool {
        self.image.discards
    }

    /// The serial number: at most [`SERIAL_BYTES`] ASCII characters.
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// The disk's identity.
    pub fn subject(&self) -> &DiskNames {
        &self.subject
    }

    /// The engine and cache mode that were chosen.
    pub fn choice(&self) -> &EngineChoice {
        &self.choice
    }

    /// The statistics so far.
    pub fn counters(&self) -> DiskStatistics {
        self.counters_by_queue.read()
    }

    /// Registers the disk with `hub`, to which I/O queues that are opened from now on send their
    /// records; `statistics` provides the disk's statistics to the hub. A disk keeps its first hub,
    /// whose clients set its limits.
    ///
    /// # Errors
    /// The hub has the maximum number of disks.
    pub fn attach(&self, hub: &Arc<Hub>, statistics: StatisticsProvider) -> Result<(), HubError> {
        if self.hub.get().is_some() {
            return Ok(());
        }
        let names = DiskWord {
            number: 0,
            vm: self.subject.vm.clone(),
            vdisk: self.subject.vdisk.clone(),
            pdisk: Some(self.subject.pdisk.clone()),
        };
        let number = hub.register(names, statistics, self.throttle.clone())?;
        // The hub may hold the disk, for its statistics.
        self.hub.get_or_init(|| (Arc::downgrade(hub), number));
        Ok(())
    }

    /// The recorder of an I/O queue, if the disk is registered.
    pub(crate) fn recorder(&self, queue: u16) -> Result<Option<Recorder>, DiskError> {
        let hub = self
            .hub
            .get()
            .and_then(|(hub, n)| Some((hub.upgrade()?, *n)));
        let recorder = hub.map(|(hub, number)| Recorder::new(&hub, number, queue));
        recorder.transpose().map_err(|error| DiskError::Unsuitable {
            path: self.image.path.clone(),
            reason: "its requests cannot be recorded".into(),
            remedy: error.to_string(),
        })
    }

    /// Describes a request in its mark.
    pub(crate) fn mark(&self, mark: &RequestMark, id: u64, received_ns: u64) {
        let number = self.hub.get().map_or(0, |(_, number)| *number);
        mark.set(request_number(number, id), self.key, received_ns);
    }

    /// Its limits, which can be changed.
    pub fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    pub(crate) fn is_device(&self) -> bool {
        self.image.is_device
    }

    pub(crate) fn injector(&self) -> &Injector {
        &self.injector
    }

    pub(crate) fn counters_by_queue(&self) -> &DiskCounters {
        &self.counters_by_queue
    }

    pub(crate) fn files_for_queue(&self) -> Result<QueueFiles, DiskError> {
        self.image.for_queue().map_err(|error| DiskError::Image {
            path: self.image.path.clone(),
            what: "open it once more for a queue",
            error,
        })
    }

    /// Allocates request ids.
    pub(crate) fn more_ids(&self, count: u64) -> std::ops::Range<u64> {
        let first = self.next_id.fetch_add(count, Ordering::Relaxed);
        first..first + count
    }

    /// The errno of all further flushes, if written data were lost.
    pub(crate) fn write_back_error(&self) -> Option<i32> {
        match self.write_back_error.load(Ordering::Relaxed) {
            0 => None,
            errno => Some(errno),
        }
    }

    /// Records that the page cache could not be written.
    pub(crate) fn set_write_back_error(&self, errno: i32) {
        self.write_back_error.store(errno, Ordering::Relaxed);
    }
}

/// Checks the options that do not depend on the image.
fn check(options: &DiskOptions, path: &Path) -> Result<(), DiskError> {
    let unfit = |reason: String, remedy: &str| DiskError::Unsuitable {
        path: path.to_owned(),
        reason,
        remedy: remedy.to_owned(),
    };
    if let Some(block) = options.block_size
        && !BLOCK_SIZES.contains(&block)
    {
        let reason = format!("blocks of {block} bytes");
        return Err(unfit(reason, "guests support 512, 1024, 2048 and 4096"));
    }
    if let Some(serial) = &options.serial
        && (serial.len() > SERIAL_BYTES || !serial.bytes().all(|b| b.is_ascii_graphic()))
    {
        let reason = format!("serial number `{serial}`");
        let remedy = "it has at most 20 ASCII characters without spaces";
        return Err(unfit(reason, remedy));
    }
    let Injections { delays, errors } = &options.injections;
    if delays.len().max(errors.len()) > RULES_MAX {
        let reason = format!("{} delays and {} errors", delays.len(), errors.len());
        return Err(unfit(reason, "a disk has at most 64 of each"));
    }
    Ok(())
}

/// The size of the disk: that of its image, or the requested one.
fn size(image: &Image, requested: Option<u64>) -> Result<u64, DiskError> {
    let unfit = |reason: String, remedy: String| DiskError::Unsuitable {
        path: image.path.clone(),
        reason,
        remedy,
    };
    let there = image.bytes.min(SIZE_MAX);
    let size = requested.unwrap_or(there);
    if size > there {
        let reason = format!("has {there} bytes, not {size}");
        let remedy = format!("extend it with `truncate -s {size}`, or use a smaller size");
        return Err(unfit(reason, remedy));
    }
    if size == 0 {
        let remedy = "extend it with `truncate -s`".to_owned();
        return Err(unfit("is empty".to_owned(), remedy));
    }
    Ok(size)
}

/// The default logical block size: the alignment of `O_DIRECT` where it is used, or would be if the
/// image did not end within such a block.
fn block_size(facts: &EngineInputs) -> Result<u32, ChoiceError> {
    let whole = EngineInputs {
        size_bytes: 0,
        ..*facts
    };
    let choice = choose(&whole, try_uring)?;
    Ok(choice.direct.map_or(512, |direct| direct.offset.max(512)))
}

/// A serial number from an image's name: its end, where names differ.
fn serial_of(path: &Path) -> String {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let plain = |c: char| match c.is_ascii_alphanumeric() || "-_.".contains(c) {
        true => c,
        false => '_',
    };
    let plain: String = name.chars().map(plain).collect();
    plain[plain.len().saturating_sub(SERIAL_BYTES)..].to_owned()
}

/// The error of a description that the kernel did not provide.
pub(crate) fn engine_failed(
    what: &'static str,
    remedy: &'static str,
) -> impl FnOnce(io::Error) -> DiskError {
    move |error| DiskError::Engine {
        what,
        error,
        remedy,
    }
}
