//! The NBD front end, against the clients of others (QEMU's tools, libnbd's, fio) and against one
//! that violates the protocol. Missing tools are reported.

mod client;
mod hostile;
mod idle;
mod odd;
mod replies;
mod server;
mod tools;
