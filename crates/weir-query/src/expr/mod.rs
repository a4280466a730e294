//! [`Expr`]: a checked expression over the columns of one row.
//!
//! The checker has converted types: both sides of an arithmetic or comparison operator have the
//! same type (casts are explicit), and literals are in the unit of the other side.

mod fold;
pub(crate) mod timestamp;

use serde::{Deserialize, Serialize};
use weir_model::{Type, Unit, Value};

pub(crate) use fold::fold_expr;

use crate::function::ScalarCall;

/// An expression. NULL follows SQL: it propagates through operators, and `AND` / `OR` use
/// three-valued logic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Expr {
    /// Column `index` of the input.
    Column {
        /// Position in the input's schema.
        index: usize,
        /// Its type.
        ty: Type,
        /// Its unit.
        unit: Unit,
    },
    /// A constant.
    Literal {
        /// The value; NULL has a type too.
        value: Value,
        /// Its type.
        ty: Type,
        /// Its unit.
        unit: Unit,
    },
    /// `-x`, `NOT x`.
    Unary {
        /// The operator.
        op: UnaryOp,
        /// x
        expr: Box<Expr>,
    },
    /// `x + y`, `x = y`, `x AND y`. Both sides have the same type, except `Time ± Int`,
    /// `Int + Time` and `Time - Time`, where `Time` counts as an integer.
    Binary {
        /// The operator.
        op: BinaryOp,
        /// x
        left: Box<Expr>,
        /// y
        right: Box<Expr>,
        /// The unit of the result.
        unit: Unit,
    },
    /// `x IS NULL`, `x IS NOT NULL`.
    IsNull {
        /// x
        expr: Box<Expr>,
        /// `IS NOT NULL`.
        negated: bool,
    },
    /// `x IN (1, 2, 3)`, all of one type.
    InList {
        /// x
        expr: Box<Expr>,
        /// Constants other than NULL.
        list: Vec<Value>,
        /// Whether the list also contained a NULL.
        has_null: bool,
        /// `NOT IN`.
        negated: bool,
    },
    /// `x LIKE 'vm%'`: `%` any text, `_` any character, `\` takes the next one literally.
    Like {
        /// A text.
        expr: Box<Expr>,
        /// The pattern.
        pattern: String,
        /// Without regard to case (`ILIKE`).
        ignore_case: bool,
        /// `NOT LIKE`.
        negated: bool,
    },
    /// `CASE WHEN c THEN x .. ELSE y END`; the simple form is rewritten as comparisons.
    Case {
        /// Conditions and their results; all results have type `ty`.
        branches: Vec<(Expr, Expr)>,
        /// The result of ELSE; absent is NULL.
        otherwise: Option<Box<Expr>>,
        /// The type of the result.
        ty: Type,
        /// Its unit.
        unit: Unit,
    },
    /// `CAST(x AS ty)`. A value that cannot be cast is NULL (a text that is not a number, a float
    /// outside 64 bits).
    Cast {
        /// x
        expr: Box<Expr>,
        /// The target type.
        ty: Type,
        /// The unit of the result.
        unit: Unit,
    },
    /// A scalar function.
    Call(ScalarCall),
}

/// An operator before its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum UnaryOp {
    /// `-x`
    Negate,
    /// `NOT x`
    Not,
}

/// An operator between its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BinaryOp {
    /// `+`, checked on integers
    Add,
    /// `-`, checked on integers
    Subtract,
    /// `*`, checked on integers
    Multiply,
    /// `/`: truncates on integers; by zero is NULL
    Divide,
    /// `%`: the sign of the dividend; by zero is NULL
    Modulo,
    /// `=`
    Equal,
    /// `<>`, `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterEqual,
    /// `AND`
    And,
    /// `OR`
    Or,
    /// `||`: concatenation of texts
    Concat,
}

impl BinaryOp {
    /// As CQL writes it.
    pub fn symbol(self) -> &'static str {
        match self {
            BinaryOp::Add => "+",
            BinaryOp::Subtract => "-",
            BinaryOp::Multiply => "*",
            BinaryOp::Divide => "/",
            BinaryOp::Modulo => "%",
            BinaryOp::Equal => "=",
            BinaryOp::NotEqual => "<>",
            BinaryOp::Less => "<",
            BinaryOp::LessEqual => "<=",
            BinaryOp::Greater => ">",
            BinaryOp::GreaterEqual => ">=",
            BinaryOp::And => "AND",
            BinaryOp::Or => "OR",
            BinaryOp::Concat => "||",
        }
    }

    /// True for `=`, `<`, ...
    pub fn is_comparison(self) -> bool {
        use BinaryOp::*;
        matches!(
            self,
            Equal | NotEqual | Less | LessEqual | Greater | GreaterEqual
        )
    }
}

impl Expr {
    /// The two sides of an equality.
    pub fn equality(&self) -> Option<(&Expr, &Expr)> {
        match self {
            Expr::Binary {
                op: BinaryOp::Equal,
                left,
                right,
                ..
            } => Some((left, right)),
            _ => None,
        }
    }

    /// A column.
    pub fn column(index: usize, ty: Type, unit: Unit) -> Expr {
        Expr::Column { index, ty, unit }
    }

    /// An integer constant without unit.
    pub fn int(value: i64) -> Expr {
        Expr::Literal {
            value: Value::Int(value),
            ty: Type::Int,
            unit: Unit::None,
        }
    }

