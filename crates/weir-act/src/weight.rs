//! The weight of a group: its share of a device that others use as well.
//!
//! A weight limits nothing while others are idle. It has an effect only with the scheduler bfq, or
//! in cgroup v2 with io.cost (Documentation/admin-guide/cgroup-v2.rst, `io.weight`;
//! Documentation/block/bfq-iosched.rst).

use std::fs;
use std::path::{Path, PathBuf};

use crate::knob::KnobSetting;
use crate::{ActError, file};

/// The name of the value.
pub const NAME: &str = "weight";

/// The weight of a group that has none.
const DEFAULT: u64 = 100;

/// The files, in the order of preference, and their greatest weight. Files of bfq exist where it is
/// the scheduler of a device, and are then what has an effect.
const FILES: [(&str, u64); 4] = [
    ("io.bfq.weight", 1_000),
    ("io.weight", 10_000),
    ("blkio.bfq.weight", 1_000),
    ("blkio.weight", 1_000),
];

/// The file of a group, if it has one.
pub fn file_of(group: &Path) -> Option<PathBuf> {
    let mut files = FILES.iter().map(|(name, _)| group.join(name));
    files.find(|path| path.exists())
}

/// The greatest weight of a file.
pub fn greatest(path: &Path) -> u64 {
    let is_it = |(name, _): &&(&str, u64)| path.file_name().is_some_and(|of| of == *name);
    FILES
        .iter()
        .find(is_it)
        .map_or(DEFAULT, |(_, greatest)| *greatest)
}

/// The present weight: the line `default`, or the only number.
///
/// # Errors
/// When the file cannot be read.
pub fn read(path: &Path) -> Result<KnobSetting, ActError> {
    let text = fs::read_to_string(path).map_err(file(path))?;
    let number = |line: &str| {
        let line = line.strip_prefix("default").unwrap_or(line).trim();
        line.parse().ok()
    };
    let weight = text.lines().find_map(number).unwrap_or(DEFAULT);
    Ok(KnobSetting::default().with(NAME, weight))
}

/// Writes the weight.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path, setting: &KnobSetting) -> Result<(), ActError> {
    fs::write(path, line(setting)).map_err(file(path))
}

/// What is written: all files accept a number alone, and apply it to every device without a weight
/// of its own.
pub fn line(setting: &KnobSetting) -> String {
    match setting.get(NAME) {
        0 => DEFAULT.to_string(),
        weight => weight.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_read_and_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("io.weight");
        fs::write(&path, "default 300\n8:0 50\n").unwrap();
        assert_eq!(file_of(folder.path()), Some(path.clone()));
        assert_eq!(read(&path).unwrap().get(NAME), 300);
        write(&path, &KnobSetting::default().with(NAME, 40)).unwrap();
        assert_eq!(read(&path).unwrap().get(NAME), 40);
        assert_eq!(greatest(&path), 10_000);
        let bfq = folder.path().join("io.bfq.weight");
        fs::write(&bfq, "100\n").unwrap();
        assert_eq!(file_of(folder.path()), Some(bfq));
    }
}
