//! [`validate`]: makes a plan of decoded steps that is as sound as one of the checker.
//!
//! Every type is derived again by the functions that the checker uses, every column is looked up,
//! every size is bounded, so that no plan makes the engine panic.

mod row_match;

use std::sync::Arc;

use weir_model::{Catalog, Declaration, Field, Schema, Shape, Type, Value};
use weir_workload::correlation::{CorrelatedMetric, WINDOW_STEPS};

use super::over::OverFunction;
use super::wire::{PlanError, PlanStep, Steps};
use super::{
    Correlation, JoinNode, Node, OverCall, PANES_MAX, Partitioning, Plan, ToStream, Window,
};
use crate::expr::{BinaryOp, Expr, UnaryOp};
use crate::function::{AggregateCall, Argument, ArgumentError, Returns, Shared};

/// Maximum number of nodes on a path from the result to a source.
pub const HEIGHT_MAX: usize = 512;

/// Maximum number of nodes of an expression on a path from its root to a column.
pub const EXPR_HEIGHT_MAX: usize = 256;

/// Maximum number of columns of a node.
pub const COLUMNS_MAX: usize = 16_384;

/// Maximum number of columns of all nodes together.
pub const COLUMNS_TOTAL_MAX: usize = 262_144;

/// The plan of these steps over the sources of `catalog`.
///
/// # Errors
/// When it is not one that the engine can run: the reason.
pub fn validate(steps: Steps, catalog: &Catalog) -> Result<Plan, PlanError> {
    let mut open: Vec<(Arc<Plan>, usize)> = Vec::new();
    let mut columns = 0usize;
    for step in steps.0 {
        let first = open.len().checked_sub(inputs_of(&step.node));
        let first = first.ok_or_else(|| invalid("a node lacks its input"))?;
        let (inputs, heights): (Vec<Arc<Plan>>, Vec<usize>) = open.drain(first..).unzip();
        let height = 1 + heights.into_iter().max().unwrap_or(0);
        ensure(height <= HEIGHT_MAX, "it is nested too deeply")?;
        let widths = inputs.iter().map(|input| input.schema.len());
        let width = step.fields.len() + widths.sum::<usize>();
        ensure(width <= COLUMNS_MAX, "it has too many columns")?;
        let plan = node(step, inputs, catalog)?;
        columns = columns.saturating_add(plan.schema.len());
        ensure(columns <= COLUMNS_TOTAL_MAX, "it has too many columns")?;
        open.push((plan, height));
    }
    let plan = open.pop().ok_or_else(|| invalid("it has no nodes"))?.0;
    ensure(open.is_empty(), "a node is read by no other")?;
    Ok(Arc::unwrap_or_clone(plan))
}

fn inputs_of(node: &Node) -> usize {
    match node {
        Node::Source(_) => 0,
        Node::Join(_) | Node::SetOp { .. } => 2,
        _ => 1,
    }
}

/// One node over inputs that are valid.
fn node(step: PlanStep, inputs: Vec<Arc<Plan>>, catalog: &Catalog) -> Result<Arc<Plan>, PlanError> {
    let PlanStep { mut node, fields } = step;
    let named = check(&mut node, &inputs, catalog)?;
    let types = fields.iter().map(|field| field.ty);
    ensure(
        types.eq(named),
        "the type of a column differs from that of its expression",
    )?;
    if let Node::Source(source) = node {
        return Ok(Plan::source(source));
    }
    let unplaced = Plan {
        node,
        schema: Arc::new(Schema::new(fields)),
        shape: Shape::Relation,
    };
    Ok(unplaced.with_inputs(inputs))
}

