//! The report of `weir characterise --json` on a recording, and assertions on it.

use std::path::Path;

use serde_json::Value;
use weir_testing::MemoryFolder;
use weir_testing::workload::{Workload, record};

use crate::{skip, turn, weir};

/// The report on one disk.
pub struct Profile(pub Value);

/// The reports on the disks of some workloads, each of which has one; logs the reason and returns
/// `None` where they cannot run.
pub fn judged(test: &str, workloads: &[Workload]) -> Option<Vec<Profile>> {
    let _turn = turn(test)?;
    let folder = MemoryFolder::new(64).unwrap();
    let recording = folder.path().join("recording.parquet");
    let disks = match record(workloads, weir(), &recording) {
        Ok(disks) => disks,
        Err(why) => return skip(test, why),
    };
    let report = characterise(&recording);
    let profiles = report["profiles"].as_array().unwrap();
    assert_eq!(profiles.len(), disks.len(), "each disk was at work");
    let of = |disk| {
        let is_it = |profile: &&Value| profile["subject"]["pdisk"] == disk;
        Profile(profiles.iter().find(is_it).unwrap().clone())
    };
    Some(disks.into_iter().map(of).collect())
}

/// The report on a recording.
pub fn characterise(recording: &Path) -> Value {
    let recording = recording.to_str().unwrap();
    let output = std::process::Command::new(weir())
        .args(["characterise", "--json", "--from", recording])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

impl Profile {
    /// The label of the verdict.
    pub fn label(&self) -> &str {
        let label = &self.0["verdict"]["label"];
        label
            .as_str()
            .unwrap_or_else(|| panic!("no verdict: {self}"))
    }

    /// A number, by its path with dots as separators.
    pub fn number(&self, path: &str) -> f64 {
        let pointer = format!("/{}", path.replace('.', "/"));
        let value = self.0.pointer(&pointer).and_then(Value::as_f64);
        value.unwrap_or_else(|| panic!("no number {path}: {self}"))
    }

    /// The most frequent size of requests of class `all`, `reads` or `writes`, and its share.
    pub fn size(&self, class: &str) -> (f64, f64) {
        let at = |field: &str| self.number(&format!("sizes.{class}.dominant.0.{field}"));
        (at("bytes"), at("share"))
    }

    /// Asserts that a number is within a range.
    pub fn within(&self, path: &str, range: std::ops::RangeInclusive<f64>) {
        let number = self.number(path);
        assert!(range.contains(&number), "{path} is {number}: {self}");
    }
}

impl std::fmt::Display for Profile {
    /// The evidence of the verdict, for a test that failed.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for part in ["verdict", "mix", "order", "sizes"] {
            writeln!(f, "{part}: {}", self.0[part])?;
        }
        Ok(())
    }
}
