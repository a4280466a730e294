//! The files for Prometheus and Grafana in `packaging/prometheus`.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Scratch, skipped};

/// Their folder.
const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/prometheus");

/// Runs `promtool ARGS` in the folder of these files; `None` if it is not installed.
fn promtool(test: &str, args: &[&str]) -> Option<()> {
    let output = Command::new("promtool")
        .args(args)
        .current_dir(PACKAGING)
        .output();
    let Ok(output) = output else {
        skipped(test, "promtool is not installed (package prometheus)");
        return None;
    };
    let words = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {args:?}: {words}");
    Some(())
}

#[test]
fn promtool_accepts_the_rules_and_alerts_and_their_tests_pass() {
    let test = "promtool_accepts_the_rules_and_alerts_and_their_tests_pass";
    for (rules, tests) in [
        ("weir-rules.yml", "weir-rules-test.yml"),
        ("weir-fleet-rules.yml", "weir-fleet-rules-test.yml"),
    ] {
        if promtool(test, &["check", "rules", rules]).is_some() {
            promtool(test, &["test", "rules", tests]);
        }
    }
}

/// Asserts that the panels of a dashboard do not overlap, and that each expression is correct and
/// has metrics of weir only if they are served.
pub fn shows_only(test: &str, file: &str, is_served: impl Fn(&str) -> bool) {
    let dashboard = fs::read_to_string(format!("{PACKAGING}/{file}")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let of_grid = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(of_grid("x") + of_grid("w") <= 24, "{panel}");
        for x in of_grid("x")..of_grid("x") + of_grid("w") {
            assert!(taken.insert((x, of_grid("y"))), "{panel} overlaps another");
        }
        for target in panel["targets"].as_array().unwrap() {
            let mut expr = target["expr"].as_str().unwrap().to_owned();
            for word in served_by_weir(&expr) {
                assert!(is_served(word), "{file}: {word} is not a metric");
            }
            for (variable, value) in [
                ("$__rate_interval", "5m"),
                ("$vdisk", ".*"),
                ("$vm", ".*"),
                ("$host", ".*"),
            ] {
                expr = expr.replace(variable, value);
            }
            let record = format!("panel_{}", panel["id"]);
            rules += &format!("  - record: {record}\n    expr: {}\n", json!(expr));
        }
    }
    let scratch = Scratch::new();
    promtool(
        test,
        &["check", "rules", &scratch.write("rules.yml", &rules)],
    );
}

/// Asserts that the alerts and rules of a file have metrics of weir only if they are served.
pub fn rules_have_only(file: &str, is_served: impl Fn(&str) -> bool) {
    let rules = fs::read_to_string(format!("{PACKAGING}/{file}")).unwrap();
    let words: Vec<&str> = served_by_weir(&rules).collect();
    assert!(!words.is_empty(), "{file}");
    for word in words {
        assert!(is_served(word), "{file}: {word} is not a metric");
    }
}

/// The names of the metrics in the text of a scrape.
pub fn names(scraped: &str) -> Vec<&str> {
    let types = scraped.lines();
    let types = types.filter_map(|line| line.strip_prefix("# TYPE "));
    types.filter_map(|line| line.split(' ').next()).collect()
}

/// The words of a text that are names of weir's metrics.
fn served_by_weir(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("weir_"))
}
