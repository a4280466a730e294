//! Scripts in STREAM's format whose queries run at a monitor.

use std::fs;
use std::path::Path;

use super::processes::{Monitor, ended, sorted, until};
use crate::support::{Scratch, interrupt, requests, run};

/// The line of the thesis's script that names the source of its rows.
const THESIS_SOURCE: &str = "source : table_3_3.dat";

/// A script of two queries, one of which reads a third.
const TWO: &str = "vquery : select Sector, Size from IOstream where Type = \"R\";\n\
    vtable : register stream Responses (Place integer, Length integer);\n\
    query : select count(*), sum(Length) from Responses;\n\
    query : select max(Place) from Responses [range 3000000 second];\ndest : places\n";

/// A script of the thesis with another source.
fn thesis(home: &Scratch, name: &str, source: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/thesis");
    let text = fs::read_to_string(folder.join(name)).unwrap();
    assert!(text.contains(THESIS_SOURCE));
    home.write(
        name,
        &text.replace(THESIS_SOURCE, &format!("source : {source}")),
    )
}

/// The first `most` rows of the output, without their instants.
fn came(text: &str, most: usize) -> Vec<&str> {
    let rows = text.lines().filter_map(|line| line.split_once("]:+:"));
    rows.map(|(_, row)| row).take(most).collect()
}

#[test]
fn a_thesis_script_gives_in_a_fleet_what_it_gives_on_one_host() {
    let monitor = Monitor::start();
    let home = &monitor.home;
    // Each VM runs on one host, so its results do not depend on the order of the hosts.
    let text = requests(60);
    let lines = text.lines().enumerate();
    let line = |(i, line): (usize, &str)| {
        let line = line.strip_suffix("5000").unwrap();
        let latency = 3_000 + 10 * (i * i % 97);
        format!(
            "{}{latency}\n",
            line.replace("vm1", &format!("vm{}", i % 2))
        )
    };
    let lines: Vec<String> = lines.map(line).collect();
    let part = |host: usize| -> String { lines.iter().skip(host).step_by(2).cloned().collect() };
    let parts = [0, 1].map(|host| home.write(&format!("part{host}.csv"), &part(host)));
    let all = home.write("all.csv", &lines.concat());

    let (one, many) = (home.path().join("one"), home.path().join("many"));
    let script = thesis(home, "query_10.cql", &all);
    run(&["run", &script, "--out-dir", one.to_str().unwrap()]).fine();
    let script = thesis(home, "query_10.cql", "tap:live");
    let fleet = monitor.begin(&["run", &script, "--out-dir", many.to_str().unwrap()]);
    until("all are watched", || {
        let queries = monitor.queries();
        queries.len() == 3 && queries.iter().all(|query| query["clients"] == 1)
    });
    let names = monitor.queries();
    let names: Vec<&str> = names.iter().map(|q| q["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["query_10-1", "query_10-2", "query_10-3"]);
    let _agents = monitor.agents(&parts);

    let mut files = 0;
    for file in fs::read_dir(&one).unwrap() {
        let name = file.unwrap().file_name();
        let expected = fs::read_to_string(one.join(&name)).unwrap();
        let expected = came(&expected, usize::MAX);
        assert!(expected.len() >= 20, "{name:?}: {expected:?}");
        let held = || fs::read_to_string(many.join(&name)).unwrap_or_default();
        until("every row is out", || {
            came(&held(), usize::MAX).len() >= expected.len()
        });
        // Later rows appear as the window advances with time.
        let held = held();
        let got = came(&held, expected.len()).join("\n");
        assert_eq!(sorted(&got), sorted(&expected.join("\n")), "{name:?}");
        files += 1;
    }
    assert_eq!(files, 3);
    interrupt(&fleet);
    let printed = ended(fleet);
    assert_eq!(printed.code, 130, "{}", printed.err);
    assert!(monitor.queries().is_empty(), "they end with the command");
}

#[test]
fn a_standing_script_outlives_the_command_and_the_monitor() {
    let mut monitor = Monitor::start();
    let script = monitor.home.write("two.cql", TWO);
    let printed = monitor.run(&["run", "--standing", &script]);
    assert_eq!((printed.code, &*printed.out), (0, ""), "{}", printed.err);
    assert!(
        printed.err.contains("weir fleet cancel two-2"),
        "{}",
        printed.err
    );
    let before = monitor.queries();
    monitor.end("-KILL");
    monitor.again();
    let after = monitor.queries();
    assert_eq!(after.len(), 2);
    for (number, (before, after)) in before.iter().zip(&after).enumerate() {
        for key in ["name", "since", "standing", "query", "script", "strategy"] {
            assert_eq!(before[key], after[key], "{key}");
        }
        assert!(after["failed"].is_null(), "{after}");
        assert_eq!(after["name"], format!("two-{}", number + 1));
        assert_eq!(after["script"]["query"], number + 1);
    }
    let all = monitor.home.write("all.csv", &requests(40));
    let _agents = monitor.agents(&[all]);
    until("it counts responses", || {
        monitor.holds("two-1").ends_with(",40,400\n")
    });
}

#[test]
fn what_no_fleet_can_run_is_refused_with_the_remedy() {
    let monitor = Monitor::start();
    let script = thesis(&monitor.home, "query_10.cql", "table.dat");
    let file = monitor.run(&["run", &script]);
    assert_eq!(file.code, 2);
    assert!(
        file.err.contains("source : table.dat") && file.err.contains("tap:live"),
        "{}",
        file.err
    );
    let script = monitor.home.write("two.cql", TWO);
    let from = monitor.run(&["run", "--from", "x.csv", &script]);
    assert_eq!(from.code, 2, "{}", from.err);
    monitor.place("two-2", "select count(*) from hosts");
    let taken = monitor.run(&["run", &script]);
    assert_eq!(taken.code, 2, "{}", taken.err);
    assert!(
        taken.err.contains("weir fleet cancel two-2"),
        "{}",
        taken.err
    );
    let left = monitor.queries();
    assert_eq!(left.len(), 1, "the first of them is gone again");
}
