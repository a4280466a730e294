//! [`GroupLimits`]: the groups that a source computes.

use serde::{Deserialize, Serialize};

use crate::Nanos;

/// The groups that a source computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLimits {
    /// The minimum interval.
    pub interval_min_ns: Nanos,
    /// The maximum interval.
    pub interval_max_ns: Nanos,
    /// Maximum number of values of a group, besides the number of its rows.
    pub kept_max: usize,
    /// Maximum number of limits of a histogram.
    pub limits_max: usize,
    /// The only width of logarithmic bins, as in [`crate::PartialKind::LogLinear`]; `None`:
    /// any.
    pub log_linear_bits: Option<u32>,
}

impl GroupLimits {
    /// Those of groups that both sources compute.
    ///
    /// # Errors
    /// If there are none.
    pub(super) fn and(self, other: GroupLimits) -> Result<GroupLimits, String> {
        let bits = (self.log_linear_bits, other.log_linear_bits);
        if bits.0.zip(bits.1).is_some_and(|(own, other)| own != other) {
            return Err("the sources compute different groups".into());
        }
        Ok(GroupLimits {
            interval_min_ns: self.interval_min_ns.max(other.interval_min_ns),
            interval_max_ns: self.interval_max_ns.min(other.interval_max_ns),
            kept_max: self.kept_max.min(other.kept_max),
            limits_max: self.limits_max.min(other.limits_max),
            log_linear_bits: bits.0.or(bits.1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_two_versions_compute_the_groups_of_both() {
        let limits = |interval_min_ns, kept_max, limits_max, log_linear_bits| GroupLimits {
            interval_min_ns,
            interval_max_ns: 600,
            kept_max,
            limits_max,
            log_linear_bits,
        };
        let older = limits(2, 8, 64, Some(7));
        let newer = limits(1, 16, 512, None);
        assert_eq!(older.and(newer), Ok(older));
        assert_eq!(newer.and(older), Ok(older));
        assert!(older.and(limits(2, 8, 64, Some(5))).is_err());
    }
}
