//! [`Knob`]: a setting of the host that limits the requests of a disk.
//!
//! Formats: Documentation/admin-guide/cgroup-v1/blkio-controller.rst and cgroup-v2.rst of the
//! kernel (`io.max`), `block_set_io_throttle` in qapi/block-core.json of QEMU.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weir_tap::qmp::{Cause, QemuMonitor, QmpAddress, QmpError};

use crate::tapdisk::TapdiskDisk;
use crate::{ActError, file, libvirt, systemd, weight};

/// The longest wait for QEMU.
const QEMU_MAX: Duration = Duration::from_secs(5);

/// `ENODEV`: a group no longer has a device.
const ENODEV: i32 = 19;

/// The files of cgroup v1 and the names of their values here.
const V1_FILES: [(&str, &str); 4] = [
    ("riops", "blkio.throttle.read_iops_device"),
    ("wiops", "blkio.throttle.write_iops_device"),
    ("rbps", "blkio.throttle.read_bps_device"),
    ("wbps", "blkio.throttle.write_bps_device"),
];

/// The file of cgroup v2 and the names in it.
const V2_FILE: &str = "io.max";
const V2_NAMES: [&str; 4] = ["riops", "wiops", "rbps", "wbps"];

/// The limits that `block_set_io_throttle` requires.
const QEMU_NAMES: [&str; 6] = ["bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr"];

/// Further limits, which QEMU reports only if they are set.
const QEMU_OPTIONAL: [&str; 13] = [
    "bps_max",
    "bps_rd_max",
    "bps_wr_max",
    "iops_max",
    "iops_rd_max",
    "iops_wr_max",
    "bps_max_length",
    "bps_rd_max_length",
    "bps_wr_max_length",
    "iops_max_length",
    "iops_rd_max_length",
    "iops_wr_max_length",
    "iops_size",
];

/// Limits by name: requests or bytes per second; 0 is no limit, and a name that is absent as well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnobSetting(pub BTreeMap<String, u64>);

impl KnobSetting {
    /// The limit called `name`, 0 without one.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// The same limits with another one.
    pub fn with(mut self, name: &str, limit: u64) -> KnobSetting {
        self.0.insert(name.to_owned(), limit);
        self
    }

    /// Whether all limits of both are the same.
    pub fn is(&self, other: &KnobSetting) -> bool {
        let mut names = self.0.keys().chain(other.0.keys());
        names.all(|name| self.get(name) == other.get(name))
    }

    /// What it becomes when the lease from `before` to `ours` ends: each limit that is still ours
    /// becomes the one from before, and one of another program stays.
    pub fn restored(&self, before: &KnobSetting, ours: &KnobSetting) -> KnobSetting {
        let mut setting = self.clone();
        for name in ours.0.keys() {
            if self.get(name) == ours.get(name) {
                setting = setting.with(name, before.get(name));
            }
        }
        setting
    }
}

impl fmt::Display for KnobSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.0.iter().filter(|(_, limit)| **limit > 0);
        let set: Vec<String> = set.map(|(name, limit)| format!("{name}={limit}")).collect();
        match set.is_empty() {
            true => f.write_str("no limit"),
            false => f.write_str(&set.join(" ")),
        }
    }
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Knob {
    /// Throttling of a device in a group of the blkio controller.
    CgroupV1 {
        /// The directory of the group.
        group: PathBuf,
        /// `major:minor` of the device.
        device: String,
    },
    /// `io.max` of a device in a group of the io controller.
    CgroupV2 {
        /// The directory of the group.
        group: PathBuf,
        /// `major:minor` of the device.
        device: String,
    },
    /// The throttling of a disk by its QEMU.
    Qemu {
        /// QEMU's QMP.
        address: QmpAddress,
        /// The path of the device in QEMU's object tree.
        qdev: String,
    },
    /// The throttling of a disk by the libvirt that owns its VM.
    Libvirt {
        /// As `qemu:///system`.
        uri: String,
        /// The domain.
        domain: String,
        /// The disk in the VM, as libvirt names it: `vda`.
        target: String,
    },
    /// The limits of a disk by its tapdisk.
    Tapdisk(TapdiskDisk),
    /// The weight of a group.
    Weight {
        /// The file.
        path: PathBuf,
    },
    /// Limits or the weight of a unit, through systemd.
    Systemd {
        /// The unit.
        unit: String,
        /// The path of the device.
        device: String,
        /// The knob of its group, which is read.
        group: Box<Knob>,
    },
}

/// The names of limits of requests and of bytes, for both directions and for each, of QEMU.
const QEMU_TOTALS: [[&str; 3]; 2] = [["iops", "iops_rd", "iops_wr"], ["bps", "bps_rd", "bps_wr"]];

