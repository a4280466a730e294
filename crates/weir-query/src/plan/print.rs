//! Plans and expressions as text, for `weir explain` and for tests.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter};

use weir_model::{Field, Type, Unit, Value};

use super::{JoinKind, Node, OrderBy, Plan, SetOp, ToStream, Window};
use crate::expr::{BinaryOp, Expr, UnaryOp};
use crate::function::AggregateCall;
use crate::window::Print;

impl Display for Plan {
    /// A tree, the result first, inputs indented by two blanks; terminated by a line feed.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.lines(&mut |plan, depth| writeln!(f, "{:1$}{2}", "", 2 * depth, plan.title()))
    }
}

impl Plan {
    /// Calls `line` with every node and its depth, the result first.
    pub fn lines<E>(&self, line: &mut impl FnMut(&Plan, usize) -> Result<(), E>) -> Result<(), E> {
        fn walk<E>(
            plan: &Plan,
            depth: usize,
            line: &mut impl FnMut(&Plan, usize) -> Result<(), E>,
        ) -> Result<(), E> {
            line(plan, depth)?;
            plan.inputs()
                .into_iter()
                .try_for_each(|input| walk(input, depth + 1, line))
        }
        walk(self, 0, line)
    }

    /// The node alone, in one line: `window [range 5000000000]`.
    pub fn title(&self) -> String {
        self.title_in(&|instants| instants.to_string())
    }

    /// As [`Plan::title`], with durations formatted by `span`: `window [range 5 s]`.
    pub fn title_in(&self, span: &dyn Fn(i64) -> String) -> String {
        let inputs = self.inputs();
        let fields = |i: usize| inputs[i].schema.fields.as_slice();
        match &self.node {
            Node::Source(declaration) => format!("source {}", declaration.name),
            Node::Window { window, .. } => {
                format!("window [{}]", window_text(window, fields(0), span))
            }
            Node::Select { predicate, .. } => format!("select {}", show(predicate, fields(0))),
            Node::Project { exprs, .. } => {
                let columns = exprs.iter().zip(&self.schema.fields);
                let columns = columns.map(|(expr, field)| {
                    let text = show(expr, fields(0)).to_string();
                    let name = quoted(&field.name);
                    if text == name {
                        text
                    } else {
                        format!("{text} as {name}")
                    }
                });
                match exprs.is_empty() {
                    true => "project no columns".into(),
                    false => format!("project {}", columns.collect::<Vec<_>>().join(", ")),
                }
            }
            Node::Join(join) => {
                let both = [fields(0), fields(1)].concat();
                let pairs = join
                    .on
                    .iter()
                    .map(|(l, r)| format!("{} = {}", show(l, fields(0)), show(r, fields(1))));
                let conditions =
                    pairs.chain(join.residual.iter().map(|r| show(r, &both).to_string()));
                let conditions = conditions.collect::<Vec<_>>().join(" and ");
                let on = if conditions.is_empty() { "" } else { " on " };
                format!("{} join{on}{conditions}", join_name(join.kind))
            }
            Node::Aggregate { keys, calls, .. } => {
                let keys = keys.iter().map(|key| show(key, fields(0)).to_string());
                format!("aggregate {}", grouped(&calls_text(calls, fields(0)), keys))
            }
            Node::Partial {
                slide, keys, calls, ..
            } => {
                let keys = keys.iter().map(|key| show(key, fields(0)).to_string());
                let calls = grouped(&calls_text(calls, fields(0)), keys);
                format!("partial [slide {}] {calls}", span(*slide))
            }
            Node::Merge {
                size, slide, keys, ..
            } => {
                let slide = Some(*slide);
                let window = match *size {
                    Some(size) => Window::range(size, slide),
                    None => Window::unbounded(slide),
                };
                let window = window_text(&window, fields(0), span);
                let (keys, calls) = self.schema.fields.split_at(*keys);
                let name = |field: &Field| quoted(&field.name).into_owned();
                let calls: Vec<String> = calls.iter().map(name).collect();
                let calls = grouped(&calls.join(", "), keys.iter().map(name));
                format!("merge [{window}] {calls}")
            }
            Node::Over { by, calls, .. } => {
                let calls = calls.iter().map(|call| call.text(fields(0)));
                let calls = calls.collect::<Vec<_>>().join(", ");
                format!("{calls} over ({})", by.text(fields(0)))
            }
            Node::Match { by, .. } => by.text(fields(0), span),
            Node::Correlate { by, .. } => by.text(span),
            Node::Distinct { .. } => "distinct".into(),
            Node::SetOp { op, all, .. } => {
                let op = match op {
                    SetOp::Union => "union",
                    SetOp::Intersect => "intersect",
                    SetOp::Except => "except",
                };
                format!("{op}{}", if *all { " all" } else { "" })
            }
            Node::Order {
                by, limit, offset, ..
            } => order_text(by, *limit, *offset, fields(0)),
            Node::ToStream { kind, .. } => match kind {
                ToStream::Istream => "istream".into(),
                ToStream::Dstream => "dstream".into(),
                ToStream::Rstream { every: None } => "rstream".into(),
                ToStream::Rstream { every: Some(every) } => {
                    format!("rstream every {}", span(*every))
                }
            },
        }
    }
}

