//! [`TuneDevice`]: a disk whose queue can be changed, and other programs that change it.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;
use weir_runtime::failure::Failure;

use crate::queue::{QueueState, SCHEDULER, SysfsQueue, schedulers};

/// The folder of block devices.
pub const BLOCK: &str = "/sys/block";

/// A disk with a scheduler.
#[derive(Clone, Debug)]
pub struct TuneDevice {
    /// Its name in the kernel, such as `sda`.
    pub name: String,
    /// The schedulers that the kernel offers.
    pub schedulers: Vec<String>,
    folder: PathBuf,
}

impl TuneDevice {
    /// The disk with this path, such as `/dev/sda`, in the folder `block`.
    ///
    /// # Errors
    /// When it does not exist or has no scheduler.
    pub fn find(block: &Path, path: &str) -> Result<TuneDevice, Failure> {
        // In sysfs, a slash in a name is an exclamation mark.
        let name = path.strip_prefix("/dev/").unwrap_or(path).replace('/', "!");
        let folder = block.join(&name);
        if !folder.is_dir() {
            return Err(Failure::words(format_args!("-i {path}: no such disk")));
        }
        let schedulers = schedulers(&folder.join("queue"));
        if !folder.join("mq").exists() || schedulers.is_err() {
            let below = fs::read_dir(folder.join("slaves")).into_iter().flatten();
            let below = below.flatten().map(|entry| entry.file_name());
            let below: Vec<String> = below.map(|n| n.to_string_lossy().into_owned()).collect();
            let remedy = match below.is_empty() {
                true => String::new(),
                false => format!("; requests are scheduled below it, at {}", below.join(", ")),
            };
            return Err(Failure::words(format_args!(
                "-i {path}: the device has no scheduler (it passes bios on, without requests){remedy}"
            )));
        }
        Ok(TuneDevice {
            name,
            schedulers: schedulers.unwrap_or_default(),
            folder,
        })
    }

    /// Its queue.
    pub fn queue(&self) -> SysfsQueue {
        SysfsQueue::new(&self.folder.join("queue"))
    }

    /// Its path.
    pub fn path(&self) -> String {
        format!("/dev/{}", self.name.replace('!', "/"))
    }

    /// Whether it has zones, which must be written in order.
    pub fn is_zoned(&self) -> bool {
        let zoned = fs::read_to_string(self.folder.join("queue/zoned"));
        zoned.is_ok_and(|zoned| zoned.trim() != "none")
    }

    /// Checks that settings can be written, without writing any.
    ///
    /// # Errors
    /// When sysfs is mounted read-only, or the user has no permission.
    pub fn check_writable(&self) -> Result<(), Failure> {
        let path = self.folder.join("queue").join(SCHEDULER);
        match access(&path, Access::WRITE_OK) {
            Ok(()) => Ok(()),
            Err(Errno::ROFS) => Err(Failure::world(format_args!(
                "{}: sysfs is mounted read-only, as in a container; run weir tune on the host",
                path.display()
            ))),
            Err(Errno::ACCESS | Errno::PERM) => Err(Failure::world(format_args!(
                "{}: permission denied; a trial changes settings of the kernel: run it as root",
                path.display()
            ))),
            Err(error) => Err(Failure::world(format_args!("{}: {error}", path.display()))),
        }
    }

    /// Checks the settings of a candidate against what the disk has.
    ///
    /// # Errors
    /// When a scheduler is not available or a setting does not exist.
    pub fn check(&self, present: &QueueState, settings: &QueueState) -> Result<(), Failure> {
        let is_zoned = self.is_zoned();
        for (name, value) in settings {
            let with_own = settings.contains_key(SCHEDULER) && name.starts_with("iosched/");
            if name == SCHEDULER && !self.schedulers.contains(value) {
                return Err(Failure::words(format_args!(
                    "--candidates: scheduler `{value}` is not available on {}; the kernel offers {}",
                    self.path(),
                    self.schedulers.join(", ")
                )));
            }
            if name == SCHEDULER && is_zoned && !["mq-deadline", "none"].contains(&&**value) {
                return Err(Failure::words(format_args!(
                    "--candidates: {} is a zoned disk, for which only mq-deadline keeps the order \
                     of writes",
                    self.path()
                )));
            }
            if !present.contains_key(name) && !with_own {
                return Err(Failure::words(format_args!(
                    "--candidates: {} has no setting `{name}` that can be written",
                    self.path()
                )));
            }
        }
        Ok(())
    }

    /// The udev rule that sets `settings` whenever the disk appears.
    pub fn rule(&self, settings: &QueueState, udev: &Path) -> String {
        let number = fs::read_to_string(self.folder.join("dev")).unwrap_or_default();
        let known = fs::read_to_string(udev.join(format!("b{}", number.trim())));
        let known = known.unwrap_or_default();
        let serial = known
            .lines()
            .find_map(|line| line.strip_prefix("E:ID_SERIAL="));
        let is_plain = |text: &&str| !text.contains(['"', '\\', '*', '?', '[', '|']);
        let key = match serial.filter(is_plain) {
            Some(serial) => format!("ENV{{ID_SERIAL}}==\"{serial}\""),
            None => format!("KERNEL==\"{}\"", self.name),
        };
        let settings = crate::queue::in_order(settings);
        let settings = settings.into_iter();
        let settings = settings.map(|(name, value)| format!("ATTR{{queue/{name}}}=\"{value}\""));
        let settings: Vec<String> = settings.collect();
        format!(
            "ACTION==\"add|change\", SUBSYSTEM==\"block\", ENV{{DEVTYPE}}==\"disk\", {key}, {}",
            settings.join(", ")
        )
    }
}

