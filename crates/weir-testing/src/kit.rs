//! The kernel and the initial file system of a guest, in a folder.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::kernel::{Architecture, GuestKernel, LINUX_6_1};
use crate::repository::root;

/// A folder with a guest's kernel and its initial file system.
#[derive(Clone, Debug)]
pub struct Kit {
    folder: PathBuf,
    architecture: &'static Architecture,
}

/// The sources of a guest beside packages.
pub(crate) const SOURCES: [&str; 6] = [
    include_str!("init.sh"),
    include_str!("bin/load.rs"),
    include_str!("plan.rs"),
    include_str!("build.rs"),
    include_str!("archive.rs"),
    include_str!("kernel.rs"),
];

/// The remedy for a missing kit.
const REMEDY: &str = "make it with `cargo xtask guest`";

impl Kit {
    /// The kit of most tests: that of [`LINUX_6_1`].
    pub fn find() -> Result<Kit> {
        Kit::of(&LINUX_6_1)
    }

    /// The kit of a kernel that `cargo xtask guest` has built, if it exists and is current, and
    /// QEMU is installed too.
    pub fn of(kernel: &GuestKernel) -> Result<Kit> {
        let kit = Kit::at(kernel);
        if !kit.is_current() {
            bail!(
                "no guest of these sources in {}: {REMEDY}",
                kit.folder.display()
            );
        }
        let emulator = kernel.architecture.emulator;
        if which(emulator).is_none() {
            bail!("no {emulator} on this host: {REMEDY}");
        }
        Ok(kit)
    }

    /// The kit of a kernel, in cargo's target folder.
    pub(crate) fn at(kernel: &GuestKernel) -> Kit {
        Kit {
            folder: target_folder().join(kernel.folder),
            architecture: kernel.architecture,
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn architecture(&self) -> &'static Architecture {
        self.architecture
    }

    /// The kernel.
    pub fn kernel(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// The file system.
    pub fn initramfs(&self) -> PathBuf {
        self.folder.join("initramfs")
    }

    /// The load program, which runs on a host of its architecture as well.
    pub fn load_program(&self) -> PathBuf {
        self.folder.join("load")
    }

    /// The file that marks a complete kit: the kernel's package and the sources' hash.
    pub(crate) fn stamp(&self) -> PathBuf {
        self.folder.join("made-of")
    }

    pub(crate) fn is_current(&self) -> bool {
        let stamp = fs::read_to_string(self.stamp()).unwrap_or_default();
        stamp.lines().nth(1) == Some(&sources_hash())
    }
}

/// Cargo's target folder.
pub(crate) fn target_folder() -> PathBuf {
    let target = || root().join("target");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(target, PathBuf::from);
    // A path without `..` is easier to read in messages.
    target.canonicalize().unwrap_or(target)
}

pub(crate) fn sources_hash() -> String {
    let mut hasher = DefaultHasher::new();
    SOURCES.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// The path of a program.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(program));
    places.find(|place| place.is_file())
}