fn join_name(kind: JoinKind) -> &'static str {
    match kind {
        JoinKind::Inner => "inner",
        JoinKind::Left => "left",
        JoinKind::Right => "right",
        JoinKind::Full => "full",
        JoinKind::Semi => "semi",
        JoinKind::Anti => "anti",
        JoinKind::NotIn => "not-in",
    }
}

fn window_text(window: &Window, fields: &[Field], span: &dyn Fn(i64) -> String) -> String {
    let expr = |expr: &Expr| show(expr, fields).to_string();
    window.kind().text(&Print { span, expr: &expr })
}

/// `sum(bytes), count(*) by op, vm`.
fn grouped(calls: &str, keys: impl Iterator<Item = String>) -> String {
    match keys.collect::<Vec<_>>().join(", ") {
        keys if keys.is_empty() => calls.to_owned(),
        keys => format!("{calls} by {keys}"),
    }
}

fn calls_text(calls: &[AggregateCall], fields: &[Field]) -> String {
    let calls = calls.iter().map(|call| call_text(call, fields));
    calls.collect::<Vec<_>>().join(", ")
}

/// `sum(bytes)`, over columns with the names in `fields`.
pub(super) fn call_text(call: &AggregateCall, fields: &[Field]) -> String {
    let distinct = if call.distinct { "distinct " } else { "" };
    let args = call.args.iter().map(|arg| show(arg, fields).to_string());
    let args = args.collect::<Vec<_>>().join(", ");
    let args = if args.is_empty() { "*" } else { &args };
    format!("{}({distinct}{args})", call.function.doc().name)
}

/// `ts desc, vm`
pub(super) fn order_keys(by: &[OrderBy], fields: &[Field]) -> String {
    let keys = by.iter().map(|key| {
        let direction = if key.descending { " desc" } else { "" };
        let nulls = if key.nulls_first == key.descending {
            ""
        } else if key.nulls_first {
            " nulls first"
        } else {
            " nulls last"
        };
        format!("{}{direction}{nulls}", show(&key.expr, fields))
    });
    keys.collect::<Vec<_>>().join(", ")
}

fn order_text(by: &[OrderBy], limit: Option<u64>, offset: u64, fields: &[Field]) -> String {
    let keys = order_keys(by, fields);
    let mut parts = Vec::new();
    if !keys.is_empty() {
        parts.push(format!("order by {keys}"));
    }
    parts.extend(limit.map(|limit| format!("limit {limit}")));
    parts.extend((offset > 0).then(|| format!("offset {offset}")));
    parts.join(" ")
}

/// An expression over columns with the names in `fields`.
pub fn show<'a>(expr: &'a Expr, fields: &'a [Field]) -> impl Display + 'a {
    Show {
        expr,
        fields,
        nested: false,
    }
}

struct Show<'a> {
    expr: &'a Expr,
    fields: &'a [Field],
    nested: bool,
}

