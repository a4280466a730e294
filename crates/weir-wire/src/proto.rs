//! The messages of the protocol between agents and monitor.
//!
//! Generated from `weir.proto` by `cargo xtask proto`; change that file instead.

/// A message of an agent.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct FromAgent {
    /// The number of a message that is kept until it is acknowledged, counted from 1 by each
    /// process of an agent; 0 for other messages.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// The content; absent if the receiver does not know the message.
    #[prost(
        oneof = "from_agent::Body",
        tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14"
    )]
    pub body: ::core::option::Option<from_agent::Body>,
}
/// Nested message and enum types in `FromAgent`.
pub mod from_agent {
    /// The content; absent if the receiver does not know the message.
    #[derive(Clone, PartialEq, ::prost::Oneof)]
    pub enum Body {
        /// The first message of a connection.
        #[prost(message, tag = "2")]
        Hello(super::Hello),
        /// The first after the welcome: the number of the next numbered message. If it is larger
        /// than `Welcome.acked` + 1, the messages between are lost.
        #[prost(uint64, tag = "3")]
        Resume(u64),
        /// Texts that rows refer to by number.
        #[prost(message, tag = "4")]
        Texts(super::Texts),
        /// A request for the monitor's time.
        #[prost(message, tag = "5")]
        Ping(super::Ping),
        /// Numbered: rows of a channel in timestamp order, later than the last watermark.
        #[prost(message, tag = "6")]
        Rows(super::RowsHeader),
        /// Numbered: a watermark in nanoseconds. No more rows at or before this instant will be
        /// sent, in any running channel. The largest instant: the agent ends.
        #[prost(sint64, tag = "7")]
        Watermark(i64),
        /// Numbered: a channel runs.
        #[prost(message, tag = "8")]
        Started(super::ChannelStarted),
        /// Numbered: a fragment failed; no more rows of its channel follow.
        #[prost(message, tag = "9")]
        Failed(super::ChannelFailed),
        /// Numbered: requests that no row will include.
        #[prost(message, tag = "10")]
        Lost(super::RequestsLost),
        /// Numbered: a row of stream `weir`.
        #[prost(message, tag = "11")]
        Note(super::Note),
        /// The state of the agent; only the newest is relevant.
        #[prost(message, tag = "12")]
        Status(super::Status),
        /// Since 4.1, after every welcome: the capabilities of the agent's sources, as MessagePack
        /// of weir_model::Capabilities.
        #[prost(bytes, tag = "13")]
        Capabilities(::prost::alloc::vec::Vec<u8>),
        /// Numbered, since 4.2, before a watermark for which it differs: the hosts of a site.
        #[prost(message, tag = "14")]
        Hosts(super::SiteHosts),
    }
}
/// A message of the monitor.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct FromMonitor {
    /// The content; absent if the receiver does not know the message.
    #[prost(oneof = "from_monitor::Body", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub body: ::core::option::Option<from_monitor::Body>,
}
/// Nested message and enum types in `FromMonitor`.
pub mod from_monitor {
    /// The content; absent if the receiver does not know the message.
    #[derive(Clone, PartialEq, ::prost::Oneof)]
    pub enum Body {
        /// The reply to the agent's hello.
        #[prost(message, tag = "1")]
        Welcome(super::Welcome),
        /// Run a fragment; no effect if its channel runs already.
        #[prost(message, tag = "2")]
        Start(super::StartChannel),
        /// Stop this channel; rows that it has produced are still sent.
        #[prost(uint64, tag = "3")]
        Stop(u64),
        /// All messages up to this number are durable at the monitor; the agent may discard them.
        #[prost(uint64, tag = "4")]
        Ack(u64),
        /// A new interval between watermarks, in nanoseconds.
        #[prost(int64, tag = "5")]
        HeartbeatInterval(i64),
        /// The reply to a ping.
        #[prost(message, tag = "6")]
        Pong(super::Pong),
        /// Since 4.2, after every welcome and at every change: all actions of alerts that should
        /// last on the agent's host. Those that are not among them end.
        #[prost(message, tag = "7")]
        Actions(super::AlertActions),
    }
}
/// The first message of an agent on a connection.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Hello {
    /// The major version of the protocol.
    #[prost(uint32, tag = "1")]
    pub version_major: u32,
    /// The name of its host, unique in the fleet: the value of column `host`.
    #[prost(string, tag = "2")]
    pub host: ::prost::alloc::string::String,
    /// A random number of the agent's process. Message numbers start again with each process.
    #[prost(fixed64, tag = "3")]
    pub instance: u64,
    /// The output of `weir --version` there.
    #[prost(string, tag = "4")]
    pub program: ::prost::alloc::string::String,
    /// The last tallies on disk of earlier processes of this agent whose losses are not
    /// accounted for.
    #[prost(message, repeated, tag = "5")]
    pub earlier: ::prost::alloc::vec::Vec<EarlierProcess>,
    /// The capacity for messages that were sent and are not acknowledged; when it is full, the
    /// agent sends nothing. 0 if unknown.
    #[prost(uint64, tag = "6")]
    pub held_bytes_max: u64,
    /// The minor version of the protocol.
    #[prost(uint32, tag = "7")]
    pub version_minor: u32,
    /// Since 4.2: the monitor that welcomed the agent last, `Welcome.monitor`; 0 if none has.
    #[prost(fixed64, tag = "8")]
    pub monitor: u64,
    /// Since 4.2: the highest term in which that monitor welcomed the agent.
    #[prost(uint64, tag = "9")]
    pub term: u64,
    /// Since 4.2: the agent is the monitor of a site, and sends `SiteHosts`.
    #[prost(bool, tag = "10")]
    pub is_site: bool,
}
/// The tallies of an earlier process of an agent.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct EarlierProcess {
    /// The process's random number.
    #[prost(fixed64, tag = "1")]
    pub instance: u64,
    /// Its tallies.
    #[prost(message, repeated, tag = "2")]
    pub tallies: ::prost::alloc::vec::Vec<ChannelTally>,
}
/// The requests of a channel at an agent since the channel was started there. A row stands for
/// one request, a group for the requests it was aggregated from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ChannelTally {
    /// The channel.
    #[prost(uint64, tag = "1")]
    pub channel: u64,
    /// Requests that the fragment has received and that its rows include or will include when
    /// their interval ends, and requests that the tap lost.
    #[prost(uint64, tag = "2")]
    pub produced: u64,
    /// The part of them that is lost, for any reason.
    #[prost(uint64, tag = "3")]
    pub lost: u64,
}
/// The monitor's reply to `Hello`.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Welcome {
    /// The major version of the protocol.
    #[prost(uint32, tag = "1")]
    pub version_major: u32,
    /// A random number that a monitor keeps across restarts. Messages retained for another
    /// monitor are discarded.
    #[prost(fixed64, tag = "2")]
    pub monitor: u64,
    /// The number of the last message of this process that the monitor has received; 0 if none.
    #[prost(uint64, tag = "3")]
    pub acked: u64,
    /// The channels that should run. Others are stopped; those that do not run yet are started
    /// by `StartChannel`.
    #[prost(uint64, repeated, tag = "4")]
    pub channels: ::prost::alloc::vec::Vec<u64>,
    /// How often the agent sends its watermark.
    #[prost(int64, tag = "5")]
    pub heartbeat_interval_ns: i64,
    /// The minor version of the protocol.
    #[prost(uint32, tag = "6")]
    pub version_minor: u32,
    /// Since 4.2: the term of the process that leads, of all monitors with this number. Each
    /// process that takes over has a higher one; an agent rejects a lower one. 0 without terms.
    #[prost(uint64, tag = "7")]
    pub term: u64,
}
/// Texts that rows refer to by number, the first of them under number `first`.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Texts {
    /// The number of the first; all smaller ones were sent before, on this connection.
    #[prost(uint32, tag = "1")]
    pub first: u32,
    /// The texts.
    #[prost(string, repeated, tag = "2")]
    pub texts: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
}
/// RFC 5905's transmit timestamp of a client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Ping {
    /// When the agent sent it, by its own clock.
    #[prost(int64, tag = "1")]
    pub origin_ns: i64,
}
/// The reply to a ping: RFC 5905's origin, receive and transmit timestamps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Pong {
    /// When the agent sent the ping, by the agent's clock.
    #[prost(int64, tag = "1")]
    pub origin_ns: i64,
    /// When the monitor received it.
    #[prost(int64, tag = "2")]
    pub receive_ns: i64,
    /// When the monitor sent the reply.
    #[prost(int64, tag = "3")]
    pub transmit_ns: i64,
}
/// Rows without the buffers of their columns.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct RowsHeader {
    /// The channel.
    #[prost(uint64, tag = "1")]
    pub channel: u64,
    /// The number of rows.
    #[prost(uint32, tag = "2")]
    pub rows: u32,
    /// The encoding of the timestamps.
    #[prost(message, optional, tag = "3")]
    pub ts: ::core::option::Option<ColumnEncoding>,
    /// The encoding of the weights, if the rows are changes of a relation.
    #[prost(message, optional, tag = "4")]
    pub weights: ::core::option::Option<ColumnEncoding>,
    /// The encoding of each column.
    #[prost(message, repeated, tag = "5")]
    pub columns: ::prost::alloc::vec::Vec<ColumnEncoding>,
    /// The number of requests that the rows represent if they are groups; otherwise 0.
    #[prost(uint64, tag = "6")]
    pub requests: u64,
}
/// The encoding of a column: the kind of its values and, for integers and numbers of texts,
/// `value = base + (written << shift)` in 64 bits, where `written` takes `width_bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ColumnEncoding {
    /// The kind of the values.
    #[prost(enumeration = "ColumnKind", tag = "1")]
    pub kind: i32,
    /// The size of a written integer: 0 (all are `base`, nothing is written), 1, 2, 4 or 8.
    #[prost(uint32, tag = "2")]
    pub width_bytes: u32,
    /// The number of trailing zero bits that are omitted.
    #[prost(uint32, tag = "3")]
    pub shift: u32,
    /// The smallest value.
    #[prost(sint64, tag = "4")]
    pub base: i64,
}
/// A channel runs: rows after `at_ns` follow, earlier ones were not observed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ChannelStarted {
    /// The channel.
    #[prost(uint64, tag = "1")]
    pub channel: u64,
    /// The instant.
    #[prost(sint64, tag = "2")]
    pub at_ns: i64,
}
/// A fragment failed.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ChannelFailed {
    /// The channel.
    #[prost(uint64, tag = "1")]
    pub channel: u64,
    /// The reason, for the user.
    #[prost(string, tag = "2")]
    pub why: ::prost::alloc::string::String,
}
/// Requests that were observed, or are known to have happened, and that no row will include.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RequestsLost {
    /// The channel.
    #[prost(uint64, tag = "1")]
    pub channel: u64,
    /// The number of requests.
    #[prost(uint64, tag = "2")]
    pub requests: u64,
    /// The cause: `spool_full`, `text_budget`, `ring_full`, ...
    #[prost(string, tag = "3")]
    pub cause: ::prost::alloc::string::String,
}
/// A row of stream `weir`: a measurement or an error.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Note {
    /// The time.
    #[prost(int64, tag = "1")]
    pub at_ns: i64,
    /// The component: `tap`, `engine`, `agent`, `uplink`, a query.
    #[prost(string, tag = "2")]
    pub place: ::prost::alloc::string::String,
    /// The counter: `events_in`, `events_lost`, `shedding`, `probe_failed`, ...
    #[prost(string, tag = "3")]
    pub counter: ::prost::alloc::string::String,
    /// The cause.
    #[prost(string, optional, tag = "4")]
    pub cause: ::core::option::Option<::prost::alloc::string::String>,
    /// The device.
    #[prost(string, optional, tag = "5")]
    pub device: ::core::option::Option<::prost::alloc::string::String>,
    /// The increment since the previous note of its kind.
    #[prost(sint64, tag = "6")]
    pub value: i64,
    /// The total since the start of the agent.
    #[prost(sint64, tag = "7")]
    pub total: i64,
}
/// The state of an agent: a row of relation `hosts`, and the input of placement.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Status {
    /// How far its clock is behind the monitor's (negative: ahead).
    #[prost(sint64, tag = "1")]
    pub offset_ns: i64,
    /// Half the width of the interval that contains the true offset.
    #[prost(sint64, tag = "2")]
    pub offset_error_ns: i64,
    /// Processor time of the process since its start.
    #[prost(int64, tag = "3")]
    pub cpu_ns: i64,
    /// Memory of the process.
    #[prost(int64, tag = "4")]
    pub memory_bytes: i64,
    /// Messages that are not acknowledged, in memory and on disk.
    #[prost(int64, tag = "5")]
    pub waiting_bytes: i64,
    /// The part of them that is on disk.
    #[prost(int64, tag = "6")]
    pub spooled_bytes: i64,
    /// Requests that the host's devices complete per second, by the kernel's own counters.
    #[prost(double, tag = "7")]
    pub requests_per_second: f64,
    /// The share of events that is not shed; 1 without shedding.
    #[prost(double, tag = "8")]
    pub kept_share: f64,
    /// The cost of each running fragment so far.
    #[prost(message, repeated, tag = "9")]
    pub channels: ::prost::alloc::vec::Vec<ChannelCost>,
    /// The tally of each channel.
    #[prost(message, repeated, tag = "10")]
    pub tallies: ::prost::alloc::vec::Vec<ChannelTally>,
}
/// The hosts behind a monitor that is the agent of another one: those of a site.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct SiteHosts {
    /// All of them that have not ended.
    #[prost(uint32, tag = "1")]
    pub hosts: u32,
    /// The part of them that is connected and does not delay the others.
    #[prost(uint32, tag = "2")]
    pub responded: u32,
    /// The hosts in the results of each running fragment.
    #[prost(message, repeated, tag = "3")]
    pub channels: ::prost::alloc::vec::Vec<ChannelHosts>,
}
/// The hosts of a site in the results of a fragment, up to the next watermark and later ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ChannelHosts {
    /// The channel.
    #[prost(uint64, tag = "1")]
    pub channel: u64,
    /// Hosts that were excluded, or that do not run it yet.
    #[prost(uint32, tag = "2")]
    pub missing: u32,
    /// The hosts at which it failed.
    #[prost(uint32, tag = "3")]
    pub failed: u32,
    /// The instant from which all other hosts deliver all rows.
    #[prost(sint64, tag = "4")]
    pub complete_from_ns: i64,
    /// Requests that were reported, but not delivered, by hosts that are away now.
    #[prost(uint64, tag = "5")]
    pub requests_away: u64,
}
/// The cost of a fragment at an agent since it was started.
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ChannelCost {
    /// The channel.
    #[prost(uint64, tag = "1")]
    pub channel: u64,
    /// Input rows (for groups, the requests that they represent).
    #[prost(uint64, tag = "2")]
    pub rows_in: u64,
    /// Output rows.
    #[prost(uint64, tag = "3")]
    pub rows_out: u64,
    /// Bytes on the wire.
    #[prost(uint64, tag = "4")]
    pub bytes_out: u64,
}
/// Run a fragment of a query.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct StartChannel {
    /// The channel of its rows: the same number on all agents, never reused.
    #[prost(uint64, tag = "1")]
    pub channel: u64,
    /// The fragment, as MessagePack: weir_query::plan::wire.
    #[prost(bytes = "vec", tag = "2")]
    pub fragment: ::prost::alloc::vec::Vec<u8>,
}
/// Actions of alerts that should last on a host.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct AlertActions {
    /// The actions.
    #[prost(message, repeated, tag = "1")]
    pub actions: ::prost::alloc::vec::Vec<AlertAction>,
}
/// What an alert does while an instance of it fires.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct AlertAction {
    /// The instance: `noisy{host="a", vm="mail"}`.
    #[prost(string, tag = "1")]
    pub instance: ::prost::alloc::string::String,
    /// When it fired; another firing is another action.
    #[prost(sint64, tag = "2")]
    pub fired_at_ns: i64,
    /// The VM.
    #[prost(string, tag = "3")]
    pub vm: ::prost::alloc::string::String,
    /// Its disk; absent for its only one.
    #[prost(string, optional, tag = "4")]
    pub disk: ::core::option::Option<::prost::alloc::string::String>,
    /// The limit of requests per second.
    #[prost(uint64, optional, tag = "5")]
    pub iops: ::core::option::Option<u64>,
    /// The limit of bytes per second.
    #[prost(uint64, optional, tag = "6")]
    pub bytes_per_second: ::core::option::Option<u64>,
    /// The weight of its group.
    #[prost(uint64, optional, tag = "7")]
    pub weight: ::core::option::Option<u64>,
    /// How long it lasts at most.
    #[prost(int64, tag = "8")]
    pub hold_ns: i64,
    /// How long after its end it is not repeated for the instance.
    #[prost(int64, tag = "9")]
    pub cooldown_ns: i64,
    /// Whether its witness showed an improvement; absent while that is not known.
    #[prost(bool, optional, tag = "10")]
    pub has_helped: ::core::option::Option<bool>,
    /// What the witness showed.
    #[prost(string, tag = "11")]
    pub effect: ::prost::alloc::string::String,
}
/// The kind of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum ColumnKind {
    /// All values are NULL; nothing is written.
    Nulls = 0,
    /// Booleans, Arrow's `Bool`.
    Bool = 1,
    /// Integers and timestamps, see `ColumnEncoding`.
    Int = 2,
    /// Floats, Arrow's `Float64`.
    Float = 3,
    /// Numbers of texts, written like integers.
    Text = 4,
    /// Tallies, Arrow's `Binary`.
    Tally = 5,
    /// Bytes, Arrow's `Binary`.
    Bytes = 6,
    /// Equal to the timestamps of the rows; nothing is written.
    Times = 7,
}
impl ColumnKind {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Nulls => "NULLS",
            Self::Bool => "BOOL",
            Self::Int => "INT",
            Self::Float => "FLOAT",
            Self::Text => "TEXT",
            Self::Tally => "TALLY",
            Self::Bytes => "BYTES",
            Self::Times => "TIMES",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "NULLS" => Some(Self::Nulls),
            "BOOL" => Some(Self::Bool),
            "INT" => Some(Self::Int),
            "FLOAT" => Some(Self::Float),
            "TEXT" => Some(Self::Text),
            "TALLY" => Some(Self::Tally),
            "BYTES" => Some(Self::Bytes),
            "TIMES" => Some(Self::Times),
            _ => None,
        }
    }
}
