//! [`Image`]: the file or block device that holds a disk's data.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatxFlags};

use super::format::{self, ImageFormat};
use super::{DiskError, DiskOptions, Identity};
use crate::lock;

/// The alignment that `O_DIRECT` requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Offsets and lengths are multiples of this, in bytes.
    pub offset: u32,
    /// Memory addresses are multiples of this, in bytes.
    pub memory: u32,
}

/// An open image.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) path: PathBuf,
    /// Holds the lock or the exclusive open.
    file: File,
    pub(crate) is_device: bool,
    pub(crate) read_only: bool,
    locked: bool,
    /// Its length when it was opened, in bytes.
    pub(crate) bytes: u64,
    /// It is in memory, so that there is nothing below the page cache.
    pub(crate) in_memory: bool,
    /// The alignment for `O_DIRECT`; `None` where it does not work.
    pub(crate) direct: Option<Alignment>,
    /// Space can be deallocated.
    pub(crate) discards: bool,
}

/// A disk with blocks of at most 4096 bytes cannot guarantee a larger alignment.
const ALIGNMENT_MAX: u32 = 4096;

impl Image {
    /// Opens and locks the image at `path`.
    pub(crate) fn open(path: &Path, options: &DiskOptions) -> Result<Image, DiskError> {
        let (read_only, locked, wait) = (options.read_only, options.lock, options.lock_wait);
        let failed = |what: &'static str| {
            move |error: io::Error| DiskError::Image {
                path: path.to_owned(),
                what,
                error,
            }
        };
        // The name is resolved once. The file that is examined here is the one that is opened
        // below, so that it cannot be replaced in between; a FIFO or another kind of device is
        // never opened.
        let named = name(path).map_err(failed("find it"))?;
        let metadata = named.metadata().map_err(failed("examine it"))?;
        let is_device = kind(&metadata, path)?;
        if options
            .identity
            .is_some_and(|identity| identity != Identity::of(&metadata))
        {
            return Err(DiskError::Unsuitable {
                path: path.to_owned(),
                reason: "is no longer the same file".to_owned(),
                remedy: "check which program replaced it".to_owned(),
            });
        }
        let exclusive = is_device && locked && !read_only;
        let open = || {
            let mut options = OpenOptions::new();
            options.read(true).write(!read_only);
            options.custom_flags(if exclusive { libc::O_EXCL } else { 0 } | libc::O_NOCTTY);
            options.open(proc_path(&named))
        };
        let opened = lock::claim(if exclusive { wait } else { Duration::ZERO }, open);
        let mut file = opened.map_err(|error| match exclusive && lock::is_claimed(&error) {
            true => lock::in_use(path, "it is mounted or claimed".to_owned()),
            false if read_only => failed("open it for reading")(error),
            false => failed("open it for writing")(error),
        })?;
        if locked && !is_device {
            lock::acquire(file.as_fd(), path, read_only, wait)?;
        }
        let bytes = file
            .seek(SeekFrom::End(0))
            .map_err(failed("find its end"))?;
        if options.format == ImageFormat::Probe
            && let Some(format) = format::find(&file, bytes).map_err(failed("read it"))?
        {
            return Err(DiskError::Unsuitable {
                path: path.to_owned(),
                reason: format!(
                    "is an image in the format {format}; only raw images are served, and a write to it as \
                     raw would destroy it"
                ),
                remedy: "convert it with `qemu-img convert -O raw`, or use format `raw` to serve \
                         these bytes as they are"
                    .to_owned(),
            });
        }
        let in_memory =
            !is_device && in_memory(&file).map_err(failed("examine its file system"))?;
        let discards = !read_only && discards(&file, is_device, bytes);
        Ok(Image {
            path: path.to_owned(),
            direct: alignment(&file, is_device, bytes),
            file,
            is_device,
            read_only,
            locked,
            bytes,
            in_memory,
            discards,
        })
    }

    /// Its current length.
    pub(crate) fn length(&self) -> io::Result<u64> {
        // Nothing else uses the offset of this description.
        rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0)).map_err(io::Error::from)
    }

    /// Chooses between `O_DIRECT` and the page cache, before the first transfer.
    pub(crate) fn set_direct(&self, direct: bool) -> io::Result<()> {
        set_direct(&self.file, direct)
    }

    /// The image for one I/O queue. For a file, the I/O queue has a description of its own. For a
    /// device, all I/O queues share one for reads and writes: its exclusive open must not end
    /// before the last request.
    pub(crate) fn for_queue(&self) -> io::Result<QueueFiles> {
        let again = self.open_again()?;
        Ok(match self.is_device {
            true => QueueFiles {
                image: self.file.try_clone()?,
                flushed: again,
            },
            false => QueueFiles {
                flushed: again.try_clone()?,
                image: again,
            },
        })
    }

    /// Another description of the same file; the same one without /proc, or after privileges were
    /// dropped.
    fn open_again(&self) -> io::Result<File> {
        let flags = rustix::fs::fcntl_getfl(&self.file)?;
        let mut options = OpenOptions::new();
        options.read(true).write(!self.read_only);
        options.custom_flags((flags & OFlags::DIRECT).bits() as i32);
        // It is the same file even when its name was removed.
        let Ok(file) = options.open(proc_path(&self.file)) else {
            return self.file.try_clone();
        };
        // A device is opened exclusively, not locked.
        if self.locked && !self.is_device {
            lock::join(file.as_fd(), self.read_only)?;
        }
        Ok(file)
    }
}

