//! The binary layout of blktrace's events (`include/uapi/linux/blktrace_api.h`:
//! `struct blk_io_trace`, `struct blk_io_trace2`), and the meaning of the action bits.
//!
//! | bytes | version 7 | version 8 |
//! | --- | --- | --- |
//! | 0 | u32 magic \| version | same |
//! | 4 | u32 sequence | same |
//! | 8 | u64 time, ns | same |
//! | 16 | u64 sector | same |
//! | 24 | u32 bytes | same |
//! | 28 | u32 action | u32 pid |
//! | 32 | u32 pid | u64 action |
//! | 36 | u32 device | |
//! | 40 | u32 cpu | u32 device |
//! | 44 | u16 error, u16 payload's length | u32 cpu |
//! | 48 | | u16 error, u16 payload's length, 12 bytes of nothing |
//!
//! The payload follows. The action's low 16 bits are the event type, the bits above are categories.

/// The magic number, without the version in its low byte.
pub const MAGIC: u32 = 0x6561_7400;

/// Maximum length of a header.
pub const HEADER_BYTES_MAX: usize = 64;

/// Categories, as bits above [`CATEGORY_SHIFT`].
pub mod category {
    /// Reads.
    pub const READ: u64 = 1 << 0;
    /// Writes.
    pub const WRITE: u64 = 1 << 1;
    /// Flushes, and writes that are preceded by one.
    pub const FLUSH: u64 = 1 << 2;
    /// Synchronous.
    pub const SYNC: u64 = 1 << 3;
    /// Queueing and merging.
    pub const QUEUE: u64 = 1 << 4;
    /// Requeueing.
    pub const REQUEUE: u64 = 1 << 5;
    /// Issue.
    pub const ISSUE: u64 = 1 << 6;
    /// Completion.
    pub const COMPLETE: u64 = 1 << 7;
    /// SCSI pass-through.
    pub const PASSTHROUGH: u64 = 1 << 9;
    /// A note, not an event.
    pub const NOTIFY: u64 = 1 << 10;
    /// Read-ahead.
    pub const AHEAD: u64 = 1 << 11;
    /// Metadata.
    pub const META: u64 = 1 << 12;
    /// Discards.
    pub const DISCARD: u64 = 1 << 13;
    /// Driver-specific data.
    pub const DRIVER: u64 = 1 << 14;
    /// Forced unit access.
    pub const FUA: u64 = 1 << 15;
    /// Zone appends, version 8.
    pub const ZONE_APPEND: u64 = 1 << 16;
    /// Zone reset, reset all, finish, open, close, version 8.
    pub const ZONE_MANAGEMENT: u64 = 0x1f << 17;
}

/// Position of the categories in an action.
pub const CATEGORY_SHIFT: u32 = 16;

/// The low bits of an action.
pub mod act {
    /// `Q`
    pub const QUEUE: u64 = 1;
    /// `M`
    pub const BACK_MERGE: u64 = 2;
    /// `F`
    pub const FRONT_MERGE: u64 = 3;
    /// `G`
    pub const GET_REQUEST: u64 = 4;
    /// `R`
    pub const REQUEUE: u64 = 6;
    /// `D`
    pub const ISSUE: u64 = 7;
    /// `C`
    pub const COMPLETE: u64 = 8;
    /// `I`
    pub const INSERT: u64 = 12;
    /// `X`
    pub const SPLIT: u64 = 13;
    /// The payload begins with the id of a cgroup, 8 bytes.
    pub const CGROUP: u64 = 1 << 8;
}

/// Kinds of notes, in the low bits of an action of category [`category::NOTIFY`].
pub mod note {
    /// The payload is the name of the process.
    pub const PROCESS: u64 = 0;
    /// The payload is the wall clock, u32 seconds and u32 nanoseconds.
    pub const TIMESTAMP: u64 = 1;
}

/// The header of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Sequence number on its CPU.
    pub sequence: u32,
    /// Nanoseconds of the kernel's monotonic clock.
    pub time: u64,
    /// First sector.
    pub sector: u64,
    /// Length in bytes.
    pub bytes: u32,
    /// Event type and categories.
    pub action: u64,
    /// The process that caused the event.
    pub pid: u32,
    /// Major number << 20 | minor number.
    pub device: u32,
    /// The CPU of the event.
    pub cpu: u32,
    /// The error of a completion, as a negative number in 16 bits.
    pub error: u16,
    /// Length of the payload after the header.
    pub payload_bytes: u16,
}

/// The layout of a file's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    big_endian: bool,
    version: u8,
}

impl Layout {
    /// Version 7, little-endian: the layout that is written.
    pub const WRITTEN: Layout = Layout {
        big_endian: false,
        version: 7,
    };

