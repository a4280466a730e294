//! DESCRIBE, SHOW, and the library of views of a user.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::support::{CommandOutput, Scratch, requests, weir};

/// A user with a library, and a trace of 100 requests.
struct User {
    home: Scratch,
    trace: String,
}

impl User {
    fn new() -> User {
        let home = Scratch::new();
        let trace = home.write("trace.csv", &requests(100));
        User { home, trace }
    }

    /// The file of the library, where XDG_DATA_HOME has it.
    fn library(&self) -> PathBuf {
        self.home.path().join("weir/views.cql")
    }

    fn run(&self, args: &[&str]) -> CommandOutput {
        let mut command = weir(args);
        command
            .env("XDG_DATA_HOME", self.home.path())
            .env_remove("WEIR_VIEWS");
        CommandOutput::of(command.output().expect("weir runs"))
    }

    fn query(&self, text: &str) -> CommandOutput {
        self.run(&["query", "--from", &self.trace, "--final", text])
    }

    /// The rows of a result.
    fn rows(&self, text: &str) -> Vec<Value> {
        let query = ["query", "--from", &self.trace, "--final"];
        let printed = self.run(&[&query[..], &["--format", "json", text]].concat());
        let printed = printed.fine();
        let row = |line: &str| serde_json::from_str(line).unwrap();
        printed.lines().map(row).collect()
    }

    /// A column of a result.
    fn column(&self, text: &str, name: &str) -> Vec<String> {
        let rows = self.rows(text);
        let text = |row: &Value| row[name].as_str().expect("a text").to_owned();
        rows.iter().map(text).collect()
    }
}

#[test]
fn describe_has_the_columns_that_a_query_has() {
    let user = User::new();
    for (source, query) in [
        ("IO", "select * from IO [rows 1]"),
        (
            "(select op, avg(latency) as a, count(*) as n from IO group by op)",
            "select op, avg(latency) as a, count(*) as n from IO group by op",
        ),
    ] {
        let described = user.column(&format!("describe {source}"), "column");
        let headed = user.run(&[
            "query",
            "--from",
            &user.trace,
            "--final",
            "--format",
            "csv",
            query,
        ]);
        let headed = headed.fine();
        let heading = headed.lines().next().expect("a heading");
        // The content of a window over a stream has the instant too.
        let heading = heading.strip_prefix("instant,").unwrap_or(heading);
        assert_eq!(described.join(","), heading, "{source}");
    }
    // The list of the command has the same columns, units and descriptions.
    let listed = user.run(&["streams", "IO", "--json"]).fine();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let described = user.rows("DESC io");
    for (listed, described) in listed[0]["columns"]
        .as_array()
        .unwrap()
        .iter()
        .zip(&described)
    {
        assert_eq!(listed["name"], described["column"]);
        assert_eq!(listed["type"], described["type"]);
        assert_eq!(listed["doc"], described["description"]);
        assert_eq!(listed["unit"], described["unit"].as_str().unwrap_or(""));
    }
    let view = "create view v (a, b) as select op, bytes from IO; describe v";
    assert_eq!(user.column(view, "column"), ["a", "b"]);
    assert_eq!(user.rows(view)[1]["unit"], "B");
    let view = "create view vms (a) as select op from IO; describe VMs";
    assert_eq!(user.column(view, "column"), ["a"]);
    let unknown = user.query("describe IOO");
    assert_eq!(unknown.code, 2);
    assert!(
        unknown.err.contains("did you mean `IO`?"),
        "{}",
        unknown.err
    );
}

#[test]
fn show_lists_what_queries_can_use() {
    let user = User::new();
    let functions = user.column("show functions like 'percentile%'", "name");
    assert_eq!(functions, ["percentile_cont", "percentile_disc"]);
    let all = user.rows("show functions").len();
    let listed = user.run(&["functions", "--json"]).fine();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(all, listed.as_array().unwrap().len());
    // What a recording has, not what the host has.
    let streams = user.column("show streams", "name");
    assert!(streams.contains(&"IO".to_owned()), "{streams:?}");
    assert!(!streams.contains(&"blockstats".to_owned()), "{streams:?}");
    let queries = user.query("show queries");
    assert_eq!(queries.code, 2);
    assert!(queries.err.contains("--monitor"), "{}", queries.err);
    for (text, found) in [
        ("show tables", "expected STREAMS, VIEWS, FUNCTIONS, QUERIES"),
        ("show streams; select op from IO", "are not queries"),
        ("drop view v; select op from IO", "not part of a query"),
        ("show create view v", "there is no stored view `v`"),
    ] {
        let refused = user.query(text);
        assert_eq!(refused.code, 2, "{text}: {}", refused.out);
        assert!(refused.err.contains(found), "{text}: {}", refused.err);
    }
    // Other commands run queries only.
    let checked = user.run(&["check", "describe IO"]);
    assert_eq!(checked.code, 2);
    assert!(checked.err.contains("are not queries"), "{}", checked.err);
}

