//! [`Tools`]: a disk with programs of the host and their libraries, for guests.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::kit::which;
use crate::run::run;

/// Free space on the disk beside the files, for the file system itself.
const SPARE_BYTES: u64 = 16 << 20;

/// An image with an ext4 that contains programs. It is removed when this is dropped.
#[derive(Debug)]
pub struct Tools {
    image: PathBuf,
}

impl Tools {
    /// An image at `image` with these programs: names of programs on the host, or paths. Needs
    /// e2fsprogs.
    pub fn make(image: &Path, programs: &[&str]) -> Result<Tools> {
        Tools::with_folders(image, programs, &[])
    }

    /// The same with copies of these folders of the host, below the folder of the mount: `/usr/x`
    /// is `/tools/usr/x`.
    pub fn with_folders(image: &Path, programs: &[&str], folders: &[&Path]) -> Result<Tools> {
        let folder = image.with_extension("folder");
        for part in ["bin", "lib"] {
            fs::create_dir_all(folder.join(part))?;
        }
        let filled = fill(&folder, programs).and_then(|mut bytes| {
            for from in folders {
                bytes += copied(from, &folder)?;
            }
            Ok(bytes)
        });
        let made = filled.and_then(|bytes| {
            let mebibytes = format!("{}M", (bytes + bytes / 8 + SPARE_BYTES) >> 20);
            let (from, to) = (folder.to_string_lossy(), image.to_string_lossy());
            run(
                "mke2fs",
                &["-q", "-F", "-t", "ext4", "-d", &from, &to, &mebibytes],
            )
        });
        fs::remove_dir_all(&folder)?;
        made?;
        Ok(Tools {
            image: image.to_owned(),
        })
    }

    /// The path of the image.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// A shell command that mounts them as `/tools`, where `/tools/NAME` runs each.
    pub fn mount(disk: &str) -> String {
        format!("mkdir -p /tools && mount -t ext4 -o ro {disk} /tools")
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.image) {
            eprintln!("cleaning up {}: {error}", self.image.display());
        }
    }
}

/// Copies programs and libraries into a folder; returns their size in bytes.
fn fill(folder: &Path, programs: &[&str]) -> Result<u64> {
    let mut libraries = BTreeSet::new();
    let mut bytes = 0;
    for name in programs {
        // Programs of administrators may not be on the path. A path replaces the folder.
        let path = which(name).or_else(|| Some(Path::new("/usr/sbin").join(name)));
        let path = path.filter(|path| path.is_file());
        let path = path.with_context(|| format!("no {name} on this host"))?;
        let name = path.file_name().context("a program has a name")?;
        let copy = folder.join("bin").join(name);
        let needed = needed(&path)?;
        fs::copy(&path, &copy)?;
        // Line tables are most of a debug build. Without binutils its size is not reduced.
        let _ = Command::new("strip").arg(&copy).output();
        bytes += fs::metadata(&copy)?.len();
        let name = name.to_string_lossy();
        // A program of another system is started by its own loader with its own libraries.
        let loader = match needed.is_empty() {
            true => "",
            false => "/tools/lib/ld-linux-x86-64.so.2 --library-path /tools/lib ",
        };
        let start = format!("#!/bin/sh\nexec {loader}/tools/bin/{name} \"$@\"\n");
        libraries.extend(needed);
        let script = folder.join(&*name);
        fs::write(&script, start)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    }
    for library in libraries {
        let name = library.file_name().context("a library has a name")?;
        bytes += fs::copy(&library, folder.join("lib").join(name))?;
    }
    Ok(bytes)
}

/// Copies a folder of the host below another one; returns the size of its files in bytes, each as
/// many blocks.
fn copied(from: &Path, folder: &Path) -> Result<u64> {
    let parent = from.parent().context("a folder has a parent")?;
    let to = folder.join(parent.strip_prefix("/").unwrap_or(parent));
    fs::create_dir_all(&to)?;
    let (from, to) = (from.to_string_lossy(), to.to_string_lossy());
    run("cp", &["-rL", &from, &to])?;
    let used = run("du", &["-s", "--block-size=1", &from])?;
    let bytes = used.split_whitespace().next().unwrap_or_default().parse();
    bytes.with_context(|| format!("du: {used}"))
}

/// The libraries that a program is linked with, its loader included, from `ldd`; none for a static
/// program.
fn needed(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output()?;
    let listing = String::from_utf8_lossy(&output.stdout);
    let messages = String::from_utf8_lossy(&output.stderr);
    if messages.contains("not a dynamic executable") || listing.contains("statically linked") {
        return Ok(Vec::new());
    }
    if !output.status.success() || listing.contains("not found") {
        bail!("ldd {}: {listing}", program.display());
    }
    // `libz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x..)`, `/lib64/ld-linux-x86-64.so.2 (0x..)`
    let paths = listing
        .split_whitespace()
        .filter(|word| word.starts_with('/'));
    Ok(paths.map(PathBuf::from).collect())
}
