//! Encodes a plan.

use std::collections::HashMap;

use weir_model::{Alias, Declaration, Field, Unit, Value};
use weir_sketch::codec::{put_bytes, put_f64, put_i64, put_u64};

use super::tags::{self, ExprTag, NodeTag, ValueTag, WindowTag, put};
use super::{MAGIC, VERSION};
use crate::expr::Expr;
use crate::function::AggregateCall;
use crate::plan::{GlobalGroup, Node, OrderBy, Plan, ToStream, Window};
use crate::window::{Now, Partition, Range, Rows, Since, Unbounded};

/// Encodes a whole plan.
pub(super) fn plan(plan: &Plan) -> Vec<u8> {
    let mut declarations = Vec::new();
    let mut numbers = HashMap::new();
    number(plan, &mut declarations, &mut numbers);
    let mut out = MAGIC.to_vec();
    put_u64(&mut out, VERSION);
    let mut write = Write { out, numbers };
    write.list(&declarations, |w, d| w.declaration(d));
    write.node(plan);
    write.out
}

/// Numbers the sources in order of first use.
fn number<'p>(
    plan: &'p Plan,
    declarations: &mut Vec<&'p Declaration>,
    numbers: &mut HashMap<&'p Declaration, usize>,
) {
    if let Node::Source(declaration) = &plan.node
        && !numbers.contains_key(declaration)
    {
        assert!(
            declaration.fold.is_none(),
            "a plan is encoded before it is placed"
        );
        numbers.insert(declaration, declarations.len());
        declarations.push(declaration);
    }
    for input in plan.inputs() {
        number(input, declarations, numbers);
    }
}

struct Write<'p> {
    out: Vec<u8>,
    numbers: HashMap<&'p Declaration, usize>,
}