impl<'a> Show<'a> {
    fn child(&self, expr: &'a Expr) -> Show<'a> {
        Show {
            expr,
            nested: true,
            ..*self
        }
    }

    fn bare(&self, expr: &'a Expr) -> Show<'a> {
        Show {
            expr,
            nested: false,
            ..*self
        }
    }
}

impl Display for Show<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let composed = matches!(
            self.expr,
            Expr::Unary { .. }
                | Expr::Binary { .. }
                | Expr::IsNull { .. }
                | Expr::InList { .. }
                | Expr::Like { .. }
        );
        if self.nested && composed {
            return write!(f, "({})", self.bare(self.expr));
        }
        let not = |negated: &bool| if *negated { " not" } else { "" };
        match self.expr {
            Expr::Column { index, .. } => match self.fields.get(*index) {
                // Both sides of a join may have a column of this name; the position distinguishes
                // them.
                Some(field) if self.fields.iter().filter(|f| f.name == field.name).count() > 1 => {
                    write!(f, "{}#{}", quoted(&field.name), index + 1)
                }
                Some(field) => f.write_str(&quoted(&field.name)),
                None => write!(f, "column {index}"),
            },
            Expr::Literal { value, ty, unit } => literal(f, value, *ty, *unit),
            Expr::Unary {
                op: UnaryOp::Not,
                expr,
            } => write!(f, "not {}", self.child(expr)),
            Expr::Unary {
                op: UnaryOp::Negate,
                expr,
            } => write!(f, "-{}", self.child(expr)),
            Expr::Binary {
                op, left, right, ..
            } => {
                // A chain of one operator is printed without parentheses.
                let same = |side: &Expr| match op {
                    BinaryOp::And | BinaryOp::Or => {
                        matches!(side, Expr::Binary { op: inner, .. } if inner == op)
                    }
                    _ => false,
                };
                let side = |side| {
                    if same(side) {
                        self.bare(side)
                    } else {
                        self.child(side)
                    }
                };
                let symbol = op.symbol().to_ascii_lowercase();
                write!(f, "{} {symbol} {}", side(left), side(right))
            }
            Expr::IsNull { expr, negated } => {
                write!(f, "{} is{} null", self.child(expr), not(negated))
            }
            Expr::InList {
                expr,
                list,
                has_null,
                negated,
            } => {
                write!(f, "{}{} in (", self.child(expr), not(negated))?;
                for (i, value) in list.iter().enumerate() {
                    f.write_str(if i > 0 { ", " } else { "" })?;
                    literal(f, value, expr.ty(), expr.unit())?;
                }
                let null = match (has_null, list.is_empty()) {
                    (false, _) => "",
                    (true, true) => "null",
                    (true, false) => ", null",
                };
                write!(f, "{null})")
            }
            Expr::Like {
                expr,
                pattern,
                ignore_case,
                negated,
            } => {
                let word = if *ignore_case { "ilike" } else { "like" };
                write!(f, "{}{} {word} '{pattern}'", self.child(expr), not(negated))
            }
            Expr::Case {
                branches,
                otherwise,
                ..
            } => {
                f.write_str("case")?;
                for (when, then) in branches {
                    write!(f, " when {} then {}", self.bare(when), self.bare(then))?;
                }
                if let Some(otherwise) = otherwise {
                    write!(f, " else {}", self.bare(otherwise))?;
                }
                f.write_str(" end")
            }
            Expr::Cast { expr, ty, .. } => write!(f, "cast({} as {ty})", self.bare(expr)),
            Expr::Call(call) => {
                write!(f, "{}(", call.function.doc().name)?;
                for (i, arg) in call.args.iter().enumerate() {
                    write!(f, "{}{}", if i > 0 { ", " } else { "" }, self.bare(arg))?;
                }
                f.write_str(")")
            }
        }
    }
}

/// A column's name, between backticks where it is not a plain identifier.
fn quoted(name: &str) -> Cow<'_, str> {
    let plain = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    match plain {
        true => name.into(),
        false => format!("`{name}`").into(),
    }
}

fn literal(f: &mut Formatter<'_>, value: &Value, ty: Type, unit: Unit) -> fmt::Result {
    match value {
        Value::Null => f.write_str("null"),
        Value::Text(text) => write!(f, "'{text}'"),
        // The debug form of a float has a decimal point or an exponent.
        Value::Float(x) => write!(f, "{x:?}"),
        value => write!(f, "{value}"),
    }?;
    match unit {
        Unit::None => Ok(()),
        _ if ty == Type::Time || value.is_null() => Ok(()),
        unit => write!(f, " {unit}"),
    }
}