/// Checks a node over its inputs; the types of the columns that it names.
fn check(node: &mut Node, inputs: &[Arc<Plan>], catalog: &Catalog) -> Result<Vec<Type>, PlanError> {
    let none = Arc::default();
    let schema: &Schema = inputs.first().map_or(&none, |input| &input.schema);
    match node {
        Node::Source(source) => *source = known(source, catalog)?,
        Node::Window { window: kind, .. } => {
            window(kind, schema)?;
            let all = Window::unbounded(None);
            let fits = inputs[0].shape == Shape::Stream || *kind == all;
            ensure(fits, "a window is applied to a relation")?;
            no_partials(schema)?;
        }
        Node::Select { predicate, .. } => condition(predicate, schema)?,
        Node::Project { exprs, .. } => {
            // A column of partials can be passed through, though no expression can use it.
            for expr in &*exprs {
                match expr {
                    Expr::Column { index, ty, .. } => column(*index, *ty, Some(schema))?,
                    expr => expression(expr, Some(schema))?,
                }
            }
            return Ok(exprs.iter().map(Expr::ty).collect());
        }
        Node::Join(JoinNode { on, residual, .. }) => {
            let (left, right) = (&inputs[0], &inputs[1]);
            relation(left)?;
            relation(right)?;
            for (l, r) in on {
                expression(l, Some(&left.schema))?;
                expression(r, Some(&right.schema))?;
                ensure(
                    same_representation(l.ty(), r.ty()),
                    "join keys differ in type",
                )?;
            }
            if let Some(residual) = residual {
                let both = [&left.schema.fields[..], &right.schema.fields[..]].concat();
                condition(residual, &Schema::new(both))?;
            }
        }
        Node::Aggregate { keys, calls, .. } => {
            relation(&inputs[0])?;
            expressions(keys, schema)?;
            for call in &*calls {
                aggregate_call(call, Some(schema))?;
            }
            return Ok(columns_of(keys, calls).collect());
        }
        Node::Partial {
            slide, keys, calls, ..
        } => {
            stream(&inputs[0])?;
            positive(*slide)?;
            expressions(keys, schema)?;
            for call in &*calls {
                aggregate_call(call, Some(schema))?;
            }
            ensure(calls.iter().all(AggregateCall::splits), CANNOT_SPLIT)?;
            return Ok(keys.iter().map(Expr::ty).collect());
        }
        Node::Merge {
            size,
            slide,
            keys,
            calls,
            ..
        } => {
            stream(&inputs[0])?;
            return merge((*size, *slide), *keys, calls, &schema.fields);
        }
        Node::Over { by, calls, .. } => {
            relation(&inputs[0])?;
            return over(by, calls, schema);
        }
        Node::Match { by, .. } => {
            stream(&inputs[0])?;
            no_partials(schema)?;
            return row_match::check(by, schema);
        }
        Node::Correlate { by, .. } => {
            stream(&inputs[0])?;
            correlation(by, schema)?;
        }
        Node::Distinct { .. } => relation(&inputs[0])?,
        Node::SetOp { .. } => set_op(&inputs[0], &inputs[1])?,
        Node::Order { by, .. } => {
            relation(&inputs[0])?;
            for key in by {
                expression(&key.expr, Some(schema))?;
            }
        }
        Node::ToStream { kind, .. } => {
            relation(&inputs[0])?;
            if let ToStream::Rstream { every: Some(every) } = kind {
                positive(*every)?;
            }
        }
    }
    Ok(Vec::new())
}

/// The source as the catalog declares it, if that has the same columns.
fn known(source: &Declaration, catalog: &Catalog) -> Result<Declaration, PlanError> {
    let error = |why: &str| PlanError::Source {
        name: source.name.clone(),
        why: why.to_owned(),
    };
    let known = catalog.find(&source.name);
    let known = known.ok_or_else(|| error("which is unknown here"))?;
    match source.has_columns_of(known) {
        true => Ok(known.clone()),
        false => Err(error("which has other columns here")),
    }
}

fn correlation(by: &Correlation, schema: &Schema) -> Result<(), PlanError> {
    positive(by.step)?;
    ensure(
        WINDOW_STEPS.contains(&(by.steps as usize)),
        "a window of correlations has too few or too many steps",
    )?;
    let known = CorrelatedMetric::ALL.len();
    ensure(by.metrics.len() <= known, "a metric is compared twice")?;
    let types = schema.fields.iter().map(|field| field.ty);
    let expected = [Type::Text; 4].into_iter().chain([Type::Int; 4]);
    ensure(types.eq(expected), "correlations are not of loads of disks")
}