#[test]
fn a_stored_view_is_read_by_later_queries_of_every_command() {
    let user = User::new();
    let created = user.query("create view reads as select ts, op, bytes from IO where op = 'r'");
    assert_eq!(created.code, 0, "{}", created.err);
    assert!(
        created.err.contains("view `reads` was created"),
        "{}",
        created.err
    );
    user.query("create view per_op (o, n) as select op, count(*) from Reads group by op")
        .fine();
    let direct = "select op as o, count(*) as n from IO where op = 'r' group by op";
    assert_eq!(user.rows("select * from per_op"), user.rows(direct));
    assert!(!user.rows(direct).is_empty());
    let text = fs::read_to_string(user.library()).unwrap();
    assert_eq!(
        text,
        "CREATE VIEW reads AS SELECT ts, op, bytes FROM IO WHERE op = 'r';\n\
         CREATE VIEW per_op (o, n) AS SELECT op, count(*) FROM Reads GROUP BY op;\n"
    );
    assert_eq!(user.column("show views", "name"), ["per_op", "reads"]);
    assert_eq!(user.column("describe per_op", "column"), ["o", "n"]);
    let watched = user.run(&["watch", "--from", &user.trace, "select * from per_op"]);
    assert_eq!(watched.code, 0, "{}", watched.err);
    for command in ["check", "explain"] {
        let found = user.run(&[command, "select * from per_op"]);
        assert_eq!(found.code, 0, "{command}: {}", found.err);
    }
    // A view of the text hides the one of the library.
    let own = "create view reads as select op from IO where op = 'w'; select op from reads";
    assert!(user.column(own, "op").iter().all(|op| op == "w"));
    // It is part of the text that is stored.
    let with_query = "create view mine as select op from IO; select op from mine";
    user.query(with_query).fine();
    assert!(
        !user
            .column("show views", "name")
            .contains(&"mine".to_owned())
    );
}

#[test]
fn a_view_that_others_read_is_not_broken() {
    let user = User::new();
    for text in [
        "create view a as select op, bytes from IO",
        "create view b as select op, sum(bytes) as n from a group by op",
    ] {
        user.query(text).fine();
    }
    let before = fs::read_to_string(user.library()).unwrap();
    for (text, found) in [
        ("drop view a", "become invalid: `b`"),
        (
            "create or replace view a as select op from IO",
            "become invalid: `b`",
        ),
        ("create view a as select op from IO", "OR REPLACE"),
        (
            "create view IO as select op from IO",
            "is a stream or relation",
        ),
        ("create view c as select nope from IO", "unknown column"),
        (
            "create or replace view a as select op, n as bytes from b",
            "invalid",
        ),
        ("drop view nope", "there is no stored view"),
        ("drop view b; drop view nope", "there is no stored view"),
    ] {
        let refused = user.query(text);
        assert_eq!(refused.code, 2, "{text}: {}", refused.err);
        assert!(refused.err.contains(found), "{text}: {}", refused.err);
        let now = fs::read_to_string(user.library()).unwrap();
        assert_eq!(now, before, "{text}");
    }
    user.query("create or replace view a as select op, bytes, ts from IO")
        .fine();
    user.query("drop view if exists nope; drop view b; drop view a")
        .fine();
    assert_eq!(fs::read_to_string(user.library()).unwrap(), "");
}

#[test]
fn a_library_that_was_edited_is_reported_where_it_is_wrong() {
    let user = User::new();
    user.query("create view a as select op from IO").fine();
    let library = user.library();
    // Views that read each other.
    let text =
        "-- mine\ncreate view a as select op from b;\n\ncreate view b as select op from a;\n";
    fs::write(&library, text).unwrap();
    let found = user.query("select * from a");
    assert_eq!(found.code, 2);
    assert!(found.err.contains("it reads itself"), "{}", found.err);
    fs::write(&library, "create view a as\nselec op from IO;\n").unwrap();
    for text in [
        "select * from a",
        "create view c as select op from IO",
        "show views",
    ] {
        let found = user.query(text);
        assert_ne!(found.code, 0, "{text}");
        assert!(
            found.err.contains("library of views is damaged"),
            "{}",
            found.err
        );
        let place = format!("{}:2", library.display());
        assert!(found.err.contains(&place), "{}", found.err);
    }
    let kept = fs::read_to_string(&library).unwrap();
    assert!(kept.contains("selec op"), "nothing is lost: {kept}");
    // What needs no view does not read the library.
    user.query("select count(*) from IO").fine();
    fs::write(&library, "select op from IO").unwrap();
    let found = user.query("select * from a");
    assert!(
        found.err.contains("CREATE VIEW statements only"),
        "{}",
        found.err
    );
}

#[test]
fn views_that_are_created_at_once_are_all_stored() {
    let user = User::new();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let user = &user;
            scope.spawn(move || {
                let text = format!("create view v{number} as select op from IO");
                user.query(&text).fine();
            });
        }
    });
    let mut names = user.column("show views", "name");
    names.sort();
    let expected: Vec<String> = (0..8).map(|number| format!("v{number}")).collect();
    assert_eq!(names, expected);
}
