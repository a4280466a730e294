//! Alibaba block traces: `device_id,opcode,offset,length,timestamp`.
//!
//! The opcode is `R` or `W`, offset and length are in bytes, the timestamp in microseconds since
//! the Unix epoch (github.com/alibaba/block-traces, README; Li et al., IISWC 2020). There are no
//! completions.

use weir_model::{Level, Op};

use super::lines::{Asked, LineFormat, When, comma_fields, excerpt, whole};
use super::record::{Extent, micros};

/// Format of a line.
pub const LINES: LineFormat = LineFormat {
    is_header: |line| line.starts_with(b"device_id"),
    parse,
    knows_responses: false,
    level: Level::Vdisk,
};

fn parse(line: &str) -> Result<Asked<'_>, String> {
    let [device, opcode, offset, length, time] = comma_fields(line)?;
    let op = match opcode {
        "R" => Op::Read,
        "W" => Op::Write,
        _ => {
            return Err(format!(
                "the opcode `{}` is neither R nor W",
                excerpt(opcode)
            ));
        }
    };
    Ok(Asked {
        when: When::At(micros(whole("time", time)?)?),
        op,
        extent: Extent::of_bytes(whole("offset", offset)?, whole("length", length)?)?,
        vm: None,
        disk: Some(device),
        latency_ns: None,
    })
}
