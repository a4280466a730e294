//! The queries of docs/probes-tools.md: each is checked, and runs where the kernel has its probes.

use std::fs::read_to_string;

use weir_testing::repository::root;

use crate::live::watchable;
use crate::support::{Scratch, run, skipped};

/// Queries of a script: a kernel drops fewer events of busy probes if few are attached at a time.
const QUERIES_OF_SCRIPT: usize = 12;

/// Why a kernel or a host may not have the probes of a query.
const ABSENT: [&str; 2] = ["this kernel has no", "No such file or directory"];

/// Functions that every process calls all the time: a probe there would delay the other tests.
const BUSY: [&str; 3] = ["libc.so.6:malloc", "libc.so.6:calloc", "libc.so.6:free'"];

/// Streams that scripts do not read.
const WITHOUT_SCRIPT: [&str; 2] = ["from FileIO", "from PageCache"];

/// A row of a table: the tool, its query, and whether the answer is the same.
struct Tool {
    name: String,
    query: String,
    answer: String,
}

/// The rows with a query.
fn tools() -> Vec<Tool> {
    let page = read_to_string(root().join("docs/probes-tools.md")).expect("a page");
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let &["", name, _, query, answer, ""] = cells.as_slice() else {
            return None;
        };
        let query = query.strip_prefix('`')?.strip_suffix('`')?;
        Some(Tool {
            name: name.to_owned(),
            query: query.to_owned(),
            answer: answer.to_owned(),
        })
    };
    page.lines().filter_map(row).collect()
}

/// A query with its definition as parts of a script.
fn of_script(query: &str, dest: &str) -> String {
    let (table, query) = match query.split_once("; ") {
        Some((definition, query)) => (format!("table : {definition};\n"), query),
        None => (String::new(), query),
    };
    format!("{table}query : {query};\ndest : {dest}\n")
}

#[test]
fn the_page_has_a_hundred_tools_with_an_answer() {
    let tools = tools();
    assert!(tools.len() >= 100, "{}", tools.len());
    for (at, tool) in tools.iter().enumerate() {
        let Tool {
            name,
            query,
            answer,
        } = tool;
        assert!(
            answer.starts_with("yes") || answer.starts_with("partly: "),
            "{name}: {answer}"
        );
        let mut others = tools[..at].iter();
        assert!(
            others.all(|t| t.name != *name && t.query != *query),
            "{name}"
        );
    }
    let page = read_to_string(root().join("docs/probes-tools.md")).expect("a page");
    let same = tools.iter().filter(|t| t.answer.starts_with("yes")).count();
    let counted = format!("Of the {} queries, {same} have", tools.len());
    assert!(page.contains(&counted), "{counted}");
}

#[test]
fn each_query_is_checked_and_runs_where_the_kernel_has_its_probes() {
    if !watchable("tools as queries") {
        return;
    }
    let (mut scripts, mut alone, mut absent) = (Vec::new(), Vec::new(), Vec::new());
    for Tool { name, query, .. } in tools() {
        let checked = run(&["check", &query]);
        if checked.code != 0 {
            let why = checked.err.lines().next().unwrap_or_default().to_owned();
            let is_absent = ABSENT.iter().any(|cause| why.contains(cause));
            assert!(is_absent, "{name}: {}", checked.err);
            absent.push(format!("{name}: {why}"));
        } else if BUSY.iter().any(|function| query.contains(function)) {
            absent.push(format!("{name}: it would delay every process"));
        } else if query.contains("'fentry:") || WITHOUT_SCRIPT.iter().any(|s| query.contains(s)) {
            alone.push((name, query));
        } else {
            scripts.push(query);
        }
    }
    assert!(scripts.len() >= 60, "{absent:#?}");
    let scratch = Scratch::new();
    for queries in scripts.chunks(QUERIES_OF_SCRIPT) {
        let part = |(at, query): (usize, &String)| of_script(query, &scratch.file(&at.to_string()));
        let script: String = queries.iter().enumerate().map(part).collect();
        let script = scratch.write("tools.cql", &script);
        run(&["run", "--for", "1ms", &script]).fine();
    }
    for (name, query) in alone {
        let output = run(&["query", "--for", "1ms", &query]);
        if output.code == 0 {
            continue;
        }
        // As in a kernel that has the function, but no trampolines.
        let refused = "this kernel refuses programs at functions";
        assert!(output.err.contains(refused), "{name}: {}", output.err);
        absent.push(format!("{name}: {refused}"));
    }
    if !absent.is_empty() {
        skipped("some tools as queries", absent.join("; "));
    }
}
