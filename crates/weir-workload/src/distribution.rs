//! [`Distribution`]: the distribution of the values of one metric, in constant memory.

use weir_sketch::LogBins;

use crate::metric::Metric;

/// A value with its bins, which several distributions of a metric can use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binned {
    value: i64,
    bin: usize,
    log_bin: i32,
}

impl Binned {
    /// Finds the bins of a value.
    pub(crate) fn new(metric: Metric, value: i64) -> Binned {
        Binned {
            value,
            bin: metric.limits().partition_point(|&limit| limit < value),
            log_bin: LogBins::bin(value),
        }
    }
}

/// The values of one metric: counts under vscsiStats' limits and in bins of equal relative width,
/// with count, sum, least and greatest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// The metric.
    pub metric: Metric,
    /// The number of values.
    pub count: u64,
    /// Their sum.
    pub sum: i128,
    /// The least value; undefined without values.
    pub min: i64,
    /// The greatest value; undefined without values.
    pub max: i64,
    /// The number of values under each of [`Metric::limits`], and last above all.
    pub bins: Vec<u64>,
    /// The same values in bins of equal relative width, from which quantiles come.
    pub log: LogBins,
}

impl Distribution {
    /// Without values.
    pub fn new(metric: Metric) -> Distribution {
        Distribution {
            metric,
            count: 0,
            sum: 0,
            min: i64::MAX,
            max: i64::MIN,
            bins: vec![0; metric.limits().len() + 1],
            log: LogBins::default(),
        }
    }

    /// Adds a value.
    pub fn add(&mut self, value: i64) {
        self.add_binned(&Binned::new(self.metric, value));
    }

    /// Adds a value of the metric whose bins are known.
    pub(crate) fn add_binned(&mut self, binned: &Binned) {
        self.count += 1;
        self.sum += i128::from(binned.value);
        self.min = self.min.min(binned.value);
        self.max = self.max.max(binned.value);
        self.bins[binned.bin] += 1;
        self.log.add_to_bin(binned.log_bin, 1);
    }

    /// Removes a value that was added; another value has no effect. Least and greatest are then
    /// those of the remaining bins, as individual values are not stored.
    pub fn remove(&mut self, value: i64) {
        let mut one = Distribution::new(self.metric);
        one.add(value);
        let bin = self.metric.limits().partition_point(|&limit| limit < value);
        if self.bins[bin] == 0 || self.log.count(value) == 0 {
            return;
        }
        *self = match self.count {
            1 => Distribution::new(self.metric),
            _ => self.since(&one),
        };
    }

    /// Adds the values of `other`, of the same metric.
    pub fn merge(&mut self, other: &Distribution) {
        debug_assert_eq!(self.metric, other.metric, "distributions of one metric");
        self.count += other.count;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        for (bin, more) in self.bins.iter_mut().zip(&other.bins) {
            *bin += more;
        }
        self.log.merge(&other.log);
    }

    /// The difference to `earlier`, a previous state of this distribution; least and greatest are
    /// those of the remaining bins, as individual values are not stored.
    pub fn since(&self, earlier: &Distribution) -> Distribution {
        let mut rest = self.clone();
        rest.count -= earlier.count;
        rest.sum -= earlier.sum;
        for (bin, less) in rest.bins.iter_mut().zip(&earlier.bins) {
            *bin -= less;
        }
        rest.log.remove(&earlier.log);
        if earlier.count > 0 {
            // The ends of the bins, so that the mean and the quantiles lie between them.
            let ends = |bin: i32| {
                let (least, most) = LogBins::span(bin);
                (least.min(most), least.max(most))
            };
            let left = rest.log.bins().map(|(bin, _)| ends(bin));
            let (min, max) = left.fold((i64::MAX, i64::MIN), |(min, max), (least, most)| {
                (min.min(least.max(self.min)), max.max(most.min(self.max)))
            });
            (rest.min, rest.max) = (min, max);
        }
        rest
    }

    /// Whether this can be a later state of `earlier`: no bin has decreased.
    pub fn continues(&self, earlier: &Distribution) -> bool {
        let mut bins = self.bins.iter().zip(&earlier.bins);
        bins.all(|(now, then)| now >= then) && self.count >= earlier.count
    }

    /// The mean; `None` without values.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// The `q`-quantile, within [`LogBins::ERROR`] of it and between the least and the greatest.
    pub fn quantile(&self, q: f64) -> Option<i64> {
        self.log
            .quantile(q)
            .map(|value| value.clamp(self.min, self.max))
    }
}
