//! [`Identity`]: identifies a file or device independently of its name.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::str::FromStr;

/// Which file or device it is. As text: `file:DEVICE:INODE` or `device:NUMBER`, as stat(2) numbers
/// them.
///
/// ```
/// let identity: weir_tapdisk::disk::Identity = "file:66:1234".parse()?;
/// assert_eq!(identity.to_string(), "file:66:1234");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// A file: its file system and its number there.
    File {
        /// `st_dev`.
        device: u64,
        /// `st_ino`.
        inode: u64,
    },
    /// A block device.
    Device {
        /// `st_rdev`.
        number: u64,
    },
}

impl Identity {
    /// From the metadata of a file.
    pub fn of(metadata: &Metadata) -> Identity {
        match metadata.file_type().is_block_device() {
            true => Identity::Device {
                number: metadata.rdev(),
            },
            false => Identity::File {
                device: metadata.dev(),
                inode: metadata.ino(),
            },
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::File { device, inode } => write!(f, "file:{device}:{inode}"),
            Identity::Device { number } => write!(f, "device:{number}"),
        }
    }
}

impl FromStr for Identity {
    type Err = String;

    fn from_str(text: &str) -> Result<Identity, String> {
        let wrong = || format!("`{text}` is not file:DEVICE:INODE or device:NUMBER");
        let (kind, numbers) = text.split_once(':').ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        match (kind, numbers.split_once(':')) {
            ("file", Some((device, inode))) => Ok(Identity::File {
                device: number(device)?,
                inode: number(inode)?,
            }),
            ("device", None) => Ok(Identity::Device {
                number: number(numbers)?,
            }),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{DiskOptions, ServedDisk};

    #[test]
    fn another_file_at_the_same_path_is_not_served() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("image");
        std::fs::write(&path, [0; 4096]).unwrap();
        let was = Identity::of(&std::fs::metadata(&path).unwrap());
        assert_eq!(was.to_string().parse(), Ok(was));
        let options = DiskOptions {
            identity: Some(was),
            ..DiskOptions::new(&path)
        };
        drop(ServedDisk::open(options.clone()).unwrap());
        // Created before the other is removed, so that it cannot have its number.
        let other = path.with_extension("new");
        std::fs::write(&other, [0; 4096]).unwrap();
        std::fs::rename(&other, &path).unwrap();
        let error = ServedDisk::open(options).unwrap_err().to_string();
        assert!(error.contains("is no longer the same file"), "{error}");
        for bad in ["", "file", "file:1", "file:1:x", "device:1:2", "link:1"] {
            assert!(bad.parse::<Identity>().is_err(), "{bad}");
        }
    }
}
