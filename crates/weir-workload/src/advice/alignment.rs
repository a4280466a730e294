//! Whether requests are aligned to the blocks of the storage.
//!
//! Flash pages, sectors of current disks and blocks of most arrays are 4 KiB or a multiple. A write
//! to a part of one makes the storage read the rest first.

use super::Conclusion;
use crate::evidence::{Confidence, Evidence};
use crate::profile::Profile;

/// A smaller share of the writes is always unaligned: a partition table, a label.
const UNALIGNED_SHARE: f64 = 0.1;

/// Evaluates the alignment of the writes.
pub fn statement(profile: &Profile) -> Conclusion {
    let writes = &profile.sizes.writes;
    let (Some(confidence), Some(aligned)) = (
        Confidence::of_requests(writes.requests),
        writes.aligned_4k_share,
    ) else {
        return Conclusion::Nothing;
    };
    if 1.0 - aligned < UNALIGNED_SHARE {
        return Conclusion::Nothing;
    }
    let text = format!(
        "{:.0} % of the writes do not start and end at multiples of 4 KiB; align partition and \
         file system to avoid read-modify-write in the storage",
        100.0 * (1.0 - aligned)
    );
    let evidence = vec![
        Evidence::new("writes", writes.requests as f64),
        Evidence::new("write_aligned_4k_share", aligned),
    ];
    Conclusion::Do(text, confidence, evidence)
}
