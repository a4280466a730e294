//! Directories and files that only their owner may read: they contain queries, results and names of
//! a host.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
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

/// Replaces a file as a whole, by way of a file beside it whose name ends in `.new`: it has the old
/// content or `bytes` at every instant, and `bytes` are on disk on return.
///
/// # Errors
/// Those of the system calls; the file is then as before.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let mut file = open(
        File::options().create(true).truncate(true).write(true),
        Path::new(&new),
    )?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    sync_folder(path)
}

/// Waits until the name of a file, new or removed, is on disk: that of its directory.
///
/// # Errors
/// Those of the system calls.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
