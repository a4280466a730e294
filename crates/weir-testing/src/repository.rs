//! The files of the repository, for the tests that check them.

use std::fs;
use std::path::Path;
use std::process::Command;

/// The root of the repository, independent of the current directory.
pub fn root() -> &'static Path {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.expect("this crate is in `crates`")
}

/// The files whose paths have this ending, relative to the root: those that git tracks, and new
/// ones that it does not ignore.
///
/// # Panics
/// When git fails.
pub fn tracked(ending: &str) -> Vec<String> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(listed.status.success(), "git ls-files fails");
    let text = String::from_utf8(listed.stdout).expect("paths are UTF-8");
    text.lines()
        .filter(|path| path.ends_with(ending) && root().join(path).is_file())
        .map(str::to_owned)
        .collect()
}

/// The text of a file, whose path is relative to the root.
///
/// # Panics
/// When it cannot be read.
pub fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Fails with every finding at once.
///
/// # Panics
/// When there are findings.
pub fn none(findings: &[String], rule: &str) {
    assert!(findings.is_empty(), "{rule}:\n{}", findings.join("\n"));
}