fn merge(
    (size, slide): (Option<i64>, i64),
    keys: usize,
    calls: &[AggregateCall],
    fields: &[Field],
) -> Result<Vec<Type>, PlanError> {
    positive(slide)?;
    size.map_or(Ok(()), positive)?;
    let fits = size.is_none_or(|size| size % slide == 0 && size / slide <= PANES_MAX);
    ensure(
        fits,
        "a window is not a multiple of its slide, or has too many slides",
    )?;
    for call in calls {
        aggregate_call(call, None)?;
    }
    ensure(calls.iter().all(AggregateCall::splits), CANNOT_SPLIT)?;
    let states = Shared::of(calls).owners.len();
    let columns = keys.checked_add(states).and_then(|n| n.checked_add(1));
    ensure(
        columns == Some(fields.len()),
        "the input of a merge differs from its keys and states",
    )?;
    let (keys, state_fields) = fields.split_at(keys);
    let (state_fields, requests) = state_fields.split_at(states);
    let partial = |f: &Field| f.ty == Type::Partial;
    let fits = !keys.iter().any(partial)
        && state_fields.iter().all(partial)
        && requests.iter().all(|f| f.ty == Type::Int);
    ensure(fits, "the input of a merge has no partial aggregates")?;
    let types = keys.iter().map(|f| f.ty);
    Ok(types.chain(calls.iter().map(|c| c.ty)).collect())
}

/// The types of the input's columns and of the results.
fn over(by: &Partitioning, calls: &[OverCall], schema: &Schema) -> Result<Vec<Type>, PlanError> {
    expressions(&by.keys, schema)?;
    for key in &by.order {
        expression(&key.expr, Some(schema))?;
    }
    for OverCall { function, frame } in calls {
        match function {
            OverFunction::Aggregate(call) => aggregate_call(call, Some(schema))?,
            OverFunction::Offset { value, default, .. } => {
                let fits = |d: &Expr| same_representation(d.ty(), value.ty());
                expression(value, Some(schema))?;
                default
                    .iter()
                    .try_for_each(|d| expression(d, Some(schema)))?;
                ensure(default.iter().all(fits), "a default differs in type")?;
            }
            OverFunction::First(value) | OverFunction::Last(value) => {
                expression(value, Some(schema))?;
            }
            OverFunction::Nth(value, n) => {
                expression(value, Some(schema))?;
                ensure(*n >= 1, "a position in a frame is not from 1")?;
            }
            OverFunction::Ntile(parts) => ensure(*parts >= 1, "a partition has no parts")?,
            OverFunction::RowNumber
            | OverFunction::Rank
            | OverFunction::DenseRank
            | OverFunction::PercentRank
            | OverFunction::CumeDist => {}
        }
        let keyed = matches!(&by.order[..], [key] if same_representation(key.expr.ty(), Type::Int));
        ensure(
            keyed || !frame.has_distance(),
            "a frame has distances without a key",
        )?;
        let is_distinct = matches!(function, OverFunction::Aggregate(call) if call.distinct);
        ensure(!is_distinct, "a window function is DISTINCT")?;
    }
    let types = schema.fields.iter().map(|f| f.ty);
    Ok(types
        .chain(calls.iter().map(|c| c.function.returns().0))
        .collect())
}

fn set_op(left: &Plan, right: &Plan) -> Result<(), PlanError> {
    relation(left)?;
    relation(right)?;
    let (left, right) = (&left.schema.fields, &right.schema.fields);
    let pairs = || left.iter().zip(right);
    let same = left.len() == right.len() && pairs().all(|(l, r)| same_representation(l.ty, r.ty));
    ensure(same, "a set operation has inputs with different columns")
}

