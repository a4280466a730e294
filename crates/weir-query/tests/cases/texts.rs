//! Diagnostics, plans and explanations: each case is a query and what weir prints for it.
//!
//! A file in `tests/diagnostics`, `tests/plans` and the like holds cases, separated by a line
//! `===`. A case is a query, a line `---`, and the output. Lines before the first query that begin
//! with `#` describe the file; `#! script` makes the queries STREAM's, `#! replay` makes them
//! queries over a recording. `WEIR_BLESS=1` writes the output into the files.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::Trial;
use weir_model::capabilities::Measure;
use weir_model::{Capabilities, Catalog, NANOS_PER_SECOND};
use weir_query::alert::compile_alerts;
use weir_query::flink::translate;
use weir_query::optimize::{RULES, optimize};
use weir_query::{CheckOptions, compile, compile_script, compile_unoptimized, place, render};

use crate::blesses;
use crate::support::capabilities;

/// What weir prints for the query of a case.
type Output = fn(&str, &Catalog, &CheckOptions) -> String;

/// The folders with cases, and their outputs.
static FOLDERS: &[(&str, Output)] = &[
    ("diagnostics", diagnostics),
    ("alerts", alerts),
    ("plans", plan),
    ("scripts", script),
    ("explain", explanation),
    ("explain_placed", placed),
    ("optimize", rules),
    ("flink", flink),
];

/// A test for each case: `diagnostics::syntax::3_select_from`. When blessing, one for each file,
/// which writes it.
pub fn tests() -> Vec<Trial> {
    let mut tests = Vec::new();
    for (folder, output) in FOLDERS {
        for path in files(folder) {
            let stem = path.file_stem().expect("a name").to_string_lossy();
            let name = format!("{folder}::{stem}");
            let file = File::read(&path);
            if blesses() {
                tests.push(Trial::test(name, move || Ok(file.bless(&path, *output)?)));
                continue;
            }
            for (number, (query, expected)) in file.cases.iter().enumerate() {
                let name = format!("{name}::{}_{}", number + 1, beginning(query));
                let (query, expected) = (query.clone(), expected.clone());
                let (catalog, options) = (file.catalog.clone(), file.options);
                let check = move || match output(&query, &catalog, &options) {
                    printed if printed == expected => Ok(()),
                    printed => Err(format!("prints\n{printed}instead of\n{expected}").into()),
                };
                tests.push(Trial::test(name, check));
            }
        }
    }
    tests
}

/// The first words of a query, for the name of its test.
fn beginning(query: &str) -> String {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).take(4).collect();
    words.join("_").to_lowercase()
}

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

/// A file of cases.
struct File {
    head: String,
    catalog: Catalog,
    options: CheckOptions,
    /// The queries, and what weir prints for them.
    cases: Vec<(String, String)>,
}

impl File {
    fn read(path: &Path) -> File {
        let text = fs::read_to_string(path).unwrap();
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
        let case = |case: &str| {
            let (query, expected) = case.split_once("---\n").unwrap_or((case, ""));
            (query.trim_end_matches('\n').to_owned(), expected.to_owned())
        };
        File {
            cases: text[head.len()..].split("===\n").map(case).collect(),
            head,
            catalog,
            options,
        }
    }

