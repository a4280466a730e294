//! [`Scratch`]: a temporary folder for one test, removed at its end.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

/// A temporary folder with a short path, since that of a socket has at most 107 bytes.
#[derive(Debug)]
pub struct Scratch(TempDir);

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch::new()
    }
}

impl Scratch {
    /// An empty folder that all users can read.
    ///
    /// # Panics
    /// When it cannot be created. So do those below, for their files.
    pub fn new() -> Scratch {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::Permissions::from_mode(0o755);
        let folder = tempfile::Builder::new()
            .prefix("weir-")
            .permissions(mode)
            .tempdir();
        Scratch(folder.expect("a temporary folder"))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The path of a file in it, for command lines.
    pub fn file(&self, name: &str) -> String {
        let path = self.path().join(name);
        path.into_os_string()
            .into_string()
            .expect("a path in UTF-8")
    }

    /// Writes a file, and the folders above it; returns its path.
    pub fn write(&self, name: &str, content: &(impl AsRef<[u8]> + ?Sized)) -> String {
        let path = self.file(name);
        let folder = Path::new(&path).parent().expect("it is in the folder");
        fs::create_dir_all(folder).expect("a folder");
        fs::write(&path, content).expect("a file");
        path
    }

    /// Writes a file of zeros, all allocated; returns its path.
    pub fn image(&self, name: &str, mebibytes: usize) -> String {
        self.write(name, &vec![0; mebibytes << 20])
    }

    /// The text of a file.
    pub fn read(&self, name: &str) -> String {
        let path = self.file(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }
}
