//! Expressions: names become columns, operands meet in one type and unit, calls find their functions.

use weir_model::{Dimension, Symbol, Type, Unit, Value};

use super::Checker;
use super::coerce::{self, Operand, describe_type};
use super::scope::{Meaning, Scope};
use crate::diagnostic::{Diagnostic, Span, codes, suggest::nearest, there_are};
use crate::expr::{BinaryOp, Expr, UnaryOp};
use crate::function::{
    AggregateCall, Argument, FunctionDoc, Refusal, ScalarCall, aggregate, scalar,
};
use crate::optimize::fold_expr;
use crate::syntax::ast::{self, ExprKind, Ident, Literal, Number};

/// Columns of the query around count from here on, so that a condition can name both sides.
pub(super) const OUTER: usize = 1 << 32;

/// Results of aggregates count from here on, until the node that computes them is there.
pub(super) const AGGREGATES: usize = 1 << 40;

/// Most nodes that one expression compared with several others may become.
const REPEATED_NODES_MAX: usize = 10_000;

/// Longest text a literal may have, in bytes.
const LITERAL_BYTES_MAX: usize = 64 << 10;

/// Whether aggregates may stand in an expression.
pub(super) enum Aggregates<'x> {
    /// Not here: in WHERE, for instance.
    Forbidden(&'static str),
    /// They are collected.
    Collect(&'x mut Vec<AggregateCall>),
}

/// What the names in an expression mean.
pub(super) struct Names<'x> {
    /// The sources.
    pub scope: &'x Scope,
    /// Those of the query around, whose columns may be used as well.
    pub outer: Option<&'x Scope>,
    /// Names given in SELECT, for where no column has the name.
    pub aliases: &'x [(&'x Ident, &'x ast::Expr)],
    /// Whether aggregates may stand here.
    pub aggregates: Aggregates<'x>,
    /// Where each column was used outside of aggregates, for a later complaint.
    pub used: Vec<(usize, Span)>,
}

impl<'x> Names<'x> {
    /// The columns of `scope` and no aggregates in `clause`.
    pub fn plain(scope: &'x Scope, clause: &'static str) -> Names<'x> {
        let aggregates = Aggregates::Forbidden(clause);
        Names {
            scope,
            outer: None,
            aliases: &[],
            aggregates,
            used: Vec::new(),
        }
    }
}

