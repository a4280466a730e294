//! The location of a file's data on its file system's device, by FIEMAP
//! (include/uapi/linux/fiemap.h, Documentation/filesystems/fiemap.rst).
//!
//! Only ext2, ext3, ext4 and XFS are queried: they return addresses on the device that stat(2)
//! names. Others return addresses of their own address space (btrfs), move data without notice
//! (f2fs) or are stacked on another file system (overlay).
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Contiguous sectors of a file on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first sector in the file.
    pub start: u64,
    /// The first sector on the device.
    pub sector: u64,
    /// The number of sectors.
    pub sectors: u64,
    /// Whether another file may share them.
    pub shared: bool,
}

/// Maximum number of extents that are read of one file; a file with more is not located.
pub const EXTENTS_MAX: usize = 1 << 16;

/// `f_type` of ext2, ext3 and ext4, and of XFS (include/uapi/linux/magic.h).
const EXT: i64 = 0xef53;
const XFS: i64 = 0x5846_5342;

/// File systems whose files are in memory or on another host (include/uapi/linux/magic.h): tmpfs,
/// ramfs, hugetlbfs, NFS, CIFS, SMB2, 9p, Ceph.
const ELSEWHERE: [i64; 8] = [
    0x0102_1994,
    0x8584_58f6,
    0x9584_58f6,
    0x6969,
    0xff53_4d42,
    0xfe53_4d42,
    0x0102_1997,
    0x00c3_6400,
];

/// `_IOWR('f', 11, struct fiemap)`.
const FS_IOC_FIEMAP: libc::Ioctl = 0xc020_660b_u32 as libc::Ioctl;

/// `_IOR('X', 31, struct fsxattr)`.
const FS_IOC_FSGETXATTR: libc::Ioctl = 0x801c_581f_u32 as libc::Ioctl;

/// XFS stores the file's data on another device than the one that stat(2) names.
const FS_XFLAG_REALTIME: u32 = 1;

/// Words of `struct fiemap` before its extents, and of each `struct fiemap_extent`.
const HEAD_WORDS: usize = 4;
const EXTENT_WORDS: usize = 7;

/// Extents requested per call.
const BATCH: usize = 256;

const LAST: u32 = 0x1;
const UNKNOWN: u32 = 0x2;
const DELALLOC: u32 = 0x4;
const ENCODED: u32 = 0x8;
const NOT_ALIGNED: u32 = 0x100;
const INLINE: u32 = 0x200;
const TAIL: u32 = 0x400;
const SHARED: u32 = 0x2000;

/// Extents of these kinds have no usable address.
const NOWHERE: u32 = UNKNOWN | DELALLOC | ENCODED | NOT_ALIGNED | INLINE | TAIL;

/// What a file system reports about the location of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportedExtents {
    /// Addresses of the data on its device.
    Addresses,
    /// No usable location.
    Nothing,
    /// The files are not on a block device of this host.
    Elsewhere,
}

/// What the file system of `file` can report.
pub fn reported(file: &File) -> io::Result<ReportedExtents> {
    let kind = kind(file)?;
    let reported = match kind {
        EXT => ReportedExtents::Addresses,
        XFS if !is_realtime(file) => ReportedExtents::Addresses,
        kind if ELSEWHERE.contains(&kind) => ReportedExtents::Elsewhere,
        _ => ReportedExtents::Nothing,
    };
    Ok(reported)
}

/// The extents of `file` in order; `None` if there are more than [`EXTENTS_MAX`]. Data that the
/// file system has not allocated yet are omitted. The file is not flushed.
///
/// # Errors
/// The error of ioctl(2).
pub fn of(file: &File) -> io::Result<Option<Vec<Extent>>> {
    let mut extents: Vec<Extent> = Vec::new();
    let mut start_bytes = 0;
    loop {
        let words = ask(file, start_bytes)?;
        let found = mapped(&words);
        if found == 0 {
            return Ok(Some(extents));
        }
        for i in 0..found {
            let raw = RawExtent::decode(&words[HEAD_WORDS + i * EXTENT_WORDS..][..EXTENT_WORDS]);
            if let Some(extent) = raw.extent() {
                append(&mut extents, extent);
            }
            let next = raw.logical.saturating_add(raw.length);
            // A response that does not advance would cause an endless loop.
            if raw.flags & LAST != 0 || next <= start_bytes {
                return Ok(Some(extents));
            }
            start_bytes = next;
        }
        if extents.len() > EXTENTS_MAX {
            return Ok(None);
        }
    }
}

