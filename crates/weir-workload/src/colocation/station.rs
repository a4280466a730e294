//! [`Station`]: a device as a queueing station, with service demands measured from a recording.
//!
//! A station has channels, which serve requests in the order of arrival, one request each. The
//! demand of a request is its time in a channel. It is computed from the recorded times: a request
//! begins when it arrives or, if all channels were occupied, when enough earlier ones had completed
//! (Lindley's recursion for several servers, solved for the service time). Where requests complete
//! before they could begin, the device serves them in another order: they begin in the order of
//! completion then, which gives the demands of one channel exactly, whatever the order. The demands
//! of each class of requests, by operation, order and size, are kept as they were measured: no
//! distribution is assumed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use weir_model::{Nanos, Op};

use super::stream::RecordedRequest;

/// A class with fewer demands has no distribution of its own.
const DEMANDS_MIN: usize = 20;

/// The demands that are kept for each class, evenly spaced over the recording.
const DEMANDS_MAX: usize = 8_192;

/// A channel takes some time for each request, also where the recording is inconsistent.
const DEMAND_MIN_NS: Nanos = 100;

/// More requests that complete before they could begin than this contradict the order of arrival.
const CONTRADICTIONS_MAX: f64 = 0.05;

/// A device limits the requests in it if at least this number and share of requests waited for
/// longer than they were served, and this share of them was issued with as many others as ever.
const WAITED_MIN: usize = 20;
const WAITED_SHARE: f64 = 0.05;
const AT_LIMIT_SHARE: f64 = 0.9;

/// Sizes: up to 512 bytes, 1 KiB, 2 KiB, .., more than 1 MiB.
const SIZES: usize = 13;
const ORDERS: usize = 3;
const OPS: usize = 3;

/// The number of channels of a station in which no request waits.
pub const CHANNELS_UNLIMITED: usize = 1 << 20;

/// A request may continue its predecessor after a gap of this number of sectors.
const GAP_SECTORS: i64 = 64;

/// A device.
#[derive(Clone, Debug)]
pub struct Station {
    /// Requests that are served at the same time.
    pub channels: usize,
    /// Whether the recorded requests were served in the order of their arrival.
    pub in_order: bool,
    /// The measured demands of each class, ns.
    classes: Vec<Vec<Nanos>>,
    /// The class whose demands are used for each class; `None` if no class of its operation was
    /// measured. A class with demands of its own uses these.
    used: Vec<Option<usize>>,
}

/// The order of requests at a device.
#[derive(Clone, Debug, Default)]
pub struct Positions {
    latest: Option<usize>,
    /// The end of the latest request of each disk.
    ends: Vec<Option<i64>>,
}

impl Positions {
    /// Of this number of disks.
    pub fn new(disks: usize) -> Positions {
        Positions {
            latest: None,
            ends: vec![None; disks],
        }
    }

    /// The class of the next request, which is one of this disk: sequential, sequential for its
    /// disk but after a request of another one, or random.
    pub fn class(&mut self, disk: usize, request: &RecordedRequest) -> usize {
        let Some(sector) = request.sector else {
            return class(request, 0);
        };
        let continues =
            self.ends[disk].is_some_and(|end| (0..=GAP_SECTORS).contains(&(sector - end)));
        let order = match (continues, self.latest == Some(disk)) {
            (true, true) => 0,
            (true, false) => 1,
            (false, _) => 2,
        };
        self.ends[disk] = Some(sector.saturating_add(request.sectors));
        self.latest = Some(disk);
        class(request, order)
    }
}

/// When each request begins, if they are served in the order of arrival; `None` if they are not.
fn begins_by_arrival(requests: &[(usize, RecordedRequest)], channels: usize) -> Option<Vec<Nanos>> {
    let mut contradictions = 0;
    let mut completions: Vec<Nanos> = Vec::new();
    let begin = |(_, request): &(usize, RecordedRequest)| {
        let (arrival_ns, end_ns) = (request.arrival_ns, request.completion_ns());
        completions.drain(..completions.partition_point(|at| *at <= arrival_ns));
        let waits_for = completions.len().checked_sub(channels);
        let begin_ns = waits_for.map_or(arrival_ns, |at| completions[at]);
        contradictions += u64::from(end_ns <= begin_ns && waits_for.is_some());
        completions.insert(completions.partition_point(|at| *at <= end_ns), end_ns);
        begin_ns
    };
    let begins = requests.iter().map(begin).collect();
    (contradictions as f64 <= CONTRADICTIONS_MAX * requests.len() as f64).then_some(begins)
}

/// When each request begins, if they are served in the order of completion.
fn begins_by_completion(requests: &[(usize, RecordedRequest)], channels: usize) -> Vec<Nanos> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|at| requests[*at].1.completion_ns());
    let mut begins = vec![0; requests.len()];
    for (number, &at) in order.iter().enumerate() {
        let arrival_ns = requests[at].1.arrival_ns;
        let free_ns = number.checked_sub(channels);
        let free_ns = free_ns.map(|earlier| requests[order[earlier]].1.completion_ns());
        begins[at] = free_ns.map_or(arrival_ns, |free_ns| free_ns.max(arrival_ns));
    }
    begins
}

