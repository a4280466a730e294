//! Alerts at the monitor: their states over restarts of it, and as rows.

use super::processes::{Monitor, until};
use crate::support::requests;

const ALERTS: &str = "create alert gone as select host, state from hosts
    when state = 'down' until state = 'up' labels host, 'critical' as severity
    annotations 'the agent is {state}' as summary;";

const CONFIG: &str = "[alerts]\nfile = \"HOME/alerts.cql\"\n";

/// The rows of `alert_states`.
fn states(monitor: &Monitor) -> String {
    let query = "select alert, instance, state, severity, host from alert_states";
    let args = [
        "query", "--for", "300ms", "--final", "--format", "csv", query,
    ];
    monitor.run(&args).fine()
}

/// The changes that the monitor has stored, without those that were restated.
fn stored(monitor: &Monitor, text: &str) -> usize {
    let log = monitor.home.read("state/alerts/events.jsonl");
    let lines = log.lines().filter(|line| !line.contains("snapshot"));
    lines.filter(|line| line.contains(text)).count()
}

#[test]
fn an_alert_of_the_fleet_survives_a_restart_of_the_monitor() {
    let present = "create alert present as select host, state from hosts
        when state = 'up' labels host;";
    let alerts = format!("{ALERTS}\n{present}");
    let mut monitor = Monitor::with_files(CONFIG, &[("alerts.cql", alerts)]);
    let trace = monitor.home.write("a.csv", &requests(10));
    let agents = monitor.agents(&[trace]);
    let present = "present,\"present{host=\"\"a\"\"}\",firing,,a";
    until("the agent is connected", || {
        states(&monitor).contains(present)
    });
    assert_eq!(monitor.end("-TERM").0, Some(0));
    monitor.again();
    let again = "\"from\":\"unknown\"";
    until("it fires again", || stored(&monitor, again) > 0);
    assert!(states(&monitor).contains(present), "{}", states(&monitor));
    // It was unknown in between, and did not fire a second time.
    assert_eq!(stored(&monitor, "\"from\":\"clear\""), 1);
    agents[0].signal("-KILL");
    let gone = "gone,\"gone{host=\"\"a\"\", severity=\"\"critical\"\"}\",firing,critical,a";
    until("the agent is gone", || states(&monitor).contains(gone));
    assert!(
        !states(&monitor).contains("present"),
        "{}",
        states(&monitor)
    );
}

#[test]
fn a_reload_replaces_the_alerts_and_keeps_the_states_of_those_that_did_not_change() {
    let present = "create alert present as select host, state from hosts
        when state = 'up' labels host;";
    let other = present.replace("alert present", "alert other");
    let monitor = Monitor::with_files(CONFIG, &[("alerts.cql", format!("{present}\n{other}"))]);
    let trace = monitor.home.write("a.csv", &requests(10));
    let _agents = monitor.agents(&[trace]);
    let [first, second] =
        ["present", "other"].map(|name| format!("{name},\"{name}{{host=\"\"a\"\"}}\",firing,,a"));
    until("both fire", || {
        let states = states(&monitor);
        states.contains(&first) && states.contains(&second)
    });
    // One with errors changes nothing.
    let wrong = present.replace("from hosts", "from host");
    monitor.home.write("alerts.cql", &wrong);
    monitor.signal("-HUP");
    until("it is refused", || {
        monitor.printed().contains("not reloaded")
    });
    assert!(states(&monitor).contains(&second));

    let third = present.replace("alert present", "alert third");
    monitor
        .home
        .write("alerts.cql", &format!("{present}\n{third}"));
    monitor.signal("-HUP");
    let third = first.replace("present", "third");
    until("the new one fires, the old one again", || {
        let states = states(&monitor);
        states.contains(&first) && states.contains(&third)
    });
    assert!(!states(&monitor).contains("other"), "{}", states(&monitor));
    // It was unknown in between, and did not fire a second time.
    let log = monitor.home.read("state/alerts/events.jsonl");
    let lines = log.lines().filter(|line| !line.contains("snapshot"));
    let of_present = lines.filter(|line| line.contains("\"alert\":\"present\""));
    let fired = of_present.filter(|line| line.contains("\"from\":\"clear\""));
    assert_eq!(fired.count(), 1, "{log}");
    // Without a change of the file nothing is replaced.
    let lines = log.lines().count();
    monitor.signal("-HUP");
    until("it is reloaded again", || {
        monitor.printed().matches("reloaded: ").count() == 2
    });
    let now = monitor.home.read("state/alerts/events.jsonl");
    assert_eq!(now.lines().count(), lines, "{now}");
}

#[test]
fn a_file_of_alerts_with_errors_is_refused_before_the_monitor_starts() {
    let check = |text: &str| {
        let home = crate::support::Scratch::new();
        let file = home.write("alerts.cql", text);
        let config = format!("[alerts]\nfile = \"{file}\"\n");
        let config = home.write("monitor.toml", &config);
        crate::support::run(&["monitor", "--check", "--config", &config])
    };
    assert_eq!(check(ALERTS).code, 0);
    let wrong = check(&ALERTS.replace("from hosts", "from host"));
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("did you mean `hosts`?"), "{}", wrong.err);
    let act = "create alert a as select vm, count(*) as n from IO [range 1 s] group by vm
               act limit vm, 50 as iops for 1 min";
    let act = check(act);
    assert!(
        act.code == 2 && act.err.contains("no label `host`"),
        "{}",
        act.err
    );
}
