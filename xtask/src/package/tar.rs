//! The archive for any distribution: the tree below one directory, for `tar -C /
//! --strip-components=1`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{Program, Release, copy_tree, scratch, tree};
use crate::{execute, root};

/// Options of GNU tar with which equal files give equal archives.
pub const REPRODUCIBLE: [&str; 5] = [
    "--sort=name",
    "--owner=0",
    "--group=0",
    "--numeric-owner",
    "--format=gnu",
];

/// `weir-VERSION-ARCH-linux.tar.gz`.
pub fn write(release: &Release, program: &Program) -> Result<PathBuf> {
    let name = format!("weir-{}-{}-linux", release.version, program.arch);
    let directory = scratch(release, "tar")?;
    let top = directory.join(&name);
    copy_tree(&program.tree, &top)?;
    for file in ["LICENSE", "CHANGELOG.md"] {
        std::fs::copy(root().join(file), top.join("usr/share/doc/weir").join(file))?;
    }
    tree::set_times(release, &top)?;
    let file = release.output.join(format!("{name}.tar.gz"));
    let level = if release.is_fast { "-1" } else { "-9" };
    execute(
        Command::new("tar")
            .args(REPRODUCIBLE)
            .arg(format!("--use-compress-program=gzip {level}n"))
            .arg("-cf")
            .args([&file, Path::new(&name)])
            .current_dir(directory),
    )?;
    Ok(file)
}
