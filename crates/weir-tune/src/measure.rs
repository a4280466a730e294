//! [`Measurement`]: the requests of a disk in slices of 100 ms, from weir's own tap.
//!
//! A process `weir query` observes the disk. It drops its privileges, which the process of the
//! trial needs to restore the settings. The kernel adds up the requests of each slice, so the cost
//! does not depend on their number. The limits of the histogram are placed where the latencies of
//! the disk are ([`limits`]).

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use weir_runtime::failure::Failure;
use weir_runtime::question::quoted;

/// The length of a slice.
pub const SLICE_NS: i64 = 100_000_000;

/// The number of limits of the histogram.
const LIMITS: usize = 64;

/// The largest part of the measuring process's error output that is kept.
const ERROR_BYTES_MAX: u64 = 16 << 10;

/// This executable, also when its file has been replaced.
pub const PROGRAM: &str = "/proc/self/exe";

/// What is measured.
#[derive(Clone, Debug)]
pub struct MeasuredDisk {
    /// The disk, such as `/dev/sda`; empty for all disks.
    pub device: String,
    /// Declarations of VMs, as of option `--vm`.
    pub vms: Vec<String>,
}

/// Requests that finished in an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SliceTotals {
    /// Their number.
    pub requests: u64,
    /// Their data.
    pub bytes: u64,
    /// The sum of their latencies.
    pub time_ns: u64,
    /// Their number by the upper limit of their latency; the last limit is [`u64::MAX`].
    pub bins: BTreeMap<u64, u64>,
}

/// The requests of a VM, or of none, in a slice.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// The end of the slice, in nanoseconds since the Unix epoch.
    pub end_ns: i64,
    /// The VM.
    pub vm: Option<String>,
    /// Its requests.
    pub totals: SliceTotals,
}

/// A running measurement. The process ends when it is dropped.
#[derive(Debug)]
pub struct Measurement {
    child: Interrupted,
    rows: Receiver<Slice>,
    errors: Receiver<String>,
    /// What was received.
    pub log: SliceLog,
}

/// The slices of a measurement.
#[derive(Clone, Debug, Default)]
pub struct SliceLog {
    /// All slices so far, in order.
    pub slices: Vec<Slice>,
    /// The limits of the histograms.
    pub limits: Vec<u64>,
}

impl SliceTotals {
    /// Adds other requests.
    pub fn add(&mut self, other: &SliceTotals) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.time_ns += other.time_ns;
        for (limit, count) in &other.bins {
            *self.bins.entry(*limit).or_default() += count;
        }
    }

    /// The latency that a share of the requests does not exceed: within its bin by interpolation on
    /// a logarithmic scale. `None` without requests.
    pub fn quantile_ns(&self, share: f64, limits: &[u64]) -> Option<f64> {
        let all: u64 = self.bins.values().sum();
        let rank = (share * all as f64).ceil().max(1.0);
        let mut below = 0.0;
        for (limit, count) in &self.bins {
            let count = *count as f64;
            if below + count >= rank {
                let position = limits.partition_point(|other| other < limit);
                let first = limits.first().copied().unwrap_or(1) as f64;
                let low = match position.checked_sub(1) {
                    Some(previous) => limits[previous] as f64,
                    None => first / 2.0,
                };
                // Nothing is known of a latency above the last limit but that it is above.
                let high = limits.get(position).map_or(low, |limit| *limit as f64);
                return Some(low * (high / low).powf((rank - below) / count));
            }
            below += count;
        }
        None
    }
}

/// Limits of bins from `low_ns` to `high_ns`, at equal ratios.
pub fn limits(low_ns: f64, high_ns: f64) -> Vec<u64> {
    let ratio = (high_ns / low_ns).powf(1.0 / (LIMITS - 1) as f64);
    let all = (0..LIMITS).map(|i| (low_ns * ratio.powi(i as i32)).round() as u64);
    let mut all: Vec<u64> = all.collect();
    all.dedup();
    all
}

/// The query of a measurement.
pub fn question(device: &str, limits: &[u64]) -> String {
    let limits: Vec<String> = limits.iter().map(|limit| format!("{limit} ns")).collect();
    format!(
        "select vm, count(*) as requests, sum(bytes) as bytes, sum(latency) as time, \
         histogram(latency, {}) as bins from IO [range 100 ms slide 100 ms] \
         where pdisk = {} and op in ('r', 'w') group by vm",
        limits.join(", "),
        quoted(device)
    )
}

