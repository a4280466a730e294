//! [`ScratchDisk`]: a disk that nothing else uses, opened exclusively for as long as it lives.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, major, makedev, minor};
use weir_model::SECTOR_BYTES;
use weir_runtime::failure::Failure;
use weir_tapdisk::direct_io::SECTOR_TAG;

use super::signature;
use crate::device::BLOCK;

/// The parts at the start and the end of a disk in which data is searched: the signatures of all
/// known formats are there.
const SEARCHED_BYTES: u64 = 1 << 20;

/// How long a program may have the disk open that only looks at it, as udev does.
const OPEN_ELSEWHERE_MAX: Duration = Duration::from_secs(3);

/// See the module's documentation.
#[derive(Debug)]
pub struct ScratchDisk {
    /// Its name in the kernel, such as `sdb`.
    pub name: String,
    /// Its size.
    pub sectors: u64,
    /// The length of its logical blocks in sectors.
    pub block_sectors: u64,
    file: File,
}

impl ScratchDisk {
    /// Claims a disk: to read only, or to overwrite it. With `overwrite` it may have data.
    ///
    /// # Errors
    /// When it is not a whole disk, anything uses it, or it has data that would be lost.
    pub fn claim(path: &str, reads_only: bool, overwrite: bool) -> Result<ScratchDisk, Failure> {
        let name = whole_disk(path)?;
        let path = format!("/dev/{}", name.replace('!', "/"));
        let file = open_alone(&name, &path, reads_only)?;
        let attribute = |file: &str| -> u64 {
            let text = fs::read_to_string(Path::new(BLOCK).join(&name).join(file));
            text.ok()
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(0)
        };
        let sectors = attribute("size");
        if sectors == 0 {
            return Err(Failure::world(format_args!(
                "--on {path}: the disk is empty: its size is 0"
            )));
        }
        let block = attribute("queue/logical_block_size").max(SECTOR_BYTES as u64);
        let disk = ScratchDisk {
            name,
            sectors,
            block_sectors: block / SECTOR_BYTES as u64,
            file,
        };
        if !reads_only && !overwrite {
            disk.check_empty(&path)?;
        }
        Ok(disk)
    }

    /// Another descriptor of the same open file, for direct I/O.
    ///
    /// # Errors
    /// When the process has too many.
    pub fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Its path.
    pub fn path(&self) -> String {
        format!("/dev/{}", self.name.replace('!', "/"))
    }

    /// Whether its ends have no data, or data of earlier replays only.
    fn check_empty(&self, path: &str) -> Result<(), Failure> {
        let failed = |error| Failure::world(format_args!("--on {path}: {error}"));
        // The page cache reads it, which needs no alignment.
        let file = File::open(path).map_err(failed)?;
        let bytes = self.sectors * SECTOR_BYTES as u64;
        let searched = SEARCHED_BYTES.min(bytes);
        let mut part = vec![0; usize::try_from(searched).expect("it is small")];
        for offset in [0, bytes - searched] {
            file.read_exact_at(&mut part, offset).map_err(failed)?;
            let known = signature::known(&part).filter(|_| offset == 0);
            if let Some(found) = known.or_else(|| unknown_data(&part)) {
                return Err(Failure::world(format_args!(
                    "--on {path}: the disk has {found}, which the replay would overwrite; use a \
                     scratch disk, --overwrite to lose the data, or --reads-only"
                )));
            }
        }
        Ok(())
    }
}

