//! The licences of the crates in the program, with their texts: what MIT, BSD and Apache-2.0
//! require of a distributed binary.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::sbom::{Crates, text};

/// The beginnings of the names of files with licence texts.
const NAMES: [&str; 4] = ["LICENSE", "LICENCE", "COPYING", "NOTICE"];

/// The C libraries in crates: directories with licence texts of their own.
const INSIDE: [&str; 4] = ["libbpf", "elfutils", "zlib", "zstd"];

/// A list of the crates, and each text once with the crates it belongs to.
pub fn texts(crates: &Crates) -> Result<String> {
    let mut list = String::from("The program weir contains these crates.\n\n");
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in &crates.packages {
        // The crates of weir have the licence of the repository.
        if package["source"].is_null() {
            continue;
        }
        let name = format!("{} {}", text(package, "name"), text(package, "version"));
        writeln!(list, "{name}: {}", text(package, "license"))?;
        let manifest = PathBuf::from(text(package, "manifest_path"));
        let directory = manifest.parent().context("a manifest is in a directory")?;
        for file in files(directory)? {
            // Notes of some crates are not UTF-8.
            let content = String::from_utf8_lossy(&fs::read(&file)?).trim().to_owned();
            texts.entry(content).or_default().insert(name.clone());
        }
    }
    for (content, names) in texts {
        let names: Vec<String> = names.into_iter().collect();
        write!(
            list,
            "\n{}\n{}:\n\n{content}\n",
            "=".repeat(72),
            names.join(", ")
        )?;
    }
    Ok(list)
}

/// The files with licence texts of a crate, in the order of their names.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let inside = INSIDE.map(|name| directory.join(name));
    for directory in [directory.to_path_buf()].iter().chain(&inside) {
        for entry in fs::read_dir(directory).into_iter().flatten() {
            let path = entry?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .to_uppercase();
            if path.is_file() && NAMES.iter().any(|start| name.starts_with(start)) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
