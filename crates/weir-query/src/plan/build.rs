//! Constructors of plan nodes, which derive schemas and shapes.

use std::sync::Arc;

use weir_model::correlation::correlations_schema;
use weir_model::{Declaration, Field, Schema, Shape, Type};

use super::print::call_text;
use super::{
    Correlation, GlobalGroup, JoinKind, JoinNode, Node, OrderBy, OverCall, Partitioning, Plan,
    RowMatch, SetOp, ToStream, Window,
};
use crate::expr::{BinaryOp, Expr};
use crate::function::{AggregateCall, Shared};
use crate::window::Unbounded;

/// The column of partial aggregates that counts the requests of each row.
const REQUESTS: &str = "requests";

impl JoinNode {
    /// The join of the same inputs on other conditions.
    pub fn with_conditions(&self, on: Vec<(Expr, Expr)>, residual: Option<Expr>) -> Arc<Plan> {
        let (left, right) = (self.left.clone(), self.right.clone());
        Plan::join(left, right, self.kind, on, residual)
    }
}

impl Plan {
    fn like(input: &Arc<Plan>, node: Node) -> Arc<Plan> {
        Arc::new(Plan {
            node,
            schema: input.schema.clone(),
            shape: input.shape,
        })
    }

    fn relation(schema: Arc<Schema>, node: Node) -> Arc<Plan> {
        Arc::new(Plan {
            node,
            schema,
            shape: Shape::Relation,
        })
    }

    /// A source, all of its columns.
    pub fn source(declaration: Declaration) -> Arc<Plan> {
        Arc::new(Plan::of_source(declaration))
    }

    /// As [`Plan::source`].
    pub(crate) fn of_source(declaration: Declaration) -> Plan {
        Plan {
            schema: declaration.schema.clone(),
            shape: declaration.shape,
            node: Node::Source(declaration),
        }
    }

    /// The rows for which `predicate` is true.
    pub fn select(input: Arc<Plan>, predicate: Expr) -> Arc<Plan> {
        Plan::like(&input.clone(), Node::Select { input, predicate })
    }

    /// The rows for which all conditions are true; without conditions the input itself.
    pub fn select_all(input: Arc<Plan>, conditions: Vec<Expr>) -> Arc<Plan> {
        match Expr::balanced(BinaryOp::And, conditions) {
            Some(all) => Plan::select(input, all),
            None => input,
        }
    }

    /// Computes `exprs` for each row; `fields` describe the columns.
    pub fn project(input: Arc<Plan>, exprs: Vec<Expr>, fields: Vec<Field>) -> Arc<Plan> {
        debug_assert_eq!(exprs.len(), fields.len(), "one field an expression");
        let (schema, shape) = (Arc::new(Schema::new(fields)), input.shape);
        Arc::new(Plan {
            node: Node::Project { input, exprs },
            schema,
            shape,
        })
    }

    /// The same rows with columns called `names`.
    pub fn rename(input: Arc<Plan>, names: &[&str]) -> Arc<Plan> {
        let fields = input.schema.fields.iter().zip(names).map(|(field, name)| {
            let same = field.name == *name;
            let aliases = if same {
                field.aliases.clone()
            } else {
                Vec::new()
            };
            Field {
                name: (*name).to_owned(),
                aliases,
                doc: String::new(),
                ..field.clone()
            }
        });
        let fields = fields.collect();
        let exprs = input.columns();
        Plan::project(input, exprs, fields)
    }

    /// Its columns, as expressions.
    pub fn columns(&self) -> Vec<Expr> {
        let fields = self.schema.fields.iter().enumerate();
        fields.map(|(i, f)| Expr::column(i, f.ty, f.unit)).collect()
    }

    /// A window over a stream.
    pub fn window(input: Arc<Plan>, window: Window) -> Arc<Plan> {
        Plan::relation(input.schema.clone(), Node::Window { input, window })
    }

