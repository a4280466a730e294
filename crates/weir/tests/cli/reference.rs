//! Reference information of the program: help, streams, functions, completions, manual pages.

use crate::support::{Scratch, run};

/// Values that name an object or a rule. Without such an option nothing is selected, written or
/// changed; every other option states its default.
const NAMES: [&str; 17] = [
    "ADDRESS",
    "DEVICE",
    "DISK",
    "FILE",
    "NAME",
    "NAME=PROCESSES",
    "OBJECTIVE",
    "OPTIONS",
    "OTHER",
    "PATH",
    "PID",
    "PREDICATE",
    "RULE",
    "SOCKET",
    "VM",
    "WHICH",
    "X:Y",
];

/// Values of options whose name states the unit, or that have none.
const PLAIN_NUMBERS: [&str; 6] = ["BYTES", "COEFFICIENT", "COUNT", "DAYS", "FACTOR", "MODE"];

/// The commands of `weir --help`.
fn commands() -> Vec<String> {
    let help = run(&["--help"]).fine();
    let (_, listed) = help.split_once("\nStart with:\n").expect("the overview");
    let (listed, _) = listed.split_once("\n`weir COMMAND").expect("its end");
    let entries = listed.lines().filter_map(|line| line.strip_prefix("  "));
    let names = entries.filter_map(|line| line.split_whitespace().next());
    let names: Vec<String> = names
        .filter(|name| *name != "weir")
        .map(str::to_owned)
        .collect();
    assert!(names.len() > 20, "{help}");
    names
}

/// The commands of `weir --help` and their subcommands, with the help of each.
fn helps() -> Vec<(Vec<String>, String)> {
    let mut helps = Vec::new();
    for command in commands() {
        let help = run(&[&command, "--help"]).fine();
        let (_, below) = help.split_once("\nCommands:\n").unwrap_or_default();
        let (below, _) = below.split_once("\n\n").unwrap_or_default();
        let entries = below.lines().filter_map(|line| line.strip_prefix("  "));
        for name in entries.filter_map(|line| line.split(' ').next()) {
            if !["", "help"].contains(&name) {
                let words = vec![command.clone(), name.to_owned()];
                helps.push((words, run(&[&command, name, "--help"]).fine()));
            }
        }
        helps.push((vec![command], help));
    }
    helps
}

/// The options in a help that take a value: the name of the value, and the text of the entry.
fn options(help: &str) -> Vec<(String, String)> {
    let mut entries: Vec<String> = Vec::new();
    let mut is_entry = false;
    for line in help.lines().filter(|line| !line.is_empty()) {
        // Possible values are lists with a larger indent.
        let indent = line.len() - line.trim_start().len();
        let is_start = (1..8).contains(&indent) && line.trim_start().starts_with('-');
        is_entry = is_start || is_entry && line.starts_with(' ');
        match (is_start, entries.last_mut()) {
            (true, _) => entries.push(line.trim().to_owned()),
            (false, Some(entry)) if is_entry => *entry += &format!(" {}", line.trim()),
            _ => {}
        }
    }
    let valued = entries.into_iter().filter_map(|entry| {
        let flags = entry.split("  ").next().unwrap_or_default();
        let (_, value) = flags.split_once('<')?;
        Some((value.split_once('>')?.0.to_owned(), entry))
    });
    valued.collect()
}

#[test]
fn weir_alone_helps_and_names_every_command() {
    let out = run(&[]).fine();
    for command in commands() {
        assert!(
            out.contains(&format!("\n  {command} ")),
            "{command} in {out}"
        );
    }
}

#[test]
fn every_command_has_help_with_examples() {
    for command in commands() {
        let out = run(&[&command, "--help"]).fine();
        assert!(out.contains("Examples:\n  "), "{command}: {out}");
        let (_, examples) = out.split_once("Examples:\n").expect("examples");
        assert!(
            examples.contains(&format!("weir {command}")),
            "{command}: {out}"
        );
    }
}

#[test]
fn every_option_with_a_value_states_its_default_and_unit() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for (command, help) in helps() {
        for (value, entry) in options(&help) {
            checked += 1;
            let default = entry.split_once("[default: ").map(|(_, rest)| rest);
            let default = default.and_then(|rest| rest.split(']').next());
            let has_unit = default.is_none_or(|default| default.parse::<f64>().is_err());
            let has_default = default.is_some() || NAMES.contains(&&*value);
            if !has_default || !has_unit && !PLAIN_NUMBERS.contains(&&*value) {
                wrong.push(format!("weir {}: {entry}", command.join(" ")));
            }
        }
    }
    assert!(checked > 100, "{checked} options have a value");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn streams_lists_columns_with_types_and_units() {
    let out = run(&["streams"]).fine();
    assert!(out.contains("IOstream") && out.contains("weir"), "{out}");
    let out = run(&["streams", "io"]).fine();
    assert!(out.contains("\nCOLUMN "), "{out}");
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
    let output = run(&["functions", "summ"]);
    assert_eq!(output.code, 2);
    assert!(output.err.contains("did you mean `sum`?"), "{}", output.err);
}

