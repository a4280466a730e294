//! The locations of images in these tests: a folder on a disk, a folder in memory, a loop device.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use weir_tapdisk::engine::{CacheOption, EngineOption};
use weir_tapdisk::{DiskOptions, IoQueue, IoQueueOptions, ServedDisk};
use weir_testing::{LoopDisk, MemoryFolder};

use crate::support::Rig;

/// A folder on the disk of the build, removed with the test.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Folder {
        Folder(TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A sparse file of `bytes`.
    pub fn image(&self, bytes: u64) -> PathBuf {
        image(self.path(), bytes)
    }
}

pub fn image(folder: &Path, bytes: u64) -> PathBuf {
    let path = folder.join("disk.raw");
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

/// An image, and what is removed after it.
pub struct Location {
    pub name: &'static str,
    pub image: PathBuf,
    _kept: Kept,
}

#[allow(dead_code)] // Kept to be dropped.
enum Kept {
    Folder(Folder),
    Memory(MemoryFolder),
    Loop(LoopDisk),
}

/// Every kind of location on this machine; `missing` is called for the others.
pub fn locations(mebibytes: u64, mut missing: impl FnMut(String)) -> Vec<Location> {
    let bytes = mebibytes << 20;
    let folder = Folder::new();
    let mut locations = vec![Location {
        name: "file",
        image: folder.image(bytes),
        _kept: Kept::Folder(folder),
    }];
    match MemoryFolder::new(mebibytes + 2) {
        Ok(folder) => locations.push(Location {
            name: "memory",
            image: image(folder.path(), bytes),
            _kept: Kept::Memory(folder),
        }),
        Err(why) => missing(format!("a file in memory: {why:#}")),
    }
    match LoopDisk::new(mebibytes) {
        Ok(device) => locations.push(Location {
            name: "loop device",
            image: device.path().into(),
            _kept: Kept::Loop(device),
        }),
        Err(why) => missing(format!("a loop device: {why:#}")),
    }
    locations
}

/// Every pair of engine and cache.
pub const MODES: [(EngineOption, CacheOption); 4] = [
    (EngineOption::Uring, CacheOption::Direct),
    (EngineOption::Uring, CacheOption::PageCache),
    (EngineOption::Sync, CacheOption::Direct),
    (EngineOption::Sync, CacheOption::PageCache),
];

pub fn options(image: &Path, way: (EngineOption, CacheOption)) -> DiskOptions {
    DiskOptions {
        engine: way.0,
        cache: way.1,
        lock_wait: crate::support::TIMEOUT,
        ..DiskOptions::new(image)
    }
}

pub fn open(image: &Path, way: (EngineOption, CacheOption)) -> Arc<ServedDisk> {
    ServedDisk::open(options(image, way)).unwrap()
}

pub fn io_queue(disk: &Arc<ServedDisk>) -> Rig {
    let options = IoQueueOptions {
        queue: 0,
        depth: 64,
    };
    Rig::new(IoQueue::new(disk, options).unwrap())
}