/// Those of libvirt.
const LIBVIRT_TOTALS: [[&str; 3]; 2] = [
    ["total_iops_sec", "read_iops_sec", "write_iops_sec"],
    ["total_bytes_sec", "read_bytes_sec", "write_bytes_sec"],
];

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Knob::CgroupV1 { group, device } => {
                write!(f, "{}/blkio.throttle.* of {device}", group.display())
            }
            Knob::CgroupV2 { group, device } => {
                write!(f, "{}/{V2_FILE} of {device}", group.display())
            }
            Knob::Qemu { address, qdev } => write!(f, "block_set_io_throttle {qdev} at {address}"),
            Knob::Libvirt {
                uri,
                domain,
                target,
            } => write!(f, "blkdeviotune {domain} {target} at {uri}"),
            Knob::Tapdisk(disk) => write!(
                f,
                "tapdisk limits of {} at {}",
                disk.image,
                disk.socket.display()
            ),
            Knob::Weight { path } => write!(f, "{}", path.display()),
            Knob::Systemd { unit, group, .. } => write!(f, "{group} through systemd ({unit})"),
        }
    }
}

impl Knob {
    /// The knob of a device in the group at `group`, by the files that it has.
    ///
    /// # Errors
    /// When it is no group of an I/O controller.
    pub fn of_group(group: &Path, device: &str) -> Result<Knob, ActError> {
        let (group, device) = (group.to_owned(), device.to_owned());
        if group.join(V2_FILE).exists() {
            return Ok(Knob::CgroupV2 { group, device });
        }
        if group.join(V1_FILES[0].1).exists() {
            return Ok(Knob::CgroupV1 { group, device });
        }
        Err(ActError::Refused(format!(
            "{}: no group with limits of I/O: it has neither {V2_FILE} nor {}; the root group has \
             none, and the io controller must be enabled for the group",
            group.display(),
            V1_FILES[0].1
        )))
    }

    /// The weight of the group at `group`.
    ///
    /// # Errors
    /// When the group has none.
    pub fn weight_of_group(group: &Path) -> Result<Knob, ActError> {
        match weight::file_of(group) {
            Some(path) => Ok(Knob::Weight { path }),
            None => Err(ActError::Refused(format!(
                "{}: no group with a weight; it needs the scheduler bfq or, in cgroup v2, the io \
                 controller",
                group.display()
            ))),
        }
    }

