//! [`ArrivalProcess`]: when the requests of a disk would arrive if their latencies changed.
//!
//! An application with a fixed number of requests in flight issues the next one when one completes
//! (a closed loop): on a slower device its requests arrive later. Others arrive when users or
//! timers cause them (an open loop), at any latency. A disk counts as a closed loop if its requests
//! follow its own completions much more often than by coincidence, or if its number in flight is
//! constant.

use weir_model::Nanos;

use super::stream::RecordedRequest;

/// A request of a closed loop that arrives this long after a completion was caused by a timer or by
/// a user, not by that completion.
const THINK_TIME_MAX_NS: Nanos = 20_000_000;

/// With fewer requests a closed loop is not detected.
const REQUESTS_MIN: usize = 50;

/// A closed loop with a constant number in flight has at least this number, and half of its
/// requests at least this share of it.
const CONSTANT_MIN: usize = 4;
const CONSTANT_SHARE: f64 = 0.7;

/// The arrivals of a disk.
#[derive(Clone, Debug)]
pub struct ArrivalProcess {
    /// Whether requests follow completions.
    pub closed: bool,
    /// The greatest recorded number in flight; more are never issued.
    pub in_flight_max: usize,
    /// The cause of each request.
    pub causes: Vec<ArrivalCause>,
}

/// The cause of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalCause {
    /// It arrives at its recorded time.
    Time,
    /// It arrives at its recorded time, but not before this request has completed.
    TimeAfter(usize),
    /// It arrives this long after this request has completed.
    Completion(usize, Nanos),
}

impl ArrivalProcess {
    /// Of requests in the order of their arrival.
    pub fn of(requests: &[RecordedRequest]) -> ArrivalProcess {
        let mut ends: Vec<(Nanos, usize)> = (0..)
            .zip(requests)
            .map(|(i, r)| (r.completion_ns(), i))
            .collect();
        ends.sort_unstable();
        let mut ended = 0;
        let mut in_flight = Vec::with_capacity(requests.len());
        let mut previous = Vec::with_capacity(requests.len());
        for (i, request) in requests.iter().enumerate() {
            while ends
                .get(ended)
                .is_some_and(|(end, _)| *end <= request.arrival_ns)
            {
                ended += 1;
            }
            in_flight.push(i + 1 - ended.min(i));
            previous.push(ended.checked_sub(1).map(|at| ends[at]));
        }
        let in_flight_max = in_flight.iter().copied().max().unwrap_or(0);
        let closed = requests.len() >= REQUESTS_MIN
            && (is_constant(&mut in_flight) || follows_completions(requests, &ends, &previous));
        let cause =
            |(request, previous): (&RecordedRequest, &Option<(Nanos, usize)>)| match *previous {
                Some((end, of)) if closed => match request.arrival_ns - end {
                    think_ns if think_ns <= THINK_TIME_MAX_NS => {
                        ArrivalCause::Completion(of, think_ns)
                    }
                    _ => ArrivalCause::TimeAfter(of),
                },
                _ => ArrivalCause::Time,
            };
        ArrivalProcess {
            closed,
            in_flight_max,
            causes: requests.iter().zip(&previous).map(cause).collect(),
        }
    }
}

/// Whether half of the requests arrive with nearly as many in flight as there ever are. Sorts the
/// numbers.
fn is_constant(in_flight: &mut [usize]) -> bool {
    in_flight.sort_unstable();
    let at = |share: f64| in_flight[(in_flight.len() as f64 * share) as usize];
    at(0.99) >= CONSTANT_MIN && at(0.5) as f64 >= CONSTANT_SHARE * at(0.99) as f64
}

/// Compares the share of requests that arrive soon after a completion with the share of the time
/// that is soon after a completion. Soon is a quarter of the median time between completions.
fn follows_completions(
    requests: &[RecordedRequest],
    ends: &[(Nanos, usize)],
    previous: &[Option<(Nanos, usize)>],
) -> bool {
    let mut gaps: Vec<Nanos> = ends.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    gaps.sort_unstable();
    let soon_ns = (gaps[gaps.len() / 2] / 4).max(1_000);
    let covered: f64 = gaps.iter().map(|gap| *gap.min(&soon_ns) as f64).sum();
    let span: f64 = gaps.iter().map(|gap| *gap as f64).sum();
    let by_chance = covered / span.max(1.0);
    let soon = requests.iter().zip(previous).filter(|(request, previous)| {
        previous.is_some_and(|(end, _)| request.arrival_ns - end <= soon_ns)
    });
    let share = soon.count() as f64 / requests.len() as f64;
    share >= 0.5 && share >= by_chance + 0.5 * (1.0 - by_chance)
}

#[cfg(test)]
mod tests {
    use weir_model::Op;

    use super::*;

    fn request(arrival_ns: Nanos, latency_ns: Nanos) -> RecordedRequest {
        RecordedRequest {
            arrival_ns,
            latency_ns,
            wait_ns: None,
            op: Op::Read,
            sector: Some(0),
            sectors: 8,
        }
    }

    /// Random times between arrivals, and latencies, of the same mean.
    fn poisson(mean_ns: f64) -> Vec<RecordedRequest> {
        let mut random = fastrand::Rng::with_seed(1);
        let mut at = 0;
        let mut exponential = || (-random.f64().max(1e-9).ln() * mean_ns) as Nanos;
        (0..2_000)
            .map(|_| {
                at += exponential();
                request(at, exponential())
            })
            .collect()
    }

    #[test]
    fn requests_at_random_times_are_an_open_loop() {
        let process = ArrivalProcess::of(&poisson(1e6));
        assert!(!process.closed);
        assert!(
            process
                .causes
                .iter()
                .all(|cause| *cause == ArrivalCause::Time)
        );
    }

    #[test]
    fn requests_that_follow_completions_are_a_closed_loop_until_a_pause() {
        let mut at = 0;
        let requests: Vec<RecordedRequest> = (0..200)
            .map(|i| {
                at += if i == 100 { 50_000_000 } else { 5_000 };
                let latency = 200_000 + 1_000 * (i % 7);
                let request = request(at, latency);
                at += latency;
                request
            })
            .collect();
        let process = ArrivalProcess::of(&requests);
        assert!(process.closed);
        assert_eq!(process.in_flight_max, 1);
        assert_eq!(process.causes[0], ArrivalCause::Time);
        assert_eq!(process.causes[1], ArrivalCause::Completion(0, 5_000));
        assert_eq!(process.causes[100], ArrivalCause::TimeAfter(99));
    }

    #[test]
    fn a_constant_number_in_flight_is_a_closed_loop() {
        // Eight in flight; a new one arrives at a random time before the next completion.
        let mut random = fastrand::Rng::with_seed(2);
        let requests: Vec<RecordedRequest> = (0..1_000)
            .map(|i| request(i * 1_000 + random.i64(0..990), 8_000))
            .collect();
        let process = ArrivalProcess::of(&requests);
        assert!(process.closed && process.in_flight_max >= 8);
    }
}
