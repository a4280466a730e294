//! [`LoopDisk`]: a loop device on a file in memory, made for one test and taken away at its end,
//! also when the test fails.

use std::cell::RefCell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A loop device of our own, with the folder in memory that holds its file.
pub struct LoopDisk {
    folder: PathBuf,
    path: String,
    /// Settings as they were, which outlive the device's file.
    settings: RefCell<Vec<(PathBuf, String)>>,
}

static MADE: AtomicU32 = AtomicU32::new(0);

impl LoopDisk {
    /// A device of `mebibytes`, or why there cannot be one.
    pub fn new(mebibytes: u64) -> Result<LoopDisk, String> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-disk-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let size = format!("size={}m", mebibytes + 8);
        let target = folder.to_string_lossy().into_owned();
        // From here on a failure takes away what is there already.
        let mut disk = LoopDisk {
            folder,
            path: String::new(),
            settings: RefCell::default(),
        };
        run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", &target])?;
        let image = disk.image();
        let made = File::create(&image).and_then(|file| file.set_len(mebibytes << 20));
        made.map_err(|e| format!("{}: {e}", image.display()))?;
        let file = image.to_string_lossy().into_owned();
        disk.path = run("losetup", &["--direct-io=on", "-f", "--show", &file])?;
        Ok(disk)
    }

    /// `/dev/loop3`
    pub fn path(&self) -> &str {
        &self.path
    }

    /// `loop3`
    pub fn name(&self) -> &str {
        self.path.trim_start_matches("/dev/")
    }

    /// The file behind it.
    pub fn image(&self) -> PathBuf {
        self.folder.join("disk.img")
    }

    /// Its folder in sysfs.
    pub fn sysfs(&self) -> PathBuf {
        Path::new("/sys/block").join(self.name())
    }

    /// Writes a setting of its queue, as `scheduler`; it is taken back at the end.
    pub fn set(&self, setting: &str, value: &str) -> Result<(), String> {
        let path = self.sysfs().join("queue").join(setting);
        let failed = |e: std::io::Error| format!("{}: {e}", path.display());
        let old = fs::read_to_string(&path).map_err(failed)?;
        fs::write(&path, value).map_err(failed)?;
        // Of a choice, the chosen one stands in brackets.
        let chosen = old
            .split(['[', ']'])
            .nth(1)
            .unwrap_or(&old)
            .trim()
            .to_owned();
        self.settings.borrow_mut().push((path, chosen));
        Ok(())
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let folder = self.folder.to_string_lossy().into_owned();
        // What cannot be taken back stays visible in the output.
        for (path, value) in self.settings.take().into_iter().rev() {
            report(fs::write(&path, value).map_err(|e| format!("{}: {e}", path.display())));
        }
        if !self.path.is_empty() {
            report(run("losetup", &["-d", &self.path]));
        }
        report(run("umount", &["-l", &folder]));
        report(fs::remove_dir(&self.folder).map_err(|e| format!("{folder}: {e}")));
    }
}

fn report<T>(result: Result<T, String>) {
    if let Err(error) = result {
        eprintln!("cleaning up: {error}");
    }
}

/// Runs a command; its first line of output, or its complaint.
pub fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).output();
    let output = output.map_err(|e| format!("cannot start {program}: {e}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program} {}: {}", args.join(" "), said.trim()));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    Ok(said.lines().next().unwrap_or_default().trim().to_owned())
}
