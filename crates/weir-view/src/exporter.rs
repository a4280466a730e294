//! [`Exporter`]: the totals of all disks as metrics, by Prometheus' conventions (base units, names
//! after prometheus.io/docs/practices/naming).

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use weir_model::{Nanos, SECTOR_BYTES, Symbol};
use weir_sink::SinkError;
use weir_sink::metrics::exposition::EXPOSITIONS;
use weir_sink::metrics::serve::HealthCheck;
use weir_sink::metrics::{Buckets, Exposition, Family, MetricKind, MetricSample, Series};
use weir_tap::EventCount;

use crate::disk_totals::{DiskKey, DiskTotals, LedgerReader, OP_NAMES, OpTotals, Totals};
use weir_runtime::service::process_families;

/// The state for scrapes.
pub struct Exporter {
    totals: Arc<Mutex<Totals>>,
    counts: Arc<Mutex<Vec<EventCount>>>,
    buckets: Buckets,
    disks_max: usize,
    host: String,
    /// The instant up to which the totals are complete, ns since the epoch; 0 before the first
    /// update.
    whole_at: AtomicI64,
    scrapes: [AtomicU64; EXPOSITIONS.len()],
    /// The maximum of each of the taps' counts: the count of unseen requests can decrease, but a
    /// counter must not.
    highest: Mutex<HashMap<TapCount, i64>>,
    began: Nanos,
}

