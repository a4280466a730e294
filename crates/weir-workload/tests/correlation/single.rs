//! Few series, over many windows.

use fastrand::Rng;
use proptest::prelude::*;
use weir_workload::correlation::{CorrelationOptions, Correlator, MEMORY_BYTES_MAX, SERIES_MAX};

use crate::brute::{Both, normal};

/// A series of random kind: noise, a walk, bursts, a wave, or a constant.
struct RandomSeries {
    kind: u8,
    level: f64,
    scale: f64,
    walk: f64,
    begin: u64,
    end: u64,
    missing: f64,
}

impl RandomSeries {
    fn new(random: &mut Rng, steps: u64) -> RandomSeries {
        let is_whole = random.bool();
        RandomSeries {
            kind: random.u8(0..5),
            level: 10f64.powi(random.i32(-3..10)) * random.f64(),
            scale: 10f64.powi(random.i32(-3..10)),
            walk: 0.0,
            begin: if is_whole { 0 } else { random.u64(0..steps) },
            end: if random.bool() {
                steps
            } else {
                random.u64(0..steps)
            },
            missing: [0.0, 0.05, 0.3][random.usize(0..3)],
        }
    }

    fn value(&mut self, step: u64, common: f64, random: &mut Rng) -> Option<f64> {
        self.walk += normal(random);
        if !(self.begin..self.end).contains(&step) || random.f64() < self.missing {
            return None;
        }
        let shape = match self.kind {
            0 => normal(random),
            1 => self.walk,
            2 => f64::from(u8::from(random.u8(0..10) == 0)) * random.f64(),
            3 => (step as f64 * 0.7).sin() + 0.1 * normal(random),
            _ => 0.0,
        };
        let shape = if self.kind < 4 {
            shape + 2.0 * common
        } else {
            0.0
        };
        Some(self.level + self.scale * shape)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn the_pairs_are_those_of_brute_force(
        seed in any::<u64>(),
        window in 16usize..90,
        lag in 0usize..8,
        threshold in 0.3f64..0.99,
    ) {
        let mut random = Rng::with_seed(seed);
        let steps = 3 * window as u64 + random.u64(0..60);
        let mut both = Both::new(window, lag, threshold);
        let mut series: Vec<RandomSeries> =
            (0..14).map(|_| RandomSeries::new(&mut random, steps)).collect();
        // A part of them shares what the others do not have, some steps later.
        let mut common: Vec<f64> = vec![0.0; 16];
        for step in 0..steps {
            common.rotate_right(1);
            common[0] = normal(&mut random);
            let values = series.iter_mut().enumerate().filter_map(|(i, series)| {
                let shared = if i % 3 == 0 { common[i / 3] } else { 0.0 };
                Some((i as u32, series.value(step, shared, &mut random)?))
            });
            let values: Vec<(u32, f64)> = values.collect();
            both.step(&values);
            if random.u8(0..8) == 0 || step + 1 == steps {
                both.compared(1e-6);
            }
        }
    }

    #[test]
    fn the_error_of_an_estimate_is_within_its_bound(
        seed in any::<u64>(),
        window in 16usize..200,
    ) {
        let mut random = Rng::with_seed(seed);
        let mut both = Both::new(window, 3, 0.8);
        let mut series: Vec<RandomSeries> = (0..6)
            .map(|_| RandomSeries { begin: 0, end: u64::MAX, ..RandomSeries::new(&mut random, 9) })
            .collect();
        for step in 0..window as u64 + 20 {
            let common = normal(&mut random);
            let values = series.iter_mut().enumerate();
            let values = values.filter_map(|(i, series)| {
                Some((i as u32, series.value(step, common, &mut random)?))
            });
            let values: Vec<(u32, f64)> = values.collect();
            both.step(&values);
        }
        for (leader, follower, lag) in [(0, 1, 0), (2, 3, 3), (4, 5, 1), (1, 4, 2), (3, 0, 0)] {
            let estimate = both.correlator.estimate(leader, follower, lag);
            let exact = both.brute.correlation(leader, follower, lag);
            prop_assert_eq!(estimate.is_some(), exact.is_some());
            if let (Some((estimate, bound)), Some(exact)) = (estimate, exact) {
                prop_assert!(
                    (estimate - exact).abs() <= bound,
                    "{} {} {}", estimate, exact, bound
                );
            }
        }
    }
}

#[test]
fn windows_that_slide_for_ten_hours_do_not_drift() {
    let mut random = Rng::with_seed(5);
    let mut both = Both::new(60, 2, 0.7);
    let (mut walk, mut compared) = (0.0, 0);
    for step in 0..36_000u64 {
        walk += normal(&mut random);
        // Values of very different magnitude pass the windows: nothing of them may remain.
        let passing = if step % 997 < 3 {
            1e15 * random.f64()
        } else {
            0.0
        };
        let common = normal(&mut random);
        let values = [
            (0, common + passing),
            (1, 3.0 * common + normal(&mut random)),
            (2, walk),
            (3, walk + 2.0 * normal(&mut random)),
            (4, 1e4 + common + 0.2 * normal(&mut random)),
            (5, 7.0),
        ];
        both.step(&values);
        if step % 500 == 499 {
            compared += both.compared(1e-7).pairs.len();
        }
    }
    assert!(compared > 100, "{compared}");
}

#[test]
fn a_constant_series_and_one_that_is_mostly_missing_are_not_compared() {
    let mut random = Rng::with_seed(6);
    let mut both = Both::new(40, 2, 0.5);
    for step in 0..100 {
        let x = normal(&mut random);
        let mut values = vec![(0, x), (1, x), (2, 5.0), (3, 1e9 + 1e-5 * x)];
        if step % 2 == 0 {
            values.push((4, x));
        }
        if step % 10 == 0 {
            values[1].1 = f64::NAN;
        }
        both.step(&values);
    }
    let found = both.correlator.pairs();
    assert_eq!(found.series, 2);
    let pairs: Vec<(u32, u32)> = found.pairs.iter().map(|p| (p.leader, p.follower)).collect();
    assert_eq!(pairs, [(0, 1)]);
    assert_eq!(found.comparisons, 1 + 2 * 2);
}

#[test]
fn values_beyond_the_number_of_series_are_counted() {
    let options = |window, lag| CorrelationOptions {
        window,
        lag,
        threshold: 0.8,
    };
    assert_eq!(options(60, 10).series_max(), SERIES_MAX);
    let long = options(4096, 4096);
    let bytes_min = 8192 * 16 + 4097 * 4 * long.numbers();
    assert!(long.series_max() > 1_000 && long.series_max() * bytes_min < MEMORY_BYTES_MAX);
    let mut correlator = Correlator::new(options(16, 0));
    for step in 0..3 {
        correlator.step((0..SERIES_MAX as u32 + 5).map(|id| (id, f64::from(step))));
    }
    assert_eq!(correlator.len(), SERIES_MAX);
    assert_eq!(correlator.values_omitted(), 3 * 5);
}

#[test]
fn a_series_that_has_ended_is_removed_and_can_begin_again() {
    let mut random = Rng::with_seed(7);
    let mut both = Both::new(20, 5, 0.9);
    let mut seen = [false; 3];
    for step in 0..200u64 {
        let x = normal(&mut random);
        let is_there = !(60..120).contains(&step);
        let values = [(0, x), (1, -x)];
        both.step(&values[..if is_there { 2 } else { 1 }]);
        let found = both.correlator.pairs();
        match step {
            40 => seen[0] = found.pairs[0].coefficient < -0.99,
            100 => seen[1] = found.pairs.is_empty() && both.correlator.len() == 1,
            180 => seen[2] = found.pairs[0].coefficient < -0.99,
            _ => {}
        }
    }
    assert_eq!(seen, [true; 3]);
}

#[test]
fn the_lag_is_that_of_the_series_that_follows() {
    for (leader, follower) in [(0, 1), (1, 0)] {
        let mut random = Rng::with_seed(8);
        let mut both = Both::new(60, 10, 0.8);
        let mut past = [0.0; 8];
        for _ in 0..120 {
            past.rotate_right(1);
            past[0] = normal(&mut random);
            both.step(&[
                (leader, past[0]),
                (follower, past[7] + 0.1 * normal(&mut random)),
            ]);
        }
        let found = both.compared(1e-9);
        let [pair] = found.pairs[..] else {
            panic!("{found:?}");
        };
        assert_eq!(
            (pair.leader, pair.follower, pair.lag),
            (leader, follower, 7)
        );
        let [low, high] = pair.significance.interval;
        assert!(
            low < pair.coefficient && pair.coefficient < high,
            "{pair:?}"
        );
    }
}
