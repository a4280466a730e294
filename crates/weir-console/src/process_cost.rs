//! [`ProcessCost`]: processor time and memory of a process.

use std::fs;

/// The clock ticks of `/proc/PID/stat` in a second: USER_HZ, which is 100 on x86-64 and arm64.
const TICKS: u64 = 100;

/// Processor time and memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessCost {
    /// Processor time so far, in milliseconds.
    pub cpu_ms: u64,
    /// Resident memory in bytes.
    pub memory_bytes: u64,
}

impl ProcessCost {
    /// The cost of a process; `None` if it has ended.
    pub fn of(pid: u32) -> Option<ProcessCost> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        ProcessCost::parse(&stat, &status)
    }

    /// From the texts of `/proc/PID/stat` and `/proc/PID/status` (proc(5)).
    fn parse(stat: &str, status: &str) -> Option<ProcessCost> {
        // The name in parentheses may contain anything.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_whitespace().skip(11);
        let user: u64 = fields.next()?.parse().ok()?;
        let system: u64 = fields.next()?.parse().ok()?;
        let mut resident = status
            .lines()
            .filter_map(|line| line.strip_prefix("VmRSS:"));
        let resident: u64 = resident.next()?.split_whitespace().next()?.parse().ok()?;
        Some(ProcessCost {
            cpu_ms: (user + system) * 1000 / TICKS,
            memory_bytes: resident << 10,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_does_not_shift_its_fields() {
        let stat = "7 (a) b 1 (c) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 1 0 9 10 11";
        let cost = ProcessCost::parse(stat, "Name:\ta\nVmRSS:\t     3 kB\n").unwrap();
        assert_eq!((cost.cpu_ms, cost.memory_bytes), (3000, 3072));
    }

    #[test]
    fn this_process_has_memory() {
        let cost = ProcessCost::of(std::process::id()).unwrap();
        assert!(cost.memory_bytes > 100_000, "{cost:?}");
        assert_eq!(ProcessCost::of(u32::MAX), None);
    }
}
