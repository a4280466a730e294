//! Selections as the kernel can test them: a few alternatives, each a few tests of single fields
//! against constants.
//!
//! What cannot be said so is left out, so that the result lets through at least the rows that are
//! wanted; and it is known whether that was so, since rows that are folded are not tested again.

use weir_model::spread::{SPREADS, spreads_of};
use weir_model::{
    Clause, Declaration, EventKind, KernelField, Op, Predicate, SECTOR_BYTES, Symbol, Test, Type,
    Value,
};

use crate::expr::{BinaryOp, Expr, UnaryOp};
use crate::function::scalar::sample;

/// Most alternatives that a kernel program tests for one stream.
pub const CLAUSES_MAX: usize = 4;

/// Most tests in one alternative.
pub const TESTS_MAX: usize = 8;

/// Most texts in one test.
pub const TEXTS_MAX: usize = 16;

/// The rows that pass a filter, as far as a kernel can test it.
#[derive(Clone, Debug)]
pub struct Tested {
    /// The rows, and perhaps more.
    pub rows: Predicate,
    /// No more.
    pub exact: bool,
}

impl Tested {
    /// These rows and no other.
    pub fn exactly(rows: Predicate) -> Tested {
        Tested { rows, exact: true }
    }

    /// Among all rows, nobody can say which.
    fn unknown() -> Tested {
        Tested {
            rows: Predicate::all(),
            exact: false,
        }
    }
}

/// Rows that pass `filter`, and perhaps more.
pub fn superset(filter: &Expr, source: &Declaration) -> Predicate {
    tested(filter, source).rows
}

/// Rows that pass `filter`.
pub fn tested(filter: &Expr, source: &Declaration) -> Tested {
    bounded(test(filter, false, source))
}

/// Rows that pass both.
pub fn both(a: Tested, b: Tested) -> Tested {
    let product = a.rows.clauses.len() * b.rows.clauses.len();
    if product <= CLAUSES_MAX {
        return bounded(Tested {
            rows: a.rows.and(b.rows),
            exact: a.exact && b.exact,
        });
    }
    // Too many alternatives: either side alone lets all through that both do.
    let tests = |t: &Tested| {
        let clauses = t.rows.clauses.iter();
        clauses.map(|c| c.tests.len()).min().unwrap_or(0)
    };
    Tested {
        rows: if tests(&a) >= tests(&b) { a } else { b }.rows,
        exact: false,
    }
}

/// Rows that pass either.
fn either(a: Tested, b: Tested) -> Tested {
    bounded(Tested {
        rows: a.rows.or(b.rows),
        exact: a.exact && b.exact,
    })
}

/// The same within the bounds, by dropping tests.
pub fn bounded(tested: Tested) -> Tested {
    let mut clauses: Vec<Clause> = Vec::new();
    let mut exact = tested.exact;
    for clause in tested.rows.clauses {
        let Some((clause, whole)) = narrowed(clause) else {
            continue;
        };
        exact &= whole;
        if clause.tests.is_empty() {
            return Tested {
                rows: Predicate::all(),
                exact,
            };
        }
        match clauses.iter().position(|c| united(c, &clause).is_some()) {
            Some(i) => clauses[i] = united(&clauses[i], &clause).expect("it was possible just now"),
            None => clauses.push(clause),
        }
    }
    match clauses.len() <= CLAUSES_MAX {
        true => Tested {
            rows: Predicate { clauses },
            exact,
        },
        false => Tested::unknown(),
    }
}

/// One test a field, and whether none was dropped; `None` when no row can pass.
fn narrowed(clause: Clause) -> Option<(Clause, bool)> {
    let mut tests: Vec<Test> = Vec::new();
    for test in clause.tests {
        let Some(known) = tests.iter_mut().find(|t| t.field() == test.field()) else {
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
            // A field is a number or a text, never both.
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
        Test::In { texts, .. } => texts.len() <= TEXTS_MAX,
    });
    tests.truncate(TESTS_MAX);
    let whole = tests.len() == all;
    Some((Clause { tests }, whole))
}

/// Two alternatives as one, where they differ in the texts of one test only.
fn united(a: &Clause, b: &Clause) -> Option<Clause> {
    match (a.tests.as_slice(), b.tests.as_slice()) {
        ([Test::In { field: f, texts: x }], [Test::In { field: g, texts: y }]) if f == g => {
            let mut texts = x.clone();
            texts.extend(y.iter().filter(|t| !x.contains(t)));
            let test = Test::In { field: *f, texts };
            Some(Clause { tests: vec![test] }).filter(|_| x.len() + y.len() <= TEXTS_MAX)
        }
        _ if a == b => Some(a.clone()),
        _ => None,
    }
}

