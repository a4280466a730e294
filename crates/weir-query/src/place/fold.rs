//! Aggregations that the source computes: the conditions, the values to keep, and the results that
//! the engine derives from them.
//!
//! An aggregation over `[Range S Slide S]`, or over a multiple of S, can read groups in place of
//! rows on three conditions. Its aggregates specify the values to keep ([`Aggregate::keep`]). Its
//! keys are computed from columns by which the source can group. And its selections are tested
//! before, exactly, or read only those columns, so that they can be tested on groups. The argument
//! of an aggregate is a column, or a `CASE` over those columns that selects one, or a constant; or a
//! `CASE` that compares one column of integers with constants and selects a constant, which is
//! computed from the number of values in ranges.
//!
//! [`Aggregate::keep`]: crate::function::Aggregate::keep

use std::sync::Arc;

use weir_model::{
    Capabilities, Declaration, Demand, Fold, FoldCall, PartialKind, Predicate, Shape, Type, Unit,
    Value,
};

use super::kernel::{self, SourcePredicate, SourceStream};
use super::ranges::Ranges;
use super::{substituted, with};
use crate::expr::Expr;
use crate::function::AggregateCall;
use crate::plan::{Node, Plan, Window, show};
use crate::window::Unbounded;

/// An aggregation over a stream, in terms of the columns of that stream.
pub struct Grouping {
    /// The stream.
    pub source: Declaration,
    /// The interval between changes of the result.
    pub slide: i64,
    /// The number of slides in the window.
    pub panes: usize,
    /// The conditions on rows.
    filters: Vec<Expr>,
    keys: Vec<Expr>,
    calls: Vec<RequiredValues>,
}

/// The values of a group that a call needs.
struct RequiredValues {
    keep: PartialKind,
    /// The argument is a constant for each range of a column's values.
    ranges: Option<Ranges>,
    /// The index in `of`, if the argument is a `CASE` over keys only; the first otherwise.
    choice: Option<Expr>,
    of: Vec<FoldArgument<Option<usize>>>,
}

/// The argument of a call: the kept values of a column (or of all rows), or a constant for each
/// row.
#[derive(Clone, Debug)]
pub enum FoldArgument<T> {
    /// The kept values.
    Values(T),
    /// A constant, or NULL.
    Constant(Option<i64>),
}

/// The location of the values of a group for a call.
#[derive(Clone, Debug)]
pub enum ValueLocation {
    /// One of several values.
    Chosen {
        /// The index in `of`, as an expression over the source's columns; the first without.
        choice: Option<Expr>,
        /// The alternatives, by position in [`Fold::calls`].
        of: Vec<FoldArgument<usize>>,
    },
    /// A constant, or NULL, for each range of a column's values.
    Ranges {
        /// The counts by range, by position in [`Fold::calls`].
        counts: usize,
        /// The constant of each range, and then that of NULL.
        constants: Vec<Option<i64>>,
    },
}

/// The input of an aggregation from groups that its source folded.
#[derive(Clone, Debug)]
pub struct FoldedInput {
    /// The interval between changes of the result.
    pub slide: i64,
    /// The number of slides in the window.
    pub panes: usize,
    /// The conditions on groups, over the source's columns.
    pub filters: Vec<Expr>,
    /// The aggregation's keys, over the source's columns.
    pub keys: Vec<Expr>,
    /// The location of the values for each call.
    pub calls: Vec<ValueLocation>,
    /// The source's columns in the groups, as [`Fold::keys`].
    pub columns: Vec<usize>,
    /// The number of columns of the source.
    pub width: usize,
}

