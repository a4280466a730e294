//! Plans of which only the final content is wanted: their groups are emitted once, at the end.

use std::sync::Arc;

use super::{Operation, Physical, is_net, sharing};

/// The operators that compute the final content of `plan`: aggregations of append-only input that
/// are not below an operator with state other than the first rows of an order emit their groups at
/// the end only.
pub fn final_content(plan: &Arc<Physical>) -> Arc<Physical> {
    let operation = match &plan.operation {
        Operation::Filter(predicate) => {
            return over_final_content(plan, Operation::Filter(predicate.clone()));
        }
        Operation::Project(exprs) => {
            return over_final_content(plan, Operation::Project(exprs.clone()));
        }
        Operation::Top {
            by, limit, offset, ..
        } => {
            let (by, limit, offset) = (by.clone(), *limit, *offset);
            let top = Operation::Top {
                by,
                limit,
                offset,
                append_only: false,
            };
            return over_final_content(plan, top);
        }
        Operation::Group {
            keys,
            calls,
            append_only: true,
            global,
        } => Operation::FinalGroup {
            keys: keys.clone(),
            calls: calls.clone(),
            global: *global,
        },
        _ => return plan.clone(),
    };
    Arc::new(Physical {
        logical: plan.logical.clone(),
        operation,
        inputs: plan.inputs.clone(),
        sharing: plan.sharing,
        is_net: true,
    })
}

/// `operation`, that of `plan`, over the final content of its input; `plan` where nothing differs.
fn over_final_content(plan: &Arc<Physical>, operation: Operation) -> Arc<Physical> {
    let input = final_content(&plan.inputs[0]);
    if Arc::ptr_eq(&input, &plan.inputs[0]) {
        return plan.clone();
    }
    let inputs = vec![input];
    Arc::new(Physical {
        sharing: sharing(&operation, &inputs),
        is_net: is_net(&operation, &plan.logical, &inputs),
        logical: plan.logical.clone(),
        operation,
        inputs,
    })
}