    /// The layout of an event that begins with these bytes; `None` if they are not an event.
    pub fn of(magic: [u8; 4]) -> Option<Layout> {
        let layout = |word: u32, big_endian| {
            let version = word as u8;
            let known = word & !0xff == MAGIC && (version == 7 || version == 8);
            known.then_some(Layout {
                big_endian,
                version,
            })
        };
        layout(u32::from_le_bytes(magic), false).or_else(|| layout(u32::from_be_bytes(magic), true))
    }

    /// Length of a header.
    pub fn header_bytes(self) -> usize {
        match self.version {
            7 => 48,
            _ => HEADER_BYTES_MAX,
        }
    }

    /// Decodes the header in `bytes`, which have the length [`Layout::header_bytes`].
    pub fn decode(self, bytes: &[u8]) -> Header {
        let v8 = self.version != 7;
        let at = |v7_offset, v8_offset| if v8 { v8_offset } else { v7_offset };
        Header {
            sequence: self.u32(bytes, 4),
            time: self.u64(bytes, 8),
            sector: self.u64(bytes, 16),
            bytes: self.u32(bytes, 24),
            action: match v8 {
                true => self.u64(bytes, 32),
                false => u64::from(self.u32(bytes, 28)),
            },
            pid: self.u32(bytes, at(32, 28)),
            device: self.u32(bytes, at(36, 40)),
            cpu: self.u32(bytes, at(40, 44)),
            error: self.u16(bytes, at(44, 48)),
            payload_bytes: self.u16(bytes, at(46, 50)),
        }
    }

    /// Encodes a header.
    pub fn encode(self, header: &Header) -> Vec<u8> {
        let mut bytes = vec![0; self.header_bytes()];
        let mut put = |at: usize, value: u64, length: usize| {
            let place = &mut bytes[at..at + length];
            place.copy_from_slice(&value.to_le_bytes()[..length]);
            if self.big_endian {
                place.reverse();
            }
        };
        let v8 = self.version != 7;
        put(0, u64::from(MAGIC | u32::from(self.version)), 4);
        put(4, u64::from(header.sequence), 4);
        put(8, header.time, 8);
        put(16, header.sector, 8);
        put(24, u64::from(header.bytes), 4);
        match v8 {
            true => put(32, header.action, 8),
            false => put(28, header.action, 4),
        }
        put(if v8 { 28 } else { 32 }, u64::from(header.pid), 4);
        put(if v8 { 40 } else { 36 }, u64::from(header.device), 4);
        put(if v8 { 44 } else { 40 }, u64::from(header.cpu), 4);
        put(if v8 { 48 } else { 44 }, u64::from(header.error), 2);
        put(if v8 { 50 } else { 46 }, u64::from(header.payload_bytes), 2);
        bytes
    }

    /// The number at offset `at`, in the byte order of the trace.
    pub fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let word = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        match self.big_endian {
            true => u32::from_be_bytes(word),
            false => u32::from_le_bytes(word),
        }
    }

    fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let word = [bytes[at], bytes[at + 1]];
        match self.big_endian {
            true => u16::from_be_bytes(word),
            false => u16::from_le_bytes(word),
        }
    }

    fn u64(self, bytes: &[u8], at: usize) -> u64 {
        let (first, second) = (
            u64::from(self.u32(bytes, at)),
            u64::from(self.u32(bytes, at + 4)),
        );
        match self.big_endian {
            true => first << 32 | second,
            false => second << 32 | first,
        }
    }
}

/// The name of a device: `259,0`.
pub fn device_name(device: u32) -> String {
    format!("{},{}", device >> 20, device & 0xf_ffff)
}

/// The device with a name as `259,0`.
pub fn device_of(name: &str) -> Option<u32> {
    let (major, minor) = name.split_once(',')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    (major < 1 << 12 && minor < 1 << 20).then_some(major << 20 | minor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            words in any::<(u32, u64, u64, u32, u64, u32, u32, u32)>(),
            (error, payload_bytes) in any::<(u16, u16)>(),
            big_endian in any::<bool>(),
            version in 7..=8u8,
        ) {
            let (sequence, time, sector, bytes, action, pid, device, cpu) = words;
            let action = if version == 7 { action & 0xffff_ffff } else { action };
            let header = Header {
                sequence, time, sector, bytes, action, pid, device, cpu, error, payload_bytes,
            };
            let layout = Layout { big_endian, version };
            let encoded = layout.encode(&header);
            prop_assert_eq!(Layout::of([encoded[0], encoded[1], encoded[2], encoded[3]]), Some(layout));
            prop_assert_eq!(layout.decode(&encoded), header);
        }
    }

    #[test]
    fn devices_are_called_by_their_numbers() {
        assert_eq!(device_name(0x1030_0000), "259,0");
        assert_eq!(device_of("259,0"), Some(0x1030_0000));
        assert_eq!(device_of("8,1048576"), None);
        assert_eq!(device_of("/dev/sda"), None);
    }
}
