//! Selections that a source can test: a few alternatives, each a few tests of single columns
//! against constants.
//!
//! Other conditions are omitted, so that the result passes at least the demanded rows; whether it
//! is exact is returned too, since folded rows are not tested again.

use weir_model::capabilities::Select;
use weir_model::spread::{SPREADS, spreads_of};
use weir_model::{
    Capabilities, Clause, ColumnCapabilities, Declaration, Operand, Predicate, SECTOR_BYTES,
    SelectionLimits, Symbol, Test, Type, Value,
};

use crate::expr::{BinaryOp, Expr, UnaryOp};
use crate::function::scalar::sample;

/// The stream of a selection.
#[derive(Clone, Copy)]
pub struct SourceStream<'a> {
    declaration: &'a Declaration,
    /// The capabilities of its source.
    capabilities: &'a Capabilities,
}

/// The rows that pass a filter, as far as a kernel can test it.
#[derive(Clone, Debug)]
pub struct SourcePredicate {
    /// The rows, possibly a superset.
    pub rows: Predicate,
    /// Whether `rows` is exact.
    pub exact: bool,
}

impl SourcePredicate {
    /// Exactly these rows.
    pub fn exactly(rows: Predicate) -> SourcePredicate {
        SourcePredicate { rows, exact: true }
    }

    /// A superset: all rows.
    fn unknown() -> SourcePredicate {
        SourcePredicate {
            rows: Predicate::all(),
            exact: false,
        }
    }
}

/// Rows that pass `filter`, possibly a superset.
pub fn superset(filter: &Expr, source: SourceStream<'_>) -> Predicate {
    tested(filter, source).rows
}

/// Rows that pass `filter`.
pub fn tested(filter: &Expr, source: SourceStream<'_>) -> SourcePredicate {
    bounded(test(filter, false, source), source.limits())
}

/// Rows that pass both.
pub fn both(a: SourcePredicate, b: SourcePredicate, limits: SelectionLimits) -> SourcePredicate {
    let product = a.rows.clauses.len() * b.rows.clauses.len();
    if product <= limits.clauses {
        let all = SourcePredicate {
            rows: a.rows.and(b.rows),
            exact: a.exact && b.exact,
        };
        return bounded(all, limits);
    }
    // Too many alternatives: either side alone is a superset.
    let tests = |t: &SourcePredicate| {
        let clauses = t.rows.clauses.iter();
        clauses.map(|c| c.tests.len()).min().unwrap_or(0)
    };
    SourcePredicate {
        rows: if tests(&a) >= tests(&b) { a } else { b }.rows,
        exact: false,
    }
}

/// Rows that pass any of the two.
fn either(a: SourcePredicate, b: SourcePredicate, limits: SelectionLimits) -> SourcePredicate {
    let any = SourcePredicate {
        rows: a.rows.or(b.rows),
        exact: a.exact && b.exact,
    };
    bounded(any, limits)
}

/// The same within the limits, with tests dropped.
pub fn bounded(tested: SourcePredicate, limits: SelectionLimits) -> SourcePredicate {
    let mut clauses: Vec<Clause> = Vec::new();
    let mut exact = tested.exact;
    for clause in tested.rows.clauses {
        let Some((clause, whole)) = narrowed(clause, limits) else {
            continue;
        };
        exact &= whole;
        if clause.tests.is_empty() {
            return SourcePredicate {
                rows: Predicate::all(),
                exact,
            };
        }
        let known = clauses.iter_mut().find_map(|known| {
            let both = united(known, &clause, limits)?;
            Some((known, both))
        });
        match known {
            Some((known, both)) => *known = both,
            None => clauses.push(clause),
        }
    }
    match clauses.len() <= limits.clauses {
        true => SourcePredicate {
            rows: Predicate { clauses },
            exact,
        },
        false => SourcePredicate::unknown(),
    }
}

