//! [`Account`]: what became of the requests that agents have seen. A row stands for one, a group for
//! those that it was made of.

use arrow_buffer::ScalarBuffer;
use serde::{Deserialize, Serialize};
use weir_model::{Batch, Column, Nanos};

/// What became of requests. In the end `in_time + late + lost` is what was produced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Requests whose rows came in time, and went to the engine.
    pub in_time: u64,
    /// Requests whose rows came after their instant was over, and were dropped.
    pub late: u64,
    /// Requests that the tap lost, or whose rows never came or could not be taken.
    pub lost: u64,
}

impl Account {
    /// So many requests of any fate.
    pub fn produced(&self) -> u64 {
        self.in_time
            .saturating_add(self.late)
            .saturating_add(self.lost)
    }

    /// Adds what became of other requests.
    pub fn add(&mut self, other: Account) {
        self.in_time = self.in_time.saturating_add(other.in_time);
        self.late = self.late.saturating_add(other.late);
        self.lost = self.lost.saturating_add(other.lost);
    }

    /// So many requests that came in time are lost after all.
    pub fn lose(&mut self, requests: u64) {
        let requests = requests.min(self.in_time);
        self.in_time -= requests;
        self.lost = self.lost.saturating_add(requests);
    }

    /// What has been added since it was `before`.
    pub fn since(&self, before: Account) -> Account {
        Account {
            in_time: self.in_time.saturating_sub(before.in_time),
            late: self.late.saturating_sub(before.late),
            lost: self.lost.saturating_sub(before.lost),
        }
    }
}

/// The instants of rows, and how many requests each row stands for, if not one.
#[derive(Clone, Debug, Default)]
pub struct Instants {
    ts: ScalarBuffer<i64>,
    counts: Option<ScalarBuffer<i64>>,
}

impl Instants {
    /// Of these rows, of which the column `counts` says how many requests each stands for.
    pub fn of(batch: &Batch, counts: Option<usize>) -> Instants {
        let counts = counts.and_then(|at| match &batch.columns[at] {
            Column::Int(counts) => Some(counts.values().clone()),
            _ => None,
        });
        Instants {
            ts: batch.ts.clone(),
            counts,
        }
    }

    /// True if a row is later than `instant`.
    pub fn any_after(&self, instant: Nanos) -> bool {
        self.ts.last().is_some_and(|&ts| ts > instant)
    }

    /// Requests in rows that are later than `instant`.
    pub fn requests_after(&self, instant: Nanos) -> u64 {
        let first = self.ts.partition_point(|&ts| ts <= instant);
        match &self.counts {
            None => (self.ts.len() - first) as u64,
            Some(counts) => {
                let later = counts[first..].iter();
                let later = later.map(|&count| u64::try_from(count).unwrap_or(0));
                later.fold(0, u64::saturating_add)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_network_do_not_overflow() {
        let most = Account {
            in_time: 1,
            late: u64::MAX,
            lost: u64::MAX,
        };
        assert_eq!(most.produced(), u64::MAX);
    }
}
