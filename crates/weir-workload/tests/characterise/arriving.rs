//! Arrival process, requests in flight, and latency under load.

use weir_model::{NANOS_PER_SECOND, Nanos};
use weir_workload::Profile;
use weir_workload::analysis::arrivals::{Process, Source};

use crate::load::{Io, Random, profile, reads};

/// Requests at these times, at random addresses, each taking `latency`.
fn at(times: impl IntoIterator<Item = Nanos>, latency: Nanos) -> Vec<Io> {
    let mut random = Random::new(2);
    let times: Vec<Nanos> = times.into_iter().collect();
    let mut ios = reads(times.iter().map(|_| random.below(1 << 20) * 8));
    for (io, ts) in ios.iter_mut().zip(times) {
        (io.ts, io.latency) = (ts, latency);
    }
    ios
}

/// Times between which the gaps are exponential with this mean.
fn poisson(count: usize, mean_ns: f64, seed: u64) -> Vec<Nanos> {
    let mut random = Random::new(seed);
    let mut now = 0.0;
    let next = |_| {
        now -= mean_ns * random.unit().ln();
        now as Nanos
    };
    (0..count).map(next).collect()
}

fn dispersions(profile: &Profile) -> Vec<f64> {
    let scales = profile.bursts.scales.iter();
    scales.map(|s| s.index_of_dispersion).collect()
}

#[test]
fn a_clock_is_regular() {
    let profile = profile(&at((0..20_000).map(|i| i * 500_000), 100_000));
    assert_eq!(profile.arrivals.process, Some(Process::Regular));
    assert_eq!(profile.arrivals.interarrival_cv, Some(0.0));
    assert!(dispersions(&profile).iter().all(|d| *d < 0.01));
    let rate = profile.arrivals.rate_mean_per_s.unwrap();
    assert!((rate - 2_000.0).abs() < 1e-6, "{rate}");
}

#[test]
fn independent_arrivals_are_poisson() {
    let profile = profile(&at(poisson(40_000, 500_000.0, 9), 100_000));
    let arrivals = &profile.arrivals;
    assert_eq!(
        arrivals.process,
        Some(Process::Poisson),
        "{:?}",
        profile.bursts
    );
    assert!((arrivals.interarrival_cv.unwrap() - 1.0).abs() < 0.05);
    assert!(arrivals.interarrival_correlation.unwrap().abs() < 0.05);
    let hurst = profile.bursts.hurst_by_dispersion.unwrap().estimate;
    assert!((hurst - 0.5).abs() < 0.15, "{hurst}");
}

#[test]
fn bursts_of_bursts_are_bursty_on_every_scale() {
    // On and off with spans that are long-tailed (Pareto, 1.2), as self-similar traffic is made
    // (Willinger and others 1997).
    let mut random = Random::new(4);
    let (mut now, mut times) = (0, Vec::new());
    while times.len() < 60_000 {
        let span = |random: &mut Random| (2e6 * random.unit().powf(-1.0 / 1.2)).min(2e10) as Nanos;
        let on = span(&mut random);
        times.extend((0..on / 200_000).map(|i| now + i * 200_000));
        now += on + span(&mut random);
    }
    let profile = profile(&at(times, 50_000));
    assert_eq!(profile.arrivals.process, Some(Process::Bursty));
    let hurst = profile.bursts.hurst_by_dispersion.clone().unwrap();
    assert!(hurst.estimate > 0.7, "{hurst:?}");
    assert!(profile.bursts.peak_to_mean_1s.unwrap() > 1.3);
}

#[test]
fn scales_match_a_direct_count() {
    let times = poisson(5_000, 700_000.0, 3);
    let profile = profile(&at(times.clone(), 1_000));
    assert!(profile.bursts.scales.len() >= 5);
    for scale in &profile.bursts.scales {
        let mut counts = vec![0u64; scale.intervals as usize];
        for ts in &times {
            if let Some(count) = counts.get_mut(((ts - times[0]) / scale.interval_ns) as usize) {
                *count += 1;
            }
        }
        let n = counts.len() as f64;
        let mean = counts.iter().sum::<u64>() as f64 / n;
        let squares: f64 = counts.iter().map(|c| (*c as f64 - mean).powi(2)).sum();
        assert_eq!(scale.requests_max, *counts.iter().max().unwrap());
        assert!((scale.requests_mean - mean).abs() < 1e-9);
        assert!((scale.index_of_dispersion - squares / n / mean).abs() < 1e-6);
    }
}

#[test]
fn waiting_clients_are_a_closed_source_and_others_open() {
    // Four clients, each sending a request when the previous one completes.
    let mut random = Random::new(8);
    let mut clients = [0; 4];
    let mut ios = at((0..8_000).map(|i| i * 1_000), 0);
    for io in &mut ios {
        let next = (0..4).min_by_key(|c| clients[*c]).unwrap();
        io.ts = clients[next];
        io.latency = 300_000 + random.below(400_000);
        clients[next] += io.latency + 1;
    }
    let closed = profile(&ios);
    assert_eq!(closed.arrivals.source, Some(Source::Closed));
    let parallelism = closed.parallelism.unwrap();
    assert_eq!(parallelism.modal, 4);
    assert!((parallelism.in_flight_mean - 4.0).abs() < 0.01);

    let open = profile(&at(poisson(8_000, 500_000.0, 6), 1_000_000));
    assert_eq!(open.arrivals.source, Some(Source::Open));
    let parallelism = open.parallelism.unwrap();
    assert!(
        (parallelism.in_flight_mean - 2.0).abs() < 0.1,
        "1 ms at 2,000/s"
    );
    assert!((parallelism.little_ratio.unwrap() - 1.0).abs() < 0.01);
    // M/D/∞: busy with probability 1 - e^-2.
    assert!((parallelism.busy_share - 0.8647).abs() < 0.03);
}

#[test]
fn latency_is_reported_by_depth_and_by_rate() {
    // Alternating seconds: alone and fast, or eight together and slow.
    let mut times = Vec::new();
    for second in 0..20 {
        let start = second * NANOS_PER_SECOND;
        let together = if second % 2 == 0 { 1 } else { 8 };
        times.extend((0..50 * together).map(|i| start + i / together * 20_000_000));
    }
    let mut ios = at(times, 0);
    for io in &mut ios {
        let slow = io.ts / NANOS_PER_SECOND % 2 == 1;
        io.latency = if slow { 4_000_000 } else { 500_000 };
    }
    let load = profile(&ios).load.unwrap();
    let first = &load.by_depth[0];
    assert_eq!((first.in_flight_min, first.in_flight_max), (1, 1));
    assert_eq!(first.latency.requests, 1_000);
    let last = load.by_depth.last().unwrap();
    assert_eq!((last.in_flight_min, last.in_flight_max), (5, 8));
    assert_eq!(last.latency.requests, 2_000);
    assert_eq!(last.latency.mean_ns, 4_000_000.0);
    let slowest = load
        .by_rate
        .iter()
        .map(|r| r.latency_mean_ns)
        .fold(0.0, f64::max);
    assert_eq!(slowest, 4_000_000.0);
    assert_eq!(
        load.by_rate.iter().map(|r| r.requests).sum::<u64>(),
        load.all.requests
    );
}
