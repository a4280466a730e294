//! [`CrossRoot`]: a root of Debian packages with compilers for aarch64 and for static programs. The
//! host's toolchain and paths have no effect on what is compiled in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::repository::root;
use crate::skip::is_root;

/// The oldest suite whose rustc compiles weir (`rust-version` in Cargo.toml).
const SUITE: &str = "forky";

const PACKAGES: &[&str] = &[
    "ca-certificates",
    // The compilers.
    "cargo",
    "gcc",
    "gcc-aarch64-linux-gnu",
    "libstd-rust-dev:arm64",
    "rust-src",
    "rustc",
    // The C libraries, and what libelf is built with.
    "autoconf",
    "automake",
    "autopoint",
    "bison",
    "flex",
    "gawk",
    "gettext",
    "libc6-dev",
    "libelf-dev",
    "libelf-dev:arm64",
    "make",
    "musl-dev",
    "musl-dev:arm64",
    "pkg-config",
    "zlib1g-dev",
    "zlib1g-dev:arm64",
];

/// What the root shares with the host: its mounts end with the process.
const ENTER: &str = r#"
set -e
mkdir -p "$ROOT/weir" "$ROOT/cargo/registry"
mount --bind "$REPOSITORY" "$ROOT/weir"
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
    cp "$file" "$ROOT$file"
done
for part in cache index; do
    mkdir -p "$REGISTRY/$part" "$ROOT/cargo/registry/$part"
    mount --bind "$REGISTRY/$part" "$ROOT/cargo/registry/$part"
done
exec chroot "$ROOT" /usr/bin/env -i -C /weir PATH=/usr/bin:/usr/sbin HOME=/root \
    CARGO_HOME=/cargo CARGO_TARGET_DIR=/target "$@"
"#;

/// The root, in `target/cross` of the repository. In it, the repository is at `/weir`, and cargo
/// writes to `/target`.
#[derive(Debug)]
pub struct CrossRoot {
    directory: PathBuf,
}

impl CrossRoot {
    /// The root; it is made if it does not exist. Needs root and mmdebstrap.
    pub fn open() -> Result<CrossRoot> {
        let directory = directory();
        if directory.join("usr/bin/cargo").exists() {
            return Ok(CrossRoot { directory });
        }
        ensure!(
            is_root(),
            "compiling for other targets needs root, for a root of Debian packages"
        );
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        eprintln!(
            "making {}: the compilers of Debian {SUITE}",
            directory.display()
        );
        let made = Command::new("mmdebstrap")
            .args([
                "--variant=apt",
                "--architectures=amd64,arm64",
                "--quiet",
                &format!("--include={}", PACKAGES.join(",")),
                r#"--aptopt=APT::Install-Recommends "false""#,
                // Testing is renewed daily; a mirror or a clock may be behind.
                r#"--aptopt=Acquire::Check-Valid-Until "false""#,
                SUITE,
            ])
            .arg(&directory)
            .status()
            .context("cannot start mmdebstrap")?;
        if !made.success() {
            let _ = fs::remove_dir_all(&directory);
            bail!("mmdebstrap ended with {made}");
        }
        Ok(CrossRoot { directory })
    }

    /// A command in the root, in a mount namespace of its own, with these variables `NAME=VALUE`
    /// and in the folder of the repository.
    pub fn command(&self, environment: &[String], words: &[&str]) -> Result<Command> {
        let mut command = Command::new("unshare");
        command
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                ENTER,
                "sh",
            ])
            .args(environment)
            .args(words)
            .env("ROOT", &self.directory)
            .env("REPOSITORY", root())
            .env("REGISTRY", cargo_home()?.join("registry"));
        Ok(command)
    }

    /// The path on the host of a file in the root.
    pub fn path(&self, path: &str) -> PathBuf {
        self.directory.join(path.trim_start_matches('/'))
    }
}

/// The directory of cargo, `CARGO_HOME` or `~/.cargo`.
///
/// # Errors
/// When neither variable is set.
pub fn cargo_home() -> Result<PathBuf> {
    let home = std::env::var("CARGO_HOME").map(PathBuf::from);
    let of_user = || std::env::var("HOME").map(|home| Path::new(&home).join(".cargo"));
    home.or_else(|_| of_user())
        .context("neither CARGO_HOME nor HOME is set")
}

/// The static program of weir for an architecture, which `cargo xtask guest --all` builds.
pub fn static_program(arch: &str) -> PathBuf {
    directory().join(format!("target/{arch}-unknown-linux-musl/demo/weir"))
}

fn directory() -> PathBuf {
    root().join("target/cross")
}
