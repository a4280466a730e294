//! Many series with planted groups.

use std::collections::BTreeSet;

use fastrand::Rng;
use weir_testing::cpu_time;
use weir_workload::correlation::{CorrelationOptions, Correlations, Correlator};

use crate::brute::{Both, normal};

/// A group: members follow the first one by these lags, with this sign.
struct Group {
    members: Vec<(u32, usize, f64)>,
    past: Vec<f64>,
}

/// Groups of three among `count` series: every `every`th series begins one.
fn groups(count: u32, every: u32, lag: usize, random: &mut Rng) -> Vec<Group> {
    let group = |first: u32| {
        let other = |random: &mut Rng| random.usize(0..=lag / 2);
        Group {
            members: vec![
                (first, 0, 1.0),
                (first + 1, other(random), 1.0),
                (first + 2, lag / 2 + other(random).min(lag - lag / 2), -1.0),
            ],
            past: vec![0.0; lag + 1],
        }
    };
    let firsts = (0..count - 3).step_by(every as usize);
    firsts.map(group).collect()
}

/// Advances all series by a step: those of no group are independent.
fn values(count: u32, groups: &mut [Group], random: &mut Rng) -> Vec<(u32, f64)> {
    let mut values: Vec<(u32, f64)> = (0..count).map(|id| (id, normal(random))).collect();
    for group in groups {
        group.past.rotate_right(1);
        group.past[0] = 5.0 * normal(random);
        for (id, lag, sign) in &group.members {
            values[*id as usize].1 += sign * group.past[*lag];
        }
    }
    values
}

/// The pairs of the groups: leader, follower and lag.
fn planted(groups: &[Group]) -> BTreeSet<(u32, u32, usize)> {
    let mut pairs = BTreeSet::new();
    for group in groups {
        for (i, (a, of_a, _)) in group.members.iter().enumerate() {
            for (b, of_b, _) in &group.members[i + 1..] {
                pairs.insert(match of_a <= of_b {
                    true => (*a, *b, of_b - of_a),
                    false => (*b, *a, of_a - of_b),
                });
            }
        }
    }
    pairs
}

fn found(found: &Correlations) -> BTreeSet<(u32, u32, usize)> {
    let pairs = found.pairs.iter();
    pairs.map(|p| (p.leader, p.follower, p.lag)).collect()
}

#[test]
fn groups_with_lags_among_a_thousand_series_are_found_as_by_brute_force() {
    let mut random = Rng::with_seed(11);
    let mut groups = groups(1_000, 100, 6, &mut random);
    let mut both = Both::new(60, 6, 0.8);
    for step in 0..90 {
        both.step(&values(1_000, &mut groups, &mut random));
        if step == 70 {
            let all = both.compared(1e-9);
            assert_eq!(found(&all), planted(&groups));
        }
    }
    let all = both.correlator.pairs();
    assert_eq!(found(&all), planted(&groups));
    assert_eq!(all.series, 1_000);
    assert_eq!(all.comparisons, 1_000 * 999 / 2 + 6 * 1_000 * 999);
}

#[test]
fn exactly_the_planted_groups_are_found_among_ten_thousand_series() {
    let count = 10_000;
    let mut random = Rng::with_seed(12);
    let mut groups = groups(count, 500, 2, &mut random);
    let options = CorrelationOptions {
        window: 60,
        lag: 2,
        threshold: 0.85,
    };
    let mut correlator = Correlator::new(options);
    for _ in 0..75 {
        correlator.step(values(count, &mut groups, &mut random));
    }
    let all = correlator.pairs();
    assert_eq!(all.series, 10_000);
    assert_eq!(found(&all), planted(&groups));
    // Few of the 2.5e8 comparisons are left to the values.
    assert!(all.verified < all.comparisons / 1_000, "{}", all.verified);
}

#[test]
fn unrelated_series_are_not_reported_although_chance_makes_some_of_them_similar() {
    let mut random = Rng::with_seed(13);
    let options = CorrelationOptions {
        window: 20,
        lag: 4,
        threshold: 0.7,
    };
    let (mut above, mut reported) = (0, 0);
    for _ in 0..20 {
        let mut correlator = Correlator::new(options);
        let mut walks = [0.0; 100];
        for _ in 0..40 {
            for walk in &mut walks {
                *walk = 0.7 * *walk + normal(&mut random);
            }
            // A half of them have memory, some are idle apart from short bursts.
            let values = walks.iter().enumerate().map(|(id, walk)| {
                let value = match id % 4 {
                    0 => normal(&mut random),
                    1 => f64::from(u8::from(random.u8(0..12) == 0)),
                    _ => *walk,
                };
                (id as u32, value)
            });
            let values: Vec<(u32, f64)> = values.collect();
            correlator.step(values);
        }
        let found = correlator.pairs();
        above += found.insignificant;
        reported += found.pairs.len();
    }
    // One in a hundred evaluations may report a pair.
    assert!(above > 1_000, "{above}");
    assert!(reported <= 2, "{reported}");
}

/// The processor time of a step and of an evaluation: `cargo test -p weir-workload --test
/// correlation -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn measure_ten_thousand_series() {
    let mut random = Rng::with_seed(14);
    for (name, memory) in [("noise", 0.0), ("walks", 1.0)] {
        for lag in [0, 10] {
            let options = CorrelationOptions {
                window: 60,
                lag,
                threshold: 0.9,
            };
            let mut correlator = Correlator::new(options);
            let mut values = vec![0.0; 10_000];
            let mut steps = std::time::Duration::ZERO;
            for _ in 0..75 {
                for value in &mut values {
                    *value = memory * *value + normal(&mut random);
                }
                let given: Vec<(u32, f64)> = (0..).zip(values.iter().copied()).collect();
                let began = cpu_time();
                correlator.step(given);
                steps += cpu_time() - began;
            }
            let began = cpu_time();
            let found = correlator.pairs();
            println!(
                "{name}, lag {lag}: a step {:.1?}, an evaluation {:.2?}: {} comparisons, {} by \
                 coefficients, {} by values, {} pairs",
                steps / 75,
                cpu_time() - began,
                found.comparisons,
                found.candidates,
                found.verified,
                found.pairs.len()
            );
        }
    }
}
