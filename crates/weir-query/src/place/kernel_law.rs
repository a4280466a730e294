//! The property of kernel selections, on random selections and rows: every demanded row passes, and
//! if the selection is exact, no other.

use super::kernel::*;
use super::live::live;
use crate::expr::fold_expr;
use crate::expr::{BinaryOp, Expr, UnaryOp};
use crate::function::scalar::ScalarCall;
use crate::function::scalar::sample::Sample;
use proptest::prelude::*;
use weir_model::{
    Catalog, Column, Declaration, Operand, Predicate, SECTOR_BYTES, Test, Type, Unit, Value,
};

fn io() -> Declaration {
    Catalog::builtin()
        .find("IO")
        .expect("it is built in")
        .clone()
}

/// A value of each of the columns that the selections below use.
fn row() -> impl Strategy<Value = Vec<(&'static str, Value)>> {
    let number = prop_oneof![Just(Value::Null), (-3_i64..6).prop_map(Value::Int)];
    let op = prop_oneof![Just("r"), Just("w"), Just("f")].prop_map(Value::from);
    let comm = prop_oneof![
        Just(Value::Null),
        Just(Value::from("a")),
        Just(Value::from("b"))
    ];
    let rows = (number.clone(), number.clone(), number, 0_i64..4, op, comm);
    rows.prop_map(|(pid, latency, sector, sectors, op, comm)| {
        vec![
            ("sector", sector),
            ("pid", pid),
            ("latency", latency),
            ("sectors", Value::Int(sectors)),
            ("bytes", Value::Int(sectors * SECTOR_BYTES)),
            ("op", op),
            ("comm", comm),
            // Unknown in the kernel.
            ("cpu", Value::Int(sectors)),
        ]
    })
}

fn column(name: &str) -> Expr {
    let io = io();
    let index = io.schema.index(name);
    Expr::column(index, io.schema[index].ty, io.schema[index].unit)
}

fn literal(value: Value, ty: Type) -> Expr {
    Expr::Literal {
        value,
        ty,
        unit: Unit::None,
    }
}

fn condition() -> impl Strategy<Value = Expr> {
    use BinaryOp::*;
    let compare = || {
        prop::sample::select(vec![
            Equal,
            NotEqual,
            Less,
            LessEqual,
            Greater,
            GreaterEqual,
        ])
    };
    let number = (
        prop::sample::select(vec!["pid", "latency", "sectors", "cpu"]),
        compare(),
        -4_i64..7,
        any::<bool>(),
        1_i64..3,
    );
    let numbers = number.prop_map(|(name, op, bound, swapped, factor)| {
        let scaled = Expr::Binary {
            op: Multiply,
            left: Box::new(column(name)),
            right: Box::new(Expr::int(factor)),
            unit: Unit::None,
        };
        let x = if factor == 1 { column(name) } else { scaled };
        let bound = Expr::int(bound);
        if swapped {
            Expr::boolean(op, bound, x)
        } else {
            Expr::boolean(op, x, bound)
        }
    });
    let bytes = (compare(), -2_i64..9).prop_map(|(op, quarters)| {
        Expr::boolean(op, column("bytes"), Expr::int(quarters * SECTOR_BYTES / 4))
    });
    let floats = (compare(), -9_i64..9).prop_map(|(op, halves)| {
        let x = Expr::Cast {
            expr: Box::new(column("pid")),
            ty: Type::Float,
            unit: Unit::None,
        };
        let bound = literal(Value::Float(halves as f64 / 2.0), Type::Float);
        Expr::boolean(op, x, bound)
    });
    let texts = (
        prop::sample::select(vec!["op", "comm"]),
        prop_oneof![Just(Equal), Just(NotEqual)],
        prop::sample::select(vec!["r", "w", "a"]),
    )
        .prop_map(|(name, op, text)| {
            Expr::boolean(op, column(name), literal(text.into(), Type::Text))
        });
    let list = (
        prop::collection::vec(-3_i64..9, 1..7),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(mut list, has_null, negated)| {
            list.sort_unstable();
            let list = list.into_iter().map(Value::Int).collect();
            Expr::InList {
                expr: Box::new(column("pid")),
                list,
                has_null,
                negated,
            }
        });
    let null = any::<bool>().prop_map(|negated| Expr::IsNull {
        expr: Box::new(column("latency")),
        negated,
    });
    let column_of = prop::sample::select(vec!["sector", "pid"]);
    let sample = (column_of, 0_i64..5).prop_map(|(name, quarters)| {
        let share = literal(Value::Float(quarters as f64 / 4.0), Type::Float);
        Expr::Call(ScalarCall {
            function: &Sample,
            args: vec![column(name), share],
            ty: Type::Bool,
            unit: Unit::None,
        })
    });
    let leaf = prop_oneof![numbers, bytes, floats, texts, list, null, sample];
    leaf.prop_recursive(4, 24, 2, |inner| {
        prop_oneof![
            inner.clone().prop_map(|x| Expr::Unary {
                op: UnaryOp::Not,
                expr: Box::new(x)
            }),
            (inner.clone(), inner.clone()).prop_map(|(x, y)| Expr::boolean(And, x, y)),
            (inner.clone(), inner).prop_map(|(x, y)| Expr::boolean(Or, x, y)),
        ]
    })
}

