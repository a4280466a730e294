//! The abstract syntax tree of a query text; names are not resolved.
//!
//! Every node has its position in the text. Two trees are equal when they differ in positions only.

use weir_model::{ProbeDefinition, ProbeEnd, ProbeField, ProbeScope, Shape, Type, probe};

pub use super::alert::{ActClause, AlertDefinition, Expectation, UntilClause};
pub use super::grouping::{Grouping, SETS_MAX};
pub use super::library::{CatalogList, CatalogQuery, DropView};
use super::measure::UnitName;
pub use super::row_pattern::{AfterMatch, MatchClause, MatchSource, PatternTerm};
pub use super::row_window::{FrameBound, FrameClause, RowWindow, WindowDefinition};
use crate::diagnostic::Span;
use crate::expr::BinaryOp;
pub use crate::expr::UnaryOp;
pub use crate::plan::SetOp;
pub use crate::plan::over::FrameUnit;

/// A value and its position, which is ignored by comparisons.
#[derive(Clone, Copy, Debug)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// The position.
    pub span: Span,
}

impl<T> Spanned<T> {
    /// `value` at `span`.
    pub fn new(value: T, span: Span) -> Spanned<T> {
        Spanned { value, span }
    }
}

impl<T: PartialEq> PartialEq for Spanned<T> {
    fn eq(&self, other: &Spanned<T>) -> bool {
        self.value == other.value
    }
}

/// A name.
pub type Ident = Spanned<String>;

/// A statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// `CREATE [OR REPLACE] VIEW name [(a, b)] AS query`
    View(ViewDefinition),
    /// `DROP VIEW [IF EXISTS] name`
    DropView(DropView),
    /// `DESCRIBE ..` and `SHOW ..`
    Inspect(CatalogQuery),
    /// `CREATE STREAM name AS PROBE 'tp:sched:sched_switch' [(prev_pid, ..)]`
    Stream(StreamDefinition),
    /// `CREATE ALERT name AS query [WHEN ..] [UNTIL ..]`
    Alert(Box<AlertDefinition>),
    /// `EXPECT alert state [BETWEEN d AND d]`
    Expect(Expectation),
    /// A query.
    Query(Query),
    /// `REGISTER STREAM name (a integer, ..)`
    Register(Registration),
}

/// A name for a query: `CREATE VIEW name (a, b) AS query`, or `name (a, b) AS (query)` in WITH.
#[derive(Clone, Debug, PartialEq)]
pub struct ViewDefinition {
    /// A view of this name is replaced.
    pub or_replace: bool,
    /// The name.
    pub name: Ident,
    /// Names of its columns; none keeps the query's own.
    pub columns: Vec<Ident>,
    /// The query.
    pub query: Query,
}

/// `CREATE STREAM name AS PROBE 'probe' [(path [type] [AS name] [UNIT unit], ..)] [TO 'probe' ..]
/// [PID number] [CGROUP 'path'] [LIMIT hits] [CPU percent %]`
#[derive(Clone, Debug, PartialEq)]
pub struct StreamDefinition {
    /// The name.
    pub name: Ident,
    /// What the probe is attached to.
    pub probe: Spanned<String>,
    /// Its fields; empty for all.
    pub fields: Vec<Spanned<ProbeField>>,
    /// The end of what the probe begins.
    pub end: Option<EndDefinition>,
    /// Whose hits are read.
    pub scope: ProbeScope,
    /// Maximum number of hits per second and processor.
    pub hits_max: Option<Spanned<u64>>,
    /// Maximum share of a processor, in percent.
    pub cpu_percent_max: Option<Spanned<u8>>,
}

/// `TO 'probe' [(path ..)] [ON path [= path] [AND ..]]`
#[derive(Clone, Debug, PartialEq)]
pub struct EndDefinition {
    /// What the probe is attached to.
    pub probe: Spanned<String>,
    /// Its fields.
    pub fields: Vec<Spanned<ProbeField>>,
    /// The numbers by which it is paired, of the beginning and of the end.
    pub keys: Vec<(String, String)>,
}

impl StreamDefinition {
    /// The definition without positions.
    pub fn definition(&self) -> ProbeDefinition {
        let plain = |fields: &[Spanned<ProbeField>]| {
            let fields = fields.iter().map(|field| field.value.clone());
            fields.collect()
        };
        ProbeDefinition {
            name: self.name.value.clone(),
            probe: self.probe.value.clone(),
            fields: plain(&self.fields),
            end: self.end.as_ref().map(|end| ProbeEnd {
                probe: end.probe.value.clone(),
                fields: plain(&end.fields),
                keys: end.keys.clone(),
            }),
            scope: self.scope.clone(),
            hits_max: self.hits_max.map_or(probe::HITS_MAX, |most| most.value),
            cpu_percent_max: self
                .cpu_percent_max
                .map_or(probe::CPU_PERCENT_MAX, |most| most.value),
        }
    }
}

