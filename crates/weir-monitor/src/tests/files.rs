//! Files of standing queries across restarts of the monitor.

use std::fs;
use std::path::Path;

use weir_model::Nanos;
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

/// The query in the files.
const COUNT: &str = "select count(*) from IO";

/// The configuration of a query with these files.
fn config(directory: &Directory, query: &str, files: &[&str]) -> MonitorConfig {
    let mut text = format!("[[query]]\nname = \"count\"\ntext = \"{query}\"\n");
    for file in files {
        let format = file.rsplit('.').next().unwrap_or_default();
        text += &format!("[[query.sink]]\nfile = \"{file}\"\nformat = \"{format}\"\n");
    }
    let config: MonitorConfig = parse("m.toml", &text).expect("a configuration");
    MonitorConfig {
        state: directory.path().to_owned(),
        ..config
    }
}

impl Files {
    fn new() -> Files {
        let directory = Directory::new();
        let config = config(&directory, COUNT, &["count.delta"]);
        let (monitor, registry) = open(directory.path(), &config);
        Files {
            directory,
            config,
            monitor,
            registry,
        }
    }

    /// The monitor is killed and starts again, with these files of the query.
    fn restart_with(self, files: &[&str]) -> Files {
        let config = config(&self.directory, COUNT, files);
        Files { config, ..self }.restart()
    }

    /// The monitor is killed and starts again.
    fn restart(self) -> Files {
        drop((self.monitor, self.registry));
        let (monitor, registry) = open(self.directory.path(), &self.config);
        Files {
            monitor,
            registry,
            ..self
        }
    }

    /// The configuration is changed to this query and these files.
    fn reload(&mut self, query: &str, files: &[&str], now: Nanos) {
        self.config = config(&self.directory, query, files);
        let (config, monitor) = (&self.config, &mut self.monitor);
        let reloaded = self.registry.reload(config, monitor, now);
        reloaded.expect("a state directory");
    }

    /// The instant after which the query receives rows, and the time at which it started.
    fn start(&self) -> (Nanos, Nanos) {
        let (_, query) = self.monitor.queries().next().expect("it runs");
        (query.from, query.since)
    }

    /// Appends a row to the file.
    fn append(&self) {
        self.append_to("count.delta");
    }

    fn append_to(&self, file: &str) {
        let path = self.directory.path().join(file);
        let text = fs::read_to_string(&path).expect("the query has a file");
        fs::write(&path, text + ROW).expect("a temporary directory");
    }

    /// How many rows are in a file.
    fn rows_of(&self, file: &str) -> usize {
        let text = fs::read_to_string(self.directory.path().join(file));
        text.expect("the query has a file").matches(ROW).count()
    }

    /// Whether a file was added to the query at this size.
    fn is_added_at(&self, bytes: u64) -> bool {
        let stored = fs::read(self.directory.path().join("standing.json"));
        let stored: serde_json::Value =
            serde_json::from_slice(&stored.expect("there are queries")).expect("JSON");
        stored[0]["added"]["files"][0]["bytes"] == bytes
    }

