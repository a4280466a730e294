//! The NBD front end, against clients that we did not write (QEMU's tools, libnbd's, fio) and against one
//! that does what no client should. Tools that are not there are said aloud.

mod client;
mod ground;
mod hostile;
mod odd;
mod replies;
mod tools;
