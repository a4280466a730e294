//! [`Place`]: where the collector's socket is, and what it kept.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::hist::counted::By;
use weir_runtime::failure::Failure;
use weir_runtime::lock::Lock;

/// Below root's `/run`, or what systemd or the session gives us.
const FOLDER: &str = "weir/hist";

/// A folder that only its user may enter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    folder: PathBuf,
}

impl Place {
    /// That of this user: in `$RUNTIME_DIRECTORY` where a service has one, else in `/run` for root and in
    /// `$XDG_RUNTIME_DIR` for others.
    ///
    /// # Errors
    /// When there is none.
    pub fn of_user() -> Result<Place, Failure> {
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
                "there is no place for a collector's socket: run as root, or set XDG_RUNTIME_DIR",
            )
        })?;
        Ok(Place {
            folder: base.join(FOLDER),
        })
    }

    /// In that folder, which is made when it is needed.
    #[cfg(test)]
    pub fn at(folder: &Path) -> Place {
        Place {
            folder: folder.to_owned(),
        }
    }

    /// The collector's socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// What was counted until it was stopped.
    pub fn stopped(&self, by: By) -> PathBuf {
        self.folder.join(format!("stopped-{by}.json"))
    }

    /// Makes the folder, for this user only.
    ///
    /// # Errors
    /// When it cannot be made, or is there already and somebody else's, or open to others.
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
                "{}: others have a part in it; remove it, and it is made anew",
                self.folder.display()
            )));
        }
        Ok(())
    }

    /// Takes the place, if nobody else has it. A collector that ended, however that came, has not.
    ///
    /// # Errors
    /// When the lock's file cannot be made.
    pub fn lock(&self) -> Result<Option<Lock>, Failure> {
        Lock::take(&self.folder)
            .map_err(|error| Failure::world(format_args!("{}: {error}", self.folder.display())))
    }

    /// Takes away what a collector left that was killed; true if there was anything. One that ends in order takes
    /// its socket with it.
    ///
    /// # Errors
    /// As [`Place::lock`].
    pub fn clear_up(&self) -> Result<bool, Failure> {
        if !self.socket().exists() {
            return Ok(false);
        }
        // While somebody holds the place, it is his to clear up.
        let Some(_held) = self.lock()? else {
            return Ok(false);
        };
        Ok(fs::remove_file(self.socket()).is_ok())
    }

    /// Writes what was counted, whole or not at all; without lines, takes it away.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&self, by: By, lines: &[String]) -> io::Result<()> {
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
    fn a_place_is_taken_once_and_for_its_user_only() {
        let folder = std::env::temp_dir().join(format!("weir-place-{}", std::process::id()));
        let place = Place::at(&folder);
        place.make().unwrap();
        place.make().unwrap();
        let lock = place.lock().unwrap();
        assert!(lock.is_some());
        assert!(place.lock().unwrap().is_none());
        drop(lock);
        assert!(place.lock().unwrap().is_some());
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(place.make().is_err(), "others may enter");
        fs::remove_dir_all(&folder).unwrap();
    }
}
