//! Processor time: of the whole machine and of single processes, in percent of one processor.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result};

/// The unit of proc_stat(5) and proc_pid_stat(5) on the supported architectures.
const TICK_NS: f64 = 1e7;

/// A reading of the counters, to be compared with a later one.
pub struct Counters {
    at: Instant,
    machine_ns: f64,
    processes: Vec<(u32, f64)>,
}

/// The time used between two readings, in percent of one processor.
pub struct Used {
    /// Seconds between the readings.
    pub seconds: f64,
    /// The whole machine's, all but idle time.
    pub machine_percent: f64,
    /// Each process's, in the order in which they were given.
    pub process_percent: Vec<f64>,
}

impl Counters {
    /// Reads the counters of the machine and of these processes.
    ///
    /// # Errors
    /// When one of them has ended.
    pub fn now(processes: &[u32]) -> Result<Counters> {
        let each = processes.iter().map(|pid| Ok((*pid, process_ns(*pid)?)));
        Ok(Counters {
            processes: each.collect::<Result<_>>()?,
            machine_ns: machine_ns()?,
            at: Instant::now(),
        })
    }

    /// The time used since this reading.
    ///
    /// # Errors
    /// As [`Counters::now`].
    pub fn since(&self) -> Result<Used> {
        let pids: Vec<u32> = self.processes.iter().map(|(pid, _)| *pid).collect();
        let now = Counters::now(&pids)?;
        let seconds = now.at.duration_since(self.at).as_secs_f64();
        let percent = |ns: f64| 100.0 * ns / 1e9 / seconds;
        let both = self.processes.iter().zip(&now.processes);
        Ok(Used {
            seconds,
            machine_percent: percent(now.machine_ns - self.machine_ns),
            process_percent: both
                .map(|((_, old), (_, new))| percent(new - old))
                .collect(),
        })
    }
}

/// The time of all processors that was not idle, waiting, or stolen by the hypervisor.
fn machine_ns() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
    let all = text.lines().next().unwrap_or_default();
    let fields: Vec<f64> = all
        .split_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    // user, nice, system, (idle, iowait,) irq, softirq.
    let busy = [0, 1, 2, 5, 6].map(|i| fields.get(i).copied().unwrap_or(0.0));
    Ok(busy.iter().sum::<f64>() * TICK_NS)
}

/// User and system time of a process until now, in nanoseconds.
///
/// # Errors
/// When it has ended.
pub fn process_ns(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("{path}: it has ended"))?;
    // After the name, which may contain spaces, they are fields 12 and 13.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let fields = fields.split_whitespace().skip(11).take(2);
    let ticks: f64 = fields.filter_map(|field| field.parse::<f64>().ok()).sum();
    Ok(ticks * TICK_NS)
}
