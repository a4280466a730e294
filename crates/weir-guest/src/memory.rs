//! [`MemoryFolder`]: a folder in memory for one test, removed at its end.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

use crate::run::run;

/// A folder whose files are in memory, so that they cause no I/O on any disk.
#[derive(Debug)]
pub struct MemoryFolder {
    path: PathBuf,
    mounted: bool,
}

static MADE: AtomicU32 = AtomicU32::new(0);

impl MemoryFolder {
    /// An empty folder whose files take at most `mebibytes`. Needs root.
    pub fn new(mebibytes: u64) -> Result<MemoryFolder> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        // Short, since a socket's path has at most 107 bytes.
        let path = std::env::temp_dir().join(format!("weir-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        let mut folder = MemoryFolder {
            path,
            mounted: false,
        };
        let (size, target) = (format!("size={mebibytes}m"), folder.path.to_string_lossy());
        run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", &target])?;
        folder.mounted = true;
        Ok(folder)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it, for command lines.
    pub fn file(&self, name: &str) -> String {
        self.path.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for MemoryFolder {
    fn drop(&mut self) {
        if self.mounted {
            report(run("umount", &["-l", &self.path.to_string_lossy()]));
        }
        report(fs::remove_dir(&self.path).with_context(|| self.path.display().to_string()));
    }
}

/// Reports what cannot be removed.
pub(crate) fn report<T>(result: Result<T>) {
    if let Err(error) = result {
        eprintln!("cleaning up: {error:#}");
    }
}