impl Grouping {
    /// The grouping of `aggregate`, if a source could compute it.
    ///
    /// # Errors
    /// Why none can, as a sentence without full stop.
    pub fn of(aggregate: &Plan) -> Result<Grouping, String> {
        let (keys, calls) = match &aggregate.node {
            Node::Aggregate { keys, calls, .. } | Node::Partial { keys, calls, .. } => {
                (keys, calls)
            }
            _ => return Err("it is not an aggregation".into()),
        };
        let (below, slide, panes) = window(aggregate)?;
        let mut grouping = Grouping {
            source: source(below)?.clone(),
            slide,
            panes,
            filters: Vec::new(),
            keys: keys.clone(),
            calls: Vec::new(),
        };
        let mut args: Vec<Option<Expr>> = calls.iter().map(|c| c.args.first().cloned()).collect();
        grouping.descend(below, &mut args);
        for (call, arg) in calls.iter().zip(args) {
            let required = required(call, arg.as_ref(), &grouping.source)?;
            grouping.calls.push(required);
        }
        Ok(grouping)
    }

    /// Rewrites all expressions over the columns below `plan`, down to the source.
    fn descend(&mut self, plan: &Plan, args: &mut [Option<Expr>]) {
        match &plan.node {
            Node::Select { input, predicate } => {
                self.filters.extend(predicate.clone().conjuncts());
                self.descend(input, args);
            }
            Node::Project { input, exprs } => {
                let all = self.keys.iter_mut().chain(&mut self.filters);
                for expr in all.chain(args.iter_mut().flatten()) {
                    *expr = substituted(expr, exprs);
                }
                self.descend(input, args);
            }
            Node::Window { input, .. } => self.descend(input, args),
            _ => {}
        }
    }

    /// The demand on the source. With `whole`, rows are relevant whether they pass the selections
    /// or not.
    ///
    /// # Errors
    /// As [`Grouping::of`].
    pub fn demand(&self, whole: bool, capabilities: &Capabilities) -> Result<Demand, String> {
        let (tested, others) = self.tested(&[], whole, capabilities);
        if !tested.exact {
            return Err("it has too many selections for the source".into());
        }
        let needed = self.calls.iter();
        let needed = needed.map(|call| call.needed_of(&self.source, capabilities));
        let (choices, calls): (Vec<_>, Vec<_>) = needed.unzip();
        let choices = choices.into_iter().flatten();
        let keys = self.keys.iter().chain(others).chain(choices);
        let keys = with(Vec::new(), keys);
        let mut required = vec![FoldCall {
            column: None,
            keep: PartialKind::Moments,
        }];
        for call in calls.into_iter().flatten() {
            if !required.contains(&call) {
                required.push(call);
            }
        }
        // Single rows are tested again.
        let mut columns: Vec<usize> = required.iter().filter_map(|c| c.column).collect();
        columns.extend(&keys);
        let columns = with(columns, &self.filters);
        Ok(Demand {
            stream: self.source.name.clone(),
            columns,
            predicate: tested.rows,
            fold: Some(Fold {
                interval: self.slide,
                keys,
                calls: required,
            }),
        })
    }

    /// The selections that remain for a source to test, and those that do not: those that can be
    /// tested on groups with these keys, and those that no kernel can test.
    fn tested(
        &self,
        keys: &[usize],
        whole: bool,
        capabilities: &Capabilities,
    ) -> (SourcePredicate, Vec<&Expr>) {
        let source = SourceStream::new(&self.source, capabilities);
        let limits = capabilities.limits(&self.source.name);
        let mut all = SourcePredicate::exactly(Predicate::all());
        let mut others = Vec::new();
        for filter in &self.filters {
            let tested = kernel::tested(filter, source);
            if whole || !tested.exact || reads_only(filter, keys) {
                others.push(filter);
            } else {
                all = kernel::both(all, tested, limits);
            }
        }
        (all, others)
    }