fn window(window: &Window, schema: &Schema) -> Result<(), PlanError> {
    let rows_min = |rows: u64| ensure(rows > 0, "a window has no rows");
    let optional = |span: Option<i64>| span.map_or(Ok(()), positive);
    match window {
        Window::Now(_) => Ok(()),
        Window::Range(range) => positive(range.size).and(optional(range.slide)),
        Window::Rows(rows) => rows_min(rows.rows),
        Window::Partition(last) => expressions(&last.keys, schema).and(rows_min(last.rows)),
        Window::Sessions(sessions) => {
            expressions(&sessions.keys, schema).and(positive(sessions.gap))
        }
        Window::Delayed(delayed) => positive(delayed.range.size)
            .and(optional(delayed.range.slide))
            .and(positive(delayed.delay)),
        Window::Unbounded(all) => optional(all.slide),
        Window::Since(since) => {
            expression(&since.origin, Some(schema))?;
            ensure(
                same_representation(since.origin.ty(), Type::Time),
                "an origin is not a timestamp",
            )?;
            optional(since.size).and(optional(since.slide))
        }
    }
}

/// An expression over the columns of `schema`; without a schema, over columns of another plan,
/// which are not read.
fn expression(expr: &Expr, schema: Option<&Schema>) -> Result<(), PlanError> {
    below(expr, schema, EXPR_HEIGHT_MAX)
}

fn expressions(exprs: &[Expr], schema: &Schema) -> Result<(), PlanError> {
    exprs.iter().try_for_each(|e| expression(e, Some(schema)))
}

fn condition(expr: &Expr, schema: &Schema) -> Result<(), PlanError> {
    expression(expr, Some(schema))?;
    ensure(expr.ty() == Type::Bool, "a condition is not a boolean")
}

/// An expression of at most `height` levels.
fn below(expr: &Expr, schema: Option<&Schema>, height: usize) -> Result<(), PlanError> {
    let height = height.checked_sub(1);
    let height = height.ok_or_else(|| invalid("an expression is nested too deep"))?;
    for child in expr.children() {
        below(child, schema, height)?;
    }
    match expr {
        Expr::Column { index, ty, .. } => {
            ensure(
                *ty != Type::Partial,
                "partial aggregates can only be merged",
            )?;
            column(*index, *ty, schema)?;
        }
        Expr::Call(call) => {
            let check = |args: &[_]| call.function.check(args);
            ensure(
                returns(&call.args, call.ty, check),
                "a function has invalid arguments",
            )?;
        }
        _ => {}
    }
    typed(expr)
}

fn column(index: usize, ty: Type, schema: Option<&Schema>) -> Result<(), PlanError> {
    let there = match schema {
        Some(schema) => schema.fields.get(index).is_some_and(|f| f.ty == ty),
        None => index < COLUMNS_MAX,
    };
    ensure(there, "a column does not exist, or has another type")
}

fn aggregate_call(call: &AggregateCall, schema: Option<&Schema>) -> Result<(), PlanError> {
    for arg in &call.args {
        expression(arg, schema)?;
    }
    ensure(
        !call.distinct || !call.args.is_empty(),
        "DISTINCT is missing its argument",
    )?;
    let check = |args: &[_]| call.function.check(args);
    ensure(
        returns(&call.args, call.ty, check),
        "an aggregate has invalid arguments",
    )
}

/// Whether a function with this check returns a `ty` for these arguments.
///
/// The checker saw the original call. The optimizer may have replaced a column by a NULL; the type
/// of that NULL then counts as the column's did.
fn returns(
    args: &[Expr],
    ty: Type,
    check: impl Fn(&[Argument]) -> Result<Returns, ArgumentError>,
) -> bool {
    let written: Vec<Argument> = args.iter().map(Argument::of).collect();
    let gives = |args: &[Argument]| check(args).is_ok_and(|returns| returns.ty == ty);
    let as_columns = || {
        let mut args = written.clone();
        for arg in &mut args {
            arg.constant.take_if(|constant| constant.is_null());
        }
        gives(&args)
    };
    gives(&written) || as_columns()
}

