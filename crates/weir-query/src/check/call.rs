//! Calls of aggregates and of scalar functions.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use weir_model::{Type, Unit, Value};

use super::Checker;
use super::coerce::Operand;
use super::expr::{AGGREGATES, Aggregates, Names};
use super::foreign_function;
use weir_model::suggest::nearest;

use crate::diagnostic::{Diagnostic, Span, codes};
use crate::expr::Expr;
use crate::function::{
    AggregateCall, Argument, ArgumentError, FunctionDoc, ScalarCall, aggregate, over, scalar,
};
use crate::syntax::ast::{self, ExprKind, Ident, Literal, Number};

/// A call in the text.
#[derive(Clone, Copy)]
pub(super) struct Written<'e> {
    pub span: Span,
    pub name: &'e Ident,
    pub distinct: bool,
    pub args: &'e [ast::SpannedExpr],
    pub star: bool,
    pub filter: Option<&'e ast::SpannedExpr>,
}

impl Checker<'_> {
    pub(super) fn call(&mut self, call: Written, names: &mut Names) -> Option<Expr> {
        let Written {
            span,
            name,
            distinct,
            args,
            star,
            ..
        } = call;
        // Other systems write the width first.
        if let ([width, x], true) = (args, name.value.eq_ignore_ascii_case("time_bucket"))
            && matches!(width.kind, ExprKind::Literal(_))
            && !matches!(x.kind, ExprKind::Literal(_))
        {
            let args = &[x.clone(), width.clone()];
            return self.call(Written { args, ..call }, names);
        }
        if let Some((function, args)) = named_aggregate(call) {
            let (args, star) = (&args[..], star && args.is_empty());
            return self.aggregate(Written { args, star, ..call }, function, names);
        }
        if name.value.eq_ignore_ascii_case("baseline") {
            return self.baseline(call, names);
        }
        if name.value.eq_ignore_ascii_case("grouping") {
            return self.grouping(call, names);
        }
        if let Some(function) = over::find(&name.value) {
            return self.without_over(call, function, names);
        }
        let operands = self.operands(args, names);
        let Some(function) = scalar::find(&name.value) else {
            self.unknown_function(name);
            return None;
        };
        if star || distinct {
            let what = if star { "*" } else { "DISTINCT" };
            let message = format!("`{}` takes no {what}", name.value);
            self.diagnostics
                .push(codes::BAD_ARGUMENTS.at(span, message));
            return None;
        }
        let operands = match (function.doc().name, operands?) {
            ("is_distinct_from", operands) => self.both_in_set(operands, names),
            (_, operands) => operands,
        };
        let returns = function.check(&arguments(&operands));
        let returns = returns.map_err(|r| argument_diagnostic(r, span, &operands, function.doc()));
        let returns = self.or_report(returns)?;
        if function.doc().name == "now" {
            return Some(self.now());
        }
        let args = operands.into_iter().map(|o| o.expr).collect();
        Some(Expr::Call(ScalarCall {
            function,
            args,
            ty: returns.ty,
            unit: returns.unit,
        }))
    }

    /// Both operands of a comparison, each with the values of the other one's column.
    fn both_in_set(&mut self, mut operands: Vec<Operand>, names: &Names) -> Vec<Operand> {
        if let [left, right] = &mut operands[..] {
            *right = self.in_set(Some(left), right.clone(), names);
            *left = self.in_set(Some(right), left.clone(), names);
        }
        operands
    }

    /// The time of the check, which is the same in all of the query.
    fn now(&mut self) -> Expr {
        let read = || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            since.map_or(0, |since| {
                i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
            })
        };
        Expr::Literal {
            value: Value::Int(*self.started.get_or_insert_with(read)),
            ty: Type::Time,
            unit: Unit::Nanoseconds,
        }
    }

    fn aggregate(
        &mut self,
        call: Written,
        function: &'static dyn aggregate::Aggregate,
        names: &mut Names,
    ) -> Option<Expr> {
        let Written {
            span, name, args, ..
        } = call;
        if let Aggregates::Forbidden(clause) = names.aggregates {
            let message = format!("the aggregate `{}` is not allowed in {clause}", name.value);
            let found = codes::AGGREGATE_MISPLACED.at(span, message);
            self.diagnostics.push(match clause {
                "WHERE" => found.help("HAVING selects groups"),
                _ => found.help("compute it in a subquery in FROM"),
            });
            return None;
        }
        let operands = {
            let mut inner = Names {
                scope: names.scope,
                outer: names.outer,
                aliases: names.aliases,
                aggregates: Aggregates::Forbidden("another aggregate"),
                used: Vec::new(),
            };
            self.without_subqueries(|checker| checker.operands(args, &mut inner))?
        };
        let call = self.aggregate_call(call, function, operands)?;
        let (ty, unit) = (call.ty, call.unit);
        let Aggregates::Collect(calls) = &mut names.aggregates else {
            unreachable!("forbidden aggregates are argument_diagnostic above");
        };
        let index = calls.iter().position(|c| *c == call).unwrap_or_else(|| {
            calls.push(call);
            calls.len() - 1
        });
        Some(Expr::column(AGGREGATES + index, ty, unit))
    }

    /// A call of an aggregate with these arguments.
    pub(super) fn aggregate_call(
        &mut self,
        call: Written,
        function: &'static dyn aggregate::Aggregate,
        operands: Vec<Operand>,
    ) -> Option<AggregateCall> {
        let Written {
            span,
            name,
            distinct,
            args,
            star,
            ..
        } = call;
        let doc = function.doc();
        if star && distinct || !star && args.is_empty() {
            let message = format!("`{}` is missing its argument", name.value);
            let found = codes::BAD_ARGUMENTS.at(span, message);
            self.diagnostics
                .push(found.help(format!("it is called as {}", doc.signature)));
            return None;
        }
        let returns = function.check(&arguments(&operands));
        let returns =
            self.or_report(returns.map_err(|r| argument_diagnostic(r, span, &operands, doc)))?;
        Some(AggregateCall {
            function,
            args: operands.into_iter().map(|o| o.expr).collect(),
            distinct,
            ty: returns.ty,
            unit: returns.unit,
        })
    }

    pub(super) fn unknown_function(&mut self, name: &Ident) {
        let aggregates = || aggregate::AGGREGATES.iter().map(|f| f.doc().name);
        let scalars = scalar::SCALARS.iter().map(|f| f.doc().name);
        let windows = over::WINDOW_FUNCTIONS.iter().map(|f| f.doc.name);
        let near = nearest(&name.value, aggregates().chain(scalars).chain(windows));
        let kind = match near.is_some_and(|near| aggregates().any(|a| a == near)) {
            true => "aggregate",
            false => "function",
        };
        let message = format!("unknown {kind} `{}`", name.value);
        let found = codes::UNKNOWN_FUNCTION.at(name.span, message);
        let help = match (foreign_function::cql_for(&name.value), near) {
            _ if is_window_function(&name.value) => {
                "the window follows its stream: `IO [range 5 s slide 1 s]`".into()
            }
            (Some(text), _) => format!("in CQL: `{text}`"),
            (None, Some(near)) => format!("did you mean `{near}`?"),
            (None, None) => "`weir functions` lists all functions".into(),
        };
        self.diagnostics.push(found.help(help));
    }
}

