//! PEM files: keys that only their owner reads, and nothing overwritten unless that is wanted.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rcgen::KeyPair;

/// The mode of keys.
const SECRET: u32 = 0o600;
/// The mode of certificates, which are no secret.
pub const PUBLIC: u32 = 0o644;
/// The longest PEM file that is read, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// What happens to files that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// They are kept, and nothing is written.
    Never,
    /// They are replaced.
    Wanted,
}

/// The files of a certificate and its key.
pub fn pair(directory: &Path, stem: &str) -> (PathBuf, PathBuf) {
    let file = |ending: &str| directory.join(format!("{stem}.{ending}"));
    (file("crt"), file("key"))
}

/// A directory that others may not look into, unless it is there.
pub fn make_directory(directory: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .with_context(|| directory.display().to_string())
}

/// Writes a certificate and its key; the file of the certificate.
pub fn write_pair(
    directory: &Path,
    stem: &str,
    certificate: &str,
    key: &str,
    overwrite: Overwrite,
) -> Result<PathBuf> {
    let (certificate_file, key_file) = pair(directory, stem);
    match overwrite {
        Overwrite::Wanted => {
            replace(&key_file, key, SECRET)?;
            replace(&certificate_file, certificate, PUBLIC)?;
        }
        Overwrite::Never => {
            // A key without a certificate is as precious: something else may have been signed for it.
            if certificate_file.exists() {
                return Err(there_already(&certificate_file));
            }
            create(&key_file, key, SECRET)?;
            create(&certificate_file, certificate, PUBLIC)?;
        }
    }
    Ok(certificate_file)
}

fn there_already(path: &Path) -> anyhow::Error {
    anyhow::anyhow!(
        "{} already exists; `--replace` overwrites it, `weir certificates renew` extends its \
         validity",
        path.display()
    )
}

/// Writes a file that was not there.
fn create(path: &Path, text: &str, mode: u32) -> Result<()> {
    let opened = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path);
    let mut file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(there_already(path)),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .with_context(|| path.display().to_string())
}

/// Replaces a file atomically: a reader receives the complete old or new file.
pub fn replace(path: &Path, text: &str, mode: u32) -> Result<()> {
    let mut name = path.file_name().expect("a file has a name").to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    // What an interrupted run left behind.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| new.display().to_string());
        }
        _ => {}
    }
    create(&new, text, mode)?;
    fs::rename(&new, path).with_context(|| path.display().to_string())
}

/// A file's text.
pub fn read(path: &Path) -> Result<String> {
    let told = || path.display().to_string();
    let mut text = String::new();
    let file = File::open(path).with_context(told)?;
    let length = file
        .take(BYTES_MAX + 1)
        .read_to_string(&mut text)
        .with_context(told)?;
    match length as u64 > BYTES_MAX {
        true => bail!("{}: too long for a PEM file", path.display()),
        false => Ok(text),
    }
}

/// A private key, if only its owner can read it.
pub fn read_key(path: &Path) -> Result<KeyPair> {
    let facts = fs::metadata(path).with_context(|| path.display().to_string())?;
    if facts.mode() & 0o077 != 0 {
        bail!(
            "{path}: other users can read this key; use `chmod 600 {path}`, or a new key if it \
             may be compromised",
            path = path.display()
        );
    }
    KeyPair::from_pem(&read(path)?).with_context(|| format!("{}: no private key", path.display()))
}
