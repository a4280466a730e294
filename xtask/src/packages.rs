//! The Debian packages required for building and testing, installed when missing.

use std::process::{Command, Stdio};

use anyhow::Result;

use crate::{execute, is_root, package};

/// Required for linking libbpf.
pub const BUILD: &[&str] = &["gcc", "make", "pkg-config", "libelf-dev", "zlib1g-dev"];

/// Required for the live tests and the comparisons with other tools: load generators, real
/// workloads, tools to compare with and third-party clients; the verifier of service units; the C
/// compiler for aarch64; and Java with what fetches Flink.
pub const TEST: &[&str] = &[
    "fio",
    "blktrace",
    "clang",
    "llvm",
    "bpftool",
    "prometheus",
    "prometheus-alertmanager",
    "postgresql",
    "python3-venv",
    "iproute2",
    "libnbd-bin",
    "systemd",
    "gcc-aarch64-linux-gnu",
    "libc6-dev-arm64-cross",
    "default-jdk-headless",
    "maven",
];

/// Required for the tests with real guests: the emulator, the components of the guest, libvirt, and
/// the tool whose columns weir prints.
pub const GUEST: &[&str] = &[
    "qemu-system-x86",
    "qemu-utils",
    "busybox-static",
    "cpio",
    "xz-utils",
    "dmsetup",
    "e2fsprogs",
    "xfsprogs",
    "btrfs-progs",
    "sqlite3",
    "libvirt-daemon",
    "libvirt-clients",
    "sysstat",
];

/// Required for guests of another architecture, besides what packages a release.
pub const FOREIGN_GUEST: &[&str] = &["qemu-system-arm", "debian-archive-keyring", "mmdebstrap"];

/// Required for the tests of the console's page: a browser, which Ubuntu has as a snap only, and
/// the type checker of its scripts.
pub const BROWSER: &[&str] = &["chromium", "node-typescript"];

/// Installs all of them.
pub fn run(_args: &[String]) -> Result<()> {
    ensure(BUILD)?;
    ensure(TEST)?;
    ensure_offered(BROWSER)?;
    ensure(GUEST)?;
    ensure(package::TOOLS)
}

/// Installs those of `packages` that are missing. Without root or apt it only prints their names:
/// the build or the tests then report missing programs themselves.
pub fn ensure(packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> = packages.iter().copied().filter(|p| !installed(p)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !is_root() || !exists("apt-get") {
        eprintln!("not installed, and only root can install them: apt-get install {list}");
        return Ok(());
    }
    eprintln!("installing {list}");
    // The lists may be absent on a fresh machine or outdated with respect to the mirror.
    crate::execute(apt().args(["update", "-qq"]))?;
    execute(
        apt()
            .args(["install", "-qq", "-y", "--no-install-recommends"])
            .args(missing),
    )
}

/// As [`ensure`], without the packages that this distribution does not have: the tests that need
/// them are skipped, and print that.
pub fn ensure_offered(packages: &[&str]) -> Result<()> {
    let is_offered = |package: &&str| {
        let show = Command::new("apt-cache")
            .args(["show", package])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        installed(package) || show.is_ok_and(|status| status.success())
    };
    ensure(
        &packages
            .iter()
            .copied()
            .filter(is_offered)
            .collect::<Vec<_>>(),
    )
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdout(Stdio::null());
    command
}

fn installed(package: &str) -> bool {
    let query = Command::new("dpkg-query")
        .args(["-W", "-f=${db:Status-Status}", package])
        .stderr(Stdio::null())
        .output();
    query.is_ok_and(|out| out.stdout == b"installed")
}

/// True when a program is on the path.
pub fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
