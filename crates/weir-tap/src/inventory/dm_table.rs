//! The linear parts of a device mapper's table, by DM_TABLE_STATUS (include/uapi/linux/dm-ioctl.h,
//! Documentation/admin-guide/device-mapper/linear.rst). Logical volumes consist of them.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use super::loop_status;
use super::stack::{self, Segment};

/// `_IOWR(0xfd, 12, struct dm_ioctl)`.
const DM_TABLE_STATUS: libc::Ioctl = 0xc138_fd0c_u32 as libc::Ioctl;

/// Request the table, not the status of the targets.
const DM_STATUS_TABLE_FLAG: u32 = 1 << 4;
/// The buffer was too small.
const DM_BUFFER_FULL_FLAG: u32 = 1 << 8;
/// Do not flush pending I/O for the status.
const DM_NOFLUSH_FLAG: u32 = 1 << 11;

/// Bytes of `struct dm_ioctl`, and of `struct dm_target_spec` before its parameters.
const HEAD: usize = 312;
const SPEC: usize = 40;

/// Initial and maximum size of the response buffer.
const ROOM: usize = 16 << 10;
const ROOM_MAX: usize = 4 << 20;

/// The linear segments of device `number`; segments with another target are omitted.
///
/// # Errors
/// Without CAP_SYS_ADMIN, without a device mapper, for a table that is too large or cannot be
/// parsed.
pub fn read(number: u32) -> io::Result<Vec<Segment>> {
    let control = File::options()
        .read(true)
        .write(true)
        .open("/dev/mapper/control")?;
    let mut room = ROOM;
    loop {
        let mut words = request(number, room);
        // SAFETY: the kernel reads and writes at most `data_size` bytes of the buffer, which is as
        // large, and nothing else accesses it during the call.
        let failed =
            unsafe { libc::ioctl(control.as_raw_fd(), DM_TABLE_STATUS, words.as_mut_ptr()) } != 0;
        if failed {
            return Err(io::Error::last_os_error());
        }
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let full = number_at(&bytes, 28).is_some_and(|flags| flags & DM_BUFFER_FULL_FLAG != 0);
        if !full {
            let segments = segments(&bytes);
            return segments.ok_or_else(|| io::Error::other("an invalid table"));
        }
        room *= 4;
        if room > ROOM_MAX {
            return Err(io::Error::other("a table that is too large"));
        }
    }
}

/// The request: version, sizes, flags and the device; other fields are zero.
fn request(number: u32, room: usize) -> Vec<u64> {
    let mut bytes = vec![0; room];
    let dev = loop_status::encoded(libc::makedev(number >> 20, number & 0xf_ffff));
    let flags = DM_STATUS_TABLE_FLAG | DM_NOFLUSH_FLAG;
    for (at, value) in [(0, 4), (12, room as u32), (16, HEAD as u32), (28, flags)] {
        bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    bytes[40..48].copy_from_slice(&dev.to_ne_bytes());
    let word = |chunk: &[u8]| u64::from_ne_bytes(chunk.try_into().expect("8 bytes"));
    bytes.chunks_exact(8).map(word).collect()
}

/// The linear segments of the response; `None` if it is malformed.
fn segments(bytes: &[u8]) -> Option<Vec<Segment>> {
    let first = number_at(bytes, 16)? as usize;
    let count = number_at(bytes, 20)?;
    let data = bytes.get(first..)?;
    let mut segments = Vec::new();
    let mut at = 0;
    for _ in 0..count {
        let spec = data.get(at..)?;
        let (start, sectors) = (long_at(spec, 0)?, long_at(spec, 8)?);
        let kind = text(spec.get(24..SPEC)?)?;
        if kind == "linear" {
            let (device, sector) = linear(text(spec.get(SPEC..)?)?)?;
            segments.push(Segment {
                start,
                device,
                sector,
                sectors,
                shared: false,
            });
        }
        // The offset is relative to the first specification; see `retrieve_status` of
        // drivers/md/dm-ioctl.c.
        at = number_at(spec, 20)? as usize;
    }
    Some(segments)
}

/// Device and first sector in the parameters of a linear target: `8:16 2048`.
fn linear(parameters: &str) -> Option<(u32, u64)> {
    let mut words = parameters.split(' ');
    let device = stack::parse_number(words.next()?)?;
    let sector = words.next()?.parse().ok()?;
    words.next().is_none().then_some((device, sector))
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn long_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

/// The text up to the first zero.
fn text(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|b| *b == 0)?;
    std::str::from_utf8(&bytes[..end]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A response as the kernel writes it: specifications of 40 bytes, each followed by its
    /// parameters and padded to 8 bytes, `next` relative to the first.
    fn answer(targets: &[(u64, u64, &str, &str)]) -> Vec<u8> {
        let mut bytes = vec![0; HEAD];
        bytes[16..20].copy_from_slice(&(HEAD as u32).to_ne_bytes());
        bytes[20..24].copy_from_slice(&(targets.len() as u32).to_ne_bytes());
        for (start, sectors, kind, parameters) in targets {
            let at = bytes.len();
            bytes.extend(start.to_ne_bytes());
            bytes.extend(sectors.to_ne_bytes());
            bytes.extend([0; 8]);
            let mut name = kind.as_bytes().to_vec();
            name.resize(16, 0);
            bytes.extend(name);
            bytes.extend(parameters.as_bytes());
            bytes.push(0);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            let next = (bytes.len() - HEAD) as u32;
            bytes[at + 20..at + 24].copy_from_slice(&next.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn a_logical_volume_in_two_parts() {
        let bytes = answer(&[
            (0, 8192, "linear", "8:3 2048"),
            (8192, 16384, "linear", "259:1 1048576"),
        ]);
        let found = segments(&bytes).unwrap();
        let lower: Vec<(u64, u32, u64, u64)> = found
            .iter()
            .map(|s| (s.start, s.device, s.sector, s.sectors))
            .collect();
        assert_eq!(
            lower,
            [
                (0, 8 << 20 | 3, 2048, 8192),
                (8192, 259 << 20 | 1, 1_048_576, 16384)
            ]
        );
    }

    #[test]
    fn other_targets_are_omitted_and_nonsense_is_refused() {
        let bytes = answer(&[
            (0, 8, "striped", "2 128 8:3 0 8:4 0"),
            (8, 8, "linear", "8:3 0"),
        ]);
        assert_eq!(segments(&bytes).unwrap().len(), 1);
        assert_eq!(segments(&answer(&[(0, 8, "linear", "8:3")])), None);
        assert_eq!(segments(&answer(&[(0, 8, "linear", "8:3 0 0")])), None);
        assert_eq!(segments(&answer(&[(0, 8, "linear", "/dev/sda 0")])), None);
        let whole = answer(&[(0, 8, "linear", "8:3 0")]);
        assert_eq!(segments(&whole[..HEAD + SPEC]), None, "cut off");
    }

    #[test]
    fn the_question_names_the_device_and_its_room() {
        let words = request(253 << 20 | 5, ROOM);
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        assert_eq!(bytes.len(), ROOM);
        assert_eq!(number_at(&bytes, 0), Some(4));
        assert_eq!(number_at(&bytes, 12), Some(ROOM as u32));
        assert_eq!(long_at(&bytes, 40), Some(253 << 8 | 5));
    }
}
