//! A short soak: every fault once, and the counts are exact at the end.

use std::fs;
use std::path::Path;
use std::process::Command;

use weir_testing::{LoopDisk, Scratch, TestHost, is_root, skipped};

#[test]
fn counts_are_exact_and_nothing_is_left_after_each_fault() {
    const TEST: &str = "counts_are_exact_and_nothing_is_left_after_each_fault";
    let xtask = Path::new(env!("CARGO_BIN_EXE_xtask"));
    let weir = xtask.with_file_name("weir");
    if !is_root() {
        return skipped(TEST, "needs root");
    }
    if !weir.is_file() {
        return skipped(TEST, "the tests of the whole workspace build weir");
    }
    let devices = LoopDisk::new(1).and_then(|disk| Ok((disk, TestHost::new()?)));
    if let Err(why) = devices {
        return skipped(TEST, format!("{why:#}"));
    }
    let query = ["query", "--for", "10ms", "select op from IO"];
    let observed = Command::new(&weir).args(query).output().unwrap();
    if !observed.status.success() {
        return skipped(TEST, String::from_utf8_lossy(&observed.stderr));
    }
    let scratch = Scratch::new();
    let report = scratch.file("report");
    let output = Command::new(xtask)
        .args(["soak", "--for", "20s", "--seed", "1", "--without-guest"])
        .args(["--report", &report])
        .arg("--weir")
        .arg(weir)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    let page = fs::read_to_string(format!("{report}/soak.md")).unwrap_or_default();
    assert!(output.status.success(), "{printed}\n{page}");
    let faults = page.split("## Faults").nth(1).unwrap();
    let faults = faults.split("## Resources").next().unwrap();
    let kinds = faults
        .lines()
        .filter(|line| line.starts_with("| ") && !line.contains("---"));
    // The first line is the heading.
    assert_eq!(kinds.count() - 1, 11, "each kind: {faults}");
    let image = fs::read_to_string(format!("{report}/soak.svg")).unwrap();
    assert!(image.contains("<polyline"), "{image}");
}
