//! [`Writer`]: writes what a tap says of the stream `recording` as a file in some format.

use weir_model::Batch;

use crate::{Count, TapError};

/// What a file says of itself, in formats that have room for it.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// What was recorded, in words: the host and its devices, or the file it was converted from.
    pub source: String,
    /// True when the source knew no responses; see [`crate::Tap::responses_assumed`].
    pub responses_assumed: bool,
    /// True when all of a source is written, and it paired requests with their responses; see
    /// [`weir_model::StreamCapabilities::paired`].
    pub paired: bool,
}

/// Writes a trace.
pub trait Writer: Send {
    /// Writes rows of the stream `recording`, in the schema of `IO`. They come in time order. A
    /// batch without rows lets the writer look at the clock: call it about once a second while
    /// nothing happens.
    ///
    /// # Errors
    /// When the file cannot be written.
    fn write(&mut self, batch: &Batch) -> Result<(), TapError>;

    /// Keeps the source's counts, to write them down where the format has room.
    fn count(&mut self, counts: Vec<Count>);

    /// Writes what is left and closes the file. Gives what the format had no room for, a line each.
    ///
    /// # Errors
    /// When the file cannot be written.
    fn finish(self: Box<Self>) -> Result<Vec<String>, TapError>;
}