impl Checker<'_> {
    /// An expression over the columns of `scope`.
    pub(super) fn plain_expr(
        &mut self,
        expr: &ast::Expr,
        scope: &Scope,
        clause: &'static str,
    ) -> Option<Expr> {
        self.expr(expr, &mut Names::plain(scope, clause))
    }

    /// A condition over the columns of `scope`.
    pub(super) fn condition(
        &mut self,
        expr: &ast::Expr,
        scope: &Scope,
        clause: &'static str,
    ) -> Option<Expr> {
        self.condition_in(expr, &mut Names::plain(scope, clause))
    }

    /// A condition.
    pub(super) fn condition_in(&mut self, expr: &ast::Expr, names: &mut Names) -> Option<Expr> {
        let operand = self.operand(expr, names)?;
        self.or_report(coerce::boolean(operand))
    }

    fn or_report<T>(&mut self, result: Result<T, Diagnostic>) -> Option<T> {
        match result {
            Ok(x) => Some(x),
            Err(diagnostic) => {
                self.diagnostics.push(diagnostic);
                None
            }
        }
    }

    pub(super) fn operand(&mut self, expr: &ast::Expr, names: &mut Names) -> Option<Operand> {
        let checked = self.expr(expr, names)?;
        Some(Operand {
            expr: checked,
            span: expr.span,
        })
    }

    /// All of `exprs`; every one is checked, whatever is wrong with the others.
    fn operands<'e>(
        &mut self,
        exprs: impl IntoIterator<Item = &'e ast::Expr>,
        names: &mut Names,
    ) -> Option<Vec<Operand>> {
        let all: Vec<_> = exprs.into_iter().map(|e| self.operand(e, names)).collect();
        all.into_iter().collect()
    }

    /// An expression; `None` when something in it is wrong, which is then reported.
    pub(super) fn expr(&mut self, expr: &ast::Expr, names: &mut Names) -> Option<Expr> {
        let checked = match &expr.kind {
            ExprKind::Error => None,
            ExprKind::Column { table, name } => self.column(table.as_ref(), name, names),
            ExprKind::Literal(literal) => self.literal(literal, expr.span),
            ExprKind::Unary { op, expr: inner } => self.unary(*op, inner, names),
            ExprKind::Binary { op, left, right } => {
                let (left, right) = (self.operand(left, names), self.operand(right, names));
                self.or_report(coerce::binary(*op, left?, right?))
            }
            ExprKind::IsNull {
                expr: inner,
                negated,
            } => {
                let expr = Box::new(self.expr(inner, names)?);
                Some(Expr::IsNull {
                    expr,
                    negated: *negated,
                })
            }
            ExprKind::Between {
                expr: x,
                low,
                high,
                negated,
            } => self.between(x, low, high, *negated, names),
            ExprKind::InList {
                expr: x,
                list,
                negated,
            } => self.in_list(x, list, *negated, names),
            ExprKind::Like {
                expr: x,
                pattern,
                ignore_case,
                negated,
            } => self.like(x, pattern, *ignore_case, *negated, names),
            ExprKind::Case {
                operand,
                branches,
                otherwise,
            } => self.case(operand.as_deref(), branches, otherwise.as_deref(), names),
            ExprKind::Cast { expr: x, ty } => self.cast(x, ty.value, expr.span, names),
            ExprKind::Call {
                name,
                distinct,
                args,
                star,
            } => self.call(expr.span, name, *distinct, args, *star, names),
            ExprKind::InQuery { .. } | ExprKind::Exists { .. } => {
                let message = "the subquery stands where it cannot become a join";
                let help = "let it stand alone in WHERE, or joined by AND to the rest";
                self.diagnostics.push(
                    codes::SUBQUERY_UNSUPPORTED
                        .at(expr.span, message)
                        .help(help),
                );
                None
            }
            ExprKind::Scalar { .. } => {
                let message = "a subquery cannot be used as a value";
                let help = "put it into FROM and join it";
                self.diagnostics.push(
                    codes::SUBQUERY_UNSUPPORTED
                        .at(expr.span, message)
                        .help(help),
                );
                None
            }
        };
        checked.map(fold_expr)
    }

    fn literal(&mut self, literal: &Literal, span: Span) -> Option<Expr> {
        let (value, ty, unit) = match literal {
            Literal::Null => (Value::Null, Type::Int, Unit::None),
            Literal::Bool(x) => (Value::Bool(*x), Type::Bool, Unit::None),
            Literal::Number(Number::Int(x)) => (Value::Int(*x), Type::Int, Unit::None),
            Literal::Number(Number::Float(x)) => (Value::Float(*x), Type::Float, Unit::None),
            Literal::Text(text) => {
                let symbol = (text.len() <= LITERAL_BYTES_MAX).then(|| Symbol::try_new(text).ok());
                let Some(Some(symbol)) = symbol else {
                    let message = format!("a text of {} bytes is too long", text.len());
                    self.diagnostics.push(codes::TOO_LONG.at(span, message));
                    return None;
                };
                (Value::Text(symbol), Type::Text, Unit::None)
            }
            Literal::Quantity(number, measure) => {
                let unit = match measure.dimension {
                    Dimension::Time => Unit::Nanoseconds,
                    _ => Unit::Bytes,
                };
                let (value, ty) = quantity(*number, measure.scale);
                let Some(value) = value else {
                    let message = "the amount does not fit in 64 bits";
                    self.diagnostics.push(codes::BAD_NUMBER.at(span, message));
                    return None;
                };
                (value, ty, unit)
            }
        };
        Some(Expr::Literal { value, ty, unit })
    }

    fn column(&mut self, table: Option<&Ident>, name: &Ident, names: &mut Names) -> Option<Expr> {
        let qualifier = table.map(|t| t.value.as_str());
        let meaning = names.scope.find(qualifier, &name.value);
        if let Meaning::Column(found) = meaning {
            names.used.push((
                found.index,
                table.map_or(name.span, |t| t.span.to(name.span)),
            ));
            return Some(found.expr());
        }
        if let Some(Meaning::Column(found)) = names.outer.map(|o| o.find(qualifier, &name.value)) {
            return Some(found.expr().map_columns(&|i| i + OUTER));
        }
        let same = |a: &&(&Ident, &ast::Expr)| a.0.value.eq_ignore_ascii_case(&name.value);
        if let (None, Meaning::Unknown, Some((_, expr))) =
            (table, &meaning, names.aliases.iter().find(same))
        {
            // Inside, names mean columns only: an alias cannot lead back to itself.
            let aliases = std::mem::take(&mut names.aliases);
            let said = self.diagnostics.len();
            let checked = self.expr(expr, names);
            // What is wrong with it has been said where it stands in SELECT, unless it is wrong only here.
            for diagnostic in self.diagnostics.split_off(said) {
                if diagnostic.code == codes::AGGREGATE_MISPLACED.code {
                    self.diagnostics.push(Diagnostic {
                        span: name.span,
                        ..diagnostic
                    });
                }
            }
            names.aliases = aliases;
            return checked;
        }
        self.no_column(&meaning, names.scope, table, name);
        None
    }

    /// Says that a name means no column, and what was perhaps meant.
    pub(super) fn no_column(
        &mut self,
        meaning: &Meaning,
        scope: &Scope,
        table: Option<&Ident>,
        name: &Ident,
    ) {
        let full = table.map_or(name.value.clone(), |t| {
            format!("{}.{}", t.value, name.value)
        });
        let qualifier = table.map(|t| t.value.as_str());
        let reachable = |s: &Scope| matches!(s.find(qualifier, &name.value), Meaning::Column(_));
        let found = match meaning {
            Meaning::Unknowable | Meaning::Column(_) => return,
            Meaning::Ambiguous(tables) => {
                let message = format!("`{full}` is a column of {}", tables.join(" and of "));
                let help = format!("say which one: `{}.{}`", tables[0], name.value);
                codes::AMBIGUOUS_COLUMN.at(name.span, message).help(help)
            }
            _ if self.around.iter().any(reachable) => {
                let message = format!("`{full}` of the outer query cannot be used here");
                let help = "only the WHERE of a plain SELECT .. FROM .. WHERE in EXISTS or IN may refer to the query around";
                codes::SUBQUERY_UNSUPPORTED
                    .at(name.span, message)
                    .help(help)
            }
            Meaning::UnknownTable => {
                let table = table.expect("only a qualified name can have an unknown table");
                let message = format!("there is no source `{}` in FROM", table.value);
                let names = || {
                    scope
                        .tables
                        .iter()
                        .map(|t| t.name.as_str())
                        .filter(|n| !n.is_empty())
                };
                let found = codes::UNKNOWN_TABLE.at(table.span, message);
                match nearest(&table.value, names()) {
                    Some(near) => found.help(format!("did you mean `{near}`?")),
                    None => found.help(there_are(&names().collect::<Vec<_>>())),
                }
            }
            Meaning::Unknown => {
                let tables = scope.tables.iter();
                let tables: Vec<_> = match qualifier {
                    Some(qualifier) => tables.filter(|t| t.is_called(qualifier)).collect(),
                    None => tables.collect(),
                };
                let names = tables.iter().flat_map(|t| t.column_names());
                let found = codes::UNKNOWN_COLUMN.at(name.span, format!("unknown column `{full}`"));
                let plain = tables.iter().flat_map(|t| t.schema.fields.iter());
                match nearest(&name.value, names) {
                    Some(near) => found.help(format!("did you mean `{near}`?")),
                    None => {
                        let plain: Vec<_> = plain.map(|f| f.name.as_str()).collect();
                        found.help(there_are(&plain))
                    }
                }
            }
        };
        self.diagnostics.push(found);
    }

    /// Refuses an expression that would be written out so often that the query outgrows all bounds: it is doubled at every level
    /// of nesting.
    fn repeatable(&mut self, x: &Operand, times: usize) -> Option<()> {
        if x.expr.size() == 1 || x.expr.size().saturating_mul(times) <= REPEATED_NODES_MAX {
            return Some(());
        }
        let message = "the expression is too large to be compared this often";
        let found = codes::TOO_DEEP.at(x.span, message);
        self.diagnostics
            .push(found.help("compute it in a subquery in FROM"));
        None
    }

    fn unary(&mut self, op: UnaryOp, inner: &ast::Expr, names: &mut Names) -> Option<Expr> {
        let operand = self.operand(inner, names)?;
        let expr = match op {
            UnaryOp::Not => self.or_report(coerce::boolean(operand))?,
            UnaryOp::Negate => {
                let null = matches!(
                    &operand.expr,
                    Expr::Literal {
                        value: Value::Null,
                        ..
                    }
                );
                if !operand.expr.ty().is_numeric() && !null {
                    let message = format!(
                        "`-` takes a number, not {}",
                        coerce::describe(&operand.expr)
                    );
                    self.diagnostics
                        .push(codes::TYPE_MISMATCH.at(operand.span, message));
                    return None;
                }
                operand.expr
            }
        };
        Some(Expr::Unary {
            op,
            expr: Box::new(expr),
        })
    }

    fn between(
        &mut self,
        x: &ast::Expr,
        low: &ast::Expr,
        high: &ast::Expr,
        negated: bool,
        names: &mut Names,
    ) -> Option<Expr> {
        let (x, low, high) = (
            self.operand(x, names),
            self.operand(low, names),
            self.operand(high, names),
        );
        let x = x?;
        self.repeatable(&x, 2)?;
        let from = self.or_report(coerce::binary(BinaryOp::GreaterEqual, x.clone(), low?));
        let to = self.or_report(coerce::binary(BinaryOp::LessEqual, x, high?));
        Some(negate_if(negated, Expr::boolean(BinaryOp::And, from?, to?)))
    }

    fn in_list(
        &mut self,
        x: &ast::Expr,
        list: &[ast::Expr],
        negated: bool,
        names: &mut Names,
    ) -> Option<Expr> {
        let x = self.operand(x, names);
        let items = self.operands(list, names);
        let (x, items) = (x?, items?);
        self.repeatable(&x, items.len())?;
        let mut values = Vec::new();
        let mut has_null = false;
        let mut others = Vec::new();
        for item in items {
            let (left, right) = self.or_report(coerce::pair(BinaryOp::Equal, x.clone(), item))?;
            match right {
                Expr::Literal {
                    value: Value::Null, ..
                } => has_null = true,
                Expr::Literal { value, .. } if left == x.expr => values.push(value),
                right => others.push(Expr::boolean(BinaryOp::Equal, left, right)),
            }
        }
        values.sort();
        values.dedup();
        if others.is_empty() {
            let expr = Box::new(x.expr);
            return Some(Expr::InList {
                expr,
                list: values,
                has_null,
                negated,
            });
        }
        // Items that are no constants, or not of x's own unit, are compared one by one.
        if !values.is_empty() || has_null {
            let expr = Box::new(x.expr);
            others.push(Expr::InList {
                expr,
                list: values,
                has_null,
                negated: false,
            });
        }
        Expr::balanced(BinaryOp::Or, others).map(|any| negate_if(negated, any))
    }

    fn like(
        &mut self,
        x: &ast::Expr,
        pattern: &ast::Expr,
        ignore_case: bool,
        negated: bool,
        names: &mut Names,
    ) -> Option<Expr> {
        let (x, pattern) = (self.operand(x, names), self.operand(pattern, names));
        let (x, pattern) = (x?, pattern?);
        let Expr::Literal {
            value: Value::Text(text),
            ..
        } = pattern.expr
        else {
            let message = "the pattern is not a text literal";
            self.diagnostics
                .push(codes::BAD_PATTERN.at(pattern.span, message));
            return None;
        };
        if x.expr.ty() != Type::Text {
            let message = format!("LIKE takes a text, not {}", coerce::describe(&x.expr));
            let found = codes::TYPE_MISMATCH.at(x.span, message);
            self.diagnostics
                .push(found.help("CAST(x AS text) writes a value as a text"));
            return None;
        }
        let (expr, pattern) = (Box::new(x.expr), text.as_str().to_owned());
        Some(Expr::Like {
            expr,
            pattern,
            ignore_case,
            negated,
        })
    }

    fn case(
        &mut self,
        operand: Option<&ast::Expr>,
        branches: &[(ast::Expr, ast::Expr)],
        otherwise: Option<&ast::Expr>,
        names: &mut Names,
    ) -> Option<Expr> {
        let operand = operand.map(|x| {
            let x = self.operand(x, names)?;
            self.repeatable(&x, branches.len()).map(|()| x)
        });
        let mut conditions = Vec::new();
        for (when, _) in branches {
            conditions.push(match &operand {
                None => self.condition_in(when, names),
                Some(x) => {
                    let when = self.operand(when, names);
                    let pair = x.clone().zip(when);
                    pair.and_then(|(x, when)| {
                        self.or_report(coerce::binary(BinaryOp::Equal, x, when))
                    })
                }
            });
        }
        let results = branches.iter().map(|(_, then)| then).chain(otherwise);
        let results = self.operands(results, names);
        let conditions = conditions.into_iter().collect::<Option<Vec<_>>>();
        let (mut results, ty, unit) = self.or_report(coerce::common(results?))?;
        let otherwise = otherwise.and_then(|_| results.pop()).map(Box::new);
        let branches = conditions?.into_iter().zip(results).collect();
        Some(Expr::Case {
            branches,
            otherwise,
            ty,
            unit,
        })
    }

    fn cast(&mut self, x: &ast::Expr, ty: Type, span: Span, names: &mut Names) -> Option<Expr> {
        let x = self.expr(x, names)?;
        let (from, unit) = (x.ty(), x.unit());
        if matches!(
            &x,
            Expr::Literal {
                value: Value::Null,
                ..
            }
        ) {
            return Some(coerce::null(ty, Unit::None));
        }
        let (x, unit) = match (from, ty) {
            (from, to) if from == to => return Some(x),
            (Type::Time, Type::Int | Type::Float) => (x, Unit::Nanoseconds),
            (Type::Int | Type::Float, Type::Time) if unit.dimension() != Dimension::Data => {
                (coerce::to_unit(x, Unit::Nanoseconds), Unit::Nanoseconds)
            }
            (Type::Int | Type::Float, Type::Int | Type::Float) => (x, unit),
            (_, Type::Text) | (Type::Text, Type::Int | Type::Float | Type::Bool) => (x, Unit::None),
            (Type::Text, Type::Time) => (x, Unit::Nanoseconds),
            (Type::Bool, Type::Int) | (Type::Int, Type::Bool) => (x, Unit::None),
            _ => {
                let message = format!("{} cannot become a {ty}", describe_type(from, unit));
                self.diagnostics
                    .push(codes::TYPE_MISMATCH.at(span, message));
                return None;
            }
        };
        Some(coerce::cast(x, ty, unit))
    }

    fn call(
        &mut self,
        span: Span,
        name: &Ident,
        distinct: bool,
        args: &[ast::Expr],
        star: bool,
        names: &mut Names,
    ) -> Option<Expr> {
        if let Some(function) = aggregate::find(&name.value) {
            return self.aggregate(span, name, function, distinct, args, star, names);
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
        let returns = returns.map_err(|r| refused(r, span, &operands, function.doc()));
        let returns = self.or_report(returns)?;
        let args = operands.into_iter().map(|o| o.expr).collect();
        Some(Expr::Call(ScalarCall {
            function,
            args,
            ty: returns.ty,
            unit: returns.unit,
        }))
    }

    #[allow(clippy::too_many_arguments)]
    fn aggregate(
        &mut self,
        span: Span,
        name: &Ident,
        function: &'static dyn aggregate::Aggregate,
        distinct: bool,
        args: &[ast::Expr],
        star: bool,
        names: &mut Names,
    ) -> Option<Expr> {
        if let Aggregates::Forbidden(clause) = names.aggregates {
            let message = format!("the aggregate `{}` cannot stand in {clause}", name.value);
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
            let message = format!("`{}` lacks its argument", name.value);
            let found = codes::BAD_ARGUMENTS.at(span, message);
            self.diagnostics
                .push(found.help(format!("it is called as {}", doc.signature)));
            return None;
        }
        let returns = function.check(&arguments(&operands));
        let returns = self.or_report(returns.map_err(|r| refused(r, span, &operands, doc)))?;
        let args = operands.into_iter().map(|o| o.expr).collect();
        let call = AggregateCall {
            function,
            args,
            distinct,
            ty: returns.ty,
            unit: returns.unit,
        };
        let Aggregates::Collect(calls) = &mut names.aggregates else {
            unreachable!("forbidden aggregates are refused above");
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
        self.diagnostics.push(match near {
            Some(near) => found.help(format!("did you mean `{near}`?")),
            None => found.help("`weir functions` lists them all"),
        });
    }
}

/// True when an aggregate is called in `expr`, aliases followed, subqueries left out.
pub(super) fn has_aggregate(expr: &ast::Expr) -> bool {
    let mut found = match &expr.kind {
        ExprKind::Call { name, .. } => aggregate::find(&name.value).is_some(),
        _ => false,
    };
    expr.kind
        .visit(&mut |child| found = found || has_aggregate(child));
    found
}

/// `NOT x`, or x.
pub(super) fn negate_if(negated: bool, expr: Expr) -> Expr {
    match negated {
        true => Expr::Unary {
            op: UnaryOp::Not,
            expr: Box::new(expr),
        },
        false => expr,
    }
}

/// A number of some unit in the smallest one, as an integer where it is one.
fn quantity(number: Number, scale: i64) -> (Option<Value>, Type) {
    match number {
        Number::Int(x) => (x.checked_mul(scale).map(Value::Int), Type::Int),
        Number::Float(x) => {
            let smallest = x * scale as f64;
            let whole = smallest.round();
            // 0.1 has no exact float; 0.1 ms are 100,000 ns nevertheless.
            let near = (smallest - whole).abs() <= whole.abs() * 1e-12;
            match near && whole.abs() < (1_u64 << 53) as f64 {
                true => (Some(Value::Int(whole as i64)), Type::Int),
                false => (
                    Some(Value::Float(smallest)).filter(|_| smallest.is_finite()),
                    Type::Float,
                ),
            }
        }
    }
}

fn arguments(operands: &[Operand]) -> Vec<Argument> {
    let argument = |o: &Operand| Argument {
        ty: o.expr.ty(),
        unit: o.expr.unit(),
        constant: match &o.expr {
            Expr::Literal { value, .. } => Some(value.clone()),
            _ => None,
        },
    };
    operands.iter().map(argument).collect()
}

fn refused(refusal: Refusal, span: Span, operands: &[Operand], doc: &FunctionDoc) -> Diagnostic {
    let span = refusal
        .argument
        .and_then(|i| operands.get(i))
        .map_or(span, |o| o.span);
    let found = codes::BAD_ARGUMENTS.at(span, refusal.message);
    found.help(format!("it is called as {}", doc.signature))
}
