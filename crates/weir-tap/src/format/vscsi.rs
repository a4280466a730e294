//! `.vscsi`: the binary command trace of VMware's vscsiStats, versions 1 and 2, as published by
//! CloudPhysics.
//!
//! Little-endian records without a file header (layouts as in the readers of libCacheSim; field
//! names and the microseconds as in vscsiStats' own text form,
//! `#Serial Number,IO Data Length,Num SG Entries,Command Type,LBN,Time Stamp (microseconds)`):
//!
//! | version | bytes | fields |
//! | --- | --- | --- |
//! | 1 | 32 | u32 serial, u32 length, u32 scatter-gather entries, u16 SCSI opcode, u16 version << 8, u64 lbn, u64 time |
//! | 2 | 40 | u16 SCSI opcode, u16 version << 8, u32 serial, u32 length, u32 scatter-gather entries, u64 lbn, u64 time, u64 response time |
//!
//! Lengths are in bytes, the lbn in sectors of 512 bytes, times in microseconds. The serial wraps
//! and is not in order, so requests are renumbered. Version 1 has no completions. The file does not
//! contain the name of the disk: the file name is used.

use weir_model::{Level, Symbol};

use super::Faults;
use super::record::{Reader, TraceRecord, TraceRequest, What, micros, name};
use super::scsi;
use super::source::Input;
use super::vscsi_csv::extent;
use crate::TapError;

/// Records per read.
const RECORDS_PER_READ: usize = 1024;

/// Number of first records that must be plausible for the format to be detected.
const RECORDS_SNIFFED: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Version {
    V1,
    V2,
}

/// The fields of a record that are used.
struct Command {
    opcode: u16,
    version: u16,
    length: u32,
    lbn: u64,
    time_us: u64,
    response_us: Option<u64>,
}

impl Version {
    const ALL: [Version; 2] = [Version::V2, Version::V1];

    fn number(self) -> u16 {
        match self {
            Version::V1 => 1,
            Version::V2 => 2,
        }
    }

    fn record_bytes(self) -> usize {
        match self {
            Version::V1 => 32,
            Version::V2 => 40,
        }
    }

    /// The fields of a record.
    fn command(self, record: &[u8]) -> Command {
        let u16_at = |at| u16::from_le_bytes(bytes_at(record, at));
        let u32_at = |at| u32::from_le_bytes(bytes_at(record, at));
        let u64_at = |at| u64::from_le_bytes(bytes_at(record, at));
        match self {
            Version::V1 => Command {
                length: u32_at(4),
                opcode: u16_at(12),
                version: u16_at(14),
                lbn: u64_at(16),
                time_us: u64_at(24),
                response_us: None,
            },
            Version::V2 => Command {
                opcode: u16_at(0),
                version: u16_at(2),
                length: u32_at(8),
                lbn: u64_at(16),
                time_us: u64_at(24),
                response_us: Some(u64_at(32)),
            },
        }
    }

    /// The number of plausible records among the first, and the number examined.
    fn fits(self, head: &[u8]) -> (usize, usize) {
        let records = head.chunks_exact(self.record_bytes()).take(RECORDS_SNIFFED);
        let right = records.clone().filter(|r| {
            let command = self.command(r);
            command.version >> 8 == self.number() && command.opcode <= 0xff
        });
        (right.count(), records.count())
    }

    fn of(head: &[u8]) -> Option<Version> {
        Version::ALL.into_iter().find(|v| {
            let (right, seen) = v.fits(head);
            right * 2 > seen
        })
    }
}

/// The bytes of a field.
fn bytes_at<const N: usize>(record: &[u8], at: usize) -> [u8; N] {
    let field = record[at..at + N].try_into();
    field.expect("the range has the field's length")
}

/// Whether `head` is the beginning of a `.vscsi` file.
pub fn sniff(head: &[u8]) -> Option<bool> {
    Some(Version::of(head).is_some())
}

/// Reads a trace.
///
/// # Errors
/// If the file cannot be read.
pub fn open(mut input: Input) -> Result<Box<dyn Reader>, TapError> {
    let version = Version::of(input.peek(super::SNIFF_BYTES)?);
    Ok(Box::new(Vscsi {
        disk: name(input.stem()).ok(),
        input,
        // A file without a plausible record is read as version 1, and every record is reported.
        version: version.unwrap_or(Version::V1),
    }))
}

struct Vscsi {
    input: Input,
    version: Version,
    disk: Option<Symbol>,
}

impl Reader for Vscsi {
    fn read(&mut self, out: &mut Vec<TraceRecord>, faults: &mut Faults) -> Result<bool, TapError> {
        let bytes = self.version.record_bytes();
        let mut remaining = RECORDS_PER_READ;
        while remaining > 0 {
            let first = self.input.offset();
            let seen = self.input.peek(bytes)?.len();
            if seen < bytes {
                if seen > 0 {
                    faults.bad(
                        first,
                        format!("{seen} bytes of a record of {bytes}: cut off"),
                    )?;
                }
                self.input.consume(seen);
                return Ok(false);
            }
            let records = self.input.buffered().chunks_exact(bytes).take(remaining);
            let read = records.len();
            for (at, record) in records.enumerate() {
                match self.record(&self.version.command(record)) {
                    Ok(Some(record)) => out.push(record),
                    Ok(None) => faults.count("skipped", "not_block_io", 1),
                    Err(reason) => faults.bad(first + (at * bytes) as u64, reason)?,
                }
            }
            self.input.consume(read * bytes);
            remaining -= read;
        }
        Ok(true)
    }

    fn progress(&self) -> f64 {
        self.input.progress()
    }

    fn knows_responses(&self) -> bool {
        self.version == Version::V2
    }
}

impl Vscsi {
    fn record(&self, command: &Command) -> Result<Option<TraceRecord>, String> {
        if command.version >> 8 != self.version.number() {
            return Err(format!(
                "version {:#06x} in a record of version {}",
                command.version,
                self.version.number()
            ));
        }
        let opcode = u8::try_from(command.opcode)
            .map_err(|_| format!("{:#06x} is not a SCSI opcode", command.opcode))?;
        let Some(op) = scsi::op(opcode) else {
            return Ok(None);
        };
        let extent = extent(command.lbn, u64::from(command.length))?;
        let mut request = TraceRequest::new(op, extent, Level::Vdisk);
        request.disk = self.disk;
        let ts = micros(command.time_us)?;
        request.latency_ns = command.response_us.map(micros).transpose()?;
        if ts.checked_add(request.latency_ns.unwrap_or(0)).is_none() {
            return Err("the response time is out of range".into());
        }
        Ok(Some(TraceRecord {
            ts,
            what: What::Request(request),
        }))
    }
}
