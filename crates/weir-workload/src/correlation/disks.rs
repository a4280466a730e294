//! [`DiskCorrelator`]: the disks of one or more hosts whose load or latency correlates, step by
//! step.

use std::collections::{BTreeMap, HashMap, VecDeque};

use serde::{Deserialize, Serialize};
use weir_model::{NANOS_PER_SECOND, Nanos};

use super::correlator::{CorrelatedPair, CorrelationOptions, Correlations, Correlator};
use super::verdict::{LoadEffect, PairVerdict, verdict};
use crate::analysis::timeline::{Interval, Timeline};
use crate::profile::HostedDisk;

/// Up to this number of disks pairs are searched at each step, above it once per basic window.
const EVERY_STEP_DISKS: usize = 1_000;

/// The pairs of a window that are assessed, the strongest; and the pairs of a summary.
const ASSESSED_MAX: usize = 1_000;
const SUMMARY_MAX: usize = 10_000;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CorrelatedMetric {
    /// The mean latency of the requests that completed in a step; unknown without requests.
    Latency,
    /// Completed requests per second.
    Iops,
    /// Bytes per second of completed requests.
    Bytes,
    /// The mean number of requests in flight: the latencies of the completed requests over the
    /// length of the step (Little's law).
    Inflight,
}

/// The requests of a disk that completed in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepLoad {
    /// Their number.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The number of those whose latency is known.
    pub timed: u64,
    /// The sum of these latencies.
    pub latency_sum_ns: Nanos,
}

/// The disks of one or more hosts.
#[derive(Clone, Debug)]
pub struct DiskCorrelator {
    metric: CorrelatedMetric,
    step_ns: Nanos,
    correlator: Correlator,
    ids: BTreeMap<HostedDisk, u32>,
    disks: HashMap<u32, DiskHistory>,
    next_id: u32,
    requests_omitted: u64,
    /// The end of the latest step, and the beginning of the first.
    end_ns: Option<Nanos>,
    begin_ns: Nanos,
    summary: BTreeMap<[HostedDisk; 2], PairSummary>,
    summary_omitted: u64,
    windows: u64,
    insignificant: u64,
}

/// The latest steps of a disk.
#[derive(Clone, Debug)]
struct DiskHistory {
    name: HostedDisk,
    steps: VecDeque<Interval>,
    last_active: u64,
}

/// The pairs of one window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CorrelationReport {
    /// The beginning of the latest windows.
    pub begin_ns: Nanos,
    /// Their end.
    pub end_ns: Nanos,
    /// The compared metric.
    pub metric: CorrelatedMetric,
    /// The number of disks.
    pub disks: usize,
    /// Those with a complete window that is not constant.
    pub compared: usize,
    /// The number of comparisons of two windows.
    pub comparisons: u64,
    /// Pairs above the threshold that may be due to chance.
    pub insignificant: u64,
    /// Pairs that are not listed, as there are too many.
    pub pairs_omitted: u64,
    /// Requests of disks beyond the limit.
    pub requests_omitted: u64,
    /// The pairs, the strongest first.
    pub pairs: Vec<DiskPair>,
}

/// Two disks that correlate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiskPair {
    /// The disk that changes first; with lag 0 either one.
    pub leader: HostedDisk,
    /// The other disk.
    pub follower: HostedDisk,
    /// How much later it changes.
    pub lag_ns: Nanos,
    /// Pearson's coefficient of correlation.
    pub coefficient: f64,
    /// Its interval of 95 % confidence.
    pub coefficient_interval: [f64; 2],
    /// The window of the follower; that of the leader is earlier by the lag.
    pub begin_ns: Nanos,
    /// Its end.
    pub end_ns: Nanos,
    /// The probability that chance gives such a pair among all that were compared.
    pub p_value: f64,
    /// Independent values that are as informative as those of the window.
    pub effective_values: f64,
    /// Its meaning.
    pub verdict: PairVerdict,
    /// The effect of the leader's load on the follower.
    pub leader_on_follower: LoadEffect,
    /// The effect of the follower's load on the leader.
    pub follower_on_leader: LoadEffect,
}

/// A pair in all windows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairSummary {
    /// The window in which it was strongest.
    pub strongest: DiskPair,
    /// The beginning of the first window in which it was found.
    pub first_ns: Nanos,
    /// The end of the last one.
    pub last_ns: Nanos,
    /// The number of windows in which it was found.
    pub windows: u64,
}

/// All windows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CorrelationSummary {
    /// The beginning of the first step; `None` without steps.
    pub begin_ns: Option<Nanos>,
    /// The end of the last one.
    pub end_ns: Option<Nanos>,
    /// The compared metric.
    pub metric: CorrelatedMetric,
    /// The number of windows that were compared.
    pub windows: u64,
    /// The number of disks at the end.
    pub disks: usize,
    /// Pairs of all windows above the threshold that may be due to chance.
    pub insignificant: u64,
    /// Pairs of windows that are not listed, as there are too many.
    pub pairs_omitted: u64,
    /// Requests of disks beyond the limit.
    pub requests_omitted: u64,
    /// The pairs, the strongest first.
    pub pairs: Vec<PairSummary>,
}

