//! Words as protocol buffers: what travels as `app_metadata` of Flight's `FlightData`.
//!
//! There is no `.proto` file: the messages are declared here, and docs/wire.md lists them. Whatever
//! is read is held against the bounds below before anything else looks at it; what is written obeys
//! them too, so that an agent learns of a note that is too long where the note is made.

mod down;
mod up;

use std::ops::RangeInclusive;

use prost::Message;
use weir_model::{NANOS_PER_SECOND, Nanos};

use crate::error::Malformed;

/// What carries a message and the rows that go with it.
pub use arrow_flight::FlightData;
pub use down::{Down, DownBody, Pong, WelcomeBody};
pub use up::{
    AGENT_PATH, Form, LostBody, NoteBody, Ping, RowsHead, TextsBody, Up, UpBody, encode_body,
};

/// The version of everything on the link. A peer of another version is refused with a word that
/// says so. Fields may be added without a new version where a reader that does not know them is
/// right all the same.
pub const PROTOCOL_VERSION: u32 = 3;

/// Most bytes of one word: its message, and the rows that go with it.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
/// Most bytes of a message from an agent, without rows: those of the largest status.
pub const UP_BYTES_MAX: usize = 512 << 10;
/// Most bytes of a message from the monitor.
pub const DOWN_BYTES_MAX: usize = FRAGMENT_BYTES_MAX + (64 << 10);
/// Most bytes of a fragment of a query.
pub const FRAGMENT_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a name: of a host, a place, a counter, a device, a cause.
pub const NAME_BYTES_MAX: usize = 4096;
/// Most bytes of a host's name (`HOST_NAME_MAX` of limits.h is 64; names with domains are at most 253,
/// RFC 1035, section 2.3.4).
pub const HOST_BYTES_MAX: usize = 255;
/// Most bytes of a reason in words.
pub const REASON_BYTES_MAX: usize = 16 << 10;
/// Most channels that run at an agent at once.
pub const CHANNELS_MAX: usize = 4096;
/// Most channels that have ended of which an agent still tells what became of their rows.
pub const ENDED_MAX: usize = 1024;
/// Most tallies of one process of an agent: of channels that run, and that have ended.
pub const TALLIES_MAX: usize = CHANNELS_MAX + ENDED_MAX;
/// Most earlier processes that an agent accounts for.
pub const EARLIER_MAX: usize = 64;
/// How often an agent says how far it has come where its fragments show nothing: 500 ms.
pub const IDLE_WATERMARK_NS: Nanos = 500_000_000;
/// The heartbeats that a monitor may ask for: not so fast that agents do nothing else, not so slow
/// that nobody is thought alive.
pub const HEARTBEAT_INTERVAL_NS: RangeInclusive<Nanos> = 5_000_000..=10 * NANOS_PER_SECOND;

/// Reads a message of at most `bytes_max` bytes; `what` names it in errors.
fn read<M: Message + Default>(bytes: &[u8], bytes_max: usize, what: &str) -> Result<M, Malformed> {
    if bytes.len() > bytes_max {
        let what = format!("{what}: bytes of its message");
        return Err(Malformed::too_many(&what, bytes.len(), bytes_max));
    }
    M::decode(bytes).map_err(|e| Malformed(format!("{what}: {e}")))
}

fn at_most(what: &str, count: usize, most: usize) -> Result<(), Malformed> {
    match count > most {
        true => Err(Malformed::too_many(what, count, most)),
        false => Ok(()),
    }
}

/// A time in this protocol lies between 1970 and 2116, so that there is room to add to it.
pub(crate) fn instant(what: &str, ns: i64) -> Result<i64, Malformed> {
    match (0..=i64::MAX / 2).contains(&ns) {
        true => Ok(ns),
        false => Err(Malformed(format!("{what}: {ns} ns is no time"))),
    }
}