/// Programs and rules below `root` that set the queues of disks and would overwrite a setting;
/// rules for zoned disks only if the disk is one.
pub fn other_writers(root: &Path, is_zoned: bool) -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["etc", "run", "usr/lib", "usr/local/lib"] {
        let folder = root.join(folder).join("udev/rules.d");
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths
            .iter()
            .filter(|path| path.extension().is_some_and(|e| e == "rules"))
        {
            let text = fs::read_to_string(path).unwrap_or_default();
            for (number, line) in text.lines().enumerate() {
                let is_for_zoned = line.contains("ATTR{queue/zoned}==");
                if assigns_queue(line) && (is_zoned || !is_for_zoned) {
                    found.push(format!(
                        "{}:{}: {}",
                        path.display(),
                        number + 1,
                        line.trim()
                    ));
                }
            }
        }
    }
    let process = fs::read_to_string(root.join("run/tuned/tuned.pid"));
    let is_running = |pid: String| root.join("proc").join(pid.trim()).exists();
    if process.is_ok_and(is_running) {
        let profile = fs::read_to_string(root.join("etc/tuned/active_profile"));
        let profile = profile.unwrap_or_default();
        found.push(format!(
            "tuned is running with profile `{}`, which may set schedulers and read-ahead",
            profile.trim()
        ));
    }
    found
}

/// Whether a line of a udev rule assigns an attribute of a queue; `==` compares.
fn assigns_queue(line: &str) -> bool {
    let parts = line.trim_start().split("ATTR{queue/").skip(1);
    let is_comment = line.trim_start().starts_with('#');
    let mut assigned = parts.filter_map(|part| part.split_once('}'));
    !is_comment && assigned.any(|(_, rest)| rest.starts_with('=') && !rest.starts_with("=="))
}

#[cfg(test)]
mod tests {
    use weir_testing::Scratch;

    use super::*;

    fn folder() -> Scratch {
        let folder = Scratch::new();
        folder.write("sda/queue/scheduler", "[none] kyber\n");
        folder.write("sda/mq/0/cpu_list", "0\n");
        folder.write("sda/dev", "8:0\n");
        folder.write("dm-0/queue/read_ahead_kb", "128\n");
        folder.write("dm-0/slaves/sda", "");
        folder
    }

    #[test]
    fn a_disk_without_scheduler_names_the_disk_below() {
        let folder = folder();
        let error = |path: &str| TuneDevice::find(folder.path(), path).unwrap_err().text();
        assert_eq!(error("/dev/sdb"), "weir: -i /dev/sdb: no such disk");
        let stacked = error("/dev/dm-0");
        assert!(stacked.contains("no scheduler"), "{stacked}");
        assert!(stacked.ends_with("scheduled below it, at sda"), "{stacked}");
    }

    #[test]
    fn settings_that_the_disk_does_not_have_are_errors() {
        let folder = folder();
        let disk = TuneDevice::find(folder.path(), "/dev/sda").unwrap();
        let present = QueueState::from([(SCHEDULER.to_owned(), "none".to_owned())]);
        let check = |text: &str| {
            let candidates = crate::candidate::parse(text).unwrap();
            disk.check(&present, &candidates[0].settings)
        };
        assert!(check("kyber").is_ok());
        assert!(check("kyber+iosched/read_lat_nsec=1").is_ok());
        let error = check("cfq").unwrap_err().text();
        assert!(error.ends_with("the kernel offers none, kyber"), "{error}");
        assert!(check("nr_requests=8").is_err());
    }

    #[test]
    fn a_rule_names_the_disk_by_its_serial_number_if_it_is_known() {
        let folder = folder();
        let disk = TuneDevice::find(folder.path(), "/dev/sda").unwrap();
        let settings = [(SCHEDULER, "kyber"), ("iosched/read_lat_nsec", "1")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let settings = QueueState::from(settings);
        let rule = disk.rule(&settings, folder.path());
        assert!(rule.contains("KERNEL==\"sda\""), "{rule}");
        let end = "ATTR{queue/scheduler}=\"kyber\", ATTR{queue/iosched/read_lat_nsec}=\"1\"";
        assert!(rule.ends_with(end), "{rule}");
        assert!(assigns_queue(&rule));
        folder.write("b8:0", "S:disk/by-id/x\nE:ID_SERIAL=WD_123\n");
        let rule = disk.rule(&settings, folder.path());
        assert!(rule.contains("ENV{ID_SERIAL}==\"WD_123\""), "{rule}");
    }

    #[test]
    fn rules_and_programs_that_set_queues_are_named() {
        let root = Scratch::new();
        let rules = "ATTR{queue/zoned}==\"host-managed\", ATTR{queue/scheduler}=\"x\"\n# ATTR{queue/scheduler}=\"x\"\nATTR{queue/rotational}==\"0\", RUN=\"y\"\n\
                     KERNEL==\"sd*\", ATTR{queue/rotational}==\"1\", ATTR{queue/scheduler}=\"bfq\"\n";
        root.write("etc/udev/rules.d/60-io.rules", rules);
        root.write("run/tuned/tuned.pid", "77\n");
        root.write("etc/tuned/active_profile", "balanced\n");
        let found = other_writers(root.path(), false);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("60-io.rules:4: KERNEL"), "{found:?}");
        root.write("proc/77/stat", "");
        let found = other_writers(root.path(), false);
        assert!(found[1].contains("profile `balanced`"), "{found:?}");
    }
}
