//! [`Correlator`]: the pairs of many series whose windows correlate, with lags.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::basic_window::{BasicWindow, Phases};
use super::grid::{Grid, GridPoint};
use super::series::{Frame, Series};
use super::significance::{Significance, significance};

/// The largest number of series; values of others are only counted.
pub const SERIES_MAX: usize = 1 << 14;

/// The memory of all series; with long windows and lags it is that which limits their number.
pub const MEMORY_BYTES_MAX: usize = 1 << 30;

/// The largest number of pairs of one evaluation; further ones are only counted.
pub const PAIRS_MAX: usize = 100_000;

/// The steps of a window: with fewer no correlation is significant, and more would not be read from
/// memory in the time of a step.
pub const WINDOW_STEPS: std::ops::RangeInclusive<usize> = 16..=4096;

/// The probability that any of the reported pairs is due to chance.
pub const SIGNIFICANCE_LEVEL: f64 = 0.01;

/// The coefficients that are kept of a window.
const COEFFICIENTS_MAX: usize = 16;

/// Subtracted from the threshold before it is compared with numbers of single precision.
const PRODUCT_SLACK: f64 = 1e-5;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CorrelationOptions {
    /// The length of a window in steps, in [`WINDOW_STEPS`].
    pub window: usize,
    /// The greatest lag in steps, at most `window`.
    pub lag: usize,
    /// The least coefficient in magnitude, above 0 and at most 1.
    pub threshold: f64,
}

impl CorrelationOptions {
    /// The length of a basic window: windows are summed from basic windows and up to one basic
    /// window of values, so the root of the length is cheapest.
    pub fn basic(&self) -> usize {
        (self.window as f64).sqrt().ceil() as usize
    }

    /// The number of kept coefficients, without that of frequency 0 and those that are conjugates.
    pub fn coefficients(&self) -> usize {
        COEFFICIENTS_MAX.min((self.window - 1) / 2)
    }

    /// Real and imaginary parts of these.
    pub fn numbers(&self) -> usize {
        2 * self.coefficients()
    }

    /// The largest number of series: [`SERIES_MAX`], or what fits into [`MEMORY_BYTES_MAX`].
    pub fn series_max(&self) -> usize {
        (MEMORY_BYTES_MAX / self.series_bytes()).min(SERIES_MAX)
    }

    /// The size of the state of a series.
    pub(super) fn series_bytes(&self) -> usize {
        let kept = self.window + self.lag;
        let values = kept * (2 * size_of::<f64>() + size_of::<bool>());
        let point = self.numbers() * size_of::<f32>() + size_of::<Option<Frame>>();
        let basics = self.window / self.basic() + 3;
        let basic = size_of::<BasicWindow>() + self.numbers() * size_of::<f64>();
        values + (self.lag + 1) * point + basics * basic
    }
}

/// All series.
#[derive(Clone, Debug)]
pub struct Correlator {
    options: CorrelationOptions,
    phases: Phases,
    /// The number of steps so far.
    steps: u64,
    series: Vec<Option<Series>>,
    /// By the caller's number.
    index: HashMap<u32, usize>,
    ids: Vec<u32>,
    vacant: Vec<usize>,
    values_omitted: u64,
}

/// Two series whose windows correlate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CorrelatedPair {
    /// The series whose values are earlier by the lag.
    pub leader: u32,
    /// The other one; with lag 0 the one with the greater number.
    pub follower: u32,
    /// The lag in steps.
    pub lag: usize,
    /// Pearson's coefficient of correlation.
    pub coefficient: f64,
    /// Its significance, of a single comparison.
    pub significance: Significance,
}

/// The result of an evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Correlations {
    /// The number of series with a complete window.
    pub series: usize,
    /// The number of comparisons: ordered pairs at each lag, pairs at lag 0.
    pub comparisons: u64,
    /// Of these, those whose coefficients were compared number by number.
    pub candidates: u64,
    /// Of these, those whose values were compared.
    pub verified: u64,
    /// Pairs whose coefficient reaches the threshold, but which may be due to chance.
    pub insignificant: u64,
    /// Comparisons above the threshold of pairs beyond [`PAIRS_MAX`].
    pub omitted: u64,
    /// The pairs, each at the lag of its strongest coefficient; the strongest first.
    pub pairs: Vec<CorrelatedPair>,
}

/// The strongest comparison of a pair.
#[derive(Clone, Copy, Debug)]
struct Strongest {
    leader: usize,
    follower: usize,
    lag: usize,
    coefficient: f64,
}