impl CorrelatedMetric {
    /// Every metric.
    pub const ALL: [CorrelatedMetric; 4] = [
        CorrelatedMetric::Latency,
        CorrelatedMetric::Iops,
        CorrelatedMetric::Bytes,
        CorrelatedMetric::Inflight,
    ];

    /// The name.
    pub fn as_str(self) -> &'static str {
        match self {
            CorrelatedMetric::Latency => "latency",
            CorrelatedMetric::Iops => "iops",
            CorrelatedMetric::Bytes => "bytes",
            CorrelatedMetric::Inflight => "inflight",
        }
    }

    /// Its value in a step; `None` where it is unknown.
    fn value(self, load: &StepLoad, step_ns: Nanos) -> Option<f64> {
        let per_second = NANOS_PER_SECOND as f64 / step_ns as f64;
        match self {
            CorrelatedMetric::Latency => {
                (load.timed > 0).then(|| load.latency_sum_ns as f64 / load.timed as f64)
            }
            CorrelatedMetric::Iops => Some(load.requests as f64 * per_second),
            CorrelatedMetric::Bytes => Some(load.bytes as f64 * per_second),
            CorrelatedMetric::Inflight => Some(load.latency_sum_ns as f64 / step_ns as f64),
        }
    }
}

impl DiskCorrelator {
    /// Without disks. `step_ns` is the length of a step.
    pub fn new(metric: CorrelatedMetric, step_ns: Nanos, options: CorrelationOptions) -> Self {
        DiskCorrelator {
            metric,
            step_ns,
            correlator: Correlator::new(options),
            ids: BTreeMap::new(),
            disks: HashMap::new(),
            next_id: 0,
            requests_omitted: 0,
            end_ns: None,
            begin_ns: 0,
            summary: BTreeMap::new(),
            summary_omitted: 0,
            windows: 0,
            insignificant: 0,
        }
    }

    /// Steps for which a disk without requests is kept.
    fn kept(&self) -> u64 {
        let options = self.correlator.options();
        (options.window + options.lag) as u64
    }

    /// Adds the step that ends at `end_ns`, with the load of each active disk. Steps between the
    /// previous one and this were idle.
    pub fn step(
        &mut self,
        end_ns: Nanos,
        loads: impl IntoIterator<Item = (impl Into<HostedDisk>, StepLoad)>,
    ) {
        let idle = self
            .end_ns
            .map_or(0, |end| (end_ns - end) / self.step_ns - 1);
        for _ in 0..idle.clamp(0, 2 * self.kept() as i64) {
            self.add(end_ns, BTreeMap::new());
        }
        if self.end_ns.is_none() {
            self.begin_ns = end_ns - self.step_ns;
        }
        self.end_ns = Some(end_ns);
        let mut by_id: BTreeMap<u32, StepLoad> = BTreeMap::new();
        for (name, load) in loads {
            match self.id(name.into()) {
                Some(id) => by_id.entry(id).or_default().add(&load),
                None => self.requests_omitted += load.requests,
            }
        }
        self.add(end_ns, by_id);
    }

    fn id(&mut self, name: HostedDisk) -> Option<u32> {
        if let Some(id) = self.ids.get(&name) {
            return Some(*id);
        }
        if self.ids.len() >= self.correlator.options().series_max() {
            return None;
        }
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        self.ids.insert(name.clone(), id);
        let history = DiskHistory {
            name,
            steps: VecDeque::new(),
            last_active: self.correlator.steps(),
        };
        self.disks.insert(id, history);
        Some(id)
    }

    fn add(&mut self, end_ns: Nanos, loads: BTreeMap<u32, StepLoad>) {
        let (now, kept) = (self.correlator.steps(), self.kept());
        for (id, load) in &loads {
            let disk = self.disks.get_mut(id).expect("it has an id");
            disk.last_active = now;
            disk.steps.push_back(Interval {
                ts_ns: end_ns - self.step_ns,
                reads: load.requests,
                read_bytes: load.bytes,
                timed: load.timed,
                latency_sum_ns: load.latency_sum_ns,
                ..Interval::default()
            });
        }
        let oldest_ns = end_ns - kept as i64 * self.step_ns;
        self.disks.retain(|_, disk| {
            let is_old = |interval: &Interval| interval.ts_ns < oldest_ns;
            while disk.steps.front().is_some_and(is_old) {
                disk.steps.pop_front();
            }
            let is_kept = disk.last_active + kept >= now;
            if !is_kept {
                self.ids.remove(&disk.name);
            }
            is_kept
        });
        let (metric, step_ns) = (self.metric, self.step_ns);
        let values = self.disks.keys().filter_map(|id| {
            // Of an idle disk the latency is unknown, and the other metrics are 0.
            let load = loads.get(id).copied().unwrap_or_default();
            Some((*id, metric.value(&load, step_ns)?))
        });
        self.correlator.step(values);
    }

