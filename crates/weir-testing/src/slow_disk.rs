//! [`SlowDisk`]: a loop device of a known rate, one request after the other, like a disk with one
//! head.
//!
//! On a device in memory the processor is the bottleneck, so the effect of neighbours depends on
//! the host. Here requests are limited to a rate, on every host alike: QEMU's storage daemon
//! throttles a file and exports it through FUSE, and the loop device uses that file.

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

/// A loop device that completes this number of requests per second and no more.
#[derive(Debug)]
pub struct SlowDisk {
    // Dropped in this order.
    disk: LoopDisk,
    _storage: Storage,
    _folder: MemoryFolder,
}

/// The storage daemon, which exports a slow file.
#[derive(Debug)]
struct Storage {
    daemon: Child,
    shown: PathBuf,
}

/// How long it may take to start and to end.
const TIMEOUT: Duration = Duration::from_secs(30);

impl SlowDisk {
    /// A device of `mebibytes` that completes `iops` requests per second, or why it cannot be
    /// created: it needs qemu-storage-daemon and FUSE.
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
        // Ends with the thread that started it, if it is not ended before.
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
        let started = Instant::now();
        while fs::metadata(&storage.shown).map_or(0, |m| m.len()) != bytes {
            if let Some(status) = storage.daemon.try_wait()? {
                bail!("qemu-storage-daemon, which is to show a file by FUSE, ended with {status}");
            }
            if started.elapsed() > TIMEOUT {
                bail!("qemu-storage-daemon shows no file");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(storage)
    }

    /// Asks it to end, so that it removes its mount.
    fn stop(&mut self) -> Result<()> {
        if self.daemon.try_wait()?.is_some() {
            return Ok(());
        }
        run("kill", &[&self.daemon.id().to_string()])?;
        let started = Instant::now();
        while self.daemon.try_wait()?.is_none() {
            if started.elapsed() > TIMEOUT {
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
