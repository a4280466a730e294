//! The inspection process: a small separate process that keeps the rights to inspect other users'
//! processes and to query their QEMUs, so that the process that handles rows, files and the network
//! can drop them.
//!
//! 1. [`Inspection::start`] runs the program again, as a subcommand that calls [`run`], before the
//!    main process drops its privileges. Standard input is one end of a control socket.
//! 2. Each conversation has its own socket, which is passed over the control socket
//!    ([`message::ConversationKind`]): the inventory, the polls of QEMU's counters, the disks of a
//!    traced VM, and the names of functions.
//! 3. The main process sends one of few requests ([`message`]) and waits for the answer: JSON with
//!    a length prefix ([`crate::control::frame`]). Both sides bound and validate what they read; a
//!    process that receives an unexpected message ends with an error.
//! 4. The kernel closes the control socket when the main process ends, for any reason. Then the
//!    inspection process removes the histograms that it enabled in QEMUs, and ends.
//!
//! The main process never receives a descriptor of a QMP socket or of another process's memory.

pub mod message;
mod process;
mod serve;

pub use process::{Closer, Conversation, Inspection, lost};
pub use serve::run;
