//! The direction of imports: between crates, and between the stages inside `weir-query`. What is
//! listed here is the code map of ARCHITECTURE.md.

use std::path::Path;

use weir_testing::repository::{none, read, root, tracked};

/// Every crate and the crates of this workspace that it may use, tests aside.
const CRATES: &[(&str, &[&str])] = &[
    ("weir-model", &[]),
    ("weir-sketch", &[]),
    ("weir-workload", &["weir-model", "weir-sketch"]),
    (
        "weir-query",
        &["weir-model", "weir-sketch", "weir-workload"],
    ),
    ("weir-tap", &["weir-model", "weir-sketch", "weir-workload"]),
    ("weir-sink", &["weir-model", "weir-sketch", "weir-workload"]),
    ("weir-wire", &["weir-model"]),
    (
        "weir-runtime",
        &[
            "weir-model",
            "weir-query",
            "weir-sink",
            "weir-tap",
            "weir-wire",
        ],
    ),
    (
        "weir-tapdisk",
        &["weir-model", "weir-runtime", "weir-tap", "weir-workload"],
    ),
    ("weir-act", &["weir-model", "weir-runtime", "weir-tap"]),
    (
        "weir-forward",
        &["weir-model", "weir-query", "weir-runtime", "weir-wire"],
    ),
    (
        "weir-agent",
        &[
            "weir-act",
            "weir-forward",
            "weir-model",
            "weir-query",
            "weir-runtime",
            "weir-sink",
            "weir-tap",
            "weir-wire",
        ],
    ),
    (
        "weir-flink",
        &[
            "weir-forward",
            "weir-model",
            "weir-query",
            "weir-runtime",
            "weir-sink",
        ],
    ),
    (
        "weir-monitor",
        &[
            "weir-forward",
            "weir-model",
            "weir-query",
            "weir-runtime",
            "weir-sink",
            "weir-tap",
            "weir-wire",
            "weir-workload",
        ],
    ),
    (
        "weir-view",
        &[
            "weir-model",
            "weir-query",
            "weir-runtime",
            "weir-sink",
            "weir-sketch",
            "weir-tap",
            "weir-workload",
        ],
    ),
    (
        "weir-alert",
        &[
            "weir-act",
            "weir-model",
            "weir-monitor",
            "weir-query",
            "weir-runtime",
            "weir-sink",
            "weir-tap",
            "weir-wire",
        ],
    ),
    (
        "weir-tune",
        &["weir-model", "weir-runtime", "weir-sink", "weir-tapdisk"],
    ),
    ("weir-console", &["weir-model", "weir-query", "weir-sink"]),
    ("weir-testing", &["weir-sketch"]),
    (
        "weir-simulation",
        &[
            "weir-agent",
            "weir-model",
            "weir-monitor",
            "weir-query",
            "weir-runtime",
            "weir-sink",
            "weir-wire",
        ],
    ),
];

/// Test gear, which no other crate may depend on outside of its tests.
const GEAR: [&str; 2] = ["weir-simulation", "weir-testing"];

/// The stages of `weir-query`, lowest first. A stage may use itself and those before it. `expr` and
/// `function` describe each other (a call is an expression, an aggregate takes expressions), so
/// they are one stage.
const STAGES: &[&[&str]] = &[
    &["diagnostic", "disk_load"],
    &["expr", "function"],
    &["synopsis"],
    &["eval"],
    &["operator"],
    &["window"],
    &["plan"],
    &["syntax"],
    &["check"],
    &["optimize"],
    &["compile"],
    &["library"],
    &["alert"],
    &["place"],
    &["flink"],
    &["physical"],
    &["engine"],
    &["script"],
    &["reference"],
];

/// The workspace's crates in a manifest's `[dependencies]`.
fn dependencies(manifest: &str) -> Vec<&str> {
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or("");
    let section = section.split("\n[").next().unwrap_or("");
    let names = section.lines().map(|line| {
        let end = line.find(|c: char| !c.is_alphanumeric() && c != '-' && c != '_');
        &line[..end.unwrap_or(line.len())]
    });
    names.filter(|name| name.starts_with("weir-")).collect()
}

#[test]
fn crates_depend_only_on_crates_below_them() {
    let mut upward = Vec::new();
    for (name, may_use) in CRATES {
        let manifest = read(&format!("crates/{name}/Cargo.toml"));
        let others = dependencies(&manifest).into_iter();
        upward.extend(
            others
                .filter(|other| !may_use.contains(other))
                .map(|other| format!("{name} uses {other}")),
        );
    }
    none(&upward, "an import runs upward");
}

#[test]
fn test_gear_is_not_in_the_binary() {
    let manifest = read("crates/weir/Cargo.toml");
    let used = dependencies(&manifest);
    assert!(used.contains(&"weir-query"), "{used:?}");
    let gear = used.iter().filter(|name| GEAR.contains(*name));
    assert_eq!(gear.collect::<Vec<_>>(), Vec::<&&str>::new());
}