    /// Two relations joined.
    pub fn join(
        left: Arc<Plan>,
        right: Arc<Plan>,
        kind: JoinKind,
        on: Vec<(Expr, Expr)>,
        residual: Option<Expr>,
    ) -> Arc<Plan> {
        let schema = join_schema(&left.schema, &right.schema, kind);
        Plan::relation(
            schema,
            Node::Join(JoinNode {
                left,
                right,
                kind,
                on,
                residual,
            }),
        )
    }

    /// One row per group; `fields` name the keys and then the calls.
    pub fn aggregate(
        input: Arc<Plan>,
        keys: Vec<Expr>,
        calls: Vec<AggregateCall>,
        global: GlobalGroup,
        fields: Vec<Field>,
    ) -> Arc<Plan> {
        debug_assert_eq!(keys.len() + calls.len(), fields.len(), "one field a column");
        Plan::relation(
            Arc::new(Schema::new(fields)),
            Node::Aggregate {
                global: global.over(keys.len()),
                input,
                keys,
                calls,
            },
        )
    }

    /// Partial aggregates of a stream, emitted at each multiple of `slide`; `keys_named` name the
    /// keys.
    pub fn partial(
        input: Arc<Plan>,
        slide: i64,
        keys: Vec<Expr>,
        calls: Vec<AggregateCall>,
        keys_named: Vec<Field>,
    ) -> Arc<Plan> {
        debug_assert_eq!(keys.len(), keys_named.len(), "one field a key");
        debug_assert!(calls.iter().all(AggregateCall::splits), "every call splits");
        let named = &input.schema.fields;
        let states = Shared::of(&calls).owners;
        let states = states.iter().map(|&at| {
            let name = call_text(&calls[at], named);
            Field::new(name, Type::Partial)
        });
        let requests = Field::new(REQUESTS, Type::Int);
        let fields = keys_named.into_iter().chain(states).chain([requests]);
        let fields = fields.collect();
        Arc::new(Plan {
            node: Node::Partial {
                input,
                slide,
                keys,
                calls,
            },
            schema: Arc::new(Schema::new(fields)),
            shape: Shape::Stream,
        })
    }

    /// The column with the number of requests that each row represents, if there is one.
    pub fn requests_column(&self) -> Option<usize> {
        match &self.node {
            Node::Partial { .. } => Some(self.schema.len() - 1),
            _ => None,
        }
    }

    /// Partial aggregates merged over a window of `size` and `slide`; the first `keys` columns of
    /// `input` are the keys, `fields` name the keys and then the calls.
    pub fn merge(
        input: Arc<Plan>,
        (size, slide): (Option<i64>, i64),
        keys: usize,
        calls: Vec<AggregateCall>,
        global: GlobalGroup,
        fields: Vec<Field>,
    ) -> Arc<Plan> {
        debug_assert_eq!(keys + calls.len(), fields.len(), "one field a column");
        debug_assert_eq!(
            keys + Shared::of(&calls).owners.len() + 1,
            input.schema.len(),
            "a column for each key and each state, and the number of requests"
        );
        Plan::relation(
            Arc::new(Schema::new(fields)),
            Node::Merge {
                input,
                size,
                slide,
                keys,
                calls,
                global: global.over(keys),
            },
        )
    }

    /// Each row with the results of window functions, which `fields` name.
    pub fn over(
        input: Arc<Plan>,
        by: Partitioning,
        calls: Vec<OverCall>,
        fields: Vec<Field>,
    ) -> Arc<Plan> {
        debug_assert_eq!(calls.len(), fields.len(), "one field a call");
        let schema = Schema::new([&input.schema.fields[..], &fields[..]].concat());
        Plan::relation(Arc::new(schema), Node::Over { input, by, calls })
    }

    /// The matches of a pattern in the rows of a stream; `fields` name the keys and then the
    /// results.
    pub fn row_match(input: Arc<Plan>, by: RowMatch, fields: Vec<Field>) -> Arc<Plan> {
        let columns = by.keys.len() + by.results.len();
        debug_assert_eq!(columns, fields.len(), "one field a column");
        let by = Box::new(by);
        Arc::new(Plan {
            node: Node::Match { input, by },
            schema: Arc::new(Schema::new(fields)),
            shape: Shape::Stream,
        })
    }

