//! [`Gauge`]: a counter of requests that can be read at any time.

use super::counted::CountedHistograms;
use weir_runtime::failure::Failure;

/// Counts continuously until it is dropped.
pub trait Gauge {
    /// The counts since the start, or since the last reset.
    ///
    /// # Errors
    /// When the counts cannot be read.
    fn snapshot(&mut self) -> Result<CountedHistograms, Failure>;

    /// Resets the counts.
    ///
    /// # Errors
    /// As [`Gauge::snapshot`].
    fn reset(&mut self) -> Result<(), Failure>;
}
