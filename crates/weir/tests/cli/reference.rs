//! What weir says about itself: help, streams, functions, completions, manual pages.

use crate::support::{Scratch, run};

const COMMANDS: [&str; 10] = [
    "characterise",
    "query",
    "run",
    "explain",
    "check",
    "streams",
    "functions",
    "record",
    "convert",
    "doctor",
];

#[test]
fn weir_alone_helps_and_names_every_command() {
    let out = run(&[]).fine();
    for command in COMMANDS {
        assert!(
            out.contains(&format!("\n  {command} ")),
            "{command} in {out}"
        );
    }
}

#[test]
fn every_command_has_help_with_examples() {
    for command in COMMANDS {
        let out = run(&[command, "--help"]).fine();
        assert!(out.contains("Examples:\n  weir "), "{command}: {out}");
    }
}

#[test]
fn streams_tell_their_columns_with_types_and_units() {
    let out = run(&["streams"]).fine();
    assert!(out.contains("IOstream") && out.contains("weir"), "{out}");
    let out = run(&["streams", "io"]).fine();
    assert!(
        out.contains("latency") && out.contains("BlktapTS (us)"),
        "{out}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&run(&["streams", "--json"]).fine()).unwrap();
    assert_eq!(json[0]["name"], "IO");
    assert_eq!(json[0]["columns"][0]["type"], "timestamp");
    assert_eq!(run(&["streams", "nope"]).code, 2);
}

#[test]
fn functions_have_a_page_with_examples() {
    let out = run(&["functions"]).fine();
    assert!(out.contains("avg(x)") && out.contains("aggregate"), "{out}");
    let out = run(&["functions", "SUM"]).fine();
    assert!(out.starts_with("sum(x)") && out.contains(" = "), "{out}");
    let json: serde_json::Value =
        serde_json::from_str(&run(&["functions", "--json", "sum"]).fine()).unwrap();
    assert_eq!(json[0]["name"], "sum");
    let said = run(&["functions", "summ"]);
    assert_eq!(said.code, 2);
    assert!(said.err.contains("did you mean `sum`?"), "{}", said.err);
}

#[test]
fn a_diagnostic_code_is_explained() {
    let out = run(&["explain", "w0103"]).fine();
    assert!(out.starts_with("W0103: "), "{out}");
}

#[test]
fn explain_says_where_each_part_runs() {
    let query = "select count(*) from IO [range 1 s] where op = 'r'";
    let out = run(&["explain", query]).fine();
    assert!(out.contains("kernel"), "{out}");
    let json: serde_json::Value =
        serde_json::from_str(&run(&["explain", "--json", query]).fine()).unwrap();
    assert!(
        json["plan"]["operators"]
            .as_array()
            .is_some_and(|o| o.len() > 2)
    );
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let out = run(&["completions", shell]).fine();
        assert!(
            out.contains("explain") && out.contains("limit-memory"),
            "{shell}"
        );
    }
}

#[test]
fn manual_pages_are_written_for_every_command() {
    let scratch = Scratch::new();
    let directory = scratch.path().join("man1");
    run(&["man", directory.to_str().unwrap()]).fine();
    for command in COMMANDS {
        let page = scratch.read(&format!("man1/weir-{command}.1"));
        assert!(
            page.contains(".TH") && page.contains("Examples"),
            "{command}"
        );
    }
}
