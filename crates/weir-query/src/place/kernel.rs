//! Selections as the kernel can test them: a few alternatives, each a few tests of single fields
//! against constants.
//!
//! What cannot be said so is left out, so that the result lets through at least the rows that are
//! wanted.

use weir_model::{
    Clause, Declaration, EventKind, KernelField, Op, Predicate, SECTOR_BYTES, Symbol, Test, Type,
    Value,
};

use crate::expr::{BinaryOp, Expr, UnaryOp};

/// Most alternatives that a kernel program tests for one stream.
pub const CLAUSES_MAX: usize = 4;

/// Most tests in one alternative.
pub const TESTS_MAX: usize = 8;

/// Most texts in one test.
pub const TEXTS_MAX: usize = 16;

/// Rows that pass `filter`, and perhaps more.
pub fn superset(filter: &Expr, source: &Declaration) -> Predicate {
    bounded(test(filter, false, source))
}

/// Rows that pass both, and perhaps more.
pub fn both(a: Predicate, b: Predicate) -> Predicate {
    let product = a.clauses.len() * b.clauses.len();
    if product <= CLAUSES_MAX {
        return bounded(a.and(b));
    }
    // Too many alternatives: either side alone lets all through that both do.
    let tests = |p: &Predicate| p.clauses.iter().map(|c| c.tests.len()).min().unwrap_or(0);
    if tests(&a) >= tests(&b) { a } else { b }
}

/// The predicate within the bounds, by dropping tests.
pub fn bounded(predicate: Predicate) -> Predicate {
    let mut clauses: Vec<Clause> = Vec::new();
    for clause in predicate.clauses {
        let Some(clause) = narrowed(clause) else {
            continue;
        };
        if clause.tests.is_empty() {
            return Predicate::all();
        }
        match clauses.iter().position(|c| united(c, &clause).is_some()) {
            Some(i) => clauses[i] = united(&clauses[i], &clause).expect("it was possible just now"),
            None => clauses.push(clause),
        }
    }
    match clauses.len() <= CLAUSES_MAX {
        true => Predicate { clauses },
        false => Predicate::all(),
    }
}

/// One test a field; `None` when no row can pass.
fn narrowed(clause: Clause) -> Option<Clause> {
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
    tests.retain(|test| match test {
        Test::Between { .. } => true,
        Test::In { texts, .. } => texts.len() <= TEXTS_MAX,
    });
    tests.truncate(TESTS_MAX);
    Some(Clause { tests })
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

/// Rows for which `filter` is true, or with `negated` false, and perhaps more.
fn test(filter: &Expr, negated: bool, source: &Declaration) -> Predicate {
    match filter {
        Expr::Literal {
            value: Value::Bool(b),
            ..
        } if *b != negated => Predicate::all(),
        Expr::Literal { .. } => Predicate::none(),
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
                false => bounded(l.or(r)),
            }
        }
        Expr::Binary {
            op, left, right, ..
        } if op.is_comparison() => {
            let op = if negated { opposite(*op) } else { *op };
            match (&**left, &**right) {
                (field, Expr::Literal { value, .. }) => compare(field, op, value, source),
                (Expr::Literal { value, .. }, field) => compare(field, mirrored(op), value, source),
                _ => Predicate::all(),
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
                Some(Linear { field, .. }) => between(field, i64::MIN, i64::MAX),
                None => Predicate::all(),
            }
        }
        _ => Predicate::all(),
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
fn compare(x: &Expr, op: BinaryOp, value: &Value, source: &Declaration) -> Predicate {
    match value {
        Value::Null => Predicate::none(),
        Value::Text(text) => match (text_field(x, source), op) {
            (Some(field), BinaryOp::Equal) => in_texts(field, vec![*text]),
            (Some(field), BinaryOp::NotEqual) => match all_texts(field) {
                Some(mut texts) => {
                    texts.retain(|t| t != text);
                    in_texts(field, texts)
                }
                None => Predicate::all(),
            },
            _ => Predicate::all(),
        },
        Value::Int(bound) => match number_field(x, source) {
            Some(linear) => ranges(linear, op, i128::from(*bound), i128::from(*bound)),
            None => Predicate::all(),
        },
        // Floats hold integers up to 2^53 exactly; beyond, a comparison may round.
        Value::Float(bound) if bound.abs() < (1_u64 << 53) as f64 => {
            match number_field(x, source) {
                Some(linear) => ranges(linear, op, bound.floor() as i128, bound.ceil() as i128),
                None => Predicate::all(),
            }
        }
        _ => Predicate::all(),
    }
}

/// Values of the field for which `field * factor op bound` can hold, where `low <= bound <= high`
/// and nothing lies between.
fn ranges(Linear { field, factor }: Linear, op: BinaryOp, low: i128, high: i128) -> Predicate {
    let factor = i128::from(factor);
    let clamp = |x: i128| x.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
    let at_least = |x: i128| x.div_euclid(factor) + i128::from(x.rem_euclid(factor) != 0);
    let at_most = |x: i128| x.div_euclid(factor);
    // With a bound between two integers, `>` begins above the lower one and `>=` at the upper one:
    // the same.
    let (from, to) = match op {
        BinaryOp::Equal if low != high => return Predicate::none(),
        BinaryOp::Equal => (at_least(low), at_most(low)),
        BinaryOp::Less => (i128::MIN, at_most(high - 1)),
        BinaryOp::LessEqual => (i128::MIN, at_most(low)),
        BinaryOp::Greater => (at_least(low + 1), i128::MAX),
        BinaryOp::GreaterEqual => (at_least(high), i128::MAX),
        BinaryOp::NotEqual if low == high && low.rem_euclid(factor) == 0 => {
            let gap = low / factor;
            let below = between(field, i64::MIN, clamp(gap - 1));
            return below.or(between(field, clamp(gap + 1), i64::MAX));
        }
        _ => (i128::MIN, i128::MAX),
    };
    match from > to {
        true => Predicate::none(),
        false => between(field, clamp(from), clamp(to)),
    }
}

fn in_list(
    x: &Expr,
    list: &[Value],
    has_null: bool,
    negated: bool,
    source: &Declaration,
) -> Predicate {
    if negated {
        // x NOT IN (.., NULL) is never true.
        if has_null {
            return Predicate::none();
        }
        let others = list
            .iter()
            .map(|value| compare(x, BinaryOp::NotEqual, value, source));
        return others.fold(Predicate::all(), both);
    }
    if let Some(field) = text_field(x, source) {
        let texts = list.iter().filter_map(|value| match value {
            Value::Text(text) => Some(*text),
            _ => None,
        });
        return bounded(in_texts(field, texts.collect()));
    }
    let equal = list
        .iter()
        .map(|value| compare(x, BinaryOp::Equal, value, source));
    let each = equal.fold(Predicate::none(), Predicate::or);
    if each.clauses.len() <= CLAUSES_MAX {
        return each;
    }
    // Many numbers: all between the least and the greatest.
    let least = compare(x, BinaryOp::GreaterEqual, &list[0], source);
    both(
        least,
        compare(x, BinaryOp::LessEqual, &list[list.len() - 1], source),
    )
}
