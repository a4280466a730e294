//! [`Merge`]: the rows of one source that several taps deliver, in time order.

use std::collections::VecDeque;

use weir_model::Batch;

/// Several taps' rows on their way into one source.
pub struct Merge {
    lanes: Vec<Lane>,
}

struct Lane {
    waiting: VecDeque<Batch>,
    /// No more rows at or before this instant will come.
    reached: i64,
}

impl Merge {
    /// A merge of so many taps.
    pub fn new(taps: usize) -> Merge {
        let lane = || Lane {
            waiting: VecDeque::new(),
            reached: i64::MIN,
        };
        Merge {
            lanes: (0..taps).map(|_| lane()).collect(),
        }
    }

    /// Takes rows of tap number `lane`.
    pub fn push(&mut self, lane: usize, batch: Batch) {
        if let Some(&last) = batch.ts.last() {
            self.lanes[lane].waiting.push_back(batch);
            // More rows of the last instant may follow.
            self.reach(lane, last - 1);
        }
    }

    /// Tap number `lane` will say nothing more at or before `at`; `i64::MAX` when it has ended.
    pub fn reach(&mut self, lane: usize, at: i64) {
        let lane = &mut self.lanes[lane];
        lane.reached = lane.reached.max(at);
    }

    /// How many batches of tap number `lane` wait for the others.
    pub fn waiting(&self, lane: usize) -> usize {
        self.lanes[lane].waiting.len()
    }

    /// The instant up to which tap number `lane` has told everything.
    pub fn lane_reached(&self, lane: usize) -> i64 {
        self.lanes[lane].reached
    }

    /// The instant up to which all taps have told everything.
    pub fn reached(&self) -> i64 {
        self.lanes
            .iter()
            .map(|l| l.reached)
            .min()
            .unwrap_or(i64::MAX)
    }

    /// Hands on all rows at or before [`Merge::reached`], in time order, in runs as long as
    /// possible; all rows of a tap that is alone.
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
    fn one_tap_alone_is_held_back_by_nobody() {
        let mut merge = Merge::new(1);
        merge.push(0, batch(&[1, 2]));
        assert_eq!(drained(&mut merge), [1, 2]);
        assert_eq!(merge.reached(), 1, "more rows of instant 2 may follow");
    }
}
