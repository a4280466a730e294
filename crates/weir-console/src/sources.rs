//! [`Sources`]: the sources that a client may name: the recent requests, and the recordings of a
//! folder.

use std::path::PathBuf;
use std::time::UNIX_EPOCH;
use std::{fs, io};

use serde::Serialize;

use crate::program::ResultSource;

/// The name of the retained requests.
pub const RECENT: &str = "recent";

/// The prefix of the name of a recording.
pub const RECORDING: &str = "recording:";

/// The extension of recordings.
const EXTENSION: &str = "parquet";

/// The maximum number of recordings in the list.
const RECORDINGS_MAX: usize = 1_000;

/// The sources that a client may name.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Whether requests are retained.
    pub has_recent: bool,
    /// The folder of recordings.
    pub folder: Option<PathBuf>,
}

/// A recording in the folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordingFile {
    /// The name of the file.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was written last, in milliseconds since 1970.
    pub modified_ms: u64,
}

impl Sources {
    /// The source that a client names; without a name, that of the command line.
    ///
    /// # Errors
    /// When there is no such source.
    pub fn resolve(&self, name: Option<&str>) -> Result<ResultSource, String> {
        match name {
            None | Some("") => Ok(ResultSource::Own),
            Some(RECENT) if self.has_recent => Ok(ResultSource::Recent),
            Some(RECENT) => Err("no requests are retained: the source is not the live host".into()),
            Some(name) => match name.strip_prefix(RECORDING) {
                Some(file) => self.recording(file),
                None => Err(format!("unknown source {name}; see /api/v1/recordings")),
            },
        }
    }

    /// The recordings of the folder, the newest first.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn recordings(&self) -> io::Result<Vec<RecordingFile>> {
        let Some(folder) = &self.folder else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            // Links are not followed, so that every recording is a file of the folder.
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            let (Ok(name), true) = (entry.file_name().into_string(), is_file) else {
                continue;
            };
            let is_recording = entry.path().extension().is_some_and(|e| e == EXTENSION);
            let (Ok(metadata), true) = (entry.metadata(), is_recording) else {
                continue;
            };
            let modified = metadata.modified().ok();
            let modified = modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
            found.push(RecordingFile {
                name,
                bytes: metadata.len(),
                modified_ms: modified.map_or(0, |since| since.as_millis() as u64),
            });
        }
        found.sort_by(|a, b| b.modified_ms.cmp(&a.modified_ms).then(a.name.cmp(&b.name)));
        found.truncate(RECORDINGS_MAX);
        Ok(found)
    }

    /// A file is only read if it is in the list, so that no path leads out of the folder.
    fn recording(&self, name: &str) -> Result<ResultSource, String> {
        let Some(folder) = &self.folder else {
            return Err("no folder of recordings; start weir console with --recordings DIR".into());
        };
        let listed = self
            .recordings()
            .map_err(|e| format!("{}: {e}", folder.display()))?;
        match listed.iter().any(|recording| recording.name == name) {
            true => Ok(ResultSource::Recording(folder.join(name))),
            false => Err(format!("no recording {name} in {}", folder.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_recordings_in_the_folder_are_sources() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("recordings");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("a.parquet"), "a").unwrap();
        fs::write(folder.join("notes.txt"), "").unwrap();
        fs::write(root.path().join("secret.parquet"), "").unwrap();
        let secret = root.path().join("secret.parquet");
        std::os::unix::fs::symlink(&secret, folder.join("link.parquet")).unwrap();
        let sources = Sources {
            has_recent: false,
            folder: Some(folder.clone()),
        };
        let listed = sources.recordings().unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!((&*listed[0].name, listed[0].bytes), ("a.parquet", 1));
        let found = sources.resolve(Some("recording:a.parquet"));
        assert_eq!(found, Ok(ResultSource::Recording(folder.join("a.parquet"))));
        assert_eq!(sources.resolve(None), Ok(ResultSource::Own));
        for name in [
            "recording:../secret.parquet",
            "recording:link.parquet",
            "recording:notes.txt",
            "recording:./a.parquet",
            "recording:",
            "recent",
            "other",
        ] {
            assert!(sources.resolve(Some(name)).is_err(), "{name}");
        }
        let absolute = format!("recording:{}", secret.display());
        assert!(sources.resolve(Some(&absolute)).is_err());
    }
}
