//! [`SlowDisk`]: a loop device of a known rate, one request after the other, as a disk of one head.
//!
//! On a device in memory the processor is what is short, so how neighbours fare depends on the host.
//! Here each request waits for its turn of so many a second, on every host alike: QEMU's storage daemon
//! throttles a file and shows it through FUSE, and the loop device lies on that.

use std::fs::{self, File};
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::LoopDisk;
use crate::memory::{MemoryFolder, report};
use crate::run::run;

/// A loop device that finishes so many requests a second and no more.
#[derive(Debug)]
pub struct SlowDisk {
    // In the order of their end.
    disk: LoopDisk,
    _storage: Storage,
    _folder: MemoryFolder,
}

/// The storage daemon, which shows a slow file.
#[derive(Debug)]
struct Storage {
    daemon: Child,
    shown: PathBuf,
}

/// How long it may take to begin and to end.
const PATIENCE: Duration = Duration::from_secs(30);

impl SlowDisk {
    /// A device of `mebibytes` that finishes `iops` requests a second, or why there cannot be one:
    /// it needs qemu-storage-daemon and FUSE.
    pub fn new(mebibytes: u64, iops: u32) -> Result<SlowDisk> {
        let folder = MemoryFolder::new(mebibytes + 1)?;
        let storage = Storage::start(&folder, mebibytes << 20, iops)?;
        let disk = LoopDisk::on(&storage.shown, &["--direct-io=on"])?;
        Ok(SlowDisk {
            disk,
            _storage: storage,
            _folder: folder,
        })
    }
}

impl Deref for SlowDisk {
    type Target = LoopDisk;

    fn deref(&self) -> &LoopDisk {
        &self.disk
    }
}

impl Storage {
    fn start(folder: &MemoryFolder, bytes: u64, iops: u32) -> Result<Storage> {
        let (image, shown) = (folder.file("image"), folder.path().join("shown"));
        File::create(&image)?.set_len(bytes)?;
        File::create(&shown)?;
        let limit = format!("throttle-group,id=limit,limits.iops-total={iops}");
        let image = format!("driver=file,node-name=image,filename={image}");
        let slow = "driver=throttle,node-name=slow,throttle-group=limit,file=image";
        let export = format!(
            "type=fuse,id=shown,node-name=slow,writable=on,mountpoint={}",
            shown.display()
        );
        // Dies with the thread that started it, should that not come to an end of its own.
        let daemon = Command::new("setpriv")
            .args(["--pdeathsig", "TERM", "qemu-storage-daemon"])
            .args(["--object", &limit, "--blockdev", &image])
            .args(["--blockdev", slow, "--export", &export])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start setpriv (package util-linux)")?;
        let mut storage = Storage { daemon, shown };
        let begun = Instant::now();
        while fs::metadata(&storage.shown).map_or(0, |m| m.len()) != bytes {
            if let Some(status) = storage.daemon.try_wait()? {
                bail!("qemu-storage-daemon, which is to show a file by FUSE, ended with {status}");
            }
            if begun.elapsed() > PATIENCE {
                bail!("qemu-storage-daemon shows no file");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(storage)
    }

    /// Asks it to end, so that it takes its mount away.
    fn stop(&mut self) -> Result<()> {
        if self.daemon.try_wait()?.is_some() {
            return Ok(());
        }
        run("kill", &[&self.daemon.id().to_string()])?;
        let begun = Instant::now();
        while self.daemon.try_wait()?.is_none() {
            if begun.elapsed() > PATIENCE {
                self.daemon.kill()?;
                self.daemon.wait()?;
                run("umount", &["-l", &self.shown.to_string_lossy()])?;
                bail!("qemu-storage-daemon did not end when asked to");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        report(self.stop());
    }
}
