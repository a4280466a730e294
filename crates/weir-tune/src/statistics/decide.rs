//! [`decide()`]: which candidate is better than the present settings, or none.

use serde::Serialize;

use super::{holm, mann_whitney, shift};

/// Which values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Smaller ones, as of latencies.
    Lower,
    /// Greater ones, as of rates.
    Higher,
}

/// The natural logarithms of the values of blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// Blocks with the present settings.
    pub baseline: Vec<f64>,
    /// Other blocks with the present settings, the control.
    pub control: Vec<f64>,
    /// The blocks of each candidate.
    pub candidates: Vec<Vec<f64>>,
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparisonResult {
    /// Better, significantly and by more than the noise and the minimum effect.
    Better,
    /// Worse, in the same sense.
    Worse,
    /// No difference was shown.
    NoDifference,
}

/// A comparison with the present settings. Changes are relative: 0.1 is 10 % more.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The change.
    pub change: f64,
    /// The lower limit of the change; the limits of all comparisons hold together. `None` with
    /// too few blocks.
    pub change_low: Option<f64>,
    /// The upper limit.
    pub change_high: Option<f64>,
    /// The probability of such a difference between equal settings.
    pub p_value: f64,
    /// The same, corrected for the number of comparisons.
    pub p_adjusted: f64,
    /// The result.
    pub verdict: ComparisonResult,
}

/// The comparisons of all candidates.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// The control compared with the baseline: both have the same settings.
    pub control: Comparison,
    /// The largest change that the control's interval of 80 % contains. `None` with too few blocks.
    pub noise_floor: Option<f64>,
    /// The candidates.
    pub comparisons: Vec<Comparison>,
    /// The error that this analysis may make.
    pub level: f64,
}

/// The level of the intervals of the control and of [`not_worse`].
pub const ALPHA: f64 = 0.05;

/// The level of the interval whose farther limit is the noise floor. The error of a decision is
/// that of the test; the floor also rejects differences where equal settings differ as much.
const FLOOR_ALPHA: f64 = 0.2;

/// Compares each candidate with the present settings: both series of blocks with them together.
/// A difference counts if it is significant at `level`, corrected for the number of candidates,
/// exceeds `effect_min` and the noise floor.
pub fn decide(samples: &Samples, direction: Direction, effect_min: f64, level: f64) -> Decision {
    let control_shift = shift::shift(&samples.baseline, &samples.control, ALPHA);
    let control_p = mann_whitney::p_value(&samples.baseline, &samples.control);
    let spread = shift::shift(&samples.baseline, &samples.control, FLOOR_ALPHA);
    let floor = spread.low.abs().max(spread.high.abs());
    let noise_floor = finite(floor.exp_m1());
    let present = [&samples.baseline[..], &samples.control[..]].concat();
    let blocks = samples.candidates.iter();
    let p_values: Vec<f64> = blocks
        .map(|blocks| mann_whitney::p_value(&present, blocks))
        .collect();
    let adjusted = holm::adjusted(&p_values);
    let alpha = level / samples.candidates.len().max(1) as f64;
    let all = samples.candidates.iter().zip(p_values).zip(adjusted);
    let comparisons = all.map(|((blocks, p_value), p_adjusted)| {
        let shift = shift::shift(&present, blocks, alpha);
        let size = shift.estimate.abs();
        // On the scale of ratios, so that half and double are equally far.
        let is_shown = p_adjusted <= level && size >= effect_min.ln_1p() && size > floor;
        let is_better = match direction {
            Direction::Lower => shift.estimate < 0.0,
            Direction::Higher => shift.estimate > 0.0,
        };
        let verdict = match (is_shown, is_better) {
            (false, _) => ComparisonResult::NoDifference,
            (true, true) => ComparisonResult::Better,
            (true, false) => ComparisonResult::Worse,
        };
        Comparison::new(shift, p_value, p_adjusted, verdict)
    });
    Decision {
        comparisons: comparisons.collect(),
        control: Comparison::new(
            control_shift,
            control_p,
            control_p,
            ComparisonResult::NoDifference,
        ),
        noise_floor,
        level,
    }
}