/// One test for each operand, and whether none was dropped; `None` when no row can pass.
fn narrowed(clause: Clause, limits: SelectionLimits) -> Option<(Clause, bool)> {
    let mut tests: Vec<Test> = Vec::new();
    for test in clause.tests {
        let Some(known) = tests.iter_mut().find(|t| t.operand() == test.operand()) else {
            tests.push(test);
            continue;
        };
        match (known, test) {
            (
                Test::Between { low, high, .. },
                Test::Between {
                    low: l, high: h, ..
                },
            ) => {
                (*low, *high) = ((*low).max(l), (*high).min(h));
            }
            (Test::In { texts, .. }, Test::In { texts: others, .. }) => {
                texts.retain(|t| others.contains(t));
            }
            // An operand is a number or a text, never both.
            _ => {}
        }
    }
    let empty = |test: &Test| match test {
        Test::Between { low, high, .. } => low > high,
        Test::In { texts, .. } => texts.is_empty(),
    };
    if tests.iter().any(empty) {
        return None;
    }
    let all = tests.len();
    tests.retain(|test| match test {
        Test::Between { .. } => true,
        Test::In { texts, .. } => texts.len() <= limits.texts,
    });
    tests.truncate(limits.tests);
    let whole = tests.len() == all;
    Some((Clause { tests }, whole))
}

/// Two alternatives as one, if they differ in the texts of one test only.
fn united(a: &Clause, b: &Clause, limits: SelectionLimits) -> Option<Clause> {
    match (a.tests.as_slice(), b.tests.as_slice()) {
        (
            [Test::In { operand, texts: x }],
            [
                Test::In {
                    operand: other,
                    texts: y,
                },
            ],
        ) if operand == other && x.len() + y.len() <= limits.texts => {
            let mut texts = x.clone();
            texts.extend(y.iter().filter(|t| !x.contains(t)));
            Some(Clause {
                tests: vec![Test::In {
                    operand: *operand,
                    texts,
                }],
            })
        }
        _ if a == b => Some(a.clone()),
        _ => None,
    }
}

/// Rows for which `filter` is true, or with `negated` false.
fn test(filter: &Expr, negated: bool, source: SourceStream<'_>) -> SourcePredicate {
    match filter {
        Expr::Literal {
            value: Value::Bool(b),
            ..
        } if *b != negated => SourcePredicate::exactly(Predicate::all()),
        Expr::Literal { .. } => SourcePredicate::exactly(Predicate::none()),
        Expr::Unary {
            op: UnaryOp::Not,
            expr,
        } => test(expr, !negated, source),
        Expr::Binary {
            op: op @ (BinaryOp::And | BinaryOp::Or),
            left,
            right,
            ..
        } => {
            let (l, r) = (test(left, negated, source), test(right, negated, source));
            // A AND B is false if A or B is.
            match (*op == BinaryOp::And) != negated {
                true => both(l, r, source.limits()),
                false => either(l, r, source.limits()),
            }
        }
        Expr::Binary {
            op, left, right, ..
        } if op.is_comparison() => {
            let op = if negated { opposite(*op) } else { *op };
            match (&**left, &**right) {
                (x, Expr::Literal { value, .. }) => compare(x, op, value, source),
                (Expr::Literal { value, .. }, x) => compare(x, mirrored(op), value, source),
                _ => SourcePredicate::unknown(),
            }
        }
        Expr::InList {
            expr,
            list,
            has_null,
            negated: not,
        } => in_list(expr, list, *has_null, *not != negated, source),
        Expr::IsNull { expr, negated: not } if *not != negated => {
            match number_field(expr, source) {
                Some(linear) => linear.tested(between(linear.operand(), i64::MIN, i64::MAX)),
                None => SourcePredicate::unknown(),
            }
        }
        Expr::Call(call) => match sample::of(call) {
            Some((x, share)) => sampled(x, share, negated, source),
            None => SourcePredicate::unknown(),
        },
        _ => SourcePredicate::unknown(),
    }
}

/// The rows in a sample, or with `negated` the others.
fn sampled(x: &Expr, share: f64, negated: bool, source: SourceStream<'_>) -> SourcePredicate {
    let column = match x {
        Expr::Column { index, ty, .. } if *ty == Type::Int => *index,
        _ => return SourcePredicate::unknown(),
    };
    if !source.column(column).sample {
        return SourcePredicate::unknown();
    }
    let passing = spreads_of(share);
    let (low, high) = match negated {
        false => (0, passing - 1),
        true => (passing, SPREADS - 1),
    };
    SourcePredicate::exactly(match low > high {
        true => Predicate::none(),
        false => between(Operand::Sample(column), low, high),
    })
}

/// The operator that is true where `op` is false.
fn opposite(op: BinaryOp) -> BinaryOp {
    use BinaryOp::*;
    match op {
        Equal => NotEqual,
        NotEqual => Equal,
        Less => GreaterEqual,
        LessEqual => Greater,
        Greater => LessEqual,
        _ => Less,
    }
}

