//! [`Fidelity`]: how what arrived at the device differs from what was planned. It is pure.

use std::collections::{BTreeMap, HashMap, VecDeque};

use serde::Serialize;
use weir_model::{Nanos, Op};

use super::plan::{Pacing, ReplayPlan};
use super::rows::SeenRequest;

/// See the module's documentation. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fidelity {
    /// The requests of the plan.
    pub planned: u64,
    /// Those that the tap saw at the device.
    pub observed: u64,
    /// Pairs with the same operation, sector and length.
    pub matched: u64,
    /// Planned ones without an observed one: they were merged or split, failed, or were lost.
    pub missing: u64,
    /// Observed ones without a planned one.
    pub extra: u64,
    /// Sectors by operation: planned and observed.
    pub sectors: BTreeMap<&'static str, (u64, u64)>,
    /// Open loop: the insertion at the device after the planned time.
    pub issue_lag: Option<Spread>,
    /// Open loop: the difference between the planned and the observed time since the previous
    /// request.
    pub gap_error: Option<Spread>,
    /// The requests per second of the plan and at the device, from the first to the last insertion.
    pub rate_planned: Option<f64>,
    /// See `rate_planned`.
    pub rate_observed: Option<f64>,
    /// The requests in flight at an insertion, itself included, in the recording and at the device;
    /// `None` without recorded ends.
    pub depth_recorded: Option<Depth>,
    /// See `depth_recorded`.
    pub depth_observed: Option<Depth>,
    /// The largest difference between the cumulative shares of both depths: 0 for equal
    /// distributions, 1 at most (Kolmogorov and Smirnov's distance).
    pub depth_distance: Option<f64>,
    /// The latencies in the recording and at the device: the two disks differ.
    pub latency_recorded: Option<Spread>,
    /// See `latency_recorded`.
    pub latency_observed: Option<Spread>,
}

/// Values by their quantiles, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// The median.
    pub p50: Nanos,
    /// What 99 % do not exceed.
    pub p99: Nanos,
    /// The largest.
    pub max: Nanos,
}

/// A distribution of the number of requests in flight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Depth {
    /// The mean.
    pub mean: f64,
    /// What 99 % do not exceed.
    pub p99: u64,
    /// The largest.
    pub max: u64,
    /// The number of insertions by the number in flight.
    #[serde(skip)]
    counts: BTreeMap<u64, u64>,
}

/// Compares. `observed` are the requests that were inserted during the replay, which began at
/// `start_ns`.
pub fn compare(plan: &ReplayPlan, start_ns: Nanos, observed: &[SeenRequest]) -> Fidelity {
    let mut observed = observed.to_vec();
    observed.sort_by_key(|request| request.insert_ns);
    let pairs = matched(plan, &observed);
    let is_open = plan.pacing == Pacing::Open;
    let lags = pairs.iter().map(|(planned, seen)| {
        observed[*seen].insert_ns - start_ns - plan.requests[*planned].due_ns
    });
    let lags: Vec<Nanos> = lags.collect();
    let errors = pairs.windows(2).filter(|pair| pair[0].0 + 1 == pair[1].0);
    let errors = errors.map(|pair| {
        let planned = plan.requests[pair[1].0].due_ns - plan.requests[pair[0].0].due_ns;
        let seen = observed[pair[1].1].insert_ns - observed[pair[0].1].insert_ns;
        (seen - planned).abs()
    });
    let errors: Vec<Nanos> = errors.collect();
    let (depth_recorded, depth_observed) = (depth(&plan.recorded), depth(&observed));
    let depth_distance = depth_recorded
        .as_ref()
        .zip(depth_observed.as_ref())
        .map(|(recorded, observed)| distance(&recorded.counts, &observed.counts));
    let matched = pairs.len() as u64;
    Fidelity {
        planned: plan.requests.len() as u64,
        observed: observed.len() as u64,
        matched,
        missing: plan.requests.len() as u64 - matched,
        extra: observed.len() as u64 - matched,
        sectors: sectors(plan, &observed),
        issue_lag: is_open.then(|| spread(lags)).flatten(),
        gap_error: is_open.then(|| spread(errors)).flatten(),
        rate_planned: is_open
            .then(|| rate(plan.requests.iter().map(|request| request.due_ns)))
            .flatten(),
        rate_observed: rate(observed.iter().map(|request| request.insert_ns)),
        depth_recorded,
        depth_observed,
        depth_distance,
        latency_recorded: latencies(&plan.recorded),
        latency_observed: latencies(&observed),
    }
}

