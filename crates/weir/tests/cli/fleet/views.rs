//! The owner of a VM sees its rows alone: role `vm:NAME` at the monitor, and `only_vm` of an agent.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::processes::{Monitor, Process, sorted, until};
use crate::support::{CommandOutput, requests};

const BY_VM: &str = "select host, vm, count(*) from IO group by host, vm";

/// A way to every source: a view, a set operation and a subquery without a condition on the VM.
const ATTACK: &str = "create view rows as select vm, sector from IO; \
    select vm, count(*) from ( \
      select vm from rows [range 1 hour] where sector in (select bytes from IO [range 1 hour]) \
      or vm <> 'vm1' or 1 = 1 union all select vm from IOstream [range 1 hour]) as u group by vm";

const PEERS: [(&str, &str); 5] = [
    ("reader", "read"),
    ("placer", "place"),
    ("tenant", "vm:vm1"),
    ("neighbour", "vm:vm2"),
    ("agents", "agent"),
];

/// A monitor with the tokens of [`PEERS`], each in a file of its name.
pub fn monitor() -> Monitor {
    let token = |name: &str| format!("{name}-0123456789abcdef");
    let lines = PEERS.map(|(name, role)| format!("{} {name} {role}\n", token(name)));
    let mut files = vec![("tokens", lines.concat())];
    files.extend(PEERS.map(|(name, _)| (name, token(name))));
    Monitor::with_files("tokens = \"HOME/tokens\"\n", &files)
}

/// The end of a command of `who` at the monitor.
pub fn by(monitor: &Monitor, who: &str, args: &[&str]) -> CommandOutput {
    let file = monitor.home.path().join(who);
    monitor.run(&[args, &["--token-file", file.to_str().unwrap()]].concat())
}

pub fn place(monitor: &Monitor, who: &str, name: &str, query: &str) {
    let args = ["query", "--standing", "--name", name, "--for", "1ms", query];
    let placed = by(monitor, who, &args);
    assert_eq!(placed.code, 0, "{query}: {}", placed.err);
}

/// The content of a query's relation, sorted, without heading.
pub fn content(monitor: &Monitor, who: &str, name: &str) -> Vec<String> {
    let watch = ["fleet", "watch", name, "--final", "--for", "300ms"];
    let printed = by(monitor, who, &[&watch[..], &["--format", "csv"]].concat());
    let printed = printed.fine();
    let rows = sorted(&printed)
        .into_iter()
        .filter(|l| !l.contains("count"));
    let without_instant = |line: &str| match line.split_once(',') {
        Some((at, rest)) if at.parse::<f64>().is_ok() || at.contains(':') => rest.to_owned(),
        _ => line.to_owned(),
    };
    rows.map(without_instant).collect()
}

fn names(monitor: &Monitor, who: &str) -> Vec<String> {
    let listed = by(monitor, who, &["fleet", "queries", "--json"]).fine();
    let listed: Vec<serde_json::Value> = serde_json::from_str(&listed).unwrap();
    let name = |query: &serde_json::Value| query["name"].as_str().unwrap().to_owned();
    listed.iter().map(name).collect()
}

