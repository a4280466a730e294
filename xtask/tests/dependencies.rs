//! The part of `deny.toml` that needs neither cargo-deny nor a network: licences, duplicates and
//! sources of the dependencies, as `cargo metadata` reports them.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;
use weir_testing::repository::{none, read, root};

/// The only registry that dependencies may come from, as `cargo metadata` writes it.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The packages that one of the supported platforms builds.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata fails");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

fn text<'a>(package: &'a Value, key: &str) -> &'a str {
    package[key].as_str().unwrap_or_default()
}

/// The quoted strings of the list `key = [..]` in `deny.toml`, one line each: the first of a line.
fn listed(key: &str) -> BTreeSet<String> {
    let policy = read("deny.toml");
    let list = policy
        .split(&format!("\n{key} = [\n"))
        .nth(1)
        .and_then(|rest| rest.split("\n]").next())
        .unwrap_or_else(|| panic!("deny.toml has no list `{key}`"));
    let first = |line: &str| line.split('"').nth(1).map(str::to_owned);
    list.lines().filter_map(first).collect()
}

/// Whether a licence expression (SPDX, or with `/` for OR) can be met by `allowed` licences.
fn permits(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ");
    let spaced = spaced.replace('/', " OR ").replace(" WITH ", "~");
    let tokens: Vec<String> = spaced
        .split_whitespace()
        .map(|token| token.replace('~', " WITH "))
        .collect();
    let mut rest = tokens.as_slice();
    let met = either(&mut rest, allowed);
    assert!(rest.is_empty(), "not an expression: {expression}");
    met
}

fn either(rest: &mut &[String], allowed: &BTreeSet<String>) -> bool {
    let mut met = both(rest, allowed);
    while skip(rest, "OR") {
        met |= both(rest, allowed);
    }
    met
}

fn both(rest: &mut &[String], allowed: &BTreeSet<String>) -> bool {
    let mut met = one(rest, allowed);
    while skip(rest, "AND") {
        met &= one(rest, allowed);
    }
    met
}

fn one(rest: &mut &[String], allowed: &BTreeSet<String>) -> bool {
    if skip(rest, "(") {
        let met = either(rest, allowed);
        assert!(skip(rest, ")"), "an unbalanced parenthesis");
        return met;
    }
    let (name, others) = rest.split_first().expect("a licence");
    *rest = others;
    allowed.contains(name)
}

fn skip(rest: &mut &[String], token: &str) -> bool {
    match rest.split_first() {
        Some((first, others)) if first == token => {
            *rest = others;
            true
        }
        _ => false,
    }
}

#[test]
fn every_licence_is_allowed() {
    let allowed = listed("allow");
    let refused: Vec<String> = packages()
        .iter()
        .filter(|p| !permits(text(p, "license"), &allowed))
        .map(|p| format!("{}: {}", text(p, "name"), text(p, "license")))
        .collect();
    none(&refused, "deny.toml does not allow the licence");
}

#[test]
fn a_licence_expression_is_read_as_spdx_defines_it() {
    let allowed = BTreeSet::from(["MIT".to_owned(), "Zlib".to_owned()]);
    for met in ["MIT", "GPL-2.0/MIT", "(GPL-2.0 OR MIT) AND Zlib"] {
        assert!(permits(met, &allowed), "{met}");
    }
    for unmet in ["GPL-2.0", "MIT AND GPL-2.0", "MIT WITH x", "(MIT) AND (X)"] {
        assert!(!permits(unmet, &allowed), "{unmet}");
    }
}

#[test]
fn no_crate_is_built_in_two_versions_without_a_reason() {
    let skipped = listed("skip");
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages() {
        versions
            .entry(text(&package, "name").to_owned())
            .or_default()
            .insert(text(&package, "version").to_owned());
    }
    let mut duplicates = Vec::new();
    for (name, versions) in versions {
        let unexplained: Vec<String> = versions
            .iter()
            .map(|version| format!("{name}@{version}"))
            .filter(|id| !skipped.contains(id))
            .collect();
        if unexplained.len() > 1 {
            duplicates.push(unexplained.join(" and "));
        }
    }
    none(&duplicates, "a crate is built in two versions");
}

#[test]
fn every_dependency_is_of_crates_io() {
    let foreign: Vec<String> = packages()
        .iter()
        .filter(|p| !p["source"].is_null() && text(p, "source") != REGISTRY)
        .map(|p| text(p, "id").to_owned())
        .collect();
    none(&foreign, "a dependency is not of crates.io");
}
