//! Builds a kit: a kernel of Debian's, a few of its modules, busybox and the load program.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::archive::Archive;
use crate::cross::CrossRoot;
use crate::kernel::{AT_BOOT, GuestKernel, ON_DEMAND, X86_64};
use crate::kit::{Kit, sources_hash, which};
use crate::repository;
use crate::run::output;

impl Kit {
    /// The kit of a kernel, built if it does not exist or its sources have changed. Needs an x86-64
    /// host with Debian's apt, busybox-static, cpio and xz-utils, and rustc; for another
    /// architecture what [`CrossRoot`] needs.
    pub fn build(kernel: &GuestKernel) -> Result<Kit> {
        if std::env::consts::ARCH != X86_64.name {
            bail!("guests are built on an x86-64 host");
        }
        let kit = Kit::at(kernel);
        let folder = kit.folder();
        let archive = Archive::of(kernel)?;
        let package = archive.newest(kernel.package)?;
        let made_of = format!("{package}\n{}\n", sources_hash());
        if fs::read_to_string(kit.stamp()).is_ok_and(|stamp| stamp == made_of) {
            return Ok(kit);
        }
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
        }
        let root = folder.join("root");
        for part in ["bin", "dev", "proc", "sys", "tmp", "modules"] {
            fs::create_dir_all(root.join(part))?;
        }
        install_kernel(&kit, &archive, &package)?;
        install_modules(folder, &root)?;
        install_programs(&kit, &archive, &root)?;
        fs::remove_dir_all(folder.join(UNPACKED))?;
        pack(&root, &kit.initramfs())?;
        fs::remove_dir_all(&root)?;
        // Written last: a kit without it is incomplete.
        fs::write(kit.stamp(), made_of)?;
        Ok(kit)
    }

    /// Whether its programs are for another architecture than the host's.
    fn is_foreign(&self) -> bool {
        self.architecture().is_foreign()
    }
}

/// The temporary folder of an unpacked package.
const UNPACKED: &str = "unpacked";

/// Installs the kernel beside the root folder and leaves the package unpacked.
fn install_kernel(kit: &Kit, archive: &Archive, package: &str) -> Result<()> {
    let unpacked = kit.folder().join(UNPACKED);
    archive.unpack_kernel(package, &unpacked)?;
    let files = all_files(&unpacked)?;
    let is_image = |path: &&PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with("vmlinuz")
    };
    let image = files.iter().find(is_image);
    let image = image.with_context(|| format!("{package} has no kernel"))?;
    fs::copy(image, kit.kernel())?;
    Ok(())
}

/// Installs modules of the unpacked package, and those that they depend on, into the root folder:
/// `/modules/NAME.order` lists what to load for each, in order. It is empty for a module that is
/// built in, and absent for one that the kernel does not have.
fn install_modules(folder: &Path, root: &Path) -> Result<()> {
    let unpacked = folder.join(UNPACKED);
    let files = all_files(&unpacked)?;
    let named = |path: &Path| {
        let name = path.file_name()?.to_str()?;
        let name = name
            .strip_suffix(".ko")
            .or_else(|| name.strip_suffix(".ko.xz"))?;
        Some(name.replace('-', "_"))
    };
    let found = |name: &str| {
        files
            .iter()
            .find(|path| named(path).as_deref() == Some(name))
    };
    let mut boot = Vec::new();
    for name in AT_BOOT.iter().chain(ON_DEMAND) {
        let mut order = Vec::new();
        if let Some(path) = found(name) {
            install_module(path, name, root, &found, &mut order)?;
        } else if !is_built_in(&files, name)? {
            continue;
        }
        fs::write(root.join(format!("modules/{name}.order")), order.join("\n"))?;
        if AT_BOOT.contains(name) {
            order.retain(|module| !boot.contains(module));
            boot.extend(order);
        }
    }
    fs::write(root.join("modules/order"), boot.join("\n"))?;
    Ok(())
}

