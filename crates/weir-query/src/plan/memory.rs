//! The memory of a plan: which earlier rows it needs to continue with the same results.

use weir_model::Shape;

use super::{Node, Plan};

impl Plan {
    /// The results of the plan at instants after τ depend only on rows after τ minus this, and on
    /// the content of its relations at τ, so that an engine that starts there emits the same from τ
    /// on. `None` where there is no such bound: for row-based and unbounded windows, and for
    /// windows over the changes of a relation.
    pub fn memory(&self) -> Option<i64> {
        let mut inputs = self.inputs().into_iter().map(|input| input.memory());
        let below = inputs.try_fold(0, |most, memory| memory.map(|m: i64| most.max(m)))?;
        let own = match &self.node {
            Node::Source(_) => 0,
            // Over a relation a window has no effect.
            Node::Window { input, .. } if input.shape == Shape::Relation => 0,
            Node::Window { window, .. } => window.kind().memory()?,
            Node::Partial { slide, .. } => *slide,
            Node::Merge { size, slide, .. } => (*size)?.saturating_add(*slide),
            Node::Match { by, .. } if by.forgets() => by.within?,
            // The values of a window add up from the first one on.
            Node::Match { .. } | Node::Correlate { .. } => return None,
            Node::Select { .. }
            | Node::Project { .. }
            | Node::Join(_)
            | Node::Aggregate { .. }
            | Node::Over { .. }
            | Node::Distinct { .. }
            | Node::SetOp { .. }
            | Node::Order { .. }
            | Node::ToStream { .. } => 0,
        };
        // The content of a relation does not include when it changed.
        if own > 0 && self.sources().iter().any(|s| s.shape == Shape::Relation) {
            return None;
        }
        Some(below.saturating_add(own))
    }
}

#[cfg(test)]
mod tests {
    use weir_model::{Catalog, NANOS_PER_SECOND};

    use crate::{CheckOptions, compile};

    /// The memory in seconds.
    fn memory(text: &str) -> Option<i64> {
        let checked = compile(text, &Catalog::builtin(), &CheckOptions::live()).unwrap();
        checked.plan.memory().map(|ns| ns / NANOS_PER_SECOND)
    }

    #[test]
    fn the_memory_of_a_plan_is_that_of_its_windows() {
        assert_eq!(memory("SELECT vm FROM IO [Range 5 seconds]"), Some(5));
        let slide = "SELECT vm, count(*) FROM IO [Range 5 seconds Slide 2 seconds] GROUP BY vm";
        assert_eq!(memory(slide), Some(7));
        let join =
            "SELECT a.vm FROM IO [Range 3 seconds] a JOIN IO [Range 9 seconds] b ON a.vm = b.vm";
        assert_eq!(memory(join), Some(9));
    }

    #[test]
    fn nested_windows_add_their_memory() {
        let text =
            "SELECT count(*) FROM (Istream(SELECT vm FROM IO [Range 5 seconds])) [Range 3 seconds]";
        assert_eq!(memory(text), Some(8));
    }

    #[test]
    fn row_based_and_unbounded_windows_have_unbounded_memory() {
        assert_eq!(memory("SELECT vm, count(*) FROM IO GROUP BY vm"), None);
        assert_eq!(memory("SELECT vm FROM IO [Rows 5]"), None);
        let changes = "SELECT count(*) FROM (Istream(SELECT vm FROM vms)) [Range 3 seconds]";
        assert_eq!(memory(changes), None);
    }

    #[test]
    fn relations_need_no_memory() {
        assert_eq!(memory("SELECT vm FROM vms"), Some(0));
        let join = "SELECT v.vm FROM IO [Range 3 seconds] i JOIN vms v ON v.vm = i.vm";
        assert_eq!(memory(join), Some(3));
    }
}
