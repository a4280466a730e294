//! The installed files: what every format contains, below `usr` and `etc`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use weir_testing::output;

use super::{Program, Release, licences, scratch};
use crate::{execute, root};

/// Files of the repository and where they are installed.
const FILES: &[(&str, &str)] = &[
    ("packaging/agent.toml", "etc/weir/agent.toml"),
    ("packaging/monitor.toml", "etc/weir/monitor.toml"),
    (
        "packaging/tapdisk.toml",
        "usr/share/doc/weir/examples/tapdisk.toml",
    ),
    (
        "packaging/weir-act.service",
        "usr/lib/systemd/system/weir-act.service",
    ),
    (
        "packaging/weir-agent.service",
        "usr/lib/systemd/system/weir-agent.service",
    ),
    (
        "packaging/weir-exporter.service",
        "usr/lib/systemd/system/weir-exporter.service",
    ),
    (
        "packaging/weir-monitor.service",
        "usr/lib/systemd/system/weir-monitor.service",
    ),
    (
        "packaging/weir-tapdisk@.service",
        "usr/lib/systemd/system/weir-tapdisk@.service",
    ),
    (
        "packaging/weir.sysusers.conf",
        "usr/lib/sysusers.d/weir.conf",
    ),
    (
        "packaging/weir.tmpfiles.conf",
        "usr/lib/tmpfiles.d/weir.conf",
    ),
    (
        "packaging/flink/libraries.sh",
        "usr/share/doc/weir/examples/flink/libraries.sh",
    ),
    (
        "packaging/flink/pom.xml",
        "usr/share/doc/weir/examples/flink/pom.xml",
    ),
    (
        "packaging/flink/weir/flink/ApproxCountDistinct.java",
        "usr/share/doc/weir/examples/flink/weir/flink/ApproxCountDistinct.java",
    ),
    (
        "packaging/flink/weir/flink/Buckets.java",
        "usr/share/doc/weir/examples/flink/weir/flink/Buckets.java",
    ),
    (
        "packaging/flink/weir/flink/DoubleQuantile.java",
        "usr/share/doc/weir/examples/flink/weir/flink/DoubleQuantile.java",
    ),
    (
        "packaging/flink/weir/flink/Histogram.java",
        "usr/share/doc/weir/examples/flink/weir/flink/Histogram.java",
    ),
    (
        "packaging/flink/weir/flink/LogLinear.java",
        "usr/share/doc/weir/examples/flink/weir/flink/LogLinear.java",
    ),
    (
        "packaging/flink/weir/flink/MergedApproxCountDistinct.java",
        "usr/share/doc/weir/examples/flink/weir/flink/MergedApproxCountDistinct.java",
    ),
    (
        "packaging/flink/weir/flink/MergedDoubleQuantile.java",
        "usr/share/doc/weir/examples/flink/weir/flink/MergedDoubleQuantile.java",
    ),
    (
        "packaging/flink/weir/flink/MergedHistogram.java",
        "usr/share/doc/weir/examples/flink/weir/flink/MergedHistogram.java",
    ),
    (
        "packaging/flink/weir/flink/MergedQuantile.java",
        "usr/share/doc/weir/examples/flink/weir/flink/MergedQuantile.java",
    ),
    (
        "packaging/flink/weir/flink/MergedTop.java",
        "usr/share/doc/weir/examples/flink/weir/flink/MergedTop.java",
    ),
    (
        "packaging/flink/weir/flink/Partial.java",
        "usr/share/doc/weir/examples/flink/weir/flink/Partial.java",
    ),
    (
        "packaging/flink/weir/flink/Quantile.java",
        "usr/share/doc/weir/examples/flink/weir/flink/Quantile.java",
    ),
    (
        "packaging/flink/weir/flink/Ranking.java",
        "usr/share/doc/weir/examples/flink/weir/flink/Ranking.java",
    ),
    (
        "packaging/flink/weir/flink/Top.java",
        "usr/share/doc/weir/examples/flink/weir/flink/Top.java",
    ),
    (
        "packaging/prometheus/weir-dashboard.json",
        "usr/share/doc/weir/examples/prometheus/weir-dashboard.json",
    ),
    (
        "packaging/prometheus/weir-fleet-dashboard.json",
        "usr/share/doc/weir/examples/prometheus/weir-fleet-dashboard.json",
    ),
    (
        "packaging/prometheus/weir-fleet-rules.yml",
        "usr/share/doc/weir/examples/prometheus/weir-fleet-rules.yml",
    ),
    (
        "packaging/prometheus/weir-rules.yml",
        "usr/share/doc/weir/examples/prometheus/weir-rules.yml",
    ),
    ("README.md", "usr/share/doc/weir/README.md"),
];

/// The shells and the files of their completions.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/weir"),
    ("fish", "usr/share/fish/vendor_completions.d/weir.fish"),
    ("zsh", "usr/share/zsh/vendor-completions/_weir"),
];

/// The tree of a binary; `native` is one that runs on this host and describes itself.
pub fn program(release: &Release, binary: &Path, native: &Path) -> Result<Program> {
    let arch = arch(binary)?;
    let tree = scratch(release, &format!("tree-{arch}"))?;
    for (from, to) in FILES {
        write(&tree.join(to), &fs::read(root().join(from)).context(*from)?)?;
    }
    fs::create_dir_all(tree.join("etc/weir/tapdisk"))?;
    for (shell, to) in COMPLETIONS {
        let script = output(Command::new(native).args(["completions", shell]))?;
        write(&tree.join(to), script.as_bytes())?;
    }
    let third_party = licences::texts(&release.crates)?;
    write(
        &tree.join("usr/share/doc/weir/third-party.txt"),
        third_party.as_bytes(),
    )?;
    let pages = tree.join("usr/share/man/man1");
    execute(Command::new(native).arg("man").arg(&pages))?;
    execute(Command::new("gzip").arg("-9nr").arg(&pages))?;
    let installed = tree.join("usr/bin/weir");
    write(
        &installed,
        &fs::read(binary).with_context(|| binary.display().to_string())?,
    )?;
    let strip = ["--strip-all", "--remove-section=.comment"];
    execute(Command::new("llvm-strip").args(strip).arg(&installed))?;
    fs::set_permissions(&installed, fs::Permissions::from_mode(0o755))?;
    set_times(release, &tree)?;
    Ok(Program {
        binary: installed,
        arch,
        tree,
    })
}

/// Sets the timestamps and the modes of all files and directories to those of the release.
pub fn set_times(release: &Release, tree: &Path) -> Result<()> {
    execute(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(tree))?;
    let date = format!("--date=@{}", release.epoch);
    let touch = ["-exec", "touch", "--no-dereference", &date, "{}", "+"];
    execute(Command::new("find").arg(tree).args(["-depth"]).args(touch))
}

fn write(to: &Path, content: &[u8]) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file in a directory")?)?;
    fs::write(to, content).with_context(|| to.display().to_string())
}

/// The architecture of a binary: `e_machine` of its ELF header (elf.h).
fn arch(binary: &Path) -> Result<&'static str> {
    let content = fs::read(binary).with_context(|| binary.display().to_string())?;
    match content.get(18..20) {
        Some([62, 0]) => Ok("x86_64"),
        Some([183, 0]) => Ok("aarch64"),
        _ => bail!("{}: neither x86-64 nor aarch64", binary.display()),
    }
}
