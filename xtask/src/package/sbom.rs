//! The software bill of materials: CycloneDX 1.6 in JSON, of the crates that the program contains.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use weir_testing::output;

use super::{Program, Release, date};
use crate::{cargo, root};

/// The crates that are linked into `weir`, and the crates that each of them needs.
pub struct Crates {
    /// As `cargo metadata` describes them, in the order of name and version.
    pub packages: Vec<Value>,
    /// The direct dependencies of each package id.
    needs: BTreeMap<String, BTreeSet<String>>,
}

impl Crates {
    /// Reads them from `cargo metadata`, without those of builds and tests.
    pub fn read() -> Result<Self> {
        let platform = ["--filter-platform", "x86_64-unknown-linux-gnu"];
        let printed = output(
            cargo()
                .args(["metadata", "--locked", "--format-version", "1"])
                .args(platform),
        )?;
        let metadata: Value = serde_json::from_str(&printed)?;
        let nodes = metadata["resolve"]["nodes"]
            .as_array()
            .context("resolved packages")?;
        let graph: BTreeMap<&str, &Value> = nodes.iter().map(|n| (text(n, "id"), n)).collect();
        let mut packages = metadata["packages"].as_array().context("packages")?.clone();
        let weir = packages
            .iter()
            .find(|p| p["name"] == "weir")
            .context("package weir")?;
        let mut needs = BTreeMap::new();
        let mut open = vec![text(weir, "id").to_owned()];
        while let Some(id) = open.pop() {
            if needs.contains_key(&id) {
                continue;
            }
            let below = graph[id.as_str()]["deps"]
                .as_array()
                .context("dependencies")?;
            let below = below.iter().filter(|dependency| is_linked(dependency));
            let below: BTreeSet<String> = below.map(|d| text(d, "pkg").to_owned()).collect();
            open.extend(below.iter().cloned());
            needs.insert(id, below);
        }
        packages.retain(|package| needs.contains_key(text(package, "id")));
        packages.sort_by_key(|p| (text(p, "name").to_owned(), text(p, "version").to_owned()));
        Ok(Self { packages, needs })
    }
}

/// A text of a JSON object.
pub fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Whether a dependency is a normal one: `cargo metadata` names other kinds.
fn is_linked(dependency: &Value) -> bool {
    let kinds = dependency["dep_kinds"].as_array();
    kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
}

/// The checksums of `Cargo.lock` by name and version.
fn checksums() -> Result<BTreeMap<(String, String), String>> {
    let lock = fs::read_to_string(root().join("Cargo.lock")).context("Cargo.lock")?;
    let field = |entry: &str, key: &str| {
        let line = entry
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{key} = \"")));
        line.map(|rest| rest.trim_end_matches('"').to_owned())
    };
    let entries = lock.split("[[package]]").filter_map(|entry| {
        Some((
            (field(entry, "name")?, field(entry, "version")?),
            field(entry, "checksum")?,
        ))
    });
    Ok(entries.collect())
}

/// `weir-VERSION.cdx.json`.
pub fn write(release: &Release, _: &Program) -> Result<PathBuf> {
    let crates = &release.crates;
    let checksums = checksums()?;
    let references: BTreeMap<&str, String> = crates
        .packages
        .iter()
        .map(|p| (text(p, "id"), purl(p)))
        .collect();
    let component = |package: &Value| {
        let key = (
            text(package, "name").to_owned(),
            text(package, "version").to_owned(),
        );
        let mut component = json!({
            "type": if key.0 == "weir" { "application" } else { "library" },
            "bom-ref": purl(package),
            "purl": purl(package),
            "name": key.0,
            "version": key.1,
            "licenses": [{"expression": text(package, "license").replace('/', " OR ")}],
        });
        if let Some(checksum) = checksums.get(&key) {
            component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        component
    };
    let (weir, others): (Vec<&Value>, Vec<&Value>) =
        crates.packages.iter().partition(|p| p["name"] == "weir");
    let dependencies = crates.needs.iter().map(|(id, needs)| {
        let needs: BTreeSet<&String> = needs.iter().map(|id| &references[id.as_str()]).collect();
        json!({"ref": references[id.as_str()], "dependsOn": needs})
    });
    let bill = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": date(release, "+%Y-%m-%dT%H:%M:%SZ")?,
            "component": component(weir[0]),
            "properties": [{"name": "commit", "value": release.commit}],
        },
        "components": others.into_iter().map(component).collect::<Vec<_>>(),
        "dependencies": dependencies.collect::<Vec<_>>(),
    });
    let file = release
        .output
        .join(format!("weir-{}.cdx.json", release.version));
    fs::write(&file, format!("{bill:#}\n"))?;
    Ok(file)
}

/// The package URL of a crate (github.com/package-url/purl-spec).
fn purl(package: &Value) -> String {
    // Of build metadata (`1.7.0+v1.7.0`) the plus sign is encoded.
    let version = text(package, "version").replace('+', "%2B");
    format!("pkg:cargo/{}@{version}", text(package, "name"))
}
