//! [`Shared`]: memory of the client and the back end, with the data of requests.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};

use anyhow::{Context, Result};
use memmap2::MmapRaw;
use rustix::fs::{MemfdFlags, memfd_create};

/// A file in memory, mapped.
#[derive(Debug)]
pub(super) struct Shared {
    file: File,
    map: MmapRaw,
}

impl Shared {
    /// `bytes` bytes of zeroes.
    pub fn new(bytes: usize) -> Result<Shared> {
        let file = memfd_create("requests", MemfdFlags::CLOEXEC).context("cannot make memory")?;
        let file = File::from(file);
        file.set_len(bytes as u64)?;
        let map = MmapRaw::map_raw(&file).context("cannot map memory")?;
        Ok(Shared { file, map })
    }

    pub fn base(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    pub fn bytes(&self) -> usize {
        self.map.len()
    }

    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}