/// The stages that a file's code names, each with its line; test modules aside.
fn stages_named(text: &str) -> Vec<(usize, String)> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
    let mut found = Vec::new();
    for (number, line) in code.lines().enumerate() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        for part in line.split("crate::").skip(1) {
            let end = part.find(|c: char| !c.is_alphanumeric() && c != '_');
            found.push((number + 1, part[..end.unwrap_or(part.len())].to_owned()));
        }
    }
    found
}

/// The Rust files of a crate, relative to the root.
fn sources(crate_name: &str) -> impl Iterator<Item = String> {
    let folder = format!("crates/{crate_name}/src/");
    let files = tracked(".rs").into_iter();
    files.filter(move |path| path.starts_with(&folder))
}

/// Files of `weir-query/src` that hold tests alone.
const TEST_FILES: [&str; 4] = ["tests.rs", "testing.rs", "laws.rs", "kernel_law.rs"];

fn is_test(path: &str) -> bool {
    TEST_FILES
        .iter()
        .any(|name| Path::new(path).ends_with(name))
}

/// What a planner would name that does not work from capabilities alone: streams and relations.
const STREAMS: [&str; 11] = [
    "IO",
    "IOstream",
    "recording",
    "weir",
    "blockstats",
    "blocklatency",
    "GuestIO",
    "vms",
    "disks",
    "devices",
    "hosts",
];

#[test]
fn the_query_engine_names_no_stream() {
    let mut named = Vec::new();
    for path in sources("weir-query").filter(|path| !is_test(path)) {
        let text = read(&path);
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
        for (number, line) in code.lines().enumerate() {
            let is_comment = line.trim_start().starts_with("//");
            let is_named = |name: &&&str| line.contains(&format!("\"{name}\""));
            if let Some(name) = STREAMS.iter().find(is_named).filter(|_| !is_comment) {
                named.push(format!("{path}:{}: `{name}`", number + 1));
            }
        }
    }
    none(&named, "the query engine names a stream");
}

#[test]
fn stages_of_the_query_engine_import_downward() {
    let level = |name: &str| STAGES.iter().position(|stage| stage.contains(&name));
    let mut upward = Vec::new();
    for path in sources("weir-query") {
        let first = path.split('/').nth(3).expect("it is below `src`");
        let stage = first.replace(".rs", "");
        if stage == "lib" || is_test(&path) {
            continue;
        }
        let own = level(&stage).unwrap_or_else(|| panic!("stage `{stage}` is not in STAGES"));
        for (line, named) in stages_named(&read(&path)) {
            if level(&named).is_some_and(|other| other > own) {
                upward.push(format!("{path}:{line}: {stage} uses {named}"));
            }
        }
    }
    none(&upward, "an import runs upward");
}

/// The parts in backticks of a text, outside code blocks.
fn in_backticks(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    found
}

/// True if the crate's sources define `name`.
fn is_defined(crate_name: &str, name: &str) -> bool {
    let keywords = ["fn ", "struct ", "enum ", "trait ", "mod ", "const "];
    sources(crate_name).any(|path| {
        let text = read(&path);
        let defines = |keyword: &&str| {
            let definition = format!("{keyword}{name}");
            text.match_indices(&definition).any(|(at, _)| {
                let next = text[at + definition.len()..].chars().next();
                next.is_none_or(|c| !c.is_alphanumeric() && c != '_')
            })
        };
        Path::new(&path)
            .file_stem()
            .is_some_and(|stem| stem == name)
            || keywords.iter().any(defines)
    })
}

#[test]
fn the_code_map_names_items_that_exist() {
    let text = read("ARCHITECTURE.md");
    let mut checked = 0;
    let mut missing = Vec::new();
    for item in in_backticks(&text) {
        let exists = if let Some((crate_name, path)) = item.split_once("::") {
            if !crate_name.starts_with("weir_") {
                continue;
            }
            let name = path.rsplit("::").next().expect("there is a last part");
            is_defined(&crate_name.replace('_', "-"), name)
        } else if item.contains('/') && !item.contains(' ') {
            // Paths are relative to the repository, to `crates`, or to the sources of some crate.
            let bases = [
                root().to_owned(),
                root().join("crates"),
                root().join("crates/weir/src"),
            ];
            let sources = CRATES
                .iter()
                .map(|(name, _)| root().join("crates").join(name).join("src"));
            let mut bases = bases.into_iter().chain(sources);
            bases.any(|base| base.join(item).exists())
        } else {
            continue;
        };
        checked += 1;
        if !exists {
            missing.push(item);
        }
    }
    assert!(checked > 20, "only {checked} items were found");
    assert!(missing.is_empty(), "ARCHITECTURE.md names {missing:?}");
}
