//! Metrics as protocol buffers: messages `io.prometheus.client.MetricFamily`, each after its
//! length.
//!
//! The messages are those of github.com/prometheus/client_model, `metrics.proto` (proto2), as far
//! as they are used here, written after its public field numbers.

use prost::Message;

use super::buckets::{SCHEMA, ZERO_LIMIT};
use super::{Family, MetricHistogram, MetricKind, MetricSample, Series};

/// `MetricFamily`
#[derive(Clone, PartialEq, Message)]
pub struct MetricFamily {
    /// The name, `_total` included.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// The help text.
    #[prost(string, optional, tag = "2")]
    pub help: Option<String>,
    /// 0 counter, 1 gauge, 4 histogram.
    #[prost(int32, optional, tag = "3")]
    pub kind: Option<i32>,
    /// The series.
    #[prost(message, repeated, tag = "4")]
    pub metric: Vec<Metric>,
    /// The base unit.
    #[prost(string, optional, tag = "5")]
    pub unit: Option<String>,
}

/// `Metric`
#[derive(Clone, PartialEq, Message)]
pub struct Metric {
    /// Names and values.
    #[prost(message, repeated, tag = "1")]
    pub label: Vec<LabelPair>,
    /// Of a gauge.
    #[prost(message, optional, tag = "2")]
    pub gauge: Option<GaugeValue>,
    /// Of a counter.
    #[prost(message, optional, tag = "3")]
    pub counter: Option<CounterValue>,
    /// Of a histogram.
    #[prost(message, optional, tag = "7")]
    pub histogram: Option<HistogramValue>,
}

/// `LabelPair`
#[derive(Clone, PartialEq, Message)]
pub struct LabelPair {
    /// The label.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// Its value.
    #[prost(string, optional, tag = "2")]
    pub value: Option<String>,
}

/// `Gauge`
#[derive(Clone, PartialEq, Message)]
pub struct GaugeValue {
    /// The value.
    #[prost(double, optional, tag = "1")]
    pub value: Option<f64>,
}

/// `Counter`
#[derive(Clone, PartialEq, Message)]
pub struct CounterValue {
    /// The value.
    #[prost(double, optional, tag = "1")]
    pub value: Option<f64>,
    /// When counting started.
    #[prost(message, optional, tag = "3")]
    pub created: Option<Timestamp>,
}

/// `MetricHistogram`
#[derive(Clone, PartialEq, Message)]
pub struct HistogramValue {
    /// The number of values.
    #[prost(uint64, optional, tag = "1")]
    pub sample_count: Option<u64>,
    /// Their sum.
    #[prost(double, optional, tag = "2")]
    pub sample_sum: Option<f64>,
    /// The classic buckets, without infinity.
    #[prost(message, repeated, tag = "3")]
    pub bucket: Vec<Bucket>,
    /// 2^schema native buckets to a power of two.
    #[prost(sint32, optional, tag = "5")]
    pub schema: Option<i32>,
    /// The greatest value that counts as zero.
    #[prost(double, optional, tag = "6")]
    pub zero_threshold: Option<f64>,
    /// The zeros.
    #[prost(uint64, optional, tag = "7")]
    pub zero_count: Option<u64>,
    /// The spans of native buckets.
    #[prost(message, repeated, tag = "12")]
    pub positive_span: Vec<BucketSpan>,
    /// The counts of the native buckets as differences to the previous one.
    #[prost(sint64, repeated, packed = "false", tag = "13")]
    pub positive_delta: Vec<i64>,
    /// When counting started.
    #[prost(message, optional, tag = "15")]
    pub created: Option<Timestamp>,
}

/// `Bucket`
#[derive(Clone, PartialEq, Message)]
pub struct Bucket {
    /// The number of values that do not exceed the limit.
    #[prost(uint64, optional, tag = "1")]
    pub cumulative_count: Option<u64>,
    /// The limit.
    #[prost(double, optional, tag = "2")]
    pub upper_bound: Option<f64>,
}

/// `BucketSpan`
#[derive(Clone, PartialEq, Message)]
pub struct BucketSpan {
    /// Empty buckets before it; for the first span, its first index.
    #[prost(sint32, optional, tag = "1")]
    pub offset: Option<i32>,
    /// Buckets.
    #[prost(uint32, optional, tag = "2")]
    pub length: Option<u32>,
}

