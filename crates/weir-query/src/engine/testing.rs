//! For the engine's own tests: plans built by hand, and [`check`], which compares the output with
//! the expected lines.
//!
//! One line a row: `< 3 S 1, a` is an input row (`< 3 R - 1, a` retracts a row of a relation, `< 3
//! S` is a heartbeat), `> 3 + 1, a` an output row. Every case runs with all rows pushed at once,
//! row by row, and row by row with heartbeats; the results must be the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_model::{Batch, Column, Declaration, Field, Schema, Shape, Symbol, Type, Unit, Value};

use super::{Engine, EngineOptions, EngineOutput, QueryId};
use crate::expr::{BinaryOp, Expr};
use crate::function::aggregate::find;
use crate::function::{AggregateCall, Argument};
use crate::plan::{GlobalGroup, JoinKind, JoinNode, Node, OrderBy, Plan, SetOp, ToStream, Window};

/// A source's plan. Columns are written `a int, b text`; all may be NULL.
pub(super) fn source(name: &str, shape: Shape, columns: &str) -> Arc<Plan> {
    let field = |column: &str| {
        let (name, ty) = column
            .trim()
            .split_once(' ')
            .expect("a column has a name and a type");
        let types = [Type::Bool, Type::Int, Type::Float, Type::Text];
        let ty = types
            .into_iter()
            .find(|t| t.name().starts_with(ty))
            .expect("a type");
        Field::new(name, ty).nullable()
    };
    let schema = Schema::new(columns.split(',').map(field).collect());
    Plan::source(Declaration::new(name, shape, schema))
}

/// Stream `S` of these columns.
pub(super) fn stream(columns: &str) -> Arc<Plan> {
    source("S", Shape::Stream, columns)
}

pub(super) fn window(input: &Arc<Plan>, window: Window) -> Arc<Plan> {
    let node = Node::Window {
        input: input.clone(),
        window,
    };
    Arc::new(Plan {
        node,
        schema: input.schema.clone(),
        shape: Shape::Relation,
    })
}

pub(super) fn range(input: &Arc<Plan>, size: i64) -> Arc<Plan> {
    window(input, Window::range(size, None))
}

pub(super) fn unbounded(input: &Arc<Plan>) -> Arc<Plan> {
    window(input, Window::unbounded(None))
}

pub(super) fn select(input: &Arc<Plan>, predicate: Expr) -> Arc<Plan> {
    let node = Node::Select {
        input: input.clone(),
        predicate,
    };
    Arc::new(Plan {
        node,
        schema: input.schema.clone(),
        shape: input.shape,
    })
}

pub(super) fn project(input: &Arc<Plan>, exprs: Vec<Expr>) -> Arc<Plan> {
    let fields = exprs
        .iter()
        .map(|e| Field::new("x", e.ty()).nullable())
        .collect();
    let node = Node::Project {
        input: input.clone(),
        exprs,
    };
    Arc::new(Plan {
        node,
        schema: Arc::new(Schema::new(fields)),
        shape: input.shape,
    })
}

pub(super) fn to_stream(input: &Arc<Plan>, kind: ToStream) -> Arc<Plan> {
    let node = Node::ToStream {
        input: input.clone(),
        kind,
    };
    Arc::new(Plan {
        node,
        schema: input.schema.clone(),
        shape: Shape::Stream,
    })
}

pub(super) fn distinct(input: &Arc<Plan>) -> Arc<Plan> {
    let node = Node::Distinct {
        input: input.clone(),
    };
    Arc::new(Plan {
        node,
        schema: input.schema.clone(),
        shape: Shape::Relation,
    })
}

pub(super) fn set_op(left: &Arc<Plan>, right: &Arc<Plan>, op: SetOp, all: bool) -> Arc<Plan> {
    let node = Node::SetOp {
        left: left.clone(),
        right: right.clone(),
        op,
        all,
    };
    Arc::new(Plan {
        node,
        schema: left.schema.clone(),
        shape: Shape::Relation,
    })
}

