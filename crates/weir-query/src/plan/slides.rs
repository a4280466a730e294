//! When the input of a plan is in its result: at the end of a slide.

use std::collections::BTreeSet;

use super::{Node, Plan, ToStream};
use crate::window::Window;

/// A slide that has started and not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenSlide {
    /// The instant before its first one.
    pub after: i64,
    /// Its last instant, at which its result is emitted.
    pub end: i64,
}

impl Plan {
    /// The slide that is open at `at`; of several, from the start of the longest to the end of the
    /// last. `None` where all input up to `at` is in the result at `at`.
    pub fn open_slide(&self, at: i64) -> Option<OpenSlide> {
        let end = self.emitted_by(at);
        let slide = self.longest_slide().filter(|_| end > at)?;
        Some(OpenSlide {
            after: end.saturating_sub(slide).min(at),
            end,
        })
    }

    fn longest_slide(&self) -> Option<i64> {
        let inputs = self.inputs().into_iter();
        let below = inputs.filter_map(|input| input.longest_slide()).max();
        self.own_slide().max(below)
    }

    /// The multiples at which this node alone changes its result.
    fn own_slide(&self) -> Option<i64> {
        let slide = match &self.node {
            Node::Window { window, .. } => window.kind().slide(),
            Node::Partial { slide, .. } | Node::Merge { slide, .. } => Some(*slide),
            Node::ToStream { kind, .. } => match kind {
                ToStream::Rstream { every } => *every,
                ToStream::Istream | ToStream::Dstream => None,
            },
            Node::Source(_)
            | Node::Select { .. }
            | Node::Project { .. }
            | Node::Join(_)
            | Node::Aggregate { .. }
            | Node::Over { .. }
            | Node::Match { .. }
            | Node::Correlate { .. }
            | Node::Distinct { .. }
            | Node::SetOp { .. }
            | Node::Order { .. } => None,
        };
        slide.filter(|slide| *slide > 0)
    }

    /// The instant by which all input up to `at` is in the result: the next multiple of the slide,
    /// or `at` itself without a slide.
    pub fn emitted_by(&self, at: i64) -> i64 {
        let inputs = self.inputs().into_iter().map(|input| input.emitted_by(at));
        let below = inputs.max().unwrap_or(at);
        match self.own_slide() {
            Some(slide) => match below.rem_euclid(slide) {
                0 => below,
                since => below.saturating_add(slide - since),
            },
            None => below,
        }
    }
}

/// The sizes and slides of the windows of time with a slide; those without size are unbounded.
pub(crate) fn sliding_windows(plan: &Plan) -> BTreeSet<(Option<i64>, i64)> {
    let own = match &plan.node {
        Node::Merge { size, slide, .. } => Some((*size, *slide)),
        Node::Window {
            window: Window::Range(range),
            ..
        } => range.slide.map(|slide| (Some(range.size), slide)),
        _ => None,
    };
    let inputs = plan.inputs().into_iter();
    let below = inputs.flat_map(|input| sliding_windows(input));
    own.into_iter().chain(below).collect()
}

/// The greatest common divisor of two durations.
pub(crate) fn greatest_common_divisor(a: i64, b: i64) -> i64 {
    match b {
        0 => a,
        b => greatest_common_divisor(b, a % b),
    }
}

#[cfg(test)]
mod tests {
    use weir_model::{Catalog, NANOS_PER_SECOND};

    use crate::{CheckOptions, compile};

    #[test]
    fn a_slide_is_open_until_it_ends() {
        let plan = |text: &str| {
            let checked = compile(text, &Catalog::builtin(), &CheckOptions::live());
            checked.expect("a sound query").plan
        };
        let plain = plan("select count(*) from IO [range 9 seconds]");
        assert_eq!(plain.open_slide(7), None);
        let sliding = plan("select count(*) from IO [range 10 s slide 5 s]");
        let at = |seconds: i64| sliding.open_slide(seconds * NANOS_PER_SECOND);
        let open = at(7).expect("it ends at 10");
        let seconds = [open.after, open.end].map(|ns| ns / NANOS_PER_SECOND);
        assert_eq!(seconds, [5, 10]);
        assert_eq!(at(10), None);
    }

    /// In seconds.
    fn emitted_by(text: &str, at: i64) -> i64 {
        let checked = compile(text, &Catalog::builtin(), &CheckOptions::live());
        let plan = checked.expect("a sound query").plan;
        plan.emitted_by(at * NANOS_PER_SECOND) / NANOS_PER_SECOND
    }

    #[test]
    fn a_slide_emits_at_its_next_multiple() {
        assert_eq!(emitted_by("select sector from IO", 7), 7);
        assert_eq!(
            emitted_by("select count(*) from IO [range 9 seconds]", 7),
            7
        );
        let sliding = "select count(*) from IO [range 10 seconds slide 5 seconds]";
        assert_eq!([emitted_by(sliding, 7), emitted_by(sliding, 10)], [10, 10]);
        let both = "select count(*) from IO [range 12 seconds slide 4 seconds] as a, \
                    IO [range 12 seconds slide 3 seconds] as b where a.vm = b.vm";
        assert_eq!(emitted_by(both, 7), 9);
        let after = "select sector from IO [range 5 seconds slide 5 seconds]";
        assert_eq!(
            emitted_by(after, i64::MAX / NANOS_PER_SECOND),
            i64::MAX / NANOS_PER_SECOND
        );
    }
}
