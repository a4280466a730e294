//! Simulated trials: the error rate for equal settings, and the power for a planted difference.

use fastrand::Rng;

use super::sequential::analyses;
use super::{Decision, Direction, NotWorse, Samples, decide, halves, not_worse};

const RUNS: u64 = 100;
const ROUNDS: usize = 8;
const CANDIDATES: usize = 4;
const EFFECT_MIN: f64 = 0.05;

/// A normal variate (Box and Muller, 1958).
fn normal(random: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

/// The noise of a block, as a standard deviation of the logarithm: from block to block, from round
/// to round for all blocks of the round, and heavy tails: a share of blocks with thrice the noise.
#[derive(Clone, Copy)]
struct Noise {
    block: f64,
    round: f64,
    wild_share: f64,
}

const NOISE: Noise = Noise {
    block: 0.08,
    round: 0.04,
    wild_share: 0.05,
};

/// Adds a round; `effects` are the logarithms of the candidates' ratios.
fn add_round(samples: &mut Samples, random: &mut Rng, noise: Noise, effects: &[f64]) {
    let round = noise.round * normal(random);
    let mut block = |effect: f64| {
        let is_wild = random.f64() < noise.wild_share;
        let scale = if is_wild { 3.0 } else { 1.0 };
        3.0 + round + effect + noise.block * scale * normal(random)
    };
    samples.baseline.push(block(0.0));
    samples.control.push(block(0.0));
    samples.candidates.resize(effects.len(), Vec::new());
    for (blocks, effect) in samples.candidates.iter_mut().zip(effects) {
        blocks.push(block(*effect));
    }
}

/// A whole trial as the command does it: the decision, the winner and the number of rounds.
fn trial(
    seed: u64,
    noise: Noise,
    effects: &[f64],
    direction: Direction,
) -> (Decision, Option<usize>, usize) {
    let (mut random, mut samples) = (Rng::with_seed(seed), Samples::default());
    let analyses = analyses(ROUNDS, 0.05);
    for round in 1..=ROUNDS {
        add_round(&mut samples, &mut random, noise, effects);
        let Some(analysis) = analyses.iter().find(|analysis| analysis.rounds == round) else {
            continue;
        };
        let decision = decide(&samples, direction, EFFECT_MIN, analysis.level);
        let winner = decision.winner(direction, |_| true);
        if round == ROUNDS || decision.is_settled(direction, winner) {
            return (decision, winner, round);
        }
    }
    unreachable!("the last round has an analysis")
}

#[test]
fn equal_settings_give_no_difference() {
    for noise in [
        NOISE,
        Noise {
            block: 0.2,
            round: 0.1,
            wild_share: 0.1,
        },
    ] {
        let wrong = (0..RUNS).filter(|&seed| {
            let effects = [0.0; CANDIDATES];
            let (decision, winner, _) = trial(seed, noise, &effects, Direction::Lower);
            let verdicts = decision.comparisons.iter().map(|c| c.verdict);
            let shown = verdicts.filter(|v| *v != super::ComparisonResult::NoDifference);
            winner.is_some() || shown.count() > 0
        });
        let wrong = wrong.count();
        assert!(wrong <= 5, "{wrong} of {RUNS} are wrong");
    }
}

#[test]
fn a_planted_difference_of_30_percent_is_found_and_its_interval_covers_it() {
    for (direction, ratio) in [(Direction::Lower, 0.7_f64), (Direction::Higher, 1.3)] {
        let (mut found, mut covered, mut early) = (0, 0, 0);
        for seed in 0..RUNS {
            let planted = seed as usize % CANDIDATES;
            let mut effects = [0.0; CANDIDATES];
            effects[planted] = ratio.ln();
            let (decision, winner, rounds) = trial(seed, NOISE, &effects, direction);
            found += u64::from(winner == Some(planted));
            early += u64::from(rounds < ROUNDS);
            let comparison = decision.comparisons[planted];
            let limits = comparison.change_low.zip(comparison.change_high);
            let covers = |(low, high)| low <= ratio - 1.0 && ratio - 1.0 <= high;
            covered += u64::from(winner == Some(planted) && limits.is_some_and(covers));
        }
        assert!(found >= 95, "found in {found} of {RUNS}");
        assert!(covered >= 95, "covered in {covered} of {RUNS}");
        assert!(early > 0, "no trial ended early");
    }
}

#[test]
fn what_the_first_half_of_a_trial_shows_holds_in_the_second() {
    let mut confirmed = 0;
    for seed in 0..RUNS {
        let planted = seed as usize % CANDIDATES;
        let mut effects = [0.0; CANDIDATES];
        effects[planted] = 0.7_f64.ln();
        let (mut random, mut samples) = (Rng::with_seed(seed), Samples::default());
        for _ in 0..2 * ROUNDS {
            add_round(&mut samples, &mut random, NOISE, &effects);
        }
        let changes = halves(&samples);
        let first = changes.iter().map(|[first, _]| first.unwrap());
        let best = first.enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
        let (best, _) = best.unwrap();
        let second = changes[best][1].unwrap();
        confirmed += u64::from(best == planted && (-0.4..-0.2).contains(&second));
    }
    assert!(confirmed >= 95, "confirmed in {confirmed} of {RUNS}");
}

#[test]
fn the_best_of_two_better_candidates_is_chosen() {
    let effects = [0.0, 0.9_f64.ln(), 0.6_f64.ln(), 0.0];
    let right = (0..RUNS).filter(|&seed| {
        let (_, winner, _) = trial(seed, NOISE, &effects, Direction::Lower);
        winner == Some(2)
    });
    let right = right.count();
    assert!(right >= 95, "{right} of {RUNS}");
}

#[test]
fn a_difference_below_the_noise_floor_or_the_minimum_is_none() {
    let effects = [0.97_f64.ln(), 0.0, 0.0, 0.0];
    let quiet = Noise {
        block: 0.001,
        round: 0.0,
        wild_share: 0.0,
    };
    let (decision, winner, _) = trial(1, quiet, &effects, Direction::Lower);
    // It is significant, and too small to matter.
    assert!(decision.comparisons[0].p_adjusted < 0.01, "{decision:?}");
    assert_eq!(winner, None);
}

#[test]
fn a_candidate_that_is_not_allowed_does_not_win() {
    let effects = [0.9_f64.ln(), 0.0, 0.6_f64.ln(), 0.0];
    let quiet = Noise {
        block: 0.01,
        ..NOISE
    };
    let (decision, winner, _) = trial(1, quiet, &effects, Direction::Lower);
    assert_eq!(winner, Some(2));
    let direction = Direction::Lower;
    assert_eq!(decision.winner(direction, |index| index != 2), Some(0));
}

#[test]
fn a_limit_holds_only_if_the_interval_is_within_it() {
    let mut random = Rng::with_seed(7);
    let mut values = |ratio: f64, count: usize| -> Vec<f64> {
        let noise = (0..count).map(|_| ratio.ln() + 0.05 * normal(&mut random));
        noise.collect()
    };
    let (present, same, slower) = (values(1.0, 16), values(1.0, 8), values(1.3, 8));
    let few = values(1.0, 1);
    for direction in [Direction::Lower, Direction::Higher] {
        let test = |blocks: &[f64]| not_worse(&present, blocks, direction, 0.1).0;
        assert_eq!(test(&same), NotWorse::Holds);
        assert_eq!(test(&few), NotWorse::NotShown);
        assert_eq!(test(&[]), NotWorse::NotShown);
        let expected = match direction {
            Direction::Lower => NotWorse::Violated,
            Direction::Higher => NotWorse::Holds,
        };
        assert_eq!(test(&slower), expected);
    }
    let faster: Vec<f64> = slower.iter().map(|value| -value).collect();
    let (result, change) = not_worse(&present, &faster, Direction::Higher, 0.1);
    assert_eq!(result, NotWorse::Violated);
    assert!(change.is_some_and(|change| (-0.3..-0.15).contains(&change)));
}