pub(super) fn join(
    left: &Arc<Plan>,
    right: &Arc<Plan>,
    kind: JoinKind,
    on: Vec<(Expr, Expr)>,
    residual: Option<Expr>,
) -> Arc<Plan> {
    let one_sided = matches!(kind, JoinKind::Semi | JoinKind::Anti | JoinKind::NotIn);
    let right_fields = if one_sided {
        &[][..]
    } else {
        &right.schema.fields[..]
    };
    let schema = Schema::new([&left.schema.fields[..], right_fields].concat());
    let node = Node::Join(JoinNode {
        left: left.clone(),
        right: right.clone(),
        kind,
        on,
        residual,
    });
    Arc::new(Plan {
        node,
        schema: Arc::new(schema),
        shape: Shape::Relation,
    })
}

pub(super) fn aggregate(input: &Arc<Plan>, keys: &[usize], calls: Vec<AggregateCall>) -> Arc<Plan> {
    let keys: Vec<Expr> = keys.iter().map(|&k| column(input, k)).collect();
    let types = keys.iter().map(Expr::ty).chain(calls.iter().map(|c| c.ty));
    let schema = Schema::new(types.map(|ty| Field::new("x", ty).nullable()).collect());
    let node = Node::Aggregate {
        input: input.clone(),
        keys,
        calls,
        global: GlobalGroup::FromFirstRow,
    };
    Arc::new(Plan {
        node,
        schema: Arc::new(schema),
        shape: Shape::Relation,
    })
}

/// `name(args)`, with the type that the function declares.
pub(super) fn call(name: &str, args: Vec<Expr>, distinct: bool) -> AggregateCall {
    let function = find(name).expect("an aggregate");
    let argument = |e: &Expr| Argument {
        ty: e.ty(),
        unit: e.unit(),
        constant: None,
    };
    let arguments: Vec<Argument> = args.iter().map(argument).collect();
    let returns = function.check(&arguments).expect("arguments that it takes");
    AggregateCall {
        function,
        args,
        distinct,
        ty: returns.ty,
        unit: returns.unit,
    }
}

pub(super) fn order(
    input: &Arc<Plan>,
    by: &[(usize, bool)],
    limit: Option<u64>,
    offset: u64,
) -> Arc<Plan> {
    let key = |&(index, descending): &(usize, bool)| OrderBy {
        expr: column(input, index),
        descending,
        nulls_first: false,
    };
    let by = by.iter().map(key).collect();
    let node = Node::Order {
        input: input.clone(),
        by,
        limit,
        offset,
    };
    Arc::new(Plan {
        node,
        schema: input.schema.clone(),
        shape: Shape::Relation,
    })
}

/// Column `index` of the plan's schema.
pub(super) fn column(plan: &Plan, index: usize) -> Expr {
    Expr::column(index, plan.schema[index].ty, Unit::None)
}

pub(super) fn literal(value: impl Into<Value>) -> Expr {
    let value = value.into();
    let ty = match value {
        Value::Bool(_) => Type::Bool,
        Value::Float(_) => Type::Float,
        Value::Text(_) => Type::Text,
        _ => Type::Int,
    };
    Expr::Literal {
        value,
        ty,
        unit: Unit::None,
    }
}

pub(super) fn binary(op: BinaryOp, left: Expr, right: Expr) -> Expr {
    Expr::Binary {
        op,
        left: Box::new(left),
        right: Box::new(right),
        unit: Unit::None,
    }
}

/// Runs `plan` on the `<` lines of `case` in several ways, each of which must produce the `>`
/// lines.
pub(super) fn check(plan: &Arc<Plan>, case: &str) {
    let expected = outputs(case);
    for feed in [Feed::AtOnce, Feed::RowByRow, Feed::WithHeartbeats] {
        let given = run(plan, case, feed);
        assert_eq!(given, expected, "{feed:?}");
    }
}

/// How a case is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Feed {
    AtOnce,
    RowByRow,
    WithHeartbeats,
}

