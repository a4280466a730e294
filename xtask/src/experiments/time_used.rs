//! Processor time: of the whole machine and of single processes, in percent of one processor.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result};

/// The unit of proc_stat(5) and proc_pid_stat(5) on the supported architectures.
const TICK_SECONDS: f64 = 0.01;

/// A reading of the counters, to be compared with a later one.
pub struct Look {
    at: Instant,
    machine_ticks: f64,
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

impl Look {
    /// Reads the counters of the machine and of these processes.
    ///
    /// # Errors
    /// When one of them has ended.
    pub fn now(processes: &[u32]) -> Result<Look> {
        let each = processes.iter().map(|pid| Ok((*pid, process_ticks(*pid)?)));
        Ok(Look {
            processes: each.collect::<Result<_>>()?,
            machine_ticks: machine_ticks()?,
            at: Instant::now(),
        })
    }

    /// The time used since this reading.
    ///
    /// # Errors
    /// As [`Look::now`].
    pub fn since(&self) -> Result<Used> {
        let pids: Vec<u32> = self.processes.iter().map(|(pid, _)| *pid).collect();
        let now = Look::now(&pids)?;
        let seconds = now.at.duration_since(self.at).as_secs_f64();
        let percent = |ticks: f64| 100.0 * ticks * TICK_SECONDS / seconds;
        let both = self.processes.iter().zip(&now.processes);
        Ok(Used {
            seconds,
            machine_percent: percent(now.machine_ticks - self.machine_ticks),
            process_percent: both
                .map(|((_, old), (_, new))| percent(new - old))
                .collect(),
        })
    }
}

/// The time of all processors that was not idle, waiting, or stolen by the hypervisor.
fn machine_ticks() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
    let all = text.lines().next().unwrap_or_default();
    let fields: Vec<f64> = all
        .split_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    // user, nice, system, (idle, iowait,) irq, softirq.
    let busy = [0, 1, 2, 5, 6].map(|i| fields.get(i).copied().unwrap_or(0.0));
    Ok(busy.iter().sum())
}

/// User and system time of a process.
fn process_ticks(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("{path}: it has ended"))?;
    // After the name, which may contain spaces, they are fields 12 and 13.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let ticks: Vec<f64> = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse().ok())
        .collect();
    Ok(ticks.iter().sum())
}
