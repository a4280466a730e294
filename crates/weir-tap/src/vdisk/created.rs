//! [`CreatedLog`]: the file that QEMU writes its log to while it is traced, as we created it.
//!
//! It lies where QEMU sees it, seen from here through `/proc/PID/root`, and belongs to QEMU's user.
//! QEMU's user may mount what he likes over its name and its folder, so neither is ever opened by
//! name again: whatever reads, punches or removes the file does so by these two descriptors.

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

/// The folder in memory that every host has.
const RUN: &str = "/run";

/// Where the file lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// QEMU's process.
    pub pid: u32,
    /// The folder, as QEMU sees it.
    pub folder: PathBuf,
    /// The file's name in it.
    pub name: String,
}

/// The file, and the folder that it was created in.
#[derive(Debug)]
pub struct CreatedLog {
    /// The descriptor of its creation.
    pub file: File,
    /// Its folder, which stays reachable by this when QEMU has ended.
    pub folder: OwnedFd,
    /// Its name there.
    pub name: String,
}

impl Place {
    /// The path as QEMU sees it.
    pub fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Creates the file, for QEMU's user to write.
    ///
    /// In the host's own `/run` it is created with our rights. Any other folder is one that QEMU's
    /// user may have mounted there, so it is created with that user's rights: where the user may
    /// not create a file, this does not either.
    ///
    /// # Errors
    /// When it exists already, or the folder does not, or QEMU's user may not write to it.
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
        // Links of a container lead to places in the container.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat2(&root, inside, flags, Mode::empty(), ResolveFlags::IN_ROOT)?;
        Ok(folder)
    }

    /// The folder in our own mount namespace, where no mount of QEMU's user covers the file; `None`
    /// when that path leads to another folder here.
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

    /// Creates the file with our rights and gives it to `user`.
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
    /// Whether the process `pid` has the file open.
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

    /// Removes the file, unless another one has its name by now.
    ///
    /// # Errors
    /// When it has been removed or replaced.
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
