//! The messages between an agent and the monitor.
//!
//! All timestamps are in the monitor's time: an agent measures the offset of its clock and converts
//! timestamps where rows leave its taps, before its engine processes them.

use weir_model::{Batch, Nanos};

/// Identifies the output of one fragment of a query, the same on all agents. The monitor assigns
/// the numbers and never reuses one, not even after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub u64);

/// The first message of an agent on a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// The name of its host, unique in the fleet: the value of column `host`.
    pub host: String,
    /// A random number of the agent's process. Message numbers start again with each process.
    pub instance: u64,
    /// The output of `weir --version` there.
    pub version: String,
    /// The last tallies on disk of earlier processes of this agent whose losses are not accounted
    /// for.
    pub earlier: Vec<(u64, Vec<ChannelTally>)>,
    /// The capacity, in bytes, for messages that were sent and are not acknowledged; when it is
    /// full, the agent sends nothing. 0 if unknown.
    pub held_bytes_max: u64,
}

/// The requests of a channel at an agent since the channel was started there. A row stands for one
/// request, a group for the requests it was aggregated from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelTally {
    /// The channel.
    pub channel: ChannelId,
    /// Requests that the fragment has received and that its rows include or will include when their
    /// interval ends, and requests that the tap lost.
    pub produced: u64,
    /// The part of them that is lost, for any reason.
    pub lost: u64,
}

/// The monitor's reply to [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// A random number that a monitor keeps across restarts. Messages retained for another monitor
    /// are discarded.
    pub monitor: u64,
    /// The number of the last message of this instance that the monitor has received; 0 if none.
    pub acked: u64,
    /// The channels that should run. Others are stopped; those that do not run yet are started by
    /// [`MonitorMessage::Start`].
    pub channels: Vec<ChannelId>,
    /// How often the agent sends its watermark.
    pub heartbeat_interval: Nanos,
}

/// A message of an agent. All but [`AgentMessage::Status`] are numbered from 1 in the order in
/// which they are sent, and retained by the agent until acknowledged.
#[derive(Clone, Debug)]
pub enum AgentMessage {
    /// Rows (or deltas) of a channel in timestamp order, all later than the last
    /// [`AgentMessage::Watermark`].
    Rows {
        /// The channel.
        channel: ChannelId,
        /// The rows.
        batch: Batch,
    },
    /// No more rows at or before this instant will come, in any running channel. The largest
    /// instant means that the agent ends.
    Watermark(Nanos),
    /// The channel runs: rows after `at` follow, earlier ones were not observed.
    Started {
        /// The channel.
        channel: ChannelId,
        /// The start.
        at: Nanos,
    },
    /// The channel's fragment failed; no more rows follow.
    Failed {
        /// The channel.
        channel: ChannelId,
        /// The reason, for the user.
        why: String,
    },
    /// Requests that were observed, or are known to have happened, and that no row will include.
    Lost {
        /// The channel.
        channel: ChannelId,
        /// The number of requests.
        requests: u64,
        /// The cause: `spool_full`, `text_budget`, `ring_full`, ...
        cause: String,
    },
    /// A row of stream `weir`.
    Note(Note),
    /// The state of the agent. Only the newest is relevant; it is neither numbered nor retained.
    Status(Status),
}

/// A row of stream `weir` from an agent: a measurement or an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The time, by the monitor's clock.
    pub at: Nanos,
    /// The component: `tap`, `engine`, `agent`, `uplink`, a query.
    pub place: String,
    /// The counter: `events_in`, `events_lost`, `shedding`, `probe_failed`, ...
    pub counter: String,
    /// The cause.
    pub cause: Option<String>,
    /// The device.
    pub device: Option<String>,
    /// The increment since the previous note of its kind.
    pub value: i64,
    /// The total since the start of the agent.
    pub total: i64,
}

/// The state of an agent: a row of relation `hosts`, and the input of placement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// How far its clock is behind the monitor's (negative: ahead).
    pub offset_ns: i64,
    /// Half the width of the interval that contains the true offset.
    pub offset_error_ns: i64,
    /// Processor time of the process since its start.
    pub cpu_ns: i64,
    /// Memory of the process.
    pub memory_bytes: i64,
    /// Bytes of messages that are not acknowledged, in memory and on disk.
    pub waiting_bytes: i64,
    /// The part of them that is on disk.
    pub spooled_bytes: i64,
    /// Requests that the host's devices complete per second, by the kernel's own counters.
    pub requests_per_second: f64,
    /// The share of events that is not shed; 1 without shedding.
    pub kept_share: f64,
    /// The cost of each running fragment so far.
    pub channels: Vec<ChannelCost>,
    /// The tally of each channel.
    pub tallies: Vec<ChannelTally>,
}

/// The cost of a fragment at an agent since it was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelCost {
    /// The channel.
    pub channel: ChannelId,
    /// Input rows (for groups, the requests that they represent).
    pub rows_in: u64,
    /// Output rows.
    pub rows_out: u64,
    /// Bytes on the wire.
    pub bytes_out: u64,
}

/// A message of the monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MonitorMessage {
    /// Run this fragment; no effect if the channel runs already.
    Start {
        /// The channel of its rows.
        channel: ChannelId,
        /// The fragment, as `weir_query::plan::codec` encodes it.
        fragment: Vec<u8>,
    },
    /// Stop the channel; rows that it has produced are still sent.
    Stop {
        /// The channel.
        channel: ChannelId,
    },
    /// All messages up to this number are durable at the monitor; the agent may discard them.
    Ack {
        /// The number.
        number: u64,
    },
    /// A new interval between watermarks.
    HeartbeatInterval(Nanos),
}
