//! [`CpuTimes`]: processor times, and the report `avg-cpu`.

/// The first line of /proc/stat (proc_stat(5)), in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    ticks: [u64; 8],
}

const USER: usize = 0;
const NICE: usize = 1;
const SYSTEM: usize = 2;
const IDLE: usize = 3;
const IOWAIT: usize = 4;
const IRQ: usize = 5;
const SOFTIRQ: usize = 6;
const STEAL: usize = 7;

/// The columns' names, with and without the `%` of the table.
pub(super) const NAMES: [&str; 6] = ["user", "nice", "system", "iowait", "steal", "idle"];

impl CpuTimes {
    /// The times of all processors together in the text of /proc/stat; missing values are 0.
    pub fn parse(stat: &str) -> Option<CpuTimes> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let mut ticks = [0; 8];
        for (tick, field) in ticks.iter_mut().zip(line.split_ascii_whitespace()) {
            *tick = field.parse().ok()?;
        }
        Some(CpuTimes { ticks })
    }

    /// The number of processors in the text of /proc/stat.
    pub fn processors(stat: &str) -> usize {
        let numbered = |line: &&str| {
            let rest = line.strip_prefix("cpu").unwrap_or_default();
            rest.starts_with(|c: char| c.is_ascii_digit())
        };
        stat.lines().filter(numbered).count()
    }

    /// Shares of the time since `before` in percent, in the order of `NAMES`. Interrupt time counts
    /// as system time. A decreased counter (the kernel corrects idle and iowait) counts as 0.
    pub(super) fn shares(&self, before: &CpuTimes) -> [f64; 6] {
        let gone: [u64; 8] = std::array::from_fn(|i| self.ticks[i].saturating_sub(before.ticks[i]));
        let all = gone.iter().sum::<u64>().max(1) as f64;
        let share = |ticks: u64| ticks as f64 / all * 100.0;
        [
            share(gone[USER]),
            share(gone[NICE]),
            share(gone[SYSTEM] + gone[IRQ] + gone[SOFTIRQ]),
            share(gone[IOWAIT]),
            share(gone[STEAL]),
            share(gone[IDLE]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_relative_to_the_elapsed_time() {
        let stat =
            "cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 5 0 5 40 0 0 0 0\ncpu1 5 0 5 40 0 0 0 0\nintr 1\n";
        let before = CpuTimes::parse(stat).unwrap();
        let after = CpuTimes::parse("cpu  20 0 10 140 0 10 20 0 0 0\n").unwrap();
        let shares = after.shares(&before);
        assert_eq!(shares, [10.0, 0.0, 30.0, 0.0, 0.0, 60.0]);
        assert_eq!(CpuTimes::processors(stat), 2);
        assert_eq!(after.shares(&after), [0.0; 6]);
    }
}