/// `y op' x` for `x op y`.
fn mirrored(op: BinaryOp) -> BinaryOp {
    use BinaryOp::*;
    match op {
        Less => Greater,
        LessEqual => GreaterEqual,
        Greater => Less,
        GreaterEqual => LessEqual,
        op => op,
    }
}

/// A number that is a column times a constant.
struct Linear {
    column: usize,
    /// At least 1.
    factor: i64,
    /// Whether the source selects exactly.
    exact: bool,
}

impl Linear {
    fn operand(&self) -> Operand {
        Operand::Value(self.column)
    }

    /// The rows for which a test of the number holds. A product may overflow, which ends the query;
    /// a kernel does not detect it.
    fn tested(&self, rows: Predicate) -> SourcePredicate {
        SourcePredicate {
            rows,
            exact: self.exact && [1, SECTOR_BYTES].contains(&self.factor),
        }
    }
}

/// The column of a number, or of a positive multiple of it.
fn number_field(expr: &Expr, source: SourceStream<'_>) -> Option<Linear> {
    match expr {
        Expr::Column {
            index,
            ty: Type::Int | Type::Time,
            ..
        } => {
            let (column, factor) = source.column(*index).product.unwrap_or((*index, 1));
            let exact = match source.column(column).select {
                Select::No => return None,
                select => select == Select::Exact,
            };
            Some(Linear {
                column,
                factor,
                exact,
            })
        }
        Expr::Binary {
            op: BinaryOp::Multiply,
            left,
            right,
            ..
        } => {
            let (inner, constant) = match (&**left, &**right) {
                (
                    inner,
                    Expr::Literal {
                        value: Value::Int(k),
                        ..
                    },
                )
                | (
                    Expr::Literal {
                        value: Value::Int(k),
                        ..
                    },
                    inner,
                ) => (inner, *k),
                _ => return None,
            };
            let linear = number_field(inner, source)?;
            let factor = linear.factor.checked_mul(constant);
            Some(Linear {
                factor: factor.filter(|f| *f > 0)?,
                ..linear
            })
        }
        Expr::Cast { expr, ty, .. } if ty.is_numeric() && expr.ty() == Type::Int => {
            number_field(expr, source)
        }
        _ => None,
    }
}

impl<'a> SourceStream<'a> {
    /// A stream of a source with these capabilities.
    pub fn new(declaration: &'a Declaration, capabilities: &'a Capabilities) -> SourceStream<'a> {
        SourceStream {
            declaration,
            capabilities,
        }
    }

    fn limits(self) -> SelectionLimits {
        self.capabilities.limits(&self.declaration.name)
    }

    fn column(self, index: usize) -> ColumnCapabilities {
        self.capabilities.column(self.declaration, index)
    }

    /// Whether the source selects by a column.
    pub fn is_tested(self, index: usize) -> bool {
        let column = self.column(index);
        let tested = |at: usize| self.column(at).select != Select::No;
        tested(index) || column.product.is_some_and(|(at, _)| tested(at))
    }
}

/// A text column by which the source selects.
struct TextColumn {
    column: usize,
    exact: bool,
}

impl TextColumn {
    fn find(expr: &Expr, source: SourceStream<'_>) -> Option<TextColumn> {
        let column = match expr {
            Expr::Column {
                index,
                ty: Type::Text,
                ..
            } => *index,
            _ => return None,
        };
        match source.column(column).select {
            Select::No => None,
            select => Some(TextColumn {
                column,
                exact: select == Select::Exact,
            }),
        }
    }

    /// The rows with one of `texts` in it.
    fn tested(&self, texts: Vec<Symbol>) -> SourcePredicate {
        let operand = Operand::Value(self.column);
        let tests = vec![Test::In { operand, texts }];
        SourcePredicate {
            rows: Predicate {
                clauses: vec![Clause { tests }],
            },
            exact: self.exact,
        }
    }
}

fn between(operand: Operand, low: i64, high: i64) -> Predicate {
    let tests = vec![Test::Between { operand, low, high }];
    Predicate {
        clauses: vec![Clause { tests }],
    }
}

