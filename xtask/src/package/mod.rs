//! `cargo xtask package`: the files of a release, in `target/package`: packages for Debian and
//! Fedora, static archives, container images, the SBOM and the checksums (docs/release.md).
//!
//! Each format is a file in this directory and a line in [`FORMATS`]. All contain the same tree
//! ([`tree`]): the program, its pages and completions, the units and configurations of
//! `packaging/`. The formats are written by their reference tools: debhelper, rpmbuild, GNU tar,
//! umoci. Timestamps are those of the commit, so equal binaries give equal files.

mod cross;
mod deb;
mod image;
mod licences;
mod rpm;
mod sbom;
mod tar;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use weir_testing::output;

use crate::{execute, packages, root};

const USAGE: &str = "\
usage: cargo xtask package [OPTIONS]
  --format LIST      formats to write: deb,rpm,tar,image,sbom (default: all)
  --target LIST      targets of tar and image
                     (default: x86_64-unknown-linux-musl,aarch64-unknown-linux-musl)
  --profile NAME     profile of Cargo.toml to build with (default: release)
  --binary PATH      package this binary in all formats instead of building
  --output DIR       directory for the files (default: target/package)
  --version VERSION  version of the packages (default: that of Cargo.toml)
  --maintainer NAME  maintainer of the packages, NAME <ADDRESS> (default: $DEBFULLNAME <$DEBEMAIL>)
  --fast             compress for speed, for tests";

/// The Debian packages with the tools.
pub const TOOLS: &[&str] = &[
    "debhelper",
    "debian-archive-keyring",
    "lintian",
    "llvm",
    "mmdebstrap",
    "rpm",
    "rpmlint",
    "skopeo",
    "systemd-container",
    "umoci",
];

/// A format: its name, whether its binary is static, and its function, which returns the file.
type Format = (
    &'static str,
    Linkage,
    fn(&Release, &Program) -> Result<PathBuf>,
);

/// Which binary a format contains.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Linkage {
    /// That of the host's libraries.
    Dynamic,
    /// The one without libraries, once per target.
    Static,
}

/// Every format, in the order in which they are written.
const FORMATS: &[Format] = &[
    ("deb", Linkage::Dynamic, deb::write),
    ("rpm", Linkage::Dynamic, rpm::write),
    ("tar", Linkage::Static, tar::write),
    ("image", Linkage::Static, image::write),
    ("sbom", Linkage::Dynamic, sbom::write),
];

/// What all files of a release have in common.
struct Release {
    version: String,
    /// The commit, as git names it.
    commit: String,
    /// The time of the commit, in seconds since 1970: that of every file.
    epoch: String,
    maintainer: Option<String>,
    output: PathBuf,
    is_fast: bool,
    /// The crates in the program.
    crates: sbom::Crates,
}

/// A binary and what it is packaged with.
struct Program {
    binary: PathBuf,
    /// The architecture as Rust and RPM name it.
    arch: &'static str,
    /// The files as they are installed, below `usr` and `etc`.
    tree: PathBuf,
}

impl Program {
    /// The architecture as Debian and OCI name it.
    fn debian_arch(&self) -> &'static str {
        match self.arch {
            "aarch64" => "arm64",
            _ => "amd64",
        }
    }
}

/// The command line.
struct Options {
    formats: Vec<String>,
    targets: Vec<String>,
    profile: String,
    binary: Option<PathBuf>,
}

/// Builds the program and writes the files of the release.
///
/// # Errors
/// When an option is unknown, or a tool is missing or fails.
pub fn run(args: &[String]) -> Result<()> {
    let (options, release) = parse(args)?;
    packages::ensure(TOOLS)?;
    fs::create_dir_all(&release.output)?;
    let chosen = |format: &&Format| options.formats.iter().any(|name| name == format.0);
    let of = |linkage| {
        FORMATS
            .iter()
            .filter(chosen)
            .filter(move |f| f.1 == linkage)
    };
    let is_built_here = |target: &String| target.starts_with(std::env::consts::ARCH);
    // A program that runs on this host writes the manual pages and completions of all.
    let mut native = options.binary.clone();
    let mut files = Vec::new();
    if of(Linkage::Dynamic).next().is_some() || !options.targets.iter().any(is_built_here) {
        let binary = match &options.binary {
            Some(path) => path.clone(),
            None => build(&release, &options.profile)?,
        };
        let program = tree::program(&release, &binary, &binary)?;
        for (_, _, write) in of(Linkage::Dynamic) {
            files.push(write(&release, &program)?);
        }
        native = Some(binary);
    }
    let mut targets = options.targets;
    targets.sort_by_key(|target| !is_built_here(target));
    targets.retain(|_| of(Linkage::Static).next().is_some());
    for target in &targets {
        let binary = match &options.binary {
            Some(path) => path.clone(),
            None => cross::build(target, &options.profile, &release.commit)?,
        };
        let native = native.get_or_insert_with(|| binary.clone());
        let program = tree::program(&release, &binary, native)?;
        for (_, _, write) in of(Linkage::Static) {
            files.push(write(&release, &program)?);
        }
    }
    sums(&release, &files)
}

