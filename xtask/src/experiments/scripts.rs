//! The thesis's queries as scripts over live I/O, optionally in several copies.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::root;

/// The script of thesis query `query` over live I/O, `copies` of it together, as a file in
/// `folder`.
///
/// # Errors
/// When there is no such query, or the file cannot be written.
pub fn live(query: &str, copies: usize, folder: &Path) -> Result<std::path::PathBuf> {
    let path = root().join(format!("tests/thesis/query_{query}.cql"));
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let script = over_live(&text, copies);
    let path = folder.join(format!("query_{query}x{copies}.cql"));
    fs::write(&path, script).with_context(|| path.display().to_string())?;
    Ok(path)
}

/// A script over live I/O. Each copy has views and files of its own.
fn over_live(text: &str, copies: usize) -> String {
    let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
    let source = lines.iter().position(|l| l.starts_with("source"));
    let (table, queries) = lines.split_at(source.map_or(0, |at| at + 1));
    let mut script: Vec<String> = Vec::new();
    let is_source = |l: &&&str| l.starts_with("source");
    script.extend(
        table
            .iter()
            .filter(|l| !is_source(l))
            .map(|l| l.to_string()),
    );
    script.push("source : tap:live".into());
    let views = views(queries);
    for copy in 1..=copies {
        for line in queries {
            let mut line = line.to_string();
            for view in &views {
                line = renamed(&line, view, &format!("{view}_{copy}"));
            }
            if let Some(file) = line.strip_prefix("dest : ") {
                line = format!("dest : {copy}_{file}");
            }
            script.push(line);
        }
    }
    script.join("\n") + "\n"
}

/// The names of a script's `vtable`s.
fn views(lines: &[&str]) -> Vec<String> {
    let text = lines.join(" ");
    let after = text.split("vtable").skip(1).filter_map(|part| {
        let words = part.split(|c: char| !c.is_alphanumeric() && c != '_');
        let mut words = words.filter(|word| !word.is_empty());
        words.find(|w| w.eq_ignore_ascii_case("stream") || w.eq_ignore_ascii_case("relation"))?;
        words.next().map(String::from)
    });
    after.collect()
}

/// A text with one name, as a whole word, replaced by another.
fn renamed(text: &str, from: &str, to: &str) -> String {
    let mut out = String::new();
    let mut word = String::new();
    for c in text.chars().chain(['\n']) {
        if c.is_alphanumeric() || c == '_' {
            word.push(c);
            continue;
        }
        out += if word == from { to } else { &word };
        word.clear();
        out.push(c);
    }
    out.pop();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_share_the_source_and_nothing_else() {
        let text = "# what it is\ntable : register stream S (A integer);\nsource : file.dat\n\nvquery :\nselect * from S;\n\
                    vtable : register stream V (A integer);\nquery :\nselect * from V, S;\n\ndest : out.txt\n";
        let script = over_live(text, 2);
        assert_eq!(script.matches("source : tap:live").count(), 1);
        assert!(
            script.contains("register stream V_1 (") && script.contains("register stream V_2 (")
        );
        assert!(script.contains("from V_2, S;") && script.contains("dest : 2_out.txt"));
        assert!(!script.contains("file.dat") && !script.contains('#'));
    }
}