/// Rows for which `filter` is true, or with `negated` false.
fn test(filter: &Expr, negated: bool, source: &Declaration) -> Tested {
    match filter {
        Expr::Literal {
            value: Value::Bool(b),
            ..
        } if *b != negated => Tested::exactly(Predicate::all()),
        Expr::Literal { .. } => Tested::exactly(Predicate::none()),
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
            // A AND B is false where A or B is.
            match (*op == BinaryOp::And) != negated {
                true => both(l, r),
                false => either(l, r),
            }
        }
        Expr::Binary {
            op, left, right, ..
        } if op.is_comparison() => {
            let op = if negated { opposite(*op) } else { *op };
            match (&**left, &**right) {
                (field, Expr::Literal { value, .. }) => compare(field, op, value, source),
                (Expr::Literal { value, .. }, field) => compare(field, mirrored(op), value, source),
                _ => Tested::unknown(),
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
                Some(linear) => linear.tested(between(linear.field, i64::MIN, i64::MAX)),
                None => Tested::unknown(),
            }
        }
        Expr::Call(call) => match sample::of(call) {
            Some((x, share)) => sampled(x, share, negated, source),
            None => Tested::unknown(),
        },
        _ => Tested::unknown(),
    }
}

/// The rows that are in a sample, or with `negated` those that are not. The kernel samples by sector.
fn sampled(x: &Expr, share: f64, negated: bool, source: &Declaration) -> Tested {
    match number_field(x, source) {
        Some(Linear {
            field: KernelField::Sector,
            factor: 1,
        }) => {
            let passing = spreads_of(share);
            let (low, high) = match negated {
                false => (0, passing - 1),
                true => (passing, SPREADS - 1),
            };
            Tested::exactly(match low > high {
                true => Predicate::none(),
                false => between(KernelField::SectorSpread, low, high),
            })
        }
        _ => Tested::unknown(),
    }
}

/// What is true where `op` is false.
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

/// A number that is a field times a constant.
struct Linear {
    field: KernelField,
    /// At least 1.
    factor: i64,
}

impl Linear {
    /// The rows for which a test of the number holds. A product may overflow, which ends the query;
    /// a kernel does not notice.
    fn tested(&self, rows: Predicate) -> Tested {
        Tested {
            rows,
            exact: [1, SECTOR_BYTES].contains(&self.factor),
        }
    }
}