    /// The pairs of disks that correlate, over the load of each disk in each step.
    pub fn correlate(input: Arc<Plan>, by: Correlation) -> Arc<Plan> {
        Arc::new(Plan {
            node: Node::Correlate { input, by },
            schema: Arc::new(correlations_schema()),
            shape: Shape::Stream,
        })
    }

    /// Each distinct row once.
    pub fn distinct(input: Arc<Plan>) -> Arc<Plan> {
        Plan::relation(input.schema.clone(), Node::Distinct { input })
    }

    /// A set operation on two relations of the same types.
    pub fn set_op(left: Arc<Plan>, right: Arc<Plan>, op: SetOp, all: bool) -> Arc<Plan> {
        let mut schema = (*left.schema).clone();
        for (field, other) in schema.fields.iter_mut().zip(&right.schema.fields) {
            field.nullable |= other.nullable;
        }
        Plan::relation(
            Arc::new(schema),
            Node::SetOp {
                left,
                right,
                op,
                all,
            },
        )
    }

    /// The first rows in an order.
    pub fn order(input: Arc<Plan>, by: Vec<OrderBy>, limit: Option<u64>, offset: u64) -> Arc<Plan> {
        Plan::relation(
            input.schema.clone(),
            Node::Order {
                input,
                by,
                limit,
                offset,
            },
        )
    }

    /// A relation turned into a stream.
    pub fn to_stream(input: Arc<Plan>, kind: ToStream) -> Arc<Plan> {
        let (schema, shape) = (input.schema.clone(), Shape::Stream);
        Arc::new(Plan {
            node: Node::ToStream { input, kind },
            schema,
            shape,
        })
    }

    /// The same node over other inputs, in the order of [`Plan::inputs`]. A schema that depends on
    /// the inputs is derived again.
    pub fn with_inputs(&self, inputs: Vec<Arc<Plan>>) -> Arc<Plan> {
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next().expect("as many inputs as before");
        match &self.node {
            Node::Source(_) => Arc::new(self.clone()),
            Node::Window { window, .. } => Plan::window(next(), window.clone()),
            Node::Select { predicate, .. } => Plan::select(next(), predicate.clone()),
            Node::Project { exprs, .. } => {
                Plan::project(next(), exprs.clone(), self.schema.fields.clone())
            }
            Node::Join(join) => {
                let (left, right) = (next(), next());
                Plan::join(
                    left,
                    right,
                    join.kind,
                    join.on.clone(),
                    join.residual.clone(),
                )
            }
            Node::Aggregate {
                keys,
                calls,
                global,
                ..
            } => Plan::aggregate(
                next(),
                keys.clone(),
                calls.clone(),
                *global,
                self.schema.fields.clone(),
            ),
            Node::Partial {
                slide, keys, calls, ..
            } => {
                let named = self.schema.fields[..keys.len()].to_vec();
                Plan::partial(next(), *slide, keys.clone(), calls.clone(), named)
            }
            Node::Merge {
                size,
                slide,
                keys,
                calls,
                global,
                ..
            } => {
                let fields = self.schema.fields.clone();
                let window = (*size, *slide);
                Plan::merge(next(), window, *keys, calls.clone(), *global, fields)
            }
            Node::Over { by, calls, .. } => {
                let fields = self.schema.fields[self.schema.len() - calls.len()..].to_vec();
                Plan::over(next(), by.clone(), calls.clone(), fields)
            }
            Node::Match { by, .. } => {
                Plan::row_match(next(), (**by).clone(), self.schema.fields.clone())
            }
            Node::Correlate { by, .. } => Plan::correlate(next(), by.clone()),
            Node::Distinct { .. } => Plan::distinct(next()),
            Node::SetOp { op, all, .. } => {
                let (left, right) = (next(), next());
                Plan::set_op(left, right, *op, *all)
            }
            Node::Order {
                by, limit, offset, ..
            } => Plan::order(next(), by.clone(), *limit, *offset),
            Node::ToStream { kind, .. } => Plan::to_stream(next(), *kind),
        }
    }

