//! Windows, and the conversion of durations to instants.

use std::sync::Arc;

use weir_model::{Dimension, NANOS_PER_SECOND};

use super::scope::Scope;
use super::{Checker, Dialect};
use crate::diagnostic::{Span, codes};
use crate::expr::Expr;
use crate::plan::{Plan, ToStream, Window};
use crate::syntax::ast::{self, Number, Spanned, WindowSpec};
use crate::window::{Delayed, Now, Partition, Range, Sessions};

impl Checker<'_> {
    /// The relation that FROM reads: `plan` itself, or the stream through its window. `as_stream`:
    /// a script has registered the relation as a stream; `names` are the source's names in
    /// PARTITION BY.
    pub(super) fn windowed(
        &mut self,
        plan: Arc<Plan>,
        window: Option<&ast::WindowClause>,
        as_stream: bool,
        names: &[&str],
    ) -> Option<Arc<Plan>> {
        let scope = || Scope::of(names[0], plan.schema.clone(), None);
        let window = match window {
            None if super::is_relation(&plan) => return Some(plan),
            None => return Some(Plan::window(plan, Window::unbounded(None))),
            Some(window) => window,
        };
        // A registered relation with an explicit default window is the relation, as in STREAM.
        let default = window.value == (WindowSpec::Unbounded { slide: None });
        if as_stream && default && super::is_relation(&plan) {
            return Some(plan);
        }
        let kind = self.window(window, scope(), names)?;
        let stream = match plan.as_stream() {
            Some(stream) => stream,
            None if as_stream => Plan::to_stream(plan, ToStream::Istream),
            None => {
                let message = format!("`{}` is a relation and cannot have a window", names[0]);
                let found = codes::WINDOW_ON_RELATION.at(window.span, message);
                self.diagnostics
                    .push(found.help("Istream(..) makes a stream of its changes"));
                return None;
            }
        };
        Some(Plan::window(stream, kind))
    }

    fn window(
        &mut self,
        window: &ast::WindowClause,
        scope: Scope,
        names: &[&str],
    ) -> Option<Window> {
        match &window.value {
            WindowSpec::Error => None,
            WindowSpec::Now => Some(Now.into()),
            WindowSpec::Rows(rows) => Some(Window::rows(self.at_least_one(rows)?)),
            WindowSpec::Unbounded { slide } => {
                let slide = self.slide(slide.as_ref())?;
                Some(Window::unbounded(slide))
            }
            WindowSpec::Range { size, slide, delay } => {
                let (size, slide) = (self.instants(size), self.slide(slide.as_ref()));
                let delay = self.slide(delay.as_ref());
                let (size, slide) = (size?, slide?);
                Some(match delay? {
                    None => Window::range(size, slide),
                    Some(delay) => {
                        let range = Range { size, slide };
                        Delayed { range, delay }.into()
                    }
                })
            }
            WindowSpec::Session { gap, keys } => {
                let gap = self.instants(gap);
                let keys = self.window_keys(keys, scope, names, "SESSION BY");
                Some(
                    Sessions {
                        gap: gap?,
                        keys: keys?,
                    }
                    .into(),
                )
            }
            WindowSpec::Partition { keys, rows } => {
                let rows = self.at_least_one(rows);
                let keys = self.window_keys(keys, scope, names, "PARTITION BY");
                Some(
                    Partition {
                        keys: keys?,
                        rows: rows?,
                    }
                    .into(),
                )
            }
        }
    }

    /// The keys of a window.
    fn window_keys(
        &mut self,
        keys: &[ast::SpannedExpr],
        mut scope: Scope,
        names: &[&str],
        clause: &'static str,
    ) -> Option<Vec<Expr>> {
        let keys: Vec<_> = keys
            .iter()
            .map(|key| {
                // STREAM's examples write `S [Partition By S2.A Rows 1] as S2`, with the alias that
                // follows.
                let qualifier = match &key.kind {
                    ast::ExprKind::Column {
                        table: Some(table), ..
                    } => Some(&table.value),
                    _ => None,
                };
                let called = |n: &&&str| qualifier.is_some_and(|q| q.eq_ignore_ascii_case(n));
                scope.tables[0].name = names.iter().find(called).unwrap_or(&names[0]).to_string();
                self.plain_expr(key, &scope, clause)
            })
            .collect();
        keys.into_iter().collect()
    }

    fn at_least_one(&mut self, rows: &Spanned<u64>) -> Option<u64> {
        if rows.value > 0 {
            return Some(rows.value);
        }
        let message = "a window must hold at least one row";
        self.diagnostics
            .push(codes::BAD_WINDOW.at(rows.span, message));
        None
    }

    /// `Some(None)` without slide; `None` after an error.
    fn slide(&mut self, slide: Option<&Spanned<ast::Duration>>) -> Option<Option<i64>> {
        match slide {
            None => Some(None),
            Some(slide) => self.instants(slide).map(Some),
        }
    }

    /// The number of instants in a duration; at least one, and a whole number.
    pub(super) fn instants(&mut self, duration: &Spanned<ast::Duration>) -> Option<i64> {
        let Spanned {
            value: ast::Duration { count, measure },
            span,
        } = duration;
        // A duration is a whole number of ticks, whatever a tick lasts.
        let (second, tick) = match self.options.dialect {
            Dialect::Cql => (self.options.second, 1),
            Dialect::Stream => (1, self.options.second),
        };
        let nanos = match measure {
            Some(measure) if measure.dimension == Dimension::Time => measure.scale,
            Some(measure) => {
                let message = format!("`{}` is not a unit of time", measure.name);
                self.diagnostics
                    .push(codes::UNIT_MISMATCH.at(*span, message));
                return None;
            }
            None if self.options.dialect == Dialect::Stream => NANOS_PER_SECOND,
            None => {
                let message = "the duration has no unit";
                let help = format!("write `{count} seconds` or `{count} ms`");
                self.diagnostics
                    .push(codes::NO_UNIT.at(*span, message).help(help));
                return None;
            }
        };
        let per = i128::from(NANOS_PER_SECOND);
        let scaled = match count {
            Number::Int(count) => {
                i128::from(*count).checked_mul(i128::from(nanos) * i128::from(second))
            }
            // A fraction such as 0.1 has no exact float; it is rounded to the nearest instant.
            Number::Float(count) => {
                let instants = count * nanos as f64 * second as f64 / per as f64;
                let whole = instants.round();
                let near =
                    (instants - whole).abs() <= whole.abs() * 1e-9 && whole < i64::MAX as f64;
                near.then(|| whole as i128 * per)
            }
        };
        let whole = scaled.filter(|s| s % per == 0).map(|s| s / per);
        let whole = whole.and_then(|s| i64::try_from(s).ok()).filter(|s| *s > 0);
        let instants = whole.and_then(|s| s.checked_mul(tick));
        if instants.is_none() {
            self.bad_span(*span);
        }
        instants
    }

    fn bad_span(&mut self, span: Span) {
        let found = match self.options.dialect {
            Dialect::Cql => codes::BAD_WINDOW.at(
                span,
                "the duration is not an integer number of nanoseconds from 1 to 2^63",
            ),
            Dialect::Stream => codes::BAD_WINDOW
                .at(
                    span,
                    "the duration is not an integer number of ticks from 1 to 2^63",
                )
                .help("in a script the unit of time is the tick, also called second"),
        };
        self.diagnostics.push(found);
    }
}
