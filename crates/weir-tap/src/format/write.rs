//! [`Writer`]: writes the stream `recording` of a tap as a file in some format.

use weir_model::Batch;

use crate::{Count, TapError};

/// Metadata of a file, for formats that can store it.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// What was recorded, as text: the host and its devices, or the file it was converted from.
    pub source: String,
    /// True if the source had no responses; see [`crate::Tap::responses_assumed`].
    pub responses_assumed: bool,
    /// True if the whole source is written, and it paired requests with their responses; see
    /// [`weir_model::StreamCapabilities::paired`].
    pub paired: bool,
}

/// Writes a trace.
pub trait Writer: Send {
    /// Writes rows of the stream `recording`, in the schema of `IO`, in timestamp order. A batch
    /// without rows lets the writer check the clock: call it about once a second while there are no
    /// rows.
    ///
    /// # Errors
    /// If the file cannot be written.
    fn write(&mut self, batch: &Batch) -> Result<(), TapError>;

    /// Stores the source's counts, to write them if the format supports it.
    fn count(&mut self, counts: Vec<Count>);

    /// Writes the remaining rows and closes the file. Returns what the format cannot represent, one
    /// line each.
    ///
    /// # Errors
    /// If the file cannot be written.
    fn finish(self: Box<Self>) -> Result<Vec<String>, TapError>;
}
