//! [`Shedding`]: load shedding. An agent that exceeds its resource limits keeps one request in `n`,
//! and reports `n`.

use weir_model::{Batch, Column};
use weir_query::engine::take_batch;

/// The maximum number of requests that one kept request represents.
pub const KEEP_ONE_IN_MAX: u32 = 1 << 12;

/// The load must be below this fraction of its limit before more requests are kept: twice as many
/// kept requests then stay below the limit.
const CALM: f64 = 0.45;

/// Freed memory is returned late and partially; below this fraction of the limit it does not cause
/// shedding.
const CALM_MEMORY: f64 = 0.9;

/// The number of consecutive observations for which this must hold.
const CALM_TIMES: u32 = 5;

/// The resource limits of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budget {
    /// Processor time, as a share of one processor.
    pub cpu_share: Option<f64>,
    /// Memory of the process, bytes.
    pub memory_bytes: Option<u64>,
}

/// The recent resource usage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Processor time, as a share of one processor.
    pub cpu_share: f64,
    /// Memory of the process, bytes.
    pub memory_bytes: u64,
}

/// The share of requests that is kept, and the resource usage that determines it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shedding {
    budget: Budget,
    keep_one_in: u32,
    calm: u32,
}

impl Shedding {
    /// Keeps all requests as long as `budget` is not exceeded.
    pub fn new(budget: Budget) -> Shedding {
        Shedding {
            budget,
            keep_one_in: 1,
            calm: 0,
        }
    }

    /// Replaces the limits.
    pub fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
        self.calm = 0;
    }

    /// Processes the resource usage since the last call; returns the cause if the share changes.
    pub fn observe(&mut self, load: Load) -> Option<&'static str> {
        let part = |taken: f64, bound: Option<f64>| bound.map_or(0.0, |bound| taken / bound);
        let cpu = part(load.cpu_share, self.budget.cpu_share);
        let bytes = self.budget.memory_bytes.map(|bytes| bytes as f64);
        let memory = part(load.memory_bytes as f64, bytes);
        let over = match (cpu > 1.0, memory > 1.0) {
            (true, _) => Some("cpu"),
            (_, true) => Some("memory"),
            _ => None,
        };
        if let Some(cause) = over {
            self.calm = 0;
            let more = (self.keep_one_in * 2).min(KEEP_ONE_IN_MAX);
            return (std::mem::replace(&mut self.keep_one_in, more) != more).then_some(cause);
        }
        let calm = cpu < CALM && memory < CALM_MEMORY && self.keep_one_in > 1;
        self.calm = if calm { self.calm + 1 } else { 0 };
        if self.calm < CALM_TIMES {
            return None;
        }
        self.calm = 0;
        self.keep_one_in /= 2;
        Some("calm")
    }

    /// One request in this number is kept.
    pub fn keep_one_in(&self) -> u32 {
        self.keep_one_in
    }

    /// The share of requests that is kept.
    pub fn kept_share(&self) -> f64 {
        1.0 / f64::from(self.keep_one_in)
    }
}

/// The rows of a batch that are kept when one request in `keep_one_in` is kept. Rows of one request
/// stay together if `req_id`, a position, is given; otherwise rows are selected individually.
pub fn kept(batch: &Batch, req_id: Option<usize>, keep_one_in: u32) -> Batch {
    if keep_one_in <= 1 {
        return batch.clone();
    }
    let ids = req_id.and_then(|at| match &batch.columns[at] {
        Column::Int(ids) => Some(ids.values()),
        _ => None,
    });
    let number = |row: usize| match ids {
        Some(ids) => ids[row] as u64,
        None => (batch.ts[row] as u64).wrapping_add(row as u64),
    };
    // The multiplication of Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4), then
    // its high bits: successive numbers are distributed evenly.
    let spread = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let bound = (1u64 << 32) / u64::from(keep_one_in);
    let kept = |row: &u32| spread(number(*row as usize)) < bound;
    let rows: Vec<u32> = (0..batch.len() as u32).filter(kept).collect();
    take_batch(batch, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Budget = Budget {
        cpu_share: Some(0.05),
        memory_bytes: Some(1 << 20),
    };

    fn load(cpu_share: f64) -> Load {
        Load {
            cpu_share,
            memory_bytes: 1 << 10,
        }
    }

    #[test]
    fn the_share_falls_until_the_load_fits_and_stays_there() {
        // Half of the cost is proportional to the kept requests, one hundredth is constant.
        let demanded = 0.6;
        let mut shedding = Shedding::new(BUDGET);
        let mut changes = Vec::new();
        for _ in 0..200 {
            let taken = 0.01 + demanded * shedding.kept_share();
            if let Some(cause) = shedding.observe(load(taken)) {
                changes.push((cause, shedding.keep_one_in()));
            }
        }
        assert_eq!(changes, [("cpu", 2), ("cpu", 4), ("cpu", 8), ("cpu", 16)]);
    }

    #[test]
    fn all_is_kept_again_when_the_load_is_gone() {
        let mut shedding = Shedding::new(BUDGET);
        for _ in 0..30 {
            shedding.observe(load(3.0));
        }
        assert_eq!(shedding.keep_one_in(), KEEP_ONE_IN_MAX);
        for seen in 1..=12 * CALM_TIMES {
            shedding.observe(load(0.001));
            assert_eq!(
                shedding.keep_one_in(),
                KEEP_ONE_IN_MAX >> (seen / CALM_TIMES)
            );
        }
        assert_eq!(shedding.observe(load(0.001)), None);
        assert_eq!(shedding.kept_share(), 1.0);
    }

    #[test]
    fn memory_counts_as_well_and_no_budget_is_none() {
        let much = Load {
            cpu_share: 0.0,
            memory_bytes: 2 << 20,
        };
        assert_eq!(Shedding::new(BUDGET).observe(much), Some("memory"));
        assert_eq!(Shedding::new(Budget::default()).observe(much), None);
    }

    #[test]
    fn request_and_response_stay_together_and_the_share_is_right() {
        let rows = 40_000;
        let ids: Vec<i64> = (0..rows).map(|row| (7 << 32) + row / 2).collect();
        let batch = Batch::stream((0..rows).collect::<Vec<_>>(), vec![Column::ints(ids)]);
        let kept_rows = kept(&batch, Some(0), 8);
        let Column::Int(ids) = &kept_rows.columns[0] else {
            panic!("numbers stay numbers");
        };
        assert!(ids.values().chunks(2).all(|pair| pair[0] == pair[1]));
        assert!(
            (4_500..5_500).contains(&kept_rows.len()),
            "{}",
            kept_rows.len()
        );
        let alone = kept(&batch, None, 8);
        assert!((4_500..5_500).contains(&alone.len()), "{}", alone.len());
        assert_eq!(kept(&batch, None, 1).len(), 40_000);
    }
}
