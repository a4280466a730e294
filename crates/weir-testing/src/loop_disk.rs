//! [`LoopDisk`]: a loop device for one test, optionally with partitions or a file system, all
//! removed at its end, also when the test fails.

use std::cell::RefCell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::memory::{MemoryFolder, report};
use crate::run::run;

/// A loop device on a file in memory, or on a file or device of the caller.
#[derive(Debug)]
pub struct LoopDisk {
    path: String,
    image: PathBuf,
    /// The actions that undo changes of the device, in reverse.
    undo: RefCell<Vec<Undo>>,
    /// Dropped after the device, whose file it contains.
    folder: MemoryFolder,
}

#[derive(Debug)]
enum Undo {
    Run(Vec<String>),
    /// The old value of a setting, which outlives the device's file.
    Write(PathBuf, String),
}

/// How long a device may be in use after it was detached.
const REATTACH_TIMEOUT: Duration = Duration::from_secs(30);

/// Space in its folder beside the file, in MiB.
const BESIDE_MIB: u64 = 8;

impl LoopDisk {
    /// A device of `mebibytes` on a file in memory, or why it cannot be created.
    pub fn new(mebibytes: u64) -> Result<LoopDisk> {
        let folder = MemoryFolder::new(mebibytes + BESIDE_MIB)?;
        let image = folder.path().join("disk.img");
        let made = File::create(&image).and_then(|file| file.set_len(mebibytes << 20));
        made.with_context(|| image.display().to_string())?;
        LoopDisk::attach(folder, &image, &["--direct-io=on"])
    }

    /// A device on `file`, which may be a device itself, with more options of losetup.
    pub fn on(file: &Path, options: &[&str]) -> Result<LoopDisk> {
        LoopDisk::attach(MemoryFolder::new(BESIDE_MIB)?, file, options)
    }

    fn attach(folder: MemoryFolder, image: &Path, options: &[&str]) -> Result<LoopDisk> {
        let mut args = vec!["-f", "--show"];
        args.extend(options);
        let file = image.to_string_lossy();
        args.push(&file);
        let path = run("losetup", &args)?;
        let detach = Undo::Run(words(&["losetup", "-d", &path]));
        // From here on everything is removed on failure.
        let disk = LoopDisk {
            path,
            image: image.to_owned(),
            undo: RefCell::new(vec![detach]),
            folder,
        };
        disk.remove_stale_partitions()?;
        Ok(disk)
    }

    /// Removes the partitions of an earlier user: the kernel keeps those of a removed loop device.
    fn remove_stale_partitions(&self) -> Result<()> {
        let prefix = format!("{}p", self.name());
        let entries = fs::read_dir(self.sysfs());
        for entry in entries.with_context(|| self.sysfs().display().to_string())? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(&prefix));
            if let Some(number) = number {
                run("delpart", &[&self.path, number])?;
            }
        }
        Ok(())
    }

    /// `/dev/loop3`
    pub fn path(&self) -> &str {
        &self.path
    }

    /// `loop3`
    pub fn name(&self) -> &str {
        self.path.trim_start_matches("/dev/")
    }

    /// Detaches the device from its file, as if the disk were pulled: the device stays without
    /// content, and its counters continue after [`LoopDisk::reattach`].
    pub fn detach(&self) -> Result<()> {
        run("losetup", &["-d", &self.path]).map(drop)
    }

    /// Attaches the detached device to its file again. The kernel detaches a device that another
    /// process has open when that process closes it, and until then this waits.
    pub fn reattach(&self) -> Result<()> {
        let image = self.image.to_string_lossy();
        let started = Instant::now();
        loop {
            match run("losetup", &["--direct-io=on", &self.path, &image]) {
                Err(error) if started.elapsed() > REATTACH_TIMEOUT => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// The file behind it.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Its folder in sysfs.
    pub fn sysfs(&self) -> PathBuf {
        Path::new("/sys/block").join(self.name())
    }

    /// Writes a setting of its queue, such as `scheduler`; it is restored at the end.
    pub fn set(&self, setting: &str, value: &str) -> Result<()> {
        let path = self.sysfs().join("queue").join(setting);
        let failed = || path.display().to_string();
        let old = fs::read_to_string(&path).with_context(failed)?;
        fs::write(&path, value).with_context(failed)?;
        // If the setting is a list of choices, the current one is in brackets.
        let chosen = old.split(['[', ']']).nth(1).unwrap_or(&old).trim();
        let taken_back = Undo::Write(path.clone(), chosen.to_owned());
        self.undo.borrow_mut().push(taken_back);
        Ok(())
    }

    /// A partition, in the kernel only, with start and length in sectors of 512 bytes:
    /// `/dev/loop3p1`.
    pub fn partition(&self, number: u32, start_sectors: u64, sectors: u64) -> Result<String> {
        let number = number.to_string();
        let (start, sectors) = (start_sectors.to_string(), sectors.to_string());
        run("addpart", &[&self.path, &number, &start, &sectors])?;
        self.undo_with(&["delpart", &self.path, &number]);
        Ok(format!("{}p{number}", self.path))
    }

    /// Creates an ext4 on the device and mounts it; returns the mount point.
    pub fn file_system(&self) -> Result<PathBuf> {
        // Everything is initialised now, since later initialisation would be background I/O.
        let lazy = "lazy_itable_init=0,lazy_journal_init=0";
        self.mounted("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", lazy])
    }

    /// The same with the journal on another device, which must be unmounted after this one.
    ///
    /// # Errors
    /// When a program fails.
    pub fn file_system_with_journal(&self, journal: &LoopDisk) -> Result<PathBuf> {
        let device = format!("device={}", journal.path());
        run(
            "mke2fs",
            &[
                "-q",
                "-F",
                "-b",
                "4096",
                "-O",
                "journal_dev",
                journal.path(),
            ],
        )?;
        let lazy = "lazy_itable_init=0";
        let options = ["-q", "-F", "-b", "4096", "-E", lazy, "-J", &device];
        self.mounted("mkfs.ext4", &options)
    }

    /// Creates a btrfs, which never writes in place, and mounts it; returns the mount point.
    pub fn copy_on_write(&self) -> Result<PathBuf> {
        self.mounted("mkfs.btrfs", &["-q", "-f"])
    }

    /// Creates an xfs, for which the device needs 300 MiB, and mounts it; returns the mount point.
    pub fn xfs(&self) -> Result<PathBuf> {
        self.mounted("mkfs.xfs", &["-q", "-f"])
    }

    fn mounted(&self, make: &str, options: &[&str]) -> Result<PathBuf> {
        let target = self.folder.path().join("mounted");
        fs::create_dir(&target)?;
        run(make, &[options, &[&self.path]].concat())?;
        let mounted = target.to_string_lossy();
        run("mount", &["-o", "noatime", &self.path, &mounted])?;
        self.undo_with(&["umount", "-l", &mounted]);
        Ok(target)
    }

    fn undo_with(&self, command: &[&str]) {
        self.undo.borrow_mut().push(Undo::Run(words(command)));
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        for undo in self.undo.take().into_iter().rev() {
            match undo {
                Undo::Run(command) => {
                    let args: Vec<&str> = command[1..].iter().map(String::as_str).collect();
                    report(run(&command[0], &args));
                }
                Undo::Write(path, value) => {
                    report(fs::write(&path, value).with_context(|| path.display().to_string()));
                }
            }
        }
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|w| (*w).to_owned()).collect()
}
