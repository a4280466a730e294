//! The collector: a process in the background that counts until it is told to stop, or its time is over.
//!
//! 1. `weir hist -s` asks over a socket that only the same user may open ([`place`]); where nobody
//!    answers it starts a collector ([`client`]), which leaves the terminal behind ([`server`]).
//! 2. The collector holds the kernel's programs, one set for each selection that was started
//!    ([`collections`]). It answers in lines of JSON ([`protocol`]).
//! 3. What is stopped is kept in a file beside the socket, so that it can still be printed. With the last
//!    selection the collector ends, and so nothing of it stays in the kernel; should it be killed, the
//!    kernel takes its programs out by itself.

pub mod client;
pub mod collections;
pub mod place;
pub mod protocol;
pub mod server;
#[cfg(test)]
mod tests;