/// `x op value`
fn compare(x: &Expr, op: BinaryOp, value: &Value, source: SourceStream<'_>) -> SourcePredicate {
    match value {
        Value::Null => SourcePredicate::exactly(Predicate::none()),
        Value::Text(text) => {
            let Some(tested) = TextColumn::find(x, source) else {
                return SourcePredicate::unknown();
            };
            let values = source.declaration.schema[tested.column].values;
            match (op, values) {
                (BinaryOp::Equal, _) => tested.tested(vec![*text]),
                (BinaryOp::NotEqual, Some(values)) => {
                    let texts = values.values().into_iter().map(|(v, _)| Symbol::new(v));
                    tested.tested(texts.filter(|t| t != text).collect())
                }
                _ => SourcePredicate::unknown(),
            }
        }
        Value::Int(bound) => match number_field(x, source) {
            Some(linear) => ranges(linear, op, i128::from(*bound), i128::from(*bound)),
            None => SourcePredicate::unknown(),
        },
        // Floats hold integers up to 2^53 exactly; beyond, a comparison may round.
        Value::Float(bound) if bound.abs() < (1_u64 << 53) as f64 => {
            match number_field(x, source) {
                Some(linear) => ranges(linear, op, bound.floor() as i128, bound.ceil() as i128),
                None => SourcePredicate::unknown(),
            }
        }
        _ => SourcePredicate::unknown(),
    }
}

/// Values of the column for which `column * factor op bound` can hold, where `low <= bound <= high`
/// with no integer in between.
fn ranges(linear: Linear, op: BinaryOp, low: i128, high: i128) -> SourcePredicate {
    let (operand, factor) = (linear.operand(), i128::from(linear.factor));
    let clamp = |x: i128| x.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
    let at_least = |x: i128| x.div_euclid(factor) + i128::from(x.rem_euclid(factor) != 0);
    let at_most = |x: i128| x.div_euclid(factor);
    // With a bound between two integers, `>` starts above the lower one and `>=` at the upper one,
    // which is the same.
    let (from, to) = match op {
        BinaryOp::Equal if low != high => return SourcePredicate::exactly(Predicate::none()),
        BinaryOp::Equal => (at_least(low), at_most(low)),
        BinaryOp::Less => (i128::MIN, at_most(high - 1)),
        BinaryOp::LessEqual => (i128::MIN, at_most(low)),
        BinaryOp::Greater => (at_least(low + 1), i128::MAX),
        BinaryOp::GreaterEqual => (at_least(high), i128::MAX),
        BinaryOp::NotEqual if low == high && low.rem_euclid(factor) == 0 => {
            let gap = low / factor;
            let below = between(operand, i64::MIN, clamp(gap - 1));
            return linear.tested(below.or(between(operand, clamp(gap + 1), i64::MAX)));
        }
        _ => (i128::MIN, i128::MAX),
    };
    linear.tested(match from > to {
        true => Predicate::none(),
        false => between(operand, clamp(from), clamp(to)),
    })
}

fn in_list(
    x: &Expr,
    list: &[Value],
    has_null: bool,
    negated: bool,
    source: SourceStream<'_>,
) -> SourcePredicate {
    if negated {
        // x NOT IN (.., NULL) is never true.
        if has_null {
            return SourcePredicate::exactly(Predicate::none());
        }
        let others = list
            .iter()
            .map(|value| compare(x, BinaryOp::NotEqual, value, source));
        let all = SourcePredicate::exactly(Predicate::all());
        return others.fold(all, |a, b| both(a, b, source.limits()));
    }
    if let Some(column) = TextColumn::find(x, source) {
        let texts = list.iter().filter_map(|value| match value {
            Value::Text(text) => Some(*text),
            _ => None,
        });
        return bounded(column.tested(texts.collect()), source.limits());
    }
    let equal = list
        .iter()
        .map(|value| compare(x, BinaryOp::Equal, value, source));
    let none = SourcePredicate::exactly(Predicate::none());
    let each = equal.fold(none, |all, one| SourcePredicate {
        rows: all.rows.or(one.rows),
        exact: all.exact && one.exact,
    });
    if each.rows.clauses.len() <= source.limits().clauses {
        return each;
    }
    // Many numbers: the range from the minimum to the maximum.
    let least = compare(x, BinaryOp::GreaterEqual, &list[0], source);
    let greatest = compare(x, BinaryOp::LessEqual, &list[list.len() - 1], source);
    SourcePredicate {
        exact: false,
        ..both(least, greatest, source.limits())
    }
}
