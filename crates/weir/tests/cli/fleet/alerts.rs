//! Alerts at the monitor: their states over restarts of it, and as rows.

use serde_json::Value as Json;

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

#[test]
fn placed_alerts_run_beside_the_file_survive_a_restart_and_disturb_no_other() {
    let present = "create alert present as select host, state from hosts
        when state = 'up' labels host;";
    let mut monitor = Monitor::with_files(CONFIG, &[("alerts.cql", present.to_owned())]);
    let trace = monitor.home.write("a.csv", &requests(10));
    let _agents = monitor.agents(&[trace]);
    let fires = |monitor: &Monitor, name: &str| {
        let row = format!("{name},\"{name}{{host=\"\"a\"\"}}\",firing,,a");
        until(&format!("{name} fires"), || states(monitor).contains(&row));
    };
    fires(&monitor, "present");
    let other = present.replace("alert present", "alert other");
    let file = monitor.home.write("other.cql", &other);
    let place = |monitor: &Monitor| monitor.run(&["alert", "place", "-f", &file]);
    assert_eq!(place(&monitor).fine(), "other\n");
    fires(&monitor, "other");
    // The one of the file was not interrupted.
    assert_eq!(stored(&monitor, "\"state\":\"unknown\""), 0);
    let listed: Json =
        serde_json::from_str(&monitor.run(&["alert", "list", "--json"]).fine()).unwrap();
    let of = |name: &str| {
        let mut alerts = listed.as_array().unwrap().iter();
        alerts.find(|alert| alert["name"] == name).unwrap().clone()
    };
    assert_eq!(of("present")["placed_by"], Json::Null);
    assert!(
        of("other")["placed_by"]
            .as_str()
            .unwrap()
            .starts_with("uid ")
    );
    let instance = serde_json::json!([{"instance": "other{host=\"a\"}", "state": "firing"}]);
    assert_eq!(of("other")["instances"], instance);
    let table = monitor.run(&["alert", "list"]).fine();
    assert!(table.contains("the file of the monitor"), "{table}");

    // Errors change nothing.
    for (text, why) in [
        (present.to_owned(), "is in the file of the monitor"),
        (other.replace("hosts", "host"), "did you mean `hosts`?"),
        (
            "create alert a as select vm, count(*) as n from IO [range 1 s] group by vm
                 act limit vm, 50 as iops for 1 min"
                .to_owned(),
            "no label `host`",
        ),
    ] {
        let file = monitor.home.write("wrong.cql", &text);
        let refused = monitor.run(&["alert", "place", "-f", &file]);
        assert!(
            refused.code != 0 && refused.err.contains(why),
            "{}",
            refused.err
        );
    }
    let refused = monitor.run(&["alert", "remove", "present"]);
    assert!(
        refused.err.contains("remove it there and reload"),
        "{}",
        refused.err
    );
    let refused = monitor.run(&["alert", "remove", "nothing"]);
    assert!(
        refused.err.contains("there is no alert `nothing`"),
        "{}",
        refused.err
    );

    // A restart, and the same text again.
    assert_eq!(monitor.end("-TERM").0, Some(0));
    monitor.again();
    fires(&monitor, "other");
    assert_eq!(place(&monitor).fine(), "other\n");
    let fired = |name: &str| {
        let log = monitor.home.read("state/alerts/events.jsonl");
        let lines = log.lines().filter(|line| !line.contains("snapshot"));
        let lines = lines.filter(|line| line.contains(&format!("\"alert\":\"{name}\"")));
        lines
            .filter(|line| line.contains("\"from\":\"clear\""))
            .count()
    };
    assert_eq!((fired("present"), fired("other")), (1, 1));

    // Removed, its instance clears.
    monitor.run(&["alert", "remove", "other"]).fine();
    until("it is gone", || !states(&monitor).contains("other"));
    assert!(stored(&monitor, "\"state\":\"clear\"") > 0);
    assert!(states(&monitor).contains("present"), "{}", states(&monitor));
}

#[test]
fn the_messages_of_a_monitor_are_silenced_by_its_clients() {
    let monitor = Monitor::start();
    assert_eq!(monitor.run(&["alert", "silences"]).fine(), "no silences\n");
    let label = [
        "--label",
        "host=a",
        "--for",
        "1h",
        "--comment",
        "new <firmware>",
    ];
    let id = monitor
        .run(&[&["alert", "silence"], &label[..]].concat())
        .fine();
    let listed: Json =
        serde_json::from_str(&monitor.run(&["alert", "silences", "--json"]).fine()).unwrap();
    assert_eq!(listed[0]["id"], id.trim());
    assert_eq!(listed[0]["labels"], serde_json::json!({"host": "a"}));
    assert_eq!(listed[0]["comment"], "new <firmware>");
    monitor.run(&["alert", "unsilence", id.trim()]).fine();
    assert_eq!(monitor.run(&["alert", "silences", "--json"]).fine(), "[]\n");
    let refused = monitor.run(&["alert", "unsilence", id.trim()]);
    assert!(
        refused.err.contains("there is no silence"),
        "{}",
        refused.err
    );
}

#[test]
fn only_role_act_places_alerts_that_act_and_the_owner_of_a_vm_places_none() {
    let [read, place, act, vm] = ["r", "p", "a", "v"].map(|letter| letter.repeat(16));
    let tokens = format!("{read} r read\n{place} p place\n{act} a act\n{vm} v vm:mail\n");
    let config = "tokens = \"HOME/tokens\"\n";
    let mut files = vec![("tokens", tokens)];
    for (name, token) in [("r", &read), ("p", &place), ("a", &act), ("v", &vm)] {
        files.push((name, format!("{token}\n")));
    }
    let monitor = Monitor::with_files(config, &files);
    let acts = "create alert acts as select host, vm, count(*) as n from IO [range 1 s slide 1 s]
        group by host, vm when n > 1 labels host, vm act limit vm, 50 as iops for 1 min";
    let acts = monitor.home.write("acts.cql", acts);
    let plain = ALERTS.replace("gone", "plain");
    let plain = monitor.home.write("plain.cql", &plain);
    let run = |who: &str, args: &[&str]| {
        let token = monitor.home.path().join(who).display().to_string();
        monitor.run(&[args, &["--token-file", &token]].concat())
    };
    let place = |who: &str, file: &str| run(who, &["alert", "place", "-f", file]);
    for (who, file, why) in [
        ("r", &plain, "not permitted to place"),
        ("p", &acts, "needs role act"),
        ("v", &plain, "alerts are of the whole fleet"),
    ] {
        let refused = place(who, file);
        assert!(
            refused.code != 0 && refused.err.contains(why),
            "{who}: {}",
            refused.err
        );
    }
    assert_eq!(place("p", &plain).fine(), "plain\n");
    assert_eq!(place("a", &acts).fine(), "acts\n");
    assert!(run("r", &["alert", "list"]).fine().contains("acts"));
    assert!(
        run("v", &["alert", "list"])
            .err
            .contains("alerts are of the whole fleet")
    );
}
