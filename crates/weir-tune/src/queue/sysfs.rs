//! [`SysfsQueue`]: the settings of a queue as files.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{IOSCHED, Queue, SCHEDULER};

/// The folder of a queue, such as `/sys/block/sda/queue`.
#[derive(Clone, Debug)]
pub struct SysfsQueue {
    folder: PathBuf,
}

/// The mode bit of a setting that can be written.
const OWNER_WRITES: u32 = 0o200;

impl SysfsQueue {
    /// The queue with this folder.
    pub fn new(folder: &Path) -> SysfsQueue {
        SysfsQueue {
            folder: folder.to_owned(),
        }
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The names of the writable files of a folder.
    fn writable(&self, below: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.folder.join(below))? {
            let entry = entry?;
            let (meta, name) = (entry.metadata(), entry.file_name());
            let is_writable = |meta: fs::Metadata| {
                meta.is_file() && meta.permissions().mode() & OWNER_WRITES != 0
            };
            // A tunable disappears with its scheduler.
            if meta.is_ok_and(is_writable) {
                names.extend(name.to_str().map(|name| format!("{below}{name}")));
            }
        }
        Ok(names)
    }
}

impl Queue for SysfsQueue {
    fn settings(&self) -> io::Result<Vec<String>> {
        let mut names = self.writable("")?;
        match self.writable(IOSCHED) {
            // Without a scheduler there are no tunables.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            tunables => names.extend(tunables.unwrap_or_default()),
        }
        names.sort();
        Ok(names)
    }

    fn read(&self, setting: &str) -> io::Result<String> {
        let text = fs::read_to_string(self.folder.join(setting))?;
        let text = text.trim();
        // Only the scheduler is a choice: "none [mq-deadline] kyber".
        let chosen = text.split(['[', ']']).nth(1);
        let chosen = chosen.filter(|_| setting == SCHEDULER);
        Ok(chosen.unwrap_or(text).to_owned())
    }

    fn write(&self, setting: &str, value: &str) -> io::Result<()> {
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).open(self.folder.join(setting))?;
        // One write call is one value.
        io::Write::write_all(&mut file, value.as_bytes())
    }
}

/// The schedulers that the kernel offers for a queue.
///
/// # Errors
/// When the queue has no file `scheduler`.
pub fn schedulers(folder: &Path) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(folder.join(SCHEDULER))?;
    let names = text.split_whitespace();
    let names = names.map(|name| name.trim_matches(['[', ']']).to_owned());
    Ok(names.collect())
}
