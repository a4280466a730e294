//! Random bytes of the system's.

use std::fs::File;
use std::io::{self, Read};

/// Where they come from.
const SOURCE: &str = "/dev/urandom";

/// So many of them.
///
/// # Errors
/// When there are none to be had; the error names the file.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let read = File::open(SOURCE).and_then(|mut file| file.read_exact(&mut bytes));
    match read {
        Ok(()) => Ok(bytes),
        Err(error) => Err(io::Error::new(error.kind(), format!("{SOURCE}: {error}"))),
    }
}
