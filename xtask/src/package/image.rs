//! The container image: an OCI layout (github.com/opencontainers/image-spec) with the static
//! program and nothing else to execute, written by umoci without a daemon.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::{Program, Release, date, scratch, tar, tree};
use crate::execute;

/// What a program without a distribution needs: the names of users, and the authorities of TLS.
const FILES: &[(&str, &str)] = &[
    (
        "etc/passwd",
        "root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n",
    ),
    ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
    ("etc/nsswitch.conf", "hosts: files dns\n"),
];

const AUTHORITIES: &str = "etc/ssl/certs/ca-certificates.crt";

/// `weir-VERSION-ARCH.oci.tar`: the layout as an archive, which `podman load` and `skopeo` read.
pub fn write(release: &Release, program: &Program) -> Result<PathBuf> {
    let directory = scratch(release, "image")?;
    let files = directory.join("files");
    for (name, content) in FILES {
        let path = files.join(name);
        fs::create_dir_all(path.parent().context("a file in a directory")?)?;
        fs::write(path, content)?;
    }
    let host = PathBuf::from("/").join(AUTHORITIES);
    if host.exists() {
        fs::create_dir_all(files.join("etc/ssl/certs"))?;
        fs::copy(&host, files.join(AUTHORITIES))?;
    }
    for directory in ["usr/bin", "tmp", "var/lib/weir"] {
        fs::create_dir_all(files.join(directory))?;
    }
    fs::copy(&program.binary, files.join("usr/bin/weir"))?;
    tree::set_times(release, &files)?;
    let layout = directory.join("layout");
    let created = date(release, "+%Y-%m-%dT%H:%M:%SZ")?;
    let image = format!("{}:{}", layout.display(), release.version);
    let history = format!("--history.created={}", created);
    let umoci = |args: &[&str]| execute(Command::new("umoci").args(args));
    umoci(&["init", "--layout", &layout.to_string_lossy()])?;
    umoci(&["new", "--image", &image])?;
    umoci(&[
        "insert",
        "--image",
        &image,
        &history,
        &files.to_string_lossy(),
        "/",
    ])?;
    let set =
        |key: &str, value: &str| format!("--config.label=org.opencontainers.image.{key}={value}");
    umoci(&[
        "config",
        "--image",
        &image,
        &history,
        &format!("--created={}", created),
        "--os=linux",
        &format!("--architecture={}", program.debian_arch()),
        "--config.entrypoint=/usr/bin/weir",
        "--config.cmd=--help",
        "--config.env=PATH=/usr/bin",
        &set("title", "weir"),
        &set("version", &release.version),
        &set("revision", &release.commit),
        &set("licenses", "Apache-2.0"),
    ])?;
    umoci(&["gc", "--layout", &layout.to_string_lossy()])?;
    tree::set_times(release, &layout)?;
    let file = release
        .output
        .join(format!("weir-{}-{}.oci.tar", release.version, program.arch));
    execute(
        Command::new("tar")
            .args(tar::REPRODUCIBLE)
            .arg("-C")
            .arg(&layout)
            .arg("-cf")
            .arg(&file)
            .arg("."),
    )?;
    Ok(file)
}
