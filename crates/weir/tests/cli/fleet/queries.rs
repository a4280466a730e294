//! Queries of a fleet are placed, listed and removed.

use super::processes::{Monitor, Process, ended, until};
use crate::support::{CommandOutput, run};

const COUNT: &str = "select host, count(*) from IO [range 1 s slide 1 s] group by host";

#[test]
fn a_query_without_clients_ends_and_a_standing_one_does_not() {
    let monitor = Monitor::configured("unwatched = \"200 ms\"\n");
    monitor.place("stays", COUNT);
    let printed = monitor.run(&["query", "--for", "1ms", COUNT]);
    assert_eq!(printed.code, 0, "{}", printed.err);
    until("it has ended", || monitor.queries().len() == 1);
    assert_eq!(monitor.queries()[0]["name"], "stays");
    let listed = monitor.run(&["fleet", "queries"]).fine();
    assert!(
        listed.contains("stays") && listed.contains("QUERY"),
        "{listed}"
    );
}

#[test]
fn who_watches_sees_a_query_end_that_is_cancelled() {
    let monitor = Monitor::start();
    monitor.place("c", COUNT);
    let watcher = monitor.begin(&["fleet", "watch", "c"]);
    until("it is watched", || monitor.queries()[0]["clients"] == 1);
    let cancelled = monitor.run(&["fleet", "cancel", "c", "--json"]).fine();
    assert_eq!(cancelled, "{\"cancelled\":\"c\"}\n");
    assert_eq!(ended(watcher).code, 0);
    assert!(monitor.queries().is_empty());
    let again = monitor.run(&["fleet", "cancel", "c"]);
    assert_eq!(again.code, 2);
    assert!(again.err.contains("there is no query `c`"), "{}", again.err);
}

#[test]
fn errors_of_a_query_are_reported_as_on_one_host() {
    let monitor = Monitor::start();
    let query = "select op, avrg(latency) from IO group by opp";
    let here = run(&["check", query]);
    // `weir fleet explain` leaves all checks to the monitor.
    let there = monitor.run(&["fleet", "explain", query]);
    assert_eq!((there.code, &there.err), (2, &here.err));
    assert!(there.err.contains("did you mean `avg`?"), "{}", there.err);
    assert_eq!(monitor.run(&["query", query]).err, here.err);
    let place = ["query", "--place", "partials", "select sector from IO"];
    let place = monitor.run(&place);
    assert_eq!(place.code, 2);
    assert!(
        place.err.contains("`partials` is not possible"),
        "{}",
        place.err
    );
    assert!(monitor.queries().is_empty());
}

#[test]
fn explain_prints_where_each_part_would_run() {
    let monitor = Monitor::start();
    let explained = monitor.run(&["fleet", "explain", COUNT]).fine();
    assert!(
        explained.contains("monitor") && explained.contains("IO"),
        "{explained}"
    );
    let json = monitor.run(&["explain", "--json", COUNT]).fine();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["strategies"].as_array().unwrap().len() == 3, "{json}");
}

#[test]
fn limits_of_queries_and_clients_are_reported_with_the_remedy() {
    let monitor =
        Monitor::configured("[limits]\nqueries = 2\nqueries_per_client = 1\nclients = 1\n");
    monitor.place("a", COUNT);
    let more = monitor.run(&["query", COUNT]);
    assert_eq!(more.code, 1);
    assert!(
        more.err.contains("limits.queries_per_client"),
        "{}",
        more.err
    );
    let watcher = monitor.begin(&["fleet", "watch", "a"]);
    until("it is watched", || monitor.queries()[0]["clients"] == 1);
    let second = monitor.run(&["fleet", "watch", "a"]);
    assert_eq!(second.code, 1);
    assert!(second.err.contains("limits.clients"), "{}", second.err);
    let taken = monitor.run(&["query", "--name", "a", COUNT]);
    assert_eq!(taken.code, 2);
    assert!(taken.err.contains("weir fleet cancel a"), "{}", taken.err);
    monitor.run(&["fleet", "cancel", "a"]).fine();
    assert_eq!(ended(watcher).code, 0);
}

