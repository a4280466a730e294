//! `baseline(x [, interval])`: the value that an aggregate of the same group had in the past.
//!
//! The groups of a block are snapshotted at each slide, and the snapshots are read through a window
//! with a delay: a left join of the block with its own past. What is retained is one row for each
//! group and slide of the interval, not the rows of the window.

use std::sync::Arc;

use weir_model::{Field, Type, Value};

use super::Checker;
use super::call::{Written, has_aggregate};
use super::expr::{Aggregates, Names};
use super::over::WINDOW_RESULTS;
use super::query::slide_of;
use super::select::{Block, over_groups};
use crate::diagnostic::{Span, codes};
use crate::expr::Expr;
use crate::plan::{JoinKind, Node, Plan, ToStream};
use crate::syntax::ast::{self, ExprKind, Ident, Literal, SpannedExpr};
use crate::window::{Delayed, Range};

/// Results of `baseline` are numbered from here on, until the joins exist.
const BASELINES: usize = WINDOW_RESULTS + (1 << 41);

/// A checked call.
#[derive(Clone)]
pub(super) struct Baseline {
    place: Span,
    /// Over the columns of FROM and the results of aggregates.
    value: Expr,
    /// How long before, in instants; without it the length of the window.
    interval: Option<i64>,
}

impl Checker<'_> {
    /// The result of a check that allows calls of `baseline`, and those.
    pub(super) fn with_baselines<T>(
        &mut self,
        check: impl FnOnce(&mut Self) -> T,
    ) -> (T, Vec<Baseline>) {
        let outside = self.baselines.replace(Vec::new());
        let checked = check(self);
        let found = std::mem::replace(&mut self.baselines, outside);
        (checked, found.unwrap_or_default())
    }

    /// A call: a column that stands for its result.
    pub(super) fn baseline(&mut self, call: Written, names: &mut Names) -> Option<Expr> {
        let refused = |message: &str, help: &str| {
            let found = codes::BAD_ARGUMENTS.at(call.span, message.to_owned());
            found.help(help.to_owned())
        };
        let (Some(x), true) = (call.args.first(), call.args.len() <= 2 && !call.star) else {
            let help = "it is called as baseline(x), baseline(x, 1 day)";
            self.diagnostics
                .push(refused("`baseline` takes 1 or 2 arguments", help));
            return None;
        };
        let is_allowed = matches!(names.aggregates, Aggregates::Collect(_));
        let Some(mut found) = self.baselines.take().filter(|_| is_allowed) else {
            let help = "use it in SELECT, HAVING or ORDER BY, outside of aggregates";
            self.diagnostics
                .push(refused("`baseline` is not allowed here", help));
            return None;
        };
        // Without an aggregate it is that of the mean.
        let mean = || {
            let kind = ExprKind::Call {
                name: Ident::new("avg".into(), x.span),
                distinct: false,
                args: vec![x.clone()],
                star: false,
                filter: None,
            };
            SpannedExpr::new(kind, x.span)
        };
        let value = match has_aggregate(x) {
            true => self.without_subqueries(|checker| checker.expr(x, names)),
            false => {
                let mean = mean();
                self.without_subqueries(|checker| checker.expr(&mean, names))
            }
        };
        let interval = match call.args.get(1) {
            None => Some(None),
            Some(interval) => self.baseline_interval(interval).map(Some),
        };
        let result = value.zip(interval).map(|(value, interval)| {
            let column = |i| Expr::column(i, value.ty(), value.unit());
            let same = |b: &Baseline| b.value == value && b.interval == interval;
            let index = found.iter().position(same).unwrap_or(found.len());
            let column = column(BASELINES + index);
            if index == found.len() {
                found.push(Baseline {
                    place: call.span,
                    value,
                    interval,
                });
            }
            column
        });
        self.baselines = Some(found);
        result
    }

    fn baseline_interval(&mut self, interval: &SpannedExpr) -> Option<i64> {
        if let ExprKind::Literal(Literal::Quantity(count, measure)) = interval.kind {
            let measure = Some(measure);
            let duration = ast::Duration { count, measure };
            return self.instants(&ast::Spanned::new(duration, interval.span));
        }
        let message = "the interval of `baseline` is not a constant duration";
        let found = codes::BAD_ARGUMENTS.at(interval.span, message);
        self.diagnostics
            .push(found.help("write `baseline(x, 1 day)`"));
        None
    }

    /// The groups of a block of `input`, joined with those of the past that `baselines` read, and
    /// the column of each result.
    pub(super) fn join_baselines(
        &mut self,
        groups: Arc<Plan>,
        input: &Plan,
        block: &Block,
        baselines: &[Baseline],
    ) -> Option<(Arc<Plan>, Vec<usize>)> {
        let mut plan = groups.clone();
        let mut columns = vec![0; baselines.len()];
        let mut open: Vec<(usize, i64)> = Vec::new();
        let slide = slide_of(input);
        for (i, baseline) in baselines.iter().enumerate() {
            open.push((i, self.interval_of(baseline, input, slide)?));
        }
        while let Some((_, interval)) = open.first().copied() {
            let (same, others): (Vec<_>, Vec<_>) =
                open.into_iter().partition(|(_, by)| *by == interval);
            open = others;
            let mut values = Vec::new();
            for (i, _) in &same {
                let Ok(value) = over_groups(&baselines[*i].value, block) else {
                    let message = "`baseline` reads a column that is neither in GROUP BY nor \
                                   inside an aggregate";
                    let found = codes::NOT_GROUPED.at(baselines[*i].place, message);
                    self.diagnostics
                        .push(found.help("write `baseline(avg(x))`"));
                    return None;
                };
                values.push(value);
            }
            let keys = block.key_columns();
            let first = plan.schema.len() + keys;
            for (at, (i, _)) in same.iter().enumerate() {
                columns[*i] = first + at;
            }
            plan = with_past(plan, &groups, keys, values, slide?, interval);
        }
        Some((plan, columns))
    }

    /// How long before the result of a call is.
    fn interval_of(
        &mut self,
        baseline: &Baseline,
        input: &Plan,
        slide: Option<i64>,
    ) -> Option<i64> {
        let interval = baseline.interval.or_else(|| window_size(input));
        let (message, help) = match (slide, interval) {
            (Some(slide), Some(interval)) if interval % slide == 0 && interval > 0 => {
                return Some(interval);
            }
            (None, _) => (
                "`baseline` needs windows with a Slide",
                "write `[range 1 minute slide 1 minute]`",
            ),
            (Some(_), None) => (
                "the window has no length before which the baseline could be",
                "state the interval: `baseline(x, 1 hour)`",
            ),
            (Some(_), Some(_)) => (
                "the interval of `baseline` is not a multiple of the slide",
                "state a multiple: with `slide 1 minute` that is `baseline(x, 1 hour)`",
            ),
        };
        let found = codes::BAD_ARGUMENTS.at(baseline.place, message);
        self.diagnostics.push(found.help(help));
        None
    }
}

