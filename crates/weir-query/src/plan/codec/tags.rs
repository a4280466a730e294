//! The tags of the elements of a plan: an element's position in its list. Lists are only appended
//! to.

use weir_model::{ClosedSet, Shape, Type, Unit};
use weir_sketch::{Bytes, Malformed};

use crate::expr::{BinaryOp, UnaryOp};
use crate::plan::{JoinKind, SetOp};

pub(super) const TYPES: &[Type] = &[
    Type::Bool,
    Type::Int,
    Type::Float,
    Type::Text,
    Type::Time,
    Type::Tally,
    Type::Partial,
];

pub(super) const UNITS: &[Unit] = &[
    Unit::None,
    Unit::Nanoseconds,
    Unit::Microseconds,
    Unit::Sectors,
    Unit::Bytes,
];

pub(super) const CLOSED_SETS: &[ClosedSet] = &ClosedSet::ALL;

pub(super) const SHAPES: &[Shape] = &[Shape::Stream, Shape::Relation];

pub(super) const JOINS: &[JoinKind] = &[
    JoinKind::Inner,
    JoinKind::Left,
    JoinKind::Right,
    JoinKind::Full,
    JoinKind::Semi,
    JoinKind::Anti,
    JoinKind::NotIn,
];

pub(super) const SET_OPS: &[SetOp] = &[SetOp::Union, SetOp::Intersect, SetOp::Except];

pub(super) const UNARY: &[UnaryOp] = &[UnaryOp::Negate, UnaryOp::Not];

pub(super) const BINARY: &[BinaryOp] = &[
    BinaryOp::Add,
    BinaryOp::Subtract,
    BinaryOp::Multiply,
    BinaryOp::Divide,
    BinaryOp::Modulo,
    BinaryOp::Equal,
    BinaryOp::NotEqual,
    BinaryOp::Less,
    BinaryOp::LessEqual,
    BinaryOp::Greater,
    BinaryOp::GreaterEqual,
    BinaryOp::And,
    BinaryOp::Or,
    BinaryOp::Concat,
];

/// The tag of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeTag {
    Source,
    Window,
    Select,
    Project,
    Join,
    Aggregate,
    Partial,
    Merge,
    Distinct,
    SetOp,
    Order,
    Istream,
    Dstream,
    Rstream,
}

pub(super) const NODES: &[NodeTag] = &[
    NodeTag::Source,
    NodeTag::Window,
    NodeTag::Select,
    NodeTag::Project,
    NodeTag::Join,
    NodeTag::Aggregate,
    NodeTag::Partial,
    NodeTag::Merge,
    NodeTag::Distinct,
    NodeTag::SetOp,
    NodeTag::Order,
    NodeTag::Istream,
    NodeTag::Dstream,
    NodeTag::Rstream,
];

/// The tag of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowTag {
    Now,
    Range,
    Rows,
    Partition,
    Unbounded,
    Since,
}

pub(super) const WINDOWS: &[WindowTag] = &[
    WindowTag::Now,
    WindowTag::Range,
    WindowTag::Rows,
    WindowTag::Partition,
    WindowTag::Unbounded,
    WindowTag::Since,
];

/// The tag of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExprTag {
    Column,
    Literal,
    Unary,
    Binary,
    IsNull,
    InList,
    Like,
    Case,
    Cast,
    Call,
}

pub(super) const EXPRS: &[ExprTag] = &[
    ExprTag::Column,
    ExprTag::Literal,
    ExprTag::Unary,
    ExprTag::Binary,
    ExprTag::IsNull,
    ExprTag::InList,
    ExprTag::Like,
    ExprTag::Case,
    ExprTag::Cast,
    ExprTag::Call,
];

/// The tag of a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueTag {
    Null,
    False,
    True,
    Int,
    Float,
    Text,
}

pub(super) const VALUES: &[ValueTag] = &[
    ValueTag::Null,
    ValueTag::False,
    ValueTag::True,
    ValueTag::Int,
    ValueTag::Float,
    ValueTag::Text,
];

/// Appends an element's position in its list.
pub(super) fn put<T: PartialEq>(out: &mut Vec<u8>, list: &[T], item: T) {
    let at = list.iter().position(|known| *known == item);
    out.push(at.expect("the list has all of them") as u8);
}

/// The element at the position that is read next.
pub(super) fn get<T: Copy>(bytes: &mut Bytes<'_>, list: &[T]) -> Result<T, Malformed> {
    let at = usize::from(bytes.byte()?);
    list.get(at).copied().ok_or(Malformed("a tag is unknown"))
}
