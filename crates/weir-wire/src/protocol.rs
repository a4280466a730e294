//! What agent and monitor say to each other.
//!
//! Every time on the wire is the monitor's: an agent measures how far its clock is off and converts
//! where rows leave its taps, before its engine sees them.

use weir_model::{Batch, Nanos};

/// Names what one fragment of a query gives, the same on all agents. The monitor gives the numbers
/// and never uses one twice, not even after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub u64);

/// The first thing an agent says on a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// The name of its host, unique in the fleet: what column `host` body.
    pub host: String,
    /// A random number of the agent's process: numbers of words begin anew with it.
    pub instance: u64,
    /// What `weir --version` says there.
    pub version: String,
    /// What earlier processes of this agent produced and did not survive to account for, as it was
    /// last written down.
    pub earlier: Vec<(u64, Vec<ChannelTally>)>,
    /// Most bytes of words that were sent and are held until the monitor needs them no more; beyond,
    /// the agent sends nothing. 0 if it does not say.
    pub held_bytes_max: u64,
}

/// What became of a channel's requests at an agent, since the channel was started there. A row that
/// is sent stands for one request, a group for those that it was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelTally {
    /// Which channel.
    pub channel: ChannelId,
    /// Requests that the fragment has taken in and that are in rows that it gave, or will be when
    /// their interval is over; and those that the tap lost.
    pub produced: u64,
    /// Those of them of which nothing will come, for whatever reason.
    pub lost: u64,
}

/// The monitor's answer to [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// A random number that a monitor keeps over restarts. What an agent holds back for another
    /// monitor is void.
    pub monitor: u64,
    /// The number of the last word of this instance that the monitor has taken; 0 if none.
    pub acked: u64,
    /// The channels that are to run. Others are stopped; those that do not run yet are started by
    /// [`MonitorMessage::Start`].
    pub channels: Vec<ChannelId>,
    /// How often the agent is to say how far it has come.
    pub heartbeat_interval: Nanos,
}

/// What an agent body. All but [`AgentMessage::Status`] are numbered, from 1, in the order in which
/// they are said, and are kept by the agent until the monitor needs them no more.
#[derive(Clone, Debug)]
pub enum AgentMessage {
    /// Rows (or deltas) of a channel, in time order, none older than [`AgentMessage::Watermark`] said
    /// before.
    Rows {
        /// Which channel.
        channel: ChannelId,
        /// The rows.
        batch: Batch,
    },
    /// No more rows at or before this instant will come, in any channel that runs. The largest
    /// instant says that the agent ends.
    Watermark(Nanos),
    /// The channel runs: rows after `at` come, those before were not seen.
    Started {
        /// Which channel.
        channel: ChannelId,
        /// From when on.
        at: Nanos,
    },
    /// The channel's fragment failed; nothing more comes of it.
    Failed {
        /// Which channel.
        channel: ChannelId,
        /// Why, in words for whoever asked.
        why: String,
    },
    /// Requests that were seen, or are known to have happened, and of which nothing will come.
    Lost {
        /// Of which channel.
        channel: ChannelId,
        /// How many.
        requests: u64,
        /// Why: `spool_full`, `text_budget`, `ring_full`, ...
        cause: String,
    },
    /// A row of stream `weir`.
    Note(Note),
    /// How the agent is. Of these only the newest counts; they are neither numbered nor kept.
    Status(Status),
}

/// A control or error tuple: a row of stream `weir` from an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// When, in the monitor's time.
    pub at: Nanos,
    /// Who counts or says it: `tap`, `engine`, `agent`, `uplink`, a query.
    pub place: String,
    /// What: `events_in`, `events_lost`, `shedding`, `probe_failed`, ...
    pub counter: String,
    /// Why.
    pub cause: Option<String>,
    /// The device concerned.
    pub device: Option<String>,
    /// How much since the last of its kind.
    pub value: i64,
    /// How much since the agent's start.
    pub total: i64,
}

/// How an agent is: a row of relation `hosts`, and what placement decides by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// How far its clock is behind the monitor's (negative: ahead).
    pub offset_ns: i64,
    /// Half the width of the interval in which the true offset lies.
    pub offset_error_ns: i64,
    /// Processor time of the process since its start.
    pub cpu_ns: i64,
    /// Memory of the process.
    pub memory_bytes: i64,
    /// Bytes of words that wait to be taken, in memory and on disk.
    pub waiting_bytes: i64,
    /// Those of them that are on disk.
    pub spooled_bytes: i64,
    /// Requests that the host's devices finish in a second, by the kernel's own count.
    pub requests_per_second: f64,
    /// The share of events that is kept, 1 if nothing is shed.
    pub kept_share: f64,
    /// What each running fragment has cost so far.
    pub channels: Vec<ChannelCost>,
    /// What became of each channel's rows.
    pub tallies: Vec<ChannelTally>,
}

/// What a fragment has cost at an agent since it was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelCost {
    /// Whose.
    pub channel: ChannelId,
    /// Rows (and what groups stand for) that its sources gave.
    pub rows_in: u64,
    /// Rows that it gave.
    pub rows_out: u64,
    /// Bytes on the wire.
    pub bytes_out: u64,
}

/// What the monitor body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MonitorMessage {
    /// Run this fragment; of a channel that runs already nothing changes.
    Start {
        /// What its rows are to be called.
        channel: ChannelId,
        /// The fragment, as `weir_query::plan::codec` encodes it.
        fragment: Vec<u8>,
    },
    /// Stop it; what it gave until now still comes.
    Stop {
        /// Which.
        channel: ChannelId,
    },
    /// All words up to this number are safe with the monitor; the agent may forget them.
    Ack {
        /// The number.
        number: u64,
    },
    /// Say how far you have come this often.
    HeartbeatInterval(Nanos),
}