/// The lines that `plan` produces for the `<` lines of `case`, sorted.
pub(super) fn run(plan: &Arc<Plan>, case: &str, feed: Feed) -> Vec<String> {
    let mut engine = Engine::new(EngineOptions::default());
    engine.add(plan);
    let mut given = Given::default();
    for (ts, name, batch) in inputs(plan, case) {
        if feed == Feed::WithHeartbeats {
            for source in plan.sources() {
                engine.heartbeat(&source.name, ts - 1);
            }
            engine.step(&mut |o| given.note(o));
        }
        match batch {
            Some(batch) => engine.push(&name, batch),
            None => engine.heartbeat(&name, ts),
        }
        if feed != Feed::AtOnce {
            engine.step(&mut |o| given.note(o));
        }
    }
    engine.finish(&mut |o| given.note(o));
    given.lines()
}

/// The rows and heartbeats of the `<` lines.
pub(super) fn inputs(plan: &Plan, case: &str) -> Vec<(i64, String, Option<Batch>)> {
    let lines = case.lines().filter_map(|l| l.trim().strip_prefix("< "));
    let input = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let ts: i64 = words
            .next()
            .expect("an instant")
            .parse()
            .expect("an instant");
        let name = words.next().expect("a source").to_string();
        let sources = plan.sources();
        let declaration = sources
            .iter()
            .find(|d| d.name == name)
            .expect("a source of the plan");
        let batch = words.next().map(|rest| {
            let weight = if rest.starts_with("- ") { -1 } else { 1 };
            let values = rest.trim_start_matches(['-', '+']).trim().split(',');
            let fields = values.zip(&declaration.schema.fields);
            let columns = fields
                .map(|(v, f)| Column::from_values(f.ty, [parse(v.trim(), f.ty)]))
                .collect();
            match declaration.shape {
                Shape::Stream => Batch::stream(vec![ts], columns),
                Shape::Relation => Batch::deltas(vec![ts], vec![weight], columns),
            }
        });
        (ts, name, batch)
    };
    lines.map(input).collect()
}

fn parse(text: &str, ty: Type) -> Value {
    match ty {
        _ if text == "NULL" => Value::Null,
        Type::Bool => Value::Bool(text == "true"),
        Type::Float => Value::Float(text.parse().expect("a float")),
        Type::Text => Value::Text(Symbol::new(text)),
        _ => Value::Int(text.parse().expect("an integer")),
    }
}

/// The `>` lines of a case, sorted.
pub(super) fn outputs(case: &str) -> Vec<String> {
    let lines = case.lines().filter_map(|l| l.trim().strip_prefix("> "));
    let mut lines: Vec<String> = lines.map(String::from).collect();
    lines.sort();
    lines
}

/// The outputs of one query, or several.
#[derive(Default)]
pub(super) struct Given {
    deltas: BTreeMap<(i64, Vec<Value>), (i64, i64)>,
    failures: Vec<String>,
    last_ts: BTreeMap<QueryId, i64>,
}

impl Given {
    /// Records an output and checks that it is later than those before.
    pub(super) fn note(&mut self, output: EngineOutput) {
        match output {
            EngineOutput::Failed { error, .. } => self.failures.push(format!("failed: {error}")),
            EngineOutput::Rows { query, batch } => {
                let last = self.last_ts.entry(query).or_insert(i64::MIN);
                assert!(
                    *last <= batch.ts[0] && batch.ts.is_sorted(),
                    "results are in time order"
                );
                *last = batch.ts[batch.len() - 1];
                for row in 0..batch.len() {
                    let delta = self
                        .deltas
                        .entry((batch.ts[row], batch.row(row)))
                        .or_default();
                    delta.0 += batch.weight(row);
                    delta.1 += batch.weight(row).abs();
                }
            }
        }
    }

    /// As lines, sorted.
    ///
    /// # Panics
    /// When a row was inserted and retracted at the same instant.
    pub(super) fn lines(self) -> Vec<String> {
        let mut lines = self.failures;
        for ((ts, row), (net, gross)) in self.deltas {
            assert_eq!(net.abs(), gross, "deltas are net at {ts}: {row:?}");
            let values: Vec<String> = row.iter().map(Value::to_string).collect();
            let sign = if net > 0 { '+' } else { '-' };
            lines.extend((0..gross).map(|_| format!("{ts} {sign} {}", values.join(", "))));
        }
        lines.sort();
        lines
    }
}
