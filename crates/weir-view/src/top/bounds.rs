//! [`LowerBounds`]: intervals in which requests were lost, so that rates and sums are lower bounds.

use super::gather::Tick;
use super::queries::{LOSSES, TOTALS};

/// Smaller shares do not change the two or three printed digits.
const SHARE: f64 = 0.001;

/// The losses up to the last interval.
#[derive(Debug, Default)]
pub struct LowerBounds {
    missed: f64,
    /// The losses in the last interval alone. A loss may have been detected in the previous
    /// interval.
    last: f64,
}

impl LowerBounds {
    /// Marks the next tick, which covers `seconds`. `missed` is the taps' count of lost and unseen
    /// events so far.
    pub fn mark(&mut self, tick: &mut Tick, missed: i64, seconds: f64) {
        let number = |values: &[Option<f64>], columns: &[&str], name: &str| {
            let at = columns.iter().position(|c| *c == name);
            let value = values.get(at.expect("a column of the query"));
            value.copied().flatten().unwrap_or(0.0)
        };
        let missed = missed as f64 + number(&tick.losses, &LOSSES, "late");
        let new = (missed - self.missed).max(0.0);
        let lost = new.max(std::mem::replace(&mut self.last, new));
        self.missed = missed;
        let received = number(&tick.totals, &TOTALS, "iops") * seconds;
        tick.lower_bound = lost > SHARE * (received + lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_with_losses_is_a_lower_bound_and_so_is_the_next_one() {
        let mut bounds = LowerBounds::default();
        let mut mark = |iops, late, missed| {
            let mut tick = Tick {
                totals: vec![Some(iops)],
                losses: vec![Some(0.0), Some(0.0), Some(late)],
                ..Tick::default()
            };
            bounds.mark(&mut tick, missed, 2.0);
            tick.lower_bound
        };
        assert!(!mark(1_000.0, 0.0, 0));
        assert!(!mark(1_000.0, 0.0, 2), "2 of 2,002");
        assert!(mark(1_000.0, 0.0, 6), "4 of 2,004");
        assert!(mark(1_000.0, 0.0, 6), "it may have been found late");
        assert!(!mark(1_000.0, 0.0, 6));
        assert!(mark(1_000.0, 50.0, 6), "too late to be counted");
        assert!(mark(0.0, 50.0, 6) && !mark(0.0, 50.0, 6));
    }
}