    /// The input from a fold, if it has all values. Selections that cannot be tested on groups are
    /// left to the source.
    pub fn reading(&self, fold: &Fold) -> Option<FoldedInput> {
        let locate = |call: &RequiredValues| call.locate(fold);
        let filters = self.filters.iter().filter(|f| reads_only(f, &fold.keys));
        let fits =
            fold.interval == self.slide && self.keys.iter().all(|k| reads_only(k, &fold.keys));
        let reading = FoldedInput {
            slide: self.slide,
            panes: self.panes,
            filters: filters.cloned().collect(),
            keys: self.keys.clone(),
            calls: self.calls.iter().map(locate).collect::<Option<_>>()?,
            columns: fold.keys.clone(),
            width: self.source.schema.len(),
        };
        fits.then_some(reading)
    }

    /// True when `demand` includes all that this needs, `whole` as in [`Grouping::demand`].
    pub fn is_satisfied_by(
        &self,
        demand: &Demand,
        whole: bool,
        capabilities: &Capabilities,
    ) -> bool {
        let Some(fold) = &demand.fold else {
            return false;
        };
        let (by_keys, rest) = self.tested(&fold.keys, whole, capabilities);
        let (by_kernel, _) = self.tested(&[], whole, capabilities);
        let same = |tested: &SourcePredicate| tested.exact && tested.rows == demand.predicate;
        self.source.name.eq_ignore_ascii_case(&demand.stream)
            && rest.iter().all(|filter| reads_only(filter, &fold.keys))
            && (same(&by_keys) || same(&by_kernel))
            && self.reading(fold).is_some()
    }
}

impl RequiredValues {
    /// The values to keep for it.
    fn required(&self) -> impl Iterator<Item = FoldCall> + '_ {
        self.of.iter().filter_map(|of| match of {
            FoldArgument::Values(column) => Some(FoldCall {
                column: *column,
                keep: self.keep.clone(),
            }),
            FoldArgument::Constant(_) => None,
        })
    }

    /// The choice by keys, and the values to keep. A source that cannot group by the column of
    /// ranges keeps the counts of these.
    fn needed_of(
        &self,
        source: &Declaration,
        capabilities: &Capabilities,
    ) -> (Option<&Expr>, Vec<FoldCall>) {
        match &self.ranges {
            Some(ranges) if !capabilities.column(source, ranges.column).group => {
                (None, vec![ranges.required()])
            }
            _ => (self.choice.as_ref(), self.required().collect()),
        }
    }

    /// Its location in a fold, if that has all values.
    fn locate(&self, fold: &Fold) -> Option<ValueLocation> {
        let by_range = self.ranges.as_ref().and_then(|ranges| ranges.locate(fold));
        by_range.or_else(|| self.locate_by_keys(fold))
    }

    fn locate_by_keys(&self, fold: &Fold) -> Option<ValueLocation> {
        let mut required = self.required();
        let of = self.of.iter().map(|of| match of {
            FoldArgument::Values(_) => {
                let call = required.next()?;
                Some(FoldArgument::Values(
                    fold.calls.iter().position(|c| *c == call)?,
                ))
            }
            FoldArgument::Constant(value) => Some(FoldArgument::Constant(*value)),
        });
        let of = of.collect::<Option<_>>()?;
        let choice = self.choice.clone();
        choice
            .iter()
            .all(|choice| reads_only(choice, &fold.keys))
            .then_some(ValueLocation::Chosen { choice, of })
    }
}

/// The input of an aggregation from groups, if its source delivers them.
pub fn reading(aggregate: &Plan) -> Option<FoldedInput> {
    let grouping = Grouping::of(aggregate).ok()?;
    let fold = grouping.source.fold.as_deref()?;
    let reading = grouping.reading(fold);
    Some(reading.expect("it was placed over groups that it can read"))
}

/// The source below an aggregation that reads groups.
pub fn groups(aggregate: &Plan) -> Option<&Arc<Plan>> {
    let (Node::Aggregate { input, .. } | Node::Partial { input, .. }) = &aggregate.node else {
        return None;
    };
    let mut below = input;
    loop {
        match &below.node {
            Node::Source(declaration) => return declaration.fold.is_some().then_some(below),
            Node::Select { input, .. }
            | Node::Project { input, .. }
            | Node::Window { input, .. } => {
                below = input;
            }
            _ => return None,
        }
    }
}