/// `REGISTER STREAM S (a integer, ..)`, `REGISTER RELATION R (..)`, of STREAM's scripts.
#[derive(Clone, Debug, PartialEq)]
pub struct Registration {
    /// Stream or relation.
    pub shape: Shape,
    /// The name.
    pub name: Ident,
    /// The columns.
    pub columns: Vec<(Ident, Spanned<Type>)>,
}

/// A query with the clauses around its body.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// WITH
    pub views: Vec<ViewDefinition>,
    /// The query itself.
    pub body: QueryBody,
    /// ORDER BY
    pub order_by: Vec<OrderItem>,
    /// LIMIT
    pub limit: Option<Spanned<u64>>,
    /// OFFSET
    pub offset: Option<Spanned<u64>>,
}

/// A body and its position.
pub type QueryBody = Spanned<BodyKind>;

/// What a query computes.
#[derive(Clone, Debug, PartialEq)]
pub enum BodyKind {
    /// `SELECT .. FROM ..`
    Select(Box<SelectBlock>),
    /// A name alone, as the sides of STREAM's `R UNION S`.
    Named(Box<Named>),
    /// `left UNION ALL right`
    SetOp {
        /// The operation.
        op: SetOp,
        /// ALL.
        all: bool,
        /// Left side.
        left: Box<QueryBody>,
        /// Right side.
        right: Box<QueryBody>,
    },
    /// `Istream(query)`, `Rstream(query) EVERY 1 s`
    ToStream {
        /// The operator.
        kind: StreamOp,
        /// The relation.
        query: Box<Query>,
        /// EVERY.
        every: Option<Spanned<Duration>>,
    },
    /// `(query)`
    Nested(Box<Query>),
    /// A part with a syntax error, which is already reported.
    Error,
}

/// A relation-to-stream operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamOp {
    /// The insertions.
    Istream,
    /// The retractions.
    Dstream,
    /// The whole relation.
    Rstream,
}

/// `SELECT .. FROM .. WHERE .. GROUP BY .. HAVING ..`
#[derive(Clone, Debug, PartialEq)]
pub struct SelectBlock {
    /// `SELECT DISTINCT`
    pub distinct: bool,
    /// The select list.
    pub items: Vec<Spanned<Item>>,
    /// FROM, separated by commas.
    pub from: Vec<FromItem>,
    /// WHERE
    pub filter: Option<SpannedExpr>,
    /// The keys of GROUP BY.
    pub group_by: Vec<SpannedExpr>,
    /// By which of them the rows are grouped.
    pub grouping: Grouping,
    /// HAVING
    pub having: Option<SpannedExpr>,
    /// WINDOW
    pub windows: Vec<WindowDefinition>,
}

/// An item of the select list.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// `*`
    Star,
    /// `t.*`
    TableStar(Ident),
    /// `x AS y`
    Expr {
        /// The expression.
        expr: SpannedExpr,
        /// The alias.
        alias: Option<Ident>,
    },
    /// A part with a syntax error.
    Error,
}

/// A source and its joins.
#[derive(Clone, Debug, PartialEq)]
pub struct FromItem {
    /// The first source.
    pub table: TableRef,
    /// The JOINs, from left to right.
    pub joins: Vec<Join>,
}

/// `LEFT JOIN t ON ..`
#[derive(Clone, Debug, PartialEq)]
pub struct Join {
    /// The kind.
    pub kind: Spanned<JoinOp>,
    /// The joined source.
    pub table: TableRef,
    /// The condition.
    pub condition: Condition,
}

/// A kind of join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinOp {
    /// `[INNER] JOIN`
    Inner,
    /// `LEFT [OUTER] JOIN`
    Left,
    /// `RIGHT [OUTER] JOIN`
    Right,
    /// `FULL [OUTER] JOIN`
    Full,
    /// `CROSS JOIN`
    Cross,
}

/// The condition of a join.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    /// No condition.
    None,
    /// `ON x`
    On(SpannedExpr),
    /// `USING (a, b)`
    Using(Vec<Ident>),
}

/// A source in FROM and its position.
pub type TableRef = Spanned<TableSource>;

/// A source in FROM.
#[derive(Clone, Debug, PartialEq)]
pub enum TableSource {
    /// A stream, relation or view by its name.
    Named(Named),
    /// `(query) [window] AS x`
    Derived {
        /// The query.
        query: Box<Query>,
        /// The window, where the query is a stream.
        window: Option<WindowClause>,
        /// The alias.
        alias: Option<Ident>,
    },
    /// A source with MATCH_RECOGNIZE.
    Match(Box<MatchSource>),
    /// A part with a syntax error.
    Error,
}

