//! [`Medium`]: the file that is served: in memory, or on a disk without the page cache.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use weir_testing::MemoryFolder;

/// An image, removed when it is dropped.
pub struct Medium {
    /// Its name in the table.
    pub name: &'static str,
    pub image: PathBuf,
    pub bytes: u64,
    /// Back ends open it with O_DIRECT.
    pub is_direct: bool,
    /// The directory of the sockets.
    _folder: Option<MemoryFolder>,
}

impl Medium {
    /// A file in memory, through the page cache, which is its storage.
    pub fn memory(mebibytes: u64) -> Result<Medium> {
        let folder = MemoryFolder::new(mebibytes + 8)?;
        let image = folder.path().join("disk.raw");
        let medium = Medium {
            name: "file in memory",
            image,
            bytes: mebibytes << 20,
            is_direct: false,
            _folder: Some(folder),
        };
        medium.filled()
    }

    /// A file on the disk of `/var/tmp`, opened with O_DIRECT.
    pub fn disk(mebibytes: u64) -> Result<Medium> {
        let image = PathBuf::from(format!("/var/tmp/weir-bench-{}.raw", std::process::id()));
        let medium = Medium {
            name: "file on a disk, O_DIRECT",
            image,
            bytes: mebibytes << 20,
            is_direct: true,
            _folder: None,
        };
        medium.filled()
    }

    /// Writes every block: reads of holes would be free.
    fn filled(self) -> Result<Medium> {
        let shown = || self.image.display().to_string();
        let mut file = File::create(&self.image).with_context(shown)?;
        let mut chunk = vec![0_u8; 1 << 20];
        for i in 0..self.bytes >> 20 {
            chunk.fill(i as u8 | 1);
            file.write_all(&chunk).with_context(shown)?;
        }
        file.sync_all().with_context(shown)?;
        Ok(self)
    }
}

impl Drop for Medium {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.image) {
            eprintln!("cleaning up: {}: {error}", self.image.display());
        }
    }
}
