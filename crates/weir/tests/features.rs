//! The table of SQL features in `docs/cql.md` is true: the example of each row runs, or is refused
//! with the diagnostic that the row names.

use std::path::Path;
use std::process::{Command, Stdio};

use weir_testing::Scratch;
use weir_testing::repository::{none, read, root};

/// A feature of the table.
struct Feature {
    name: String,
    answer: String,
    example: String,
    remark: String,
}

/// The rows of the table. Rows without an example are headings.
fn features() -> Vec<Feature> {
    let page = read("docs/cql.md");
    let (_, rest) = page
        .split_once("## Features of SQL")
        .expect("the page has the table");
    let (section, _) = rest.split_once("\n## ").expect("another section follows");
    let rows = section.lines().filter(|line| line.starts_with("| "));
    // The first two lines are the names of the columns.
    let rows = rows.skip(2).map(|line| {
        // An escaped bar belongs to its cell.
        let line = line.replace("\\|", "\u{1}");
        let cells: Vec<String> = line
            .split('|')
            .map(|cell| cell.trim().replace('\u{1}', "|"))
            .collect();
        let [_, name, answer, example, remark, _] = &cells[..] else {
            panic!("a row has four cells: {line}");
        };
        Feature {
            name: name.clone(),
            answer: answer.clone(),
            example: example.trim_matches('`').to_owned(),
            remark: remark.clone(),
        }
    });
    rows.filter(|feature| !feature.example.is_empty()).collect()
}

/// The first code of a diagnostic, such as `W0001`.
fn code(text: &str) -> Option<&str> {
    let is_digits = |at: &usize| {
        text.get(at + 1..at + 5)
            .is_some_and(|d| d.parse::<u16>().is_ok())
    };
    let at = text.match_indices('W').map(|(at, _)| at).find(is_digits)?;
    text.get(at..at + 5)
}

/// Why the table is wrong about a feature.
fn mistake(feature: &Feature, library: &Path) -> Option<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["query", "--from", "samples/fio-loop.parquet"])
        // The library of the user is not changed.
        .env("WEIR_VIEWS", library)
        .args(["--format", "json", &feature.example])
        .current_dir(root())
        .stdin(Stdio::null())
        .output()
        .expect("weir runs");
    let message = String::from_utf8_lossy(&output.stderr);
    match (feature.answer.as_str(), output.status.code()) {
        ("yes" | "differently", Some(0)) => None,
        ("no", Some(2)) => match code(&feature.remark) {
            Some(code) if message.contains(code) => None,
            Some(code) => Some(format!("it is not refused with {code}: {message}")),
            None => Some("the row names no diagnostic".to_owned()),
        },
        (answer, _) => Some(format!("the answer is not `{answer}`: {message}")),
    }
}

#[test]
fn the_table_of_features_is_true() {
    let features = features();
    for answer in ["yes", "differently", "no"] {
        let count = features.iter().filter(|f| f.answer == answer).count();
        assert!(count > 5, "the table has rows with {answer}");
    }
    let home = Scratch::new();
    let library = home.path().join("views.cql");
    let described = |f: &Feature| {
        let mistake = mistake(f, &library)?;
        Some(format!("{}: `{}`: {mistake}", f.name, f.example))
    };
    let mistakes: Vec<String> = features.iter().filter_map(described).collect();
    none(&mistakes, "rows of docs/cql.md are wrong");
}