/// `S [window] AS x`
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// The name.
    pub name: Ident,
    /// The window.
    pub window: Option<WindowClause>,
    /// The alias.
    pub alias: Option<Ident>,
}

/// A window and its position.
pub type WindowClause = Spanned<WindowSpec>;

/// Which rows of a stream are in the relation.
#[derive(Clone, Debug, PartialEq)]
pub enum WindowSpec {
    /// `[Now]`
    Now,
    /// `[Range size Slide slide Delay delay]`
    Range {
        /// The length.
        size: Spanned<Duration>,
        /// The slide.
        slide: Option<Spanned<Duration>>,
        /// How far in the past the window ends.
        delay: Option<Spanned<Duration>>,
    },
    /// `[Session gap By keys]`
    Session {
        /// The pause that ends a session.
        gap: Spanned<Duration>,
        /// The keys.
        keys: Vec<SpannedExpr>,
    },
    /// `[Rows n]`
    Rows(Spanned<u64>),
    /// `[Partition By keys Rows n]`
    Partition {
        /// The keys.
        keys: Vec<SpannedExpr>,
        /// The number of rows per key.
        rows: Spanned<u64>,
    },
    /// `[Range Unbounded Slide slide]`
    Unbounded {
        /// The slide.
        slide: Option<Spanned<Duration>>,
    },
    /// A part with a syntax error.
    Error,
}

/// `5 seconds`, or in scripts `5`
#[derive(Clone, Debug, PartialEq)]
pub struct Duration {
    /// The number.
    pub count: Number,
    /// The unit.
    pub measure: Option<&'static UnitName>,
}

/// A number in the text, never negative.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// An integer.
    Int(i64),
    /// A number with a fraction or an exponent.
    Float(f64),
}

impl PartialEq for Number {
    fn eq(&self, other: &Number) -> bool {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => a == b,
            (Number::Float(a), Number::Float(b)) => a.to_bits() == b.to_bits(),
            _ => false,
        }
    }
}

/// One key of ORDER BY.
#[derive(Clone, Debug, PartialEq)]
pub struct OrderItem {
    /// The expression.
    pub expr: SpannedExpr,
    /// DESC
    pub descending: bool,
    /// NULLS FIRST or LAST, if present.
    pub nulls_first: Option<bool>,
}

/// An expression, its position and its height.
#[derive(Clone, Debug)]
pub struct SpannedExpr {
    /// The expression.
    pub kind: ExprKind,
    /// The position.
    pub span: Span,
    /// The number of nodes on the longest path to a leaf. Bounded by the parser, so that recursive
    /// functions on the tree are bounded too.
    pub height: u16,
}

impl PartialEq for SpannedExpr {
    fn eq(&self, other: &SpannedExpr) -> bool {
        self.kind == other.kind
    }
}

/// The kind of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum ExprKind {
    /// `a`, `t.a`
    Column {
        /// t
        table: Option<Ident>,
        /// a
        name: Ident,
    },
    /// A constant.
    Literal(Literal),
    /// `-x`, `NOT x`
    Unary {
        /// The operator.
        op: UnaryOp,
        /// x
        expr: Box<SpannedExpr>,
    },
    /// `x + y`
    Binary {
        /// The operator.
        op: BinaryOp,
        /// x
        left: Box<SpannedExpr>,
        /// y
        right: Box<SpannedExpr>,
    },
    /// `x IS [NOT] NULL`
    IsNull {
        /// x
        expr: Box<SpannedExpr>,
        /// NOT
        negated: bool,
    },
    /// `x [NOT] BETWEEN low AND high`
    Between {
        /// x
        expr: Box<SpannedExpr>,
        /// The lower bound.
        low: Box<SpannedExpr>,
        /// The upper bound.
        high: Box<SpannedExpr>,
        /// NOT
        negated: bool,
    },
    /// `x [NOT] IN (a, b)`
    InList {
        /// x
        expr: Box<SpannedExpr>,
        /// a, b
        list: Vec<SpannedExpr>,
        /// NOT
        negated: bool,
    },
    /// `x [NOT] IN (SELECT ..)`
    InQuery {
        /// x
        expr: Box<SpannedExpr>,
        /// The subquery.
        query: Box<Query>,
        /// NOT
        negated: bool,
    },
    /// `EXISTS (SELECT ..)`
    Exists {
        /// The subquery.
        query: Box<Query>,
    },
    /// `(SELECT ..)` as a value
    Scalar {
        /// The subquery.
        query: Box<Query>,
    },
    /// `x [NOT] LIKE y`, `ILIKE`
    Like {
        /// x
        expr: Box<SpannedExpr>,
        /// y
        pattern: Box<SpannedExpr>,
        /// ILIKE
        ignore_case: bool,
        /// NOT
        negated: bool,
    },
    /// `CASE [x] WHEN a THEN b .. [ELSE z] END`
    Case {
        /// x
        operand: Option<Box<SpannedExpr>>,
        /// a, b
        branches: Vec<(SpannedExpr, SpannedExpr)>,
        /// z
        otherwise: Option<Box<SpannedExpr>>,
    },
    /// `CAST(x AS type)`
    Cast {
        /// x
        expr: Box<SpannedExpr>,
        /// type
        ty: Spanned<Type>,
    },
    /// `f(a, b)`, `count(*)`, `count(DISTINCT a)`
    Call {
        /// f
        name: Ident,
        /// DISTINCT
        distinct: bool,
        /// a, b
        args: Vec<SpannedExpr>,
        /// `*` in place of arguments.
        star: bool,
        /// `FILTER (WHERE c)` after an aggregate.
        filter: Option<Box<SpannedExpr>>,
    },
    /// `A.*` in `count(A.*)`: the rows of a variable of a pattern.
    Rows(Ident),
    /// `f(x) OVER (PARTITION BY a ORDER BY b ROWS BETWEEN ..)`
    Over(Box<OverClause>),
    /// A part with a syntax error.
    Error,
}