/// Checks an expression over its operands, which were checked before.
fn typed(expr: &Expr) -> Result<(), PlanError> {
    let right = match expr {
        Expr::Column { .. } | Expr::Call(_) => true,
        Expr::Literal { value, ty, .. } => has_type(value, *ty),
        Expr::Unary { op, expr } => match op {
            UnaryOp::Negate => is_number(expr),
            UnaryOp::Not => expr.ty() == Type::Bool,
        },
        Expr::Binary {
            op, left, right, ..
        } => match op {
            BinaryOp::And | BinaryOp::Or => left.ty() == Type::Bool && right.ty() == Type::Bool,
            BinaryOp::Concat => left.ty() == Type::Text && right.ty() == Type::Text,
            op if op.is_comparison() => same_representation(left.ty(), right.ty()),
            _ => is_number(left) && same_representation(left.ty(), right.ty()),
        },
        Expr::IsNull { .. } => true,
        Expr::InList { expr, list, .. } => {
            let fits = |value: &Value| !value.is_null() && has_type(value, expr.ty());
            list.iter().all(fits)
        }
        Expr::Like { expr, .. } => expr.ty() == Type::Text,
        Expr::Case {
            branches,
            otherwise,
            ty,
            ..
        } => {
            let results = branches.iter().map(|(_, result)| result);
            let mut results = results.chain(otherwise.as_deref());
            let conditions = branches.iter().all(|(c, _)| c.ty() == Type::Bool);
            conditions
                && *ty != Type::Partial
                && results.all(|r| is_null(r) || same_representation(r.ty(), *ty))
        }
        Expr::Cast { expr, ty, .. } => can_cast(expr.ty(), *ty),
    };
    ensure(right, "an expression has operands of invalid types")
}

/// Whether it is a number or a timestamp.
fn is_number(expr: &Expr) -> bool {
    matches!(expr.ty(), Type::Int | Type::Float | Type::Time)
}

fn is_null(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::Literal {
            value: Value::Null,
            ..
        }
    )
}

fn has_type(value: &Value, ty: Type) -> bool {
    match value {
        Value::Null => ty != Type::Partial,
        Value::Bool(_) => ty == Type::Bool,
        Value::Int(_) => matches!(ty, Type::Int | Type::Time),
        Value::Float(_) => ty == Type::Float,
        Value::Text(_) => ty == Type::Text,
        Value::Tally(_) => ty == Type::Tally,
        Value::Bytes(_) => ty == Type::Partial,
    }
}

/// A tally can be cast to a text only, and nothing can be cast to a tally.
fn can_cast(from: Type, to: Type) -> bool {
    match (from, to) {
        (_, Type::Partial) => false,
        (Type::Tally, to) => matches!(to, Type::Tally | Type::Text),
        (_, to) => to != Type::Tally,
    }
}

/// An error with reason `why`.
fn invalid(why: &str) -> PlanError {
    PlanError::Invalid(why.into())
}

/// An error with reason `why`, unless `right`.
fn ensure(right: bool, why: &str) -> Result<(), PlanError> {
    right.then_some(()).ok_or_else(|| invalid(why))
}

/// A duration is at least one instant.
fn positive(span: i64) -> Result<(), PlanError> {
    ensure(span > 0, "a duration is not positive")
}

const CANNOT_SPLIT: &str = "partials of an aggregate that cannot be split";

/// Whether values of two types have the same representation. Timestamps are integers.
fn same_representation(a: Type, b: Type) -> bool {
    let integral = |ty| matches!(ty, Type::Int | Type::Time);
    a == b || integral(a) && integral(b)
}

/// The types of keys and calls.
fn columns_of<'p>(keys: &'p [Expr], calls: &'p [AggregateCall]) -> impl Iterator<Item = Type> + 'p {
    keys.iter().map(Expr::ty).chain(calls.iter().map(|c| c.ty))
}

/// An error if a column is of partial aggregates, which can only be merged.
fn no_partials(schema: &Schema) -> Result<(), PlanError> {
    let complete = schema.fields.iter().all(|f| f.ty != Type::Partial);
    ensure(complete, "partial aggregates can only be merged")
}

fn relation(input: &Plan) -> Result<(), PlanError> {
    no_partials(&input.schema)?;
    ensure(
        input.shape == Shape::Relation,
        "a stream is used as a relation",
    )
}

fn stream(input: &Plan) -> Result<(), PlanError> {
    ensure(
        input.shape == Shape::Stream,
        "a relation is used as a stream",
    )
}
