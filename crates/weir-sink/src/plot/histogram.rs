//! [`HistogramPlot`]: counts in bins, of one series or of several to compare.

use std::collections::BTreeMap;

use weir_sketch::LogBins;
use weir_workload::{Distribution, Metric};

use super::quantity::Quantity;

/// The layout of the bins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinLayout {
    /// vscsiStats' own.
    Limits,
    /// Bins of equal relative width, with 1, 2, 4, 8 or 16 per power of two.
    Log {
        /// The number of bins per power of two.
        per_power: u32,
    },
}

/// Counts in bins.
#[derive(Clone, Debug, PartialEq)]
pub struct HistogramPlot {
    /// Its title.
    pub title: String,
    /// The measure of the bins, without its unit: `I/O length`.
    pub of: String,
    /// The bins, ascending.
    pub bins: Vec<Bin>,
    /// The unit of the limits.
    pub quantity: Quantity,
    /// One, or several to compare; each has a count for each bin.
    pub series: Vec<PlotSeries>,
}

/// The range of a bin: above `low`, up to `high`; unbounded if absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bin {
    /// Greater than this.
    pub above: Option<i64>,
    /// At most this.
    pub up_to: Option<i64>,
}

/// A series of counts.
#[derive(Clone, Debug, PartialEq)]
pub struct PlotSeries {
    /// Its name in the legend.
    pub name: String,
    /// The count of each bin.
    pub counts: Vec<u64>,
}

impl HistogramPlot {
    /// From distributions of one metric, each with its name. Leading and trailing bins that are
    /// empty in all are omitted.
    pub fn new(title: &str, of: &[(&str, &Distribution)], layout: BinLayout) -> HistogramPlot {
        let metric = of.first().map_or(Metric::Latency, |(_, d)| d.metric);
        let (bins, counts) = match layout {
            BinLayout::Limits => limits(metric, of),
            BinLayout::Log { per_power } => log(per_power, of),
        };
        let series = of.iter().zip(counts).map(|((name, _), counts)| PlotSeries {
            name: (*name).to_owned(),
            counts,
        });
        let mut histogram = HistogramPlot {
            title: title.to_owned(),
            of: phrase(metric).to_owned(),
            bins,
            quantity: metric.measure().into(),
            series: series.collect(),
        };
        histogram.trim();
        histogram
    }

    fn trim(&mut self) {
        let holds = |i: &usize| self.series.iter().any(|s| s.counts[*i] > 0);
        let first = (0..self.bins.len()).find(holds).unwrap_or(0);
        let end = (0..self.bins.len()).rfind(holds).map_or(0, |i| i + 1);
        let keep = first..end.max(first);
        self.bins = self.bins[keep.clone()].to_vec();
        for series in &mut self.series {
            series.counts = series.counts[keep.clone()].to_vec();
        }
    }

    /// A bin's limits as text: `4 KiB`, `2 KiB -> 4,095 B`, `512 KiB ->`.
    pub fn range(&self, bin: Bin) -> String {
        let show = |x: i64| self.quantity.limit(x);
        match (bin.above, bin.up_to) {
            (Some(above), Some(up_to)) if up_to - above == 1 => show(up_to),
            (Some(above), Some(up_to)) => format!("{} -> {}", show(above), show(up_to)),
            (None, Some(up_to)) => format!("-> {}", show(up_to)),
            (Some(above), None) => format!("{} ->", show(above)),
            (None, None) => "all".into(),
        }
    }

    /// A bin's upper limit: `4 KiB`; that of the last is `> 512 KiB`.
    pub fn label(&self, bin: Bin) -> String {
        match (bin.above, bin.up_to) {
            (_, Some(up_to)) => self.quantity.limit(up_to),
            (Some(above), None) => format!("> {}", self.quantity.limit(above)),
            (None, None) => "all".into(),
        }
    }
}

impl PlotSeries {
    /// The total count.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// The name of a metric for titles.
pub fn phrase(metric: Metric) -> &'static str {
    match metric {
        Metric::Length => "I/O length",
        Metric::Seek => "seek distance, sectors",
        Metric::SeekClosest => "seek distance from the closest of the last requests, sectors",
        Metric::Interarrival => "time since the previous request",
        Metric::Outstanding => "outstanding requests",
        Metric::Wait => "wait (insert to issue)",
        Metric::Service => "service (issue to complete)",
        Metric::Latency => "latency (insert to complete)",
    }
}

