//! Reuse distance: how many other keys are touched between two touches of the same one, and the miss-ratio
//! curve that follows from it.
//!
//! [`ReuseSampler`] finds the distances, exactly or of a sample in fixed memory; [`ReuseHistogram`] collects
//! them and tells the miss ratio of an LRU cache of any size.

mod histogram;
mod marks;
mod sampler;
mod stack;

pub use histogram::{MissRatio, ReuseHistogram};
pub use sampler::{ReuseSampler, Sampled, Touch};
