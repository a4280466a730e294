//! [`Limit`]: requests and bytes per second, and the setting of a knob that has them.

use crate::ActError;
use crate::knob::{Knob, KnobSetting};

/// The lowest limit of requests per second, unless the user states another one.
pub const IOPS_FLOOR: u64 = 50;

/// The lowest limit of bytes per second.
pub const BYTES_FLOOR: u64 = 1 << 20;

/// A limit of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Requests per second.
    pub iops: Option<u64>,
    /// Bytes per second.
    pub bytes: Option<u64>,
}

impl Limit {
    /// Checks that it limits something, and not below the floors.
    ///
    /// # Errors
    /// [`ActError::Refused`] with the floor.
    pub fn check(&self, iops_floor: u64) -> Result<(), ActError> {
        let refused = |text: String| Err(ActError::Refused(text));
        match (self.iops, self.bytes) {
            (None, None) => refused("no limit: give --iops or --bytes-per-second".to_owned()),
            (Some(iops), _) if iops < iops_floor => refused(format!(
                "{iops} IOPS are below the floor of {iops_floor}, at which a guest may time out; \
                 --floor changes it"
            )),
            (_, Some(bytes)) if bytes < BYTES_FLOOR => refused(format!(
                "{bytes} bytes per second are below the floor of {BYTES_FLOOR}"
            )),
            _ => Ok(()),
        }
    }

    /// The setting of a knob that has `before`: each limit is the lower one of both, so that a
    /// limit is never raised. A knob by direction has the limit for reads and for writes.
    pub fn setting(&self, knob: &Knob, before: &KnobSetting) -> KnobSetting {
        let is_split = |total: &str| before.get(total) == 0 && self.splits(before, total);
        let names: [(&[&str], Option<u64>); 2] = match knob.is_by_direction() {
            true => [
                (&["riops", "wiops"], self.iops),
                (&["rbps", "wbps"], self.bytes),
            ],
            false => {
                // QEMU has either a limit for both directions or one for each.
                let iops: &[&str] = if is_split("iops") {
                    &["iops_rd", "iops_wr"]
                } else {
                    &["iops"]
                };
                let bps: &[&str] = if is_split("bps") {
                    &["bps_rd", "bps_wr"]
                } else {
                    &["bps"]
                };
                [(iops, self.iops), (bps, self.bytes)]
            }
        };
        let mut setting = before.clone();
        for (names, limit) in names {
            for name in names {
                if let Some(limit) = limit {
                    let lower = match before.get(name) {
                        0 => limit,
                        present => present.min(limit),
                    };
                    setting = setting.with(name, lower);
                }
            }
        }
        setting
    }

    fn splits(&self, before: &KnobSetting, total: &str) -> bool {
        ["rd", "wr"]
            .iter()
            .any(|way| before.get(&format!("{total}_{way}")) > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use weir_tap::qmp::QmpAddress;

    use super::*;

    fn knobs() -> [Knob; 2] {
        let group = PathBuf::from("/sys/fs/cgroup/x");
        let qemu = Knob::Qemu {
            address: QmpAddress::Socket(PathBuf::from("/run/q")),
            qdev: "disk0".to_owned(),
        };
        let device = "8:0".to_owned();
        [Knob::CgroupV2 { group, device }, qemu]
    }

    #[test]
    fn a_limit_is_never_raised() {
        let limit = Limit {
            iops: Some(500),
            bytes: None,
        };
        let [group, qemu] = knobs();
        let before = KnobSetting::default().with("riops", 100).with("rbps", 7);
        let set = limit.setting(&group, &before);
        assert_eq!(
            (set.get("riops"), set.get("wiops"), set.get("rbps")),
            (100, 500, 7)
        );
        let set = limit.setting(&qemu, &KnobSetting::default().with("iops", 900));
        assert_eq!((set.get("iops"), set.get("iops_rd")), (500, 0));
        // QEMU refuses a total beside limits of one direction.
        let set = limit.setting(&qemu, &KnobSetting::default().with("iops_wr", 300));
        assert_eq!(
            (set.get("iops"), set.get("iops_rd"), set.get("iops_wr")),
            (0, 500, 300)
        );
    }

    #[test]
    fn limits_below_the_floor_are_refused() {
        let of = |iops, bytes| Limit { iops, bytes }.check(IOPS_FLOOR);
        assert!(of(Some(50), None).is_ok() && of(None, Some(BYTES_FLOOR)).is_ok());
        assert!(
            of(Some(49), None).is_err() && of(None, Some(1)).is_err() && of(None, None).is_err()
        );
        assert!(of(Some(500), Some(1)).is_err());
    }
}