/// A call of a window function.
#[derive(Clone, Debug, PartialEq)]
pub struct OverClause {
    /// The function.
    pub name: Ident,
    /// DISTINCT
    pub distinct: bool,
    /// Its arguments.
    pub args: Vec<SpannedExpr>,
    /// `*` in place of arguments.
    pub star: bool,
    /// `FILTER (WHERE c)` after an aggregate.
    pub filter: Option<Box<SpannedExpr>>,
    /// `OVER w`, `OVER (PARTITION BY a ORDER BY b)`
    pub window: RowWindow,
}

/// A constant.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    /// NULL
    Null,
    /// TRUE, FALSE
    Bool(bool),
    /// `42`, `-1.5`
    Number(Number),
    /// `'x'`
    Text(String),
    /// `250 ms`, `-4 KiB`
    Quantity(Number, &'static UnitName),
}

impl SpannedExpr {
    /// An expression without subqueries at `span`.
    pub fn new(kind: ExprKind, span: Span) -> SpannedExpr {
        SpannedExpr::over(kind, span, 0)
    }

    /// An expression at `span` over a subquery of height `below`.
    pub fn over(kind: ExprKind, span: Span, mut below: u16) -> SpannedExpr {
        kind.visit(&mut |child| below = below.max(child.height));
        SpannedExpr {
            kind,
            span,
            height: below.saturating_add(1),
        }
    }
}

impl ExprKind {
    /// Calls `visit` with each direct operand, subqueries excluded.
    pub fn visit<'a>(&'a self, visit: &mut impl FnMut(&'a SpannedExpr)) {
        match self {
            ExprKind::Column { .. }
            | ExprKind::Literal(_)
            | ExprKind::Rows(_)
            | ExprKind::Exists { .. }
            | ExprKind::Scalar { .. }
            | ExprKind::Error => {}
            ExprKind::Unary { expr, .. }
            | ExprKind::IsNull { expr, .. }
            | ExprKind::InQuery { expr, .. }
            | ExprKind::Cast { expr, .. } => visit(expr),
            ExprKind::Binary { left, right, .. } => {
                visit(left);
                visit(right);
            }
            ExprKind::Between {
                expr, low, high, ..
            } => {
                visit(expr);
                visit(low);
                visit(high);
            }
            ExprKind::InList { expr, list, .. } => {
                visit(expr);
                list.iter().for_each(visit);
            }
            ExprKind::Like { expr, pattern, .. } => {
                visit(expr);
                visit(pattern);
            }
            ExprKind::Case {
                operand,
                branches,
                otherwise,
            } => {
                operand.iter().for_each(|x| visit(x));
                for (when, then) in branches {
                    visit(when);
                    visit(then);
                }
                otherwise.iter().for_each(|x| visit(x));
            }
            ExprKind::Call { args, filter, .. } => {
                args.iter().for_each(&mut *visit);
                filter.iter().for_each(|x| visit(x));
            }
            ExprKind::Over(over) => {
                over.args.iter().for_each(&mut *visit);
                over.filter.iter().for_each(|x| visit(x));
                over.window.exprs().for_each(visit);
            }
        }
    }
}
