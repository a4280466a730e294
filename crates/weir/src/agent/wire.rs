//! [`Wire`]: the way from an agent to its monitor, as the agent's loop sees it.

use weir_model::Nanos;
use weir_wire::{AgentWord, ChannelId, MonitorWord};

/// What came down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The monitor has welcomed us, for the first time or again.
    Welcome {
        /// The channels that are to run; others are over.
        channels: Vec<ChannelId>,
        /// How often it wants to hear how far we have come.
        heartbeat: Nanos,
    },
    /// It says something.
    Word(MonitorWord),
    /// The connection is gone; why, in words. Another is made without our doing.
    Gone(String),
}

/// How far the agent's clock is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset {
    /// What to add to the agent's time to get the monitor's.
    pub offset_ns: i64,
    /// Half the width of the interval in which the true offset lies.
    pub error_ns: i64,
}

/// What waits to be taken by the monitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Bytes of words, in memory and on disk.
    pub bytes: u64,
    /// Those of them on disk.
    pub spooled_bytes: u64,
    /// Words that the monitor does not have yet.
    pub words: u64,
}

/// The way to the monitor: an uplink, or whatever a test puts in its place.
pub trait Wire {
    /// Says a word; never waits for anybody.
    fn say(&mut self, word: AgentWord);

    /// The next thing that came down, if any.
    fn hear(&mut self) -> Option<Heard>;

    /// How far the agent's clock is off; `None` until that has been measured.
    fn offset(&self) -> Option<Offset>;

    /// An instant of the agent's clock as the monitor's.
    fn to_monitor(&self, at: Nanos) -> Nanos;

    /// What waits.
    fn waiting(&self) -> Waiting;

    /// Rows that were dropped on the way since the last time, by channel. The monitor is told by
    /// whoever drops them.
    fn dropped(&mut self) -> Vec<(ChannelId, u64)>;
}
