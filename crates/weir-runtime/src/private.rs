//! Directories and files that only their owner may read: they contain queries, results and names of
//! a host.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The fence of this process, if it has one.
static FENCE: OnceLock<Fence> = OnceLock::new();

/// The right to write below a directory that several processes share, of which one may write. It
/// lasts while `staging` exists: another process removes it to take the right away.
#[derive(Debug)]
struct Fence {
    directory: PathBuf,
    staging: PathBuf,
}

/// From now on this process writes files below `directory` only while the directory `staging`
/// exists, which is on the same file system. [`replace`] renames its files from there, so that none
/// is replaced after the removal. May be called once.
pub fn fence(directory: &Path, staging: &Path) {
    let fence = Fence {
        directory: directory.to_owned(),
        staging: staging.to_owned(),
    };
    FENCE.set(fence).expect("a process writes to one directory");
}

/// The fence that a file is behind.
fn fence_of(path: &Path) -> Option<&'static Fence> {
    FENCE
        .get()
        .filter(|fence| path.starts_with(&fence.directory))
}

impl Fence {
    /// The error for a process that has lost the right to write.
    fn check(&self) -> io::Result<()> {
        match self.staging.try_exists()? {
            true => Ok(()),
            false => Err(io::Error::other(
                "another process has taken over the directory",
            )),
        }
    }

    /// The file that becomes the next version of `path`.
    fn next_version(&self, path: &Path) -> PathBuf {
        let path = path.strip_prefix(&self.directory).unwrap_or(path);
        let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
        self.staging.join(format!("{}.new", parts.join("+")))
    }
}

/// Creates a directory and its parents with mode 0700. An existing directory is not changed: it
/// may be shared on purpose.
///
/// # Errors
/// Those of the system calls.
pub fn directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Opens a file for writing with `options` and sets its mode to 0600, also if it exists: earlier
/// versions made it readable by all.
///
/// # Errors
/// Those of the system calls, or another process has taken over ([`fence`]).
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    if let Some(fence) = fence_of(path) {
        fence.check()?;
    }
    let file = options.mode(0o600).open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// Replaces a file as a whole, by way of a file beside it whose name ends in `.new`, or one in the
/// staging directory of the [`fence`]: it has the old content or `bytes` at every instant, and
/// `bytes` are on disk on return.
///
/// # Errors
/// Those of the system calls; the file is then as before.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = match fence_of(path) {
        Some(fence) => fence.next_version(path).into_os_string(),
        None => {
            let mut new = path.as_os_str().to_owned();
            new.push(".new");
            new
        }
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_its_staging_directory_replaces_no_file() {
        let home = tempfile::tempdir().unwrap();
        let (state, staging) = (home.path().join("state"), home.path().join("state/h"));
        directory(&staging).unwrap();
        directory(&state.join("deep")).unwrap();
        fence(&state, &staging);
        let path = state.join("deep/file");
        replace(&path, b"1").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"1");
        let left = fs::read_dir(&staging).unwrap().count();
        assert_eq!(left, 0, "the prepared file has moved");
        fs::remove_dir(&staging).unwrap();
        replace(&path, b"2").unwrap_err();
        let append = |path: &Path| open(File::options().append(true).create(true), path);
        append(&path).unwrap_err();
        append(&state.join("new")).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"1");
        assert!(!state.join("new").exists());
        // Files elsewhere are not affected.
        replace(&home.path().join("other"), b"3").unwrap();
    }
}
