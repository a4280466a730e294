//! [`Merge`]: the rows of one source that several taps deliver, in time order.

use std::collections::VecDeque;

use weir_model::Batch;

/// The rows of several taps before they enter one source.
pub struct Merge {
    inputs: Vec<MergeInput>,
}

struct MergeInput {
    waiting: VecDeque<Batch>,
    /// The watermark: no more rows at or before this instant will arrive.
    reached: i64,
}

impl Merge {
    /// A merge of `taps` taps.
    pub fn new(taps: usize) -> Merge {
        let input = || MergeInput {
            waiting: VecDeque::new(),
            reached: i64::MIN,
        };
        Merge {
            inputs: (0..taps).map(|_| input()).collect(),
        }
    }

    /// Adds rows of tap number `input`.
    pub fn push(&mut self, input: usize, batch: Batch) {
        if let Some(&last) = batch.ts.last() {
            self.inputs[input].waiting.push_back(batch);
            // More rows of the last instant may follow.
            self.reach(input, last - 1);
        }
    }

    /// Sets the watermark of tap number `input` to `at`; `i64::MAX` when the tap has ended.
    pub fn reach(&mut self, input: usize, at: i64) {
        let input = &mut self.inputs[input];
        input.reached = input.reached.max(at);
    }

    /// The number of batches of tap number `input` that wait for other taps.
    pub fn waiting(&self, input: usize) -> usize {
        self.inputs[input].waiting.len()
    }

    /// The watermark of tap number `input`.
    pub fn watermark_of(&self, input: usize) -> i64 {
        self.inputs[input].reached
    }

    /// The watermark: the lowest of all taps.
    pub fn reached(&self) -> i64 {
        self.inputs
            .iter()
            .map(|l| l.reached)
            .min()
            .unwrap_or(i64::MAX)
    }

    /// Passes on all rows at or before [`Merge::reached`] in timestamp order, in runs as long as
    /// possible; all rows if there is only one tap.
    pub fn drain(&mut self, mut push: impl FnMut(Batch)) {
        if let [input] = &mut self.inputs[..] {
            return input.waiting.drain(..).for_each(push);
        }
        let reached = self.reached();
        while let Some(input) = self.earliest() {
            if self.first(input).is_none_or(|ts| ts > reached) {
                return;
            }
            let others = (0..self.inputs.len()).filter(|&l| l != input);
            let next = others.filter_map(|l| self.first(l)).min();
            let limit = next.unwrap_or(i64::MAX).min(reached);
            let waiting = &mut self.inputs[input].waiting;
            let batch = waiting.pop_front().expect("its first row was seen");
            let run = batch.ts.partition_point(|&ts| ts <= limit);
            if run < batch.len() {
                waiting.push_front(batch.slice(run, batch.len() - run));
            }
            push(batch.slice(0, run));
        }
    }

    fn first(&self, input: usize) -> Option<i64> {
        self.inputs[input].waiting.front().map(|b| b.ts[0])
    }

    fn earliest(&self) -> Option<usize> {
        let waiting = (0..self.inputs.len()).filter(|&l| self.first(l).is_some());
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
