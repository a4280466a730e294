//! DiskSim traces: the ASCII request trace, and the validation traces of real drives.
//!
//! - ASCII: `arrival device block blocks flags`. The arrival is in milliseconds, blocks are of 512
//!   bytes, bit 0 of the flags (hex) means read (DiskSim's reference manual, on its default ASCII
//!   trace format). No completions.
//! - Validation: `R|W class block blocks service think`. Captured on the SCSI bus, one request at a
//!   time: service and think time are in microseconds, and the next request is issued after both.
//!   The class (`Hit`, `Miss`, ..) is specific to the author; it is not used.

use weir_model::{Level, NANOS_PER_MICRO, Op};

use super::lines::{
    Asked, LineFormat, When, decimal_nanos, excerpt, no_header, space_fields, whole,
};
use super::record::Extent;

/// One millisecond.
const MILLI_NS: i64 = 1_000_000;

/// Format of a line of the ASCII form.
pub const ASCII: LineFormat = LineFormat {
    is_header: no_header,
    parse: ascii,
    knows_responses: false,
    level: Level::Block,
};

/// Format of a line of the validation form.
pub const VALIDATION: LineFormat = LineFormat {
    is_header: no_header,
    parse: validation,
    knows_responses: true,
    level: Level::Block,
};

fn ascii(line: &str) -> Result<Asked<'_>, String> {
    let [arrival, device, block, blocks, flags] = space_fields(line)?;
    if !arrival.contains('.') {
        return Err(format!(
            "the arrival `{}` has no decimal point",
            excerpt(arrival)
        ));
    }
    let bits = u32::from_str_radix(flags, 16)
        .map_err(|_| format!("the flags `{}` are not a hex number", excerpt(flags)))?;
    whole("device", device)?;
    Ok(Asked {
        when: When::At(decimal_nanos("arrival", arrival, MILLI_NS)?),
        op: if bits & 1 == 1 { Op::Read } else { Op::Write },
        extent: Extent::of_sectors(whole("block", block)?, whole("number of blocks", blocks)?)?,
        vm: None,
        disk: Some(device),
        latency_ns: None,
    })
}

fn validation(line: &str) -> Result<Asked<'_>, String> {
    let [kind, _class, block, blocks, service, think] = space_fields(line)?;
    let op = match kind {
        "R" => Op::Read,
        "W" => Op::Write,
        _ => {
            return Err(format!(
                "the operation `{}` is neither R nor W",
                excerpt(kind)
            ));
        }
    };
    let think_ns = decimal_nanos("think time", think, NANOS_PER_MICRO)?;
    Ok(Asked {
        when: When::Closed { think_ns },
        op,
        extent: Extent::of_sectors(whole("block", block)?, whole("number of blocks", blocks)?)?,
        vm: None,
        disk: None,
        latency_ns: Some(decimal_nanos("service time", service, NANOS_PER_MICRO)?),
    })
}
