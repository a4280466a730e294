//! The kernel streams: each a folder with its programs and its table of columns.

pub mod fileio;
pub mod iopath;
pub mod pagecache;

use super::stream::KernelStream;

/// All of them.
pub static ALL: [&KernelStream; 3] = [&fileio::STREAM, &iopath::STREAM, &pagecache::STREAM];

/// The types of file systems, by the numbers of `include/uapi/linux/magic.h`.
pub(crate) const FILE_SYSTEMS: &[(i64, &str)] = &[
    (0xEF53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0xF2F5_2010, "f2fs"),
];
