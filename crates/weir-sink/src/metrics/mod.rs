//! Metrics for Prometheus: counters, gauges and histograms, in the format that the scraper
//! requests.
//!
//! | module | gives |
//! | --- | --- |
//! | [`buckets`] | the limits in which latencies are counted, for classic and native histograms |
//! | [`exposition`] | which format a scraper gets |
//! | [`text`] | text 0.0.4 and OpenMetrics 1.0 |
//! | [`protobuf`] | delimited `io.prometheus.client.MetricFamily`, with native histograms |
//! | [`serve`] | HTTP |

pub mod buckets;
mod connections;
pub mod exposition;
pub mod protobuf;
pub mod serve;
pub mod text;

pub use buckets::Buckets;
pub use exposition::Exposition;

/// Metrics of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// The name without `_total`: `weir_io_bytes`.
    pub name: String,
    /// Its help text, a sentence.
    pub help: &'static str,
    /// The base unit at the end of the name, if any.
    pub unit: &'static str,
    /// The type of the family.
    pub kind: MetricKind,
    /// One for each combination of labels.
    pub series: Vec<Series>,
}

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A monotonic counter.
    Counter,
    /// A gauge.
    Gauge,
    /// A histogram.
    Histogram,
}

/// One time series.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Names and values.
    pub labels: Vec<(&'static str, String)>,
    /// Its value.
    pub sample: MetricSample,
    /// When counting started, nanoseconds since the Unix epoch.
    pub created_ns: Option<i64>,
}

/// The value of a series.
#[derive(Clone, Debug, PartialEq)]
pub enum MetricSample {
    /// Of a counter or gauge.
    Number(f64),
    /// Of a histogram.
    Histogram(MetricHistogram),
}

/// The distribution of values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricHistogram {
    /// The sum of all values.
    pub sum: f64,
    /// The number of values.
    pub count: u64,
    /// By upper limit, ascending: the number of values that do not exceed it. The last limit,
    /// infinity, is omitted.
    pub classic: Vec<(f64, u64)>,
    /// The number of values that do not exceed [`buckets::ZERO_LIMIT`].
    pub zeros: u64,
    /// By bucket index, ascending, of schema [`buckets::SCHEMA`]: the counts. Empty buckets are
    /// omitted.
    pub native: Vec<(i32, u64)>,
}

impl Family {
    /// A gauge without labels.
    pub fn gauge(name: &str, unit: &'static str, help: &'static str, value: f64) -> Family {
        Family {
            name: name.to_owned(),
            help,
            unit,
            kind: MetricKind::Gauge,
            series: vec![Series {
                labels: Vec::new(),
                sample: MetricSample::Number(value),
                created_ns: None,
            }],
        }
    }

    /// The name in samples: counters end in `_total`.
    pub fn full_name(&self) -> String {
        match self.kind {
            MetricKind::Counter => format!("{}_total", self.name),
            _ => self.name.clone(),
        }
    }
}
