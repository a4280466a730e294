//! [`CollectorFolder`]: the location of the collector's socket and stored counts.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::hist::counted::HistogramKey;
use weir_runtime::failure::Failure;
use weir_runtime::lock::Lock;

/// Below root's `/run`, or the directory provided by systemd or the session.
const FOLDER: &str = "weir/hist";

/// A directory that only its user may enter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorFolder {
    folder: PathBuf,
}

impl CollectorFolder {
    /// The place of this user: in `$RUNTIME_DIRECTORY` in a service, otherwise in `/run` for root
    /// and in `$XDG_RUNTIME_DIR` for others.
    ///
    /// # Errors
    /// When there is none.
    pub fn of_user() -> Result<CollectorFolder, Failure> {
        let variable = |name: &str| {
            let path = std::env::var_os(name).map(PathBuf::from);
            path.filter(|path| path.is_absolute())
        };
        let root = rustix::process::geteuid().is_root();
        let base = variable("RUNTIME_DIRECTORY")
            .or_else(|| root.then(|| PathBuf::from("/run")))
            .or_else(|| variable("XDG_RUNTIME_DIR"));
        let base = base.ok_or_else(|| {
            Failure::world(
                "no default directory for the collector's socket: run as root, or set \
                 XDG_RUNTIME_DIR",
            )
        })?;
        Ok(CollectorFolder {
            folder: base.join(FOLDER),
        })
    }

    /// In that directory, which is created when it is needed.
    #[cfg(test)]
    pub fn at(folder: &Path) -> CollectorFolder {
        CollectorFolder {
            folder: folder.to_owned(),
        }
    }

    /// The collector's socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// The counts of stopped collections.
    pub fn stopped(&self, by: HistogramKey) -> PathBuf {
        self.folder.join(format!("stopped-{by}.json"))
    }

    /// Creates the directory, for this user only.
    ///
    /// # Errors
    /// When it cannot be created, or exists and belongs to another user, or is accessible to
    /// others.
    pub fn make(&self) -> Result<(), Failure> {
        let failed = |path: &Path, error: io::Error| {
            Failure::world(format_args!(
                "{}: {error}; run as root, or set XDG_RUNTIME_DIR",
                path.display()
            ))
        };
        if let Some(parent) = self.folder.parent() {
            fs::create_dir_all(parent).map_err(|error| failed(parent, error))?;
        }
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(&self.folder, error));
            }
            _ => {}
        }
        let meta = fs::symlink_metadata(&self.folder).map_err(|e| failed(&self.folder, e))?;
        let own = meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw();
        if !own || meta.permissions().mode() & 0o077 != 0 {
            return Err(Failure::world(format_args!(
                "{}: other users own it or can write it; remove it, and it is created again",
                self.folder.display()
            )));
        }
        Ok(())
    }

    /// Locks the place, unless another process has. The lock of a process that ended is free.
    ///
    /// # Errors
    /// When the lock file cannot be created.
    pub fn lock(&self) -> Result<Option<Lock>, Failure> {
        Lock::take(&self.folder)
            .map_err(|error| Failure::world(format_args!("{}: {error}", self.folder.display())))
    }

    /// Removes the files of a collector that was killed; true if there were any. One that exits
    /// normally removes its socket.
    ///
    /// # Errors
    /// As [`CollectorFolder::lock`].
    pub fn clear_up(&self) -> Result<bool, Failure> {
        if !self.socket().exists() {
            return Ok(false);
        }
        // The process that holds the lock removes its own files.
        let Some(_held) = self.lock()? else {
            return Ok(false);
        };
        Ok(fs::remove_file(self.socket()).is_ok())
    }

    /// Writes the counts atomically; without lines, removes the file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&self, by: HistogramKey, lines: &[String]) -> io::Result<()> {
        let path = self.stopped(by);
        if lines.is_empty() {
            return match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let beside = path.with_extension("new");
        fs::write(&beside, lines.join("\n") + "\n")?;
        fs::rename(&beside, &path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collectors_directory_is_locked_once_and_for_its_user_only() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("place");
        let place = CollectorFolder::at(&folder);
        place.make().unwrap();
        place.make().unwrap();
        let lock = place.lock().unwrap();
        assert!(lock.is_some());
        assert!(place.lock().unwrap().is_none());
        drop(lock);
        assert!(place.lock().unwrap().is_some());
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(place.make().is_err(), "others may enter");
    }
}