/// The number of requests that a device accepts at the same time, if that kept requests from it:
/// most of those that waited for their issue were issued when another one completed. A device has
/// no more channels than that. `None` if it accepts what arrives, or if the issues are not known.
pub fn accepted_max(requests: &[(usize, RecordedRequest)]) -> Option<usize> {
    let mut issued: Vec<(Nanos, Nanos, bool)> = Vec::with_capacity(requests.len());
    for (_, request) in requests {
        let (wait_ns, end_ns) = (request.wait_ns?, request.completion_ns());
        let has_waited = wait_ns > request.latency_ns - wait_ns;
        issued.push((request.arrival_ns + wait_ns, end_ns, has_waited));
    }
    issued.sort_unstable();
    let mut completions = BinaryHeap::new();
    // Of the requests that waited: how many had been issued and were not completed, with them.
    let (mut most, mut with_waiters) = (0, Vec::new());
    for (at, end_ns, has_waited) in issued {
        while completions.peek().is_some_and(|Reverse(end)| *end <= at) {
            completions.pop();
        }
        completions.push(Reverse(end_ns));
        most = most.max(completions.len());
        if has_waited {
            with_waiters.push(completions.len());
        }
    }
    let at_limit = with_waiters.iter().filter(|count| **count == most).count();
    let enough = (WAITED_SHARE * requests.len() as f64).max(WAITED_MIN as f64);
    let is_limit = at_limit as f64 >= AT_LIMIT_SHARE * with_waiters.len() as f64;
    (with_waiters.len() as f64 >= enough && is_limit).then_some(most)
}

fn class(request: &RecordedRequest, order: usize) -> usize {
    let op = match request.op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Flush | Op::Discard | Op::WriteZeroes => 2,
    };
    let sectors = u64::try_from(request.sectors).unwrap_or(0).max(1);
    let size = sectors.next_power_of_two().trailing_zeros() as usize;
    (op * ORDERS + order) * SIZES + size.min(SIZES - 1)
}

impl Station {
    /// A device from its recorded requests in the order of their arrival, each with the number of
    /// its disk, below `disks`.
    pub fn measured(
        requests: &[(usize, RecordedRequest)],
        disks: usize,
        channels: usize,
    ) -> Station {
        let by_arrival = begins_by_arrival(requests, channels);
        let in_order = by_arrival.is_some();
        let begins = by_arrival.unwrap_or_else(|| begins_by_completion(requests, channels));
        let mut positions = Positions::new(disks);
        let mut classes = vec![Vec::new(); OPS * ORDERS * SIZES];
        for ((disk, request), begin_ns) in requests.iter().zip(begins) {
            let class = positions.class(*disk, request);
            classes[class].push((request.completion_ns() - begin_ns).max(DEMAND_MIN_NS));
        }
        for demands in &mut classes {
            if demands.len() > DEMANDS_MAX {
                let step = demands.len() as f64 / DEMANDS_MAX as f64;
                let spaced = (0..DEMANDS_MAX).map(|i| demands[(i as f64 * step) as usize]);
                *demands = spaced.collect();
            }
        }
        let used = (0..classes.len())
            .map(|class| substitute(&classes, class))
            .collect();
        Station {
            channels,
            in_order,
            classes,
            used,
        }
    }

    /// The same demands, without waiting.
    pub fn without_queue(&self) -> Station {
        Station {
            channels: CHANNELS_UNLIMITED,
            ..self.clone()
        }
    }

    /// A demand of the class, by a random number; `None` if nothing similar was measured.
    pub fn demand_ns(&self, class: usize, random: u64) -> Option<Nanos> {
        let demands = &self.classes[self.used[class]?];
        // The high part of the product is uniform below the length.
        let at = (u128::from(random) * demands.len() as u128) >> 64;
        Some(demands[at as usize])
    }

    /// The mean demand of the class, with that of a similar class where it has none.
    pub fn demand_mean_ns(&self, class: usize) -> Option<f64> {
        let demands = &self.classes[self.used[class]?];
        Some(demands.iter().map(|d| *d as f64).sum::<f64>() / demands.len() as f64)
    }

    /// Whether requests of the class, or of one that differs by a factor of two in size only, were
    /// measured.
    pub fn has_measured(&self, class: usize) -> bool {
        let used = self.used[class];
        used.is_some_and(|used| used / SIZES == class / SIZES && used.abs_diff(class) <= 1)
    }
}

