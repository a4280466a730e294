//! [`Cgroups`]: maps the kernel's id of a cgroup to its path.
//!
//! A cgroup's id is the inode number of its directory (kernfs, 64-bit kernels since 5.5). The block
//! layer's hierarchy is scanned when an unknown id occurs, at a limited rate.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weir_model::Symbol;

/// Minimum interval between scans of the hierarchy.
const WALK_PAUSE: Duration = Duration::from_millis(200);

/// Maximum number of cached cgroups.
const CGROUPS_MAX: usize = 1 << 16;

/// The cgroups seen so far.
#[derive(Debug)]
pub struct Cgroups {
    root: Option<Root>,
    paths: HashMap<u64, Symbol>,
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
        Root::in_mounts(&fs::read_to_string("/proc/self/mounts").ok()?)
    }

    /// The v2 hierarchy.
    pub fn unified() -> Option<Root> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let mut v2 = mounts
            .lines()
            .filter(|line| line.split(' ').nth(2) == Some("cgroup2"));
        let path = v2.next()?.split(' ').nth(1)?;
        Some(Root {
            path: path.into(),
            unified: true,
        })
    }

    /// Parses the text of `/proc/self/mounts`: device, mount point, type, options.
    fn in_mounts(mounts: &str) -> Option<Root> {
        let mut unified = None;
        for line in mounts.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, path, kind, options, ..] = words[..] else {
                continue;
            };
            let root = |unified| Root {
                path: path.into(),
                unified,
            };
            if kind == "cgroup" && options.split(',').any(|o| o == "blkio") {
                return Some(root(false));
            }
            if kind == "cgroup2" {
                unified = Some(root(true));
            }
        }
        unified
    }
}

impl Cgroups {
    /// An empty cache.
    pub fn new(root: Option<Root>) -> Cgroups {
        Cgroups {
            root,
            paths: HashMap::new(),
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
    fn the_blkio_hierarchy_goes_before_the_unified_one() {
        let v2 = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let v1 = "cgroup /sys/fs/cgroup/blkio cgroup rw,relatime,blkio 0 0\n";
        let found = Root::in_mounts(&format!("{v2}{v1}")).unwrap();
        assert_eq!(
            (found.path.to_str(), found.unified),
            (Some("/sys/fs/cgroup/blkio"), false)
        );
        assert!(Root::in_mounts(v2).unwrap().unified);
        assert_eq!(Root::in_mounts("proc /proc proc rw 0 0\n"), None);
    }
}
