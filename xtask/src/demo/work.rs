//! I/O on an idle machine without guests: a file is written and read back.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result};

/// A thread that writes a file and reads it back, without the page cache if the file system
/// permits.
pub struct Work {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Result<()>>,
}

/// The size of the file, written in blocks of `PIECE_BYTES`.
const FILE_BYTES: usize = 32 << 20;
const PIECE_BYTES: usize = 64 << 10;

impl Work {
    /// Starts, in `folder`.
    pub fn start(folder: &Path) -> Result<Work> {
        let path = folder.join("demo-work");
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let thread = thread::spawn(move || {
            let worked = work(&path, &seen);
            std::fs::remove_file(&path)
                .with_context(|| format!("cannot remove {}", path.display()))?;
            worked
        });
        Ok(Work { stop, thread })
    }

    /// Ends, and removes the file.
    ///
    /// # Errors
    /// When the file could not be written, read or removed.
    pub fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the thread returns its errors")
    }
}

fn work(path: &Path, stop: &AtomicBool) -> Result<()> {
    let cannot = |what: &str| format!("cannot {what} {}", path.display());
    let piece = vec![0x5a; PIECE_BYTES];
    let mut into = vec![0; PIECE_BYTES];
    while !stop.load(Ordering::Relaxed) {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(O_DSYNC)
            .open(path)
            .with_context(|| cannot("open"))?;
        for _ in 0..FILE_BYTES / PIECE_BYTES {
            file.write_all(&piece).with_context(|| cannot("write"))?;
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        drop(file);
        drop_cache(path);
        let mut file = File::open(path).with_context(|| cannot("open"))?;
        file.seek(SeekFrom::Start(0))
            .with_context(|| cannot("read"))?;
        while file.read(&mut into).with_context(|| cannot("read"))? > 0 {}
    }
    Ok(())
}

/// `O_DSYNC` of Linux on every architecture that weir supports
/// (`include/uapi/asm-generic/fcntl.h`).
const O_DSYNC: i32 = 0o10000;

/// Drops the file's pages from the page cache, with coreutils' `dd`. Reads then reach the disk; if
/// it fails, they are served from memory and the demonstration shows writes only.
fn drop_cache(path: &Path) {
    let of = format!("of={}", path.display());
    let _ = Command::new("dd")
        .args([&of, "oflag=nocache", "conv=notrunc,fdatasync", "count=0"])
        .stderr(Stdio::null())
        .status();
}
