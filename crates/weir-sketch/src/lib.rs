//! Mergeable summaries of values: what an aggregate keeps of the rows it has seen.
//!
//! Every summary here takes a value in with a weight and out again with the opposite weight, in any
//! order; two summaries merge into the one that all their values would have made; and each goes to
//! bytes and back, so that a host can send it.
//!
//! | summary | keeps | answers | error |
//! | --- | --- | --- | --- |
//! | [`OrderedCounts`] | each distinct value, with its count | least, greatest, n-th | none |
//! | [`ExactSum`] | the sum as one wide integer | sum, and with [`Moments`] the variance | one rounding |
//! | [`LogLinear`] | counts in buckets of equal relative width | quantiles | a bucket's width, 1/128 by default |
//! | [`LogBins`] | counts in buckets of equal relative width, as a kernel program keeps them | quantiles | half a bucket, 1/32 |
//! | [`Limits`] | how values fall under upper limits | histograms as `vscsiStats` prints them | none |
//! | [`Grid`] | how often pairs of values fall together | histograms of two dimensions | none |
//!
//! Others follow a stream of keys, of which none goes out again:
//!
//! | summary | keeps | answers | error |
//! | --- | --- | --- | --- |
//! | [`Frequent`] | counts of the most frequent values | which prevail | the total over the places; none with few distinct values |
//! | [`Distinct`] | how rare the rarest hashes were | how many different keys | 2.3 % standard deviation, [`Distinct::ERROR`] |
//! | [`ReuseSampler`] | the keys, or a sample of them, by last touch | the stack distance of each reference | none until it samples |
//! | [`ReuseHistogram`] | stack distances | the miss ratio of an LRU cache of any size | told with each ratio |
//!
//! Weights add up modulo 2^64: a summary holds fewer than 2^63 values.

mod axis;
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
pub use codec::{Bytes, Malformed};
pub use distinct::Distinct;
pub use exact::ExactSum;
pub use frequent::{Count, Frequent};
pub use grid::{Grid, OtherAxes};
pub use limits::{Limits, PowerOfTwo};
pub use log_bins::LogBins;
pub use log_linear::{Bucket, Bucketed, LogLinear, SUB_BUCKET_BITS};
pub use moments::Moments;
pub use ordered::OrderedCounts;
pub use reuse::{MissRatio, ReuseHistogram, ReuseSampler, Sampled, Touch};