    /// The names of its limits of requests and of bytes for both directions together, and for each;
    /// `None` if its limits are for reads and writes each.
    pub fn totals(&self) -> Option<[[&'static str; 3]; 2]> {
        match self {
            // A tapdisk has the first of each.
            Knob::Qemu { .. } | Knob::Tapdisk(_) => Some(QEMU_TOTALS),
            Knob::Libvirt { .. } => Some(LIBVIRT_TOTALS),
            _ => None,
        }
    }

    /// Whether it is a weight, and not a limit; its greatest value.
    pub fn weight_max(&self) -> Option<u64> {
        match self {
            Knob::Weight { path } => Some(weight::greatest(path)),
            Knob::Systemd { group, .. } => group.weight_max(),
            _ => None,
        }
    }

    /// The present limits.
    ///
    /// # Errors
    /// When it cannot be read: the group or the VM is gone.
    pub fn read(&self) -> Result<KnobSetting, ActError> {
        match self {
            Knob::CgroupV1 { group, device } => {
                let mut setting = KnobSetting::default();
                for (name, of) in V1_FILES {
                    let path = group.join(of);
                    let text = fs::read_to_string(&path).map_err(file(&path))?;
                    let line = text.lines().find_map(|line| of_device(line, device));
                    setting = setting.with(name, line.map_or(0, number));
                }
                Ok(setting)
            }
            Knob::CgroupV2 { group, device } => {
                let path = group.join(V2_FILE);
                let text = fs::read_to_string(&path).map_err(file(&path))?;
                let line = text.lines().find_map(|line| of_device(line, device));
                let mut setting = KnobSetting::default();
                for part in line.unwrap_or("").split_whitespace() {
                    if let Some((name, limit)) = part.split_once('=') {
                        setting = setting.with(name, number(limit));
                    }
                }
                Ok(setting)
            }
            Knob::Qemu { address, qdev } => {
                Ok(address.visit(QEMU_MAX, |qemu| read_qemu(qemu, qdev))?)
            }
            Knob::Libvirt {
                uri,
                domain,
                target,
            } => libvirt::read(uri, domain, target),
            Knob::Tapdisk(disk) => disk.read(),
            Knob::Weight { path } => weight::read(path),
            Knob::Systemd { group, .. } => group.read(),
        }
    }

    /// Writes limits; those that `setting` does not have become 0.
    ///
    /// # Errors
    /// When it cannot be written; some limits may have been.
    pub fn write(&self, setting: &KnobSetting) -> Result<(), ActError> {
        match self {
            Knob::CgroupV1 { group, device } => {
                for (name, of) in V1_FILES {
                    let path = group.join(of);
                    let line = format!("{device} {}", setting.get(name));
                    fs::write(&path, line).map_err(file(&path))?;
                }
                Ok(())
            }
            Knob::CgroupV2 { group, device } => {
                let limit = |name: &&str| match setting.get(name) {
                    0 => format!("{name}=max"),
                    limit => format!("{name}={limit}"),
                };
                let limits: Vec<String> = V2_NAMES.iter().map(limit).collect();
                let path = group.join(V2_FILE);
                fs::write(&path, format!("{device} {}", limits.join(" "))).map_err(file(&path))
            }
            Knob::Qemu { address, qdev } => {
                Ok(address.visit(QEMU_MAX, |qemu| write_qemu(qemu, qdev, setting))?)
            }
            Knob::Libvirt {
                uri,
                domain,
                target,
            } => libvirt::write(uri, domain, target, setting),
            Knob::Tapdisk(disk) => disk.write(setting),
            Knob::Weight { path } => weight::write(path, setting),
            Knob::Systemd { unit, device, .. } => systemd::write(unit, device, setting),
        }
    }

    /// Whether an error of reading it means that there is nothing to limit any more: the group, the
    /// VM or the disk is gone.
    pub fn is_gone(&self, error: &ActError) -> bool {
        match (error, self) {
            (error, Knob::Systemd { group, .. }) => group.is_gone(error),
            (ActError::File { error, .. }, _) => {
                let gone = [
                    io::ErrorKind::NotFound,
                    io::ErrorKind::NotADirectory,
                    // The socket of a tapdisk that has ended.
                    io::ErrorKind::ConnectionRefused,
                ];
                gone.contains(&error.kind()) || error.raw_os_error() == Some(ENODEV)
            }
            (ActError::Qemu(error), Knob::Qemu { address, .. }) => match (error.cause(), address) {
                (Cause::Refused, _) => true,
                (Cause::Unreachable, QmpAddress::Process { pid, .. }) => {
                    !Path::new(&format!("/proc/{pid}")).exists()
                }
                (cause, _) => cause == Cause::Unreachable,
            },
            // virsh of libvirt: a domain that was shut down or undefined, or has no such disk.
            (ActError::Program { why, .. }, Knob::Libvirt { .. }) => {
                let gone = [
                    "failed to get domain",
                    "not running",
                    "no disk",
                    "not found",
                ];
                gone.iter().any(|text| why.to_lowercase().contains(text))
            }
            _ => false,
        }
    }

    /// What [`Knob::write`] does, as a command of a shell or of QMP.
    pub fn command(&self, setting: &KnobSetting) -> String {
        match self {
            Knob::CgroupV1 { group, device } => {
                let line = |(name, of): &(&str, &str)| {
                    let path = group.join(of);
                    format!("echo '{device} {}' > {}", setting.get(name), path.display())
                };
                let set = V1_FILES.iter().filter(|(name, _)| setting.get(name) > 0);
                set.map(line).collect::<Vec<_>>().join("\n")
            }
            Knob::CgroupV2 { group, device } => {
                let set = V2_NAMES.iter().filter(|name| setting.get(name) > 0);
                let set: Vec<String> = set.map(|n| format!("{n}={}", setting.get(n))).collect();
                let path = group.join(V2_FILE);
                format!("echo '{device} {}' > {}", set.join(" "), path.display())
            }
            Knob::Qemu { qdev, .. } => {
                let arguments = qemu_arguments(qdev, setting);
                json!({"execute": "block_set_io_throttle", "arguments": arguments}).to_string()
            }
            Knob::Libvirt {
                uri,
                domain,
                target,
            } => libvirt::command(uri, domain, target, setting),
            Knob::Tapdisk(disk) => disk.command(setting),
            Knob::Weight { path } => format!("echo {} > {}", weight::line(setting), path.display()),
            Knob::Systemd { unit, device, .. } => systemd::command(unit, device, setting),
        }
    }
}

/// The rest of a line that begins with a device.
fn of_device<'l>(line: &'l str, device: &str) -> Option<&'l str> {
    let (of, rest) = line.split_once(' ')?;
    (of == device).then_some(rest)
}

/// A limit; `max` is 0.
fn number(text: &str) -> u64 {
    text.trim().parse().unwrap_or(0)
}

