//! Engines: they execute an I/O queue's requests on the image.
//!
//! [`work`] splits a request into calls; an engine makes the calls, concurrently ([`uring`]) or one
//! after the other ([`sync`]).

mod bounce;
mod choice;
mod sync;
mod uring;
mod work;

pub use choice::{CacheOption, EngineChoice, EngineKind, EngineOption};
pub(crate) use choice::{ChoiceError, EngineInputs, choose};
pub(crate) use sync::SyncEngine;
pub(crate) use uring::{UringEngine, try_uring};
pub(crate) use work::Work;
