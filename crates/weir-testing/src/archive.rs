//! Debian's packages of one suite and architecture: those of the host's own apt, or others on its
//! mirror.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::build::files;
use crate::kernel::GuestKernel;
use crate::kit::target_folder;
use crate::run::output;

/// The keys of all suites, from package debian-archive-keyring.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The packages of one suite.
pub(crate) struct Archive {
    /// The configuration of apt; `None` for that of the host.
    config: Option<PathBuf>,
}

impl Archive {
    /// The packages of a kernel's suite and architecture. If its suite is not the host's, the
    /// package lists are in cargo's target folder: the host does not install from them.
    pub(crate) fn of(kernel: &GuestKernel) -> Result<Archive> {
        let Some(suite) = kernel.suite else {
            return Ok(Archive { config: None });
        };
        let architecture = kernel.architecture;
        let name = format!("{suite}-{}", architecture.debian);
        let folder = target_folder().join("apt").join(name);
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(part))?;
        }
        let at = |name: &str| folder.join(name).display().to_string();
        let source = format!("deb [signed-by={KEYRING}] {} {suite} main\n", mirror()?);
        fs::write(at("sources"), source)?;
        let mut options = format!(
            "Dir::Etc::sourcelist \"{}\";\nDir::Etc::sourceparts \"-\";\n\
             Dir::State::lists \"{}\";\nDir::Cache \"{}\";\n\
             Acquire::Languages \"none\";\nAPT::Sandbox::User \"root\";\n\
             Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n",
            at("sources"),
            at("lists"),
            at("cache")
        );
        if architecture.is_foreign() {
            let name = architecture.debian;
            options += &format!(
                "APT::Architecture \"{name}\";\nAPT::Architectures \"{name}\";\n\
                 Dir::State::status \"/dev/null\";\n"
            );
        }
        let config = folder.join("apt.conf");
        fs::write(&config, options)?;
        Ok(Archive {
            config: Some(config),
        })
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args);
        if let Some(config) = &self.config {
            command.env("APT_CONFIG", config);
        }
        command
    }

    fn update(&self) -> Result<()> {
        output(&mut self.command("apt-get", &["update", "-qq"])).map(|_| ())
    }

    fn dependencies(&self, package: &str) -> Result<Vec<String>> {
        let listing = output(&mut self.command("apt-cache", &["depends", package]))?;
        let names = listing.lines().filter_map(|line| {
            let (_, name) = line.split_once("Depends: ")?;
            Some(name.to_owned())
        });
        Ok(names.collect())
    }

    /// The package of the newest kernel of a line, such as `linux-image-6.1.0-56-cloud-amd64`.
    pub(crate) fn newest(&self, line: &str) -> Result<String> {
        let image = || {
            let names = self.dependencies(line).unwrap_or_default();
            names
                .into_iter()
                .find(|name| name.starts_with("linux-image-"))
        };
        if let Some(name) = image() {
            return Ok(name);
        }
        self.update()?;
        image().with_context(|| format!("apt has no package {line}"))
    }

    /// Unpacks the files of a kernel into `unpacked`. Those of newer kernels are in packages that
    /// `linux-image-VERSION` depends on.
    pub(crate) fn unpack_kernel(&self, image: &str, unpacked: &Path) -> Result<()> {
        let version = image.trim_start_matches("linux-image-");
        let parts = self.dependencies(image)?.into_iter();
        let parts = parts.filter(|name| name.starts_with("linux-") && name.ends_with(version));
        for package in parts.chain([image.to_owned()]) {
            self.unpack(&package, unpacked)?;
        }
        Ok(())
    }

    /// Downloads a package and unpacks it into `unpacked`.
    pub(crate) fn unpack(&self, package: &str, unpacked: &Path) -> Result<()> {
        let downloads = unpacked.with_extension("downloads");
        fs::create_dir_all(&downloads)?;
        let download = || {
            let mut apt = self.command("apt-get", &["download", "-qq", package]);
            output(apt.current_dir(&downloads))
        };
        // A package list that is older than the last update refers to a file that the mirror does
        // not have any more.
        if download().is_err() {
            self.update()?;
            download()?;
        }
        let archive = files(&downloads)?.pop();
        let archive =
            archive.with_context(|| format!("apt-get download {package} left no file"))?;
        let mut unpack = Command::new("dpkg-deb");
        output(unpack.arg("-x").args([&archive, unpacked]))?;
        fs::remove_dir_all(&downloads)?;
        Ok(())
    }
}

/// The address of the mirror that the host's own packages of Debian are from.
fn mirror() -> Result<String> {
    let mut targets = Command::new("apt-get");
    targets.args(["indextargets", "--format", "$(REPO_URI)"]);
    targets.args(["Created-By: Packages", "Origin: Debian", "Label: Debian"]);
    let listing = output(&mut targets)?;
    let first = listing.lines().next();
    first
        .map(str::to_owned)
        .context("the packages of this host are not Debian's")
}
