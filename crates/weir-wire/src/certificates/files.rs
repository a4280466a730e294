//! PEM files: keys that only their owner can read. Existing files are replaced only on request.

use std::fmt::Display;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rcgen::KeyPair;

use crate::WireError;

/// The mode of keys.
const SECRET: u32 = 0o600;
/// The mode of certificates, which are no secret.
pub(super) const PUBLIC: u32 = 0o644;
/// The longest PEM file that is read, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// What happens to existing files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// They are kept, and nothing is written.
    Never,
    /// They are replaced.
    Requested,
}

/// An error of a file.
pub(super) fn file_error(path: &Path, why: impl Display) -> WireError {
    WireError::File {
        path: path.to_owned(),
        why: why.to_string(),
    }
}

/// The files of a certificate and its key.
pub fn pair(directory: &Path, stem: &str) -> (PathBuf, PathBuf) {
    let file = |ending: &str| directory.join(format!("{stem}.{ending}"));
    (file("crt"), file("key"))
}

/// Creates a directory that other users cannot read, unless it exists.
pub(super) fn make_directory(directory: &Path) -> Result<(), WireError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| file_error(directory, error))
}

/// Writes a certificate and its key; returns the file of the certificate.
pub(super) fn write_pair(
    directory: &Path,
    stem: &str,
    certificate: &str,
    key: &str,
    overwrite: Overwrite,
) -> Result<PathBuf, WireError> {
    let (certificate_file, key_file) = pair(directory, stem);
    match overwrite {
        Overwrite::Requested => {
            replace(&key_file, key, SECRET)?;
            replace(&certificate_file, certificate, PUBLIC)?;
        }
        Overwrite::Never => {
            // A key without a certificate is kept too: another certificate may have been signed for
            // it.
            if certificate_file.exists() {
                return Err(exists(&certificate_file));
            }
            create(&key_file, key, SECRET)?;
            create(&certificate_file, certificate, PUBLIC)?;
        }
    }
    Ok(certificate_file)
}

fn exists(path: &Path) -> WireError {
    file_error(
        path,
        "the file exists and is kept; `--force` overwrites it, `weir certificates renew` extends \
         its validity",
    )
}

/// Writes a new file.
fn create(path: &Path, text: &str, mode: u32) -> Result<(), WireError> {
    let opened = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path);
    let mut file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(exists(path)),
        Err(error) => return Err(file_error(path, error)),
    };
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(|error| file_error(path, error))
}

/// Replaces a file atomically.
pub(super) fn replace(path: &Path, text: &str, mode: u32) -> Result<(), WireError> {
    let mut name = path.file_name().expect("a file has a name").to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    // A file of an interrupted run.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(file_error(&new, error)),
        _ => {}
    }
    create(&new, text, mode)?;
    fs::rename(&new, path).map_err(|error| file_error(path, error))
}

/// The text of a file.
pub(super) fn read(path: &Path) -> Result<String, WireError> {
    let failed = |error| file_error(path, error);
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    let length = file
        .take(BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(failed)?;
    match length as u64 > BYTES_MAX {
        true => Err(file_error(path, "too long for a PEM file")),
        false => Ok(text),
    }
}

/// A private key, if only its owner can read it.
pub(super) fn read_key(path: &Path) -> Result<KeyPair, WireError> {
    let metadata = fs::metadata(path).map_err(|error| file_error(path, error))?;
    if metadata.mode() & 0o077 != 0 {
        let why = format!(
            "others can read this key and may have copied it; `chmod 600 {}` if you trust them",
            path.display()
        );
        return Err(file_error(path, why));
    }
    let text = read(path)?;
    KeyPair::from_pem(&text).map_err(|error| file_error(path, format!("no private key: {error}")))
}
