//! Parser of the lines that trace events write to QEMU's log.
//!
//! Formats: hw/block/trace-events, hw/scsi/trace-events and hw/virtio/trace-events of QEMU,
//! prefixed with `THREAD@SECONDS.MICROSECONDS:` if QEMU runs with `-msg timestamp=on`.

use serde::{Deserialize, Serialize};
use weir_model::{NANOS_PER_MICRO, NANOS_PER_SECOND, Nanos};

/// A parsed line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Time of QEMU's wall clock, to the microsecond; unknown if QEMU runs without `-msg
    /// timestamp=on`.
    pub ts: Option<Nanos>,
    /// The event.
    pub event: Trace,
}

/// A trace event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    /// QEMU removed a request from a queue of the guest.
    Pop {
        /// The queue's address in QEMU.
        queue: u64,
        /// The request's address.
        request: u64,
        /// Buffers that the device writes: data read and the status.
        ins: u32,
        /// Buffers that the device reads: the header and data written.
        outs: u32,
    },
    /// A read or write of a virtio-blk disk.
    Block {
        /// The disk's address in QEMU.
        disk: u64,
        /// The request's address.
        request: u64,
        /// True for a write.
        write: bool,
        /// First sector.
        sector: i64,
        /// Number of sectors.
        sectors: i64,
    },
    /// A request of a virtio-blk disk is completed.
    BlockDone {
        /// The disk's address.
        disk: u64,
        /// The request's address.
        request: u64,
        /// `VIRTIO_BLK_S_OK` 0, `_IOERR` 1, `_UNSUPP` 2.
        status: i64,
    },
    /// A SCSI command is received.
    Scsi {
        /// Its target and logical unit.
        unit: Unit,
        /// The tag that pairs it with its response.
        tag: u32,
        /// The operation code.
        command: u8,
        /// Bytes to transfer.
        bytes: i64,
    },
    /// The first logical block of a SCSI command.
    ScsiPlace {
        /// Its target and logical unit.
        unit: Unit,
        /// As in [`Trace::Scsi`].
        tag: u32,
        /// The block.
        block: i64,
    },
    /// A SCSI command is completed by a virtio-scsi controller.
    ScsiDone {
        /// The logical unit.
        lun: i64,
        /// As in [`Trace::Scsi`].
        tag: u32,
        /// The controller's response, 0 for success.
        response: i64,
        /// The disk's status, 0 for success.
        status: i64,
    },
}

/// A SCSI disk's address on its controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Unit {
    /// The target.
    pub target: i64,
    /// The logical unit.
    pub lun: i64,
}

/// The trace events of virtio-blk disks.
pub const BLOCK_EVENTS: [&str; 4] = [
    "virtqueue_pop",
    "virtio_blk_handle_read",
    "virtio_blk_handle_write",
    "virtio_blk_req_complete",
];

/// The trace events of disks at a virtio-scsi controller.
pub const SCSI_EVENTS: [&str; 3] = [
    "scsi_req_parsed",
    "scsi_req_parsed_lba",
    "virtio_scsi_cmd_resp",
];

/// Parses `line`; `None` if it is not one of those events.
pub fn parse(line: &str) -> Option<Line> {
    let (ts, rest) = match line.split_once(':') {
        Some((stamp, rest)) if stamp.contains('@') => (Some(stamped(stamp)?), rest),
        _ => (None, line),
    };
    let (name, words) = rest.split_once(' ')?;
    let event = event(name, Words(words))?;
    Some(Line { ts, event })
}

fn event(name: &str, words: Words) -> Option<Trace> {
    let address = |key| words.address(key);
    let number = |key| words.number(key);
    Some(match name {
        "virtqueue_pop" => Trace::Pop {
            queue: address("vq")?,
            request: address("elem")?,
            ins: u32::try_from(number("in_num")?).ok()?,
            outs: u32::try_from(number("out_num")?).ok()?,
        },
        "virtio_blk_handle_read" | "virtio_blk_handle_write" => Trace::Block {
            disk: address("vdev")?,
            request: address("req")?,
            write: name == "virtio_blk_handle_write",
            sector: number("sector")?,
            sectors: number("nsectors")?,
        },
        "virtio_blk_req_complete" => Trace::BlockDone {
            disk: address("vdev")?,
            request: address("req")?,
            status: number("status")?,
        },
        "scsi_req_parsed" => Trace::Scsi {
            unit: words.unit()?,
            tag: words.tag()?,
            command: u8::try_from(number("command")?).ok()?,
            bytes: number("length")?,
        },
        "scsi_req_parsed_lba" => Trace::ScsiPlace {
            unit: words.unit()?,
            tag: words.tag()?,
            block: number("lba")?,
        },
        "virtio_scsi_cmd_resp" => Trace::ScsiDone {
            lun: number("lun")?,
            tag: words.tag()?,
            response: number("response")?,
            status: number("status")?,
        },
        _ => return None,
    })
}

