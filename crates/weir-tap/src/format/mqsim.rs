//! MQSim traces: `arrival device sector sectors type`.
//!
//! The arrival is in nanoseconds, sectors are of 512 bytes, the type is 0 for a write and 1 for a
//! read (MQSim's README; Tavakkol et al., FAST 2018). There are no completions. The columns are
//! those of DiskSim, whose arrival has a decimal point.

use weir_model::{Level, Op};

use super::lines::{Asked, LineFormat, When, excerpt, no_header, space_fields, whole};
use super::record::{Extent, nanos};

/// Format of a line.
pub const LINES: LineFormat = LineFormat {
    is_header: no_header,
    parse,
    knows_responses: false,
    level: Level::Block,
};

fn parse(line: &str) -> Result<Asked<'_>, String> {
    let [arrival, device, sector, sectors, kind] = space_fields(line)?;
    let op = match kind {
        "0" => Op::Write,
        "1" => Op::Read,
        _ => return Err(format!("the type `{}` is neither 0 nor 1", excerpt(kind))),
    };
    whole("device", device)?;
    Ok(Asked {
        when: When::At(nanos(whole("arrival", arrival)?, 1)?),
        op,
        extent: Extent::of_sectors(whole("sector", sector)?, whole("length", sectors)?)?,
        vm: None,
        disk: Some(device),
        latency_ns: None,
    })
}
