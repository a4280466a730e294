//! Reuse distance: the number of other keys touched between two touches of the same key, and the
//! miss-ratio curve derived from it.
//!
//! [`ReuseSampler`] computes the distances, exactly or for a sample in fixed memory;
//! [`ReuseHistogram`] collects them and gives the miss ratio of an LRU cache of any size.

mod histogram;
mod marks;
mod sampler;
mod stack;

pub use histogram::{MissRatio, ReuseHistogram};
pub use sampler::{ReuseSampler, Sampled, Touch};
