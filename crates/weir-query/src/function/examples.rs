//! Runs every example of every function's description, and keeps the descriptions themselves in order.

use std::collections::HashSet;

use weir_model::{Column, ColumnBuilder, Type, Unit, Value};

use super::aggregate::{AGGREGATES, AggregateCall};
use super::scalar::SCALARS;
use super::{Argument, FunctionDoc, Returns, ScalarCall, aggregate, scalar};
use crate::expr::Expr;

#[test]
fn every_example_gives_what_it_says() {
    let mut wrong = Vec::new();
    for doc in docs() {
        for example in doc.examples {
            let result = if aggregate::find(doc.name).is_some() {
                run_aggregate(example.call, example.rows)
            } else {
                evaluate(&parse(example.call)).to_string()
            };
            if result != example.result {
                wrong.push(format!(
                    "{} gives {result}, not {}",
                    example.call, example.result
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_function_is_described() {
    let mut names = HashSet::new();
    for doc in docs() {
        assert!(!doc.examples.is_empty(), "{} has an example", doc.name);
        assert!(
            !doc.summary.is_empty() && !doc.summary.ends_with('.'),
            "{}",
            doc.name
        );
        assert!(doc.signature.starts_with(doc.name), "{}", doc.signature);
        assert!(
            doc.details.is_empty() || doc.details.ends_with('.'),
            "{}",
            doc.name
        );
        for name in doc.aliases.iter().chain([&doc.name]) {
            assert!(names.insert(*name), "{name} is one function's name");
            assert_eq!(*name, name.to_lowercase());
        }
    }
}

fn docs() -> impl Iterator<Item = &'static FunctionDoc> {
    AGGREGATES
        .iter()
        .map(|a| a.doc())
        .chain(SCALARS.iter().map(|s| s.doc()))
}

/// Feeds the rows to the call, and reads the result both as the batch's and as the group's.
fn run_aggregate(call: &str, rows: &str) -> String {
    let (name, args) = split_call(call);
    let columns = parse_rows(rows);
    let args: Vec<Expr> = args
        .iter()
        .filter(|a| **a != "*")
        .map(|arg| match ["x", "y"].iter().position(|c| c == arg) {
            Some(i) => Expr::column(i, columns[i].0, Unit::None),
            None => parse(arg),
        })
        .collect();
    let function = aggregate::find(name).expect("the aggregate exists");
    let returns = function
        .check(&arguments(&args))
        .expect("the example is a valid call");
    let call = AggregateCall {
        function,
        args,
        distinct: false,
        ty: returns.ty,
        unit: returns.unit,
    };
    let len = rows.lines().count();
    let values = call.args.iter().map(|a| match a {
        Expr::Column { index, .. } => columns[*index].1.clone(),
        constant => repeat(&evaluate(constant), constant.ty(), len),
    });
    let mut state = function.state(&call);
    state.resize(1);
    let mut wanted = vec![false; len];
    wanted
        .iter_mut()
        .rev()
        .take(1)
        .for_each(|last| *last = true);
    let mut out = ColumnBuilder::new(call.ty, 1);
    state
        .update(
            &vec![0; len],
            &vec![1; len],
            &values.collect::<Vec<_>>(),
            &wanted,
            &mut out,
        )
        .expect("the example succeeds");
    let result = state.result(0).expect("the example succeeds");
    if len > 0 {
        assert_eq!(out.finish().value(0), result, "update and result agree");
    }
    result.to_string()
}

fn parse_rows(rows: &str) -> Vec<(Type, Column)> {
    (0..2)
        .map(|i| {
            let cells: Vec<&str> = rows
                .lines()
                .map(|l| l.split(',').nth(i).unwrap_or("NULL").trim())
                .collect();
            let given = || cells.iter().filter(|c| **c != "NULL");
            let ty = if given().all(|c| c.parse::<i64>().is_ok()) {
                Type::Int
            } else if given().all(|c| c.parse::<f64>().is_ok()) {
                Type::Float
            } else {
                Type::Text
            };
            let value = |cell: &&str| match ty {
                _ if *cell == "NULL" => Value::Null,
                Type::Int => Value::Int(cell.parse().expect("all are integers")),
                Type::Float => Value::Float(cell.parse().expect("all are floats")),
                _ => Value::text(cell),
            };
            (ty, Column::from_values(ty, cells.iter().map(value)))
        })
        .collect()
}

/// Reads literals, with units, and calls of scalar functions: `round(-2.5)`, `seconds(5 ms)`.
fn parse(text: &str) -> Expr {
    let text = text.trim();
    if let Some(string) = text.strip_prefix('\'') {
        let string = string.strip_suffix('\'').expect("the string ends");
        return literal(Value::text(string), Type::Text, Unit::None);
    }
    if text.ends_with(')') {
        let (name, args) = split_call(text);
        let args: Vec<Expr> = args.into_iter().map(parse).collect();
        let function = scalar::find(name).unwrap_or_else(|| panic!("no function {name}"));
        let Returns { ty, unit } = function
            .check(&arguments(&args))
            .unwrap_or_else(|refusal| panic!("{text}: {}", refusal.message));
        return Expr::Call(ScalarCall {
            function,
            args,
            ty,
            unit,
        });
    }
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let (factor, ty, unit) = match unit {
        "" => (1, Type::Int, Unit::None),
        "ns" => (1, Type::Int, Unit::Nanoseconds),
        "us" => (1, Type::Int, Unit::Microseconds),
        "ms" => (1_000_000, Type::Int, Unit::Nanoseconds),
        "s" => (1_000_000_000, Type::Int, Unit::Nanoseconds),
        "min" => (60_000_000_000, Type::Int, Unit::Nanoseconds),
        "B" => (1, Type::Int, Unit::Bytes),
        "sectors" => (1, Type::Int, Unit::Sectors),
        "KiB" => (1024, Type::Int, Unit::Bytes),
        "@" => (1, Type::Time, Unit::Nanoseconds),
        other => panic!("no unit {other}"),
    };
    if number == "NULL" {
        literal(Value::Null, Type::Int, unit)
    } else if let Ok(x) = number.parse::<i64>() {
        literal(Value::Int(x * factor), ty, unit)
    } else if let Ok(x) = number.parse::<f64>() {
        literal(Value::Float(x * factor as f64), Type::Float, unit)
    } else {
        literal(
            Value::Bool(number.parse().expect("a literal")),
            Type::Bool,
            unit,
        )
    }
}

/// `f(a, g(b, c))` as `f` and its arguments.
fn split_call(call: &str) -> (&str, Vec<&str>) {
    let (name, rest) = call.split_once('(').expect("a call");
    let inside = rest.strip_suffix(')').expect("the call ends");
    let (mut depth, mut quoted, mut from, mut args) = (0, false, 0, Vec::new());
    for (i, c) in inside.char_indices() {
        match c {
            '\'' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                args.push(inside[from..i].trim());
                from = i + 1;
            }
            _ => {}
        }
    }
    if !inside.is_empty() {
        args.push(inside[from..].trim());
    }
    (name, args)
}

fn literal(value: Value, ty: Type, unit: Unit) -> Expr {
    Expr::Literal { value, ty, unit }
}

fn arguments(args: &[Expr]) -> Vec<Argument> {
    let argument = |e: &Expr| Argument {
        ty: e.ty(),
        unit: e.unit(),
        constant: super::arguments::literal(e),
    };
    args.iter().map(argument).collect()
}

fn repeat(value: &Value, ty: Type, len: usize) -> Column {
    Column::from_values(ty, std::iter::repeat_n(value.clone(), len))
}

fn evaluate(expr: &Expr) -> Value {
    match expr {
        Expr::Literal { value, .. } => value.clone(),
        Expr::Call(call) => {
            let args: Vec<Column> = call
                .args
                .iter()
                .map(|a| repeat(&evaluate(a), a.ty(), 1))
                .collect();
            let column = call
                .function
                .eval(call, &args, 1)
                .expect("the example succeeds");
            assert_eq!(column.len(), 1);
            column.value(0)
        }
        other => panic!("no example has {other:?}"),
    }
}

/// A function that is written but not listed would be there for nobody.
#[test]
fn every_file_that_describes_a_function_is_listed() {
    let listed = [("aggregate", AGGREGATES.len()), ("scalar", SCALARS.len())];
    for (folder, listed) in listed {
        let path = format!("{}/src/function/{folder}", env!("CARGO_MANIFEST_DIR"));
        let files = std::fs::read_dir(&path).expect("the folder is there");
        let texts = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        let described = texts.filter(|text| text.contains("static DOC:")).count();
        assert_eq!(described, listed, "functions in {folder} and in its list");
    }
}