impl Measurement {
    /// Starts to measure, for at most `span`.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(
        target: &MeasuredDisk,
        limits: Vec<u64>,
        span: Duration,
    ) -> Result<Measurement, Failure> {
        let mut command = weir("query", target, span);
        command.args(["--format", "json", "--"]);
        command.arg(question(&target.device, &limits));
        let mut child = command.spawn().map_err(started)?;
        let (sender, rows) = channel();
        let output = child.stdout.take().expect("it is a pipe");
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let slice = serde_json::from_str(&line).ok().and_then(|row| slice(&row));
                if slice.is_some_and(|slice| sender.send(slice).is_err()) {
                    return;
                }
            }
        });
        let errors = errors(&mut child);
        Ok(Measurement {
            child: Interrupted(child),
            rows,
            errors,
            log: SliceLog {
                slices: Vec::new(),
                limits,
            },
        })
    }

    /// Receives slices, for at most `wait`.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn receive(&mut self, wait: Duration) -> Result<(), Failure> {
        match self.rows.recv_timeout(wait) {
            Ok(slice) => self.log.slices.push(slice),
            Err(RecvTimeoutError::Timeout) => return Ok(()),
            Err(RecvTimeoutError::Disconnected) => {
                let text = self.errors.recv_timeout(Duration::from_secs(1));
                return Err(ended(&text.unwrap_or_default()));
            }
        }
        self.log.slices.extend(self.rows.try_iter());
        Ok(())
    }

    /// Ends the process; returns what it has printed on standard error.
    pub fn stop(mut self) -> String {
        self.child.end();
        self.errors
            .recv_timeout(Duration::from_secs(1))
            .unwrap_or_default()
    }
}

/// A process that ends by SIGINT when it is dropped.
#[derive(Debug)]
pub(crate) struct Interrupted(pub(crate) Child);

impl Interrupted {
    fn end(&mut self) {
        if let Ok(None) = self.0.try_wait()
            && let Some(process) = Pid::from_raw(self.0.id().cast_signed())
        {
            // It has ended in the meantime.
            let _ = kill_process(process, Signal::INT);
        }
        let _ = self.0.wait();
    }
}

impl SliceLog {
    /// The end of the last slice that was received.
    pub fn end_ns(&self) -> i64 {
        self.slices.last().map_or(0, |slice| slice.end_ns)
    }

    /// The requests between two instants, by VM.
    pub fn between(&self, start_ns: i64, end_ns: i64) -> BTreeMap<Option<String>, SliceTotals> {
        let mut found: BTreeMap<Option<String>, SliceTotals> = BTreeMap::new();
        let slices = self.slices.iter().rev();
        // A slice can arrive after a later one only within a fraction of a second.
        let slices = slices.take_while(|slice| slice.end_ns > start_ns - 10 * SLICE_NS);
        for slice in slices.filter(|slice| slice.end_ns > start_ns && slice.end_ns <= end_ns) {
            found
                .entry(slice.vm.clone())
                .or_default()
                .add(&slice.totals);
        }
        found
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        self.end();
    }
}

/// `weir COMMAND` for the disk, in a process group of its own: a signal of the terminal ends the
/// trial, which ends this process.
pub fn weir(command: &str, target: &MeasuredDisk, span: Duration) -> Command {
    let mut process = Command::new(PROGRAM);
    process.arg0("weir").arg(command).process_group(0);
    process.args(["--for", &format!("{}ms", span.as_millis())]);
    for declaration in &target.vms {
        process.args(["--vm", declaration]);
    }
    if !target.device.is_empty() {
        process.args(["--device", &target.device]);
    }
    process.stdin(Stdio::null()).stdout(Stdio::piped());
    process.stderr(Stdio::piped());
    process
}

