//! [`Profile`] and [`Report`]: the characteristics of one virtual disk, and of all, as plain data.
//!
//! The JSON field names are those here, with units at the end: `_ns` nanoseconds, `_bytes`,
//! `_per_s` per second, `_share` from 0 to 1; unknown values are `null`. Timestamps are nanoseconds
//! since the Unix epoch.

use serde::Serialize;
use weir_model::{Nanos, Symbol};

use crate::analysis::access::Access;
use crate::analysis::addresses::AddressTally;
use crate::analysis::arrivals::Arrivals;
use crate::analysis::bursts::Bursts;
use crate::analysis::load::Load;
use crate::analysis::mix::Mix;
use crate::analysis::order::Order;
use crate::analysis::pairs::PairTally;
use crate::analysis::parallelism::Parallelism;
use crate::analysis::regions::Regions;
use crate::analysis::reuse::Reuse;
use crate::analysis::sizes::Sizes;
use crate::analysis::timeline::Timeline;
use crate::event::Subject;
use crate::evidence::{Confidence, Evidence};
use crate::histograms::Histograms;
use crate::interference::Interference;
use crate::little;
use crate::verdict::Verdict;

/// The report on all subjects.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The first event of any.
    pub began_ns: Option<Nanos>,
    /// From there to the last.
    pub span_ns: Nanos,
    /// Requests of all subjects, including those without a profile.
    pub requests: u64,
    /// Requests of subjects beyond the limit.
    pub requests_omitted: u64,
    /// Requests with an impossible address or length. They are counted as requests without an
    /// address.
    pub requests_impossible: u64,
    /// The subjects, the one with the most requests first.
    pub profiles: Vec<Profile>,
    /// Disturbances among subjects on one device; the strongest first.
    pub interference: Vec<Interference>,
    /// The number of ordered pairs on one device with sufficient data.
    pub pairs_tested: u64,
    /// What could not be assessed about all subjects together, and why.
    pub missing: Vec<Missing>,
}

/// The profile of one subject.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profile {
    /// The subject.
    pub subject: SubjectName,
    /// Its first event.
    pub began_ns: Nanos,
    /// From there to its last.
    pub span_ns: Nanos,
    /// Its requests, of any kind.
    pub requests: u64,
    /// The kind of workload; `None` with too few requests.
    pub verdict: Option<Verdict>,
    /// Reads, writes and the others.
    pub mix: Mix,
    /// Request lengths.
    pub sizes: Sizes,
    /// Sequential and random access.
    pub order: Order,
    /// The arrival process.
    pub arrivals: Arrivals,
    /// Burstiness.
    pub bursts: Bursts,
    /// Requests in flight; `None` if ends are unknown or too many are missing.
    pub parallelism: Option<Parallelism>,
    /// Latency by load; `None` if unknown.
    pub load: Option<Load>,
    /// Regions of the disk.
    pub regions: Regions,
    /// Activity by time.
    pub timeline: Timeline,
    /// Address over time, a sample.
    pub access: Access,
    /// Address over time, counted.
    pub addresses: AddressTally,
    /// Seek distance, length and requests in flight, each against latency.
    pub pairs: PairTally,
    /// Reuse of blocks, and the miss ratios of caches; `None` without reads and writes.
    pub reuse: Option<Reuse>,
    /// Advice for storage.
    pub advice: Vec<Advice>,
    /// What could not be assessed, and why.
    pub missing: Vec<Missing>,
    /// The eight distributions by class of operation.
    #[serde(skip)]
    pub histograms: Histograms,
}

/// The name of a subject as texts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SubjectName {
    /// The virtual machine.
    pub vm: Option<&'static str>,
    /// The disk as the VM sees it.
    pub vdisk: Option<&'static str>,
    /// The device or file on the host.
    pub pdisk: Option<&'static str>,
}

/// A disk of a host. Disks of several hosts may have equal names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct HostedDisk {
    /// The host; `None` if the source does not name it.
    pub host: Option<&'static str>,
    /// VM, disk of the VM and device.
    #[serde(flatten)]
    pub name: SubjectName,
}

/// A recommendation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The topic.
    pub topic: Topic,
    /// The advice in a sentence or two.
    pub text: String,
    /// The confidence.
    pub confidence: Confidence,
    /// The evidence.
    pub evidence: Vec<Evidence>,
}

/// A topic with insufficient data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Missing {
    /// The topic.
    pub topic: Topic,
    /// The reason, and what data would be needed.
    pub text: String,
}

/// The topic of advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    /// The kind of workload.
    Verdict,
    /// Cache size.
    CacheSize,
    /// Stripe unit size.
    StripeUnit,
    /// Flash or disk.
    Medium,
    /// Separation on disk groups.
    Separation,
    /// Requests in flight, and latencies.
    QueueDepth,
    /// Alignment.
    Alignment,
    /// Interference.
    Interference,
}

impl Profile {
    /// Removes everything derived from the number in flight if it fails its consistency check, and
    /// records the reason as missing.
    pub fn leave_out_unreliable(&mut self) {
        let Some(parallelism) = self.parallelism.take_if(|p| !p.is_reliable()) else {
            return;
        };
        self.histograms.clear_outstanding();
        self.pairs.clear_outstanding();
        if let Some(load) = &mut self.load {
            load.by_depth.clear();
        }
        for interval in &mut self.timeline.intervals {
            interval.in_flight_sum = None;
        }
        let ratio = parallelism.little_ratio.unwrap_or_default();
        self.missing.push(Missing {
            topic: Topic::QueueDepth,
            text: little::unreliable(ratio),
        });
    }
}

impl From<&Subject> for SubjectName {
    fn from(subject: &Subject) -> SubjectName {
        SubjectName {
            vm: subject.vm.map(Symbol::as_str),
            vdisk: subject.vdisk.map(Symbol::as_str),
            pdisk: subject.pdisk.map(Symbol::as_str),
        }
    }
}

impl std::fmt::Display for SubjectName {
    /// `web1 /dev/vda on /dev/sdb`, `/dev/sda`, or `unattributed`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let owner: Vec<&str> = [self.vm, self.vdisk].into_iter().flatten().collect();
        match (owner.is_empty(), self.pdisk) {
            (true, None) => f.write_str("unattributed"),
            (true, Some(device)) => f.write_str(device),
            (false, None) => f.write_str(&owner.join(" ")),
            (false, Some(device)) => write!(f, "{} on {device}", owner.join(" ")),
        }
    }
}

impl From<SubjectName> for HostedDisk {
    /// A disk of an unnamed host.
    fn from(name: SubjectName) -> HostedDisk {
        HostedDisk { host: None, name }
    }
}

impl std::fmt::Display for HostedDisk {
    /// `web1 /dev/vda on /dev/sdb of host1`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.name)?;
        match self.host {
            Some(host) => write!(f, " of {host}"),
            None => Ok(()),
        }
    }
}

impl Topic {
    /// As text.
    pub fn as_str(self) -> &'static str {
        match self {
            Topic::Verdict => "verdict",
            Topic::CacheSize => "cache size",
            Topic::StripeUnit => "stripe unit",
            Topic::Medium => "medium",
            Topic::Separation => "separation",
            Topic::QueueDepth => "queue depth and utilisation",
            Topic::Alignment => "alignment",
            Topic::Interference => "interference",
        }
    }
}
