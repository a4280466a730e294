//! [`Operator`]: the interface of a running operator.

use weir_model::{Batch, Folded};

use crate::function::EvalError;

/// The instants of a step, and its limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Everything up to and including this instant is processed.
    pub after: i64,
    /// The last instant of the step.
    pub upto: i64,
    /// The first instant, if it is known.
    pub begin: Option<i64>,
    /// Limit of the results of one operator in bytes.
    pub bytes_max: usize,
    /// The input has ended before these instants: slides that end here are incomplete.
    pub is_past_input: bool,
}

/// When the query of an operator starts: at the first instant, or, if it is added to a running
/// engine, at the instant after that.
#[derive(Debug, Default)]
pub(crate) struct QueryStart {
    /// The last instant that was processed before the operator's first step.
    joined_after: Option<i64>,
    /// `None` while the first instant is not known.
    at: Option<i64>,
    passed: bool,
}

impl QueryStart {
    /// The instant of the start, in the one step that covers it.
    pub(crate) fn within(&mut self, span: Span) -> Option<i64> {
        if self.at.is_none() {
            let joined_after = *self.joined_after.get_or_insert(span.after);
            self.at = match joined_after {
                // A processed instant cannot change any more.
                i64::MIN => span.begin.map(|at| at.max(span.after.saturating_add(1))),
                after => Some(after + 1),
            };
        }
        let at = self.at?;
        if self.passed || at > span.upto {
            return None;
        }
        self.passed = true;
        Some(at)
    }

    /// Whether the start is in the past.
    pub(crate) fn is_passed(&self) -> bool {
        self.passed
    }
}

/// The rows that a first-in-first-out window holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    /// Arrived, but not yet in the relation (they wait for a multiple of the slide).
    pub pending: usize,
    /// In the relation.
    pub inside: usize,
}

/// An operator with its state.
pub(crate) trait Operator: Send {
    /// Reads the inputs' deltas at the instants of `span`, all of them and in time order, and
    /// returns its own.
    ///
    /// # Errors
    /// When a value cannot be computed; the operator is not used again.
    fn step(&mut self, inputs: &[&[Batch]], span: Span) -> Result<Vec<Batch>, EvalError>;

    /// Adds groups that the source at `input` pre-aggregated; they are of intervals that end in the
    /// next step. Operators that do not read groups ignore them.
    fn take_folded(&mut self, input: usize, folded: &[Folded]) {
        let _ = (input, folded);
    }

    /// The rows that it emits only once, after the last instant.
    ///
    /// # Errors
    /// As [`Operator::step`].
    fn finish(&mut self) -> Result<Option<Batch>, EvalError> {
        Ok(None)
    }

    /// The last instant up to which `span` may go with no more than about `rows_max` emitted rows
    /// that no input row causes.
    fn bound_span(&self, span: Span, rows_max: usize) -> i64 {
        let _ = rows_max;
        span.upto
    }

    /// What a first-in-first-out window holds, so that a query that starts later can share it.
    fn held(&self) -> Held {
        Held::default()
    }

    /// Requests that were read and are in no row of the result yet: those of the current interval,
    /// where its groups are emitted as partials.
    fn open_requests(&self) -> u64 {
        0
    }

    /// Approximate size of its state in bytes.
    fn bytes(&self) -> usize;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(after: i64, upto: i64, begin: Option<i64>) -> Span {
        Span {
            after,
            upto,
            begin,
            bytes_max: usize::MAX,
            is_past_input: false,
        }
    }

    #[test]
    fn a_query_begins_once_the_first_instant_is_known() {
        let mut known = QueryStart::default();
        assert_eq!(known.within(span(i64::MIN, 9, Some(10))), None);
        assert_eq!(known.within(span(9, 20, Some(10))), Some(10));
        assert_eq!(known.within(span(20, 30, Some(10))), None);
        let mut late = QueryStart::default();
        assert_eq!(late.within(span(i64::MIN, 4, None)), None);
        assert_eq!(late.within(span(4, 8, None)), None);
        assert!(!late.is_passed());
        assert_eq!(late.within(span(8, 20, Some(10))), Some(10));
        assert!(late.is_passed());
        let mut past = QueryStart::default();
        assert_eq!(past.within(span(i64::MIN, 12, None)), None);
        assert_eq!(past.within(span(12, 20, Some(10))), Some(13));
    }

    #[test]
    fn a_query_that_is_added_later_begins_at_the_next_instant() {
        let mut added = QueryStart::default();
        assert_eq!(added.within(span(5, 9, None)), Some(6));
        assert_eq!(added.within(span(9, 12, None)), None);
    }
}
