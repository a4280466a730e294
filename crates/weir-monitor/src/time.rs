//! The watermark of the fleet.
//!
//! It is the lowest watermark of the agents for which the monitor waits. No agent is waited for
//! longer than a limit on the monitor's clock, and no message moves the watermark past that clock.

use weir_model::Nanos;

/// The inputs of the next watermark of the fleet.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The monitor's clock.
    pub now: Nanos,
    /// The lowest watermark of the agents that are waited for.
    pub slowest: Option<Nanos>,
    /// The watermark without agents: far enough behind the clock that an agent that connects is not
    /// late immediately.
    pub unled: Nanos,
    /// Earlier instants are not waited for.
    pub excluded: Nanos,
}

impl Pace {
    /// The new watermark of the fleet; `before` is the previous one.
    pub fn watermark(&self, before: Nanos) -> Nanos {
        let led = self.slowest.unwrap_or(self.unled).min(self.now);
        before.max(led).max(self.excluded.min(self.now))
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
            excluded: 80,
        };
        assert_eq!(pace(Some(95)).watermark(50), 95);
        assert_eq!(pace(Some(120)).watermark(50), 100, "the clock leads");
        assert_eq!(pace(Some(10)).watermark(50), 80, "it is excluded");
        assert_eq!(pace(None).watermark(50), 90);
        assert_eq!(pace(Some(95)).watermark(97), 97, "time does not go back");
    }
}
