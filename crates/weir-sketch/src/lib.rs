//! Mergeable summaries of values: the state of an aggregate over the rows it has seen.
//!
//! A value is added with a weight and removed with the opposite weight, in any order. Merging two
//! summaries gives the summary of all their values. The states of aggregates can be encoded
//! to bytes and decoded, so that a host can send them.
//!
//! - [`OrderedCounts`]: each distinct value with its count; least, greatest and n-th value, exact.
//! - [`ExactSum`]: the sum as one wide integer, rounded once; with [`Moments`] the variance.
//! - [`LogLinear`]: counts in buckets of equal relative width; quantiles within a bucket's width,
//!   1/128 by default.
//! - [`LogBins`]: the same as a kernel program can maintain it; quantiles within half a bucket,
//!   1/32.
//! - [`BucketLimits`]: counts by upper limit; histograms in the format of `vscsiStats`, exact.
//! - [`Grid`]: counts of pairs of values; two-dimensional histograms, exact.
//!
//! Others summarise a stream of keys; keys cannot be removed from them:
//!
//! - [`Frequent`]: the most frequent values; an error of at most the total over the entries, none
//!   with few distinct values.
//! - [`Distinct`]: the number of distinct keys; 2.3 % standard deviation, [`Distinct::ERROR`].
//! - [`ReuseSampler`]: the stack distance of each reference; exact until it samples.
//! - [`ReuseHistogram`]: the miss ratio of an LRU cache of any size, with an error bound.
//!
//! Weights add up modulo 2^64: a summary holds fewer than 2^63 values.

mod axis;
mod co_moments;
pub mod codec;
mod distinct;
mod exact;
mod frequent;
mod grid;
mod hash;
mod limits;
mod log_bins;
mod log_linear;
mod moments;
mod ordered;
mod reuse;

pub use axis::{AXIS_CELLS_MAX, Axis, Growing};
pub use co_moments::CoMoments;
pub use codec::{Bytes, SketchDecodeError};
pub use distinct::Distinct;
pub use exact::{ExactNumber, ExactSum};
pub use frequent::{Frequency, Frequent};
pub use grid::Grid;
pub use limits::{BucketLimits, PowerOfTwo};
pub use log_bins::LogBins;
pub use log_linear::{Bucket, Bucketed, LogLinear, SUB_BUCKET_BITS};
pub use moments::Moments;
pub use ordered::OrderedCounts;
pub use reuse::{MissRatio, ReuseHistogram, ReuseSampler, Sampled, Touch};