/// The file descriptors of an I/O queue.
#[derive(Debug)]
pub(crate) struct QueueFiles {
    /// For reads and writes.
    pub(crate) image: File,
    /// For flushes. The kernel reports a write-back error of the page cache once per description;
    /// so the flushes of all I/O queues receive it, also concurrent ones.
    pub(crate) flushed: File,
}

/// A descriptor of the file at `path` that can neither be read nor written and has no side effects:
/// open(2), `O_PATH`.
fn name(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_PATH);
    options.open(path)
}

/// The path by which this process can open the file of `file` again (proc_pid_fd(5)).
fn proc_path(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Whether it is a block device rather than a file.
fn kind(metadata: &fs::Metadata, path: &Path) -> Result<bool, DiskError> {
    let file_type = metadata.file_type();
    match (file_type.is_file(), file_type.is_block_device()) {
        (true, _) => Ok(false),
        (_, true) => Ok(true),
        _ => Err(DiskError::Unsuitable {
            path: path.to_owned(),
            reason: "is neither a file nor a block device".to_owned(),
            remedy: "use a raw image".to_owned(),
        }),
    }
}

/// `linux/magic.h`.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

fn in_memory(file: &File) -> io::Result<bool> {
    let kind = rustix::fs::fstatfs(file)?.f_type as i64;
    Ok(IN_MEMORY.contains(&kind))
}

fn set_direct(file: &File, direct: bool) -> io::Result<()> {
    let mut flags = rustix::fs::fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, direct);
    Ok(rustix::fs::fcntl_setfl(file, flags)?)
}

/// The alignment for `O_DIRECT`: from the kernel (statx(2), Linux 6.1), from the device, or by
/// trial reads.
fn alignment(file: &File, is_device: bool, bytes: u64) -> Option<Alignment> {
    set_direct(file, true).ok()?;
    let found = reported_alignment(file).unwrap_or_else(|| {
        let offset = match is_device {
            true => rustix::fs::ioctl_blksszget(file).ok(),
            false => probed(file, bytes),
        };
        offset.map(|offset| Alignment {
            offset,
            memory: offset,
        })
    });
    set_direct(file, false).ok()?;
    found.filter(|a| a.offset.max(a.memory) <= ALIGNMENT_MAX)
}

/// The answer of statx(2): none, no direct I/O, or an alignment.
fn reported_alignment(file: &File) -> Option<Option<Alignment>> {
    let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return None;
    }
    Some((stat.stx_dio_offset_align > 0).then_some(Alignment {
        offset: stat.stx_dio_offset_align,
        memory: stat.stx_dio_mem_align.max(1),
    }))
}

/// The least length that can be read.
fn probed(file: &File, bytes: u64) -> Option<u32> {
    let mut room = vec![0_u8; 2 * ALIGNMENT_MAX as usize];
    let start = room.as_ptr().align_offset(ALIGNMENT_MAX as usize);
    let lengths = [512, 1024, 2048, 4096];
    // Beyond the end a read of any length succeeds.
    let lengths = lengths
        .iter()
        .filter(|l| u64::from(**l) <= bytes || **l == ALIGNMENT_MAX);
    lengths.copied().find(|length| {
        let buffer = &mut room[start..start + *length as usize];
        rustix::io::pread(file, buffer, 0).is_ok()
    })
}

/// Whether space can be deallocated: tried beyond the end of a file, where there is none.
fn discards(file: &File, is_device: bool, bytes: u64) -> bool {
    if is_device {
        return device_discards(file).is_some_and(|max| max > 0);
    }
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let behind = bytes.next_multiple_of(u64::from(ALIGNMENT_MAX));
    rustix::fs::fallocate(file, hole, behind, u64::from(ALIGNMENT_MAX)).is_ok()
}

/// The maximum length of a discard on a device, in bytes.
fn device_discards(file: &File) -> Option<u64> {
    let number = file.metadata().ok()?.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let device = format!("/sys/dev/block/{major}:{minor}");
    // A partition has no queue of its own.
    let places = ["queue", "../queue"].map(|queue| format!("{device}/{queue}/discard_max_bytes"));
    let text = places
        .iter()
        .find_map(|place| fs::read_to_string(place).ok())?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use weir_testing::{LoopDisk, MemoryFolder, skipped};

    use super::*;

    #[test]
    fn each_queue_receives_the_write_back_error_of_a_device() {
        // A device of 16 MiB with space for 4: the page cache accepts more than can be written
        // back.
        let device = MemoryFolder::new(4).and_then(|folder| {
            let content = folder.path().join("image");
            File::create(&content)?.set_len(16 << 20)?;
            Ok((LoopDisk::on(&content, &[])?, folder))
        });
        let (device, _folder) = match device {
            Ok(made) => made,
            Err(why) => {
                let test = "each_queue_receives_the_write_back_error_of_a_device";
                return skipped(test, format!("{why:#}"));
            }
        };
        let path = Path::new(device.path());
        let image = Image::open(path, &DiskOptions::new(path)).unwrap();
        image.set_direct(false).unwrap();
        let [one, other] = [(); 2].map(|()| image.for_queue().unwrap());
        for queue in [&one, &other] {
            queue.flushed.sync_data().unwrap();
        }
        one.image.write_all_at(&vec![1; 8 << 20], 0).unwrap();
        for queue in [&one, &other] {
            queue.flushed.sync_data().unwrap_err();
        }
    }
}
