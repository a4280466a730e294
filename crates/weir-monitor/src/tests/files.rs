//! Files of standing queries across restarts of the monitor.

use std::fs;
use std::path::Path;

use weir_runtime::config::parse;

use super::super::Monitor;
use super::super::config::MonitorConfig;
use super::super::registry::Registry;
use super::fleet::{Directory, START, options};

/// A row that a query has appended.
const ROW: &str = "7\n";

/// A monitor with one standing query of the configuration, and its file.
struct Files {
    directory: Directory,
    config: MonitorConfig,
    monitor: Monitor,
    registry: Registry,
}

fn open(directory: &Path, config: &MonitorConfig) -> (Monitor, Registry) {
    let mut monitor = Monitor::open(directory, options(), START).expect("a state directory");
    let registry = Registry::open(config, &mut monitor, START).expect("a state directory");
    (monitor, registry)
}

impl Files {
    fn new() -> Files {
        let directory = Directory::new();
        let text = "[[query]]\nname = \"count\"\ntext = \"select count(*) from IO\"\n\
                    [[query.sink]]\nfile = \"count.delta\"\nformat = \"delta\"\n";
        let config: MonitorConfig = parse("m.toml", text).expect("a configuration");
        let config = MonitorConfig {
            state: directory.path().to_owned(),
            ..config
        };
        let (monitor, registry) = open(directory.path(), &config);
        Files {
            directory,
            config,
            monitor,
            registry,
        }
    }

    /// Appends a row to the file.
    fn append(&self) {
        let path = self.directory.path().join("count.delta");
        let text = fs::read_to_string(&path).expect("the query has a file");
        fs::write(&path, text + ROW).expect("a temporary directory");
    }

    /// Whether the row is in the file after another start of the monitor, which was killed.
    fn has_row_after_restart(self) -> bool {
        drop((self.monitor, self.registry));
        let _restarted = open(self.directory.path(), &self.config);
        let text = fs::read_to_string(self.directory.path().join("count.delta"));
        text.expect("the query has a file").ends_with(ROW)
    }
}

#[test]
fn rows_of_a_query_without_a_checkpoint_are_written_again() {
    let files = Files::new();
    files.append();
    assert!(!files.has_row_after_restart());
}

#[test]
fn rows_of_a_query_that_has_failed_are_retained() {
    let mut files = Files::new();
    files.append();
    files
        .registry
        .end("count", "it returns too many rows", &mut files.monitor);
    assert!(files.has_row_after_restart());
}