impl Write<'_> {
    fn number(&mut self, number: usize) {
        put_u64(&mut self.out, number as u64);
    }

    fn flag(&mut self, flag: bool) {
        self.out.push(flag.into());
    }

    fn text(&mut self, text: &str) {
        put_bytes(&mut self.out, text.as_bytes());
    }

    fn unit(&mut self, unit: Unit) {
        put(&mut self.out, tags::UNITS, unit);
    }

    /// A length and the elements.
    fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        self.number(items.len());
        items.iter().for_each(|item| each(self, item));
    }

    /// A flag, and the value if there is one.
    fn option<T>(&mut self, item: Option<T>, some: impl FnOnce(&mut Self, T)) {
        self.flag(item.is_some());
        if let Some(item) = item {
            some(self, item);
        }
    }

    fn span(&mut self, span: i64) {
        put_i64(&mut self.out, span);
    }

    fn declaration(&mut self, declaration: &Declaration) {
        self.text(&declaration.name);
        put(&mut self.out, tags::SHAPES, declaration.shape);
        self.fields(&declaration.schema.fields);
        self.option(declaration.star.as_ref(), |w, star| {
            w.list(star, |w, name| w.text(name));
        });
        self.text(&declaration.doc);
    }

    fn fields(&mut self, fields: &[Field]) {
        self.list(fields, Write::field);
    }

    fn field(&mut self, field: &Field) {
        self.text(&field.name);
        put(&mut self.out, tags::TYPES, field.ty);
        self.unit(field.unit);
        self.flag(field.nullable);
        self.text(&field.doc);
        self.list(&field.aliases, |w, alias: &Alias| {
            w.text(alias.name);
            w.option(alias.converted, Write::unit);
        });
        self.option(field.values, |w, set| {
            put(&mut w.out, tags::CLOSED_SETS, set)
        });
    }

    fn node(&mut self, plan: &Plan) {
        let tag = node_tag(&plan.node);
        put(&mut self.out, tags::NODES, tag);
        for input in plan.inputs() {
            self.node(input);
        }
        let fields = &plan.schema.fields;
        match &plan.node {
            Node::Source(declaration) => {
                let number = self.numbers[declaration];
                self.number(number);
            }
            Node::Window { window, .. } => self.window(window),
            Node::Select { predicate, .. } => self.expr(predicate),
            Node::Project { exprs, .. } => {
                self.list(exprs, Write::expr);
                self.fields(fields);
            }
            Node::Join {
                kind, on, residual, ..
            } => {
                put(&mut self.out, tags::JOINS, *kind);
                self.list(on, |w, (left, right)| {
                    w.expr(left);
                    w.expr(right);
                });
                self.option(residual.as_ref(), Write::expr);
            }
            Node::Aggregate {
                keys,
                calls,
                global,
                ..
            } => {
                self.list(keys, Write::expr);
                self.list(calls, Write::call);
                self.flag(*global == GlobalGroup::FromStart);
                self.fields(fields);
            }
            Node::Partial {
                slide, keys, calls, ..
            } => {
                self.span(*slide);
                self.list(keys, Write::expr);
                self.list(calls, Write::call);
                self.fields(&fields[..keys.len()]);
            }
            Node::Merge {
                size,
                slide,
                keys,
                calls,
                global,
                ..
            } => {
                self.option(*size, Write::span);
                self.span(*slide);
                self.number(*keys);
                self.list(calls, Write::call);
                self.flag(*global == GlobalGroup::FromStart);
                self.fields(fields);
            }
            Node::Distinct { .. } => {}
            Node::SetOp { op, all, .. } => {
                put(&mut self.out, tags::SET_OPS, *op);
                self.flag(*all);
            }
            Node::Order {
                by, limit, offset, ..
            } => {
                self.list(by, Write::order_by);
                self.option(*limit, |w, limit| put_u64(&mut w.out, limit));
                put_u64(&mut self.out, *offset);
            }
            Node::ToStream { kind, .. } => {
                if let ToStream::Rstream { every } = kind {
                    self.option(*every, Write::span);
                }
            }
        }
    }

    fn window(&mut self, window: &Window) {
        let tag = match window {
            Window::Now(Now) => WindowTag::Now,
            Window::Range(_) => WindowTag::Range,
            Window::Rows(_) => WindowTag::Rows,
            Window::Partition(_) => WindowTag::Partition,
            Window::Unbounded(_) => WindowTag::Unbounded,
            Window::Since(_) => WindowTag::Since,
        };
        put(&mut self.out, tags::WINDOWS, tag);
        match window {
            Window::Now(Now) => {}
            Window::Range(Range { size, slide }) => {
                self.span(*size);
                self.option(*slide, Write::span);
            }
            Window::Rows(Rows { rows }) => put_u64(&mut self.out, *rows),
            Window::Partition(Partition { keys, rows }) => {
                self.list(keys, Write::expr);
                put_u64(&mut self.out, *rows);
            }
            Window::Unbounded(Unbounded { slide }) => self.option(*slide, Write::span),
            Window::Since(Since {
                origin,
                size,
                slide,
            }) => {
                self.expr(origin);
                self.option(*size, Write::span);
                self.option(*slide, Write::span);
            }
        }
    }

    fn order_by(&mut self, by: &OrderBy) {
        self.expr(&by.expr);
        self.flag(by.descending);
        self.flag(by.nulls_first);
    }

    fn call(&mut self, call: &AggregateCall) {
        self.text(call.function.doc().name);
        self.flag(call.distinct);
        put(&mut self.out, tags::TYPES, call.ty);
        self.unit(call.unit);
        self.list(&call.args, Write::expr);
    }

    fn expr(&mut self, expr: &Expr) {
        put(&mut self.out, tags::EXPRS, expr_tag(expr));
        match expr {
            Expr::Column { index, ty, unit } => {
                self.number(*index);
                put(&mut self.out, tags::TYPES, *ty);
                self.unit(*unit);
            }
            Expr::Literal { value, ty, unit } => {
                self.value(value);
                put(&mut self.out, tags::TYPES, *ty);
                self.unit(*unit);
            }
            Expr::Unary { op, .. } => put(&mut self.out, tags::UNARY, *op),
            Expr::Binary { op, unit, .. } => {
                put(&mut self.out, tags::BINARY, *op);
                self.unit(*unit);
            }
            Expr::IsNull { negated, .. } => self.flag(*negated),
            Expr::InList {
                list,
                has_null,
                negated,
                ..
            } => {
                self.list(list, Write::value);
                self.flag(*has_null);
                self.flag(*negated);
            }
            Expr::Like {
                pattern,
                ignore_case,
                negated,
                ..
            } => {
                self.text(pattern);
                self.flag(*ignore_case);
                self.flag(*negated);
            }
            Expr::Case {
                branches,
                otherwise,
                ty,
                unit,
            } => {
                self.number(branches.len());
                self.flag(otherwise.is_some());
                put(&mut self.out, tags::TYPES, *ty);
                self.unit(*unit);
            }
            Expr::Cast { ty, unit, .. } => {
                put(&mut self.out, tags::TYPES, *ty);
                self.unit(*unit);
            }
            Expr::Call(call) => {
                self.text(call.function.doc().name);
                put(&mut self.out, tags::TYPES, call.ty);
                self.unit(call.unit);
                self.number(call.args.len());
            }
        }
        for child in expr.children() {
            self.expr(child);
        }
    }

    fn value(&mut self, value: &Value) {
        let tag = match value {
            Value::Null => ValueTag::Null,
            Value::Bool(false) => ValueTag::False,
            Value::Bool(true) => ValueTag::True,
            Value::Int(_) => ValueTag::Int,
            Value::Float(_) => ValueTag::Float,
            Value::Text(_) => ValueTag::Text,
            Value::Tally(_) | Value::Bytes(_) => unreachable!("CQL has no such constant"),
        };
        put(&mut self.out, tags::VALUES, tag);
        match value {
            Value::Int(x) => put_i64(&mut self.out, *x),
            Value::Float(x) => put_f64(&mut self.out, *x),
            Value::Text(x) => self.text(x.as_str()),
            _ => {}
        }
    }
}

