//! How far time has come in the whole fleet.
//!
//! An instant is over when every agent that is waited for has said so. Nobody is waited for longer
//! than a bound on the monitor's clock, and nobody, whatever he says, moves time past that clock.

use weir_model::Nanos;

/// What the next instant of the fleet depends on.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The monitor's clock.
    pub now: Nanos,
    /// The slowest agent that is waited for.
    pub slowest: Option<Nanos>,
    /// Where time goes on without agents: far enough behind the clock that one who comes is not
    /// late at once.
    pub unled: Nanos,
    /// What is older than this is not waited for.
    pub overtaken: Nanos,
}

impl Pace {
    /// The instant up to which all is over, which was `before` until now.
    pub fn frontier(&self, before: Nanos) -> Nanos {
        let led = self.slowest.unwrap_or(self.unled).min(self.now);
        before.max(led).max(self.overtaken.min(self.now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_follows_the_slowest_within_bounds() {
        let pace = |slowest| Pace {
            now: 100,
            slowest,
            unled: 90,
            overtaken: 80,
        };
        assert_eq!(pace(Some(95)).frontier(50), 95);
        assert_eq!(pace(Some(120)).frontier(50), 100, "the clock leads");
        assert_eq!(pace(Some(10)).frontier(50), 80, "it is overtaken");
        assert_eq!(pace(None).frontier(50), 90);
        assert_eq!(pace(Some(95)).frontier(97), 97, "time does not go back");
    }
}
