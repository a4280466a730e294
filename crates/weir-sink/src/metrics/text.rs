//! Metrics as text: Prometheus' format 0.0.4, and OpenMetrics 1.0. Histograms have classic buckets.
//!
//! Sources: prometheus.io/docs/instrumenting/exposition_formats, and the OpenMetrics specification.

use std::fmt::Write;

use super::{Family, MetricHistogram, MetricKind, MetricSample, Series};

/// Writing to a String cannot fail.
const TAKES_ALL: &str = "a String takes all";

/// The differences of the two formats.
#[derive(Clone, Copy, PartialEq)]
enum Dialect {
    Prometheus,
    OpenMetrics,
}

/// Prometheus' text format 0.0.4.
pub fn prometheus(families: &[Family]) -> String {
    let mut text = String::new();
    for family in families {
        push_family(&mut text, family, Dialect::Prometheus);
    }
    text
}

/// OpenMetrics text 1.0, its end included.
pub fn openmetrics(families: &[Family]) -> String {
    let mut text = String::new();
    for family in families {
        push_family(&mut text, family, Dialect::OpenMetrics);
    }
    text + "# EOF\n"
}

fn push_family(text: &mut String, family: &Family, dialect: Dialect) {
    let kind = match family.kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram => "histogram",
    };
    let full = family.full_name();
    // In OpenMetrics a counter's family is called without `_total`.
    let name = match dialect {
        Dialect::Prometheus => &full,
        Dialect::OpenMetrics => &family.name,
    };
    let mut help = String::new();
    push_escaped(&mut help, family.help, dialect == Dialect::OpenMetrics);
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}").expect(TAKES_ALL);
    if dialect == Dialect::OpenMetrics && !family.unit.is_empty() {
        writeln!(text, "# UNIT {name} {}", family.unit).expect(TAKES_ALL);
    }
    for series in &family.series {
        match &series.sample {
            MetricSample::Number(value) => push_sample(text, &full, series, None, *value),
            MetricSample::Histogram(h) => push_histogram(text, &full, series, h, dialect),
        }
        if let (Dialect::OpenMetrics, Some(at_ns)) = (dialect, series.created_ns)
            && family.kind != MetricKind::Gauge
        {
            let name = format!("{}_created", family.name);
            push_sample(text, &name, series, None, at_ns as f64 / 1e9);
        }
    }
}

fn push_histogram(
    text: &mut String,
    name: &str,
    series: &Series,
    histogram: &MetricHistogram,
    dialect: Dialect,
) {
    let bucket = format!("{name}_bucket");
    for (limit, count) in &histogram.classic {
        let le = match dialect {
            Dialect::Prometheus => limit.to_string(),
            // There a limit must be written as a float.
            Dialect::OpenMetrics => format!("{limit:?}"),
        };
        push_sample(text, &bucket, series, Some(&le), *count as f64);
    }
    let count = histogram.count as f64;
    push_sample(text, &bucket, series, Some("+Inf"), count);
    push_sample(text, &format!("{name}_sum"), series, None, histogram.sum);
    push_sample(text, &format!("{name}_count"), series, None, count);
}

fn push_sample(text: &mut String, name: &str, series: &Series, le: Option<&str>, value: f64) {
    text.push_str(name);
    let labels = series.labels.iter().map(|(n, v)| (*n, v.as_str()));
    let mut separator = '{';
    for (name, value) in labels.chain(le.map(|le| ("le", le))) {
        write!(text, "{separator}{name}=\"").expect(TAKES_ALL);
        push_escaped(text, value, true);
        text.push('"');
        separator = ',';
    }
    if separator == ',' {
        text.push('}');
    }
    writeln!(text, " {value}").expect(TAKES_ALL);
}

fn push_escaped(text: &mut String, value: &str, quotes: bool) {
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if quotes => text.push_str("\\\""),
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families() -> Vec<Family> {
        let series = |sample| Series {
            labels: vec![("vm", "a\"b\\c\nd".to_owned()), ("op", "read".to_owned())],
            sample,
            created_ns: Some(1_500_000_000),
        };
        let family = |name: &str, unit, kind, sample| Family {
            name: name.to_owned(),
            help: "Some \"words\".",
            unit,
            kind,
            series: vec![series(sample)],
        };
        let histogram = MetricHistogram {
            sum: 2.25,
            count: 3,
            classic: vec![(0.5, 1), (1.0, 2)],
            ..MetricHistogram::default()
        };
        vec![
            family(
                "x_bytes",
                "bytes",
                MetricKind::Counter,
                MetricSample::Number(512.0),
            ),
            family(
                "x_seconds",
                "seconds",
                MetricKind::Histogram,
                MetricSample::Histogram(histogram),
            ),
        ]
    }

    #[test]
    fn prometheus_text() {
        let labels = r#"vm="a\"b\\c\nd",op="read""#;
        let expected = format!(
            "# HELP x_bytes_total Some \"words\".\n# TYPE x_bytes_total counter\nx_bytes_total{{{labels}}} 512\n\
             # HELP x_seconds Some \"words\".\n# TYPE x_seconds histogram\n\
             x_seconds_bucket{{{labels},le=\"0.5\"}} 1\nx_seconds_bucket{{{labels},le=\"1\"}} 2\n\
             x_seconds_bucket{{{labels},le=\"+Inf\"}} 3\nx_seconds_sum{{{labels}}} 2.25\nx_seconds_count{{{labels}}} 3\n"
        );
        assert_eq!(prometheus(&families()), expected);
    }

    #[test]
    fn openmetrics_text() {
        let text = openmetrics(&families());
        let has = |line: &str| text.lines().any(|l| l == line);
        let labels = r#"{vm="a\"b\\c\nd",op="read"}"#;
        assert!(
            has("# TYPE x_bytes counter") && has("# UNIT x_bytes bytes"),
            "{text}"
        );
        assert!(has("# HELP x_bytes Some \\\"words\\\"."), "{text}");
        assert!(has(&format!("x_bytes_total{labels} 512")), "{text}");
        assert!(has(&format!("x_bytes_created{labels} 1.5")), "{text}");
        assert!(
            text.contains("le=\"1.0\"") && text.ends_with("# EOF\n"),
            "{text}"
        );
    }
}