    /// Whether pairs are searched at this step.
    pub fn is_due(&self) -> bool {
        let basic = self.correlator.options().basic() as u64;
        self.disks.len() <= EVERY_STEP_DISKS || self.correlator.steps().is_multiple_of(basic)
    }

    /// The pairs of the latest windows, which [`DiskCorrelator::summary`] will contain; `None`
    /// before the first step.
    pub fn report(&mut self) -> Option<CorrelationReport> {
        let report = self.compare()?;
        self.windows += u64::from(report.compared > 1);
        self.summary_omitted += report.pairs_omitted;
        self.insignificant += report.insignificant;
        report.pairs.iter().for_each(|pair| self.summarise(pair));
        Some(report)
    }

    /// The pairs of the latest windows; `None` before the first step.
    pub fn compare(&mut self) -> Option<CorrelationReport> {
        let end_ns = self.end_ns?;
        let found = self.correlator.pairs();
        let omitted = found.pairs.len().saturating_sub(ASSESSED_MAX) as u64;
        let pairs = found.pairs.iter().take(ASSESSED_MAX);
        let pairs: Vec<DiskPair> = pairs
            .map(|pair| self.assessed(pair, &found, end_ns))
            .collect();
        Some(CorrelationReport {
            begin_ns: end_ns - self.window_ns(),
            end_ns,
            metric: self.metric,
            disks: self.disks.len(),
            compared: found.series,
            comparisons: found.comparisons,
            insignificant: found.insignificant,
            pairs_omitted: found.omitted + omitted,
            requests_omitted: self.requests_omitted,
            pairs,
        })
    }

    /// Approximate size of the state in bytes, without that of the summary.
    pub fn bytes(&self) -> usize {
        let steps = self.disks.values().map(|disk| disk.steps.capacity());
        self.correlator.bytes()
            + steps.sum::<usize>() * size_of::<Interval>()
            + self.disks.len() * (size_of::<DiskHistory>() + size_of::<HostedDisk>())
    }

    fn window_ns(&self) -> Nanos {
        self.correlator.options().window as Nanos * self.step_ns
    }

    fn assessed(&self, pair: &CorrelatedPair, found: &Correlations, end_ns: Nanos) -> DiskPair {
        let name = |id: u32| self.disks[&id].name.clone();
        let (mut leader, mut follower) = (pair.leader, pair.follower);
        // With lag 0 the order is that of the names.
        if pair.lag == 0 && name(follower) < name(leader) {
            (leader, follower) = (follower, leader);
        }
        let lag_ns = pair.lag as Nanos * self.step_ns;
        let timeline = |id: u32| Timeline {
            interval_ns: self.step_ns,
            intervals: self.disks[&id].steps.iter().copied().collect(),
        };
        let (verdict, [forward, backward]) = verdict(
            pair.coefficient,
            lag_ns,
            &timeline(leader),
            &timeline(follower),
        );
        let p_value = pair.significance.p_value * found.comparisons as f64;
        DiskPair {
            leader: name(leader),
            follower: name(follower),
            lag_ns,
            coefficient: pair.coefficient,
            coefficient_interval: pair.significance.interval,
            begin_ns: end_ns - self.window_ns(),
            end_ns,
            p_value: p_value.min(1.0),
            effective_values: pair.significance.effective,
            verdict,
            leader_on_follower: forward,
            follower_on_leader: backward,
        }
    }

    fn summarise(&mut self, pair: &DiskPair) {
        let mut names = [pair.leader.clone(), pair.follower.clone()];
        names.sort();
        if self.summary.len() >= SUMMARY_MAX && !self.summary.contains_key(&names) {
            self.summary_omitted += 1;
            return;
        }
        let kept = self.summary.entry(names).or_insert_with(|| PairSummary {
            strongest: pair.clone(),
            first_ns: pair.begin_ns,
            last_ns: pair.end_ns,
            windows: 0,
        });
        kept.windows += 1;
        kept.last_ns = pair.end_ns;
        if pair.coefficient.abs() > kept.strongest.coefficient.abs() {
            kept.strongest = pair.clone();
        }
    }

    /// All windows so far.
    pub fn summary(&self) -> CorrelationSummary {
        let mut pairs: Vec<PairSummary> = self.summary.values().cloned().collect();
        let strength = |pair: &PairSummary| pair.strongest.coefficient.abs();
        pairs.sort_by(|a, b| strength(b).total_cmp(&strength(a)));
        CorrelationSummary {
            begin_ns: self.end_ns.map(|_| self.begin_ns),
            end_ns: self.end_ns,
            metric: self.metric,
            windows: self.windows,
            disks: self.disks.len(),
            insignificant: self.insignificant,
            pairs_omitted: self.summary_omitted,
            requests_omitted: self.requests_omitted,
            pairs,
        }
    }
}

impl StepLoad {
    fn add(&mut self, more: &StepLoad) {
        self.requests += more.requests;
        self.bytes += more.bytes;
        self.timed += more.timed;
        self.latency_sum_ns = self.latency_sum_ns.saturating_add(more.latency_sum_ns);
    }
}
