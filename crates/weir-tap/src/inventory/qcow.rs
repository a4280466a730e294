//! [`Header`]: the size and the backing image in the header of a qcow or qcow2 image.
//!
//! Format: docs/interop/qcow2.rst of QEMU. Big endian: magic, version (4), offset (8) and length
//! (4) of the backing file's name, then in version 2 and 3 the cluster bits (4), in version 1 a
//! time (4), and in all of them the size (8) at byte 24. Extensions follow the header: type (4),
//! length (4), data padded to 8 bytes; 0xe2792aca is the backing file's format.

use std::os::unix::fs::FileExt;
use std::path::Path;

use super::host;

/// Bytes of an image that are read: header, extensions and the backing file's name are in its first
/// cluster.
const BYTES_MAX: usize = 64 << 10;

/// Maximum length of a backing file's name, as in QEMU.
const NAME_BYTES_MAX: usize = 1023;

const MAGIC: &[u8] = b"QFI\xfb";

const BACKING_FORMAT: u32 = 0xe279_2aca;

/// The parsed header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The size that the VM sees.
    pub bytes: u64,
    /// The backing image.
    pub backing: Option<Backing>,
}

/// A backing image, as the header names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// A path, absolute or relative to the folder of the image above.
    pub path: String,
    /// `raw`, `qcow2`, ... if specified.
    pub format: Option<String>,
}

impl Header {
    /// The header of the image at `path`; `None` if it has none or cannot be read.
    pub fn read(path: &Path) -> Option<Header> {
        let file = host::open_data(path).ok()?;
        let mut bytes = vec![0; 104];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let header = Header::parse(&bytes)?;
        if number(&bytes, 8, 8) == Some(0) {
            return Some(header);
        }
        bytes.resize(BYTES_MAX, 0);
        let read = file.read_at(&mut bytes, 0).ok()?;
        bytes.truncate(read);
        Header::parse(&bytes)
    }

    /// Parses the header at the beginning of an image.
    pub fn parse(bytes: &[u8]) -> Option<Header> {
        if !bytes.starts_with(MAGIC) {
            return None;
        }
        Some(Header {
            bytes: number(bytes, 24, 8)?,
            backing: backing(bytes),
        })
    }
}

fn backing(bytes: &[u8]) -> Option<Backing> {
    let start = usize::try_from(number(bytes, 8, 8)?).ok()?;
    let len = usize::try_from(number(bytes, 16, 4)?).ok()?;
    if start == 0 || len > NAME_BYTES_MAX {
        return None;
    }
    let name = bytes.get(start..start.checked_add(len)?)?;
    Some(Backing {
        path: std::str::from_utf8(name).ok()?.to_owned(),
        format: backing_format(bytes),
    })
}

fn backing_format(bytes: &[u8]) -> Option<String> {
    let mut at = match number(bytes, 4, 4)? {
        1 => return None,
        2 => 72,
        _ => usize::try_from(number(bytes, 100, 4)?).ok()?,
    };
    loop {
        let (kind, len) = (number(bytes, at, 4)?, number(bytes, at + 4, 4)?);
        let len = usize::try_from(len).ok()?;
        let data = bytes.get(at + 8..(at + 8).checked_add(len)?)?;
        match u32::try_from(kind).ok()? {
            0 => return None,
            BACKING_FORMAT => return Some(std::str::from_utf8(data).ok()?.to_owned()),
            _ => at += 8 + len.next_multiple_of(8),
        }
    }
}

fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A header of version 3 with a backing file and its format.
    fn header() -> Vec<u8> {
        let mut bytes = vec![0; 104];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[7] = 3;
        bytes[15] = 128;
        bytes[19] = 8;
        bytes[24..32].copy_from_slice(&(1u64 << 30).to_be_bytes());
        bytes[103] = 104;
        bytes.extend(BACKING_FORMAT.to_be_bytes());
        bytes.extend([0, 0, 0, 3]);
        bytes.extend(b"raw\0\0\0\0\0");
        bytes.extend([0; 8]);
        assert_eq!(bytes.len(), 128);
        bytes.extend(b"base.img");
        bytes
    }

    #[test]
    fn a_header_contains_size_and_backing_file() {
        let header = Header::parse(&header()).unwrap();
        assert_eq!(header.bytes, 1 << 30);
        let backing = header.backing.unwrap();
        assert_eq!(backing.path, "base.img");
        assert_eq!(backing.format.as_deref(), Some("raw"));
        assert_eq!(Header::parse(b"no image at all"), None);
    }

    proptest! {
        #[test]
        fn no_header_is_too_strange(
            at in 4usize..136, byte: u8, len in 0usize..136, more: Vec<u8>
        ) {
            let mut bytes = header();
            bytes[at] = byte;
            bytes.truncate(len);
            bytes.extend(more);
            Header::parse(&bytes);
        }
    }
}
