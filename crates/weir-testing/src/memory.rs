//! [`MemoryFolder`]: a folder in memory for one test, removed at its end.

use std::path::Path;

use anyhow::Result;

use crate::run::run;
use crate::scratch::Scratch;

/// A folder whose files are in memory, so that they cause no I/O on any disk.
#[derive(Debug)]
pub struct MemoryFolder {
    folder: Scratch,
}

impl MemoryFolder {
    /// An empty folder whose files take at most `mebibytes`. Needs root.
    pub fn new(mebibytes: u64) -> Result<MemoryFolder> {
        let (folder, size) = (Scratch::new(), format!("size={mebibytes}m"));
        let target = folder.path().to_string_lossy();
        run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", &target])?;
        Ok(MemoryFolder { folder })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The path of a file in it, for command lines.
    pub fn file(&self, name: &str) -> String {
        self.folder.file(name)
    }
}

impl Drop for MemoryFolder {
    fn drop(&mut self) {
        report(run(
            "umount",
            &["-l", &self.folder.path().to_string_lossy()],
        ));
    }
}

/// Reports what cannot be removed.
pub(crate) fn report<T>(result: Result<T>) {
    if let Err(error) = result {
        eprintln!("cleaning up: {error:#}");
    }
}