/// The aggregate of a call and its arguments: of a percentile such as `p99`, the fraction as well.
/// FILTER makes the first argument NULL where its condition is not true, since aggregates ignore
/// NULLs; that of `count(*)` is then a constant.
pub(super) fn named_aggregate(
    call: Written<'_>,
) -> Option<(
    &'static dyn aggregate::Aggregate,
    Cow<'_, [ast::SpannedExpr]>,
)> {
    let name = call.name;
    let number = |number| {
        let literal = ExprKind::Literal(Literal::Number(number));
        ast::SpannedExpr::new(literal, name.span)
    };
    let fraction = aggregate::percentile_of(&name.value);
    let function = match fraction {
        Some(_) => &aggregate::quantile::Quantile,
        None => aggregate::find(&name.value)?,
    };
    let mut args = Cow::Borrowed(call.args);
    if let Some(fraction) = fraction.filter(|_| !args.is_empty()) {
        args.to_mut().push(number(Number::Float(fraction)));
    }
    if let Some(filter) = call.filter.filter(|_| call.star || !args.is_empty()) {
        let args = args.to_mut();
        let then = match call.star {
            true => number(Number::Int(1)),
            false => args.remove(0),
        };
        let kind = ExprKind::Case {
            operand: None,
            branches: vec![(filter.clone(), then)],
            otherwise: None,
        };
        args.insert(0, ast::SpannedExpr::new(kind, call.span));
    }
    Some((function, args))
}

/// Whether it is a function of windows in GROUP BY, as in earlier versions of Flink.
fn is_window_function(name: &str) -> bool {
    let base = name.to_ascii_lowercase();
    let base = base.strip_suffix("_start").unwrap_or(&base);
    let base = base.strip_suffix("_end").unwrap_or(base);
    ["tumble", "hop", "session"].contains(&base)
}

/// Whether an aggregate is called in `expr`, aliases followed, subqueries excluded.
pub(super) fn has_aggregate(expr: &ast::SpannedExpr) -> bool {
    let mut found = match &expr.kind {
        ExprKind::Call { name, .. } => {
            aggregate::is_aggregate(&name.value) || name.value.eq_ignore_ascii_case("baseline")
        }
        _ => false,
    };
    expr.kind
        .visit(&mut |child| found = found || has_aggregate(child));
    found
}

/// Whether a window function is called in `expr`, subqueries excluded.
pub(super) fn has_window_function(expr: &ast::SpannedExpr) -> bool {
    let mut found = match &expr.kind {
        ExprKind::Over(_) => true,
        ExprKind::Call { name, .. } => over::find(&name.value).is_some(),
        _ => false,
    };
    let mut visit = |child| found = found || has_window_function(child);
    expr.kind.visit(&mut visit);
    found
}

fn arguments(operands: &[Operand]) -> Vec<Argument> {
    operands.iter().map(|o| Argument::of(&o.expr)).collect()
}

fn argument_diagnostic(
    argument_error: ArgumentError,
    span: Span,
    operands: &[Operand],
    doc: &FunctionDoc,
) -> Diagnostic {
    let span = argument_error
        .argument
        .and_then(|i| operands.get(i))
        .map_or(span, |o| o.span);
    let found = codes::BAD_ARGUMENTS.at(span, argument_error.message);
    found.help(format!("it is called as {}", doc.signature))
}
