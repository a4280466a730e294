//! Queries of a fleet are placed, listed and removed.

use super::processes::{Monitor, Process, ended, until};
use crate::support::run;

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
