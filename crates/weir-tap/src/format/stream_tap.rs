//! [`StreamTap`]: a STREAM source file as a tap. Its instants are the file's ticks, not
//! nanoseconds.

use std::time::Duration;

use weir_model::Declaration;

use super::source::Input;
use super::stream_source::{self, StreamSource};
use crate::{EventCount, Tap, TapError, TapEvent};

/// Rows per batch.
const BATCH_ROWS: usize = 1_024;

/// A source file of a script as a tap with a single demand: all rows and columns of the stream or
/// relation that the script declares.
pub struct StreamTap {
    source: StreamSource,
    rows_total: i64,
}

impl StreamTap {
    /// Reads a file for a declaration of a script. A `strict` reader stops at the first bad line.
    ///
    /// # Errors
    /// If the file cannot be read, or its type line does not match the declaration.
    pub fn open(input: Input, declared: &Declaration, strict: bool) -> Result<StreamTap, TapError> {
        let source = stream_source::open(input, &declared.schema, declared.shape, strict)?;
        Ok(StreamTap {
            source,
            rows_total: 0,
        })
    }
}

impl Tap for StreamTap {
    fn next(&mut self, _timeout: Duration) -> Result<TapEvent, TapError> {
        Ok(match self.source.next_batch(BATCH_ROWS)? {
            Some(batch) => {
                self.rows_total += batch.len() as i64;
                TapEvent::Rows { demand: 0, batch }
            }
            None => TapEvent::End,
        })
    }

    fn counts(&mut self) -> Vec<EventCount> {
        let rows = EventCount::of("events_in", None, self.rows_total);
        [vec![rows], self.source.faults().counts()].concat()
    }

    fn progress(&self) -> Option<f64> {
        Some(self.source.progress())
    }

    fn describe(&self) -> Vec<String> {
        vec!["reads a STREAM source file, all rows and columns".into()]
    }

    fn messages(&self) -> Vec<String> {
        self.source.faults().messages().to_vec()
    }
}
