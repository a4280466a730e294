//! The protocol between agents, the monitor and clients: Arrow Flight over gRPC.
//!
//! An agent connects to the monitor and keeps one exchange (`DoExchange`) open. It sends
//! [`AgentMessage`]s and receives [`MonitorMessage`]s. Messages that must not be lost are numbered;
//! the monitor accepts each number once and acknowledges it ([`MonitorMessage::Ack`]), so a broken
//! connection neither loses nor duplicates a row. [`Uplink`] is the agent's side, [`Server`] the
//! monitor's. `proto/weir.proto` declares the messages, of which [`proto`] is generated;
//! docs/wire.md describes the whole protocol.
//!
//! Clients submit, list, watch and cancel queries with Flight's standard calls, so any Flight
//! client can do so ([`ClientRequest`]).
//!
//! The crate does not depend on taps, queries or sinks: a fragment of a query is opaque bytes.

pub mod access;
pub mod address;
pub mod certificates;
pub mod client;
pub mod clock;
pub mod dial;
pub mod error;
pub mod event;
pub mod exchange;
mod fleet_clock;
pub mod frame;
pub mod intake;
pub mod message;
pub mod outbox;
pub mod peer;
pub mod proto;
pub mod random;
pub mod server;
mod tls;
pub mod uplink;

pub use access::{read_secret, read_token};
pub use address::{Address, DEFAULT_PORT, socket_to_dial, socket_to_serve};
pub use client::{Client, SubmittedQuery, Watch, WatchEvent};
pub use dial::{Dial, causes};
pub use error::{Malformed, WireError};
pub use event::{
    ClientReply, ClientRequest, Joined, OfScript, Principal, Refusal, ReplySender, ResultUpdate,
    Role, ServerEvent, SessionId, SilenceRequest, Submit,
};
pub use fleet_clock::FleetClock;
pub use intake::{Incoming, Intake};
pub use message::{
    AgentMessage, AlertAction, AlertActions, ChannelCost, ChannelHosts, ChannelId, ChannelTally,
    EarlierProcess, Hello, MonitorMessage, Note, SELF_TEST, SiteHosts, StartChannel, Status,
    Welcome,
};
pub use peer::Peer;
pub use server::{EventQueue, Limits, Listen, NextEvent, Server, ServerCount, ServerOptions};
pub use tls::{ServerTls, client_tls};
pub use uplink::{LeaderTerm, Uplink, UplinkEvent, UplinkOptions, UplinkState};
