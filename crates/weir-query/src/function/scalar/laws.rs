//! Properties of every scalar function in the list, on any values: a row's result depends on that
//! row alone, NULL gives NULL unless the description states otherwise, and nothing panics.

use proptest::prelude::*;
use weir_model::{Column, Type, Unit, Value};

use super::{SCALARS, ScalarCall};
use crate::expr::Expr;
use crate::function::Argument;

/// Functions that ignore NULL arguments.
const SKIP_NULLS: [&str; 7] = [
    "coalesce",
    "nullif",
    "least",
    "greatest",
    "concat",
    "format",
    "is_distinct_from",
];

const TYPES: [Type; 5] = [Type::Bool, Type::Int, Type::Float, Type::Text, Type::Time];

/// Every function with every combination of up to three columns, or of a column and a constant,
/// that it accepts.
fn calls() -> Vec<ScalarCall> {
    let columns = TYPES.iter().flat_map(|&ty| {
        [Unit::None, Unit::Nanoseconds, Unit::Sectors].map(|unit| Argument {
            ty,
            unit,
            constant: None,
        })
    });
    let columns: Vec<Argument> = columns.collect();
    let constant = |value: Value, unit: Unit| Argument {
        ty: match value {
            Value::Int(_) => Type::Int,
            Value::Text(_) => Type::Text,
            _ => Type::Float,
        },
        unit,
        constant: Some(value),
    };
    let seconds = [
        constant(Value::Int(3), Unit::None),
        constant(Value::Int(-18), Unit::None),
        constant(Value::Int(i64::MAX), Unit::None),
        constant(Value::Float(0.1), Unit::None),
        constant(Value::Int(7), Unit::Microseconds),
        constant(Value::Int(4096), Unit::Bytes),
        constant(Value::text("s"), Unit::None),
    ];
    let mut lists: Vec<Vec<Argument>> = columns.iter().map(|x| vec![x.clone()]).collect();
    for x in &columns {
        for y in columns.iter().chain(&seconds) {
            lists.push(vec![x.clone(), y.clone()]);
            lists.push(vec![x.clone(), y.clone(), y.clone()]);
        }
    }
    let integer = &columns[3];
    for x in &columns {
        for y in &columns {
            lists.push(vec![x.clone(), y.clone(), y.clone(), integer.clone()]);
        }
        lists.push(vec![constant(Value::text("%s"), Unit::None), x.clone()]);
    }
    // `now()` has no argument; `regexp_replace` and `split_part` have a constant between others, and
    // the part of a date comes first.
    lists.push(vec![]);
    for x in &columns {
        for constant in &seconds {
            lists.push(vec![constant.clone(), x.clone()]);
            for y in &columns {
                lists.push(vec![x.clone(), constant.clone(), y.clone()]);
            }
        }
    }
    let mut calls = Vec::new();
    for &function in SCALARS {
        for args in &lists {
            let Ok(returns) = function.check(args) else {
                continue;
            };
            let expr = |(index, arg): (usize, &Argument)| match &arg.constant {
                None => Expr::column(index, arg.ty, arg.unit),
                Some(value) => Expr::Literal {
                    value: value.clone(),
                    ty: arg.ty,
                    unit: arg.unit,
                },
            };
            let args = args.iter().enumerate().map(expr).collect();
            calls.push(ScalarCall {
                function,
                args,
                ty: returns.ty,
                unit: returns.unit,
            });
        }
    }
    calls
}

/// One value of each type.
#[derive(Clone, Debug)]
struct Datum(Vec<Value>);

fn datum() -> impl Strategy<Value = Datum> {
    let int = prop_oneof![
        -20i64..20,
        any::<i64>(),
        Just(i64::MIN),
        Just(i64::MAX),
        Just(0)
    ];
    let float = prop_oneof![
        any::<f64>(),
        (-80i32..80).prop_map(|x| f64::from(x) / 8.0),
        Just(-0.0)
    ];
    let text = prop::sample::select(vec!["", "a", "sda", "Straße", "日本", "a-a-a", "\u{0}"]);
    let nulls = prop::collection::vec(prop::bool::weighted(0.2), 5);
    (any::<bool>(), int.clone(), float, text, int, nulls).prop_map(|(b, i, f, t, ts, nulls)| {
        let values = [b.into(), i.into(), f.into(), t.into(), ts.into()];
        let null_or = |(value, null)| if null { Value::Null } else { value };
        Datum(values.into_iter().zip(nulls).map(null_or).collect())
    })
}