fn parse(args: &[String]) -> Result<(Options, Release)> {
    let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    let mut options = Options {
        formats: FORMATS.iter().map(|f| f.0.to_owned()).collect(),
        targets: list("x86_64-unknown-linux-musl,aarch64-unknown-linux-musl"),
        profile: "release".to_owned(),
        binary: None,
    };
    let variable = |name| std::env::var(name).ok();
    let mut release = Release {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: git(&["rev-parse", "HEAD"]).unwrap_or_default(),
        epoch: variable("SOURCE_DATE_EPOCH")
            .map_or_else(|| git(&["log", "-1", "--format=%ct"]), Ok)?,
        maintainer: variable("DEBFULLNAME")
            .zip(variable("DEBEMAIL"))
            .map(|(name, address)| format!("{name} <{address}>")),
        output: root().join("target/package"),
        is_fast: false,
        crates: sbom::Crates::read()?,
    };
    let mut rest = args.iter();
    while let Some(option) = rest.next() {
        if option == "--fast" {
            release.is_fast = true;
            continue;
        }
        let value = rest
            .next()
            .with_context(|| format!("{option}: no value\n{USAGE}"))?;
        match option.as_str() {
            "--format" => options.formats = list(value),
            "--target" => options.targets = list(value),
            "--profile" => options.profile.clone_from(value),
            "--binary" => options.binary = Some(fs::canonicalize(value).context(value.clone())?),
            "--output" => release.output = std::path::absolute(value)?,
            "--version" => release.version.clone_from(value),
            "--maintainer" => release.maintainer = Some(value.clone()),
            _ => bail!("unknown option {option}\n{USAGE}"),
        }
    }
    let known = |name: &String| FORMATS.iter().any(|f| f.0 == name);
    if let Some(name) = options.formats.iter().find(|name| !known(name)) {
        bail!("unknown format {name}\n{USAGE}");
    }
    if options.binary.is_some() {
        options.targets.truncate(1);
    }
    Ok((options, release))
}

/// Builds the static program of an architecture that tests use: [`weir_testing::static_program`].
///
/// # Errors
/// When a tool is missing or the build fails.
pub fn static_program(arch: &str) -> Result<PathBuf> {
    let commit = git(&["rev-parse", "HEAD"]).unwrap_or_default();
    cross::build(&format!("{arch}-unknown-linux-musl"), "demo", &commit)
}

/// Builds the program for this host, with the commit in it.
fn build(release: &Release, profile: &str) -> Result<PathBuf> {
    let mut command = crate::cargo();
    command.env("WEIR_COMMIT", &release.commit);
    // Paths in messages are those of the static program, wherever this one is built.
    let registry = weir_testing::cargo_home()?;
    let flags = [
        format!("--remap-path-prefix={}=/weir", root().display()),
        format!("--remap-path-prefix={}=/cargo", registry.display()),
    ];
    command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    execute(command.args([
        "build",
        "--locked",
        "--package",
        "weir",
        "--profile",
        profile,
    ]))?;
    Ok(root().join("target").join(directory(profile)).join("weir"))
}

/// The directory of a profile in a target directory.
fn directory(profile: &str) -> &str {
    if profile == "dev" { "debug" } else { profile }
}

/// Writes the SHA-256 of each file to `SHA256SUMS`, as sha256sum(1) checks it.
fn sums(release: &Release, files: &[PathBuf]) -> Result<()> {
    let names = files.iter().filter_map(|file| file.file_name());
    let mut command = Command::new("sha256sum");
    let sums = output(command.args(names).current_dir(&release.output))?;
    fs::write(release.output.join("SHA256SUMS"), &sums)?;
    print!("{sums}");
    Ok(())
}

/// What git prints about the repository, without the line break.
fn git(args: &[&str]) -> Result<String> {
    let printed = output(Command::new("git").args(args).current_dir(root()));
    let printed = printed.context("not in a git repository: set SOURCE_DATE_EPOCH")?;
    Ok(printed.trim().to_owned())
}

/// The time of the release in a format of date(1), in UTC and English.
fn date(release: &Release, format: &str) -> Result<String> {
    let epoch = format!("--date=@{}", release.epoch);
    let mut command = Command::new("date");
    let date = output(command.env("LC_ALL", "C").args(["-u", &epoch, format]))?;
    Ok(date.trim().to_owned())
}

/// The maintainer that packages name.
fn maintainer(release: &Release) -> Result<&str> {
    let maintainer = release.maintainer.as_deref();
    maintainer.context("packages name a maintainer: set DEBFULLNAME and DEBEMAIL, or --maintainer")
}

/// An empty directory below that of the output.
fn scratch(release: &Release, name: &str) -> Result<PathBuf> {
    let directory = release.output.join("work").join(name);
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    fs::create_dir_all(&directory)?;
    Ok(directory)
}

/// Copies a directory with its modes and timestamps.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    execute(Command::new("cp").arg("-a").arg(from.join(".")).arg(to))
}
