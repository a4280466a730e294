//! What the guests' disks lie on: loop devices over files in memory, one of them with partitions, one
//! with a file system. All is taken away at the end, also when a test fails.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use weir_guest::{Counts, disk_stats};

static MADE: AtomicU32 = AtomicU32::new(0);

/// A folder in memory, and what was made in it, to be undone in reverse.
pub struct Host {
    folder: PathBuf,
    undo: Vec<Vec<String>>,
}

impl Host {
    /// An empty one of at most `mebibytes`.
    pub fn new(mebibytes: u64) -> Host {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-host-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let mut host = Host {
            folder,
            undo: Vec::new(),
        };
        let (size, target) = (format!("size={mebibytes}m"), host.path("."));
        host.make("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", &target]);
        host.undo.push(words(&["umount", "-l", &target]));
        host
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    /// A loop device of so many MiB: `/dev/loop3`.
    pub fn device(&mut self, mebibytes: u64) -> String {
        let file = self.path(&format!("device-{}", self.undo.len()));
        File::create(&file)
            .unwrap()
            .set_len(mebibytes << 20)
            .unwrap();
        let device = self.make("losetup", &["--direct-io=on", "-f", "--show", &file]);
        self.undo.push(words(&["losetup", "-d", &device]));
        self.forget_partitions(&device);
        device
    }

    /// Takes away what an earlier user of the device left: the kernel keeps the partitions of a
    /// loop device that is gone.
    fn forget_partitions(&mut self, device: &str) {
        let name = device.trim_start_matches("/dev/").to_owned() + "p";
        for entry in fs::read_dir(format!("/sys/block/{}", &name[..name.len() - 1])).unwrap() {
            let entry = entry.unwrap().file_name();
            if let Some(number) = entry.to_str().and_then(|entry| entry.strip_prefix(&name)) {
                self.make("delpart", &[device, number]);
            }
        }
    }

    /// A partition of a loop device, in the kernel only: `/dev/loop3p1`. Where it is in MiB.
    pub fn partition(&mut self, device: &str, number: u32, start: u64, mebibytes: u64) -> String {
        let number = number.to_string();
        let (start, sectors) = ((start << 11).to_string(), (mebibytes << 11).to_string());
        self.make("addpart", &[device, &number, &start, &sectors]);
        self.undo.push(words(&["delpart", device, &number]));
        format!("{device}p{number}")
    }

    /// Makes an ext4 of the device; where it is mounted. Nothing is left to be initialised later,
    /// which would be I/O in the background.
    pub fn file_system(&mut self, device: &str) -> String {
        let target = self.path("mounted");
        fs::create_dir(&target).unwrap();
        let lazy = "lazy_itable_init=0,lazy_journal_init=0";
        self.make("mkfs.ext4", &["-q", "-E", lazy, device]);
        self.make("mount", &["-o", "noatime", device, &target]);
        self.undo.push(words(&["umount", "-l", &target]));
        target
    }

    fn make(&mut self, program: &str, args: &[&str]) -> String {
        run(program, args).unwrap_or_else(|why| panic!("{why}"))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for words in self.undo.drain(..).rev() {
            let args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
            if let Err(error) = run(&words[0], &args) {
                eprintln!("cleaning up: {error}");
            }
        }
        if let Err(error) = fs::remove_dir(&self.folder) {
            eprintln!("cleaning up {}: {error}", self.folder.display());
        }
    }
}

/// What the host's kernel counts of a device, as `/dev/loop3`.
pub fn counts(device: &str) -> Counts {
    let text = fs::read_to_string("/proc/diskstats").unwrap();
    let all: BTreeMap<String, Counts> = disk_stats(&text);
    all[device.trim_start_matches("/dev/")]
}

/// A piece of a file, in sectors: where in the file, where on the file system's device, how long.
pub type Extent = (u64, u64, u64);

/// Where a file lies, as `filefrag` of e2fsprogs tells.
pub fn extents(file: &Path) -> Vec<Extent> {
    let args = ["-v", "-b512", file.to_str().unwrap()];
    let output = Command::new("filefrag").args(args).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    // `   0:        0..   32767:      2048..     34815:  32768:             last,eof`
    let extents = said.lines().filter_map(|line| {
        let mut fields = line.split(':').map(str::trim);
        fields.next()?.parse::<u32>().ok()?;
        let first = |range: &str| range.split("..").next()?.trim().parse().ok();
        let (logical, physical) = (first(fields.next()?)?, first(fields.next()?)?);
        Some((logical, physical, fields.next()?.parse().ok()?))
    });
    extents.collect()
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

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|w| (*w).to_owned()).collect()
}
