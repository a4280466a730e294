//! [`Throttle`]: the limits of a disk: a token bucket of requests and one of bytes, which all its
//! queues share.
//!
//! A bucket is kept as the time when it will be full again (the generic cell rate algorithm, ITU-T
//! I.371): a request is admitted if that time is at most [`DiskLimits::burst_ms`] from now, and
//! moves it by its size divided by the rate. So at any rate of requests, at most `burst * rate`
//! tokens and one request are admitted at once, a request larger than the bucket is admitted too,
//! and the ones after it wait until its tokens are paid.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_model::Op;
use weir_tap::tapdisk::words::DiskLimits;

use crate::Request;

/// Nanoseconds of a second.
const SECOND_NS: u128 = 1_000_000_000;

/// The longest time of requests that are issued without being admitted, because a queue ends. It is
/// paid by later ones.
const UNADMITTED_NS_MAX: u64 = 1_000_000_000;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Throttle {
    /// Whether there is a limit: read for each round of requests, without the lock.
    is_limited: AtomicBool,
    /// Requests that wait until they are admitted.
    held: AtomicU64,
    buckets: Mutex<Buckets>,
}

#[derive(Debug, Default)]
struct Buckets {
    limits: DiskLimits,
    /// When each is full, CLOCK_MONOTONIC.
    requests_full_ns: u64,
    bytes_full_ns: u64,
}

impl Throttle {
    /// With these limits.
    pub fn new(limits: DiskLimits) -> Throttle {
        let throttle = Throttle::default();
        throttle.set(limits);
        throttle
    }

    /// The present limits.
    pub fn limits(&self) -> DiskLimits {
        self.buckets().limits
    }

    /// Sets other limits, with full buckets. Requests that wait are admitted by the new ones.
    pub fn set(&self, limits: DiskLimits) {
        let mut buckets = self.buckets();
        *buckets = Buckets {
            limits,
            ..Buckets::default()
        };
        self.is_limited
            .store(!limits.is_unlimited(), Ordering::Relaxed);
    }

    /// The number of requests that wait until they are admitted.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether requests must be admitted.
    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    /// Counts requests that wait.
    pub(crate) fn hold(&self, requests: usize) {
        self.held.fetch_add(requests as u64, Ordering::Relaxed);
    }

    /// Counts requests that no longer wait.
    pub(crate) fn release(&self, requests: usize) {
        self.held.fetch_sub(requests as u64, Ordering::Relaxed);
    }

    /// Admits a request at `now_ns`.
    ///
    /// # Errors
    /// The time at which it may be admitted, if no other one is before.
    pub(crate) fn admit(&self, request: &Request, now_ns: u64) -> Result<(), u64> {
        let mut buckets = self.buckets();
        let full_ns = buckets.requests_full_ns.max(buckets.bytes_full_ns);
        let due_ns = full_ns.saturating_sub(buckets.limits.burst_ms.saturating_mul(1_000_000));
        if due_ns > now_ns {
            return Err(due_ns);
        }
        buckets.charge(request, now_ns);
        Ok(())
    }

    /// Charges a request that is issued without being admitted.
    pub(crate) fn charge(&self, request: &Request, now_ns: u64) {
        let mut buckets = self.buckets();
        let latest_ns = now_ns + UNADMITTED_NS_MAX;
        let latest_ns = latest_ns
            .max(buckets.requests_full_ns)
            .max(buckets.bytes_full_ns);
        buckets.charge(request, now_ns);
        buckets.requests_full_ns = buckets.requests_full_ns.min(latest_ns);
        buckets.bytes_full_ns = buckets.bytes_full_ns.min(latest_ns);
    }

