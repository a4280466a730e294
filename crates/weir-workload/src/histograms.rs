//! [`Histograms`]: every distribution of one subject.

use crate::distribution::Distribution;
use crate::metric::{Class, Metric};

/// Every metric for every class of operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histograms {
    /// By metric as in [`Metric::ALL`], then by class as in [`Class::ALL`].
    of: Vec<Distribution>,
}

impl Default for Histograms {
    fn default() -> Histograms {
        let each = |metric: Metric| Class::ALL.map(|_| Distribution::new(metric));
        Histograms {
            of: Metric::ALL.into_iter().flat_map(each).collect(),
        }
    }
}

impl Histograms {
    /// One distribution.
    pub fn of(&self, metric: Metric, class: Class) -> &Distribution {
        &self.of[place(metric, class)]
    }

    /// One distribution, mutable.
    pub fn of_mut(&mut self, metric: Metric, class: Class) -> &mut Distribution {
        &mut self.of[place(metric, class)]
    }

    /// Removes the numbers of outstanding requests if they are unreliable.
    pub fn clear_outstanding(&mut self) {
        for class in Class::ALL {
            let of = self.of_mut(Metric::Outstanding, class);
            *of = Distribution::new(Metric::Outstanding);
        }
    }

    /// The number of issued requests.
    pub fn requests(&self) -> u64 {
        self.of(Metric::Length, Class::All).count
    }

    /// Adds the values of `other`.
    pub fn merge(&mut self, other: &Histograms) {
        for (mine, others) in self.of.iter_mut().zip(&other.of) {
            mine.merge(others);
        }
    }

    /// Whether these can be a later state of `earlier`, without a reset in between.
    pub fn continues(&self, earlier: &Histograms) -> bool {
        let mut pairs = self.of.iter().zip(&earlier.of);
        pairs.all(|(now, then)| now.continues(then))
    }

    /// The difference to `earlier`, a previous state of these histograms.
    pub fn since(&self, earlier: &Histograms) -> Histograms {
        let pairs = self.of.iter().zip(&earlier.of);
        Histograms {
            of: pairs.map(|(now, then)| now.since(then)).collect(),
        }
    }
}

fn place(metric: Metric, class: Class) -> usize {
    metric.index() * Class::ALL.len() + class.index()
}
