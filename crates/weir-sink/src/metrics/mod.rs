//! Metrics as Prometheus scrapes them: counters, gauges and histograms, in the format that the
//! scraper asks for.
//!
//! | module | gives |
//! | --- | --- |
//! | [`buckets`] | the limits in which latencies are counted, for classic and native histograms |
//! | [`exposition`] | which format a scraper gets |
//! | [`text`] | text 0.0.4 and OpenMetrics 1.0 |
//! | [`protobuf`] | delimited `io.prometheus.client.MetricFamily`, the only one with native histograms |
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
    /// What it counts, in a sentence.
    pub help: &'static str,
    /// The base unit in which the name ends, or none.
    pub unit: &'static str,
    /// What kind of numbers.
    pub kind: Kind,
    /// One for each combination of labels.
    pub series: Vec<Series>,
}

/// What kind of numbers a family holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size.
    Histogram,
}

/// One time series.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Names and values.
    pub labels: Vec<(&'static str, String)>,
    /// Its value now.
    pub sample: Sample,
    /// When it began to count, nanoseconds since the Unix epoch.
    pub created_ns: Option<i64>,
}

/// The value of a series.
#[derive(Clone, Debug, PartialEq)]
pub enum Sample {
    /// Of a counter or gauge.
    Number(f64),
    /// Of a histogram.
    Histogram(Histogram),
}

/// How many values there were of which size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// All values added up.
    pub sum: f64,
    /// All values.
    pub count: u64,
    /// By upper limit, ascending: how many do not exceed it. The last limit, infinity, is left out.
    pub classic: Vec<(f64, u64)>,
    /// How many do not exceed [`buckets::ZERO_LIMIT`].
    pub zeros: u64,
    /// By index of the bucket, ascending, of schema [`buckets::SCHEMA`]: how many are in it. Empty
    /// buckets are left out.
    pub native: Vec<(i32, u64)>,
}

impl Family {
    /// The name as samples have it: counters end in `_total`.
    pub fn full_name(&self) -> String {
        match self.kind {
            Kind::Counter => format!("{}_total", self.name),
            _ => self.name.clone(),
        }
    }
}