/// Pairs of positions of equal requests, each used once, in the order of the plan: the first
/// observed one belongs to the first planned one.
fn matched(plan: &ReplayPlan, observed: &[SeenRequest]) -> Vec<(usize, usize)> {
    let mut positions: HashMap<(Op, u64, u64), VecDeque<usize>> = HashMap::new();
    for (position, request) in observed.iter().enumerate() {
        let key = (request.op, request.sector, request.sectors);
        positions.entry(key).or_default().push_back(position);
    }
    let pairs = plan.requests.iter().enumerate();
    let pairs = pairs.filter_map(|(planned, request)| {
        // The sector of a flush has no meaning, and is not recorded.
        let sector = match request.op {
            Op::Flush => 0,
            _ => request.sector,
        };
        let same = positions.get_mut(&(request.op, sector, request.sectors));
        Some((planned, same?.pop_front()?))
    });
    pairs.collect()
}

fn sectors(plan: &ReplayPlan, observed: &[SeenRequest]) -> BTreeMap<&'static str, (u64, u64)> {
    let mut sums: BTreeMap<&'static str, (u64, u64)> = BTreeMap::new();
    for request in plan.requests.iter().filter(|r| r.op != Op::Flush) {
        sums.entry(request.op.name()).or_default().0 += request.sectors;
    }
    for request in observed.iter().filter(|r| r.op != Op::Flush) {
        sums.entry(request.op.name()).or_default().1 += request.sectors;
    }
    sums
}

/// The rate from the first to the last of the times.
fn rate(times: impl Iterator<Item = Nanos>) -> Option<f64> {
    let (mut count, mut low, mut high) = (0_u64, Nanos::MAX, Nanos::MIN);
    for time in times {
        (count, low, high) = (count + 1, low.min(time), high.max(time));
    }
    (count > 1 && high > low).then(|| (count - 1) as f64 * 1e9 / (high - low) as f64)
}

fn latencies(requests: &[SeenRequest]) -> Option<Spread> {
    let known = requests.iter();
    let known = known.filter_map(|request| Some(request.end_ns? - request.insert_ns));
    spread(known.collect())
}

fn spread(mut values: Vec<Nanos>) -> Option<Spread> {
    values.sort_unstable();
    let at = |share: f64| {
        let rank = (share * values.len() as f64).ceil() as usize;
        values.get(rank.max(1) - 1).copied()
    };
    Some(Spread {
        p50: at(0.5)?,
        p99: at(0.99)?,
        max: *values.last()?,
    })
}

/// The number in flight at each insertion; `None` if an end is not known.
fn depth(requests: &[SeenRequest]) -> Option<Depth> {
    let ends: Option<Vec<Nanos>> = requests.iter().map(|request| request.end_ns).collect();
    let mut ends = ends?;
    ends.sort_unstable();
    let mut inserts: Vec<Nanos> = requests.iter().map(|request| request.insert_ns).collect();
    inserts.sort_unstable();
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    let mut ended = 0;
    for (issued, insert) in inserts.iter().enumerate() {
        while ends.get(ended).is_some_and(|end| end <= insert) {
            ended += 1;
        }
        let in_flight = (issued + 1).saturating_sub(ended).max(1) as u64;
        *counts.entry(in_flight).or_default() += 1;
    }
    let all: u64 = counts.values().sum();
    let sum: u64 = counts.iter().map(|(depth, count)| depth * count).sum();
    let mut below = 0;
    let p99 = counts.iter().find_map(|(depth, count)| {
        below += count;
        (below as f64 >= 0.99 * all as f64).then_some(*depth)
    });
    Some(Depth {
        mean: sum as f64 / all as f64,
        p99: p99?,
        max: *counts.last_key_value()?.0,
        counts,
    })
}

