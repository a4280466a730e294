//! The Debian package, by debhelper: it adds the maintainer scripts for the units and the group,
//! the dependencies on libraries, and the checksums.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::{Program, Release, copy_tree, date, maintainer, scratch, tree};
use crate::{execute, root};

/// `weir_VERSION-1_ARCH.deb`.
pub fn write(release: &Release, program: &Program) -> Result<PathBuf> {
    let maintainer = maintainer(release)?;
    let directory = scratch(release, "deb")?.join("weir");
    copy_tree(&program.tree, &directory.join("tree"))?;
    copy_tree(&root().join("packaging/debian"), &directory.join("debian"))?;
    fs::copy(root().join("CHANGELOG.md"), directory.join("CHANGELOG"))?;
    let control = directory.join("debian/control");
    let text = fs::read_to_string(&control)?;
    fs::write(&control, text.replace("@MAINTAINER@", maintainer))?;
    let (version, date) = (&release.version, date(release, "-R")?);
    let changes = format!(
        "weir ({version}-1) unstable; urgency=medium\n\n  * Release {version}: see changelog.gz.\n\n -- \
         {maintainer}  {date}\n"
    );
    fs::write(directory.join("debian/changelog"), changes)?;
    tree::set_times(release, &directory)?;
    execute(
        Command::new("chmod")
            .arg("755")
            .arg(directory.join("debian/rules")),
    )?;
    let compression = if release.is_fast {
        "-Zgzip -z1"
    } else {
        "-Zxz"
    };
    let arch = program.debian_arch();
    execute(
        Command::new("dpkg-architecture")
            .args([
                "--host-arch",
                arch,
                "--force",
                "--command",
                "debian/rules binary",
            ])
            .env("SOURCE_DATE_EPOCH", &release.epoch)
            .env("DEB_COMPRESSION", compression)
            .env("DH_QUIET", "1")
            .current_dir(&directory),
    )?;
    let name = format!("weir_{version}-1_{arch}.deb");
    let file = release.output.join(&name);
    fs::rename(directory.with_file_name(&name), &file)?;
    Ok(file)
}