#[test]
fn a_reload_takes_over_the_queries_of_the_configuration() {
    let first = "[[query]]\nname = \"one\"\ntext = \"select count(*) from hosts\"\n";
    let monitor = Monitor::configured(first);
    let names = || -> Vec<String> {
        let queries = monitor.queries();
        queries
            .iter()
            .map(|q| q["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(), ["one"]);
    let cancel = monitor.run(&["fleet", "cancel", "one"]);
    assert_eq!(cancel.code, 1);
    assert!(cancel.err.contains("configuration"), "{}", cancel.err);

    let config = monitor.home.read("monitor.toml");
    monitor
        .home
        .write("monitor.toml", &config.replace("count(*)", "cuont(*)"));
    monitor.signal("-HUP");
    until("the message is printed", || {
        monitor.printed().contains("not reloaded")
    });
    assert!(
        monitor.printed().contains("did you mean `count`?"),
        "{}",
        monitor.printed()
    );
    assert_eq!(names(), ["one"]);

    monitor
        .home
        .write("monitor.toml", &config.replace("\"one\"", "\"two\""));
    monitor.signal("-HUP");
    until("the message is printed", || {
        monitor.printed().contains("INFO reloaded: ")
    });
    assert_eq!(names(), ["two"]);
}

#[test]
fn a_state_directory_has_one_monitor() {
    let monitor = Monitor::start();
    let state = monitor.home.path().join("state");
    let listen = format!("unix:{}", monitor.home.path().join("other.sock").display());
    let args = [
        "monitor",
        "--listen",
        &listen,
        "--state",
        state.to_str().unwrap(),
    ];
    let (code, printed) = Process::start(&args).end();
    assert_eq!(code, Some(1));
    assert!(printed.contains("in use by another monitor"), "{printed}");
}

#[test]
fn a_configuration_is_checked_whole_queries_included() {
    let home = crate::support::Scratch::new();
    let text = "[[query]]\nname = \"q\"\ntext = \"select nothing from IO\"\n";
    let file = home.write("m.toml", text);
    let listen = format!("unix:{}", home.path().join("m.sock").display());
    let check = |file: &str| run(&["monitor", "--check", "--listen", &listen, "--config", file]);
    let printed = check(&file);
    assert_eq!(printed.code, 2);
    assert!(
        printed.err.contains("unknown column `nothing`"),
        "{}",
        printed.err
    );
    assert!(printed.err.contains("query `q`"), "{}", printed.err);
    let file = home.write("m.toml", &text.replace("nothing", "op"));
    assert_eq!(check(&file).code, 0);
}

#[test]
fn views_of_a_monitor_are_for_all_of_its_queries_and_outlive_it() {
    let mut monitor = Monitor::start();
    let create = "create view slow as select host, op, latency from IO where latency > 1 us";
    let created = monitor.run(&["query", create]);
    assert_eq!(created.code, 0, "{}", created.err);
    assert!(
        created
            .err
            .contains("view `slow` was created at the monitor"),
        "{}",
        created.err
    );
    let count = "select host, op, count(*) as n from slow [range 1 hour] group by host, op";
    monitor.place("counts", count);
    let shown = monitor
        .run(&["query", "--format", "json", "show queries"])
        .fine();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["name"], "counts");
    assert_eq!(monitor.run(&["explain", count]).code, 0);
    let described = monitor
        .run(&["query", "--format", "csv", "describe slow"])
        .fine();
    assert_eq!(described.lines().count(), 4, "{described}");

    // A running query keeps the view that it began with, and both outlive the monitor.
    let replaced = "create or replace view slow as select host, op, latency from IO \
                    where latency > 1 hour";
    assert_eq!(monitor.run(&["query", replaced]).code, 0);
    assert_eq!(monitor.end("-TERM").0, Some(0));
    monitor.again();
    let shown = monitor.run(&["query", "show create view slow"]).fine();
    assert!(shown.contains("latency > 1 h"), "{shown}");
    let stored = monitor.queries()[0]["query"].as_str().unwrap().to_owned();
    assert!(stored.contains("latency > 1 us"), "{stored}");
    let broken = monitor.run(&["query", "drop view nope"]);
    assert_eq!(broken.code, 2);
    assert!(
        broken.err.contains("there is no stored view"),
        "{}",
        broken.err
    );
    assert_eq!(monitor.run(&["query", "drop view slow"]).code, 0);
    let unknown = monitor.run(&["query", "--for", "1ms", count]);
    assert!(
        unknown.err.contains("unknown stream or relation `slow`"),
        "{}",
        unknown.err
    );

    // A view of the user is sent with the query that reads it.
    let library = monitor.home.path().join("mine.cql");
    std::fs::write(&library, "create view mine as select host, op from IO;").unwrap();
    let [option, address] = monitor.named();
    let args = [
        "query",
        "--for",
        "1ms",
        "--standing",
        "--name",
        "of_user",
        option,
        address,
    ];
    let mut command = crate::support::weir(&args);
    command.arg("select op, count(*) from mine [range 1 hour] group by op");
    let placed = CommandOutput::of(command.env("WEIR_VIEWS", &library).output().unwrap());
    assert_eq!(placed.code, 0, "{}", placed.err);
    let queries = monitor.queries();
    let of_user = queries.iter().find(|q| q["name"] == "of_user").unwrap();
    assert!(
        of_user["query"]
            .as_str()
            .unwrap()
            .contains("CREATE VIEW mine"),
        "{of_user}"
    );
}
