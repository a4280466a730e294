//! Tencent block storage traces: `Timestamp,Offset,Size,IOType,VolumeID`.
//!
//! The timestamp is in seconds since the Unix epoch, offset and size are in sectors of 512 bytes,
//! the type is 0 for a read and 1 for a write (Zhang et al., OSCA, USENIX ATC 2020; the README of
//! the traces at iotta.snia.org). There are no completions.

use weir_model::{Level, NANOS_PER_SECOND, Op};

use super::lines::{Asked, LineFormat, When, comma_fields, excerpt, whole};
use super::record::{Extent, nanos};

/// Format of a line.
pub const LINES: LineFormat = LineFormat {
    is_header: |line| line.starts_with(b"Timestamp"),
    parse,
    knows_responses: false,
    level: Level::Vdisk,
};

fn parse(line: &str) -> Result<Asked<'_>, String> {
    let [time, offset, size, kind, volume] = comma_fields(line)?;
    let op = match kind {
        "0" => Op::Read,
        "1" => Op::Write,
        _ => return Err(format!("the type `{}` is neither 0 nor 1", excerpt(kind))),
    };
    whole("volume", volume)?;
    Ok(Asked {
        when: When::At(nanos(whole("time", time)?, NANOS_PER_SECOND)?),
        op,
        extent: Extent::of_sectors(whole("offset", offset)?, whole("size", size)?)?,
        vm: None,
        disk: Some(volume),
        latency_ns: None,
    })
}
