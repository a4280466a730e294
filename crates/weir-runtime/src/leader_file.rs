//! [`LeaderFile`]: the highest term of the monitor on disk, so that an agent that was restarted
//! rejects an earlier leader as well.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use tracing::warn;
use weir_wire::LeaderTerm;

use crate::private;

/// The name of the file in the agent's directory.
const NAME: &str = "leader.json";

/// The file.
#[derive(Debug)]
pub struct LeaderFile {
    path: PathBuf,
    stored: LeaderTerm,
}

impl LeaderFile {
    /// Reads the file in the directory of the agent. One that is not valid is logged and replaced
    /// by the next term.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(directory: &Path) -> io::Result<LeaderFile> {
        let path = directory.join(NAME);
        let stored = match fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(leader) => leader,
                Err(error) => {
                    warn!(file = %path.display(), %error, "the term of the monitor is not known");
                    LeaderTerm::default()
                }
            },
            Err(error) if error.kind() == ErrorKind::NotFound => LeaderTerm::default(),
            Err(error) => return Err(error),
        };
        Ok(LeaderFile { path, stored })
    }

    /// The term on disk.
    pub fn stored(&self) -> LeaderTerm {
        self.stored
    }

    /// Stores a term that differs. A failure is logged: the term then holds for this process.
    pub fn store(&mut self, leader: LeaderTerm) {
        if leader == self.stored {
            return;
        }
        let bytes = serde_json::to_vec(&leader).expect("numbers are JSON");
        match private::replace(&self.path, &bytes) {
            Ok(()) => self.stored = leader,
            Err(error) => {
                warn!(file = %self.path.display(), %error, "the term of the monitor is not stored");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_read_again_and_a_damaged_file_is_none() {
        let home = std::env::temp_dir().join(format!("weir-leader-{}", std::process::id()));
        fs::create_dir_all(&home).unwrap();
        let open = || LeaderFile::open(&home).unwrap();
        assert_eq!(open().stored(), LeaderTerm::default());
        let leader = LeaderTerm {
            monitor: u64::MAX,
            term: 7,
        };
        open().store(leader);
        assert_eq!(open().stored(), leader);
        for damaged in ["", "{", "{\"monitor\": 1}"] {
            fs::write(home.join(NAME), damaged).unwrap();
            let mut file = open();
            assert_eq!(file.stored(), LeaderTerm::default(), "{damaged}");
            file.store(leader);
            assert_eq!(open().stored(), leader, "{damaged}");
        }
        fs::remove_dir_all(&home).unwrap();
    }
}