    fn buckets(&self) -> MutexGuard<'_, Buckets> {
        // A panic while it is locked leaves valid numbers.
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buckets {
    fn charge(&mut self, request: &Request, now_ns: u64) {
        let bytes = match request.op {
            Op::Read | Op::Write => request.bytes,
            // They transfer nothing.
            _ => 0,
        };
        let limits = self.limits;
        spend(&mut self.requests_full_ns, 1, limits.iops, now_ns);
        spend(
            &mut self.bytes_full_ns,
            bytes,
            limits.bytes_per_second,
            now_ns,
        );
    }
}

/// Takes tokens out of a bucket that is full at `full_ns` and filled at `rate` tokens a second.
fn spend(full_ns: &mut u64, tokens: u64, rate: u64, now_ns: u64) {
    if rate > 0 {
        let cost_ns = (u128::from(tokens) * SECOND_NS).div_ceil(u128::from(rate));
        let cost_ns = u64::try_from(cost_ns).unwrap_or(u64::MAX);
        *full_ns = (*full_ns).max(now_ns).saturating_add(cost_ns);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: u64) -> Request {
        Request::new(Op::Read, 0, bytes)
    }

    fn limits(iops: u64, bytes_per_second: u64, burst_ms: u64) -> DiskLimits {
        DiskLimits {
            iops,
            bytes_per_second,
            burst_ms,
        }
    }

    /// The times at which requests that arrive at once are admitted.
    fn admitted(throttle: &Throttle, requests: &[Request], mut now_ns: u64) -> Vec<u64> {
        let admit = |request: &Request| {
            while let Err(due_ns) = throttle.admit(request, now_ns) {
                assert!(due_ns > now_ns);
                now_ns = due_ns;
            }
            now_ns
        };
        requests.iter().map(admit).collect()
    }

    #[test]
    fn without_limits_everything_is_admitted() {
        let throttle = Throttle::default();
        assert!(!throttle.is_limited());
        assert_eq!(admitted(&throttle, &[read(1 << 30); 100], 5), [5; 100]);
    }

    #[test]
    fn after_a_burst_requests_have_the_rate() {
        // 1,000 requests a second, a burst of 10 ms: eleven at once, then one each millisecond.
        let throttle = Throttle::new(limits(1000, 0, 10));
        let start_ns = 1_000_000_000;
        let times = admitted(&throttle, &[read(4096); 20], start_ns);
        assert_eq!(times[..11], [start_ns; 11]);
        let later: Vec<u64> = (1..=9).map(|ms| start_ns + ms * 1_000_000).collect();
        assert_eq!(times[11..], later);
        // After a pause, the bucket is full again, and no fuller.
        let start_ns = 9_000_000_000;
        let times = admitted(&throttle, &[read(4096); 12], start_ns);
        assert_eq!(
            (times[10], times[11]),
            (start_ns, start_ns + 1_000_000),
            "{times:?}"
        );
    }

    #[test]
    fn a_request_larger_than_the_bucket_is_admitted_and_paid_by_the_next_one() {
        let throttle = Throttle::new(limits(0, 1_000_000, 100));
        let times = admitted(&throttle, &[read(2_000_000), read(1), read(1)], 0);
        assert_eq!(times, [0, 1_900_000_000, 1_900_001_000]);
    }

    #[test]
    fn flushes_and_discards_have_no_bytes() {
        let throttle = Throttle::new(limits(0, 1, 1));
        let discard = Request::new(Op::Discard, 0, 1 << 20);
        assert_eq!(admitted(&throttle, &[Request::FLUSH, discard], 7), [7, 7]);
    }

    #[test]
    fn what_a_queue_issues_at_its_end_is_charged_for_a_second_at_most() {
        let throttle = Throttle::new(limits(1, 0, 0));
        for _ in 0..128 {
            throttle.charge(&read(512), 0);
        }
        assert_eq!(throttle.admit(&read(512), 0), Err(1_000_000_000));
    }

    proptest! {
        /// Requests of any size at any times: after the burst, no more than the rate.
        #[test]
        fn no_interval_exceeds_the_rate(
            iops in 1_u64..5_000, bytes_per_second in 1_000_u64..10_000_000, burst_ms in 1_u64..2_000,
            arrivals in prop::collection::vec((0_u64..3_000_000, 512_u64..100_000), 1..200),
        ) {
            let throttle = Throttle::new(limits(iops, bytes_per_second, burst_ms));
            let mut now_ns = 1;
            let mut passed: Vec<(u64, u64)> = Vec::new();
            for (gap_ns, bytes) in arrivals {
                now_ns += gap_ns;
                now_ns = admitted(&throttle, &[read(bytes)], now_ns)[0];
                passed.push((now_ns, bytes));
            }
            for (from, (begin_ns, _)) in passed.iter().enumerate() {
                let mut bytes = 0;
                for (count, (end_ns, size)) in passed[from..].iter().enumerate() {
                    // The last one may exceed the bucket.
                    let seconds = (end_ns - begin_ns) as f64 / 1e9 + burst_ms as f64 / 1e3;
                    prop_assert!(count as f64 <= iops as f64 * seconds + 1e-6);
                    prop_assert!(bytes as f64 <= bytes_per_second as f64 * seconds + 1e-6);
                    bytes += size;
                }
            }
        }
    }
}