impl Correlator {
    /// Without series.
    ///
    /// # Panics
    /// If an option is out of its range.
    pub fn new(options: CorrelationOptions) -> Correlator {
        assert!(WINDOW_STEPS.contains(&options.window), "{options:?}");
        assert!(options.lag <= options.window, "{options:?}");
        assert!(0.0 < options.threshold && options.threshold <= 1.0);
        Correlator {
            phases: Phases::new(options.window),
            options,
            steps: 0,
            series: Vec::new(),
            index: HashMap::new(),
            ids: Vec::new(),
            vacant: Vec::new(),
            values_omitted: 0,
        }
    }

    /// The options.
    pub fn options(&self) -> &CorrelationOptions {
        &self.options
    }

    /// Approximate size of the state in bytes.
    pub fn bytes(&self) -> usize {
        self.series.len() * self.options.series_bytes()
    }

    /// The number of steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The number of series.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are no series.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The number of values of series beyond [`CorrelationOptions::series_max`].
    pub fn values_omitted(&self) -> u64 {
        self.values_omitted
    }

    /// Adds a step: the values of series by number. A series without a value, or with one that is
    /// not finite, misses it; one that misses a window and the greatest lag is removed.
    pub fn step(&mut self, values: impl IntoIterator<Item = (u32, f64)>) {
        let step = self.steps;
        self.steps += 1;
        let mut given = vec![None; self.series.len()];
        for (id, value) in values {
            let Some(at) = self.slot(id) else {
                self.values_omitted += 1;
                continue;
            };
            given.resize(self.series.len(), None);
            given[at] = Some(value);
        }
        let kept = (self.options.window + self.options.lag) as u64;
        for (at, value) in given.into_iter().enumerate() {
            let Some(series) = &mut self.series[at] else {
                continue;
            };
            series.add(value, step, &self.options, &self.phases);
            if series.last_known().is_none_or(|last| last + kept < step) {
                self.series[at] = None;
                self.index.remove(&self.ids[at]);
                self.vacant.push(at);
            }
        }
    }

    /// Where the series is, which is new if needed and there is room.
    fn slot(&mut self, id: u32) -> Option<usize> {
        let entry = match self.index.entry(id) {
            Entry::Occupied(entry) => return Some(*entry.get()),
            Entry::Vacant(entry) => entry,
        };
        let series = Some(Series::new(&self.options));
        let at = match self.vacant.pop() {
            Some(at) => {
                self.series[at] = series;
                self.ids[at] = id;
                at
            }
            None if self.series.len() < self.options.series_max() => {
                self.series.push(series);
                self.ids.push(id);
                self.series.len() - 1
            }
            None => return None,
        };
        entry.insert(at);
        Some(at)
    }

    /// All pairs whose windows correlate now: each window that ends at the latest step with each
    /// that ends up to `lag` steps earlier.
    pub fn pairs(&self) -> Correlations {
        let Some(now) = self.steps.checked_sub(1) else {
            return Correlations::default();
        };
        let points: Vec<GridPoint<'_>> = self.points_at(now).collect();
        let grid = Grid::new(&points, self.options.numbers(), self.options.threshold);
        let mut found = Correlations {
            series: points.len(),
            ..Correlations::default()
        };
        let mut strongest = HashMap::new();
        let (mut ranges, mut candidates) = (Vec::new(), Vec::new());
        for lag in 0..=self.options.lag {
            let Some(earlier) = now.checked_sub(lag as u64) else {
                break;
            };
            for point in self.points_at(earlier) {
                let leader = point.number as usize;
                found.comparisons += match lag {
                    0 => 0,
                    _ => {
                        let is_current = self.series_at(leader).frame_at(now).is_some();
                        (points.len() - usize::from(is_current)) as u64
                    }
                };
                grid.near(point.point, &mut ranges);
                candidates.clear();
                let least = (self.options.threshold - PRODUCT_SLACK) as f32;
                grid.candidates(point, &ranges, least, &mut candidates);
                for &follower in &candidates {
                    let follower = follower as usize;
                    // At lag 0 a pair is compared once.
                    if follower == leader || lag == 0 && follower < leader {
                        continue;
                    }
                    found.candidates += 1;
                    self.verify(leader, follower, lag, &mut found, &mut strongest);
                }
            }
        }
        let pairs = points.len() as u64;
        found.comparisons += pairs * pairs.saturating_sub(1) / 2;
        self.judge(strongest, &mut found);
        found
    }

