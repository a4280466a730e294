//! [`Objective`]: what is improved, and what must not become worse.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::Serialize;

use crate::measure::SliceTotals;
use crate::statistics::Direction;

/// A measure of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// The latency that 99 % of the requests do not exceed.
    P99,
    /// Finished requests per second.
    Iops,
    /// Bytes per second.
    Throughput,
    /// Jain's index of the throughput of the VMs: 1 if all have the same, 1/n if one has all (Jain,
    /// Chiu and Hawe, DEC-TR-301, 1984).
    Fairness,
}

/// A condition of option `--not-worse`: `VM:METRIC=LIMIT%`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TuneCondition {
    /// The VM.
    pub vm: String,
    /// The measure.
    pub metric: Objective,
    /// The largest change for the worse, as a share.
    pub limit: f64,
}

/// The smallest number of requests of which a 99th percentile is reported.
pub const REQUESTS_MIN: u64 = 50;

impl Objective {
    /// All of them with their names.
    pub const ALL: [(&'static str, Objective); 4] = [
        ("p99", Objective::P99),
        ("iops", Objective::Iops),
        ("throughput", Objective::Throughput),
        ("fairness", Objective::Fairness),
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        let found = Objective::ALL
            .into_iter()
            .find(|(_, metric)| *metric == self);
        found.map_or("", |(name, _)| name)
    }

    /// Which values are better.
    pub fn direction(self) -> Direction {
        match self {
            Objective::P99 => Direction::Lower,
            _ => Direction::Higher,
        }
    }

    /// The value of a block of `seconds`, of one VM or of the disk; fairness is that of `vms`. The
    /// unit of the 99th percentile is nanoseconds. `None` if there are too few requests.
    pub fn value(
        self,
        block: &BTreeMap<Option<String>, SliceTotals>,
        vm: Option<&str>,
        vms: &[String],
        seconds: f64,
        limits: &[u64],
    ) -> Option<f64> {
        let totals = of_subject(block, vm);
        if totals.requests < REQUESTS_MIN && self != Objective::Fairness {
            return None;
        }
        match self {
            Objective::P99 => totals.quantile_ns(0.99, limits),
            Objective::Iops => Some(totals.requests as f64 / seconds),
            Objective::Throughput => Some(totals.bytes as f64 / seconds),
            Objective::Fairness => {
                let bytes = vms
                    .iter()
                    .map(|vm| of_subject(block, Some(vm)).bytes as f64);
                jain(&bytes.collect::<Vec<_>>())
            }
        }
    }

    /// A value with its unit.
    pub fn text(self, value: f64) -> String {
        match self {
            Objective::P99 if value >= 1e9 => format!("{:.2} s", value / 1e9),
            Objective::P99 if value >= 1e6 => format!("{:.2} ms", value / 1e6),
            Objective::P99 => format!("{:.1} us", value / 1e3),
            Objective::Iops => format!("{value:.0}/s"),
            Objective::Throughput => format!("{:.2} MiB/s", value / f64::from(1 << 20)),
            Objective::Fairness => format!("{value:.3}"),
        }
    }
}

impl FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Objective, String> {
        let found = Objective::ALL.into_iter().find(|(name, _)| *name == text);
        let found = found.map(|(_, metric)| metric);
        found.ok_or_else(|| "expected p99, iops, throughput or fairness".to_owned())
    }
}

impl FromStr for TuneCondition {
    type Err = String;

    fn from_str(text: &str) -> Result<TuneCondition, String> {
        let expected = || "expected VM:METRIC=LIMIT%, such as mail:p99=10%".to_owned();
        let (vm, rest) = text.rsplit_once(':').ok_or_else(expected)?;
        let (metric, limit) = rest.split_once('=').ok_or_else(expected)?;
        let percent = limit.strip_suffix('%').ok_or_else(expected)?;
        let percent: f64 = percent.parse().map_err(|_| expected())?;
        let metric = metric.parse()?;
        if vm.is_empty() || metric == Objective::Fairness {
            return Err("expected a VM and p99, iops or throughput".to_owned());
        }
        if !(0.0..100.0).contains(&percent) {
            return Err("the limit must be at least 0 % and below 100 %".to_owned());
        }
        Ok(TuneCondition {
            vm: vm.to_owned(),
            metric,
            limit: percent / 100.0,
        })
    }
}

/// The requests of one VM, or of the disk.
pub fn of_subject(block: &BTreeMap<Option<String>, SliceTotals>, vm: Option<&str>) -> SliceTotals {
    let mut sum = SliceTotals::default();
    for (name, totals) in block {
        if vm.is_none() || name.as_deref() == vm {
            sum.add(totals);
        }
    }
    sum
}

/// Jain's index; `None` if nothing was transferred.
fn jain(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    (squares > 0.0).then(|| sum * sum / (values.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_name_a_vm_a_measure_and_a_limit() {
        let condition: TuneCondition = "a:b:p99=10%".parse().unwrap();
        assert_eq!((&*condition.vm, condition.metric), ("a:b", Objective::P99));
        assert!((condition.limit - 0.1).abs() < 1e-12);
        for bad in [
            "mail",
            "mail:p99",
            "mail:p99=10",
            ":p99=1%",
            "m:p98=1%",
            "m:iops=100%",
        ] {
            assert!(bad.parse::<TuneCondition>().is_err(), "{bad}");
        }
        assert!("mail:fairness=1%".parse::<TuneCondition>().is_err());
    }

    #[test]
    fn values_are_of_the_disk_or_of_a_vm() {
        let totals = |requests, bytes| SliceTotals {
            requests,
            bytes,
            ..SliceTotals::default()
        };
        let block = BTreeMap::from([
            (Some("a".to_owned()), totals(100, 3 << 20)),
            (Some("b".to_owned()), totals(300, 1 << 20)),
            (None, totals(600, 4 << 20)),
        ]);
        let vms = ["a".to_owned(), "b".to_owned()];
        let value = |metric: Objective, vm| metric.value(&block, vm, &vms, 2.0, &[]);
        assert_eq!(value(Objective::Iops, None), Some(500.0));
        assert_eq!(value(Objective::Iops, Some("b")), Some(150.0));
        assert_eq!(value(Objective::Iops, Some("c")), None);
        assert_eq!(value(Objective::Throughput, None), Some(4.0 * 1_048_576.0));
        // (3 + 1)^2 / (2 * (9 + 1))
        assert_eq!(value(Objective::Fairness, None), Some(0.8));
        assert_eq!(Objective::Throughput.text(1_048_576.0), "1.00 MiB/s");
    }
}
