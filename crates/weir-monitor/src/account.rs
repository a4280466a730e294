//! [`Account`]: counts the outcome of the requests that agents have observed. A row counts as one
//! request, a group as the number of requests that it contains.

use arrow_buffer::ScalarBuffer;
use serde::{Deserialize, Serialize};
use weir_model::{Batch, Column, Nanos};

/// The outcome of requests. At the end `in_time + late + lost` equals the requests produced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Requests whose rows arrived in time and were passed to the engine.
    pub in_time: u64,
    /// Requests whose rows arrived after the watermark had passed them, and were dropped.
    pub late: u64,
    /// Requests that the tap lost, or whose rows never arrived or were rejected.
    pub lost: u64,
}

impl Account {
    /// The sum of all requests.
    pub fn produced(&self) -> u64 {
        self.in_time
            .saturating_add(self.late)
            .saturating_add(self.lost)
    }

    /// Adds the counts of other requests.
    pub fn add(&mut self, other: Account) {
        self.in_time = self.in_time.saturating_add(other.in_time);
        self.late = self.late.saturating_add(other.late);
        self.lost = self.lost.saturating_add(other.lost);
    }

    /// Moves requests from in time to lost.
    pub fn lose(&mut self, requests: u64) {
        let requests = requests.min(self.in_time);
        self.in_time -= requests;
        self.lost = self.lost.saturating_add(requests);
    }

    /// The difference to the earlier account `before`.
    pub fn since(&self, before: Account) -> Account {
        Account {
            in_time: self.in_time.saturating_sub(before.in_time),
            late: self.late.saturating_sub(before.late),
            lost: self.lost.saturating_sub(before.lost),
        }
    }
}

/// The instants of rows, and the number of requests per row, if it is not one.
#[derive(Clone, Debug, Default)]
pub struct Instants {
    ts: ScalarBuffer<i64>,
    counts: Option<ScalarBuffer<i64>>,
}

impl Instants {
    /// The instants of these rows; the column `counts` contains the number of requests per row.
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

    /// The last instant.
    pub fn last(&self) -> Option<Nanos> {
        self.ts.last().copied()
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