    fn points_at(&self, step: u64) -> impl Iterator<Item = GridPoint<'_>> {
        let series = self.series.iter().enumerate();
        series.filter_map(move |(number, series)| {
            let series = series.as_ref()?;
            let frame = series.frame_at(step)?;
            Some(GridPoint {
                number: number as u32,
                point: series.point_at(step),
                rests: frame.head_rests,
            })
        })
    }

    fn series_at(&self, at: usize) -> &Series {
        let series = self.series[at].as_ref();
        series.expect("its window is complete")
    }

    /// Compares all kept coefficients, and then the values.
    fn verify(
        &self,
        leader: usize,
        follower: usize,
        lag: usize,
        found: &mut Correlations,
        strongest: &mut HashMap<(usize, usize), Strongest>,
    ) {
        let now = self.steps - 1;
        let earlier = now - lag as u64;
        let (x, y) = (self.series_at(leader), self.series_at(follower));
        let (Some(of_x), Some(of_y)) = (x.frame_at(earlier), y.frame_at(now)) else {
            return;
        };
        let products = x.point_at(earlier).iter().zip(y.point_at(now));
        let product: f32 = products.map(|(a, b)| a * b).sum();
        let bound = f64::from(product.abs() + of_x.rest * of_y.rest);
        if bound < self.options.threshold - PRODUCT_SLACK {
            return;
        }
        found.verified += 1;
        let [a, b] = [(x, earlier), (y, now)].map(|(s, at)| s.values_at(at, self.options.window));
        let product: f64 = a
            .iter()
            .zip(b)
            .map(|(a, b)| (a - of_x.mean) * (b - of_y.mean))
            .sum();
        let coefficient = (product * of_x.scale * of_y.scale).clamp(-1.0, 1.0);
        if coefficient.abs() < self.options.threshold {
            return;
        }
        let this = Strongest {
            leader,
            follower,
            lag,
            coefficient,
        };
        let pair = (leader.min(follower), leader.max(follower));
        let is_full = strongest.len() >= PAIRS_MAX;
        match strongest.entry(pair) {
            // Lags ascend, so that of equal coefficients the one with the smallest lag is kept.
            Entry::Occupied(mut kept) => {
                if coefficient.abs() > kept.get().coefficient.abs() {
                    kept.insert(this);
                }
            }
            Entry::Vacant(_) if is_full => found.omitted += 1,
            Entry::Vacant(entry) => {
                entry.insert(this);
            }
        }
    }

    /// Keeps the pairs that are significant among all comparisons: the probability of each is
    /// multiplied by their number (Bonferroni).
    fn judge(&self, strongest: HashMap<(usize, usize), Strongest>, found: &mut Correlations) {
        for pair in strongest.into_values() {
            let pair = self.pair(pair);
            let p_value = pair.significance.p_value * found.comparisons as f64;
            match p_value <= SIGNIFICANCE_LEVEL {
                true => found.pairs.push(pair),
                false => found.insignificant += 1,
            }
        }
        let strength = |p: &CorrelatedPair| p.coefficient.abs();
        found.pairs.sort_by(|a, b| {
            let stronger = strength(b).total_cmp(&strength(a));
            stronger.then_with(|| (a.leader, a.follower).cmp(&(b.leader, b.follower)))
        });
    }

    fn pair(&self, pair: Strongest) -> CorrelatedPair {
        let window = self.options.window;
        let now = self.steps - 1;
        let earlier = now - pair.lag as u64;
        let (x, y) = (self.series_at(pair.leader), self.series_at(pair.follower));
        let both = |back: &u64| x.is_known(earlier - back) && y.is_known(now - back);
        let known = (0..window as u64).filter(both).count();
        let [a, b] = [(x, earlier), (y, now)].map(|(s, at)| s.values_at(at, window));
        let mut ids = [pair.leader, pair.follower].map(|at| self.ids[at]);
        if pair.lag == 0 {
            ids.sort_unstable();
        }
        CorrelatedPair {
            leader: ids[0],
            follower: ids[1],
            lag: pair.lag,
            coefficient: pair.coefficient,
            significance: significance(pair.coefficient, a, b, known),
        }
    }

    /// The correlation of two series as their kept coefficients show it, and the greatest error of
    /// that: the product of the lengths of the rests. `None` where a window cannot be compared.
    pub fn estimate(&self, leader: u32, follower: u32, lag: usize) -> Option<(f64, f64)> {
        let now = self.steps.checked_sub(1)?;
        let earlier = now
            .checked_sub(lag as u64)
            .filter(|_| lag <= self.options.lag)?;
        let at = |id: u32| self.series[*self.index.get(&id)?].as_ref();
        let (x, y) = (at(leader)?, at(follower)?);
        let (of_x, of_y) = (x.frame_at(earlier)?, y.frame_at(now)?);
        let products = x.point_at(earlier).iter().zip(y.point_at(now));
        let product: f32 = products.map(|(a, b)| a * b).sum();
        let error = f64::from(of_x.rest * of_y.rest) + PRODUCT_SLACK;
        Some((f64::from(product), error))
    }
}
