//! Operator descriptions for error messages.

use crate::function::EvalError;
use crate::plan::{Node, Plan, SetOp, ToStream, show};
use crate::window::Print;

/// The error of a query whose state exceeds its limit, most of it in the operator of `plan`.
pub(super) fn too_big(plan: &Plan, bytes: usize, bytes_max: usize) -> EvalError {
    EvalError::new(format!(
        "the query needs more memory than its limit of {}; {} alone uses {}",
        size(bytes_max),
        operator(plan),
        size(bytes)
    ))
    .help(remedy(plan))
}

/// The error of an operator whose result in one span exceeds the limit of a query.
pub(super) fn result_too_big(what: &str, bytes_max: usize) -> EvalError {
    EvalError::new(format!(
        "{what} produces more than {} of rows in one step",
        size(bytes_max)
    ))
    .help("reduce its inputs with a shorter window or a selection")
}

fn operator(plan: &Plan) -> String {
    match &plan.node {
        Node::Source(declaration) => format!("the source {}", declaration.name),
        Node::Window { input, window } => {
            let names: Vec<&str> = input.sources().iter().map(|d| d.name.as_str()).collect();
            let fields = &input.schema.fields;
            let text = window.kind().text(&Print {
                span: &|instants| instants.to_string(),
                expr: &|expr| show(expr, fields).to_string(),
            });
            format!("the window [{text}] over {}", names.join(", "))
        }
        Node::Select { .. } => "the selection".into(),
        Node::Project { .. } => "the select list".into(),
        Node::Join(_) => "the join".into(),
        Node::Aggregate { keys, .. } if keys.is_empty() => "the aggregation".into(),
        Node::Aggregate { keys, .. } => format!("the aggregation by {} keys", keys.len()),
        Node::Partial { .. } => "the partial aggregation".into(),
        Node::Merge { .. } => "the merge of partial aggregates".into(),
        Node::Over { .. } => "OVER".into(),
        Node::Match { .. } => "MATCH_RECOGNIZE".into(),
        Node::Correlate { .. } => "the correlation of disks".into(),
        Node::Distinct { .. } => "DISTINCT".into(),
        Node::SetOp {
            op: SetOp::Union, ..
        } => "UNION".into(),
        Node::SetOp {
            op: SetOp::Intersect,
            ..
        } => "INTERSECT".into(),
        Node::SetOp {
            op: SetOp::Except, ..
        } => "EXCEPT".into(),
        Node::Order { .. } => "ORDER BY with LIMIT".into(),
        Node::ToStream {
            kind: ToStream::Istream,
            ..
        } => "Istream".into(),
        Node::ToStream {
            kind: ToStream::Dstream,
            ..
        } => "Dstream".into(),
        Node::ToStream {
            kind: ToStream::Rstream { .. },
            ..
        } => "Rstream".into(),
    }
}

fn remedy(plan: &Plan) -> &'static str {
    match &plan.node {
        Node::Window { .. } => "use a shorter window, or select fewer rows before it",
        Node::Aggregate { .. } | Node::Partial { .. } | Node::Merge { .. } => {
            "group by fewer keys, or aggregate over a shorter window"
        }
        Node::Match { .. } => {
            "write a shorter WITHIN, a condition that fewer rows satisfy, or fewer partitions"
        }
        Node::Correlate { .. } => "compare one metric, over a window of fewer steps",
        _ => "give its inputs a shorter window, or select fewer rows before it",
    }
}

fn size(bytes: usize) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}