    /// The type of its values.
    pub fn ty(&self) -> Type {
        match self {
            Expr::Column { ty, .. }
            | Expr::Literal { ty, .. }
            | Expr::Case { ty, .. }
            | Expr::Cast { ty, .. } => *ty,
            Expr::Unary {
                op: UnaryOp::Negate,
                expr,
            } => expr.ty(),
            Expr::Unary {
                op: UnaryOp::Not, ..
            }
            | Expr::IsNull { .. }
            | Expr::InList { .. }
            | Expr::Like { .. } => Type::Bool,
            Expr::Binary {
                op, left, right, ..
            } => match op {
                BinaryOp::And | BinaryOp::Or => Type::Bool,
                op if op.is_comparison() => Type::Bool,
                BinaryOp::Concat => Type::Text,
                BinaryOp::Subtract if left.ty() == Type::Time && right.ty() == Type::Time => {
                    Type::Int
                }
                _ if left.ty() == Type::Time || right.ty() == Type::Time => Type::Time,
                _ => left.ty(),
            },
            Expr::Call(call) => call.ty,
        }
    }

    /// The unit of its values.
    pub fn unit(&self) -> Unit {
        match self {
            Expr::Column { unit, .. }
            | Expr::Literal { unit, .. }
            | Expr::Case { unit, .. }
            | Expr::Cast { unit, .. }
            | Expr::Binary { unit, .. } => *unit,
            Expr::Unary {
                op: UnaryOp::Negate,
                expr,
            } => expr.unit(),
            Expr::Unary { .. } | Expr::IsNull { .. } | Expr::InList { .. } | Expr::Like { .. } => {
                Unit::None
            }
            Expr::Call(call) => call.unit,
        }
    }

    /// The expressions directly below.
    pub fn children(&self) -> Vec<&Expr> {
        match self {
            Expr::Column { .. } | Expr::Literal { .. } => vec![],
            Expr::Unary { expr, .. }
            | Expr::IsNull { expr, .. }
            | Expr::InList { expr, .. }
            | Expr::Like { expr, .. }
            | Expr::Cast { expr, .. } => vec![expr],
            Expr::Binary { left, right, .. } => vec![left, right],
            Expr::Case {
                branches,
                otherwise,
                ..
            } => branches
                .iter()
                .flat_map(|(c, x)| [c, x])
                .chain(otherwise.as_deref())
                .collect(),
            Expr::Call(call) => call.args.iter().collect(),
        }
    }

    /// How many nodes it has.
    pub fn size(&self) -> usize {
        let below: usize = self.children().into_iter().map(Expr::size).sum();
        1 + below
    }

    /// Calls `visit` with the index of every column it reads.
    pub fn visit_columns(&self, visit: &mut impl FnMut(usize)) {
        if let Expr::Column { index, .. } = self {
            visit(*index);
        }
        for child in self.children() {
            child.visit_columns(visit);
        }
    }

    /// The same expression with every column index replaced.
    pub fn map_columns(&self, map: &impl Fn(usize) -> usize) -> Expr {
        self.map(&|e| match e {
            Expr::Column { index, ty, unit } => Expr::Column {
                index: map(index),
                ty,
                unit,
            },
            other => other,
        })
    }

    /// The same expression, rebuilt from the leaves up through `rewrite`.
    pub fn map(&self, rewrite: &impl Fn(Expr) -> Expr) -> Expr {
        rewrite(self.map_children(&mut |child| child.map(rewrite)))
    }

    /// The same expression over other children.
    pub fn map_children(&self, rewrite: &mut impl FnMut(&Expr) -> Expr) -> Expr {
        let mut again = |e: &Expr| Box::new(rewrite(e));
        match self {
            Expr::Column { .. } | Expr::Literal { .. } => self.clone(),
            Expr::Unary { op, expr } => Expr::Unary {
                op: *op,
                expr: again(expr),
            },
            Expr::Binary {
                op,
                left,
                right,
                unit,
            } => Expr::Binary {
                op: *op,
                left: again(left),
                right: again(right),
                unit: *unit,
            },
            Expr::IsNull { expr, negated } => Expr::IsNull {
                expr: again(expr),
                negated: *negated,
            },
            Expr::InList {
                expr,
                list,
                has_null,
                negated,
            } => Expr::InList {
                expr: again(expr),
                list: list.clone(),
                has_null: *has_null,
                negated: *negated,
            },
            Expr::Like {
                expr,
                pattern,
                ignore_case,
                negated,
            } => Expr::Like {
                expr: again(expr),
                pattern: pattern.clone(),
                ignore_case: *ignore_case,
                negated: *negated,
            },
            Expr::Case {
                branches,
                otherwise,
                ty,
                unit,
            } => Expr::Case {
                branches: branches
                    .iter()
                    .map(|(c, x)| (*again(c), *again(x)))
                    .collect(),
                otherwise: otherwise.as_deref().map(again),
                ty: *ty,
                unit: *unit,
            },
            Expr::Cast { expr, ty, unit } => Expr::Cast {
                expr: again(expr),
                ty: *ty,
                unit: *unit,
            },
            Expr::Call(call) => {
                let args = call.args.iter().map(rewrite).collect();
                Expr::Call(ScalarCall {
                    args,
                    ..call.clone()
                })
            }
        }
    }

    /// Whether evaluation may fail for some values.
    pub(crate) fn may_fail(&self) -> bool {
        let here = match self {
            Expr::Binary { op, left, .. } => match op {
                BinaryOp::Concat => true,
                BinaryOp::Add | BinaryOp::Subtract | BinaryOp::Multiply | BinaryOp::Divide => {
                    left.ty() != Type::Float
                }
                _ => false,
            },
            Expr::Unary {
                op: UnaryOp::Negate,
                expr,
            } => expr.ty() != Type::Float,
            Expr::Cast { ty, .. } => *ty == Type::Text,
            Expr::Call(_) => true,
            _ => false,
        };
        here || self.children().into_iter().any(Expr::may_fail)
    }
}
