//! Directories and files that only their owner may read: queries, results and names of a host are in
//! them.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Makes a directory and its parents with mode 0700. One that is there already stays as it is: it
/// may be shared with others on purpose.
///
/// # Errors
/// When the system refuses it.
pub fn directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Opens a file with `options` and gives it mode 0600, also where it is there already: earlier
/// versions made it readable by all.
///
/// # Errors
/// When the system refuses it.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.mode(0o600).open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}
