//! MSR Cambridge traces: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`.
//!
//! Timestamps are Windows file times, in 100 ns since 1601; offset and size are in bytes, the
//! response time in 100 ns (Narayanan et al., Write Off-Loading, FAST 2008; the README of the
//! traces at iotta.snia.org). The host becomes the VM, its disk number the disk.

use weir_model::{Level, Nanos, Op};

use super::lines::{Asked, LineFormat, When, comma_fields, excerpt, no_header, whole};
use super::record::Extent;

/// Difference between the epochs of Windows and Unix, in units of 100 ns: 11,644,473,600 s.
const EPOCH_TICKS: i64 = 116_444_736_000_000_000;

/// One tick of a Windows file time.
const TICK_NS: i64 = 100;

/// Format of a line.
pub const LINES: LineFormat = LineFormat {
    is_header: no_header,
    parse,
    knows_responses: true,
    level: Level::Vdisk,
};

fn parse(line: &str) -> Result<Asked<'_>, String> {
    let [time, host, disk, kind, offset, size, response] = comma_fields(line)?;
    let op = match kind {
        k if k.eq_ignore_ascii_case("read") => Op::Read,
        k if k.eq_ignore_ascii_case("write") => Op::Write,
        k => {
            return Err(format!(
                "the type `{}` is neither Read nor Write",
                excerpt(k)
            ));
        }
    };
    whole("disk number", disk)?;
    Ok(Asked {
        when: When::At(unix_nanos(whole("time", time)?)?),
        op,
        extent: Extent::of_bytes(whole("offset", offset)?, whole("size", size)?)?,
        vm: Some(host),
        disk: Some(disk),
        latency_ns: Some(super::record::nanos(
            whole("response time", response)?,
            TICK_NS,
        )?),
    })
}

fn unix_nanos(ticks: u64) -> Result<Nanos, String> {
    let since_unix = i64::try_from(ticks)
        .ok()
        .and_then(|t| t.checked_sub(EPOCH_TICKS));
    since_unix
        .and_then(|t| t.checked_mul(TICK_NS))
        .ok_or_else(|| format!("the time {ticks} is out of range"))
}
