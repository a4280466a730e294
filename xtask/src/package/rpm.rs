//! The RPM package, by rpmbuild from `packaging/weir.spec`; it finds the dependencies on libraries.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::{Program, Release, date, maintainer, scratch};
use crate::{execute, root};

/// `weir-VERSION-1.ARCH.rpm`.
pub fn write(release: &Release, program: &Program) -> Result<PathBuf> {
    let directory = scratch(release, "rpm")?;
    let version = &release.version;
    let defines = [
        format!("_topdir {}", directory.display()),
        format!("weir_version {version}"),
        format!("weir_tree {}", program.tree.display()),
        format!("weir_source {}", root().display()),
        format!("weir_date {}", date(release, "+%a %b %d %Y")?),
        format!("packager {}", maintainer(release)?),
        format!(
            "_binary_payload {}",
            if release.is_fast {
                "w1.gzdio"
            } else {
                "w19.zstdio"
            }
        ),
        // Equal trees give equal packages: no time, host or directory of the build.
        "_buildhost localhost".to_owned(),
        "use_source_date_epoch_as_buildtime 1".to_owned(),
        "clamp_mtime_to_source_date_epoch 1".to_owned(),
        "_build_id_links none".to_owned(),
        "debug_package %{nil}".to_owned(),
        "__os_install_post %{nil}".to_owned(),
    ];
    let defines = defines.iter().flat_map(|define| ["--define", define]);
    execute(
        Command::new("rpmbuild")
            .args(["-bb", "--quiet", "--target", program.arch])
            .args(defines)
            .arg(root().join("packaging/weir.spec"))
            .env("SOURCE_DATE_EPOCH", &release.epoch),
    )?;
    let name = format!("weir-{version}-1.{}.rpm", program.arch);
    let file = release.output.join(&name);
    fs::rename(directory.join("RPMS").join(program.arch).join(&name), &file)?;
    Ok(file)
}
