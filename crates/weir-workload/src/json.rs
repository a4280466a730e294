//! Histograms as JSON, from which the same histograms can be read back.
//!
//! By metric and class: count, sum, least, greatest, mean and quantiles in the metric's own unit
//! (bytes, sectors, ns, requests). `bins` are vscsiStats', as `[limit, count]`, the last with limit
//! null; `log` are the non-empty bins of equal relative width, as `[least, greatest, count]` by
//! magnitude.

use serde_json::{Map, Value, json};
use weir_sketch::LogBins;

use crate::{Class, Distribution, Histograms, Metric, MetricUnit};

/// The reported quantiles.
pub const QUANTILES: [(&str, f64); 4] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];

/// The distributions of `metrics`, by metric and class.
pub fn of_histograms(histograms: &Histograms, metrics: &[Metric]) -> Value {
    let of = |metric: &Metric| {
        let classes = Class::ALL.into_iter().filter(|class| {
            let filled = histograms.of(*metric, *class).count > 0;
            metric.is_of(*class) && (filled || *class == Class::All)
        });
        let distribution = |class| {
            let of = histograms.of(*metric, class);
            (class_name(class).to_owned(), of_distribution(of))
        };
        let mut of: Map<String, Value> = classes.map(distribution).collect();
        of.insert("unit".into(), json!(unit_name(metric.measure())));
        (metric.name().to_owned(), Value::Object(of))
    };
    Value::Object(metrics.iter().map(of).collect())
}

fn of_distribution(of: &Distribution) -> Value {
    let limits = of.metric.limits().iter().map(|limit| json!(limit));
    let limits = limits.chain([Value::Null]);
    let bins: Vec<Value> = limits.zip(&of.bins).map(|(l, n)| json!([l, n])).collect();
    let log = of.log.bins().map(|(bin, n)| {
        let (least, greatest) = LogBins::span(bin);
        json!([least, greatest, n])
    });
    let filled = |value: i64| (of.count > 0).then_some(value);
    let mut object = Map::new();
    object.insert("count".into(), json!(of.count));
    object.insert("sum".into(), integer(of.sum));
    object.insert("min".into(), json!(filled(of.min)));
    object.insert("max".into(), json!(filled(of.max)));
    object.insert("mean".into(), json!(of.mean()));
    for (name, q) in QUANTILES {
        object.insert(name.into(), json!(of.quantile(q)));
    }
    object.insert("bins".into(), Value::Array(bins));
    object.insert("log".into(), log.collect());
    Value::Object(object)
}

/// Reads the output of [`of_histograms`]; `None` for anything else.
pub fn to_histograms(value: &Value) -> Option<Histograms> {
    let mut histograms = Histograms::default();
    for (name, classes) in value.as_object()? {
        let metric = Metric::ALL.into_iter().find(|m| m.name() == name)?;
        for class in Class::ALL {
            let Some(of) = classes.get(class_name(class)) else {
                continue;
            };
            *histograms.of_mut(metric, class) = to_distribution(metric, of)?;
        }
    }
    Some(histograms)
}

fn to_distribution(metric: Metric, json: &Value) -> Option<Distribution> {
    let mut of = Distribution::new(metric);
    of.count = json["count"].as_u64()?;
    if of.count == 0 {
        return Some(of);
    }
    of.sum = match &json["sum"] {
        Value::String(text) => text.parse().ok()?,
        sum => sum.as_i64()?.into(),
    };
    of.min = json["min"].as_i64()?;
    of.max = json["max"].as_i64()?;
    let bins = json["bins"].as_array()?;
    let limits = metric.limits().iter().map(|limit| json!(limit));
    let limits = limits.chain([Value::Null]);
    if bins.len() != of.bins.len() || bins.iter().zip(limits).any(|(b, l)| b[0] != l) {
        return None;
    }
    for (bin, entry) in of.bins.iter_mut().zip(bins) {
        *bin = entry[1].as_u64()?;
    }
    for bin in json["log"].as_array()? {
        of.log.add(bin[0].as_i64()?, bin[2].as_u64()?);
    }
    let total = |counts: Vec<u64>| counts.into_iter().try_fold(0u64, u64::checked_add);
    let totals = [
        total(of.bins.clone()),
        total(of.log.bins().map(|(_, n)| n).collect()),
    ];
    (totals == [Some(of.count); 2]).then_some(of)
}

/// A number if JSON readers preserve it, else its digits as text.
fn integer(value: i128) -> Value {
    match i64::try_from(value) {
        Ok(value) => json!(value),
        Err(_) => json!(value.to_string()),
    }
}

/// `all`, or the operation's letter.
pub fn class_name(class: Class) -> &'static str {
    match class {
        Class::All => "all",
        Class::Of(op) => op.as_str(),
    }
}

/// The unit of a metric's values.
pub fn unit_name(measure: MetricUnit) -> &'static str {
    match measure {
        MetricUnit::Bytes => "bytes",
        MetricUnit::Sectors => "sectors",
        MetricUnit::Nanoseconds => "ns",
        MetricUnit::Requests => "requests",
    }
}
