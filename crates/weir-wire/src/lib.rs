//! The wire: agent ↔ monitor ↔ whoever asks, on Arrow Flight over gRPC.
//!
//! An agent dials the monitor and keeps one exchange (`DoExchange`) open: what it says goes up
//! ([`AgentMessage`]), what it is to do comes down ([`MonitorMessage`]). What may not be lost is numbered;
//! the monitor takes each number once and says when it needs it no more ([`MonitorMessage::Ack`]), so
//! that a connection that broke neither loses nor doubles a row. [`Uplink`] is the agent's side of
//! that, [`Server`] the monitor's; docs/wire.md has the whole.
//!
//! Clients submit, list, watch and cancel queries with Flight's own calls, so that any Flight client
//! can ([`Request`]).
//!
//! The crate knows nothing of taps, queries or sinks: a fragment of a query is bytes to it.

pub mod access;
pub mod address;
pub mod client;
pub mod clock;
pub mod dial;
pub mod error;
pub mod event;
pub mod exchange;
pub mod frame;
pub mod intake;
pub mod message;
pub mod outbox;
pub mod peer;
pub mod protocol;
pub mod server;
mod tls;
pub mod uplink;

pub use access::read_token;
pub use address::{Address, DEFAULT_PORT, socket_to_dial, socket_to_serve};
pub use client::{Client, SubmittedQuery, Watch, WatchEvent};
pub use dial::Dial;
pub use error::{Malformed, WireError};
pub use event::{
    Joined, OfScript, Principal, Refusal, Reply, ReplySender, Request, ResultUpdate, Role,
    ServerEvent, SessionId, Submit,
};
pub use intake::{Incoming, Intake};
pub use peer::Peer;
pub use protocol::{
    AgentMessage, ChannelCost, ChannelId, ChannelTally, Hello, MonitorMessage, Note, Status,
    Welcome,
};
pub use server::{Counter, EventQueue, Limits, Listen, NextEvent, Server, ServerOptions};
pub use tls::ServerTls;
pub use uplink::{Uplink, UplinkEvent, UplinkOptions, UplinkState};
