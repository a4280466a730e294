//! [`CreatedLog`]: the file to which QEMU writes its log while it is traced, created by weir.
//!
//! The file is in a directory that QEMU sees, accessed here through `/proc/PID/root`, and is owned
//! by QEMU's user. That user can mount over its name and its directory, so neither is opened by
//! name again: reading, punching and removal use these two descriptors.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, fchown, fstat, open, openat, openat2,
    unlinkat,
};
use rustix::process::geteuid;

use crate::user::User;

/// The in-memory directory of every host.
const RUN: &str = "/run";

/// The location of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLocation {
    /// QEMU's process id.
    pub pid: u32,
    /// The directory, as QEMU sees it.
    pub folder: PathBuf,
    /// The file's name in it.
    pub name: String,
}

/// The file, and the directory in which it was created.
#[derive(Debug)]
pub struct CreatedLog {
    /// The descriptor from its creation.
    pub file: File,
    /// Its directory, which remains accessible after QEMU has ended.
    pub folder: OwnedFd,
    /// Its name in the directory.
    pub name: String,
}

impl FileLocation {
    /// The path as QEMU sees it.
    pub fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Creates the file, writable by QEMU's user.
    ///
    /// In the host's own `/run` the file is created with the rights of weir. Any other directory
    /// may be a mount of QEMU's user, so the file is created with that user's rights: it can be
    /// created only where the user may create files.
    ///
    /// # Errors
    /// If it exists already, the directory does not exist, or QEMU's user may not write to it.
    pub fn create(&self) -> io::Result<CreatedLog> {
        let theirs = self.open_folder()?;
        let (folder, is_hosts) = match self.open_hosts_folder(&theirs) {
            Some(ours) => (ours, true),
            None => (theirs, false),
        };
        let user = User::of(self.pid)?;
        let is_run = is_hosts && self.folder == Path::new(RUN);
        let file = match is_run || user.uid == geteuid().as_raw() {
            true => self.create_for(&folder, &user)?,
            false => user.act(|| self.create_in(&folder))?,
        };
        Ok(CreatedLog {
            file,
            folder,
            name: self.name.clone(),
        })
    }

    fn open_folder(&self) -> io::Result<OwnedFd> {
        let root = File::open(format!("/proc/{}/root", self.pid))?;
        let inside = self.folder.strip_prefix("/").unwrap_or(&self.folder);
        let inside = match inside.as_os_str().is_empty() {
            true => Path::new("."),
            false => inside,
        };
        // Symbolic links of a container resolve to paths in the container.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat2(&root, inside, flags, Mode::empty(), ResolveFlags::IN_ROOT)?;
        Ok(folder)
    }

    /// The directory in this process's mount namespace, where no mount of QEMU's user covers the
    /// file; `None` if the path names another directory here.
    fn open_hosts_folder(&self, theirs: &OwnedFd) -> Option<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let ours = open(&self.folder, flags, Mode::empty()).ok()?;
        is_same_file(&ours, theirs).then_some(ours)
    }

    fn create_in(&self, folder: &OwnedFd) -> io::Result<File> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(openat2(folder, &self.name, flags, mode, inside)?.into())
    }

    /// Creates the file with this process's rights and changes its owner to `user`.
    fn create_for(&self, folder: &OwnedFd, user: &User) -> io::Result<File> {
        let file = self.create_in(folder)?;
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        if let Err(error) = fchown(&file, Some(uid), Some(gid)) {
            unlinkat(folder, &self.name, AtFlags::empty())?;
            return Err(error.into());
        }
        Ok(file)
    }
}

impl CreatedLog {
    /// Returns true if the process `pid` has the file open.
    pub fn is_open_in(&self, pid: u32) -> bool {
        let Ok(ours) = self.file.metadata() else {
            return false;
        };
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            return false;
        };
        entries.flatten().any(|entry| {
            let theirs = fs::metadata(entry.path());
            theirs.is_ok_and(|m| (m.dev(), m.ino()) == (ours.dev(), ours.ino()))
        })
    }

    /// Removes the file, unless its name now refers to another file.
    ///
    /// # Errors
    /// If it was removed or replaced.
    pub fn remove(&self) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let named = openat(&self.folder, &self.name, flags, Mode::empty())?;
        if !is_same_file(&named, &self.file) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(unlinkat(&self.folder, &self.name, AtFlags::empty())?)
    }
}

fn is_same_file(one: impl AsFd, other: impl AsFd) -> bool {
    let identity = |file: &Stat| (file.st_dev, file.st_ino);
    let (one, other) = (fstat(one), fstat(other));
    one.is_ok_and(|one| other.is_ok_and(|other| identity(&one) == identity(&other)))
}
