//! [`spool`]: copies bytes that can be read only once to a file with access by position.

use std::fs::File;
use std::io::Write;

use super::source::{Input, WINDOW_BYTES};
use crate::TapError;

/// Default of the maximum number of bytes that are spooled.
pub const SPOOL_BYTES_MAX: u64 = 4 << 30;

/// Copies the rest of `input` to a temporary file without a name, of at most `bytes_max` bytes.
/// Returns the file and its length.
///
/// # Errors
/// If the input cannot be read, the file cannot be written, or the bound is reached.
pub fn spool(mut input: Input, bytes_max: u64) -> Result<(File, u64), TapError> {
    let folder = std::env::temp_dir();
    let failed = |error| TapError::File {
        path: folder.clone(),
        error,
    };
    let mut file = tempfile::tempfile_in(&folder).map_err(failed)?;
    let mut bytes = 0;
    loop {
        let part = input.peek(WINDOW_BYTES)?;
        let length = part.len();
        if length == 0 {
            return Ok((file, bytes));
        }
        bytes += length as u64;
        if bytes > bytes_max {
            return Err(TapError::Unavailable {
                what: format!(
                    "{}: Parquet is read from its end, and this pipe has delivered more than the \
                     {bytes_max} bytes that may be copied to {}",
                    input.path().display(),
                    folder.display()
                ),
                remedy: "write it to a file first, or increase --spool-limit".into(),
            });
        }
        file.write_all(part).map_err(failed)?;
        input.consume(length);
    }
}