    /// The number of nodes on the longest path to a source.
    pub fn height(&self) -> usize {
        let below = self.inputs().into_iter().map(|input| input.height());
        1 + below.max().unwrap_or(0)
    }

    /// A relation to which rows are only ever added, one for each row of a stream, as that stream:
    /// its selections and projections are the same on either side of an unbounded window.
    pub fn as_stream(self: &Arc<Plan>) -> Option<Arc<Plan>> {
        match &self.node {
            Node::Window {
                input,
                window: Window::Unbounded(Unbounded { slide: None }),
            } if input.shape == Shape::Stream => Some(input.clone()),
            Node::Select { input, .. } | Node::Project { input, .. } => {
                Some(self.with_inputs(vec![input.as_stream()?]))
            }
            _ if self.shape == Shape::Stream => Some(self.clone()),
            _ => None,
        }
    }
}

/// The left columns, then the right ones. The columns of a side that can be padded are nullable.
fn join_schema(left: &Arc<Schema>, right: &Schema, kind: JoinKind) -> Arc<Schema> {
    if matches!(kind, JoinKind::Semi | JoinKind::Anti | JoinKind::NotIn) {
        return left.clone();
    }
    let nullable = |schema: &Schema, lacks: bool| {
        let fields = schema.fields.clone().into_iter();
        fields.map(move |f| Field {
            nullable: f.nullable || lacks,
            ..f
        })
    };
    let lacks_left = matches!(kind, JoinKind::Right | JoinKind::Full);
    let lacks_right = matches!(kind, JoinKind::Left | JoinKind::Full);
    Arc::new(Schema::new(
        nullable(left, lacks_left)
            .chain(nullable(right, lacks_right))
            .collect(),
    ))
}

impl Expr {
    /// True, as a constant.
    pub fn bool(value: bool) -> Expr {
        let unit = weir_model::Unit::None;
        Expr::Literal {
            value: value.into(),
            ty: Type::Bool,
            unit,
        }
    }

    /// `left op right`, of booleans or of a comparison.
    pub fn boolean(op: BinaryOp, left: Expr, right: Expr) -> Expr {
        let (left, right) = (Box::new(left), Box::new(right));
        Expr::Binary {
            op,
            left,
            right,
            unit: weir_model::Unit::None,
        }
    }

    /// All of `exprs` joined by AND or OR, as a balanced tree, so that a long list does not make a
    /// deep one.
    pub fn balanced(op: BinaryOp, mut exprs: Vec<Expr>) -> Option<Expr> {
        match exprs.len() {
            0 | 1 => exprs.pop(),
            n => {
                let right = Expr::balanced(op, exprs.split_off(n / 2))?;
                let left = Expr::balanced(op, exprs)?;
                Some(Expr::boolean(op, left, right))
            }
        }
    }

    /// The operands of AND at the top.
    pub fn conjuncts(self) -> Vec<Expr> {
        match self {
            Expr::Binary {
                op: BinaryOp::And,
                left,
                right,
                ..
            } => {
                let mut all = left.conjuncts();
                all.extend(right.conjuncts());
                all
            }
            other => vec![other],
        }
    }

    /// Whether it can be NULL; `nullable` is true for nullable columns.
    pub fn is_nullable(&self, nullable: &impl Fn(usize) -> bool) -> bool {
        match self {
            Expr::Column { index, .. } => nullable(*index),
            Expr::Literal { value, .. } => value.is_null(),
            Expr::IsNull { .. } => false,
            Expr::Binary {
                op: BinaryOp::Divide | BinaryOp::Modulo,
                ..
            } => true,
            Expr::Case {
                otherwise: None, ..
            }
            | Expr::Call(_) => true,
            Expr::Cast { expr, ty, .. } if expr.ty() == Type::Text && *ty != Type::Text => true,
            _ => self
                .children()
                .into_iter()
                .any(|child| child.is_nullable(nullable)),
        }
    }
}