/// Installs one module after those that it depends on, and adds their names to `order`.
fn install_module<'a>(
    path: &Path,
    name: &str,
    root: &Path,
    found: &impl Fn(&str) -> Option<&'a PathBuf>,
    order: &mut Vec<String>,
) -> Result<()> {
    if order.iter().any(|module| module == name) {
        return Ok(());
    }
    let content = match path.extension().is_some_and(|e| e == "xz") {
        false => fs::read(path)?,
        true => {
            let unpack = Command::new("xz").arg("-dc").arg(path).output();
            let unpack = unpack.context("cannot start xz: install xz-utils")?;
            if !unpack.status.success() {
                bail!("xz -dc {} ended with {}", path.display(), unpack.status);
            }
            unpack.stdout
        }
    };
    // Section .modinfo has texts KEY=VALUE that end in zero.
    const KEY: &[u8] = b"\0depends=";
    let at = content.windows(KEY.len()).position(|window| window == KEY);
    let depends = at.map_or(&[][..], |at| &content[at + KEY.len()..]);
    let end = depends.iter().position(|byte| *byte == 0).unwrap_or(0);
    let depends = String::from_utf8_lossy(&depends[..end]).replace('-', "_");
    for other in depends.split(',').filter(|other| !other.is_empty()) {
        let path =
            found(other).with_context(|| format!("{name} needs {other}, which is absent"))?;
        install_module(path, other, root, found, order)?;
    }
    fs::write(root.join(format!("modules/{name}.ko")), content)?;
    order.push(name.to_owned());
    Ok(())
}

/// True if a module is part of the kernel.
fn is_built_in(files: &[PathBuf], name: &str) -> Result<bool> {
    let list = files.iter().find(|path| path.ends_with("modules.builtin"));
    let list = fs::read_to_string(list.context("the package has no modules.builtin")?)?;
    let mut names = list.lines().filter_map(|line| line.rsplit('/').next());
    Ok(names.any(|file| file.replace('-', "_") == format!("{name}.ko")))
}

/// Installs init, busybox and the load program into the root folder.
fn install_programs(kit: &Kit, archive: &Archive, root: &Path) -> Result<()> {
    let busybox = match kit.is_foreign() {
        true => {
            let unpacked = kit.folder().join(UNPACKED);
            archive.unpack("busybox-static", &unpacked)?;
            unpacked.join("bin/busybox")
        }
        false => which("busybox").context("no busybox on this host: install busybox-static")?,
    };
    fs::copy(&busybox, root.join("bin/busybox"))?;
    std::os::unix::fs::symlink("busybox", root.join("bin/sh"))?;
    fs::write(root.join("init"), include_str!("init.sh"))?;
    output(Command::new("chmod").arg("755").arg(root.join("init")))?;
    compile_load_program(kit)?;
    fs::copy(kit.load_program(), root.join("bin/load"))?;
    Ok(())
}

/// Compiles the load program, on the host or in the [`CrossRoot`].
fn compile_load_program(kit: &Kit) -> Result<()> {
    const SOURCE: &str = "crates/weir-testing/src/bin/load.rs";
    let options = [
        "--edition=2024",
        "--crate-type=bin",
        "-Copt-level=2",
        "-Cpanic=abort",
        "-Cstrip=symbols",
        "-Ctarget-feature=+crt-static",
        SOURCE,
        "-o",
    ];
    if kit.is_foreign() {
        let cross = CrossRoot::open()?;
        let arch = kit.architecture().name;
        let target = format!("--target={arch}-unknown-linux-gnu");
        let linker = format!("-Clinker={arch}-linux-gnu-gcc");
        let words = [&["rustc"], &options[..], &["/tmp/load", &target, &linker]].concat();
        output(&mut cross.command(&[], &words)?)?;
        fs::copy(cross.path("/tmp/load"), kit.load_program())?;
        return Ok(());
    }
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut rustc = Command::new(rustc);
    let rustc = rustc.args(options).arg(kit.load_program());
    output(rustc.current_dir(repository::root())).map(drop)
}

/// Builds the archive that the kernel unpacks into memory.
fn pack(root: &Path, archive: &Path) -> Result<()> {
    let file = fs::File::create(archive)?;
    let mut cpio = Command::new("cpio")
        .args(["--quiet", "-o", "-H", "newc", "-R", "0:0"])
        .current_dir(root)
        .stdin(Stdio::piped())
        .stdout(file)
        .spawn()
        .context("cannot start cpio: install it")?;
    let mut names = String::new();
    for path in all_files(root)? {
        let name = path.strip_prefix(root).expect("it is below the root");
        names.push_str(&format!("{}\n", name.display()));
    }
    let mut stdin = cpio.stdin.take().expect("it is piped");
    stdin.write_all(names.as_bytes())?;
    drop(stdin);
    let status = cpio.wait()?;
    if !status.success() {
        bail!("cpio ended with {status}");
    }
    Ok(())
}

/// The entries of a folder.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    let paths: Result<Vec<PathBuf>, _> = entries.map(|e| e.map(|e| e.path())).collect();
    Ok(paths?)
}

/// All entries below a folder, folders before their entries.
fn all_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in files(folder)? {
        let within = path.is_dir() && !path.is_symlink();
        all.push(path.clone());
        if within {
            all.extend(all_files(&path)?);
        }
    }
    Ok(all)
}
