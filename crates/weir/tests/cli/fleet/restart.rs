//! Standing queries persist across restarts of the monitor, however its process ends.

use super::processes::{Monitor, dealt, sorted, until, without_instants};
use crate::live::watchable;

#[test]
fn standing_queries_run_again_after_a_restart() {
    let mut monitor = Monitor::start();
    monitor.place("s", "select op, count(*) from IO group by op");
    let before = monitor.queries();
    let watcher = monitor.begin(&["fleet", "watch", "s", "--for", "1h"]);
    until("it is watched", || monitor.queries()[0]["clients"] == 1);
    let (code, printed) = monitor.end("-TERM");
    assert_eq!(code, Some(0), "{printed}");
    monitor.again();
    let after = monitor.queries();
    for key in ["name", "owner", "since", "standing", "query", "strategy"] {
        assert_eq!(before[0][key], after[0][key], "{key}");
    }
    crate::support::interrupt(&watcher);
    super::processes::ended(watcher);
    monitor.run(&["fleet", "cancel", "s"]).fine();
    monitor.end("-KILL");
    monitor.again();
    assert!(monitor.queries().is_empty(), "what was cancelled stays so");
}

#[test]
fn a_file_holds_each_row_once_though_the_monitor_was_killed() {
    let rows = "[[query]]\nname = \"rows\"\ntext = \"select host, sector from IO\"\n\
                [[query.sink]]\nfile = \"rows.csv\"\n";
    let mut monitor = Monitor::configured(rows);
    let (_, parts) = dealt(&monitor.home, 6_000);
    let _agents = monitor.agents(&parts);
    let file = monitor.home.path().join("state/rows.csv");
    let lines = || std::fs::read_to_string(&file).map_or(0, |text| text.lines().count());
    let mut had = 1;
    for _ in 0..2 {
        until("rows come", || lines() > had + 200);
        monitor.end("-KILL");
        had = lines();
        monitor.again();
    }
    until("all rows are in the file", || lines() > 6_000);
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().next(), Some("instant,host,sector"));
    let got: Vec<String> = text
        .lines()
        .skip(1)
        .map(|line| line.split_once(',').unwrap().1.to_owned())
        .collect();
    let expected: Vec<String> = (0..6_000)
        .map(|i| format!("{},{}", ["a", "b", "c"][i % 3], 8 * i))
        .collect();
    let (got, expected) = (got.join("\n"), expected.join("\n"));
    assert_eq!(sorted(&got), sorted(&expected));
}

#[test]
fn the_content_of_a_relation_is_in_a_file_once_after_restarts() {
    if !watchable("relations after a restart") {
        return;
    }
    let mut monitor = Monitor::configured(
        "[[query]]\nname = \"devices\"\ntext = \"select host, disk from devices\"\n\
         [[query.sink]]\nfile = \"devices.csv\"\n",
    );
    let _first = monitor.observer("a", &[]);
    let file = monitor.home.path().join("state/devices.csv");
    let text = || std::fs::read_to_string(&file).unwrap_or_default();
    until("the devices are in the file", || text().contains(",a,"));
    let before = text();
    for signal in ["-KILL", "-TERM", "-KILL"] {
        monitor.end(signal);
        monitor.again();
        // Its clients have the content again.
        until("the devices are known", || {
            monitor.holds("devices").contains(",a,")
        });
    }
    // What was written after the last checkpoint has a later instant.
    assert_eq!(without_instants(&text()), without_instants(&before));
    // Changes are added as before.
    let _second = monitor.observer("b", &[]);
    until("the devices of the other host come", || {
        text().contains(",b,")
    });
    let of_first = |text: &str| text.matches(",a,").count();
    assert_eq!(of_first(&text()), of_first(&before));
}
