//! Whether a series is flat: the growth over its second half, by a line that outliers do not
//! affect.

/// The permitted growth of a series over the second half of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GrowthBound {
    /// In units of the series.
    pub absolute: f64,
    /// As a share of the median.
    pub relative: f64,
}

/// The line through the second half of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LineFit {
    /// The median value.
    pub median: f64,
    /// The slope of the line times the length of the half.
    pub growth: f64,
    /// The permitted growth.
    pub growth_max: f64,
}

/// More points than this are thinned, since all pairs are compared.
const POINTS_MAX: usize = 400;

impl LineFit {
    /// The fit over the points after `from`, of times in seconds and values: the median slope of
    /// all pairs (Theil 1950, Sen 1968), which up to 29 % of outliers do not affect. `None` for
    /// fewer than three points.
    pub fn of(points: &[(f64, f64)], from: f64, bound: GrowthBound) -> Option<LineFit> {
        let half: Vec<(f64, f64)> = points.iter().copied().filter(|p| p.0 >= from).collect();
        let step = half.len().div_ceil(POINTS_MAX).max(1);
        let half: Vec<(f64, f64)> = half.into_iter().step_by(step).collect();
        let (first, last) = (half.first()?.0, half.last()?.0);
        if half.len() < 3 {
            return None;
        }
        let pairs = half
            .iter()
            .enumerate()
            .flat_map(|(i, a)| half[i + 1..].iter().map(move |b| (a, b)));
        let slopes = pairs.filter(|(a, b)| b.0 > a.0);
        let slope = median(slopes.map(|(a, b)| (b.1 - a.1) / (b.0 - a.0)).collect())?;
        let median = median(half.iter().map(|p| p.1).collect())?;
        Some(LineFit {
            median,
            growth: slope * (last - first),
            growth_max: bound.absolute.max(bound.relative * median),
        })
    }

    /// Whether the growth is within its bound. A series that shrinks is flat enough.
    pub fn is_flat(&self) -> bool {
        self.growth <= self.growth_max
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: GrowthBound = GrowthBound {
        absolute: 2.0,
        relative: 0.05,
    };

    #[test]
    fn a_leak_is_found_and_outliers_are_not_taken_for_one() {
        let series = |value: fn(f64) -> f64| {
            let points: Vec<(f64, f64)> = (0..100).map(|t| (t.into(), value(t.into()))).collect();
            LineFit::of(&points, 50.0, BOUND).unwrap()
        };
        let leak = series(|t| 100.0 + 0.2 * t);
        assert!(
            (leak.growth - 9.8).abs() < 1e-9 && !leak.is_flat(),
            "{leak:?}"
        );
        let start = series(|t| if t < 40.0 { t } else { 40.0 });
        assert!(start.is_flat() && start.growth == 0.0, "{start:?}");
        let outliers = series(|t| if t as u32 % 5 == 4 { 1e6 } else { 100.0 });
        assert!(outliers.is_flat(), "{outliers:?}");
        let large = series(|t| 1_000.0 + 0.5 * t);
        assert_eq!(large.growth_max, 0.05 * large.median);
        assert!(large.is_flat(), "{large:?}");
        assert_eq!(LineFit::of(&[(60.0, 1.0), (70.0, 1.0)], 50.0, BOUND), None);
    }
}
