//! [`Profile`] and [`Report`]: what is known of one virtual disk, and of all, as plain data.
//!
//! As JSON the names of the fields are those here, with their units at the end: `_ns` nanoseconds, `_bytes`,
//! `_per_s` per second, `_share` from 0 to 1; what is not known is `null`. Instants are nanoseconds since the
//! Unix epoch.

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

/// What is known of all subjects.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The first event of any.
    pub began_ns: Option<Nanos>,
    /// From there to the last.
    pub span_ns: Nanos,
    /// Requests of all subjects, those without a profile too.
    pub requests: u64,
    /// Requests of the subjects for which there was no place.
    pub requests_left_out: u64,
    /// Requests at a place, or of a length, that no disk has. They count, but as if without a place.
    pub requests_impossible: u64,
    /// Each subject, the one with most requests first.
    pub profiles: Vec<Profile>,
    /// Who disturbs whom, among those on one device; the strongest first.
    pub interference: Vec<Interference>,
    /// Ordered pairs on one device of which the data tell whether one disturbs the other.
    pub pairs_tested: u64,
    /// What could not be assessed of them together, and why.
    pub missing: Vec<Missing>,
}

/// What is known of one subject.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profile {
    /// Whose I/O it is.
    pub subject: SubjectName,
    /// Its first event.
    pub began_ns: Nanos,
    /// From there to its last.
    pub span_ns: Nanos,
    /// Its requests, of any kind.
    pub requests: u64,
    /// What kind of workload it is; `None` where there are too few requests to tell.
    pub verdict: Option<Verdict>,
    /// Reads, writes and the others.
    pub mix: Mix,
    /// How long they are.
    pub sizes: Sizes,
    /// How sequential.
    pub order: Order,
    /// How they come.
    pub arrivals: Arrivals,
    /// How unevenly.
    pub bursts: Bursts,
    /// How many at a time; `None` where ends are not known, or too many of them are missing.
    pub parallelism: Option<Parallelism>,
    /// How long they take, by load; `None` where that is not known.
    pub load: Option<Load>,
    /// Where they go.
    pub regions: Regions,
    /// What happened when.
    pub timeline: Timeline,
    /// Address over time, a sample.
    pub access: Access,
    /// Address over time, counted.
    pub addresses: AddressTally,
    /// Seek distance, length and requests in flight, each against latency.
    pub pairs: PairTally,
    /// How soon blocks are used again, and what caches hit; `None` without reads and writes.
    pub reuse: Option<Reuse>,
    /// What follows for storage.
    pub advice: Vec<Advice>,
    /// What could not be assessed, and why.
    pub missing: Vec<Missing>,
    /// The eight distributions by class of operation.
    #[serde(skip)]
    pub histograms: Histograms,
}

/// A subject's name, in texts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SubjectName {
    /// The virtual machine.
    pub vm: Option<&'static str>,
    /// The disk as the VM sees it.
    pub vdisk: Option<&'static str>,
    /// The device or file on the host.
    pub pdisk: Option<&'static str>,
}

/// Something to do, or to leave as it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// What it is about.
    pub topic: Topic,
    /// The advice in a sentence or two.
    pub text: String,
    /// How far it can be relied on.
    pub confidence: Confidence,
    /// What it rests on.
    pub evidence: Vec<Evidence>,
}

/// Something that the data do not carry.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Missing {
    /// What nothing is said about.
    pub topic: Topic,
    /// Why, and what it would take.
    pub text: String,
}

/// What advice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    /// What kind of workload it is.
    Verdict,
    /// How large a cache pays.
    CacheSize,
    /// How wide a stripe unit should be.
    StripeUnit,
    /// Flash or disk.
    Medium,
    /// What belongs on disk groups of its own.
    Separation,
    /// How many requests are in flight, and for how long any is.
    QueueDepth,
    /// Whether requests lie as blocks do.
    Alignment,
    /// Who disturbs whom.
    Interference,
}

impl Profile {
    /// Removes everything that rests on the number in flight where that fails its self-check, and adds why
    /// to what is missing.
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

impl Topic {
    /// In words.
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
