//! Window functions: calls with `OVER`. Their results are columns of nodes between the groups of a
//! block and its select list.

use std::collections::BTreeSet;
use std::sync::Arc;

use weir_model::{Field, Type, Unit, Value};

use super::Checker;
use super::call::{Written, named_aggregate};
use super::coerce;
use super::expr::Names;
use super::query::order_by;
use crate::diagnostic::{Span, codes, counted};
use crate::expr::{BinaryOp, Expr, fold_expr};
use crate::function::over::{self, WindowFunction};
use crate::plan::over::{FrameUnit, OverFunction, RowFrame};
use crate::plan::{OrderBy, OverCall, Partitioning, Plan};
use crate::syntax::ast::SpannedExpr;
use crate::syntax::ast::{self, ExprKind, FrameBound, Ident, Literal, Number, OverClause};
use crate::syntax::measure;

/// Results of window functions are numbered from here on, until the nodes that compute them exist.
pub(super) const WINDOW_RESULTS: usize = 1 << 42;

/// A checked call, over the columns of its block.
pub(super) struct WindowCall {
    place: Span,
    name: &'static str,
    by: Partitioning,
    call: OverCall,
}

impl Checker<'_> {
    /// The result of a check that allows window functions, and their calls.
    pub(super) fn with_window_calls<T>(
        &mut self,
        calls: &mut Vec<WindowCall>,
        check: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let outside = self.window_calls.replace(std::mem::take(calls));
        let checked = check(self);
        let found = std::mem::replace(&mut self.window_calls, outside);
        *calls = found.unwrap_or_default();
        checked
    }

    /// A call of a window function without OVER: `delta` and `rate` are then in the order of `ts`.
    pub(super) fn without_over(
        &mut self,
        call: Written,
        function: &WindowFunction,
        names: &mut Names,
    ) -> Option<Expr> {
        if !matches!(function.doc.name, "delta" | "rate") {
            let message = format!("`{}` needs OVER", function.doc.name);
            let help = format!("write `{}`", function.doc.signature);
            let found = codes::WINDOW_FUNCTION.at(call.span, message);
            self.diagnostics.push(found.help(help));
            return None;
        }
        let name = Ident::new("ts".into(), call.span);
        let ts = ExprKind::Column { table: None, name };
        let clause = OverClause {
            name: call.name.clone(),
            distinct: call.distinct,
            args: call.args.to_vec(),
            star: call.star,
            filter: None,
            window: ast::RowWindow {
                order_by: vec![ast::OrderItem {
                    expr: SpannedExpr::new(ts, call.span),
                    descending: false,
                    nulls_first: None,
                }],
                ..ast::RowWindow::default()
            },
        };
        self.over(&clause, call.span, names)
    }

    /// A call with OVER.
    pub(super) fn over(
        &mut self,
        clause: &OverClause,
        place: Span,
        names: &mut Names,
    ) -> Option<Expr> {
        let Some(outside) = self.window_calls.take() else {
            let message = format!(
                "the window function `{}` is not allowed here",
                clause.name.value
            );
            let help = "use it in SELECT or ORDER BY, and select from its result in a subquery";
            let found = codes::WINDOW_FUNCTION.at(place, message);
            self.diagnostics.push(found.help(help));
            return None;
        };
        let function = over::find(&clause.name.value);
        if let Some(name @ ("delta" | "rate")) = function.map(|function| function.doc.name) {
            self.window_calls = Some(outside);
            return self.change(name == "rate", clause, place, names);
        }
        let call = self.window_call(function, clause, place, names);
        let mut calls = outside;
        let result = call.map(|call| {
            let (ty, unit) = call.call.function.returns();
            let same = |c: &WindowCall| c.by == call.by && c.call == call.call;
            let index = calls.iter().position(same).unwrap_or_else(|| {
                calls.push(call);
                calls.len() - 1
            });
            Expr::column(WINDOW_RESULTS + index, ty, unit)
        });
        self.window_calls = Some(calls);
        result
    }

    /// `delta(x)`: the difference from the previous row; `rate(x)`: that per second.
    fn change(
        &mut self,
        is_rate: bool,
        clause: &OverClause,
        place: Span,
        names: &mut Names,
    ) -> Option<Expr> {
        let name = &clause.name.value;
        let [x] = &clause.args[..] else {
            let message = format!("`{name}` takes 1 argument");
            self.diagnostics
                .push(codes::BAD_ARGUMENTS.at(place, message));
            return None;
        };
        self.expr(x, names)?;
        let node = |kind| SpannedExpr::new(kind, place);
        let binary = |op, left, right| {
            let (left, right) = (Box::new(left), Box::new(right));
            node(ExprKind::Binary { op, left, right })
        };
        let difference = |x: &SpannedExpr| {
            let lag = OverClause {
                name: Ident::new("lag".into(), clause.name.span),
                args: vec![x.clone()],
                ..clause.clone()
            };
            let lag = node(ExprKind::Over(Box::new(lag)));
            binary(BinaryOp::Subtract, x.clone(), lag)
        };
        if !is_rate {
            return self.expr(&difference(x), names);
        }
        let window = self.resolved_window(&clause.window)?;
        let key = window.order_by.first().map(|key| &key.expr);
        let checked = key.and_then(|key| self.expr(key, names));
        if checked.is_none_or(|key| key.ty() != Type::Time) {
            let message = format!("`{name}` needs a timestamp as its ORDER BY");
            let found = codes::WINDOW_FUNCTION.at(place, message);
            self.diagnostics
                .push(found.help("write `over (order by ts)`"));
            return None;
        }
        let as_float = |x| {
            let ty = ast::Spanned::new(Type::Float, place);
            node(ExprKind::Cast {
                expr: Box::new(x),
                ty,
            })
        };
        let smallest = measure::find("ns").expect("it is listed");
        let second = Literal::Quantity(Number::Int(self.options.second), smallest);
        let second = node(ExprKind::Literal(second));
        let elapsed = as_float(difference(key?));
        let seconds = binary(BinaryOp::Divide, elapsed, second);
        let rate = binary(BinaryOp::Divide, as_float(difference(x)), seconds);
        self.expr(&rate, names)
    }

    fn window_call(
        &mut self,
        function: Option<&'static WindowFunction>,
        clause: &OverClause,
        place: Span,
        names: &mut Names,
    ) -> Option<WindowCall> {
        let clause = &OverClause {
            window: self.resolved_window(&clause.window)?,
            ..clause.clone()
        };
        let window = &clause.window;
        if clause.distinct {
            let message = "a window function takes no DISTINCT";
            self.diagnostics
                .push(codes::WINDOW_FUNCTION.at(place, message));
            return None;
        }
        let keys: Vec<_> = window
            .partition
            .iter()
            .map(|key| self.expr(key, names))
            .collect();
        let order = window.order_by.iter().map(|item| {
            let key = self.expr(&item.expr, names);
            key.map(|key| order_by(key, item))
        });
        let order: Vec<_> = order.collect();
        let (name, function) = match function {
            Some(function) => (function.doc.name, self.own(function, clause, place, names)),
            None => self.aggregate_over(clause, place, names)?,
        };
        let keys = keys.into_iter().collect::<Option<Vec<_>>>()?;
        let order = order.into_iter().collect::<Option<Vec<_>>>()?;
        let function = function?;
        let frame = match &window.frame {
            Some(frame) if function.has_frame() => self.frame(frame, &order)?,
            Some(frame) => {
                let message = format!("`{name}` is computed from the partition, not from a frame");
                self.diagnostics
                    .push(codes::WINDOW_FUNCTION.at(frame.span, message));
                return None;
            }
            None => RowFrame::UP_TO_PEERS,
        };
        if matches!(function, OverFunction::Offset { .. }) && order.is_empty() {
            let message = format!("`{name}` needs an order");
            let found = codes::WINDOW_FUNCTION.at(place, message);
            self.diagnostics
                .push(found.help("write `over (order by ts)`"));
            return None;
        }
        Some(WindowCall {
            place,
            name,
            by: Partitioning { keys, order },
            call: OverCall { function, frame },
        })
    }

    /// A function that is only called with OVER.
    fn own(
        &mut self,
        function: &WindowFunction,
        clause: &OverClause,
        place: Span,
        names: &mut Names,
    ) -> Option<OverFunction> {
        let (name, args) = (function.doc.name, &clause.args);
        if clause.star || !function.arguments.contains(&args.len()) {
            let message = format!("`{name}` with {}", counted(args.len(), "argument"));
            let found = codes::BAD_ARGUMENTS.at(place, message);
            let help = format!("it is called as {}", function.doc.signature);
            self.diagnostics.push(found.help(help));
            return None;
        }
        let mut value = |checker: &mut Self| checker.expr(&args[0], names);
        Some(match name {
            "row_number" => OverFunction::RowNumber,
            "rank" => OverFunction::Rank,
            "dense_rank" => OverFunction::DenseRank,
            "first_value" => OverFunction::First(value(self)?),
            "last_value" => OverFunction::Last(value(self)?),
            "percent_rank" => OverFunction::PercentRank,
            "cume_dist" => OverFunction::CumeDist,
            "ntile" => OverFunction::Ntile(self.position(&args[0], names)?),
            "nth_value" => {
                let value = value(self)?;
                OverFunction::Nth(value, self.position(&args[1], names)?)
            }
            _ => return self.offset(name == "lag", args, names),
        })
    }

    /// The number of parts of `ntile` or the position of `nth_value`.
    fn position(&mut self, number: &SpannedExpr, names: &mut Names) -> Option<i64> {
        let checked = self.expr(number, names)?;
        if let Expr::Literal {
            value: Value::Int(n @ 1..),
            ..
        } = checked
        {
            return Some(n);
        }
        let message = "the number is not a constant integer from 1";
        let found = codes::BAD_ARGUMENTS.at(number.span, message);
        self.diagnostics.push(found);
        None
    }

    /// `lag(x, n, default)`
    fn offset(
        &mut self,
        is_lag: bool,
        args: &[SpannedExpr],
        names: &mut Names,
    ) -> Option<OverFunction> {
        let value = self.operand(&args[0], names)?;
        let rows = match args.get(1) {
            None => 1,
            Some(rows) => {
                let checked = self.expr(rows, names)?;
                let Expr::Literal {
                    value: Value::Int(rows @ 0..=0xFFFF_FFFF),
                    ..
                } = checked
                else {
                    let message = "the number of rows is not a constant integer from 0";
                    self.diagnostics
                        .push(codes::BAD_ARGUMENTS.at(args[1].span, message));
                    return None;
                };
                rows
            }
        };
        let rows = if is_lag { -rows } else { rows };
        let Some(default) = args.get(2) else {
            let (value, default) = (value.expr, None);
            return Some(OverFunction::Offset {
                value,
                rows,
                default,
            });
        };
        let default = self.operand(default, names)?;
        let (mut both, ..) = self.or_report(coerce::common(vec![value, default]))?;
        let default = both.pop();
        let value = both.pop()?;
        Some(OverFunction::Offset {
            value,
            rows,
            default,
        })
    }

    /// An aggregate with OVER, and its name.
    fn aggregate_over(
        &mut self,
        clause: &OverClause,
        span: Span,
        names: &mut Names,
    ) -> Option<(&'static str, Option<OverFunction>)> {
        let call = Written {
            span,
            name: &clause.name,
            distinct: false,
            args: &clause.args,
            star: clause.star,
            filter: clause.filter.as_deref(),
        };
        let Some((function, args)) = named_aggregate(call) else {
            self.unknown_function(call.name);
            return None;
        };
        let call = Written {
            args: &args,
            star: clause.star && args.is_empty(),
            ..call
        };
        let operands = self.operands(call.args, names);
        let checked = operands.and_then(|operands| self.aggregate_call(call, function, operands));
        Some((function.doc().name, checked.map(OverFunction::Aggregate)))
    }

    /// A frame; its distances are constants in the unit of the sort key.
    fn frame(
        &mut self,
        frame: &ast::Spanned<ast::FrameClause>,
        order: &[OrderBy],
    ) -> Option<RowFrame> {
        let ast::FrameClause { unit, start, end } = &frame.value;
        if *unit == FrameUnit::Groups && order.is_empty() {
            let message = "a frame of GROUPS needs an order";
            let found = codes::WINDOW_FUNCTION.at(frame.span, message);
            self.diagnostics
                .push(found.help("write `over (order by ts groups ..)`"));
            return None;
        }
        let start = self.bound(*unit, start, order)?;
        let end = self.bound(*unit, end, order)?;
        Some(RowFrame {
            unit: *unit,
            start,
            end,
        })
    }

    /// The distance of a bound; `None` in it is unbounded.
    fn bound(
        &mut self,
        unit: FrameUnit,
        bound: &FrameBound,
        order: &[OrderBy],
    ) -> Option<Option<i64>> {
        let distance = match bound {
            FrameBound::Unbounded => return Some(None),
            FrameBound::CurrentRow => return Some(Some(0)),
            FrameBound::Preceding(distance) | FrameBound::Following(distance) => distance,
        };
        let key_unit = match (unit, order) {
            (FrameUnit::Rows | FrameUnit::Groups, _) => Unit::None,
            (FrameUnit::Range, [key]) if matches!(key.expr.ty(), Type::Int | Type::Time) => {
                key.expr.unit()
            }
            (FrameUnit::Range, _) => {
                let message = "a distance needs an ORDER BY of one integer or timestamp";
                self.diagnostics
                    .push(codes::WINDOW_FUNCTION.at(distance.span, message));
                return None;
            }
        };
        let scope = super::scope::Scope::of("", Arc::default(), None);
        let checked = self.plain_expr(distance, &scope, "a frame")?;
        let in_unit = match checked.unit() {
            Unit::None => Some(checked),
            unit if unit.dimension() == key_unit.dimension() => {
                Some(fold_expr(coerce::to_unit(checked, key_unit)))
            }
            _ => None,
        };
        let Some(Expr::Literal {
            value: Value::Int(rows @ 0..),
            ..
        }) = in_unit
        else {
            let message = match key_unit {
                Unit::None => "the bound of a frame is not an integer from 0".to_owned(),
                unit => format!("the bound of a frame is not a whole number of {unit} from 0"),
            };
            self.diagnostics
                .push(codes::WINDOW_FUNCTION.at(distance.span, message));
            return None;
        };
        Some(Some(match bound {
            FrameBound::Preceding(_) => -rows,
            _ => rows,
        }))
    }

    /// `plan` with the results of `calls`, and only those of its columns that they or `outputs`
    /// read; `outputs` are changed to be over its columns. `below` makes an expression over the
    /// columns of the block one over those of `plan`; its error is a column that is not there.
    pub(super) fn with_window_results(
        &mut self,
        plan: Arc<Plan>,
        mut calls: Vec<WindowCall>,
        outputs: &mut [&mut Expr],
        below: impl Fn(&Expr) -> Result<Expr, usize>,
    ) -> Option<Arc<Plan>> {
        if calls.is_empty() {
            return Some(plan);
        }
        let mut read = BTreeSet::new();
        let mut note = |expr: &Expr| {
            expr.visit_columns(&mut |i| {
                read.insert(i);
            });
        };
        for call in &mut calls {
            let exprs = call.by.exprs_mut().chain(call.call.function.exprs_mut());
            for expr in exprs {
                let Ok(over) = below(expr) else {
                    let message = "the window function reads a column that is not in GROUP BY";
                    self.diagnostics
                        .push(codes::NOT_GROUPED.at(call.place, message));
                    return None;
                };
                *expr = over;
                note(expr);
            }
        }
        outputs.iter().for_each(|expr| note(expr));
        read.retain(|i| *i < WINDOW_RESULTS);
        let read: Vec<usize> = read.into_iter().collect();
        let columns = plan.columns();
        let exprs = read.iter().map(|i| columns[*i].clone()).collect();
        let fields = read.iter().map(|i| plan.schema[*i].clone()).collect();
        let mut plan = Plan::project(plan, exprs, fields);
        let mut positions = vec![0; calls.len()];
        let kept = |i: usize| read.binary_search(&i).expect("it was found to be read");
        for call in &mut calls {
            let exprs = call.by.exprs_mut().chain(call.call.function.exprs_mut());
            exprs.for_each(|expr| *expr = expr.map_columns(&kept));
        }
        let mut open: Vec<usize> = (0..calls.len()).collect();
        while let Some(first) = open.first() {
            let by = calls[*first].by.clone();
            let (same, others): (Vec<usize>, _) = open.iter().partition(|i| calls[**i].by == by);
            let first = plan.schema.len();
            for (at, i) in same.iter().enumerate() {
                positions[*i] = first + at;
            }
            let fields = same.iter().map(|i| field(&calls[*i], *i)).collect();
            let together = same.iter().map(|i| calls[*i].call.clone()).collect();
            plan = Plan::over(plan, by, together, fields);
            open = others;
        }
        for expr in outputs {
            **expr = expr.map_columns(&|i| match i.checked_sub(WINDOW_RESULTS) {
                Some(call) => positions[call],
                None => kept(i),
            });
        }
        Some(plan)
    }
}

fn field(call: &WindowCall, number: usize) -> Field {
    let (ty, unit) = call.call.function.returns();
    let field = Field::new(format!("{}{}", call.name, number + 1), ty).unit(unit);
    match call.call.function.is_nullable() {
        true => field.nullable(),
        false => field,
    }
}
