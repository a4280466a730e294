//! [`Scale`]: maps values to positions between 0 and 1, and selects round values to mark.

use super::lines::PlotAxis;
use super::quantity::Quantity;

/// A range of values, linear or logarithmic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    low: f64,
    high: f64,
    log: bool,
    quantity: Quantity,
}

/// Round durations in ns, from one second up.
const SPANS: [f64; 16] = [
    1e9, 2e9, 5e9, 10e9, 15e9, 30e9, 60e9, 120e9, 300e9, 600e9, 900e9, 1_800e9, 3_600e9, 7_200e9,
    21_600e9, 86_400e9,
];

impl Scale {
    /// Covers the values; a linear scale starts at 0 unless `from_least`.
    pub fn new(measured: &PlotAxis, values: impl Iterator<Item = f64>, from_least: bool) -> Scale {
        let usable = |v: &f64| v.is_finite() && (!measured.log || *v > 0.0);
        let (mut low, mut high) = values
            .filter(usable)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
                (low.min(v), high.max(v))
            });
        if low > high {
            (low, high) = (1.0, 1.0);
        }
        if !measured.log && !from_least {
            low = low.min(0.0);
        }
        if low == high {
            match measured.log {
                true => (low, high) = (low / 2.0, high * 2.0),
                false => high = low + low.abs().max(1.0),
            }
        }
        Scale {
            low,
            high,
            log: measured.log,
            quantity: measured.quantity,
        }
    }

    /// Extended to the next mark, so that the greatest value does not touch the edge.
    pub fn rounded_up(self, most: usize) -> Scale {
        let ticks = self.ticks(most);
        let (Some(last), false) = (ticks.last(), self.log) else {
            return self;
        };
        let step = ticks.get(1).map_or(*last, |second| second - ticks[0]);
        let high = match self.high > *last {
            true => last + step,
            false => *last,
        };
        Scale { high, ..self }
    }

    /// The position of a value: 0 at the low end, 1 at the high one; `None` outside and without a
    /// logarithm.
    pub fn place(&self, value: f64) -> Option<f64> {
        let at = match self.log {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        (-1e-9..=1.0 + 1e-9).contains(&at).then_some(at)
    }

    /// The value at a position.
    pub fn value(&self, place: f64) -> f64 {
        match self.log {
            true => self.low * (self.high / self.low).powf(place),
            false => self.low + (self.high - self.low) * place,
        }
    }

    /// Round values, ascending, at most this many.
    pub fn ticks(&self, most: usize) -> Vec<f64> {
        let most = most.max(2);
        let mut ticks = match self.log {
            true => self.ratios(most),
            false => self.steps(most),
        };
        if ticks.is_empty() {
            ticks.push(self.low);
        }
        ticks
    }

    /// A mark's text.
    pub fn label(&self, value: f64) -> String {
        self.quantity.short(value)
    }

    fn steps(&self, most: usize) -> Vec<f64> {
        let least = (self.high - self.low) / most as f64;
        let step = self.round(least);
        let first = (self.low / step - 1e-9).ceil();
        let ticks = (0..=most).map(|i| (first + i as f64) * step);
        ticks.filter(|v| *v <= self.high + step * 1e-9).collect()
    }

    /// The least round number that is not less.
    fn round(&self, least: f64) -> f64 {
        match self.quantity {
            Quantity::Bytes if least >= 1.0 => least.log2().ceil().exp2(),
            Quantity::Elapsed if least > SPANS[0] / 10.0 => {
                let found = SPANS.into_iter().find(|span| *span >= least);
                found.unwrap_or_else(|| (least / SPANS[15]).ceil() * SPANS[15])
            }
            _ => {
                let power = 10f64.powf(least.log10().floor());
                let steps = [1.0, 2.0, 5.0, 10.0];
                let found = steps.into_iter().find(|s| s * power >= least * 0.999_999);
                found.unwrap_or(10.0) * power
            }
        }
    }

    fn ratios(&self, most: usize) -> Vec<f64> {
        let base: f64 = if self.quantity == Quantity::Bytes {
            2.0
        } else {
            10.0
        };
        let power = |x: f64| x.ln() / base.ln();
        let first = (power(self.low) - 1e-9).ceil() as i32;
        let last = (power(self.high) + 1e-9).floor() as i32;
        let count = (last - first + 1).max(0) as usize;
        if count <= 2 && base == 10.0 {
            let all = (first - 1..=last).flat_map(|p| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(p)));
            let inside = |v: &f64| *v >= self.low * 0.999_999 && *v <= self.high * 1.000_001;
            return all.filter(inside).take(most).collect();
        }
        let every = count.div_ceil(most).max(1);
        let ticks = (first..=last).step_by(every);
        ticks.map(|p| base.powi(p)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(measured: &PlotAxis, low: f64, high: f64) -> Vec<String> {
        let scale = Scale::new(measured, [low, high].into_iter(), true);
        scale.ticks(6).iter().map(|t| scale.label(*t)).collect()
    }

    #[test]
    fn marks_are_round() {
        let of = |quantity| PlotAxis::new("", quantity);
        assert_eq!(
            labels(&of(Quantity::Number), 0.0, 608.0),
            ["0", "200", "400", "600"]
        );
        assert_eq!(
            labels(&of(Quantity::Elapsed), 0.0, 7_200e9),
            ["0 s", "30 min", "1 h", "1.5 h", "2 h"]
        );
        assert_eq!(
            labels(&of(Quantity::Bytes), 0.0, 5e9),
            ["0 B", "1 GiB", "2 GiB", "3 GiB", "4 GiB"]
        );
        let log = PlotAxis::log("", Quantity::Nanoseconds);
        assert_eq!(
            labels(&log, 900.0, 2e6),
            ["1 us", "10 us", "100 us", "1 ms"]
        );
        assert_eq!(labels(&log, 1e6, 6e6), ["1 ms", "2 ms", "5 ms"]);
    }

    #[test]
    fn position_and_value_are_inverse() {
        for measured in [
            PlotAxis::new("", Quantity::Number),
            PlotAxis::log("", Quantity::Number),
        ] {
            let scale = Scale::new(&measured, [10.0, 1_000.0].into_iter(), true);
            for place in [0.0, 0.25, 1.0] {
                let back = scale.place(scale.value(place)).unwrap();
                assert!((back - place).abs() < 1e-9);
            }
            assert_eq!(scale.place(1_001.0), None);
        }
        let nothing = Scale::new(
            &PlotAxis::log("", Quantity::Bytes),
            [0.0].into_iter(),
            false,
        );
        assert_eq!(nothing.place(0.0), None);
        assert!(!nothing.ticks(5).is_empty());
    }
}
