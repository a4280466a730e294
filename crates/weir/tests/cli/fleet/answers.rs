//! The result of a fleet equals that of one host that observes everything.

use super::processes::{Monitor, dealt, ended, until, without_instants};
use crate::support::{interrupt, run};

/// A relation over all rows.
const BY_OP: &str =
    "select op, count(*), sum(bytes), max(sector), avg(latency) from IO group by op";

#[test]
fn a_fleet_answers_as_one_host_does_that_sees_everything() {
    let monitor = Monitor::start();
    let (all, parts) = dealt(&monitor.home, 900);
    let one = |query: &str| {
        let args = ["query", "--from", &all, "--final", "--format", "csv", query];
        run(&args).fine()
    };
    // Rows older than an hour do not exist here, and a query that is merged from partial results
    // needs a slide.
    let sliding = BY_OP.replace("from IO", "from IO [range 1 hour slide 1 s]");
    for (way, query) in [("rows", BY_OP), ("partials", &sliding)] {
        let args = ["query", "--standing", "--name", way, "--for", "1ms"];
        let placed = monitor.run(&[&args[..], &["--place", way, query]].concat());
        assert_eq!(placed.code, 0, "{}", placed.err);
    }
    let hosts = "select host, count(*) from IO group by host";
    monitor.place("hosts", hosts);
    let _agents = monitor.agents(&parts);
    let expected = one(BY_OP);
    for way in ["rows", "partials"] {
        let mut shown = String::new();
        until("the answer is out", || {
            shown = monitor.holds(way);
            without_instants(&shown) == without_instants(&expected)
        });
    }
    let by_host = ["a,300", "b,300", "c,300", "host,count(*)"];
    until("each host is named", || {
        without_instants(&monitor.holds("hosts")) == by_host
    });
    for query in monitor.queries() {
        assert_eq!(
            (&query["rows_lost"], &query["rows_late"]),
            (&0.into(), &0.into())
        );
    }
}

#[test]
fn what_agents_hold_when_they_end_is_in_the_answer() {
    let monitor = Monitor::start();
    let (all, parts) = dealt(&monitor.home, 900);
    let expected = run(&["query", "--from", &all, "--final", "--format", "csv", BY_OP]).fine();
    let sliding = BY_OP.replace("from IO", "from IO [range 1 hour slide 1 s]");
    let by_host = "select host, count(*) from IO [range 1 hour slide 1 s] group by host";
    for (way, query) in [("partials", &sliding[..]), ("rows", by_host)] {
        let args = ["query", "--standing", "--name", way, "--for", "1ms"];
        let placed = monitor.run(&[&args[..], &["--place", way, query]].concat());
        assert_eq!(placed.code, 0, "{}", placed.err);
    }
    for mut agent in monitor.agents_with(&parts, &["--once"]) {
        let (code, printed) = agent.end();
        assert_eq!(code, Some(0), "{printed}");
    }
    until("the answer is out", || {
        without_instants(&monitor.holds("partials")) == without_instants(&expected)
    });
    until("each host is named", || {
        let by_host = ["a,300", "b,300", "c,300", "host,count(*)"];
        without_instants(&monitor.holds("rows")) == by_host
    });
    for query in monitor.queries() {
        let counted = ["rows_lost", "rows_late", "hosts", "hosts_responded"].map(|key| &query[key]);
        assert_eq!(counted, [0, 0, 3, 3], "{query}");
    }
}

#[test]
fn a_later_client_receives_the_whole_relation() {
    let monitor = Monitor::start();
    let (_, parts) = dealt(&monitor.home, 300);
    monitor.place("ops", "select op, count(*) from IO group by op");
    let watch = ["fleet", "watch", "ops", "--format", "csv", "--final"];
    let early = monitor.begin(&watch);
    until("it is watched", || monitor.queries()[0]["clients"] == 1);
    let _agents = monitor.agents(&parts[..1]);
    let expected = ["op,count(*)", "r,75", "w,25"];
    until("it is out", || {
        without_instants(&monitor.holds("ops")) == expected
    });
    let late = monitor.begin(&watch);
    until("two watch", || monitor.queries()[0]["clients"] == 2);
    for watcher in [early, late] {
        interrupt(&watcher);
        let printed = ended(watcher);
        assert_eq!(printed.code, 130);
        assert_eq!(without_instants(&printed.out), expected, "{}", printed.err);
        assert!(
            printed.err.contains("no requests lost or late"),
            "{}",
            printed.err
        );
    }
}

#[test]
fn a_parquet_file_is_whole_when_its_query_is_cancelled() {
    let monitor = Monitor::start();
    let (all, _) = dealt(&monitor.home, 40);
    let query = "select sector, op, bytes from IO";
    let path = monitor.home.path().join("rows.parquet");
    let args = [
        "query",
        "--name",
        "rows",
        "-o",
        path.to_str().unwrap(),
        query,
    ];
    let to_file = monitor.begin(&args);
    until("it is watched", || {
        monitor.queries().first().is_some_and(|q| q["clients"] == 1)
    });
    let _agents = monitor.agents(&[all]);
    until("all rows are out", || {
        monitor.queries()[0]["rows_out"] == 40
    });
    let cancelled = monitor.run(&["fleet", "cancel", "rows"]);
    assert_eq!(cancelled.code, 0, "{}", cancelled.err);
    assert_eq!(ended(to_file).code, 0, "whoever watches sees it end");
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
}

#[test]
fn headings_have_the_units_of_one_host() {
    let monitor = Monitor::start();
    let (all, parts) = dealt(&monitor.home, 30);
    let query = "select op, max(y) / 2 as half, max(bytes) as b, max(x) as z, max(x) / 1000 as ms \
        from (select op, latency as y, bytes, latency * 1e-3 as x from IO) as t group by op";
    let format = ["--format", "csv", "--units"];
    let here = ["query", "--final", "--from", &all, query];
    let here = run(&[&here[..], &format].concat()).fine();
    let heading = "instant,op,half [ns],b [B],z [us],ms";
    assert_eq!(here.lines().next(), Some(heading), "{here}");
    assert!(
        here.contains("r,250000") && here.contains(",500.0,0.5"),
        "{here}"
    );

    monitor.place("units", query);
    let _agents = monitor.agents(&parts);
    let watch = ["fleet", "watch", "units", "--final", "--for", "300ms"];
    let mut there = String::new();
    until("the answer is out", || {
        there = monitor.run(&[&watch[..], &format].concat()).fine();
        without_instants(&there) == without_instants(&here)
    });
    assert_eq!(there.lines().next(), Some(heading));
}
