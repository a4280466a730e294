//! Engines: who carries a lane's requests out on the image.
//!
//! What a request takes is [`work`]'s to know; an engine makes the calls, all of them at once
//! ([`uring`]) or one after the other ([`sync`]).

mod bounce;
mod choice;
mod sync;
mod uring;
mod work;

pub use choice::{CacheOption, Choice, EngineKind, EngineOption};
pub(crate) use choice::{Facts, Refusal, choose};
pub(crate) use sync::SyncEngine;
pub(crate) use uring::{UringEngine, try_uring};
pub(crate) use work::Work;
