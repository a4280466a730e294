//! [`Interference`]: which subject's latency and throughput change when another one on the same device is
//! active, as section 5.3 and figure 6 of Ahmad 2007 show it for two VMs.

use serde::Serialize;

use crate::evidence::{Confidence, Evidence};
use crate::profile::SubjectName;

/// One subject disturbs another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interference {
    /// Who suffers.
    pub victim: SubjectName,
    /// Who is active then.
    pub disturber: SubjectName,
    /// The victim's median latency while the other is active, over that while it is not.
    pub latency_ratio: f64,
    /// The same of its requests per second.
    pub throughput_ratio: f64,
    /// How far it can be relied on.
    pub confidence: Confidence,
    /// What it rests on.
    pub evidence: Vec<Evidence>,
}
