//! [`operator`]: the operator that runs an operation of the physical plan.

use super::aggregate::{Aggregate, FinalGroups, Tumbling, UnboundedMerge};
use super::correlate::Correlate;
use super::join::Join;
use super::order::Order;
use super::over::Over;
use super::project::Project;
use super::row_match::Match;
use super::select::Select;
use super::set_op::{Combine, UnionAll};
use super::to_stream::{Changes, Content};
use crate::operator::Operator;
use crate::physical::{Operation, Physical};

/// Creates the operator that runs `physical`, which is not a source.
///
/// `needed` are the columns of its result that are read, ascending; the others may be NULL. Without
/// it all are read. The query that needs the operator receives no rows up to instant `after`.
pub(super) fn operator(
    physical: &Physical,
    needed: Option<&[usize]>,
    after: i64,
) -> Box<dyn Operator> {
    let schema = &physical.logical.schema;
    let input = |at: usize| &physical.inputs[at].logical.schema;
    let is_net = || physical.inputs[0].is_net;
    match &physical.operation {
        Operation::Source(_) => unreachable!("the engine reads a source"),
        Operation::Window(window) => window.kind().operator(input(0), after),
        Operation::Filter(predicate) => Box::new(Select::new(predicate.clone())),
        Operation::Project(exprs) => Box::new(Project::new(exprs.clone())),
        Operation::Join {
            kind,
            on,
            residual,
            windows,
        } => Box::new(Join::new(
            [input(0), input(1)],
            *windows,
            *kind,
            on,
            residual.as_ref(),
            needed,
        )),
        Operation::Group {
            keys,
            calls,
            append_only,
            global,
        } => Box::new(Aggregate::new(keys, calls, *append_only).with_global_group(*global, calls)),
        Operation::FinalGroup {
            keys,
            calls,
            global,
        } => Box::new(FinalGroups::new(keys, calls, *global)),
        Operation::TumblingGroup {
            keys,
            calls,
            interval,
            preaggregated,
            global,
        } => {
            let tumbling = match preaggregated {
                Some(reading) => Tumbling::of_groups(keys, calls, reading.clone(), schema),
                None => Tumbling::new(keys, calls, *interval, schema),
            };
            Box::new(match global {
                Some(global) => tumbling.with_global_group(*global),
                None => tumbling.partials(),
            })
        }
        Operation::MergeWindows {
            keys,
            calls,
            slide,
            slides,
            global,
        } => {
            let window = (*slide, *slides);
            let merged = Tumbling::merged(input(0), *keys, calls, window, schema);
            Box::new(merged.with_global_group(*global))
        }
        Operation::MergeUnbounded {
            keys,
            calls,
            slide,
            global,
        } => {
            let merged = UnboundedMerge::new(input(0), *keys, calls, *slide, schema);
            Box::new(merged.with_global_group(*global))
        }
        Operation::Over { by, calls } => Box::new(Over::new(by, calls, input(0))),
        Operation::Correlate(by) => Box::new(Correlate::new(by)),
        Operation::Match(by) => Box::new(Match::new(by, input(0))),
        Operation::Distinct => Box::new(Aggregate::distinct(input(0))),
        Operation::UnionAll => Box::new(UnionAll),
        Operation::SetOperation { op, all } => Box::new(Combine::new(*op, *all, input(0))),
        Operation::Top {
            by,
            limit,
            offset,
            append_only,
        } => {
            let order = Order::new(by, *limit, *offset, input(0));
            Box::new(match append_only {
                true => order.append_only(),
                false => order,
            })
        }
        Operation::Insertions => Box::new(Changes::new(1, input(0), is_net())),
        Operation::Retractions => Box::new(Changes::new(-1, input(0), is_net())),
        Operation::SnapshotsEvery(every) => Box::new(Content::every(*every, input(0), is_net())),
        Operation::SnapshotsOnArrival(entrances) => {
            Box::new(Content::at_arrivals(entrances.clone(), input(0), is_net()))
        }
    }
}
