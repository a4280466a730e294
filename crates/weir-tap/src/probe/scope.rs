//! [`Scope`]: whose hits of a probe are read, and the files that its path names for these
//! processes.
//!
//! A path is that of the process: in its mount namespace and below its root directory, which
//! symbolic links do not leave (openat2(2), `RESOLVE_IN_ROOT`). A probe is attached to the inode,
//! so a file with several paths or mounts is one file.

use std::collections::HashSet;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, fstatfs, openat, openat2};
use rustix::io::Errno;
use weir_model::ProbeScope;

use super::ProbeError;
use super::elf::{Program, UsdtSite};
use crate::ebpf::cgroups::Root;

/// Maximum number of different files that one path may name in the processes of a cgroup.
const FILES_MAX: usize = 64;

/// Maximum number of processes of a cgroup that are searched for files.
const PROCESSES_MAX: usize = 4096;

/// Inode number of the root of the cgroup hierarchy (kernfs).
const ROOT_INODE: u64 = 1;

/// Inode number of the first process namespace (`PROC_PID_INIT_INO` of the kernel).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Type of file systems of layers (`OVERLAYFS_SUPER_MAGIC`).
const OVERLAY: u64 = 0x794c_7630;

/// Whose hits are read.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// This process; 0 for all.
    pub pid: u32,
    /// This cgroup and those below it.
    pub cgroup: Option<ScopeCgroup>,
}

/// A cgroup (v2).
#[derive(Clone, Debug)]
pub struct ScopeCgroup {
    /// Its directory.
    path: PathBuf,
    /// Its number in the kernel.
    pub id: u64,
    /// Its depth; that of the root is 0.
    pub level: u32,
}

/// A program or a library that a probe is attached to.
#[derive(Clone, Debug)]
pub struct ProbedFile {
    /// A path by which this process opens it.
    pub path: String,
    /// Keeps the path valid.
    _open: Option<Arc<OwnedFd>>,
    /// Where the probe is.
    pub sites: Vec<UsdtSite>,
}

impl Scope {
    /// The scope that a definition states.
    pub fn new(stated: &ProbeScope) -> Result<Scope, ProbeError> {
        if let Some(pid) = stated.pid {
            let own = fs::metadata("/proc/self/ns/pid");
            if own.is_ok_and(|own| own.ino() != FIRST_PID_NAMESPACE) {
                let message = "PID is a number of the host, and this is another process namespace";
                let help = "run weir in the process namespace of the host, or use CGROUP";
                return Err(ProbeError::new(message).help(help));
            }
            if !is_process(pid) {
                return Err(ProbeError::new(format!("there is no process {pid}")));
            }
        }
        Ok(Scope {
            pid: stated.pid.unwrap_or(0),
            cgroup: stated.cgroup.as_deref().map(cgroup).transpose()?,
        })
    }

    /// The files that `file` names for the processes of the scope and for which `find` finds sites.
    /// Each inode is one file.
    pub fn files(
        &self,
        file: &str,
        find: impl Fn(&Program) -> Result<Vec<UsdtSite>, ProbeError>,
    ) -> Result<Vec<ProbedFile>, ProbeError> {
        let processes = match &self.cgroup {
            _ if self.pid != 0 => vec![self.pid],
            Some(cgroup) => processes(cgroup)?,
            None => {
                let sites = find(&read(file, file)?)?;
                let path = file.into();
                return Ok(vec![ProbedFile {
                    path,
                    _open: None,
                    sites,
                }]);
            }
        };
        let (mut roots, mut known) = (HashSet::new(), HashSet::new());
        let (mut files, mut error) = (Vec::new(), None);
        for pid in processes {
            // Processes of the same root directory and mount namespace have the same file.
            if !root_of(pid).is_none_or(|root| roots.insert(root)) {
                continue;
            }
            let found = open(pid, file).and_then(|open| {
                if !identity(&open).is_none_or(|identity| known.insert(identity)) {
                    return Ok(());
                }
                let path = format!("/proc/self/fd/{}", open.as_raw_fd());
                let sites = find(&read(file, &path)?)?;
                files.push(ProbedFile {
                    path,
                    _open: Some(Arc::new(open)),
                    sites,
                });
                Ok(())
            });
            error = error.or(found.err());
            if files.len() > FILES_MAX {
                let message = format!("{file} is more than {FILES_MAX} files in this cgroup");
                return Err(ProbeError::new(message).help("name a cgroup below it"));
            }
        }
        match error {
            Some(error) if files.is_empty() => Err(error),
            None if files.is_empty() => {
                let message =
                    format!("no process runs in the cgroup, so {file} is not known there");
                Err(ProbeError::new(message).help("start the program first"))
            }
            _ => Ok(files),
        }
    }
}

