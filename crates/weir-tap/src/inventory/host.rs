//! [`Host`]: the system folders of a host and bounded reads of them. Missing permissions are
//! recorded as remarks.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Maximum number of bytes that are read of a file in /proc or /sys, or of a state file.
pub const FILE_BYTES_MAX: u64 = 4 << 20;

/// Initial buffer size; most files are shorter.
const FILE_BYTES_USUAL: usize = 2048;

/// Maximum number of remarks that are kept.
const REMARKS_MAX: usize = 32;

/// A host, accessed through its files.
#[derive(Debug)]
pub struct Host {
    /// The folder with its /proc, /sys, /run, /var and /dev: `/`, or a tree created by a test.
    root: PathBuf,
    /// What cannot be read for lack of permissions.
    unreadable: RefCell<BTreeSet<&'static str>>,
}

impl Host {
    /// The host whose tree begins at `root`.
    pub fn new(root: &Path) -> Host {
        Host {
            root: root.to_owned(),
            unreadable: RefCell::default(),
        }
    }

    /// The path in this process of `path`, which is absolute on that host.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The beginning of a file, at most [`FILE_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// When it cannot be opened or read.
    pub fn bytes(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        // Most files are short, and a read of one in /proc is expensive.
        let mut bytes = Vec::with_capacity(FILE_BYTES_USUAL);
        let path = path.as_ref();
        let opened = self.path(path);
        let file = match is_kernels(path) {
            true => File::open(opened)?,
            false => open_data(&opened)?,
        };
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// A file's text without trailing white space; invalid UTF-8 is replaced. `None` if it cannot
    /// be read.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = self.bytes(path).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    }

    /// A file's text; if permissions are missing, that is recorded as `what`.
    pub fn text_of(&self, path: impl AsRef<Path>, what: &'static str) -> Option<String> {
        match self.bytes(path) {
            Ok(bytes) => Some(String::from_utf8_lossy(&bytes).trim_end().to_owned()),
            Err(error) => {
                self.note(&error, what);
                None
            }
        }
    }

    /// The names in a folder, sorted; none if it cannot be read.
    pub fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path));
        let names = entries.into_iter().flatten().flatten();
        let mut names: Vec<String> = names
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    /// The names in a folder; if permissions are missing, that is recorded.
    pub fn names_of(&self, path: impl AsRef<Path>, what: &'static str) -> Vec<String> {
        if let Err(error) = fs::read_dir(self.path(&path)) {
            self.note(&error, what);
        }
        self.names(path)
    }

    /// The target of a symbolic link.
    pub fn link(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        fs::read_link(self.path(path)).ok()
    }

    /// Records that `what` cannot be read, if the error is about permissions.
    pub fn note(&self, error: &io::Error, what: &'static str) {
        let mut unreadable = self.unreadable.borrow_mut();
        if error.kind() == io::ErrorKind::PermissionDenied && unreadable.len() < REMARKS_MAX {
            unreadable.insert(what);
        }
    }

    /// What cannot be read for lack of permissions, one line each.
    pub fn remarks(&self) -> Vec<String> {
        let line = |what: &&str| format!("{what}: permission denied; run as root");
        self.unreadable.borrow().iter().map(line).collect()
    }
}
/// Whether a path leads to a file of the kernel (procfs or sysfs).
fn is_kernels(path: &Path) -> bool {
    let leads_away = |part: &OsStr| ["root", "cwd", "fd"].iter().any(|name| part == *name);
    path.starts_with("/sys") || (path.starts_with("/proc") && !path.iter().any(leads_away))
}

/// Opens a file or block device named by another process. Its type is checked before it is opened:
/// opening a pipe may block indefinitely, and some devices act when they are opened.
///
/// # Errors
/// If it has another type, or cannot be opened.
pub fn open_data(path: &Path) -> io::Result<File> {
    let named = File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_CLOEXEC)
        .open(path)?;
    let kind = named.metadata()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC)
        .open(format!("/proc/self/fd/{}", named.as_raw_fd()))
}