/// `google.protobuf.Timestamp`
#[derive(Clone, PartialEq, Message)]
pub struct Timestamp {
    /// Seconds since the Unix epoch.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// The families, each after its length as a varint.
pub fn encode(families: &[Family]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for family in families {
        let message = message(family);
        message
            .encode_length_delimited(&mut bytes)
            .expect("a Vec grows");
    }
    bytes
}

fn message(family: &Family) -> MetricFamily {
    MetricFamily {
        name: Some(family.full_name()),
        help: Some(family.help.to_owned()),
        kind: Some(match family.kind {
            MetricKind::Counter => 0,
            MetricKind::Gauge => 1,
            MetricKind::Histogram => 4,
        }),
        metric: family
            .series
            .iter()
            .map(|s| metric(family.kind, s))
            .collect(),
        unit: (!family.unit.is_empty()).then(|| family.unit.to_owned()),
    }
}

fn metric(kind: MetricKind, series: &Series) -> Metric {
    let label = |(name, value): &(&str, String)| LabelPair {
        name: Some((*name).to_owned()),
        value: Some(value.clone()),
    };
    let mut metric = Metric {
        label: series.labels.iter().map(label).collect(),
        ..Metric::default()
    };
    let created = series.created_ns.map(|ns| Timestamp {
        seconds: ns.div_euclid(1_000_000_000),
        nanos: ns.rem_euclid(1_000_000_000) as i32,
    });
    match &series.sample {
        MetricSample::Number(value) if kind == MetricKind::Counter => {
            metric.counter = Some(CounterValue {
                value: Some(*value),
                created,
            });
        }
        MetricSample::Number(value) => {
            metric.gauge = Some(GaugeValue {
                value: Some(*value),
            });
        }
        MetricSample::Histogram(h) => metric.histogram = Some(histogram(h, created)),
    }
    metric
}

fn histogram(histogram: &MetricHistogram, created: Option<Timestamp>) -> HistogramValue {
    let bucket = |(limit, count): &(f64, u64)| Bucket {
        cumulative_count: Some(*count),
        upper_bound: Some(*limit),
    };
    let (positive_span, positive_delta) = spans(&histogram.native);
    HistogramValue {
        sample_count: Some(histogram.count),
        sample_sum: Some(histogram.sum),
        bucket: histogram.classic.iter().map(bucket).collect(),
        schema: Some(SCHEMA),
        zero_threshold: Some(ZERO_LIMIT),
        zero_count: Some(histogram.zeros),
        positive_span,
        positive_delta,
        created,
    }
}

/// Runs of neighbouring buckets, and the differences of all counts from one to the next.
fn spans(buckets: &[(i32, u64)]) -> (Vec<BucketSpan>, Vec<i64>) {
    let (mut spans, mut deltas): (Vec<BucketSpan>, Vec<i64>) = (Vec::new(), Vec::new());
    // The index of the next bucket of the run, and the previous count.
    let (mut next, mut before) = (0, 0);
    for (index, count) in buckets {
        match spans.last_mut() {
            Some(span) if *index == next => span.length = span.length.map(|n| n + 1),
            _ => spans.push(BucketSpan {
                offset: Some(index - next),
                length: Some(1),
            }),
        }
        deltas.push((*count as i64).wrapping_sub(before));
        (next, before) = (index + 1, *count as i64);
    }
    (spans, deltas)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_grouped_in_spans() {
        let (spans, deltas) = spans(&[(-3, 5), (-2, 2), (4, 7)]);
        let runs: Vec<(i32, u32)> = spans.iter().map(|s| (s.offset(), s.length())).collect();
        assert_eq!(runs, [(-3, 2), (5, 1)]);
        assert_eq!(deltas, [5, -3, 5]);
    }

    #[test]
    fn families_are_length_delimited() {
        let family = |name: &str, kind, value| Family {
            name: name.to_owned(),
            help: "h",
            unit: "",
            kind,
            series: vec![Series {
                labels: vec![("vm", "web".to_owned())],
                sample: MetricSample::Number(value),
                created_ns: Some(-1),
            }],
        };
        let families = [
            family("a", MetricKind::Counter, 1.5),
            family("b", MetricKind::Gauge, -2.0),
        ];
        let bytes = encode(&families);
        let mut rest = &bytes[..];
        let first = MetricFamily::decode_length_delimited(&mut rest).unwrap();
        let second = MetricFamily::decode_length_delimited(&mut rest).unwrap();
        assert!(rest.is_empty());
        assert_eq!((first.name(), second.name()), ("a_total", "b"));
        let counter = first.metric[0].counter.as_ref().unwrap();
        assert_eq!(counter.value(), 1.5);
        let created = counter.created.as_ref().unwrap();
        assert_eq!((created.seconds, created.nanos), (-1, 999_999_999));
        assert_eq!(second.metric[0].gauge.as_ref().unwrap().value(), -2.0);
    }
}
