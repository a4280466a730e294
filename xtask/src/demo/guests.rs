//! Two small virtual machines with a disk each.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use weir_testing::kernel::LINUX_6_1;
use weir_testing::{DiskLoad, Guest, GuestDisk, Kit};

use crate::packages;

/// Size of each disk, completely written: reads of unwritten blocks would not reach the host's
/// disk.
const DISK_BYTES: usize = 64 << 20;

/// More than a guest completes before it is ended.
const REQUESTS: u64 = 10_000_000;

/// The running machines; they end when this value is dropped, and their disks are removed.
pub struct Guests {
    guests: Vec<Guest>,
    images: Vec<PathBuf>,
}

impl Guests {
    /// Boots them and starts their load, with their disks in `folder`.
    ///
    /// # Errors
    /// When QEMU or a guest is not available.
    pub fn start(folder: &Path) -> Result<Guests> {
        packages::ensure(packages::GUEST)?;
        if !packages::exists("qemu-system-x86_64") {
            bail!("no qemu-system-x86_64");
        }
        let kit = Kit::build(&LINUX_6_1)?;
        let mut all = Guests {
            guests: Vec::new(),
            images: Vec::new(),
        };
        for name in ["web", "db"] {
            let image = folder.join(format!("demo-{name}.raw"));
            all.images.push(image.clone());
            fill(&image)?;
            let path = image
                .to_str()
                .context("the target folder's name is no UTF-8")?;
            let disk = GuestDisk::new("disk0", path).aio("native");
            all.guests.push(Guest::start(&kit, name, &disk.args())?);
        }
        for guest in &mut all.guests {
            guest.ready()?;
            let database = guest.name() == "db";
            let load = DiskLoad {
                count: REQUESTS,
                depth: if database { 4 } else { 2 },
                read: if database { 30 } else { 95 },
                write: if database { 70 } else { 5 },
                bytes: if database { 8 << 10 } else { 64 << 10 },
                sequential: !database,
                fsync: if database { 16 } else { 0 },
                ..DiskLoad::on("/dev/vda")
            };
            guest.begin_load(&[load])?;
        }
        Ok(all)
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        self.guests.clear();
        for image in &self.images {
            let _ = fs::remove_file(image);
        }
    }
}

fn fill(image: &Path) -> Result<()> {
    let mut file =
        File::create(image).with_context(|| format!("cannot make {}", image.display()))?;
    let piece = vec![0x5a; 1 << 20];
    for _ in 0..DISK_BYTES / piece.len() {
        file.write_all(&piece)?;
    }
    Ok(file.sync_all()?)
}