fn limits(metric: Metric, of: &[(&str, &Distribution)]) -> (Vec<Bin>, Vec<Vec<u64>>) {
    let limits = metric.limits();
    // No length or number of requests is below 1, no time below 0.
    let least = match metric {
        Metric::Seek | Metric::SeekClosest => None,
        _ => Some(0),
    };
    let above = std::iter::once(least).chain(limits.iter().map(|&l| Some(l)));
    let up_to = limits.iter().map(|&l| Some(l)).chain([None]);
    let bins = above.zip(up_to).map(|(above, up_to)| Bin { above, up_to });
    let counts = of.iter().map(|(_, d)| d.bins.clone()).collect();
    (bins.collect(), counts)
}

fn log(per_power: u32, of: &[(&str, &Distribution)]) -> (Vec<Bin>, Vec<Vec<u64>>) {
    // Wider bins are labelled by their least value.
    let mut wide: BTreeMap<i64, (i64, Vec<u64>)> = BTreeMap::new();
    for (i, (_, distribution)) in of.iter().enumerate() {
        for (bin, count) in distribution.log.bins() {
            let (near, far) = LogBins::span(bin);
            let (low, high) = widened(near.min(far), per_power);
            let fresh = || (high, vec![0; of.len()]);
            wide.entry(low).or_insert_with(fresh).1[i] += count;
        }
    }
    let mut bins = Vec::new();
    let mut counts = vec![Vec::new(); of.len()];
    let Some((&first, _)) = wide.first_key_value() else {
        return (bins, counts);
    };
    let last = *wide.last_key_value().expect("it is not empty").0;
    let mut low = first;
    loop {
        let high = widened(low, per_power).1;
        bins.push(Bin {
            above: low.checked_sub(1),
            up_to: Some(high),
        });
        for (i, counts) in counts.iter_mut().enumerate() {
            counts.push(wide.get(&low).map_or(0, |(_, all)| all[i]));
        }
        if low >= last {
            return (bins, counts);
        }
        low = high + 1;
    }
}

/// The least and the greatest value of the bin of `value`, with so many bins to a power of two.
fn widened(value: i64, per_power: u32) -> (i64, i64) {
    let magnitude = i128::from(value).abs();
    if magnitude == 0 {
        return (0, 0);
    }
    let power = 1i128 << magnitude.ilog2();
    let parts = i128::from(per_power).min(power);
    let part = (magnitude - power) * parts / power;
    let low = power + power * part / parts;
    let high = power + power * (part + 1) / parts - 1;
    let inside = |x: i128| x.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
    match value < 0 {
        true => (inside(-high), inside(-low)),
        false => (inside(low), inside(high)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distribution(metric: Metric, values: &[i64]) -> Distribution {
        let mut distribution = Distribution::new(metric);
        for &value in values {
            distribution.add(value);
        }
        distribution
    }

    #[test]
    fn the_limits_are_those_of_vscsi_stats() {
        let lengths = distribution(Metric::Length, &[512, 4096, 4096, 4097, 1 << 20]);
        let all = HistogramPlot::new("", &[("all", &lengths)], BinLayout::Limits);
        assert_eq!(all.bins.len(), 18);
        let of = |range: &str| {
            let at = all.bins.iter().position(|&b| all.range(b) == range);
            all.series[0].counts[at.unwrap()]
        };
        assert_eq!(of("0 B -> 512 B"), 1);
        assert_eq!(of("4 KiB"), 2);
        assert_eq!(of("4 KiB -> 8,191 B"), 1);
        assert_eq!(of("512 KiB ->"), 1);
    }

    #[test]
    fn wider_bins_have_the_counts_of_the_narrow_ones() {
        let seeks = distribution(
            Metric::Seek,
            &[-5, -4, -1, 0, 1, 7, 8, 100, i64::MAX, i64::MIN],
        );
        for per_power in [1, 2, 4, 8, 16] {
            let all = HistogramPlot::new("", &[("", &seeks)], BinLayout::Log { per_power });
            assert_eq!(all.series[0].total(), 10, "{per_power}");
            let joined = all.bins.windows(2).all(|w| w[0].up_to == w[1].above);
            assert!(joined, "bins follow each other");
        }
        let octaves = HistogramPlot::new("", &[("", &seeks)], BinLayout::Log { per_power: 1 });
        let at = octaves.bins.iter().position(|b| b.up_to == Some(-4));
        assert_eq!(octaves.series[0].counts[at.unwrap()], 2, "-7 to -4");
    }

    #[test]
    fn compared_series_have_the_same_bins() {
        let fast = distribution(Metric::Latency, &[5_000, 6_000]);
        let slow = distribution(Metric::Latency, &[60_000_000]);
        let both = HistogramPlot::new("", &[("a", &fast), ("b", &slow)], BinLayout::Limits);
        assert_eq!(both.bins.len(), 9, "10 us to 100 ms");
        assert_eq!(both.series[0].counts.len(), both.series[1].counts.len());
        let none = HistogramPlot::new("", &[], BinLayout::Log { per_power: 1 });
        assert!(none.bins.is_empty());
    }
}