/// The class with enough demands that is most similar: that of the next size, then that of another
/// order, a more expensive one first.
fn substitute(classes: &[Vec<Nanos>], class: usize) -> Option<usize> {
    let (group, size) = (class / SIZES, class % SIZES);
    let (op, order) = (group / ORDERS, group % ORDERS);
    let orders: &[usize] = match order {
        0 => &[0, 1, 2],
        1 => &[1, 2, 0],
        _ => &[2, 1, 0],
    };
    let of_order = |order: usize| {
        let first = (op * ORDERS + order) * SIZES;
        let sizes = (0..SIZES).filter(|size| classes[first + size].len() >= DEMANDS_MIN);
        sizes
            .map(|size| first + size)
            .min_by_key(|class| (class % SIZES).abs_diff(size))
    };
    orders.iter().find_map(|order| of_order(*order))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    fn requests(times: &[(Nanos, Nanos)]) -> Vec<(usize, RecordedRequest)> {
        let request = |(arrival_ns, end_ns): &(Nanos, Nanos)| RecordedRequest {
            arrival_ns: *arrival_ns,
            latency_ns: end_ns - arrival_ns,
            wait_ns: None,
            op: Op::Read,
            sector: Some(1_000_000 - arrival_ns),
            sectors: 8,
        };
        times.iter().map(|times| (0, request(times))).collect()
    }

    /// Three requests that arrive together, 30 times.
    fn batches(ends: [Nanos; 3]) -> Vec<(usize, RecordedRequest)> {
        let times = (0..30).flat_map(|i| ends.map(|end| (10_000 * i, 10_000 * i + end)));
        requests(&times.collect::<Vec<_>>())
    }

    #[test]
    fn waiting_is_not_part_of_the_demand() {
        let class = class(&batches([1_000; 3])[0].1, 2);
        for (channels, ends, demand) in [
            (1, [1_000, 2_000, 3_000], 1_000.0),
            (3, [1_000, 1_000, 1_000], 1_000.0),
            (2, [1_000, 1_000, 2_000], 1_000.0),
            (3, [1_000, 2_000, 3_000], 2_000.0),
        ] {
            let station = Station::measured(&batches(ends), 1, channels);
            let measured = station.demand_mean_ns(class).unwrap();
            // The first request of all has another class: it follows none.
            assert!(
                (measured - demand).abs() < 20.0,
                "{channels} {ends:?} {measured}"
            );
        }
    }

    #[test]
    fn requests_that_complete_together_contradict_one_channel() {
        assert!(!Station::measured(&batches([1_000; 3]), 1, 1).in_order);
        assert!(Station::measured(&batches([1_000; 3]), 1, 3).in_order);
    }

    /// Three requests that arrive together and are served one after the other, the last one first.
    #[test]
    fn the_demands_of_one_channel_do_not_depend_on_the_order() {
        let station = Station::measured(&batches([3_000, 2_000, 1_000]), 1, 1);
        assert!(!station.in_order);
        let class = class(&batches([1_000; 3])[0].1, 2);
        let measured = station.demand_mean_ns(class).unwrap();
        assert!((measured - 1_000.0).abs() < 20.0, "{measured}");
    }

    /// Three requests that arrive together, 30 times, each issued after this time.
    fn issued(ends: [Nanos; 3], waits: [Nanos; 3]) -> Vec<(usize, RecordedRequest)> {
        let mut all = batches(ends);
        for ((_, request), wait_ns) in all.iter_mut().zip(waits.into_iter().cycle()) {
            request.wait_ns = Some(wait_ns);
        }
        all
    }

    #[test]
    fn a_device_that_requests_wait_for_has_as_many_channels_as_it_accepts() {
        // Issued one after the other, the last one first; two at a time; all at once.
        let one = issued([3_000, 2_000, 1_000], [2_000, 1_000, 0]);
        assert_eq!(accepted_max(&one), Some(1));
        let two = issued([1_000, 1_100, 1_900], [0, 0, 1_000]);
        assert_eq!(accepted_max(&two), Some(2));
        let all = issued([1_000, 2_000, 3_000], [10, 10, 10]);
        assert_eq!(accepted_max(&all), None);
        // They waited, and not for the device: it had accepted three before.
        let mut other = two.clone();
        other.extend(
            issued([1_000, 1_000, 1_000], [10, 10, 10])
                .into_iter()
                .map(|(n, r)| {
                    let arrival_ns = r.arrival_ns + SECOND;
                    (n, RecordedRequest { arrival_ns, ..r })
                }),
        );
        assert_eq!(accepted_max(&other), None);
        let mut unknown = one;
        unknown[7].1.wait_ns = None;
        assert_eq!(accepted_max(&unknown), None);
    }

    #[test]
    fn a_class_without_measurements_uses_a_similar_one_and_reports_it() {
        let station = Station::measured(&batches([1_000, 2_000, 3_000]), 1, 1);
        let of = |op, sectors, order| {
            let request = RecordedRequest {
                arrival_ns: 0,
                latency_ns: 1,
                wait_ns: None,
                op,
                sector: Some(0),
                sectors,
            };
            class(&request, order)
        };
        assert!(station.has_measured(of(Op::Read, 8, 2)));
        assert!(station.has_measured(of(Op::Read, 16, 2)));
        assert!(!station.has_measured(of(Op::Read, 1024, 2)));
        assert!(!station.has_measured(of(Op::Read, 8, 0)));
        assert_eq!(
            station.demand_ns(of(Op::Read, 1024, 0), 1 << 63),
            Some(1_000)
        );
        assert_eq!(station.demand_ns(of(Op::Write, 8, 2), 0), None);
    }
}