/// An expression over the columns of the join.
pub(super) fn over_past(expr: &Expr, columns: &[usize]) -> Expr {
    expr.map_columns(&|i| match i.checked_sub(BASELINES) {
        Some(baseline) if baseline < columns.len() => columns[baseline],
        _ => i,
    })
}

/// The length of the longest window.
fn window_size(plan: &Plan) -> Option<i64> {
    if let Node::Window { window, .. } = &plan.node {
        return window.kind().whole_slides().ok()?.0;
    }
    let sizes = plan.inputs().into_iter().map(|input| window_size(input));
    sizes.collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// `plan`, of which the first `keys` columns are those of `groups`, with the `values` that the
/// groups had an interval before.
fn with_past(
    plan: Arc<Plan>,
    groups: &Arc<Plan>,
    keys: usize,
    values: Vec<Expr>,
    slide: i64,
    interval: i64,
) -> Arc<Plan> {
    let fields = groups.schema.fields[..keys].iter().cloned();
    let named = values.iter().enumerate().map(|(i, value)| {
        let name = format!("baseline{}", i + 1);
        Field::new(name, value.ty()).unit(value.unit()).nullable()
    });
    let fields = fields.chain(named).collect();
    let exprs = groups.columns().into_iter().take(keys).chain(values);
    let snapshot = Plan::project(groups.clone(), exprs.collect(), fields);
    let every = Some(slide);
    let snapshots = Plan::to_stream(snapshot, ToStream::Rstream { every });
    let range = Range {
        size: slide,
        slide: every,
    };
    let delay = interval;
    let past = Plan::window(snapshots, Delayed { range, delay }.into());
    let on = groups.columns().into_iter().take(keys);
    let on = on.zip(&groups.schema.fields).flat_map(|(key, field)| {
        let pairs = match field.nullable {
            false => vec![key],
            true => equal_with_null(key),
        };
        pairs.into_iter().map(|key| (key.clone(), key))
    });
    let on = on.collect();
    Plan::join(plan, past, JoinKind::Left, on, None)
}

/// Expressions that are never NULL, and equal where the key is equal or NULL on both sides.
fn equal_with_null(key: Expr) -> Vec<Expr> {
    let (ty, unit) = (key.ty(), key.unit());
    let zero = match ty {
        Type::Int | Type::Time => Value::Int(0),
        Type::Float => Value::Float(0.0),
        Type::Bool => Value::Bool(false),
        _ => Value::Text("".into()),
    };
    let is_null = |negated| Expr::IsNull {
        expr: Box::new(key.clone()),
        negated,
    };
    let present = Expr::Case {
        branches: vec![(is_null(true), key.clone())],
        otherwise: Some(Box::new(Expr::Literal {
            value: zero,
            ty,
            unit,
        })),
        ty,
        unit,
    };
    vec![is_null(false), present]
}
