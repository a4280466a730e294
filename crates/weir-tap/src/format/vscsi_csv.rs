//! vscsiStats traces as CSV, in two forms: CloudPhysics' `version,time,op,size,lbn` and Cydonia's
//! `time,lbn,op,size`.
//!
//! libCacheSim distributes the first with the binary form: times truncated to seconds, the op a
//! SCSI opcode in hex. The second has microseconds, and `r` or `w`. Sizes are in bytes, the lbn in
//! sectors of 512 bytes. There are no completions.

use weir_model::{Level, NANOS_PER_MICRO, NANOS_PER_SECOND, Op};

use super::lines::{Asked, LineFormat, When, comma_fields, excerpt, no_header, whole};
use super::record::{Extent, SECTORS_MAX, nanos};
use super::scsi;

/// Format of a line of `version,time,op,size,lbn`.
pub const CLOUDPHYSICS: LineFormat = LineFormat {
    is_header: |line| line.starts_with(b"version,"),
    parse: cloudphysics,
    knows_responses: false,
    level: Level::Vdisk,
};

/// Format of a line of `time,lbn,op,size`.
pub const CYDONIA: LineFormat = LineFormat {
    is_header: no_header,
    parse: cydonia,
    knows_responses: false,
    level: Level::Vdisk,
};

fn cloudphysics(line: &str) -> Result<Asked<'_>, String> {
    let [version, time, opcode, size, lbn] = comma_fields(line)?;
    if version != "1" && version != "2" {
        return Err(format!(
            "the version `{}` is neither 1 nor 2",
            excerpt(version)
        ));
    }
    let opcode = u8::from_str_radix(opcode, 16);
    let op = opcode
        .ok()
        .and_then(scsi::op)
        .ok_or("the op is not a SCSI opcode of block I/O")?;
    asked(time, NANOS_PER_SECOND, op, lbn, size)
}

fn cydonia(line: &str) -> Result<Asked<'_>, String> {
    let [time, lbn, op, size] = comma_fields(line)?;
    let op = match op {
        "r" => Op::Read,
        "w" => Op::Write,
        _ => return Err(format!("the op `{}` is neither r nor w", excerpt(op))),
    };
    asked(time, NANOS_PER_MICRO, op, lbn, size)
}

fn asked<'a>(time: &str, unit_ns: i64, op: Op, lbn: &str, size: &str) -> Result<Asked<'a>, String> {
    Ok(Asked {
        when: When::At(nanos(whole("time", time)?, unit_ns)?),
        op,
        extent: extent(whole("lbn", lbn)?, whole("size", size)?)?,
        vm: None,
        disk: None,
        latency_ns: None,
    })
}

/// `bytes` bytes from sector `lbn` on.
///
/// # Errors
/// If it exceeds [`SECTORS_MAX`].
pub fn extent(lbn: u64, bytes: u64) -> Result<Extent, String> {
    match lbn <= SECTORS_MAX as u64 {
        true => Extent::of_sectors(lbn, bytes.div_ceil(512)),
        false => Err(format!("sector {lbn} lies beyond any disk")),
    }
}
