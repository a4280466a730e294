//! [`observe`]: what a disk does without any change, and which settings can matter for it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use weir_runtime::failure::Failure;
use weir_runtime::run_loop::Stop;

use crate::measure::{self, MeasuredDisk, Measurement, SliceLog, SliceTotals};
use crate::metric::of_subject;
use crate::queue::{NR_REQUESTS, QueueState, READ_AHEAD, SCHEDULER, WBT};

/// A disk with fewer requests per second is idle: settings cannot be compared.
pub const IOPS_MIN: f64 = 10.0;

/// The share of writes from which they can delay reads, and the other way round.
const MIXED_SHARE: f64 = 0.05;

/// The share of sequential reads from which read-ahead can matter.
const SEQUENTIAL_SHARE: f64 = 0.2;

/// The number of requests in flight at an issue from which their order can matter.
const DEPTH_MIN: f64 = 1.05;

/// The largest time by which the characterisation may end after the measurement.
const CHARACTERISED_WITHIN: Duration = Duration::from_secs(30);

/// What was observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Observation {
    /// The time of observation.
    pub seconds: f64,
    /// Reads and writes that finished.
    pub requests: u64,
    /// The VMs with requests.
    pub vms: Vec<String>,
    /// The 99th percentile of the latency.
    pub p99_ns: Option<f64>,
    /// The mean number of requests in flight when one was issued, itself included, of the VM or
    /// process with the most.
    pub at_issue_mean: Option<f64>,
    /// The largest number in flight, summed over VMs.
    pub at_issue_max: u64,
    /// The share of reads.
    pub read_share: Option<f64>,
    /// The share of reads that continue a run.
    pub sequential_share: Option<f64>,
}

/// Whether a setting can matter for what was observed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Relevance {
    /// The setting.
    pub setting: &'static str,
    /// Whether it can matter.
    pub can_matter: bool,
    /// Why.
    pub reason: String,
}

/// The time by which the first request may be reported after the end of the observation: on a busy
/// host the probes are attached late.
const FIRST_WITHIN: Duration = Duration::from_secs(5);

/// Observes a disk for `span`, or until a signal; the measurement has ended then.
///
/// # Errors
/// When the disk cannot be observed.
pub fn observe(
    disk: &MeasuredDisk,
    span: Duration,
    stop: &Stop,
) -> Result<(Measurement, Observation), Failure> {
    // From 1 us to 16 s: where the latencies are is not known yet.
    let limits = measure::limits(1e3, 16e9);
    let mut command = measure::weir("characterise", disk, span);
    let failed = |error| Failure::world(format_args!("{}: {error}", measure::PROGRAM));
    let characterise = command.arg("--json").spawn().map_err(failed)?;
    let report = std::thread::spawn(move || characterise.wait_with_output());
    // The processes that observe end after `span` from their own start.
    let within = span + CHARACTERISED_WITHIN;
    let mut measurement = Measurement::start(disk, limits, within)?;
    let started = Instant::now();
    // The probes are attached some time after the start.
    let mut first: Option<Instant> = None;
    loop {
        let is_observed = match first {
            Some(first) => first.elapsed() >= span,
            None => started.elapsed() >= span + FIRST_WITHIN,
        };
        let is_complete = report.is_finished() && is_observed;
        if is_complete || started.elapsed() >= within || stop.signal().is_some() {
            break;
        }
        measurement.receive(Duration::from_millis(50))?;
        if first.is_none() && !measurement.log.slices.is_empty() {
            first = Some(Instant::now());
        }
    }
    let report = match stop.signal() {
        Some(_) => Value::Null,
        None => {
            let output = report.join().expect("it does not panic").map_err(failed)?;
            if !output.status.success() {
                return Err(measure::ended(&String::from_utf8_lossy(&output.stderr)));
            }
            serde_json::from_slice(&output.stdout).map_err(std::io::Error::from)?
        }
    };
    let seconds = first.map_or(span, |first| first.elapsed()).as_secs_f64();
    let all = measurement.log.between(0, i64::MAX);
    let mut observation = from_report(&report, &disk.device);
    let total = of_subject(&all, None);
    observation.seconds = seconds;
    observation.requests = total.requests;
    observation.p99_ns = total.quantile_ns(0.99, &measurement.log.limits);
    observation.vms = all.into_keys().flatten().collect();
    Ok((measurement, observation))
}

/// The figures of `weir characterise --json` for a device.
fn from_report(report: &Value, device: &str) -> Observation {
    let profiles = report["profiles"].as_array().into_iter().flatten();
    let of_device = |profile: &&Value| profile["subject"]["pdisk"] == device;
    let profiles: Vec<&Value> = profiles.filter(of_device).collect();
    let number = |value: &Value| value.as_f64();
    let sum = |path: [&str; 2]| -> f64 {
        let values = profiles.iter();
        let values = values.filter_map(|profile| number(&profile[path[0]][path[1]]));
        values.sum()
    };
    let means = profiles.iter();
    let means = means.filter_map(|profile| number(&profile["parallelism"]["at_issue_mean"]));
    let (reads, writes) = (sum(["mix", "reads"]), sum(["mix", "writes"]));
    let sequential = profiles.iter().filter_map(|profile| {
        let reads = &profile["order"]["reads"];
        Some(number(&reads["sequential_share"])? * number(&reads["requests"])?)
    });
    let sequential: f64 = sequential.sum();
    Observation {
        at_issue_mean: means.reduce(f64::max),
        at_issue_max: sum(["parallelism", "at_issue_max"]) as u64,
        read_share: (reads + writes > 0.0).then(|| reads / (reads + writes)),
        sequential_share: (reads > 0.0).then(|| sequential / reads),
        ..Observation::default()
    }
}

