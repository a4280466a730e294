//! Calls of aggregates and of scalar functions.

use super::Checker;
use super::coerce::Operand;
use super::expr::{AGGREGATES, Aggregates, Names};
use weir_model::suggest::nearest;

use crate::diagnostic::{Diagnostic, Span, codes};
use crate::expr::Expr;
use crate::function::{
    AggregateCall, Argument, ArgumentError, FunctionDoc, ScalarCall, aggregate, scalar,
};
use crate::syntax::ast::{self, ExprKind, Ident};

/// A call in the text.
#[derive(Clone, Copy)]
pub(super) struct Written<'e> {
    pub span: Span,
    pub name: &'e Ident,
    pub distinct: bool,
    pub args: &'e [ast::SpannedExpr],
    pub star: bool,
}

impl Checker<'_> {
    pub(super) fn call(&mut self, call: Written, names: &mut Names) -> Option<Expr> {
        let Written {
            span,
            name,
            distinct,
            args,
            star,
        } = call;
        // Other systems write the width first.
        if let ([width, x], true) = (args, name.value.eq_ignore_ascii_case("time_bucket"))
            && matches!(width.kind, ExprKind::Literal(_))
            && !matches!(x.kind, ExprKind::Literal(_))
        {
            let args = &[x.clone(), width.clone()];
            return self.call(Written { args, ..call }, names);
        }
        if let Some(function) = aggregate::find(&name.value) {
            return self.aggregate(call, function, names);
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
        let operands = operands?;
        let returns = function.check(&arguments(&operands));
        let returns = returns.map_err(|r| argument_diagnostic(r, span, &operands, function.doc()));
        let returns = self.or_report(returns)?;
        let args = operands.into_iter().map(|o| o.expr).collect();
        Some(Expr::Call(ScalarCall {
            function,
            args,
            ty: returns.ty,
            unit: returns.unit,
        }))
    }

    fn aggregate(
        &mut self,
        call: Written,
        function: &'static dyn aggregate::Aggregate,
        names: &mut Names,
    ) -> Option<Expr> {
        let Written {
            span,
            name,
            distinct,
            args,
            star,
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
            self.operands(args, &mut inner)?
        };
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
        let args = operands.into_iter().map(|o| o.expr).collect();
        let call = AggregateCall {
            function,
            args,
            distinct,
            ty: returns.ty,
            unit: returns.unit,
        };
        let Aggregates::Collect(calls) = &mut names.aggregates else {
            unreachable!("forbidden aggregates are argument_diagnostic above");
        };
        let index = calls.iter().position(|c| *c == call).unwrap_or_else(|| {
            calls.push(call);
            calls.len() - 1
        });
        Some(Expr::column(AGGREGATES + index, returns.ty, returns.unit))
    }

    fn unknown_function(&mut self, name: &Ident) {
        let aggregates = || aggregate::AGGREGATES.iter().map(|f| f.doc().name);
        let scalars = scalar::SCALARS.iter().map(|f| f.doc().name);
        let near = nearest(&name.value, aggregates().chain(scalars));
        let kind = match near.is_some_and(|near| aggregates().any(|a| a == near)) {
            true => "aggregate",
            false => "function",
        };
        let message = format!("unknown {kind} `{}`", name.value);
        let found = codes::UNKNOWN_FUNCTION.at(name.span, message);
        self.diagnostics
            .push(match (percentile(&name.value), near) {
                _ if is_window_function(&name.value) => {
                    found.help("the window follows its stream: `IO [range 5 s slide 1 s]`")
                }
                (Some(fraction), _) => found.help(format!("write `quantile(x, {fraction})`")),
                (None, Some(near)) => found.help(format!("did you mean `{near}`?")),
                (None, None) => found.help("`weir functions` lists all functions"),
            });
    }
}

/// Whether it is a function of windows in GROUP BY, as in earlier versions of Flink.
fn is_window_function(name: &str) -> bool {
    let base = name.to_ascii_lowercase();
    let base = base.strip_suffix("_start").unwrap_or(&base);
    let base = base.strip_suffix("_end").unwrap_or(base);
    ["tumble", "hop", "session"].contains(&base)
}

/// The fraction of a percentile that other systems have as a function: 0.99 for `p99`.
fn percentile(name: &str) -> Option<String> {
    let digits = name.strip_prefix(['p', 'P'])?;
    let is_percentile = digits.len() >= 2 && digits.bytes().all(|b| b.is_ascii_digit());
    (is_percentile && digits != "100").then(|| format!("0.{digits}"))
}

/// Whether an aggregate is called in `expr`, aliases followed, subqueries excluded.
pub(super) fn has_aggregate(expr: &ast::SpannedExpr) -> bool {
    let mut found = match &expr.kind {
        ExprKind::Call { name, .. } => aggregate::find(&name.value).is_some(),
        _ => false,
    };
    expr.kind
        .visit(&mut |child| found = found || has_aggregate(child));
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