/// Adds an extent, merged with the last one if it is adjacent.
fn append(extents: &mut Vec<Extent>, extent: Extent) {
    if let Some(last) = extents.last_mut()
        && last.start + last.sectors == extent.start
        && last.sector + last.sectors == extent.sector
        && last.shared == extent.shared
    {
        last.sectors += extent.sectors;
        return;
    }
    extents.push(extent);
}

/// `struct fiemap_extent`.
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    flags: u32,
}

impl RawExtent {
    fn decode(words: &[u64]) -> RawExtent {
        RawExtent {
            logical: words[0],
            physical: words[1],
            length: words[2],
            flags: low(words[5]),
        }
    }

    fn extent(&self) -> Option<Extent> {
        let aligned = [self.logical, self.physical, self.length]
            .iter()
            .all(|bytes| bytes % 512 == 0);
        if self.flags & NOWHERE != 0 || !aligned || self.length == 0 {
            return None;
        }
        Some(Extent {
            start: self.logical / 512,
            sector: self.physical / 512,
            sectors: self.length / 512,
            shared: self.flags & SHARED != 0,
        })
    }
}

/// The 32-bit number at the lower address of a word.
fn low(word: u64) -> u32 {
    let bytes = word.to_ne_bytes();
    u32::from_ne_bytes(bytes[..4].try_into().expect("half a word"))
}

/// The 32-bit number at the higher address of a word.
fn high(word: u64) -> u32 {
    let bytes = word.to_ne_bytes();
    u32::from_ne_bytes(bytes[4..].try_into().expect("half a word"))
}

/// `fm_mapped_extents`, limited to the size of the buffer.
fn mapped(words: &[u64]) -> usize {
    (high(words[2]) as usize).min(BATCH)
}

/// A word of two 32-bit numbers, the one at the lower address first.
fn pair(first: u32, second: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

fn ask(file: &File, start_bytes: u64) -> io::Result<Vec<u64>> {
    let mut words = vec![0; HEAD_WORDS + BATCH * EXTENT_WORDS];
    words[0] = start_bytes;
    words[1] = u64::MAX - start_bytes;
    // fm_flags and fm_mapped_extents, then fm_extent_count and a spare.
    words[2] = pair(0, 0);
    words[3] = pair(BATCH as u32, 0);
    // SAFETY: the kernel writes a header and at most fm_extent_count extents, for which `words` has
    // room, and nothing else accesses them during the call.
    let failed = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, words.as_mut_ptr()) } != 0;
    if failed {
        return Err(io::Error::last_os_error());
    }
    Ok(words)
}

fn is_realtime(file: &File) -> bool {
    // `struct fsxattr` has 28 bytes, the flags first.
    let mut words = [0u32; 7];
    // SAFETY: the kernel writes 28 bytes, for which `words` has room.
    let failed =
        unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSGETXATTR, words.as_mut_ptr()) } != 0;
    // If the call fails, the file's location is not trusted.
    failed || words[0] & FS_XFLAG_REALTIME != 0
}

fn kind(file: &File) -> io::Result<i64> {
    Ok(rustix::fs::fstatfs(file)?.f_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(logical: u64, physical: u64, length: u64, flags: u32) -> Option<Extent> {
        let raw = RawExtent {
            logical,
            physical,
            length,
            flags,
        };
        raw.extent()
    }

    #[test]
    fn what_is_not_placed_is_nowhere() {
        const UNWRITTEN: u32 = 0x800;
        let placed = raw(4096, 1 << 20, 8192, UNWRITTEN | LAST).unwrap();
        assert_eq!((placed.start, placed.sector, placed.sectors), (8, 2048, 16));
        for flags in [
            DELALLOC | UNKNOWN,
            INLINE | NOT_ALIGNED,
            ENCODED,
            TAIL | NOT_ALIGNED,
        ] {
            assert_eq!(raw(4096, 0, 4096, flags), None);
        }
        assert_eq!(raw(0, 100, 4096, 0), None, "no whole sectors");
    }

    #[test]
    fn adjacent_extents_are_merged() {
        let mut extents = Vec::new();
        let extent = |start, sector, shared| Extent {
            start,
            sector,
            sectors: 8,
            shared,
        };
        append(&mut extents, extent(0, 100, false));
        append(&mut extents, extent(8, 108, false));
        append(&mut extents, extent(16, 116, true));
        append(&mut extents, extent(32, 124, true));
        let lengths: Vec<u64> = extents.iter().map(|e| e.sectors).collect();
        assert_eq!(lengths, [16, 8, 8]);
    }

    #[test]
    fn words_are_read_as_the_kernel_lays_them_out() {
        let word = pair(3, 7);
        assert_eq!((low(word), high(word)), (3, 7));
    }
}
