//! [`DeviceNames`]: alternative names of a kernel's device (`-N`, `-j`).

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Names to show in place of the kernel's.
#[derive(Clone, Debug, Default)]
pub struct DeviceNames {
    shown: HashMap<String, String>,
}

impl DeviceNames {
    /// Adds the names of device-mapper devices, such as LVM's: `vg-root` for `dm-0`. `sysfs` is
    /// /sys/block.
    pub fn add_mapped(&mut self, sysfs: &Path) {
        for entry in fs::read_dir(sysfs).into_iter().flatten().flatten() {
            if let Ok(name) = fs::read_to_string(entry.path().join("dm/name")) {
                let kernel = entry.file_name().to_string_lossy().into_owned();
                self.shown.insert(kernel, name.trim().to_owned());
            }
        }
    }

    /// Adds persistent names: the links in a directory of /dev/disk, such as `by-id`. If there are
    /// several, the first by name is used. False when there is no such directory.
    pub fn add_persistent(&mut self, folder: &Path) -> bool {
        let Ok(entries) = fs::read_dir(folder) else {
            return false;
        };
        let link = |entry: fs::DirEntry| {
            let target = fs::read_link(entry.path()).ok()?;
            let kernel = target.file_name()?.to_string_lossy().into_owned();
            Some((entry.file_name().to_string_lossy().into_owned(), kernel))
        };
        let mut links: Vec<(String, String)> = entries.flatten().filter_map(link).collect();
        links.sort();
        for (name, kernel) in links {
            self.shown.entry(kernel).or_insert(name);
        }
        true
    }

    /// The name to show in place of the kernel's.
    pub fn of<'n>(&'n self, kernel: &'n str) -> &'n str {
        self.shown.get(kernel).map_or(kernel, String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_and_mapped_devices_give_names() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("host");
        let (by_id, sysfs) = (dir.join("by-id"), dir.join("block"));
        fs::create_dir_all(&by_id).unwrap();
        fs::create_dir_all(sysfs.join("dm-3/dm")).unwrap();
        fs::create_dir_all(sysfs.join("sda")).unwrap();
        symlink("../../sda", by_id.join("wwn-2")).unwrap();
        symlink("../../sda", by_id.join("ata-1")).unwrap();
        fs::write(sysfs.join("dm-3/dm/name"), "vg-root\n").unwrap();
        let mut names = DeviceNames::default();
        names.add_mapped(&sysfs);
        assert!(names.add_persistent(&by_id));
        assert!(!names.add_persistent(&dir.join("by-none")));
        let shown = ["sda", "dm-3", "sdb"].map(|name| names.of(name));
        assert_eq!(shown, ["ata-1", "vg-root", "sdb"]);
    }
}
