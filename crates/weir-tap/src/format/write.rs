//! [`TraceWriter`]: writes a stream of a tap as a file in some format.

use weir_model::capabilities::recording;
use weir_model::{Batch, Declaration};

use crate::{EventCount, TapError};

/// Metadata of a file, for formats that can store it.
#[derive(Clone, Debug)]
pub struct Header {
    /// The stream or relation that is written; only recordings can contain others than that of
    /// [`recording`].
    pub stream: Declaration,
    /// What was recorded, as text: the host and its devices, or the file it was converted from.
    pub source: String,
    /// The name of the observed host, if it is known.
    pub host: Option<String>,
    /// The release of its kernel.
    pub kernel: Option<String>,
    /// True if the source had no responses; see [`crate::Tap::responses_assumed`].
    pub responses_assumed: bool,
    /// True if the whole source is written, and it paired requests with their responses; see
    /// [`weir_model::StreamCapabilities::paired`].
    pub paired: bool,
}

impl Default for Header {
    fn default() -> Header {
        Header {
            stream: recording(),
            source: String::new(),
            host: None,
            kernel: None,
            responses_assumed: false,
            paired: false,
        }
    }
}

/// Writes a trace.
pub trait TraceWriter: Send {
    /// Writes rows of the header's stream, with all of its columns, in timestamp order. A batch
    /// without rows lets the writer check the clock: call it about once a second while there are no
    /// rows.
    ///
    /// # Errors
    /// If the file cannot be written.
    fn write(&mut self, batch: &Batch) -> Result<(), TapError>;

    /// Stores the source's counts, to write them if the format supports it.
    fn count(&mut self, counts: Vec<EventCount>);

    /// Writes the remaining rows and closes the file. Returns what the format cannot represent, one
    /// line each.
    ///
    /// # Errors
    /// If the file cannot be written.
    fn finish(self: Box<Self>) -> Result<Vec<String>, TapError>;
}