/// A tap's count: its name, the cause and the device.
type TapCount = (&'static str, &'static str, &'static str);

/// Updates the totals.
pub struct Keeper {
    exporter: Arc<Exporter>,
    forget_ns: Nanos,
}

/// A counter of each disk and op: its name, unit, description and function.
struct OpCounter {
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    value: fn(&OpTotals) -> f64,
}

static OP_COUNTERS: &[OpCounter] = &[
    OpCounter {
        name: "weir_io_operations",
        unit: "",
        help: "Completed requests.",
        value: |op| op.ios as f64,
    },
    OpCounter {
        name: "weir_io_bytes",
        unit: "bytes",
        help: "Bytes read, written, discarded or zeroed by completed requests.",
        value: |op| (op.sectors * SECTOR_BYTES) as f64,
    },
    OpCounter {
        name: "weir_io_merges",
        unit: "",
        help: "Bios merged into existing requests.",
        value: |op| op.merges as f64,
    },
    OpCounter {
        name: "weir_io_errors",
        unit: "",
        help: "Completed requests that failed.",
        value: |op| op.errors as f64,
    },
    OpCounter {
        name: "weir_io_wait_seconds",
        unit: "seconds",
        help: "Total time from insert to issue of completed requests.",
        value: |op| seconds(op.wait_ns),
    },
    OpCounter {
        name: "weir_io_service_seconds",
        unit: "seconds",
        help: "Total time from issue to completion of completed requests.",
        value: |op| seconds(op.service_ns),
    },
];

impl Exporter {
    /// Metrics of `totals`, which are updated elsewhere.
    pub fn new(totals: Arc<Mutex<Totals>>, buckets: Buckets, disks_max: usize) -> Exporter {
        Exporter {
            totals,
            counts: Arc::default(),
            buckets,
            disks_max,
            host: crate::iostat::output::host(0).nodename,
            whole_at: AtomicI64::new(0),
            scrapes: Default::default(),
            highest: Mutex::default(),
            began: weir_runtime::run_loop::wall_clock(),
        }
    }

    /// The destination of the taps' own counts.
    pub fn counts(&self) -> Arc<Mutex<Vec<EventCount>>> {
        self.counts.clone()
    }

    /// All metrics, for a scrape in `format`.
    pub fn families(&self, format: Exposition) -> Vec<Family> {
        let at = EXPOSITIONS.iter().position(|e| *e == format);
        self.scrapes[at.expect("a format of the list")].fetch_add(1, Ordering::Relaxed);
        let mut families = {
            let totals = self.totals.lock().expect("no panic while held");
            let mut families = self.disks(&totals.disks());
            families.extend(self.own(&totals));
            families
        };
        let counts = self.counts.lock().expect("no panic while held");
        families.extend(self.taps(&counts));
        drop(counts);
        families.extend(process_families(self.began));
        families.retain(|family| !family.series.is_empty());
        families
    }

    /// The result of a health check: the exporter is ready when its totals have been updated.
    ///
    /// # Errors
    /// The reason why it is not ready.
    pub fn check(&self, check: HealthCheck) -> Result<String, String> {
        match (check, self.whole_at.load(Ordering::Relaxed)) {
            (HealthCheck::Ready, 0) => Err("nothing is counted yet".to_owned()),
            _ => Ok("ok".to_owned()),
        }
    }

    fn disks(&self, disks: &[(DiskKey, &DiskTotals)]) -> Vec<Family> {
        let of_ops = |sample: &dyn Fn(&OpTotals) -> MetricSample| -> Vec<Series> {
            let mut series = Vec::new();
            for (key, disk) in disks {
                for ((_, op), totals) in OP_NAMES.iter().zip(&disk.ops) {
                    if totals.ios > 0 {
                        let mut labels = self.labels(key);
                        labels.push(("op", (*op).to_owned()));
                        series.push(Series {
                            labels,
                            sample: sample(totals),
                            created_ns: Some(disk.since),
                        });
                    }
                }
            }
            series
        };
        let counter = |c: &OpCounter| Family {
            name: c.name.to_owned(),
            help: c.help,
            unit: c.unit,
            kind: MetricKind::Counter,
            series: of_ops(&|totals| MetricSample::Number((c.value)(totals))),
        };
        let mut families: Vec<Family> = OP_COUNTERS.iter().map(counter).collect();
        families.push(Family {
            name: "weir_io_latency_seconds".into(),
            help: "Time from insert to completion of a request; from issue if the insert is \
                   unknown.",
            unit: "seconds",
            kind: MetricKind::Histogram,
            series: of_ops(&|totals| {
                MetricSample::Histogram(self.buckets.histogram(&totals.buckets, totals.time_ns))
            }),
        });
        let busy = |(key, disk): &(DiskKey, &DiskTotals)| Series {
            labels: self.labels(key),
            sample: MetricSample::Number(seconds(disk.busy.total_ns())),
            created_ns: Some(disk.since),
        };
        families.push(Family {
            name: "weir_io_busy_seconds".into(),
            help: "Time during which the disk had at least one of the completed requests in \
                   flight.",
            unit: "seconds",
            kind: MetricKind::Counter,
            series: disks.iter().map(busy).collect(),
        });
        families
    }

    /// The exporter's metrics about itself.
    fn own(&self, totals: &Totals) -> Vec<Family> {
        let whole_at = self.whole_at.load(Ordering::Relaxed);
        let mut families = vec![
            Family::gauge(
                "weir_exporter_disks",
                "",
                "Disks with their own series.",
                totals.disks().len() as f64,
            ),
            Family::gauge(
                "weir_exporter_disks_limit",
                "",
                "Maximum number of disks with their own series; others are counted under \
                 vm=\"(other)\".",
                self.disks_max as f64,
            ),
            Family {
                kind: MetricKind::Counter,
                ..Family::gauge(
                    "weir_exporter_folded_operations",
                    "",
                    "Completed requests counted under vm=\"(other)\".",
                    totals.folded() as f64,
                )
            },
            Family::gauge(
                "weir_exporter_counted_until_timestamp_seconds",
                "seconds",
                "The counters include all requests completed until this time.",
                seconds(whole_at),
            ),
        ];
        let scrapes = EXPOSITIONS.iter().zip(&self.scrapes);
        let scrapes = scrapes.map(|(format, scrapes)| Series {
            labels: vec![("format", format.name().to_owned())],
            sample: MetricSample::Number(scrapes.load(Ordering::Relaxed) as f64),
            created_ns: Some(self.began),
        });
        families.push(Family {
            name: "weir_exporter_scrapes".into(),
            help: "Number of scrapes, including this one.",
            unit: "",
            kind: MetricKind::Counter,
            series: scrapes.collect(),
        });
        let mut build = Family::gauge("weir_build_info", "", "Version of weir.", 1.0);
        build.series[0].labels = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        families.push(build);
        families
    }

    /// The counts of the taps, losses included: a family for each counter.
    fn taps(&self, counts: &[EventCount]) -> Vec<Family> {
        let mut sums: BTreeMap<TapCount, i64> = BTreeMap::new();
        for count in counts {
            let device = count.device.map_or("", Symbol::as_str);
            let key = (count.counter, count.cause.unwrap_or(""), device);
            *sums.entry(key).or_default() += count.total;
        }
        // A loss that has not occurred is exported as zero, so that alerts have a series.
        if !sums.keys().any(|(counter, ..)| *counter == "events_lost") {
            sums.insert(("events_lost", "", ""), 0);
        }
        let mut highest = self.highest.lock().expect("no panic while held");
        let mut families: BTreeMap<&str, BTreeMap<[&str; 2], i64>> = BTreeMap::new();
        for (key, total) in sums {
            let total = total.max(highest.get(&key).copied().unwrap_or(0));
            highest.insert(key, total);
            let (counter, cause, device) = key;
            families
                .entry(counter)
                .or_default()
                .insert([cause, device], total);
        }
        let family = |(counter, series): (&str, BTreeMap<[&str; 2], i64>)| Family {
            name: format!("weir_tap_{counter}"),
            help: help(counter),
            unit: "",
            kind: MetricKind::Counter,
            series: series
                .into_iter()
                .map(|([cause, device], total)| Series {
                    labels: vec![("cause", cause.to_owned()), ("pdisk", device.to_owned())],
                    sample: MetricSample::Number(total as f64),
                    created_ns: Some(self.began),
                })
                .collect(),
        };
        families.into_iter().map(family).collect()
    }

    fn labels(&self, key: &DiskKey) -> Vec<(&'static str, String)> {
        let text = |symbol: Option<Symbol>| symbol.map_or(String::new(), |s| s.to_string());
        vec![
            ("host", self.host.clone()),
            ("vm", text(key.vm)),
            ("vdisk", text(key.vdisk)),
            ("pdisk", text(key.device)),
        ]
    }
}

/// The help text of a tap's counter.
fn help(counter: &str) -> &'static str {
    match counter {
        "events_in" => "Events that the taps received.",
        "events_lost" => "Lost events, by cause; weir_io_* does not include them.",
        "events_late" => "Events received late; they are counted at the next instant.",
        "seen" => "Completed requests with a completion event.",
        "unseen" => {
            "Completed requests without a completion event, by cause; weir_io_* does not include \
             them."
        }
        "sectors_seen" => {
            "Sectors read and written on devices without requests, with a completion event."
        }
        "sectors_unseen" => {
            "Sectors that only the kernel counted on devices without requests, at least; \
             weir_io_* does not include them."
        }
        "requests_untracked" => {
            "Requests without a start or completion event, by cause; their times are unknown."
        }
        "requests_unordered" => {
            "Requests whose in_flight, seek and interarrival are unknown, because their disk was too busy."
        }
        "requests_expired" => {
            "Requests removed from the table of requests in flight after 5 minutes."
        }
        "requeues" => "Requests requeued by a driver.",
        "flush_commands" => "Flushes issued by the kernel itself; weir_io_* does not include them.",
        "other_commands" => "Passthrough and zone commands; weir_io_* does not include them.",
        "bad_records" => "Records of a file that could not be read.",
        _ => "Counted by the taps.",
    }
}

fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

impl Keeper {
    /// Removes disks without I/O for `forget_ns`.
    pub fn new(exporter: Arc<Exporter>, forget_ns: Nanos) -> Keeper {
        Keeper {
            exporter,
            forget_ns,
        }
    }
}

impl LedgerReader for Keeper {
    fn whole(&mut self, totals: &mut Totals, at: Nanos) -> Result<(), SinkError> {
        totals.forget(at.saturating_sub(self.forget_ns));
        self.exporter.whole_at.store(at, Ordering::Relaxed);
        Ok(())
    }

    fn finish(&mut self, _: &mut Totals, at: Option<Nanos>) -> Result<(), SinkError> {
        if let Some(at) = at {
            self.exporter.whole_at.store(at, Ordering::Relaxed);
        }
        Ok(())
    }
}
