//! Diagnostics of wrong queries, and plans of correct ones.
//!
//! Every file in `tests/diagnostics` and `tests/plans` holds cases. A case is a query, a line
//! `---`, and weir's output; cases are separated by a line `===`. Lines before the first query that
//! begin with `#` describe the file; `#! script` makes the queries STREAM's, `#! replay` makes them
//! queries over a recording. `WEIR_BLESS=1` writes the output into the files.

#[path = "support/capabilities.rs"]
mod capabilities;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use weir_model::capabilities::Measure;
use weir_model::{Capabilities, Catalog, NANOS_PER_SECOND};
use weir_query::{CheckOptions, compile, compile_script, compile_unoptimized, place, render};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(folder);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "test"));
    files.sort();
    assert!(!files.is_empty(), "{} has cases", folder.display());
    files
}

/// Runs every case in `folder` through `output` and compares, or blesses.
fn golden(folder: &str, output: impl Fn(&str, &Catalog, &CheckOptions) -> String) {
    let bless = std::env::var_os("WEIR_BLESS").is_some();
    let mut wrong = String::new();
    for path in files(folder) {
        let text = fs::read_to_string(&path).unwrap();
        let head: String = text
            .lines()
            .take_while(|l| l.starts_with('#'))
            .map(|l| format!("{l}\n"))
            .collect();
        let (catalog, options) = match () {
            () if head.contains("#! script") => (Catalog::thesis(), CheckOptions::script()),
            () if head.contains("#! replay") => (
                Catalog::builtin(),
                CheckOptions {
                    live: false,
                    ..CheckOptions::live()
                },
            ),
            () => (Catalog::builtin(), CheckOptions::live()),
        };
        let mut blessed = head.clone();
        for (i, case) in text[head.len()..].split("===\n").enumerate() {
            let (query, expected) = case.split_once("---\n").unwrap_or((case, ""));
            let said = output(query.trim_end_matches('\n'), &catalog, &options);
            if said != expected && !bless {
                let path = path.display();
                writeln!(
                    wrong,
                    "{path}, case {}:\n{query}says:\n{said}instead of:\n{expected}",
                    i + 1
                )
                .unwrap();
            }
            let separator = if i > 0 { "===\n" } else { "" };
            write!(blessed, "{separator}{query}---\n{said}").unwrap();
        }
        if bless && blessed != text {
            fs::write(&path, blessed).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn diagnostics_have_a_position_and_a_remedy() {
    golden("diagnostics", |query, catalog, options| {
        let diagnostics = match compile(query, catalog, options) {
            Ok(checked) => checked.warnings,
            Err(diagnostics) => diagnostics,
        };
        assert!(!diagnostics.is_empty(), "nothing is wrong with {query}");
        diagnostics.iter().map(|d| render(d, query, None)).collect()
    });
}

#[test]
fn plans_are_equivalent_to_the_query() {
    golden(
        "plans",
        |query, catalog, options| match compile_unoptimized(query, catalog, options) {
            Ok(checked) => checked.plan.to_string(),
            Err(diagnostics) => diagnostics.iter().map(|d| render(d, query, None)).collect(),
        },
    );
}

#[test]
fn scripts_are_read_as_stream_reads_them() {
    golden("scripts", |text, _, _| match compile_script(text) {
        Err(diagnostics) => diagnostics
            .iter()
            .map(|d| render(d, text, Some("s.cql")))
            .collect(),
        Ok(script) => {
            let mut said: String = script
                .warnings
                .iter()
                .map(|d| render(d, text, None))
                .collect();
            if let Some(source) = &script.iostream_source {
                writeln!(said, "IOstream from {source}").unwrap();
            }
            for table in &script.tables {
                let columns = table.declaration.schema.fields.iter();
                let columns: Vec<_> = columns.map(|f| format!("{} {}", f.name, f.ty)).collect();
                let (name, columns) = (&table.declaration.name, columns.join(", "));
                let shape = table.declaration.shape;
                writeln!(said, "{shape:?} {name} ({columns}) from {}", table.source).unwrap();
            }
            for query in &script.queries {
                let dest = query.dest.as_deref().unwrap_or("-");
                write!(said, "to {dest}:\n{}", query.unoptimized).unwrap();
            }
            said
        }
    });
}

#[test]
fn explain_prints_the_location_of_each_operator() {
    golden("explain", |query, catalog, options| {
        match compile(query, catalog, options) {
            Ok(checked) => {
                weir_query::place::explain(&checked.plan, &capabilities::live()).to_string()
            }
            Err(diagnostics) => diagnostics.iter().map(|d| render(d, query, None)).collect(),
        }
    });
}

/// A source that keeps any column of groups with few keys.
fn few_keys() -> Capabilities {
    let mut all = capabilities::live();
    let io = &mut all.streams[0];
    for (field, column) in io.declaration.schema.fields.iter().zip(&mut io.columns) {
        column.group = ["op", "pdisk", "vm", "comm"].contains(&field.name.as_str());
        column.measure = Measure::Kept;
    }
    all
}

#[test]
fn explain_prints_the_groups_of_the_kernel() {
    golden("explain_placed", |query, catalog, options| {
        let plan = compile(query, catalog, options).expect("it is right").plan;
        let placement = place::place(&[&plan], &few_keys());
        place::explain_placed(&plan, &placement, NANOS_PER_SECOND).to_string()
    });
}

#[test]
fn the_optimizer_reports_the_result_of_each_rule() {
    golden("optimize", |query, catalog, options| {
        let written = compile_unoptimized(query, catalog, options)
            .unwrap_or_else(|d| panic!("{query}: {d:?}"))
            .plan;
        let mut plan = written.clone();
        let mut said = plan.to_string();
        for rule in weir_query::optimize::RULES {
            let next = (rule.apply)(&plan);
            if next != plan {
                write!(said, "-- {}\n{next}", rule.name).unwrap();
            }
            plan = next;
        }
        let result = weir_query::optimize::optimize(&written);
        assert_eq!(result.schema, written.schema, "{query}");
        write!(said, "-- result\n{result}").unwrap();
        said
    });
}