/// The columns of a call's arguments. Each argument has the rows in another order.
fn columns(call: &ScalarCall, rows: &[Datum]) -> Vec<Column> {
    let column = |(i, arg): (usize, &Expr)| {
        let values = (0..rows.len()).map(|row| match arg {
            Expr::Literal { value, .. } => value.clone(),
            _ => {
                let place = TYPES.iter().position(|ty| *ty == arg.ty()).expect("listed");
                rows[(row + i) % rows.len()].0[place].clone()
            }
        });
        Column::from_values(arg.ty(), values)
    };
    call.args.iter().enumerate().map(column).collect()
}

fn has_type(value: &Value, ty: Type) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(_) => ty == Type::Bool,
        Value::Int(_) => matches!(ty, Type::Int | Type::Time),
        Value::Float(_) => ty == Type::Float,
        Value::Text(_) => ty == Type::Text,
        Value::Tally(_) => ty == Type::Tally,
        Value::Bytes(_) => ty == Type::Partial,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_row_s_result_is_its_own(rows in prop::collection::vec(datum(), 1..6)) {
        for call in calls() {
            let args = columns(&call, &rows);
            let whole = call.function.eval(&call, &args, rows.len());
            let mut failed = false;
            for row in 0..rows.len() {
                let slices: Vec<Column> = args.iter().map(|column| column.slice(row, 1)).collect();
                match (call.function.eval(&call, &slices, 1), &whole) {
                    (Err(_), _) => failed = true,
                    (Ok(one), Ok(whole)) => {
                        prop_assert_eq!(one.value(0), whole.value(row), "{:?}", call);
                    }
                    _ => {}
                }
            }
            prop_assert_eq!(failed, whole.is_err(), "{:?} fails with a row and only with it", call);
        }
    }

    #[test]
    fn null_gives_null(rows in prop::collection::vec(datum(), 1..6)) {
        for call in calls() {
            let args = columns(&call, &rows);
            let Ok(result) = call.function.eval(&call, &args, rows.len()) else { continue };
            prop_assert_eq!(result.len(), rows.len());
            let name = call.function.doc().name;
            for row in 0..rows.len() {
                let value = result.value(row);
                prop_assert!(has_type(&value, call.ty), "{:?} gives {value}", call);
                if args.iter().any(|column| column.is_null(row)) && !SKIP_NULLS.contains(&name) {
                    prop_assert!(value.is_null(), "{:?} gives {value} of NULL", call);
                }
            }
        }
    }
}

#[test]
fn columns_of_nulls_are_accepted_by_all() {
    let calls = calls();
    // It is a comparison that is never NULL.
    let others = calls
        .iter()
        .filter(|c| c.function.doc().name != "is_distinct_from");
    for call in others {
        let nulls = vec![Column::Nulls(3); call.args.len()];
        let result = call
            .function
            .eval(call, &nulls, 3)
            .expect("NULLs make no error");
        let empty = Value::text("");
        assert!(
            (0..3).all(|row| result.is_null(row) || result.value(row) == empty),
            "{call:?}"
        );
    }
}

#[test]
fn every_function_is_under_these_laws() {
    let calls = calls();
    for function in SCALARS {
        let name = function.doc().name;
        assert!(
            calls.iter().any(|call| call.function.doc().name == name),
            "{name} is called"
        );
    }
}

#[test]
fn what_does_not_fit_is_an_error_with_a_remedy() {
    let call = |name: &str, args: Vec<Expr>| {
        let function = super::find(name).expect("it exists");
        ScalarCall {
            function,
            args,
            ty: Type::Int,
            unit: Unit::None,
        }
    };
    let x = Expr::column(0, Type::Int, Unit::None);
    let least = Column::ints(vec![i64::MIN]);
    for call in [
        call("abs", vec![x.clone()]),
        call("round", vec![x.clone(), Expr::int(-3)]),
        call("bucket", vec![x, Expr::int(1000)]),
    ] {
        let args = [least.clone(), Column::ints(vec![0])];
        let error = call
            .function
            .eval(&call, &args[..call.args.len()], 1)
            .unwrap_err();
        assert!(error.message.starts_with("integer overflow in ") && error.help.is_some());
    }
}

#[test]
fn a_text_that_grows_too_long_is_an_error() {
    let long = Value::text(&"a".repeat(2000));
    let text = |i| Expr::column(i, Type::Text, Unit::None);
    for (name, args) in [("replace", 3), ("concat", 1000)] {
        let function = super::find(name).expect("it exists");
        let exprs = (0..args).map(text).collect();
        let call = ScalarCall {
            function,
            args: exprs,
            ty: Type::Text,
            unit: Unit::None,
        };
        let column = |i| match (name, i) {
            ("replace", 1) => Column::texts(["a"]),
            _ => Column::from_values(Type::Text, [long.clone()]),
        };
        let columns: Vec<Column> = (0..args).map(column).collect();
        let error = function.eval(&call, &columns, 1).unwrap_err();
        assert!(error.message.contains("longer than"), "{error}");
    }
}
