//! Determines from its file system whether a file lies on a block device.

use std::path::Path;

/// File systems on block devices whose files report an anonymous device, by `f_type` of statfs(2):
/// btrfs, overlay, ZFS, bcachefs.
const ANONYMOUS: [i64; 4] = [0x9123_683e, 0x794c_7630, 0x2fc1_2fc1, 0xca45_1a4e];

/// True if I/O to the file at `path`, which is on device `dev` by stat(2), is repeated on a block
/// device. Memory and network file systems have anonymous devices, of major number 0.
pub fn on_block_device(path: &Path, dev: u64) -> bool {
    libc::major(dev) != 0 || kind(path).is_none_or(|kind| ANONYMOUS.contains(&kind))
}

fn kind(path: &Path) -> Option<i64> {
    rustix::fs::statfs(path).ok().map(|found| found.f_type)
}
