//! [`Merge`]: the rows of one source that several taps deliver, in time order.

use std::collections::VecDeque;

use weir_model::Batch;

/// The rows of several taps before they enter one source.
pub struct Merge {
    lanes: Vec<Lane>,
}

struct Lane {
    waiting: VecDeque<Batch>,
    /// The watermark: no more rows at or before this instant will arrive.
    reached: i64,
}

impl Merge {
    /// A merge of `taps` taps.
    pub fn new(taps: usize) -> Merge {
        let lane = || Lane {
            waiting: VecDeque::new(),
            reached: i64::MIN,
        };
        Merge {
            lanes: (0..taps).map(|_| lane()).collect(),
        }
    }

    /// Adds rows of tap number `lane`.
    pub fn push(&mut self, lane: usize, batch: Batch) {
        if let Some(&last) = batch.ts.last() {
            self.lanes[lane].waiting.push_back(batch);
            // More rows of the last instant may follow.
            self.reach(lane, last - 1);
        }
    }

    /// Sets the watermark of tap number `lane` to `at`; `i64::MAX` when the tap has ended.
    pub fn reach(&mut self, lane: usize, at: i64) {
        let lane = &mut self.lanes[lane];
        lane.reached = lane.reached.max(at);
    }

    /// The number of batches of tap number `lane` that wait for other taps.
    pub fn waiting(&self, lane: usize) -> usize {
        self.lanes[lane].waiting.len()
    }

    /// The watermark of tap number `lane`.
    pub fn lane_reached(&self, lane: usize) -> i64 {
        self.lanes[lane].reached
    }

    /// The watermark: the lowest of all taps.
    pub fn reached(&self) -> i64 {
        self.lanes
            .iter()
            .map(|l| l.reached)
            .min()
            .unwrap_or(i64::MAX)
    }

    /// Passes on all rows at or before [`Merge::reached`] in timestamp order, in runs as long as
    /// possible; all rows if there is only one tap.
    pub fn drain(&mut self, mut push: impl FnMut(Batch)) {
        if let [lane] = &mut self.lanes[..] {
            return lane.waiting.drain(..).for_each(push);
        }
        let reached = self.reached();
        while let Some(lane) = self.earliest() {
            if self.first(lane).is_none_or(|ts| ts > reached) {
                return;
            }
            let others = (0..self.lanes.len()).filter(|&l| l != lane);
            let next = others.filter_map(|l| self.first(l)).min();
            let limit = next.unwrap_or(i64::MAX).min(reached);
            let waiting = &mut self.lanes[lane].waiting;
            let batch = waiting.pop_front().expect("its first row was seen");
            let run = batch.ts.partition_point(|&ts| ts <= limit);
            if run < batch.len() {
                waiting.push_front(batch.slice(run, batch.len() - run));
            }
            push(batch.slice(0, run));
        }
    }

    fn first(&self, lane: usize) -> Option<i64> {
        self.lanes[lane].waiting.front().map(|b| b.ts[0])
    }

    fn earliest(&self) -> Option<usize> {
        let waiting = (0..self.lanes.len()).filter(|&l| self.first(l).is_some());
        waiting.min_by_key(|&l| self.first(l))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::Column;

    fn batch(ts: &[i64]) -> Batch {
        Batch::stream(ts.to_vec(), vec![Column::ints(ts.to_vec())])
    }

    fn drained(merge: &mut Merge) -> Vec<i64> {
        let mut out = Vec::new();
        merge.drain(|b| out.extend(b.ts.iter().copied()));
        out
    }

    #[test]
    fn rows_come_out_in_time_order_and_not_before_all_have_passed() {
        let mut merge = Merge::new(2);
        merge.push(0, batch(&[1, 4, 9]));
        assert!(drained(&mut merge).is_empty());
        merge.push(1, batch(&[2, 5, 5]));
        assert_eq!(drained(&mut merge), [1, 2, 4]);
        assert_eq!(merge.reached(), 4);
        merge.reach(1, i64::MAX);
        assert_eq!(drained(&mut merge), [5, 5]);
        merge.reach(0, i64::MAX);
        assert_eq!(drained(&mut merge), [9]);
    }

    #[test]
    fn a_single_tap_is_not_delayed() {
        let mut merge = Merge::new(1);
        merge.push(0, batch(&[1, 2]));
        assert_eq!(drained(&mut merge), [1, 2]);
        assert_eq!(merge.reached(), 1, "more rows of instant 2 may follow");
    }
}
