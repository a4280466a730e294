//! [`Cgroups`]: maps the kernel's id of a cgroup to its path.
//!
//! A cgroup's id is the inode number of its directory (kernfs, 64-bit kernels since 5.5). The block
//! layer's hierarchy is scanned when an unknown id occurs, at a limited rate.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use weir_model::Symbol;

/// Minimum interval between scans of the hierarchy.
const WALK_PAUSE: Duration = Duration::from_millis(200);

/// Maximum number of cached cgroups.
const CGROUPS_MAX: usize = 1 << 16;

/// The cgroups seen so far.
#[derive(Debug)]
pub struct Cgroups {
    root: Option<Root>,
    paths: HashMap<u64, Symbol, RandomState>,
    walked: Option<Instant>,
}

/// The mount point of the hierarchy that block I/O is charged to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The mount point.
    pub path: PathBuf,
    /// True for cgroup v2, where tasks and bios are in the same hierarchy.
    pub unified: bool,
}

impl Root {
    /// The v1 hierarchy of the `blkio` controller, or else v2.
    pub fn find() -> Option<Root> {
        let mounts = mounts()?;
        let v1 = mount_point(&mounts, Some("blkio")).map(|path| Root::at(path, false));
        v1.or_else(|| mount_point(&mounts, None).map(|path| Root::at(path, true)))
    }

    /// The v2 hierarchy.
    pub fn unified() -> Option<Root> {
        Some(Root::at(mount_point(&mounts()?, None)?, true))
    }

    fn at(path: &str, unified: bool) -> Root {
        let path = path.into();
        Root { path, unified }
    }
}

/// The text of `/proc/self/mounts`.
pub fn mounts() -> Option<String> {
    fs::read_to_string("/proc/self/mounts").ok()
}

/// Where the v1 hierarchy of a controller, or without one v2, is mounted according to the text of
/// `/proc/self/mounts`: device, mount point, type, options.
pub fn mount_point<'a>(mounts: &'a str, controller: Option<&str>) -> Option<&'a str> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (path, kind, options) = (words.next()?, words.next()?, words.next()?);
        let is_found = match controller {
            None => kind == "cgroup2",
            Some(name) => kind == "cgroup" && options.split(',').any(|option| option == name),
        };
        is_found.then_some(path)
    })
}

impl Cgroups {
    /// An empty cache.
    pub fn new(root: Option<Root>) -> Cgroups {
        Cgroups {
            root,
            paths: HashMap::default(),
            walked: None,
        }
    }

    /// The path of cgroup `id` below the mount point, as `/system.slice/cron.service`; `None` if it
    /// was removed or is unknown.
    pub fn path(&mut self, id: u64) -> Option<Symbol> {
        if id == 0 {
            return None;
        }
        if !self.paths.contains_key(&id) {
            self.walk();
        }
        self.paths.get(&id).copied()
    }

    /// All known cgroups.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Symbol)> {
        self.paths.iter().map(|(id, path)| (*id, *path))
    }

    /// Scans the hierarchy again, unless the last scan was too recent.
    pub fn walk(&mut self) {
        let recently = self.walked.is_some_and(|at| at.elapsed() < WALK_PAUSE);
        let Some(root) = self.root.clone().filter(|_| !recently) else {
            return;
        };
        self.walked = Some(Instant::now());
        let mut folders = vec![root.path.clone()];
        while let Some(folder) = folders.pop() {
            if self.paths.len() >= CGROUPS_MAX {
                return;
            }
            self.add(&root.path, &folder);
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            let below = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
            folders.extend(below.map(|e| e.path()));
        }
    }

    fn add(&mut self, root: &Path, folder: &Path) {
        let Ok(meta) = fs::metadata(folder) else {
            return;
        };
        let below = folder.strip_prefix(root).unwrap_or(folder);
        // A name may contain any bytes; if the table of texts is full, it is unknown.
        if let Ok(path) = Symbol::try_new(&format!("/{}", below.display())) {
            self.paths.insert(meta.ino(), path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hierarchy_is_found_by_its_type_and_controller() {
        let v2 = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let v1 = "cgroup /sys/fs/cgroup/blkio cgroup rw,relatime,blkio 0 0\n";
        let both = format!("proc /proc proc rw 0 0\n{v2}{v1}");
        let blkio = Some("/sys/fs/cgroup/blkio");
        assert_eq!(mount_point(&both, Some("blkio")), blkio);
        assert_eq!(mount_point(&both, None), Some("/sys/fs/cgroup/unified"));
        assert_eq!(mount_point(&both, Some("memory")), None);
        assert_eq!(mount_point(v1, None), None);
    }
}