    fn bless(&self, path: &Path, output: Output) -> Result<(), String> {
        let case = |(query, _): &(String, String)| {
            let printed = output(query, &self.catalog, &self.options);
            format!("{query}\n---\n{printed}")
        };
        let cases: Vec<String> = self.cases.iter().map(case).collect();
        let text = format!("{}{}", self.head, cases.join("===\n"));
        fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// The diagnostics of a wrong query.
fn diagnostics(query: &str, catalog: &Catalog, options: &CheckOptions) -> String {
    let diagnostics = match compile(query, catalog, options) {
        Ok(checked) => checked.warnings,
        Err(diagnostics) => diagnostics,
    };
    assert!(!diagnostics.is_empty(), "nothing is wrong with {query}");
    diagnostics.iter().map(|d| render(d, query, None)).collect()
}

/// The diagnostics of a file of alerts, or how weir reads it.
fn alerts(text: &str, catalog: &Catalog, options: &CheckOptions) -> String {
    let show = |diagnostics: &[weir_query::Diagnostic]| -> String {
        diagnostics.iter().map(|d| render(d, text, None)).collect()
    };
    let file = match compile_alerts(text, catalog, options) {
        Ok(file) => file,
        Err(diagnostics) => return show(&diagnostics),
    };
    let mut out = show(&file.warnings);
    for rule in &file.rules {
        let labels: Vec<&str> = rule.labels.iter().map(|(name, _)| name.as_str()).collect();
        let durations = (rule.hold_ns, rule.hold_clear_ns);
        let labels = labels.join(", ");
        writeln!(out, "{}: for {durations:?} ns, labels {labels}", rule.text).unwrap();
    }
    for expected in &file.expectations {
        writeln!(out, "{}: {:?}", expected.text, expected.interval_ns).unwrap();
    }
    out
}

/// The plan before the optimizer.
fn plan(query: &str, catalog: &Catalog, options: &CheckOptions) -> String {
    match compile_unoptimized(query, catalog, options) {
        Ok(checked) => checked.plan.to_string(),
        Err(diagnostics) => diagnostics.iter().map(|d| render(d, query, None)).collect(),
    }
}

/// The parts of a script in STREAM's format.
fn script(text: &str, _: &Catalog, _: &CheckOptions) -> String {
    match compile_script(text) {
        Err(diagnostics) => diagnostics
            .iter()
            .map(|d| render(d, text, Some("s.cql")))
            .collect(),
        Ok(script) => {
            let mut listing: String = script
                .warnings
                .iter()
                .map(|d| render(d, text, None))
                .collect();
            if let Some(source) = &script.iostream_source {
                writeln!(listing, "IOstream from {source}").unwrap();
            }
            for table in &script.tables {
                let columns = table.declaration.schema.fields.iter();
                let columns: Vec<_> = columns.map(|f| format!("{} {}", f.name, f.ty)).collect();
                let (name, columns) = (&table.declaration.name, columns.join(", "));
                let shape = table.declaration.shape;
                writeln!(
                    listing,
                    "{shape:?} {name} ({columns}) from {}",
                    table.source
                )
                .unwrap();
            }
            for query in &script.queries {
                let dest = query.dest.as_deref().unwrap_or("-");
                write!(listing, "to {dest}:\n{}", query.unoptimized).unwrap();
            }
            listing
        }
    }
}

/// Where each operator runs.
fn explanation(query: &str, catalog: &Catalog, options: &CheckOptions) -> String {
    match compile(query, catalog, options) {
        Ok(checked) => place::explain(&checked.plan, &capabilities::live()).to_string(),
        Err(diagnostics) => diagnostics.iter().map(|d| render(d, query, None)).collect(),
    }
}

/// The query in Flink SQL, or why there is none.
fn flink(query: &str, catalog: &Catalog, options: &CheckOptions) -> String {
    match compile(query, catalog, options) {
        Ok(checked) => match translate(&checked.plan) {
            Ok(flink) => format!("{}\n", flink.select),
            Err(why) => format!("refused: {why}\n"),
        },
        Err(diagnostics) => diagnostics.iter().map(|d| render(d, query, None)).collect(),
    }
}

/// A source that keeps any column of groups with few keys.
fn few_keys() -> Capabilities {
    let mut all = capabilities::of_any_groups();
    let io = &mut all.streams[0];
    for (field, column) in io.declaration.schema.fields.iter().zip(&mut io.columns) {
        column.group = ["op", "pdisk", "vm", "comm"].contains(&field.name.as_str());
        column.measure = Measure::Kept;
    }
    all
}

/// Which groups the source makes.
fn placed(query: &str, catalog: &Catalog, options: &CheckOptions) -> String {
    let plan = compile(query, catalog, options).expect("it is right").plan;
    let placement = place::place(&[&plan], &few_keys());
    place::explain_placed(&plan, &placement, NANOS_PER_SECOND).to_string()
}

/// The plan after each rule of the optimizer.
fn rules(query: &str, catalog: &Catalog, options: &CheckOptions) -> String {
    let written = compile_unoptimized(query, catalog, options)
        .unwrap_or_else(|d| panic!("{query}: {d:?}"))
        .plan;
    let mut plan = written.clone();
    let mut listing = plan.to_string();
    for rule in RULES {
        let next = (rule.apply)(&plan);
        if next != plan {
            write!(listing, "-- {}\n{next}", rule.name).unwrap();
        }
        plan = next;
    }
    let result = optimize(&written);
    assert_eq!(result.schema, written.schema, "{query}");
    write!(listing, "-- result\n{result}").unwrap();
    listing
}