#[test]
fn a_diagnostic_code_is_explained() {
    let out = run(&["explain", "w0103"]).fine();
    assert!(out.starts_with("W0103: "), "{out}");
    let unknown = run(&["explain", "W9999"]);
    assert_eq!(unknown.code, 2);
    let message = "unknown diagnostic code `W9999`";
    assert!(unknown.err.contains(message), "{}", unknown.err);
}

#[test]
fn explain_prints_where_each_part_runs() {
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
fn explain_analyze_runs_and_measures_the_query() {
    let recording = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../samples/fio-loop.parquet"
    );
    let query = "select op, count(*) from IO group by op";
    let asked = |words: &[&str]| run(&[words, &["--from", recording, query]].concat()).fine();
    let counted = asked(&["query", "--final", "--format", "json"]);
    let rows: u64 = counted
        .lines()
        .map(|line| {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            row["count(*)"].as_u64().unwrap()
        })
        .sum();
    let json: serde_json::Value =
        serde_json::from_str(&asked(&["explain", "--analyze", "--json"])).unwrap();
    let measured = &json["measured"];
    assert_eq!(measured["sources"][0]["rows_in"], rows, "{measured}");
    assert!(measured["rows_out"].as_u64() > Some(0), "{measured}");
    let text = asked(&["explain", "--analyze"]);
    assert!(text.contains(&format!("rows from IO: {rows} ")), "{text}");
    assert!(!asked(&["explain"]).contains("measured for"));
}

/// The output of `weir explain --fleet --json` for a query of a recording.
fn cut(words: &[&str], query: &str) -> serde_json::Value {
    let recording = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../samples/fio-loop.parquet"
    );
    let fixed = ["--from", recording, "--json", query];
    let stdout = run(&[&["explain", "--fleet"], words, &fixed].concat()).fine();
    serde_json::from_str(&stdout).unwrap()
}

#[test]
fn explain_prints_how_a_query_is_split_for_a_fleet() {
    let query = "select op, count(*) from IO [range 2 s slide 1 s] group by op";
    let stdout = run(&["explain", "--fleet", query]).fine();
    for words in [
        "merge [range 2 s slide 1 s] count1 by op",
        "-> monitor",
        "-> kernel",
        "strategy partials (chosen)",
        "strategy agent",
        "the same as `partials`",
    ] {
        assert!(stdout.contains(words), "no `{words}` in\n{stdout}");
    }
    let asked = cut(&["--place", "rows"], query);
    assert_eq!(asked["plan"]["strategy"], "rows");
    // More hosts have more rows; the number of rows of one host does not change.
    let hosts = |count: &str| {
        let query =
            "select op, count(*) from IO [range 1 s slide 1 s] where host = 'a' group by op";
        let cost = &cut(&["--hosts", count], query)["plan"]["strategies"][0]["cost"];
        cost["rows_out"].as_f64().unwrap()
    };
    assert_eq!(hosts("10"), 10.0 * hosts("100"));
    let refused = |words: &[&str], why: &str| {
        let output = run(&[&["explain", "--place", "agent"], words, &[query]].concat());
        assert_eq!(output.code, 2);
        assert!(output.err.contains(why), "{}", output.err);
    };
    refused(&["--fleet"], "`agent` is not possible");
    refused(&[], "--fleet, --forward or --monitor");
}

#[test]
fn explain_takes_the_way_that_costs_least_by_what_was_measured() {
    // The estimate is a hundred groups; the recording has nearly as many sectors as requests.
    let of =
        |key: &str| format!("select {key}, count(*) from IO [range 1 s slide 1 s] group by {key}");
    assert_eq!(cut(&[], &of("sector"))["plan"]["strategy"], "partials");
    let many = cut(&["--analyze"], &of("sector"));
    assert_eq!(many["plan"]["strategy"], "rows", "{many}");
    let few = cut(&["--analyze"], &of("op"));
    assert_eq!(few["plan"]["strategy"], "partials", "{few}");
    let measured = &few["plan"]["fragments"][0]["measured"];
    let rows = |key: &str| measured[key].as_f64().unwrap();
    assert!(rows("rows_in") > 10.0 * rows("rows_out"), "{measured}");
    assert!(
        rows("bytes_out") > 0.0 && rows("cpu_ns") > 0.0,
        "{measured}"
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
    let helps = helps();
    for (command, _) in &helps {
        let page = scratch.read(&format!("man1/weir-{}.1", command.join("-")));
        assert!(
            page.contains(".TH") && page.contains("EXIT STATUS"),
            "{command:?}"
        );
        let is_subcommand = command.len() > 1;
        assert!(is_subcommand || page.contains("EXAMPLES"), "{command:?}");
    }
    // The pages are made of all visible commands, so the help lists all of them.
    let pages = std::fs::read_dir(directory).unwrap().count();
    assert_eq!(
        pages,
        helps.len() + 1,
        "one page for each command, and weir.1"
    );
}
