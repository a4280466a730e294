//! [`Whole`]: the device that contains a partition.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use weir_model::Symbol;

/// Devices by path and their parents, as far as requested.
#[derive(Clone, Debug)]
pub struct Whole {
    /// /sys/class/block
    sysfs: PathBuf,
    known: HashMap<Symbol, Symbol>,
}

impl Whole {
    /// The devices of the host that has this `sysfs`: /sys/class/block.
    pub fn new(sysfs: &Path) -> Whole {
        Whole {
            sysfs: sysfs.to_owned(),
            known: HashMap::new(),
        }
    }

    /// The device of which `device` is a partition, or itself: /dev/sda for /dev/sda1.
    pub fn of(&mut self, device: Symbol) -> Symbol {
        if let Some(whole) = self.known.get(&device) {
            return *whole;
        }
        let whole = self.look(device).unwrap_or(device);
        self.known.insert(device, whole);
        whole
    }

    /// In sysfs the directory of a partition is in that of its device.
    fn look(&self, device: Symbol) -> Option<Symbol> {
        let name = device.as_str().strip_prefix("/dev/")?.replace('/', "!");
        let folder = self.sysfs.join(name).canonicalize().ok()?;
        let whole = folder
            .parent()
            .filter(|_| folder.join("partition").exists())?;
        let whole = whole.file_name()?.to_str()?.replace('!', "/");
        Symbol::try_new(&format!("/dev/{whole}")).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_partition_is_part_of_the_folder_it_lies_in() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("host");
        let sysfs = dir.join("class");
        fs::create_dir_all(dir.join("devices/sda/sda1")).unwrap();
        fs::create_dir_all(&sysfs).unwrap();
        fs::write(dir.join("devices/sda/sda1/partition"), "1\n").unwrap();
        symlink(dir.join("devices/sda"), sysfs.join("sda")).unwrap();
        symlink(dir.join("devices/sda/sda1"), sysfs.join("sda1")).unwrap();
        let mut whole = Whole::new(&sysfs);
        for (device, expected) in [
            ("/dev/sda1", "/dev/sda"),
            ("/dev/sda", "/dev/sda"),
            ("/dev/gone7", "/dev/gone7"),
            ("image.raw", "image.raw"),
        ] {
            assert_eq!(whole.of(Symbol::new(device)).as_str(), expected);
        }
    }
}
