//! The file under a loop device, by LOOP_GET_STATUS64 (include/uapi/linux/loop.h, loop(4)).
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;

/// Words of `struct loop_info64`: 232 bytes that begin with device and inode.
const WORDS: usize = 29;

/// The device of the file's file system, as [`encoded`], and the file's inode. For a block device
/// under a loop device, those of its node in /dev.
///
/// # Errors
/// The error of ioctl(2): ENXIO if the device is not in use.
pub fn identity(device: &File) -> io::Result<(u64, u64)> {
    let mut words = [0u64; WORDS];
    // SAFETY: the kernel writes one structure, for which `words` has room.
    let failed =
        unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, words.as_mut_ptr()) } != 0;
    if failed {
        return Err(io::Error::last_os_error());
    }
    Ok((words[0], words[1]))
}

/// The device number of stat(2), encoded as `huge_encode_dev` of include/linux/kdev_t.h.
pub fn encoded(dev: u64) -> u64 {
    let (major, minor) = (u64::from(libc::major(dev)), u64::from(libc::minor(dev)));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_encoded_as_the_kernel_does() {
        assert_eq!(encoded(libc::makedev(8, 1)), 0x801);
        assert_eq!(
            encoded(libc::makedev(259, 300)),
            0x2c | 259 << 8 | 256 << 12
        );
    }
}
