//! The wire: agent ↔ monitor ↔ whoever asks, on Arrow Flight over gRPC.
//!
//! An agent dials the monitor and keeps one exchange (`DoExchange`) open: what it says goes up
//! ([`AgentWord`]), what it is to do comes down ([`MonitorWord`]). What may not be lost is numbered;
//! the monitor takes each number once and says when it needs it no more ([`MonitorWord::Taken`]), so
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
pub mod server;
mod tls;
pub mod uplink;
pub mod word;

pub use access::read_token;
pub use address::{Address, DEFAULT_PORT, socket_to_dial, socket_to_serve};
pub use client::{Client, Placed, Seen, Watch};
pub use dial::Dial;
pub use error::{Malformed, WireError};
pub use event::{
    Answer, Event, Joined, OfScript, Principal, Refusal, Reply, Request, Role, SessionId, Shown,
    Submit,
};
pub use intake::{Heard, Intake};
pub use peer::Peer;
pub use server::{Counter, Events, Limits, Listen, Next, Server, ServerOptions};
pub use tls::ServerTls;
pub use uplink::{Order, Uplink, UplinkOptions, UplinkState};
pub use word::{
    AgentWord, ChannelCost, ChannelId, Hello, MonitorWord, Note, Status, Tally, Welcome,
};