fn read_qemu(qemu: &mut dyn QemuMonitor, qdev: &str) -> Result<KnobSetting, QmpError> {
    let drives = qemu.execute("query-block", Value::Null)?;
    let mut drives = drives.as_array().into_iter().flatten();
    let drive = drives.find(|drive| drive["qdev"] == qdev);
    let inserted = drive
        .map(|drive| &drive["inserted"])
        .filter(|i| i.is_object());
    let inserted = inserted.ok_or_else(|| QmpError::Refused {
        at: qdev.to_owned(),
        command: "query-block".to_owned(),
        reason: "there is no such disk with a medium".to_owned(),
    })?;
    let names = QEMU_NAMES.iter().chain(&QEMU_OPTIONAL);
    let limits = names.filter_map(|name| Some(((*name).to_owned(), inserted[*name].as_u64()?)));
    Ok(KnobSetting(limits.collect()))
}

fn write_qemu(
    qemu: &mut dyn QemuMonitor,
    qdev: &str,
    setting: &KnobSetting,
) -> Result<(), QmpError> {
    qemu.execute("block_set_io_throttle", qemu_arguments(qdev, setting))?;
    Ok(())
}

fn qemu_arguments(qdev: &str, setting: &KnobSetting) -> Value {
    let mut arguments = json!({"id": qdev});
    for name in QEMU_NAMES {
        arguments[name] = json!(setting.get(name));
    }
    for name in QEMU_OPTIONAL.iter().filter(|name| setting.get(name) > 0) {
        arguments[*name] = json!(setting.get(name));
    }
    arguments
}

/// The other drives that are in the throttle group of `qdev`: a change would limit them too.
///
/// # Errors
/// When QEMU cannot be queried.
pub fn shares_group(address: &QmpAddress, qdev: &str) -> Result<Vec<String>, ActError> {
    let drives = address.visit(QEMU_MAX, |qemu| qemu.execute("query-block", Value::Null))?;
    let drives: Vec<&Value> = drives.as_array().into_iter().flatten().collect();
    let own = drives.iter().find(|drive| drive["qdev"] == qdev);
    let Some(group) = own.and_then(|drive| drive["inserted"]["group"].as_str()) else {
        return Ok(Vec::new());
    };
    let others = drives.iter().filter(|drive| {
        drive["qdev"] != qdev && drive["inserted"]["group"].as_str() == Some(group)
    });
    let name = |drive: &&Value| drive["qdev"].as_str().unwrap_or("a disk").to_owned();
    Ok(others.map(name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(limits: &[(&str, u64)]) -> KnobSetting {
        let limits = limits
            .iter()
            .map(|(name, limit)| ((*name).to_owned(), *limit));
        KnobSetting(limits.collect())
    }

    #[test]
    fn io_max_has_a_line_for_each_device() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(V2_FILE);
        fs::write(
            &path,
            "8:0 rbps=1048576 wbps=max riops=120 wiops=max\n7:1 riops=5\n",
        )
        .unwrap();
        let knob = Knob::of_group(folder.path(), "8:0").unwrap();
        let read = knob.read().unwrap();
        assert!(
            read.is(&setting(&[("rbps", 1 << 20), ("riops", 120)])),
            "{read}"
        );
        let other = Knob::of_group(folder.path(), "8:16").unwrap();
        assert!(other.read().unwrap().is(&KnobSetting::default()));
        knob.write(&setting(&[("wiops", 70)])).unwrap();
        let written = fs::read_to_string(&path).unwrap();
        assert_eq!(written, "8:0 riops=max wiops=70 rbps=max wbps=max");
    }

    #[test]
    fn a_group_without_files_of_limits_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = Knob::of_group(folder.path(), "8:0").unwrap_err();
        assert!(refused.to_string().contains("io.max"), "{refused}");
    }

    #[test]
    fn each_limit_that_is_still_ours_is_restored() {
        let (before, ours) = (
            setting(&[("riops", 9)]),
            setting(&[("riops", 5), ("wiops", 5)]),
        );
        let restored = |found: &[(&str, u64)]| setting(found).restored(&before, &ours);
        assert!(restored(&[("riops", 5), ("wiops", 5)]).is(&before));
        // A write that is not complete.
        assert!(restored(&[("riops", 9), ("wiops", 5)]).is(&before));
        let foreign = restored(&[("riops", 7), ("wiops", 5), ("rbps", 1)]);
        assert!(
            foreign.is(&setting(&[("riops", 7), ("rbps", 1)])),
            "{foreign}"
        );
    }

    #[test]
    fn qemu_gets_all_required_limits() {
        let arguments = qemu_arguments("disk0", &setting(&[("iops", 500), ("iops_max", 900)]));
        let expected = json!({"id": "disk0", "bps": 0, "bps_rd": 0, "bps_wr": 0, "iops": 500,
            "iops_rd": 0, "iops_wr": 0, "iops_max": 900});
        assert_eq!(arguments, expected);
    }
}
