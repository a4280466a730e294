//! Which of many series move together, with which lag, as their windows slide: StatStream (Zhu and
//! Shasha 2002, "StatStream: statistical monitoring of thousands of data streams in real time",
//! VLDB 2002), and what that means for disks.
//!
//! ```text
//! value of a step ─ BasicWindow ─ sums of a window ─ normalised coefficients ─ Grid ─ candidates
//!                   └ values ───────────────────────────────────────────── exact coefficient
//!                                                                          └ significance ─ pair
//! ```
//!
//! A window of w values, less their mean and divided by the root of their squared distances from
//! it, is a vector of length 1. The correlation of two windows is the product of their vectors,
//! which the Fourier transform does not change. With the first m coefficients X of each window,
//!
//! ```text
//! correlation = 2·Σ Re(X·conj(Y)) + rest,   |rest| ≤ √(1 - 2·Σ|X|²)·√(1 - 2·Σ|Y|²)
//! ```
//!
//! so a pair with a correlation of the threshold or more is never excluded by its coefficients, nor
//! by the grid, as 2·Σ|X - Y|² ≤ 2·(1 - correlation). Pairs that remain are compared value by
//! value: the reported coefficient has rounding errors only.
//!
//! [`DiskCorrelator`] keeps such series for the disks of a host, and adds what a correlation means:
//! whether both disks move together, or the load of one slows the other.

mod basic_window;
mod correlator;
mod disks;
mod grid;
mod own_load;
mod series;
mod significance;
mod verdict;

pub use correlator::{
    CorrelatedPair, CorrelationOptions, Correlations, Correlator, MEMORY_BYTES_MAX, PAIRS_MAX,
    SERIES_MAX, SIGNIFICANCE_LEVEL, WINDOW_STEPS,
};
pub use disks::{
    CorrelatedMetric, CorrelationReport, CorrelationSummary, DiskCorrelator, DiskPair, PairSummary,
    StepLoad,
};
pub use significance::Significance;
pub use verdict::{LoadEffect, PairVerdict};