impl Comparison {
    fn new(
        shift: shift::Shift,
        p_value: f64,
        p_adjusted: f64,
        verdict: ComparisonResult,
    ) -> Comparison {
        Comparison {
            change: shift.estimate.exp_m1(),
            change_low: finite(shift.low).map(f64::exp_m1),
            change_high: finite(shift.high).map(f64::exp_m1),
            p_value,
            p_adjusted,
            verdict,
        }
    }
}

impl Decision {
    /// The candidate with the best estimate among those that are better and `allowed`.
    pub fn winner(&self, direction: Direction, allowed: impl Fn(usize) -> bool) -> Option<usize> {
        let gain = |index: usize| match direction {
            Direction::Lower => -self.comparisons[index].change,
            Direction::Higher => self.comparisons[index].change,
        };
        let all = 0..self.comparisons.len();
        let better =
            all.filter(|&index| self.comparisons[index].verdict == ComparisonResult::Better);
        let better = better.filter(|&index| allowed(index));
        better.max_by(|&a, &b| gain(a).total_cmp(&gain(b)))
    }

    /// Whether a trial can end now: `winner` has the best estimate of all candidates, so further
    /// rounds would hardly change the choice.
    pub fn is_settled(&self, direction: Direction, winner: Option<usize>) -> bool {
        let Some(winner) = winner else { return false };
        let best = self.comparisons[winner].change;
        self.comparisons.iter().all(|other| match direction {
            Direction::Lower => other.change >= best,
            Direction::Higher => other.change <= best,
        })
    }
}

/// Whether a condition `not worse by more than` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NotWorse {
    /// The limit of the interval is within the limit.
    Holds,
    /// The whole interval is beyond it.
    Violated,
    /// The blocks do not suffice to exclude a violation.
    NotShown,
}

/// Tests whether the values of `blocks` are worse than `present` by at most `limit`, a share: the
/// interval of the shift, each of whose limits is wrong with a probability of 5 %, must be within
/// it.
pub fn not_worse(
    present: &[f64],
    blocks: &[f64],
    direction: Direction,
    limit: f64,
) -> (NotWorse, Option<f64>) {
    let shift = shift::shift(present, blocks, 2.0 * ALPHA);
    // 10 % worse is a factor of 1.1 for latencies, and of 0.9 for rates.
    let (worst, best, limit) = match direction {
        Direction::Lower => (shift.high, shift.low, limit.ln_1p()),
        Direction::Higher => (-shift.low, -shift.high, -(-limit).ln_1p()),
    };
    let result = match () {
        () if worst <= limit => NotWorse::Holds,
        () if best > limit => NotWorse::Violated,
        () => NotWorse::NotShown,
    };
    let change = match blocks.is_empty() || present.is_empty() {
        true => None,
        false => finite(shift.estimate.exp_m1()),
    };
    (result, change)
}

/// The change of each candidate in the first half of the rounds and in the second one: whether what
/// one half shows also holds on the other, which did not take part in it. `None` without values.
pub fn halves(samples: &Samples) -> Vec<[Option<f64>; 2]> {
    let change = |candidate: usize, half: usize| {
        let part = |blocks: &[f64]| match half {
            0 => blocks[..blocks.len() / 2].to_vec(),
            _ => blocks[blocks.len() / 2..].to_vec(),
        };
        let present = [part(&samples.baseline), part(&samples.control)].concat();
        let blocks = part(&samples.candidates[candidate]);
        finite(shift::shift(&present, &blocks, ALPHA).estimate.exp_m1())
    };
    let all = 0..samples.candidates.len();
    all.map(|candidate| [0, 1].map(|half| change(candidate, half)))
        .collect()
}

fn finite(value: f64) -> Option<f64> {
    Some(value).filter(|value| value.is_finite())
}
