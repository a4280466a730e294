//! [`Limit`]: requests and bytes per second, and the setting of a knob that has them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::knob::{Knob, KnobSetting};
use crate::{ActError, weight};

/// The lowest limit of requests per second, unless the user states another one.
pub const IOPS_FLOOR: u64 = 50;

/// The lowest limit of bytes per second.
pub const BYTES_FLOOR: u64 = 1 << 20;

/// The greatest weight, of cgroup v2.
pub const WEIGHT_MAX: u64 = 10_000;

/// A limit of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Requests per second.
    pub iops: Option<u64>,
    /// Bytes per second.
    pub bytes: Option<u64>,
    /// A weight, instead of limits.
    pub weight: Option<u64>,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("iops", self.iops),
            ("bytes_per_second", self.bytes),
            ("weight", self.weight),
        ];
        let set = parts
            .iter()
            .filter_map(|(name, value)| Some((name, (*value)?)));
        let set: Vec<String> = set.map(|(name, value)| format!("{name}={value}")).collect();
        f.write_str(&set.join(" "))
    }
}

impl Limit {
    /// Checks that it limits something, and not below the floors.
    ///
    /// # Errors
    /// [`ActError::Refused`] with the floor.
    pub fn check(&self, iops_floor: u64) -> Result<(), ActError> {
        let refused = |text: String| Err(ActError::Refused(text));
        if let Some(weight) = self.weight {
            return match (1..=WEIGHT_MAX).contains(&weight) {
                _ if self.iops.or(self.bytes).is_some() => {
                    refused("a weight has no limit beside it".to_owned())
                }
                true => Ok(()),
                false => refused(format!("a weight is from 1 to {WEIGHT_MAX}")),
            };
        }
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
        if let (Some(weight), Some(greatest)) = (self.weight, knob.weight_max()) {
            let lower = before.get(weight::NAME).min(weight).min(greatest);
            return before.clone().with(weight::NAME, lower);
        }
        // QEMU and libvirt have either a limit for both directions or one for each.
        let in_use = |names: [&'static str; 3]| -> Vec<&'static str> {
            let [total, read, write] = names;
            match before.get(total) == 0 && before.get(read) + before.get(write) > 0 {
                true => vec![read, write],
                false => vec![total],
            }
        };
        let names = match knob.totals() {
            None => [vec!["riops", "wiops"], vec!["rbps", "wbps"]],
            Some([iops, bytes]) => [in_use(iops), in_use(bytes)],
        };
        let names = names.into_iter().zip([self.iops, self.bytes]);
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
            ..Limit::default()
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
        let of = |iops, bytes| {
            let limit = Limit {
                iops,
                bytes,
                weight: None,
            };
            limit.check(IOPS_FLOOR)
        };
        assert!(of(Some(50), None).is_ok() && of(None, Some(BYTES_FLOOR)).is_ok());
        assert!(
            of(Some(49), None).is_err() && of(None, Some(1)).is_err() && of(None, None).is_err()
        );
        assert!(of(Some(500), Some(1)).is_err());
    }

    #[test]
    fn a_weight_is_lowered_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blkio.bfq.weight");
        std::fs::write(&path, "100\n").unwrap();
        let knob = Knob::weight_of_group(folder.path()).unwrap();
        let of = |weight| Limit {
            weight: Some(weight),
            ..Limit::default()
        };
        let before = knob.read().unwrap();
        assert_eq!(of(20).setting(&knob, &before).get("weight"), 20);
        assert_eq!(of(500).setting(&knob, &before).get("weight"), 100);
        assert!(of(0).check(IOPS_FLOOR).is_err() && of(10_001).check(IOPS_FLOOR).is_err());
    }
}
