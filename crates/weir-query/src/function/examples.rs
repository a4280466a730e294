//! Runs every example of every function's description as a query, and checks the order of the
//! descriptions.

use std::collections::HashSet;

use weir_model::{Batch, Catalog, Column, Declaration, Field, Schema, Shape, Type, Value};

use super::aggregate::{self, AGGREGATES};
use super::over::WINDOW_FUNCTIONS;
use super::scalar::SCALARS;
use super::{Example, FunctionDoc};
use crate::{CheckOptions, Engine, EngineOptions, EngineOutput, compile, render};

#[test]
fn every_example_has_its_stated_result() {
    let mut wrong = Vec::new();
    for doc in docs() {
        for example in doc.examples {
            let result = run(example, aggregate::find(doc.name).is_some());
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
            // With OVER, `first_value` is another function than the aggregate.
            let with_over = doc.signature.contains("over (");
            assert!(
                names.insert((with_over, *name)),
                "{name} is one function's name"
            );
            assert_eq!(*name, name.to_lowercase());
        }
    }
}

fn docs() -> impl Iterator<Item = &'static FunctionDoc> {
    AGGREGATES
        .iter()
        .map(|a| a.doc())
        .chain(SCALARS.iter().map(|s| s.doc()))
        .chain(WINDOW_FUNCTIONS.iter().map(|f| f.doc))
}

/// Runs the call over a stream with the example's rows, all at instant 1, and returns the value in
/// the last inserted row.
///
/// The result of an aggregate over no rows is emitted when all rows have left the window.
fn run(example: &Example, is_aggregate: bool) -> String {
    let none = is_aggregate && example.rows.is_empty();
    let columns = parse_rows(if example.rows.is_empty() {
        "0"
    } else {
        example.rows
    });
    let fields = ["x", "y"]
        .iter()
        .zip(&columns)
        .map(|(name, (ty, _))| Field::new(*name, *ty).nullable());
    let stream = Declaration::new("S", Shape::Stream, Schema::new(fields.collect()));
    let catalog = Catalog {
        declarations: vec![stream],
        ..Catalog::default()
    };
    let text = format!("select {} from S [now]", example.call);
    let checked = compile(&text, &catalog, &CheckOptions::live()).unwrap_or_else(|found| {
        let all: Vec<String> = found.iter().map(|d| render(d, &text, None)).collect();
        panic!("{}", all.join("\n"))
    });
    let mut engine = Engine::new(EngineOptions::default());
    engine.add(&checked.plan);
    let columns: Vec<Column> = columns.into_iter().map(|(_, column)| column).collect();
    engine.push("S", Batch::stream(vec![1; columns[0].len()], columns));
    if none {
        engine.heartbeat("S", 2);
    }
    let mut last = None;
    engine.finish(&mut |output| match output {
        EngineOutput::Rows { batch, .. } => {
            let inserted = (0..batch.len()).rev().find(|&row| batch.weight(row) > 0);
            last = inserted
                .map(|row| batch.columns[0].value(row))
                .or(last.take());
        }
        EngineOutput::Failed { error, .. } => panic!("{text}: {error}"),
    });
    last.unwrap_or_else(|| panic!("{text} gives no row"))
        .to_string()
}

/// The columns x and y: integers where all are, else floats where all are, else texts.
fn parse_rows(rows: &'static str) -> [(Type, Column); 2] {
    [0, 1].map(|i| {
        let cell = |line: &'static str| line.split(',').nth(i).unwrap_or("NULL").trim();
        let cells: Vec<&str> = rows.lines().map(cell).collect();
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
}

/// A function that is not listed would be unreachable.
#[test]
fn every_file_that_describes_a_function_is_listed() {
    let listed = [("aggregate", AGGREGATES.len()), ("scalar", SCALARS.len())];
    for (folder, listed) in listed {
        let path = format!("{}/src/function/{folder}", env!("CARGO_MANIFEST_DIR"));
        let files = std::fs::read_dir(&path).expect("the folder is there");
        let texts = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        let described = texts.filter(|text| text.contains("examples: &[")).count();
        assert_eq!(described, listed, "functions in {folder} and in its list");
    }
}