/// The kernel's field behind a column, or a positive multiple of it.
fn number_field(expr: &Expr, source: &Declaration) -> Option<Linear> {
    match expr {
        Expr::Column {
            index,
            ty: Type::Int,
            ..
        } => {
            let name = &source.schema[*index].name;
            // Bytes are sectors times 512, always.
            let (name, factor) = match name.as_str() {
                "bytes" => ("sectors", SECTOR_BYTES),
                name => (name, 1),
            };
            Some(Linear {
                field: field(name, source)?,
                factor,
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
            let Linear { field, factor } = number_field(inner, source)?;
            let factor = factor.checked_mul(constant).filter(|f| *f > 0)?;
            Some(Linear { field, factor })
        }
        Expr::Cast { expr, ty, .. } if ty.is_numeric() && expr.ty() == Type::Int => {
            number_field(expr, source)
        }
        _ => None,
    }
}

/// True for the streams that the kernel makes.
pub fn is_seen(source: &Declaration) -> bool {
    let made = ["IO", "IOstream"];
    made.iter().any(|s| s.eq_ignore_ascii_case(&source.name))
}

/// True for the stream of finished requests, of which the kernel can keep groups, and where it
/// does.
pub fn is_finished(source: &Declaration) -> bool {
    source.fold.is_some() || source.name.eq_ignore_ascii_case("IO")
}

/// The kernel's field called `name`, where the source is one that the kernel sees.
fn field(name: &str, source: &Declaration) -> Option<KernelField> {
    if !is_seen(source) {
        return None;
    }
    let found = KernelField::ALL
        .iter()
        .find(|(_, column)| *column == name)?;
    Some(found.0)
}

fn text_field(expr: &Expr, source: &Declaration) -> Option<KernelField> {
    match expr {
        Expr::Column {
            index,
            ty: weir_model::Type::Text,
            ..
        } => field(&source.schema[*index].name, source),
        _ => None,
    }
}

fn between(field: KernelField, low: i64, high: i64) -> Predicate {
    let tests = vec![Test::Between { field, low, high }];
    Predicate {
        clauses: vec![Clause { tests }],
    }
}

fn in_texts(field: KernelField, texts: Vec<Symbol>) -> Predicate {
    let tests = vec![Test::In { field, texts }];
    Predicate {
        clauses: vec![Clause { tests }],
    }
}

/// Every value that a text field can have, where they can be listed.
fn all_texts(field: KernelField) -> Option<Vec<Symbol>> {
    match field {
        KernelField::Op => Some(Op::ALL.map(Op::symbol).to_vec()),
        KernelField::Kind => Some(EventKind::ALL.map(EventKind::symbol).to_vec()),
        _ => None,
    }
}

/// `x op value`
fn compare(x: &Expr, op: BinaryOp, value: &Value, source: &Declaration) -> Tested {
    match value {
        Value::Null => Tested::exactly(Predicate::none()),
        Value::Text(text) => match (text_field(x, source), op) {
            (Some(field), BinaryOp::Equal) => Tested::exactly(in_texts(field, vec![*text])),
            (Some(field), BinaryOp::NotEqual) => match all_texts(field) {
                Some(mut texts) => {
                    texts.retain(|t| t != text);
                    Tested::exactly(in_texts(field, texts))
                }
                None => Tested::unknown(),
            },
            _ => Tested::unknown(),
        },
        Value::Int(bound) => match number_field(x, source) {
            Some(linear) => ranges(linear, op, i128::from(*bound), i128::from(*bound)),
            None => Tested::unknown(),
        },
        // Floats hold integers up to 2^53 exactly; beyond, a comparison may round.
        Value::Float(bound) if bound.abs() < (1_u64 << 53) as f64 => {
            match number_field(x, source) {
                Some(linear) => ranges(linear, op, bound.floor() as i128, bound.ceil() as i128),
                None => Tested::unknown(),
            }
        }
        _ => Tested::unknown(),
    }
}

/// Values of the field for which `field * factor op bound` can hold, where `low <= bound <= high`
/// and nothing lies between.
fn ranges(linear: Linear, op: BinaryOp, low: i128, high: i128) -> Tested {
    let (field, factor) = (linear.field, i128::from(linear.factor));
    let clamp = |x: i128| x.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
    let at_least = |x: i128| x.div_euclid(factor) + i128::from(x.rem_euclid(factor) != 0);
    let at_most = |x: i128| x.div_euclid(factor);
    // With a bound between two integers, `>` begins above the lower one and `>=` at the upper one:
    // the same.
    let (from, to) = match op {
        BinaryOp::Equal if low != high => return Tested::exactly(Predicate::none()),
        BinaryOp::Equal => (at_least(low), at_most(low)),
        BinaryOp::Less => (i128::MIN, at_most(high - 1)),
        BinaryOp::LessEqual => (i128::MIN, at_most(low)),
        BinaryOp::Greater => (at_least(low + 1), i128::MAX),
        BinaryOp::GreaterEqual => (at_least(high), i128::MAX),
        BinaryOp::NotEqual if low == high && low.rem_euclid(factor) == 0 => {
            let gap = low / factor;
            let below = between(field, i64::MIN, clamp(gap - 1));
            return linear.tested(below.or(between(field, clamp(gap + 1), i64::MAX)));
        }
        _ => (i128::MIN, i128::MAX),
    };
    linear.tested(match from > to {
        true => Predicate::none(),
        false => between(field, clamp(from), clamp(to)),
    })
}

fn in_list(
    x: &Expr,
    list: &[Value],
    has_null: bool,
    negated: bool,
    source: &Declaration,
) -> Tested {
    if negated {
        // x NOT IN (.., NULL) is never true.
        if has_null {
            return Tested::exactly(Predicate::none());
        }
        let others = list
            .iter()
            .map(|value| compare(x, BinaryOp::NotEqual, value, source));
        return others.fold(Tested::exactly(Predicate::all()), both);
    }
    if let Some(field) = text_field(x, source) {
        let texts = list.iter().filter_map(|value| match value {
            Value::Text(text) => Some(*text),
            _ => None,
        });
        return bounded(Tested::exactly(in_texts(field, texts.collect())));
    }
    let equal = list
        .iter()
        .map(|value| compare(x, BinaryOp::Equal, value, source));
    let none = Tested::exactly(Predicate::none());
    let each = equal.fold(none, |all, one| Tested {
        rows: all.rows.or(one.rows),
        exact: all.exact && one.exact,
    });
    if each.rows.clauses.len() <= CLAUSES_MAX {
        return each;
    }
    // Many numbers: all between the least and the greatest.
    let least = compare(x, BinaryOp::GreaterEqual, &list[0], source);
    let greatest = compare(x, BinaryOp::LessEqual, &list[list.len() - 1], source);
    Tested {
        exact: false,
        ..both(least, greatest)
    }
}
