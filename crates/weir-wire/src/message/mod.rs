//! Messages as protocol buffers: the `app_metadata` of Flight's `FlightData`.
//!
//! `proto/weir.proto` declares them; [`crate::proto`] is generated from it. Every message is
//! checked against the bounds below when it is decoded. Only the checked form is a handwritten
//! type: [`AgentMessage`], with decoded rows.

mod from_agent;
mod from_monitor;
mod version;

use std::ops::RangeInclusive;

use prost::Message;
use weir_model::{NANOS_PER_SECOND, Nanos};

use crate::error::Malformed;

pub use crate::proto::from_agent::Body as AgentBody;
pub use crate::proto::from_monitor::Body as MonitorMessage;
pub use crate::proto::{
    AlertAction, AlertActions, ChannelCost, ChannelFailed, ChannelHosts, ChannelStarted,
    ChannelTally, ColumnEncoding, ColumnKind, EarlierProcess, FromAgent, FromMonitor, Hello, Note,
    Ping, Pong, RequestsLost, RowsHeader, SiteHosts, StartChannel, Status, Texts, Welcome,
};
/// Carries a message and its rows.
pub use arrow_flight::FlightData;
pub use from_agent::{AGENT_PATH, AgentMessage, encode_body};
pub use version::{Feature, VERSION, Version};

/// Identifies the output of one fragment of a query, the same on all agents. The monitor assigns
/// the numbers and never reuses one, not even after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub u64);

/// A decoded message.
#[derive(Clone, Debug, PartialEq)]
pub struct Received<M> {
    /// The message.
    pub message: M,
    /// It has parts that this version of the protocol does not know; they are ignored.
    pub has_unknown: bool,
}

/// The counter of the note with the result of an agent's self-test: its total is 0 (ok), 1
/// (degraded) or 2 (missing), its cause what was found.
pub const SELF_TEST: &str = "self_test";

/// The largest message with its rows, in bytes.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
/// The largest message of an agent without rows, in bytes: the largest status.
pub const UP_BYTES_MAX: usize = 512 << 10;
/// The largest message of the monitor, in bytes.
pub const DOWN_BYTES_MAX: usize = FRAGMENT_BYTES_MAX + (64 << 10);
/// The largest encoded capabilities of an agent, in bytes.
pub const CAPABILITIES_BYTES_MAX: usize = 256 << 10;
/// The largest fragment of a query, in bytes.
pub const FRAGMENT_BYTES_MAX: usize = 1 << 20;
/// The longest name of a host, component, counter, device or cause, in bytes.
pub const NAME_BYTES_MAX: usize = 4096;
/// The longest host name, in bytes (`HOST_NAME_MAX` of limits.h is 64; domain names have at most
/// 253, RFC 1035, section 2.3.4).
pub const HOST_BYTES_MAX: usize = 255;
/// The longest reason, in bytes.
pub const REASON_BYTES_MAX: usize = 16 << 10;
/// The largest number of channels that run at an agent at once.
pub const CHANNELS_MAX: usize = 4096;
/// The largest number of ended channels whose tallies an agent still reports.
pub const ENDED_MAX: usize = 1024;
/// The largest number of tallies of one process of an agent: running and ended channels.
pub const TALLIES_MAX: usize = CHANNELS_MAX + ENDED_MAX;
/// The largest number of earlier processes that an agent accounts for.
pub const EARLIER_MAX: usize = 64;
/// The largest number of actions of alerts that last on a host.
pub const ACTIONS_MAX: usize = 64;
/// The interval of an agent's watermarks while they cannot affect a result: 500 ms.
pub const IDLE_WATERMARK_NS: Nanos = 500_000_000;
/// The heartbeat intervals that a monitor may request: long enough that heartbeats do not dominate
/// the work of an agent, short enough that a connected agent does not appear disconnected.
pub const HEARTBEAT_INTERVAL_NS: RangeInclusive<Nanos> = 5_000_000..=10 * NANOS_PER_SECOND;

/// Decodes a message of at most `bytes_max` bytes; `what` names it in errors.
fn read<M: Message + Default>(
    bytes: &[u8],
    bytes_max: usize,
    what: &str,
) -> Result<Received<M>, Malformed> {
    if bytes.len() > bytes_max {
        let what = format!("{what}: bytes of its message");
        return Err(Malformed::too_many(&what, bytes.len(), bytes_max));
    }
    let message = M::decode(bytes).map_err(|e| Malformed(format!("{what}: {e}")))?;
    Ok(Received {
        // What was ignored is missing when the message is encoded again.
        has_unknown: message.encoded_len() < bytes.len(),
        message,
    })
}

fn at_most(what: &str, count: usize, most: usize) -> Result<(), Malformed> {
    match count > most {
        true => Err(Malformed::too_many(what, count, most)),
        false => Ok(()),
    }
}

/// Checks a timestamp. It must be between 1970 and 2116, which leaves room for additions.
pub(crate) fn instant(what: &str, ns: i64) -> Result<i64, Malformed> {
    match (0..=i64::MAX / 2).contains(&ns) {
        true => Ok(ns),
        false => Err(Malformed(format!("{what}: {ns} ns is out of range"))),
    }
}
