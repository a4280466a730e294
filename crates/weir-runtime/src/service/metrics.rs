//! The counters of stream `weir` as metrics: one family for each counter, with the labels
//! `component`, `cause` and `device`.

use std::collections::BTreeMap;

use weir_model::{NANOS_PER_SECOND, Nanos};
use weir_sink::metrics::{Family, MetricKind, MetricSample, Series};

use crate::run_loop::{CounterReading, process_usage};

/// How a counter of stream `weir` is a metric.
struct Metric {
    counter: &'static str,
    name: &'static str,
    kind: MetricKind,
    unit: &'static str,
    help: &'static str,
}

const fn counter(counter: &'static str, name: &'static str, help: &'static str) -> Metric {
    Metric {
        counter,
        name,
        kind: MetricKind::Counter,
        unit: "",
        help,
    }
}

const fn gauge(
    counter: &'static str,
    name: &'static str,
    unit: &'static str,
    help: &'static str,
) -> Metric {
    Metric {
        counter,
        name,
        kind: MetricKind::Gauge,
        unit,
        help,
    }
}

/// The counters whose names or units differ from the default: a counter `weir_service_NAME`.
static METRICS: &[Metric] = &[
    counter(
        "events_in",
        "weir_service_events_in",
        "Events, rows or messages that the component received.",
    ),
    counter(
        "events_out",
        "weir_service_events_out",
        "Rows that the component emitted.",
    ),
    counter(
        "events_lost",
        "weir_service_events_lost",
        "Events that were lost, by cause. They are missing in results.",
    ),
    counter(
        "unseen",
        "weir_service_unseen",
        "Requests that the kernel completed and that no probe reported.",
    ),
    gauge(
        "events_waiting",
        "weir_service_events_waiting",
        "",
        "Rows that wait for the watermark.",
    ),
    gauge(
        "bytes",
        "weir_service_held_bytes",
        "bytes",
        "Memory of the state of a query.",
    ),
    gauge(
        "agents",
        "weir_service_agents",
        "",
        "Agents that the monitor has state of.",
    ),
    gauge(
        "agents_bytes",
        "weir_service_agents_bytes",
        "bytes",
        "Memory of the monitor's state of its agents.",
    ),
    gauge(
        "waiting_bytes",
        "weir_service_waiting_bytes",
        "bytes",
        "Rows in memory that wait for slower agents.",
    ),
];

/// The help text of a counter that has none of its own.
const HELP: &str = "A counter of stream weir.";

/// The families of the totals of counters.
pub fn families_of(readings: &[CounterReading], began: Nanos) -> Vec<Family> {
    let mut families: BTreeMap<&'static str, Family> = BTreeMap::new();
    for CounterReading { counter, total } in readings {
        // Both are metrics of the process, under their usual names.
        if counter.place == "process" {
            continue;
        }
        let metric = METRICS.iter().find(|metric| metric.counter == counter.name);
        let family = families.entry(counter.name).or_insert_with(|| Family {
            name: metric.map_or_else(
                || format!("weir_service_{}", counter.name),
                |metric| metric.name.to_owned(),
            ),
            help: metric.map_or(HELP, |metric| metric.help),
            unit: metric.map_or("", |metric| metric.unit),
            kind: metric.map_or(MetricKind::Counter, |metric| metric.kind),
            series: Vec::new(),
        });
        let mut labels = vec![("component", counter.place.clone())];
        labels.extend(counter.cause.map(|cause| ("cause", cause.to_owned())));
        labels.extend(counter.device.map(|d| ("device", d.as_str().to_string())));
        family.series.push(Series {
            labels,
            sample: MetricSample::Number(*total as f64),
            created_ns: (family.kind == MetricKind::Counter).then_some(began),
        });
    }
    families.into_values().collect()
}

/// The families of the service itself: its version and readiness, and of its process.
pub fn own_families(service: &'static str, began: Nanos, is_ready: bool) -> Vec<Family> {
    let mut info = Family::gauge(
        "weir_service_info",
        "",
        "The service and its version; always 1.",
        1.0,
    );
    info.series[0].labels = vec![
        ("service", service.to_owned()),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    let ready = Family::gauge(
        "weir_service_ready",
        "",
        "1 if the service can serve its purpose now, as /readyz reports.",
        f64::from(u8::from(is_ready)),
    );
    let mut families = vec![info, ready];
    families.extend(process_families(began));
    families
}

/// The metrics of this process, with the conventional names; it began at `began`.
pub fn process_families(began: Nanos) -> Vec<Family> {
    let seconds = |ns: i64| ns as f64 / NANOS_PER_SECOND as f64;
    let (memory_bytes, cpu_ns) = process_usage("self");
    let start = Family::gauge(
        "process_start_time_seconds",
        "seconds",
        "Start of the process, in seconds since the Unix epoch.",
        seconds(began),
    );
    let memory = memory_bytes.map(|bytes| {
        let help = "Resident memory of weir.";
        Family::gauge("process_resident_memory_bytes", "bytes", help, bytes as f64)
    });
    let time = cpu_ns.map(|ns| Family {
        kind: MetricKind::Counter,
        ..Family::gauge(
            "process_cpu_seconds",
            "seconds",
            "Processor time of weir.",
            seconds(ns),
        )
    });
    [Some(start), memory, time].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_one_family_with_a_series_for_each_component_and_cause() {
        let lost = |place: &str, cause, total| {
            CounterReading::new(place, "events_lost", total).because(cause)
        };
        let readings = [
            lost("tap", "ring_full", 3),
            CounterReading::new("query load", "bytes", 512),
            lost("engine IO", "late", 4),
            CounterReading::new("agent", "handovers", 1),
            CounterReading::new("process", "memory_bytes", 9),
        ];
        let families = families_of(&readings, 7);
        let named = |name: &str| families.iter().find(|f| f.full_name() == name).unwrap();
        let lost = named("weir_service_events_lost_total");
        let labels: Vec<_> = lost.series.iter().map(|s| s.labels.clone()).collect();
        let pair = |place: &str, cause: &str| {
            vec![("component", place.to_owned()), ("cause", cause.to_owned())]
        };
        assert_eq!(
            labels,
            [pair("tap", "ring_full"), pair("engine IO", "late")]
        );
        assert_eq!(lost.series[1].sample, MetricSample::Number(4.0));
        assert_eq!(named("weir_service_held_bytes").kind, MetricKind::Gauge);
        assert_eq!(named("weir_service_handovers_total").series.len(), 1);
        assert_eq!(families.len(), 3);
    }
}