/// Opens a disk exclusively, once no other process has it open.
fn open_alone(name: &str, path: &str, reads_only: bool) -> Result<File, Failure> {
    let mut options = File::options();
    let flags = OFlags::EXCL | OFlags::DIRECT | OFlags::CLOEXEC;
    options.read(true).write(!reads_only);
    options.custom_flags(flags.bits().cast_signed());
    let numbers = disk_numbers(name);
    let until = Instant::now() + OPEN_ELSEWHERE_MAX;
    let file = loop {
        match options.open(path) {
            Ok(file) => break file,
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                if Instant::now() > until {
                    return Err(Failure::world(format_args!(
                        "--on {path}: the disk is in use: {}",
                        user_of(name).unwrap_or_else(|| {
                            "a program or the kernel has opened it exclusively".to_owned()
                        })
                    )));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(error) => {
                return Err(Failure::world(format_args!("--on {path}: {error}")));
            }
        }
    };
    while let Some(process) = opened_by(&numbers) {
        if Instant::now() > until {
            return Err(Failure::world(format_args!(
                "--on {path}: the disk is in use: process {process} has opened it"
            )));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(file)
}

/// Whether a part of a disk has data that is not of an earlier replay.
fn unknown_data(part: &[u8]) -> Option<&'static str> {
    let mut sectors = part.chunks(SECTOR_BYTES as usize);
    let is_free =
        |sector: &[u8]| sector.iter().all(|byte| *byte == 0) || sector.starts_with(SECTOR_TAG);
    (!sectors.all(is_free)).then_some("data of an unknown format")
}

/// The name of a whole disk in sysfs.
fn whole_disk(path: &str) -> Result<String, Failure> {
    let name = path.strip_prefix("/dev/").unwrap_or(path).replace('/', "!");
    let is_block = fs::metadata(format!("/dev/{}", name.replace('!', "/")))
        .is_ok_and(|meta| meta.file_type().is_block_device());
    if Path::new(BLOCK).join(&name).is_dir() && is_block {
        return Ok(name);
    }
    let reason = match is_block {
        true => "not a whole disk; the settings and the queue belong to the whole disk: give that",
        false => "no such disk; a scratch disk is a block device, such as /dev/sdb",
    };
    Err(Failure::words(format_args!("--on {path}: {reason}")))
}

/// The numbers of a disk and its partitions.
fn disk_numbers(name: &str) -> Vec<u64> {
    let folder = Path::new(BLOCK).join(name);
    let parts = fs::read_dir(&folder).into_iter().flatten().flatten();
    let folders = parts.map(|entry| entry.path()).chain([folder.clone()]);
    let numbers = folders.filter_map(|folder| {
        let text = fs::read_to_string(folder.join("dev")).ok()?;
        let (major, minor) = text.trim().split_once(':')?;
        Some(makedev(major.parse().ok()?, minor.parse().ok()?))
    });
    numbers.collect()
}

/// A mount, a swap area or a device above that uses the disk or a partition of it, if it is known.
fn user_of(name: &str) -> Option<String> {
    let numbers = disk_numbers(name);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(2);
        let (number, mounted) = (fields.next()?, fields.nth(1)?);
        let is_on = numbers
            .iter()
            .any(|n| number == format!("{}:{}", major(*n), minor(*n)));
        if is_on {
            return Some(format!("it is mounted at {mounted}"));
        }
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    for path in swaps
        .lines()
        .skip(1)
        .filter_map(|line| line.split(' ').next())
    {
        if fs::metadata(path).is_ok_and(|meta| numbers.contains(&meta.rdev())) {
            return Some(format!("{path} is a swap area"));
        }
    }
    let folder = Path::new(BLOCK).join(name);
    let parts = fs::read_dir(&folder).into_iter().flatten().flatten();
    for part in parts.map(|entry| entry.path()).chain([folder.clone()]) {
        let holders = fs::read_dir(part.join("holders")).into_iter().flatten();
        if let Some(holder) = holders.flatten().next() {
            let holder = holder.file_name().to_string_lossy().into_owned();
            return Some(format!("{holder} is built on it"));
        }
    }
    None
}

/// Another process that has opened one of these devices, by its number and name. Processes whose
/// files cannot be read are left out.
fn opened_by(numbers: &[u64]) -> Option<String> {
    let own = std::process::id().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in entries {
        let pid = entry.file_name().to_string_lossy().into_owned();
        if pid == own || !pid.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let files = fs::read_dir(entry.path().join("fd")).into_iter().flatten();
        for file in files.flatten() {
            // Other files, such as those on a network, are not touched.
            let is_device = fs::read_link(file.path()).is_ok_and(|to| to.starts_with("/dev"));
            let meta = is_device.then(|| fs::metadata(file.path()).ok()).flatten();
            let is_ours = |meta: &fs::Metadata| {
                meta.file_type().is_block_device() && numbers.contains(&meta.rdev())
            };
            if meta.as_ref().is_some_and(is_ours) {
                let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
                return Some(format!("{pid} ({})", name.trim()));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_zeroes_and_earlier_replays_are_free() {
        let mut part = vec![0; 4096];
        assert_eq!(unknown_data(&part), None);
        part[512..528].copy_from_slice(SECTOR_TAG);
        part[528] = 7;
        assert_eq!(unknown_data(&part), None);
        part[2000] = 1;
        assert!(unknown_data(&part).is_some());
    }

    #[test]
    fn a_path_that_is_no_disk_is_an_error() {
        for path in ["/dev/null", "/etc/passwd", "nosuchdisk"] {
            let error = ScratchDisk::claim(path, true, false).unwrap_err().text();
            assert!(error.contains("no such disk"), "{error}");
        }
    }
}
