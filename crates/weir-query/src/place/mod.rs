//! The location of each part of a plan, and the resulting demands on the tap.
//!
//! Each source describes its capabilities ([`Capabilities`]). Selections directly on one of its
//! streams that it can test run there ([`kernel`]); so does the projection to the columns in use.
//! The rest runs in the agent's engine, which also tests every selection again: a source may
//! deliver more than was requested. A demand always includes every row that a query needs.
//!
//! Aggregations over slides run there too if possible ([`fold`]): [`place`] requests groups in
//! place of rows that no other plan needs, and the engine merges the groups.

mod explain;
pub mod fleet;
pub(crate) mod fold;
mod kernel;
#[cfg(test)]
mod kernel_law;
#[cfg(test)]
#[path = "../../tests/support/capabilities.rs"]
mod live;
pub mod pairing;
mod placement;
mod ranges;

use weir_model::{Capabilities, Demand, Predicate};

use self::kernel::{SourcePredicate, SourceStream};
use crate::expr::Expr;
use crate::plan::{JoinNode, Node, Plan, ToStream};
pub use explain::{Explanation, Location, Operator, explain, explain_placed, span_text};
pub use placement::{Placement, place};

/// Maximum size of a selection that is rewritten over projections, in nodes.
const FILTER_NODES_MAX: usize = 1_000;

/// The demands of the plans on each source: the columns in use and, as far as it can test them, the
/// rows. One demand for each source, in order of first use.
pub fn demands(plans: &[&Plan], capabilities: &Capabilities) -> Vec<Demand> {
    demands_beside(plans, capabilities, &mut |_, _| false)
}

/// The demands where the aggregations for which `folded` is true read groups. Its second argument
/// is whether rows are relevant whether they pass the selections or not.
fn demands_beside(
    plans: &[&Plan],
    capabilities: &Capabilities,
    folded: &mut dyn FnMut(&Plan, bool) -> bool,
) -> Vec<Demand> {
    let mut demands: Vec<Demand> = Vec::new();
    for plan in plans {
        let every = (0..plan.schema.len()).collect();
        let mut found = |demand: Demand| {
            let name = &demand.stream;
            match demands
                .iter_mut()
                .find(|d| d.stream.eq_ignore_ascii_case(name))
            {
                Some(known) => {
                    let both = known.clone().or(Demand {
                        stream: known.stream.clone(),
                        ..demand
                    });
                    let limits = capabilities.limits(&both.stream);
                    let predicate =
                        kernel::bounded(SourcePredicate::exactly(both.predicate), limits).rows;
                    *known = Demand { predicate, ..both };
                }
                None => demands.push(demand),
            }
        };
        let mut visit = Visit {
            capabilities,
            source: &mut found,
            folded,
        };
        walk(plan, every, Some(Vec::new()), &mut visit);
    }
    demands
}

/// The callbacks of [`walk`].
struct Visit<'a> {
    /// The capabilities of the sources.
    capabilities: &'a Capabilities,
    /// Called for a source, with the demand on it.
    source: &'a mut dyn FnMut(Demand),
    /// Called for an aggregation, and whether rows are relevant whether they pass or not; true if
    /// the plan below it is skipped.
    folded: &'a mut dyn FnMut(&Plan, bool) -> bool,
}

/// Visits the sources. `columns` are those in use of this node, ascending; `filters` are selections
/// further up that every relevant row must pass, over this node's columns, or `None` if rows are
/// relevant whether they pass or not.
fn walk(plan: &Plan, columns: Vec<usize>, filters: Option<Vec<Expr>>, visit: &mut Visit<'_>) {
    let none_yet = filters.as_ref().map(|_| Vec::new());
    let whole = |input: &Plan| (0..input.schema.len()).collect();
    match &plan.node {
        Node::Source(declaration) => {
            let filters = filters.unwrap_or_default();
            let source = SourceStream::new(declaration, visit.capabilities);
            let limits = visit.capabilities.limits(&declaration.name);
            let tests = filters.iter().map(|f| kernel::tested(f, source));
            let all = SourcePredicate::exactly(Predicate::all());
            let predicate = tests.fold(all, |a, b| kernel::both(a, b, limits)).rows;
            let stream = declaration.name.clone();
            (visit.source)(Demand {
                stream,
                columns,
                predicate,
                fold: None,
            });
        }
        Node::Select { input, predicate } => {
            let columns = with(columns, [predicate]);
            let filters = filters.map(|f| [f, vec![predicate.clone()]].concat());
            walk(input, columns, filters, visit);
        }
        Node::Window { input, window } => {
            // A row that does not pass still removes others from a window that counts rows.
            let filters = filters.filter(|_| window.kind().is_per_row());
            let columns = with(columns, window.kind().exprs());
            walk(input, columns, filters, visit);
        }
        Node::Project { input, exprs } => {
            let used = with(Vec::new(), columns.iter().map(|i| &exprs[*i]));
            let filters = filters.map(|filters| {
                let below = filters.iter().map(|f| substituted(f, exprs));
                below.filter(|f| f.size() <= FILTER_NODES_MAX).collect()
            });
            walk(input, used, filters, visit);
        }
        Node::Aggregate { .. } | Node::Partial { .. }
            if (visit.folded)(plan, filters.is_none()) => {}
        Node::Aggregate {
            input, keys, calls, ..
        }
        | Node::Partial {
            input, keys, calls, ..
        } => {
            let args = calls.iter().flat_map(|call| &call.args);
            walk(
                input,
                with(Vec::new(), keys.iter().chain(args)),
                none_yet,
                visit,
            );
        }
        Node::Order { input, by, .. } => {
            let keys = by.iter().map(|key| &key.expr);
            walk(input, with(columns, keys), none_yet, visit);
        }
        Node::Join(JoinNode {
            left,
            right,
            on,
            residual,
            ..
        }) => {
            let middle = left.schema.len();
            let all = with(columns, residual);
            let (l, r): (Vec<usize>, Vec<usize>) = all.into_iter().partition(|i| *i < middle);
            let r = r.into_iter().map(|i| i - middle).collect();
            walk(
                left,
                with(l, on.iter().map(|(l, _)| l)),
                none_yet.clone(),
                visit,
            );
            walk(right, with(r, on.iter().map(|(_, r)| r)), none_yet, visit);
        }
        // It emits whenever a row arrives, even one that does not pass.
        Node::ToStream {
            input,
            kind: ToStream::Rstream { every: None },
        } => {
            walk(input, whole(input), None, visit);
        }
        // Whole rows are compared, ordered or merged.
        Node::Merge { .. }
        | Node::Over { .. }
        | Node::Match { .. }
        | Node::Correlate { .. }
        | Node::Distinct { .. }
        | Node::SetOp { .. }
        | Node::ToStream { .. } => {
            for input in plan.inputs() {
                walk(input, whole(input), none_yet.clone(), visit);
            }
        }
    }
}

/// `columns` and those that `exprs` read.
fn with<'a>(mut columns: Vec<usize>, exprs: impl IntoIterator<Item = &'a Expr>) -> Vec<usize> {
    for expr in exprs {
        expr.visit_columns(&mut |i| columns.push(i));
    }
    columns.sort_unstable();
    columns.dedup();
    columns
}

/// An expression over a projection's columns, rewritten over its input's.
fn substituted(expr: &Expr, exprs: &[Expr]) -> Expr {
    expr.map(&|e| match e {
        Expr::Column { index, .. } => exprs[index].clone(),
        other => other,
    })
}