/// The disks to which a VM sends requests during `span`, those with most requests first.
///
/// # Errors
/// When they cannot be observed.
pub fn disks_of(vm: &str, vms: &[String], span: Duration) -> Result<Vec<String>, Failure> {
    let all = MeasuredDisk {
        device: String::new(),
        vms: vms.to_vec(),
    };
    let mut command = weir("query", &all, span);
    command.args(["--final", "--format", "json", "--"]);
    command.arg(format!(
        "select pdisk, count(*) as requests from IO where vm = {} group by pdisk",
        quoted(vm)
    ));
    let output = command.output().map_err(started)?;
    if !output.status.success() {
        return Err(ended(&String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let rows = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let disk = |row: Value| Some((row["requests"].as_u64()?, row["pdisk"].as_str()?.to_owned()));
    let mut disks: Vec<(u64, String)> = rows.filter_map(disk).collect();
    disks.sort_by(|a, b| b.cmp(a));
    Ok(disks.into_iter().map(|(_, disk)| disk).collect())
}

/// The failure of a process of [`weir`].
pub fn ended(text: &str) -> Failure {
    ended_of("the measurement", text)
}

/// The same of another process of weir.
pub(crate) fn ended_of(what: &str, text: &str) -> Failure {
    let text = text.trim();
    match text.strip_prefix("weir: ").unwrap_or(text) {
        "" => Failure::world(format_args!("{what} ended unexpectedly")),
        text => Failure::world(format_args!("{what} ended: {text}")),
    }
}

pub(crate) fn started(error: std::io::Error) -> Failure {
    Failure::world(format_args!("{PROGRAM}: {error}"))
}

/// Reads the error output in a thread; it is sent when it is complete.
pub(crate) fn errors(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = channel();
    let output = child.stderr.take().expect("it is a pipe");
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let mut output = output;
        let kept = output.by_ref().take(ERROR_BYTES_MAX).read_to_end(&mut text);
        let rest = std::io::copy(&mut output, &mut std::io::sink());
        if kept.is_ok() && rest.is_ok() {
            let _ = sender.send(String::from_utf8_lossy(&text).into_owned());
        }
    });
    receiver
}

/// A row of the query; `None` for one that is retracted.
fn slice(row: &Value) -> Option<Slice> {
    if row["weight"].as_i64()? < 1 {
        return None;
    }
    let number = |name: &str| row[name].as_u64().unwrap_or_default();
    let bins = row["bins"].as_array().into_iter().flatten();
    let bins = bins.filter_map(|bin| {
        let limit = bin[0].as_u64().unwrap_or(u64::MAX);
        Some((limit, bin[1].as_u64()?))
    });
    Some(Slice {
        end_ns: instant_ns(row["instant"].as_str()?)?,
        vm: row["vm"].as_str().map(str::to_owned),
        totals: SliceTotals {
            requests: number("requests"),
            bytes: number("bytes"),
            time_ns: number("time"),
            bins: bins.collect(),
        },
    })
}

/// Nanoseconds since the Unix epoch of `2026-11-24T12:56:34.000000000Z`.
pub(crate) fn instant_ns(text: &str) -> Option<i64> {
    let part = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (part(0, 4)?, part(5, 7)?, part(8, 10)?);
    // Years begin in March, so that the leap day is the last one.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    /// The days from the first of March of the year 0 to the epoch.
    const EPOCH_DAYS: i64 = 719_468;
    let seconds = ((days - EPOCH_DAYS) * 24 + part(11, 13)?) * 60 + part(14, 16)?;
    let seconds = seconds * 60 + part(17, 19)?;
    let fraction = text.get(20..)?.trim_end_matches('Z');
    let fraction = format!("{fraction:0<9}").get(..9)?.parse::<i64>().ok()?;
    Some(seconds * 1_000_000_000 + fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_nanoseconds_since_the_epoch() {
        assert_eq!(instant_ns("1970-01-01T00:00:00.000000000Z"), Some(0));
        let leap = instant_ns("2024-02-29T23:59:59.500000000Z");
        assert_eq!(leap, Some(1_709_251_199_500_000_000));
        assert_eq!(instant_ns("2026-11-24"), None);
    }

    #[test]
    fn a_row_is_a_slice_and_a_retraction_is_none() {
        let row = |weight: i32| {
            serde_json::json!({
                "instant": "1970-01-01T00:00:01.000000000Z", "weight": weight, "vm": "db",
                "requests": 3, "bytes": 12288, "time": 900, "bins": [[200, 2], [null, 1]],
            })
        };
        let found = slice(&row(1)).unwrap();
        assert_eq!(
            (found.end_ns, found.vm.as_deref()),
            (1_000_000_000, Some("db"))
        );
        assert_eq!(found.totals.bins, BTreeMap::from([(200, 2), (u64::MAX, 1)]));
        assert_eq!(slice(&row(-1)), None);
    }

    #[test]
    fn quantiles_are_close_to_those_of_the_values() {
        let limits = limits(1_000.0, 1e9);
        assert_eq!(limits.len(), LIMITS);
        let mut totals = SliceTotals::default();
        let mut values: Vec<u64> = (1..=1_000).map(|i| 50_000 + i * i).collect();
        for value in &values {
            let limit = limits.iter().find(|limit| *limit >= value).unwrap();
            *totals.bins.entry(*limit).or_default() += 1;
        }
        values.sort_unstable();
        for share in [0.5, 0.9, 0.99] {
            let exact = values[(share * 1_000.0) as usize - 1] as f64;
            let found = totals.quantile_ns(share, &limits).unwrap();
            assert!(
                (found / exact - 1.0).abs() < 0.12,
                "{share}: {found} {exact}"
            );
        }
        assert_eq!(SliceTotals::default().quantile_ns(0.99, &limits), None);
    }
}
