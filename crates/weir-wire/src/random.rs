//! Random bytes of the operating system.

use std::fs::File;
use std::io::{self, Read};

/// The file from which they are read.
const SOURCE: &str = "/dev/urandom";

/// `N` random bytes.
///
/// # Errors
/// When they cannot be read; the error names the file.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let read = File::open(SOURCE).and_then(|mut file| file.read_exact(&mut bytes));
    match read {
        Ok(()) => Ok(bytes),
        Err(error) => Err(io::Error::new(error.kind(), format!("{SOURCE}: {error}"))),
    }
}
