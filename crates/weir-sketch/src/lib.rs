//! Mergeable approximate summaries: log-linear histograms, quantiles, heavy hitters, distinct counts.
