//! [`CoefficientPlot`]: coefficients of correlation between series, as a matrix or as a graph.

/// Series, and the pairs of them with a coefficient.
#[derive(Clone, Debug, PartialEq)]
pub struct CoefficientPlot {
    /// Its title.
    pub title: String,
    /// The names of the series.
    pub names: Vec<String>,
    /// The pairs.
    pub pairs: Vec<CoefficientPair>,
}

/// Two series.
#[derive(Clone, Debug, PartialEq)]
pub struct CoefficientPair {
    /// The position of the series that changes first, or that causes the change.
    pub from: usize,
    /// The position of the other one.
    pub to: usize,
    /// From -1 to 1.
    pub coefficient: f64,
    /// Whether the first one causes or precedes: the graph has an arrow.
    pub directed: bool,
    /// The description.
    pub tooltip: String,
}
