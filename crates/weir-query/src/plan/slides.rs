//! When a plan has shown what it took in: what waits for the end of a slide.

use super::{Node, Plan, ToStream, Window};

impl Plan {
    /// The instant by which all that came in up to `at` has shown: the next multiple of the slide,
    /// or `at` itself where nothing slides. Nothing that comes in up to `at` shows later.
    pub fn shown_by(&self, at: i64) -> i64 {
        let inputs = self.inputs().into_iter().map(|input| input.shown_by(at));
        let below = inputs.max().unwrap_or(at);
        let slide = match &self.node {
            Node::Window { window, .. } => match window {
                Window::Range { slide, .. }
                | Window::Since { slide, .. }
                | Window::Unbounded { slide } => *slide,
                Window::Now | Window::Rows { .. } | Window::Partition { .. } => None,
            },
            Node::Partial { slide, .. } | Node::Merge { slide, .. } => Some(*slide),
            Node::ToStream { kind, .. } => match kind {
                ToStream::Rstream { every } => *every,
                ToStream::Istream | ToStream::Dstream => None,
            },
            Node::Source(_)
            | Node::Select { .. }
            | Node::Project { .. }
            | Node::Join { .. }
            | Node::Aggregate { .. }
            | Node::Distinct { .. }
            | Node::SetOp { .. }
            | Node::Order { .. } => None,
        };
        match slide.filter(|slide| *slide > 0) {
            Some(slide) => match below.rem_euclid(slide) {
                0 => below,
                since => below.saturating_add(slide - since),
            },
            None => below,
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_model::{Catalog, NANOS_PER_SECOND};

    use crate::{CheckOptions, compile};

    /// In seconds.
    fn shown_by(text: &str, at: i64) -> i64 {
        let checked = compile(text, &Catalog::builtin(), &CheckOptions::live());
        let plan = checked.expect("a sound query").plan;
        plan.shown_by(at * NANOS_PER_SECOND) / NANOS_PER_SECOND
    }

    #[test]
    fn what_slides_shows_at_the_next_multiple() {
        assert_eq!(shown_by("select sector from IO", 7), 7);
        assert_eq!(shown_by("select count(*) from IO [range 9 seconds]", 7), 7);
        let sliding = "select count(*) from IO [range 10 seconds slide 5 seconds]";
        assert_eq!([shown_by(sliding, 7), shown_by(sliding, 10)], [10, 10]);
        let both = "select count(*) from IO [range 12 seconds slide 4 seconds] as a, \
                    IO [range 12 seconds slide 3 seconds] as b where a.vm = b.vm";
        assert_eq!(shown_by(both, 7), 9);
        let after = "select sector from IO [range 5 seconds slide 5 seconds]";
        assert_eq!(
            shown_by(after, i64::MAX / NANOS_PER_SECOND),
            i64::MAX / NANOS_PER_SECOND
        );
    }
}