/// The expression in a row, computed by folding constants.
fn value(expr: &Expr, row: &[(&str, Value)]) -> Value {
    let io = io();
    let folded = expr.map(&|e| match e {
        Expr::Column { index, ty, .. } => {
            let named = row.iter().find(|(name, _)| *name == io.schema[index].name);
            literal(named.expect("the row has the column").1.clone(), ty)
        }
        Expr::Call(call) => called(&call),
        other => fold_expr(other),
    });
    match folded {
        Expr::Literal { value, .. } => value,
        other => panic!("{other:?} is no constant"),
    }
}

/// The result of a call with constants.
fn called(call: &ScalarCall) -> Expr {
    let column = |arg: &Expr| match arg {
        Expr::Literal { value, ty, .. } => Column::from_values(*ty, [value.clone()]),
        other => panic!("{other:?} is no constant"),
    };
    let args: Vec<Column> = call.args.iter().map(column).collect();
    let result = call.function.eval(call, &args, 1).expect("it has a value");
    literal(result.value(0), call.ty)
}

fn passes(predicate: &Predicate, row: &[(&str, Value)]) -> bool {
    let schema = io().schema;
    let of = |operand: Operand| {
        let column = &schema[operand.column()].name;
        let mut values = row.iter();
        let found = values.find(|(name, _)| name == column);
        &found.expect("the row has the column").1
    };
    predicate.clauses.iter().any(|clause| {
        clause.tests.iter().all(|test| match test {
            Test::Between { operand, low, high } => {
                matches!(of(*operand), Value::Int(x) if (*low..=*high).contains(&operand.of(*x)))
            }
            Test::In { operand, texts } => {
                matches!(of(*operand), Value::Text(text) if texts.contains(text))
            }
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_kernel_passes_every_selected_row(filter in condition(), row in row()) {
        let (io, live) = (io(), live());
        let predicate = superset(&filter, SourceStream::new(&io, &live));
        prop_assert!(predicate.clauses.len() <= live.limits("IO").clauses);
        if value(&filter, &row) == Value::Bool(true) {
            prop_assert!(passes(&predicate, &row), "{predicate:?}");
        }
    }

    #[test]
    fn an_exact_selection_passes_no_other_row(filter in condition(), row in row()) {
        let (io, live) = (io(), live());
        let tested = tested(&filter, SourceStream::new(&io, &live));
        if tested.exact {
            let wanted = value(&filter, &row) == Value::Bool(true);
            prop_assert_eq!(passes(&tested.rows, &row), wanted, "{:?}", tested.rows);
        }
    }

    #[test]
    fn columns_of_the_kernel_are_tested_exactly(op in prop::sample::select(vec![
        BinaryOp::Equal, BinaryOp::Less, BinaryOp::LessEqual, BinaryOp::Greater, BinaryOp::GreaterEqual, BinaryOp::NotEqual,
    ]), bound in -4_i64..9, row in row()) {
        for name in ["latency", "sectors"] {
            let filter = Expr::boolean(op, column(name), Expr::int(bound));
            let wanted = value(&filter, &row) == Value::Bool(true);
            let (io, live) = (io(), live());
            let predicate = superset(&filter, SourceStream::new(&io, &live));
            prop_assert_eq!(passes(&predicate, &row), wanted);
        }
    }
}

#[test]
fn exact_selections_are_marked() {
    let is = |name: &str, op, value: Value| {
        let ty = match value {
            Value::Text(_) => Type::Text,
            _ => Type::Int,
        };
        Expr::boolean(op, column(name), literal(value, ty))
    };
    let (io, live) = (io(), live());
    let exact = |filter: &Expr| tested(filter, SourceStream::new(&io, &live)).exact;
    let not = |expr: Expr| Expr::Unary {
        op: UnaryOp::Not,
        expr: Box::new(expr),
    };
    let slow = is("latency", BinaryOp::Greater, Value::Int(1_000));
    let read = is("op", BinaryOp::Equal, "r".into());
    let not_fio = is("comm", BinaryOp::NotEqual, "fio".into());
    let on_cpu = is("cpu", BinaryOp::Equal, Value::Int(0));
    assert!(exact(&slow) && exact(&read) && exact(&not(read.clone())));
    assert!(exact(&Expr::boolean(
        BinaryOp::And,
        slow.clone(),
        read.clone()
    )));
    assert!(exact(&not(Expr::boolean(BinaryOp::Or, slow.clone(), read))));
    assert!(!exact(&not_fio) && !exact(&on_cpu));
    assert!(!exact(&Expr::boolean(BinaryOp::And, slow, on_cpu)));
}