/// Parses `THREAD@SECONDS.MICROSECONDS`, to nanoseconds.
fn stamped(stamp: &str) -> Option<Nanos> {
    let (_, time) = stamp.split_once('@')?;
    let (seconds, micros) = time.split_once('.')?;
    let seconds: i64 = seconds.parse().ok()?;
    let micros: i64 = micros.parse().ok().filter(|m| (0..1_000_000).contains(m))?;
    let whole = seconds.checked_mul(NANOS_PER_SECOND)?;
    whole.checked_add(micros * NANOS_PER_MICRO)
}

/// The fields after an event's name: `key value` or `key=value`.
#[derive(Clone, Copy)]
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn get(self, key: &str) -> Option<&'a str> {
        let mut words = self.0.split_ascii_whitespace();
        while let Some(word) = words.next() {
            if word == key {
                return words.next();
            }
            if let Some(value) = word.strip_prefix(key).and_then(|w| w.strip_prefix('=')) {
                return Some(value);
            }
        }
        None
    }

    fn number(self, key: &str) -> Option<i64> {
        let value = self.get(key)?;
        match value.strip_prefix("0x") {
            Some(hex) => i64::from_str_radix(hex, 16).ok(),
            None => value.parse().ok(),
        }
    }

    fn address(self, key: &str) -> Option<u64> {
        u64::from_str_radix(self.get(key)?.strip_prefix("0x")?, 16).ok()
    }

    fn unit(self) -> Option<Unit> {
        Some(Unit {
            target: self.number("target")?,
            lun: self.number("lun")?,
        })
    }

    /// One event prints it as signed and the other as unsigned: both have 32 bits.
    fn tag(self) -> Option<u32> {
        let value = self.get("tag")?;
        match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok().map(|tag| tag as u32),
            None => value.parse::<i64>().ok().map(|tag| tag as u32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_qemu_7_2_are_understood() {
        let line = "12831@1795242394.682014:virtio_blk_handle_write vdev 0x5591b32ecad0 req 0x5591b256dec0 sector 528 nsectors 8";
        let event = Trace::Block {
            disk: 0x5591_b32e_cad0,
            request: 0x5591_b256_dec0,
            write: true,
            sector: 528,
            sectors: 8,
        };
        let ts = Some(1_795_242_394_682_014_000);
        assert_eq!(parse(line), Some(Line { ts, event }));
        let pop = parse("virtqueue_pop vq 0x7f052a9d9010 elem 0x5591b256dec0 in_num 1 out_num 2");
        let event = Trace::Pop {
            queue: 0x7f05_2a9d_9010,
            request: 0x5591_b256_dec0,
            ins: 1,
            outs: 2,
        };
        assert_eq!(pop, Some(Line { ts: None, event }));
    }

    #[test]
    fn a_scsi_tag_is_the_same_with_and_without_a_sign() {
        let asked = parse(
            "1@2.000003:scsi_req_parsed target 0 lun 0 tag -1027401776 command 42 dir 2 length 4096",
        );
        let done = parse(
            "1@2.000004:virtio_scsi_cmd_resp virtio_scsi_cmd_resp lun=0 tag=0xc2c317d0 response=0 status=0x2",
        );
        let (
            Trace::Scsi { tag, command, .. },
            Trace::ScsiDone {
                tag: same, status, ..
            },
        ) = (asked.unwrap().event, done.unwrap().event)
        else {
            panic!("{asked:?} {done:?}");
        };
        assert_eq!((tag, command, status), (same, 42, 2));
    }

    #[test]
    fn other_lines_are_nothing() {
        let cut = "12831@1795242394.682014:virtio_blk_handle_write vdev 0x5591b32ecad0 req 0x55";
        for line in [
            "",
            "qemu-system-x86_64: terminating on signal 15",
            cut,
            "1@x.1:virtqueue_pop vq 0x1 elem 0x2 in_num 1 out_num 1",
            "1@1.1:virtqueue_pop vq 1 elem 0x2 in_num 1 out_num 1",
            "1@1.1:virtqueue_pop vq 0x1 elem 0x2 in_num -1 out_num 1",
            "1@1.9999999:virtqueue_pop vq 0x1 elem 0x2 in_num 1 out_num 1",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