fn node_tag(node: &Node) -> NodeTag {
    match node {
        Node::Source(_) => NodeTag::Source,
        Node::Window { .. } => NodeTag::Window,
        Node::Select { .. } => NodeTag::Select,
        Node::Project { .. } => NodeTag::Project,
        Node::Join { .. } => NodeTag::Join,
        Node::Aggregate { .. } => NodeTag::Aggregate,
        Node::Partial { .. } => NodeTag::Partial,
        Node::Merge { .. } => NodeTag::Merge,
        Node::Distinct { .. } => NodeTag::Distinct,
        Node::SetOp { .. } => NodeTag::SetOp,
        Node::Order { .. } => NodeTag::Order,
        Node::ToStream { kind, .. } => match kind {
            ToStream::Istream => NodeTag::Istream,
            ToStream::Dstream => NodeTag::Dstream,
            ToStream::Rstream { .. } => NodeTag::Rstream,
        },
    }
}

fn expr_tag(expr: &Expr) -> ExprTag {
    match expr {
        Expr::Column { .. } => ExprTag::Column,
        Expr::Literal { .. } => ExprTag::Literal,
        Expr::Unary { .. } => ExprTag::Unary,
        Expr::Binary { .. } => ExprTag::Binary,
        Expr::IsNull { .. } => ExprTag::IsNull,
        Expr::InList { .. } => ExprTag::InList,
        Expr::Like { .. } => ExprTag::Like,
        Expr::Case { .. } => ExprTag::Case,
        Expr::Cast { .. } => ExprTag::Cast,
        Expr::Call(_) => ExprTag::Call,
    }
}