    /// A file that the query does not have has a row.
    fn append_new(&self, file: &str) {
        fs::write(self.directory.path().join(file), ROW).expect("a temporary directory");
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
fn rows_of_an_added_file_are_written_again_until_a_checkpoint_has_it() {
    for (more, had_rows) in [("delta", false), ("delta", true), ("csv", false)] {
        let more = format!("more.{more}");
        let both = ["count.delta", &more];
        let mut files = Files::new();
        files.monitor.save_and_wait(START);
        if had_rows {
            // It is from another query.
            files.append_new(&more);
        }
        let before = usize::from(had_rows);
        let mut files = files.restart_with(&both);
        files.append_to(&more);
        assert_eq!(files.rows_of(&more), before + 1);
        for _ in 0..2 {
            files = files.restart_with(&both);
            assert_eq!(files.rows_of(&more), before, "{more} without a checkpoint");
            // A new one is new once more: it begins with the content of its relation.
            assert_eq!(files.is_added_at(0), !had_rows, "{more}");
            files.append_to(&more);
        }
        files.monitor.save_and_wait(START);
        files.append_to(&more);
        let files = files.restart_with(&both);
        assert_eq!(files.rows_of(&more), before + 1, "with a checkpoint");
        // What is no longer a file of the query keeps its rows, also when it is one again.
        let mut files = files.restart_with(&both[..1]);
        files.monitor.save_and_wait(START);
        files.append_to(&more);
        let files = files.restart_with(&both);
        assert_eq!(files.rows_of(&more), before + 2, "a file of another");
    }
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

#[test]
fn a_file_that_cannot_be_written_leaves_the_others_as_they_are() {
    let mut files = Files::new();
    files.monitor.save_and_wait(START);
    files.append();
    let folder = files.directory.path().join("folder.csv");
    fs::create_dir(folder).expect("a temporary directory");
    let files = files.restart_with(&["count.delta", "folder.csv"]);
    assert_eq!(files.rows_of("count.delta"), 1);
}

#[test]
fn a_query_that_replaces_another_one_leaves_its_rows() {
    let sums = "select host, sum(bytes) from IO group by host";
    let both = ["count.delta", "more.delta"];
    for (query, names) in [(sums, &both[..1]), (sums, &both), (COUNT, &both)] {
        let mut files = Files::new();
        files.monitor.tick(START + 15);
        files.monitor.save_and_wait(START + 15);
        files.monitor.tick(START + 30);
        files.append();
        files.reload(query, names, START + 30);
        let start = files.start();
        assert!(start.0 > files.monitor.saved_to[0], "{start:?}");
        for _ in 0..2 {
            // The new query's rows, which are sent again.
            names.iter().for_each(|name| files.append_to(name));
            files = files.restart();
            assert_eq!(files.start(), start, "{query}");
            assert_eq!(files.rows_of("count.delta"), 1, "{query}");
            let more = names.iter().skip(1).map(|name| files.rows_of(name));
            assert_eq!(more.sum::<usize>(), 0, "{query}");
        }
        let running = files.monitor.queries().next().expect("it runs").1;
        assert!(running.pending.is_some(), "it starts where it did before");
        files.monitor.tick(START + 60);
        files.monitor.save_and_wait(START + 60);
        names.iter().for_each(|name| files.append_to(name));
        let files = files.restart();
        // It continues, without what it had received: no window bounds that.
        assert_eq!(files.start().1, start.1, "{query}");
        assert_eq!(files.rows_of("count.delta"), 1, "{query}");
    }
}

#[test]
fn a_query_that_fails_does_not_continue_with_the_state_of_the_one_before_it() {
    let mut files = Files::new();
    files.monitor.tick(START + 15);
    files.monitor.save_and_wait(START + 15);
    files.append();
    let now = START + 30;
    files.monitor.tick(now);
    files.reload(
        "select host, sum(bytes) from IO group by host",
        &["count.delta"],
        now,
    );
    let since = files.start().1;
    let failed = "it returns too many rows";
    files.registry.end("count", failed, &mut files.monitor);
    let files = files.restart();
    assert_eq!(files.rows_of("count.delta"), 1);
    assert_ne!(files.start().1, since);
}

#[test]
fn a_query_does_not_continue_with_the_state_of_a_removed_one() {
    let mut files = Files::new();
    files.monitor.save_and_wait(START);
    files.append();
    let without_query = MonitorConfig {
        queries: Vec::new(),
        ..files.config.clone()
    };
    let with_query = std::mem::replace(&mut files.config, without_query);
    let reloaded = files
        .registry
        .reload(&files.config, &mut files.monitor, START + 5);
    reloaded.expect("a state directory");
    files.config = with_query;
    let files = files.restart();
    assert_eq!(files.rows_of("count.delta"), 1);
}

#[test]
fn a_query_from_before_starts_were_stored_continues() {
    let mut files = Files::new();
    files.monitor.save_and_wait(START);
    let path = files.directory.path().join("standing.json");
    let stored = fs::read(&path).expect("there are queries");
    let mut stored: serde_json::Value = serde_json::from_slice(&stored).expect("JSON");
    let query = stored[0].as_object_mut().expect("a query");
    assert!(query.remove("from").is_some());
    // It had failed before.
    query.insert("since".to_owned(), (START - 7).into());
    fs::write(&path, stored.to_string()).expect("a temporary directory");
    let start = files.start();
    files.append();
    let files = files.restart();
    assert_eq!((files.start(), files.rows_of("count.delta")), (start, 0));
}