/// Kolmogorov and Smirnov's distance of two distributions.
fn distance(a: &BTreeMap<u64, u64>, b: &BTreeMap<u64, u64>) -> f64 {
    let all = |counts: &BTreeMap<u64, u64>| counts.values().sum::<u64>().max(1) as f64;
    let (of_a, of_b) = (all(a), all(b));
    let (mut share_a, mut share_b, mut largest) = (0.0, 0.0, 0.0_f64);
    let depths: std::collections::BTreeSet<&u64> = a.keys().chain(b.keys()).collect();
    for depth in depths {
        share_a += a.get(depth).copied().unwrap_or(0) as f64 / of_a;
        share_b += b.get(depth).copied().unwrap_or(0) as f64 / of_b;
        largest = largest.max((share_a - share_b).abs());
    }
    largest
}

#[cfg(test)]
mod tests {
    use super::super::plan::ReplayTarget;
    use super::*;

    fn request(insert_ns: Nanos, latency: Nanos, sector: u64) -> SeenRequest {
        SeenRequest {
            insert_ns,
            end_ns: Some(insert_ns + latency),
            op: Op::Read,
            sector,
            sectors: 8,
        }
    }

    fn plan(recorded: &[SeenRequest]) -> ReplayPlan {
        let target = ReplayTarget {
            sectors: 1 << 20,
            block_sectors: 1,
            scale: false,
            reads_only: false,
            pacing: Pacing::Open,
            speed: 1.0,
        };
        ReplayPlan::new(recorded, &target).unwrap()
    }

    #[test]
    fn a_shifted_copy_is_faithful_but_for_its_lag() {
        let recorded = (0..100).map(|i| request(i * 1_000, 1_500, 8 * i as u64));
        let recorded: Vec<SeenRequest> = recorded.collect();
        let plan = plan(&recorded);
        let start = 5_000_000;
        let observed: Vec<_> = recorded
            .iter()
            .map(|r| request(start + r.insert_ns + 250, 1_500, r.sector))
            .collect();
        let found = compare(&plan, start, &observed);
        assert_eq!((found.matched, found.missing, found.extra), (100, 0, 0));
        let (lag, gap) = (found.issue_lag.unwrap(), found.gap_error.unwrap());
        assert_eq!((lag.p50, lag.p99, lag.max), (250, 250, 250));
        assert_eq!((gap.p50, gap.max), (0, 0));
        assert_eq!(found.rate_planned, found.rate_observed);
        assert_eq!(found.depth_distance, Some(0.0));
        assert_eq!(found.depth_recorded.unwrap().max, 2);
        assert_eq!(found.sectors["read"], (800, 800));
    }

    #[test]
    fn differences_are_counted() {
        let recorded: Vec<_> = (0..4).map(|i| request(i * 1_000, 100, 8)).collect();
        let plan = plan(&recorded);
        // One is missing, one is at another sector, and all are in flight together.
        let observed = [
            request(0, 9_000, 8),
            request(1_000, 9_000, 8),
            request(2_000, 9_000, 16),
        ];
        let found = compare(&plan, 0, &observed);
        assert_eq!((found.matched, found.missing, found.extra), (2, 2, 1));
        assert_eq!(found.depth_recorded.unwrap().mean, 1.0);
        assert_eq!(found.depth_observed.unwrap().mean, 2.0);
        assert!((found.depth_distance.unwrap() - 2.0 / 3.0).abs() < 1e-12);
        assert_eq!(found.sectors["read"], (32, 24));
    }

    /// The number in flight, counted request by request.
    #[test]
    fn depths_equal_those_counted_one_by_one() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..50 {
            let mut requests: Vec<SeenRequest> = (0..200)
                .map(|_| request(random.i64(0..10_000), random.i64(1..500), 0))
                .collect();
            requests.sort_by_key(|request| request.insert_ns);
            let found = depth(&requests).unwrap();
            let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
            for (position, one) in requests.iter().enumerate() {
                let before = requests[..=position].iter();
                let open = before.filter(|other| other.end_ns.unwrap() > one.insert_ns);
                *counts.entry(open.count() as u64).or_default() += 1;
            }
            assert_eq!(found.counts, counts);
        }
    }
}