impl Observation {
    /// Whether there are too few requests to compare settings.
    pub fn is_idle(&self) -> bool {
        (self.requests as f64) < IOPS_MIN * self.seconds
    }

    /// Which settings can matter. It is derived from the present settings, so a setting that
    /// matters only together with another one is not found.
    pub fn relevance(&self, present: &QueueState) -> Vec<Relevance> {
        let mean = self.at_issue_mean.unwrap_or_default();
        let (deep, most) = (
            mean >= DEPTH_MIN && self.at_issue_max > 1,
            self.at_issue_max,
        );
        let mut found = vec![Relevance {
            setting: SCHEDULER,
            can_matter: deep,
            reason: match deep {
                true => format!("{mean:.1} requests in flight when one is issued, on average"),
                false => "requests come one by one: there is no order to choose".to_owned(),
            },
        }];
        let number = |setting: &str| present.get(setting)?.parse::<u64>().ok();
        if let Some(now) = number(NR_REQUESTS) {
            found.push(Relevance {
                setting: NR_REQUESTS,
                can_matter: 2 * most >= now,
                reason: format!("at most {most} requests in flight, of {now}"),
            });
        }
        let reads = self.read_share.unwrap_or_default();
        let mixed = (MIXED_SHARE..=1.0 - MIXED_SHARE).contains(&reads);
        if number(WBT).is_some() {
            let percent = 100.0 * reads;
            found.push(Relevance {
                setting: WBT,
                can_matter: mixed && deep,
                reason: match mixed {
                    true => format!("{percent:.0} % reads; it delays buffered writes only"),
                    false => format!("{percent:.0} % reads: reads and writes do not compete"),
                },
            });
        }
        if number(READ_AHEAD).is_some() {
            let share = self.sequential_share.unwrap_or_default();
            found.push(Relevance {
                setting: READ_AHEAD,
                can_matter: share >= SEQUENTIAL_SHARE,
                reason: format!(
                    "{:.0} % of the reads are sequential; it concerns buffered reads only",
                    100.0 * share
                ),
            });
        }
        found
    }
}

/// The limits of histograms for the trial: around the latencies of all subjects.
pub fn trial_limits(log: &SliceLog, vms: &BTreeSet<Option<String>>) -> Vec<u64> {
    let all = log.between(0, i64::MAX);
    let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
    for vm in vms {
        let totals: SliceTotals = of_subject(&all, vm.as_deref());
        let quantile = |share| totals.quantile_ns(share, &log.limits);
        if let Some((median, p99)) = quantile(0.5).zip(quantile(0.99)) {
            (low, high) = (low.min(median / 8.0), high.max(p99 * 64.0));
        }
    }
    match low.is_finite() {
        true => measure::limits(low.max(500.0), high.max(1e6)),
        false => log.limits.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relevant(observation: &Observation) -> Vec<&'static str> {
        let present = [
            ("nr_requests", "64"),
            ("wbt_lat_usec", "2000"),
            ("read_ahead_kb", "128"),
        ];
        let present = present.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let found = observation.relevance(&QueueState::from(present));
        assert_eq!(found.len(), 4);
        let found = found.into_iter().filter(|relevance| relevance.can_matter);
        found.map(|relevance| relevance.setting).collect()
    }

    #[test]
    fn nothing_can_matter_for_requests_one_by_one() {
        let report = serde_json::json!({"profiles": [{
            "subject": {"pdisk": "/dev/sda"},
            "mix": {"reads": 1000, "writes": 0},
            "order": {"reads": {"requests": 1000, "sequential_share": 0.0}},
            "parallelism": {"at_issue_mean": 1.0, "at_issue_max": 1},
        }]});
        let one = from_report(&report, "/dev/sda");
        assert_eq!((one.at_issue_max, one.read_share), (1, Some(1.0)));
        assert_eq!(relevant(&one), Vec::<&str>::new());
        assert_eq!(from_report(&report, "/dev/sdb"), Observation::default());
    }

    #[test]
    fn settings_matter_by_depth_mix_and_order() {
        let deep = Observation {
            at_issue_mean: Some(8.0),
            at_issue_max: 31,
            read_share: Some(1.0),
            ..Observation::default()
        };
        assert_eq!(relevant(&deep), [SCHEDULER]);
        let mixed = Observation {
            at_issue_max: 32,
            read_share: Some(0.5),
            sequential_share: Some(0.5),
            ..deep
        };
        assert_eq!(relevant(&mixed), [SCHEDULER, NR_REQUESTS, WBT, READ_AHEAD]);
    }

    #[test]
    fn few_requests_are_an_idle_disk() {
        let mut observation = Observation {
            seconds: 5.0,
            requests: 49,
            ..Observation::default()
        };
        assert!(observation.is_idle());
        observation.requests = 50;
        assert!(!observation.is_idle());
    }
}