/// The cgroup at `path`, as column `cgroup` has it, or as its directory is called.
fn cgroup(path: &str) -> Result<ScopeCgroup, ProbeError> {
    let root = Root::unified().map(|root| root.path).ok_or_else(|| {
        let help = "mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified";
        ProbeError::new("cgroup v2 is not mounted").help(help)
    })?;
    let inode = |path: &Path| {
        let found = fs::metadata(path).ok().filter(fs::Metadata::is_dir);
        found.map(|found| found.ino())
    };
    if inode(&root) != Some(ROOT_INODE) {
        let message = format!("{} is not the root of the cgroups", root.display());
        let help = "run weir in the cgroup namespace of the host";
        return Err(ProbeError::new(message).help(help));
    }
    let below = Path::new(path).strip_prefix(&root).ok();
    let below = below.unwrap_or_else(|| Path::new(path.trim_start_matches('/')));
    let is_name = |part| matches!(part, std::path::Component::Normal(_));
    let directory = root.join(below);
    match inode(&directory) {
        Some(id) if below.components().all(is_name) => Ok(ScopeCgroup {
            path: directory,
            id,
            level: below.components().count() as u32,
        }),
        _ => {
            let message = format!("there is no cgroup `{path}` in {}", root.display());
            let help = "column `cgroup` of a probe has the paths of cgroups (v2)";
            Err(ProbeError::new(message).help(help))
        }
    }
}

/// The processes of a cgroup and those below it.
fn processes(cgroup: &ScopeCgroup) -> Result<Vec<u32>, ProbeError> {
    let (mut found, mut directories) = (Vec::new(), vec![cgroup.path.clone()]);
    while let Some(directory) = directories.pop() {
        // A cgroup may be removed meanwhile; one of threads does not list processes.
        let listed = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
        found.extend(listed.lines().filter_map(|pid| pid.parse::<u32>().ok()));
        let below = fs::read_dir(&directory).into_iter().flatten().flatten();
        let below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        directories.extend(below.map(|entry| entry.path()));
        if found.len() > PROCESSES_MAX {
            let message = format!("the cgroup has more than {PROCESSES_MAX} processes");
            return Err(ProbeError::new(message).help("name a cgroup below it"));
        }
    }
    // Processes of other namespaces are 0. Kernel threads and ended processes have no files.
    found.retain(|pid| *pid != 0 && root_of(*pid).is_some());
    Ok(found)
}

fn is_process(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// The mount namespace of a process, and its root directory.
fn root_of(pid: u32) -> Option<(u64, u64, u64)> {
    let namespace = fs::metadata(format!("/proc/{pid}/ns/mnt")).ok()?;
    let root = fs::metadata(format!("/proc/{pid}/root")).ok()?;
    Some((namespace.ino(), root.dev(), root.ino()))
}

/// Opens `file` as process `pid` would.
fn open(pid: u32, file: &str) -> Result<OwnedFd, ProbeError> {
    let in_process = || -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let root = format!("/proc/{pid}/root");
        let root = openat(CWD, root, flags | OFlags::DIRECTORY, Mode::empty())?;
        openat2(root, file, flags, Mode::empty(), ResolveFlags::IN_ROOT)
    };
    in_process().map_err(|error| match error {
        Errno::NOSYS => {
            let message = "the files of other processes need Linux 5.6 (openat2)";
            let help = format!("without PID and CGROUP, name the file /proc/{pid}/root{file}");
            ProbeError::new(message).help(help)
        }
        error => ProbeError::new(format!("{file} of process {pid}: {error}")),
    })
}

/// What two paths of the same file have in common. Two mounts of a layer of a container's image
/// have one inode below, which they show with different devices.
fn identity(file: &OwnedFd) -> Option<(u64, u64, i64, i64)> {
    let status = fstat(file).ok()?;
    let is_overlay = fstatfs(file).is_ok_and(|on| on.f_type as u64 == OVERLAY);
    Some(match is_overlay {
        true => (
            0,
            status.st_ino,
            status.st_ctime as i64,
            status.st_ctime_nsec as i64,
        ),
        false => (status.st_dev, status.st_ino, 0, 0),
    })
}

/// The program or library at `path`, which a definition calls `file`.
fn read(file: &str, path: &str) -> Result<Program, ProbeError> {
    Program::read(Path::new(path)).map_err(|error| ProbeError::new(format!("{file}: {error}")))
}

/// Where a function of a program is.
pub fn function(file: &str, program: &Program, symbol: &str) -> Result<Vec<UsdtSite>, ProbeError> {
    let mut functions = program.functions.iter();
    let found = functions.find(|function| function.name == symbol);
    let found = found.ok_or_else(|| {
        let message = format!("{file} has no function `{symbol}`");
        let names = program.functions.iter().map(|function| &*function.name);
        ProbeError::new(message).near(symbol, names.collect::<Vec<_>>())
    })?;
    Ok(vec![UsdtSite {
        provider: String::new(),
        name: symbol.into(),
        offset: found.offset,
        semaphore: 0,
        arguments: String::new(),
        is_long_nop: false,
    }])
}
