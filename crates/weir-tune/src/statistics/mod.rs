//! The decision from the values of blocks: pure functions of numbers.
//!
//! A value is the natural logarithm of what was measured in a block, so that a difference is a
//! ratio. Candidates are compared with the present settings by the rank sum test
//! ([`mann_whitney`]) and the Hodges-Lehmann shift ([`shift`]); several comparisons share one
//! error rate by Holm's correction ([`holm`]), and interim analyses by error spending
//! ([`sequential`]). [`decide()`] combines them.

pub mod decide;
pub mod holm;
pub mod mann_whitney;
pub mod sequential;
pub mod shift;
#[cfg(test)]
mod simulation;

pub use decide::{
    Comparison, ComparisonResult, Decision, Direction, NotWorse, Samples, decide, halves, not_worse,
};

/// The middle value, or the mean of the two middle values; NaN without values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match (sorted.get(half), sorted.len() % 2) {
        (None, _) => f64::NAN,
        (Some(middle), 1) => *middle,
        (Some(upper), _) => (sorted[half - 1] + upper) / 2.0,
    }
}