/// True when an expression reads no other columns.
fn reads_only(expr: &Expr, columns: &[usize]) -> bool {
    let mut over = true;
    expr.visit_columns(&mut |i| over &= columns.contains(&i));
    over
}

/// The stream of an aggregation whose window changes at multiples of its slide only, the slide, and
/// the number of slides in the window.
fn window(aggregate: &Plan) -> Result<(&Plan, i64, usize), String> {
    let input = match &aggregate.node {
        Node::Partial { input, slide, .. } => return Ok((input, *slide, 1)),
        _ => aggregate.inputs()[0],
    };
    let Node::Window { input, window } = &input.node else {
        return Err("it is not directly over a window".into());
    };
    match window.kind().whole_slides()? {
        (Some(size), slide) => Ok((input, slide, (size / slide) as usize)),
        (None, _) => Err("its window is unbounded".into()),
    }
}

/// The stream, if the plan is a source.
fn source(plan: &Plan) -> Result<&Declaration, String> {
    match &plan.node {
        Node::Source(declaration) if declaration.shape == Shape::Stream => Ok(declaration),
        Node::Select { input, .. }
        | Node::Project { input, .. }
        | Node::Window {
            input,
            window: Window::Unbounded(Unbounded { slide: None }),
        } => source(input),
        _ => Err("its input is not a plain stream".into()),
    }
}

/// The values of `arg` that a call needs.
fn required(
    call: &AggregateCall,
    arg: Option<&Expr>,
    source: &Declaration,
) -> Result<RequiredValues, String> {
    let name = call.function.doc().name;
    if call.distinct {
        return Err(format!("`{name}(distinct ..)` needs all values"));
    }
    let why = || match arg.map(Expr::ty) {
        Some(ty) if !ty.is_numeric() => format!("`{name}` of {ty} needs all values"),
        _ => format!("`{name}` needs all values"),
    };
    let keep = call.function.keep(call).ok_or_else(why)?;
    let computed = |expr: &Expr| {
        let text = show(expr, &source.schema.fields).to_string();
        format!("`{text}` is computed for each row")
    };
    let of = |expr: &Expr| match expr {
        Expr::Column { index, .. } => Ok(FoldArgument::Values(Some(*index))),
        Expr::Literal { value, .. } if keep == PartialKind::Moments => match value {
            Value::Int(constant) => Ok(FoldArgument::Constant(Some(*constant))),
            Value::Null => Ok(FoldArgument::Constant(None)),
            _ => Err(computed(expr)),
        },
        _ => Err(computed(expr)),
    };
    let ranges = match arg {
        Some(case @ Expr::Case { .. }) if keep == PartialKind::Moments => Ranges::of(case),
        _ => None,
    };
    let (choice, of) = match arg {
        None => (None, vec![FoldArgument::Values(None)]),
        Some(Expr::Case {
            branches,
            otherwise,
            ..
        }) => {
            let results = branches.iter().map(|(_, result)| of(result));
            let otherwise = otherwise
                .as_ref()
                .map_or(Ok(FoldArgument::Constant(None)), |e| of(e));
            let of = results.chain([otherwise]).collect::<Result<_, _>>()?;
            (Some(choice(branches)), of)
        }
        Some(expr) => (None, vec![of(expr)?]),
    };
    Ok(RequiredValues {
        keep,
        ranges,
        choice,
        of,
    })
}

/// The index of the first branch whose condition holds, or the number of branches.
fn choice(branches: &[(Expr, Expr)]) -> Expr {
    let numbered = (0..).zip(branches);
    Expr::Case {
        branches: numbered
            .map(|(number, (condition, _))| (condition.clone(), Expr::int(number)))
            .collect(),
        otherwise: Some(Box::new(Expr::int(branches.len() as i64))),
        ty: Type::Int,
        unit: Unit::None,
    }
}
