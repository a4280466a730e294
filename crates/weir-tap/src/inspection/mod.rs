//! The inspection process: a small process of its own that keeps the rights to look at other users'
//! processes and to ask their QEMUs, so that the process that handles rows, files and the network
//! can give them up.
//!
//! 1. [`Inspection::start`] starts the program again, as a subcommand that calls [`run`], before the
//!    main process drops its privileges. Standard input is one end of a control socket.
//! 2. Each conversation has a socket of its own, which the control socket carries ([`message::Kind`]):
//!    the inventory, the polls of QEMU's counters, the disks of a traced VM.
//! 3. The main process sends one of few requests ([`message`]) and waits for the answer: JSON behind
//!    a length ([`frame`]). Both sides bound what they read and check it; a process that receives
//!    what it does not expect ends with an error.
//! 4. The kernel closes the control socket when the main process ends, however that came. Then the
//!    inspection process removes what it switched on in QEMUs, and ends.
//!
//! The main process never receives a descriptor of a QMP socket or of another process's memory.

mod frame;
pub mod message;
mod process;
mod serve;

pub use process::{Closer, Conversation, Inspection, lost};
pub use serve::run;