#[test]
fn the_owner_of_a_vm_sees_no_row_of_another_vm() {
    let mut monitor = monitor();
    for (who, name, query) in [
        ("placer", "all", BY_VM),
        ("tenant", "own", BY_VM),
        ("tenant", "attack", ATTACK),
        ("neighbour", "theirs", BY_VM),
    ] {
        place(&monitor, who, name, query);
    }
    // Sixty requests of vm1 and forty of vm2, on each of two hosts.
    let owner = |i: usize| if i % 5 < 3 { "vm1" } else { "vm2" };
    let lines = requests(100);
    let lines = lines.lines().enumerate();
    let trace: String = lines
        .map(|(i, line)| format!("{}\n", line.replace("vm1", owner(i))))
        .collect();
    let trace = monitor.home.write("trace.csv", &trace);
    let restricted = monitor.home.write("b.toml", "only_vm = \"vm2\"\n");
    let token = monitor.home.path().join("agents");
    let token = ["--token-file", token.to_str().unwrap()];
    let _a = monitor.agents_with(std::slice::from_ref(&trace), &token);
    let b = ["--host", "b", "--config", &restricted];
    let state = monitor.home.path().join("of_b");
    let state = [
        "--state",
        state.to_str().unwrap(),
        "--monitor",
        &monitor.address,
    ];
    let args = ["agent", "--from", &trace, "--pace", "1000"];
    let _b = Process::start(&[&args[..], &b, &state, &token].concat());

    // The agent of b sends rows of vm2 to every query, also to one that reads all VMs.
    let has = |who: &str, name: &str, row: &str| {
        content(&monitor, who, name)
            .iter()
            .any(|found| found == row)
    };
    until("host a has sent everything", || {
        has("placer", "all", "a,vm1,60") && has("placer", "all", "a,vm2,40")
    });
    assert_eq!(content(&monitor, "tenant", "own"), ["a,vm1,60"]);
    let attacked = content(&monitor, "tenant", "attack");
    assert!(
        attacked.iter().all(|row| row.starts_with("vm1,")),
        "{attacked:?}"
    );
    assert!(!has("placer", "all", "b,vm1,60"));

    // Queries of others do not exist for the owner of a VM.
    assert_eq!(names(&monitor, "tenant"), ["attack", "own"]);
    assert_eq!(names(&monitor, "neighbour"), ["theirs"]);
    assert_eq!(
        names(&monitor, "reader"),
        ["all", "attack", "own", "theirs"]
    );
    for name in ["all", "theirs", "none"] {
        for args in [
            &["fleet", "watch", name, "--for", "1ms"][..],
            &["fleet", "cancel", name],
        ] {
            let refused = by(&monitor, "tenant", args);
            assert_ne!(refused.code, 0, "{}", refused.out);
            assert!(refused.err.contains("there is no query"), "{}", refused.err);
        }
    }
    let taken = by(
        &monitor,
        "tenant",
        &["query", "--name", "theirs", "--for", "1ms", BY_VM],
    );
    assert!(taken.err.contains("is in use"), "{}", taken.err);
    assert!(!taken.err.contains("neighbour"), "{}", taken.err);

    // What has no rows of a VM is refused, wherever it is read.
    for query in [
        "select * from weir",
        "select host from hosts",
        "select count(*) from devices",
        "select vm from vms where exists (select 1 from hosts)",
        "create view vms as select host as vm from hosts; select vm from vms",
    ] {
        for args in [&["query", "--for", "1ms", query][..], &["explain", query]] {
            let refused = by(&monitor, "tenant", args);
            assert_ne!(refused.code, 0, "{query}: {}", refused.out);
            assert!(
                refused.err.contains("has no column `vm`"),
                "{query}: {}",
                refused.err
            );
        }
    }
    // Nor does the owner of a VM read, name or change stored views, whose texts may name other VMs.
    let create = "create view theirs_too as select vm, sector from IO where vm = 'vm2'";
    let created = by(&monitor, "placer", &["query", create]);
    assert_eq!(created.code, 0, "{}", created.err);
    for query in [
        "show views",
        "show create view theirs_too",
        "create view mine as select vm from IO",
        "create or replace view theirs_too as select vm, sector from IO",
        "drop view theirs_too",
        "select * from theirs_too",
        "describe theirs_too",
    ] {
        let refused = by(&monitor, "tenant", &["query", "--for", "1ms", query]);
        assert_ne!(refused.code, 0, "{query}: {}", refused.out);
        assert!(!refused.err.contains("vm2"), "{query}: {}", refused.err);
    }
    let shown = by(&monitor, "tenant", &["query", "show queries"]).fine();
    assert!(
        shown.contains("attack") && !shown.contains("theirs"),
        "{shown}"
    );
    // Who may only read sees them, and changes none.
    let shown = by(&monitor, "reader", &["query", "show views"]).fine();
    assert!(shown.contains("vm = 'vm2'"), "{shown}");
    let drop = by(&monitor, "reader", &["query", "drop view theirs_too"]);
    assert_ne!(drop.code, 0, "{}", drop.out);
    let hosts = by(&monitor, "tenant", &["fleet", "hosts"]);
    assert!(hosts.err.contains("rows of VM `vm1` only"), "{}", hosts.err);
    let explained = by(&monitor, "tenant", &["explain", BY_VM]).fine();
    assert!(explained.contains("vm = 'vm1'"), "{explained}");

    // Standing queries are restricted after a restart too.
    assert_eq!(monitor.end("-TERM").0, Some(0));
    monitor.again();
    until("the queries run again", || {
        names(&monitor, "reader").len() == 4
    });
    assert_eq!(names(&monitor, "tenant"), ["attack", "own"]);
    let rows = content(&monitor, "tenant", "own");
    assert!(rows.iter().all(|row| row == "a,vm1,60"), "{rows:?}");

    // A token that gets another role no longer reads what it watches.
    let file = monitor.home.path().join("tenant");
    let watch = [
        "fleet",
        "watch",
        "own",
        "--token-file",
        file.to_str().unwrap(),
    ];
    let watcher = monitor.begin(&watch);
    let clients = || {
        let listed = by(&monitor, "reader", &["fleet", "queries", "--json"]).fine();
        let listed: Vec<serde_json::Value> = serde_json::from_str(&listed).unwrap();
        listed
            .iter()
            .map(|q| q["clients"].as_u64().unwrap_or(0))
            .sum::<u64>()
    };
    until("it is watched", || clients() == 1);
    let tokens = monitor.home.path().join("tokens");
    let text = fs::read_to_string(&tokens).unwrap();
    fs::write(&tokens, text.replace("tenant vm:vm1", "tenant vm:vm2")).unwrap();
    fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600)).unwrap();
    monitor.signal("-HUP");
    let ended = super::processes::ended(watcher);
    assert_ne!(ended.code, 0, "{}", ended.out);
    assert!(ended.err.contains("no longer accepted"), "{}", ended.err);
    assert_eq!(names(&monitor, "tenant"), ["theirs"]);
}
