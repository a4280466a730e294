//! [`Account`]: what became of the rows that agents produced.

use serde::{Deserialize, Serialize};

/// What became of rows. In the end `in_time + late + lost` is what was produced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Rows that came in time, and went to the engine.
    pub in_time: u64,
    /// Rows that came after their instant was over, and were dropped.
    pub late: u64,
    /// Rows that never came, or could not be taken.
    pub lost: u64,
}

impl Account {
    /// So many rows of any fate.
    pub fn produced(&self) -> u64 {
        self.in_time
            .saturating_add(self.late)
            .saturating_add(self.lost)
    }

    /// Adds what became of other rows.
    pub fn add(&mut self, other: Account) {
        self.in_time = self.in_time.saturating_add(other.in_time);
        self.late = self.late.saturating_add(other.late);
        self.lost = self.lost.saturating_add(other.lost);
    }

    /// So many rows that came in time are lost after all.
    pub fn lose(&mut self, rows: u64) {
        let rows = rows.min(self.in_time);
        self.in_time -= rows;
        self.lost = self.lost.saturating_add(rows);
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
