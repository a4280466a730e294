//! The control protocol: requests and responses between processes of weir on one host, over Unix
//! sockets. `docs/control.md` describes it.
//!
//! A message is a [`frame`]: a length, and JSON of at most the size that its [`Service`] allows.
//! Its envelope ([`message`]) names the service and its version; a peer of another version receives
//! an error that states both. [`LocalServer`] serves any number of clients in one thread without
//! blocking on any of them, [`ControlClient`] limits the time of each wait, and both reject peers
//! of other users ([`Peers`]). File descriptors are passed beside a message ([`channel::Channel`]).

pub mod channel;
pub mod client;
pub mod frame;
pub mod message;
pub mod peer;
pub mod server;
#[cfg(test)]
mod tests;

pub use client::{ControlClient, ControlError};
pub use message::{ErrorCode, Service, ServiceError};
pub use peer::{ControlPeer, Peers};
pub use server::{ControlLimits, Implementation, LocalServer, Reply, Responder};
