//! [`Gauge`]: who counts, and can be asked at any time how far it has come.

use super::counted::Counted;
use weir_runtime::failure::Failure;

/// Counts by itself until it is dropped.
pub trait Gauge {
    /// What was counted since the beginning, or since the last reset.
    ///
    /// # Errors
    /// When whoever counts cannot be read.
    fn snapshot(&mut self) -> Result<Counted, Failure>;

    /// Begins anew.
    ///
    /// # Errors
    /// As [`Gauge::snapshot`].
    fn reset(&mut self) -> Result<(), Failure>;
}
