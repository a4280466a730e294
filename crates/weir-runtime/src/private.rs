//! Directories and files that only their owner may read: they contain queries, results and names of
//! a host.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Creates a directory and its parents with mode 0700. An existing directory is not changed: it
/// may be shared on purpose.
///
/// # Errors
/// Those of the system calls.
pub fn directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Opens a file with `options` and sets its mode to 0600, also if it exists: earlier
/// versions made it readable by all.
///
/// # Errors
/// Those of the system calls.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.mode(0o600).open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}
