//! The collector: a background process that counts until it is stopped, or its time has passed.
//!
//! 1. `weir hist -s` connects to a socket that only the same user may open ([`folder`]); if there
//!    is none it starts a collector ([`client`]), which detaches from the terminal ([`server`]).
//! 2. The collector holds the kernel's programs, one set for each selection that was started
//!    ([`collections`]). Requests and responses are those of [`messages`].
//! 3. Stopped counts are stored in a file beside the socket, so that they can still be printed.
//!    With the last selection the collector exits, so nothing of it remains in the kernel; if it is
//!    killed, the kernel removes its programs.

pub mod client;
pub mod collections;
pub mod folder;
pub mod messages;
pub mod server;
#[cfg(test)]
mod tests;
