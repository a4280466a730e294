//! Monitors of sites that are agents of another monitor: its results are those of one host that
//! observes everything.

use std::process::Command;

use super::processes::{
    Monitor, Process, agents_of, dealt, ended, replay_shift, until, without_instants,
};
use crate::live::watchable;
use crate::support::{Scratch, interrupt, run};

/// A group-by that agents answer with partial aggregates, of every kind of state.
const BY_OP: &str = "select op, count(*), sum(bytes), max(sector), avg(latency), p99(latency), \
                     approx_count_distinct(sector), median(bytes) \
                     from IO [range 1 hour slide 1 s] group by op";

/// The rows of each second.
const EACH_SECOND: &str = "Rstream(select vm, count(*) as n, sum(bytes) as total \
                           from IO [range 1 s slide 1 s] group by vm)";

/// The monitor of a site. It waits for every agent, as all monitors of these tests.
fn site(name: &str, upstream: &Monitor) -> Monitor {
    configured_site("", name, upstream)
}

/// The same with a configuration.
fn configured_site(config: &str, name: &str, upstream: &Monitor) -> Monitor {
    let section = Monitor::upstream(&upstream.address, name);
    Monitor::configured(&format!("{config}{section}"))
}

/// A monitor, and that of its site `east`, which is connected.
fn top_and_east() -> (Monitor, Monitor) {
    let top = Monitor::start();
    let east = site("east", &top);
    until_connected(&top, &["east"]);
    (top, east)
}

/// Waits until this number of hosts is connected.
fn until_connected(monitor: &Monitor, hosts: &[&str]) {
    until("the sites are connected", || {
        let listed = monitor.run(&["fleet", "hosts", "--json"]).fine();
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        let is_up = |name: &&str| {
            let mut rows = listed.as_array().into_iter().flatten();
            rows.any(|row| row["host"] == **name && row["state"] == "up")
        };
        hosts.iter().all(is_up)
    });
}

/// A query of a monitor, as `weir fleet queries` lists it.
fn query(monitor: &Monitor, name: &str) -> serde_json::Value {
    let mut queries = monitor.queries().into_iter();
    queries.find(|query| query["name"] == name).unwrap()
}

#[test]
fn sites_answer_as_one_host_that_sees_everything() {
    let top = Monitor::start();
    let (east, west) = (site("east", &top), site("west", &top));
    // A site of a site.
    let north = site("north", &west);
    until_connected(&top, &["east", "west"]);
    until_connected(&west, &["north"]);
    let (all, parts) = dealt(&top.home, 900);
    let placed = [
        ("partials", BY_OP, "partials"),
        ("rows", BY_OP, "rows"),
        (
            "hosts",
            "select host, count(*) from IO group by host",
            "rows",
        ),
        ("seconds", EACH_SECOND, "partials"),
    ];
    for (name, text, strategy) in placed {
        let place = ["fleet", "place", name, text, "--place", strategy];
        assert_eq!(top.run(&place).code, 0);
    }
    // The same fragment as that of an upstream query, for the site alone.
    east.place("own", BY_OP);
    let seconds = top.begin(&["fleet", "watch", "seconds", "--format", "csv"]);
    let [a, b, c] = &parts;
    let _agents = agents_of(
        &[(&east, "a", a), (&east, "b", b), (&north, "c", c)],
        &replay_shift(),
        &[],
    );
    let one = |query: &str| {
        let args = ["query", "--from", &all, "--final", "--format", "csv", query];
        run(&args).fine()
    };
    let expected = one(&BY_OP.replace(" [range 1 hour slide 1 s]", ""));
    for name in ["partials", "rows"] {
        let mut shown = String::new();
        until("the result is complete", || {
            shown = top.holds(name);
            without_instants(&shown) == without_instants(&expected)
        });
    }
    until("each host is named", || {
        without_instants(&top.holds("hosts")) == ["a,300", "b,300", "c,300", "host,count(*)"]
    });
    for name in ["partials", "rows", "hosts"] {
        let shown = query(&top, name);
        let counted = ["rows_lost", "rows_late", "hosts", "hosts_responded"].map(|key| &shown[key]);
        assert_eq!(counted, [0, 0, 3, 3], "{shown}");
    }
    // One row for each group and slide comes from a site, however many hosts it has.
    let [own, upstream] = [&east, &top].map(|m| m.run(&["fleet", "hosts", "--json"]).fine());
    assert!(own.contains("\"a\"") && own.contains("\"b\""), "{own}");
    assert!(!upstream.contains("\"a\""), "{upstream}");
    // The site's own query shares the fragment, and has the hosts of the site alone.
    until("the site's own result is complete", || {
        let shown = east.holds("own");
        let rows = without_instants(&shown);
        let counts = rows.iter().filter_map(|row| row.split(',').nth(1));
        let counts = counts.filter_map(|count| count.parse::<u64>().ok());
        counts.sum::<u64>() == 600
    });
    interrupt(&seconds);
    let seconds = ended(seconds).out;
    let sums = |csv: &str| {
        let field = |line: &str, at: usize| line.rsplit(',').nth(at).unwrap().parse::<u64>();
        let rows = csv.lines().skip(1);
        rows.map(|line| [field(line, 1).unwrap(), field(line, 0).unwrap()])
            .fold([0, 0], |[n, total], [m, bytes]| [n + m, total + bytes])
    };
    let whole = one("select vm, count(*) as n, sum(bytes) as total from IO group by vm");
    assert_eq!(sums(&seconds), sums(&whole));
    // Each second and VM is there once.
    let keys = seconds
        .lines()
        .map(|line| line.splitn(3, ',').take(2).collect::<Vec<_>>());
    let mut keys: Vec<_> = keys.collect();
    let count = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), count, "{seconds}");
}

#[test]
fn what_is_missing_in_a_site_is_missing_upstream() {
    // Results wait for what is killed, and for a site longer than the site does.
    let top = Monitor::configured("idle = \"10 s\"\n");
    let mut east = configured_site("idle = \"5 s\"\n", "east", &top);
    until_connected(&top, &["east"]);
    let (_, parts) = dealt(&top.home, 90);
    top.place("ops", "select host, count(*) from IO group by host");
    let [a, b, c] = &parts;
    let mut first = agents_of(&[(&east, "a", a), (&east, "b", b)], &replay_shift(), &[]);
    let _other = agents_of(&[(&top, "c", c)], &replay_shift(), &[]);
    let hosts = |known: u64, responded: u64| {
        until("the hosts are counted", || {
            let shown = query(&top, "ops");
            shown["hosts"] == known && shown["hosts_responded"] == responded
        });
    };
    hosts(3, 3);
    until("the rows are there", || {
        without_instants(&top.holds("ops")) == ["a,30", "b,30", "c,30", "host,count(*)"]
    });
    // An agent of the site is killed, and then continues.
    first[1].signal("-KILL");
    first[1].end();
    hosts(3, 2);
    let state = east.home.path().join("b");
    let again = ["agent", "--monitor", &east.address, "--host", "b"];
    let again = [
        &again[..],
        &["--from", b, "--state", state.to_str().unwrap()],
    ];
    let _again = Process::start(&again.concat());
    hosts(3, 3);
    // Another agent joins.
    let _joined = agents_of(&[(&east, "d", c)], &replay_shift(), &[]);
    hosts(4, 4);
    // The monitor of the site is killed, and then continues: its agents deliver new rows.
    east.end("-KILL");
    until("the site is missing", || {
        query(&top, "ops")["hosts_responded"] == 1
    });
    east.again();
    until("all hosts respond", || {
        let shown = query(&top, "ops");
        // Those whose agents have not connected again are known nevertheless.
        assert_eq!(shown["hosts"], 4, "{shown}");
        shown["hosts_responded"] == 4
    });
    // A site that ends is no longer missing.
    let (code, printed) = east.end("-TERM");
    assert_eq!(code, Some(0), "{printed}");
    until("the site has ended", || {
        let listed = top.run(&["fleet", "hosts", "--json"]).fine();
        listed.contains("\"ended\"")
    });
}

#[test]
fn an_upstream_monitor_that_restarts_continues_its_queries() {
    let (mut top, east) = top_and_east();
    let (_, parts) = dealt(&top.home, 900);
    // Rows of this window are sent once more after a restart; a query without one begins again with
    // those that were not acknowledged.
    top.place(
        "count",
        "select host, count(*), sum(bytes) from IO [range 40 s] group by host",
    );
    let [a, b, _] = &parts;
    let _agents = agents_of(&[(&east, "a", a), (&east, "b", b)], &replay_shift(), &[]);
    until("some rows are there", || {
        top.holds("count").lines().count() > 1
    });
    let (_, printed) = top.end("-KILL");
    assert!(!printed.contains("ERROR"), "{printed}");
    top.again();
    let expected = |trace: &String| {
        let query = "select count(*), sum(bytes) from IO";
        let args = [
            "query", "--from", trace, "--final", "--format", "csv", query,
        ];
        let printed = run(&args).fine();
        printed
            .lines()
            .nth(1)
            .unwrap()
            .split_once(',')
            .unwrap()
            .1
            .to_owned()
    };
    let expected = [format!("a,{}", expected(a)), format!("b,{}", expected(b))];
    until("all rows are there once", || {
        let shown = top.holds("count");
        let rows = without_instants(&shown);
        expected.iter().all(|row| rows.contains(&&**row))
    });
    let shown = query(&top, "count");
    assert_eq!(
        [&shown["rows_lost"], &shown["rows_late"]],
        [0, 0],
        "{shown}"
    );
}

#[test]
fn a_restarted_site_waits_for_the_probes_of_its_agents() {
    if !watchable("probes of a site") {
        return;
    }
    let (top, mut east) = top_and_east();
    let define = top.home.write(
        "probes.cql",
        "create stream masks as probe 'tp:syscalls:sys_enter_umask' (mask) limit 10000;",
    );
    let _agent = east.observer("a", &["--define", &define]);
    until("the site offers the stream of its agent", || {
        let shown = top.run(&["query", "show streams"]);
        shown.out.contains("masks")
    });
    top.place("masks", "select host, count(*) from masks group by host");
    let count = || {
        let shown = top.holds("masks");
        let row = without_instants(&shown)
            .into_iter()
            .find(|row| row.starts_with("a,"));
        row.map_or(0, |row| row[2..].parse::<u64>().unwrap())
    };
    let until_more = || {
        let before = count();
        until("rows arrive", || {
            let called = Command::new("sh").args(["-c", "umask 0027"]).status();
            assert!(called.unwrap().success());
            // More than the rows that were on their way when the site was killed.
            count() > before + 10
        });
    };
    until_more();
    east.end("-KILL");
    east.again();
    until_more();
}

#[test]
fn relations_of_hosts_are_those_of_the_site() {
    if !watchable("relations of a site") {
        return;
    }
    let (top, mut east) = top_and_east();
    let devices = "select host, count(*) from devices group by host";
    let joined = "select d.host, count(*) from devices as d join devices as e \
                  on d.host = e.host and d.disk = e.disk group by d.host";
    let until_of = |monitor: &Monitor, hosts: &[&str]| {
        until("each host is there with its devices", || {
            ["devices", "joined"].iter().all(|name| {
                let rows = monitor.holds(name);
                let rows = without_instants(&rows);
                let of = |host: &str| {
                    let mut rows = rows.iter();
                    rows.find(|row| row.starts_with(&format!("{host},")))
                        .map(|row| &row[2..])
                };
                let counts: Vec<_> = hosts.iter().filter_map(|host| of(host)).collect();
                // The heading is a line as well. All agents are on one host.
                counts.len() == hosts.len()
                    && rows.len() == hosts.len() + 1
                    && counts
                        .iter()
                        .all(|count| *count != "0" && count == &counts[0])
            })
        });
    };
    for monitor in [&top, &east] {
        monitor.place("devices", devices);
        monitor.place("joined", joined);
    }
    let mut a = east.observer("a", &[]);
    let _b = east.observer("b", &[]);
    for monitor in [&top, &east] {
        until_of(monitor, &["a", "b"]);
    }
    a.signal("-KILL");
    a.end();
    let _a = east.observer("a", &[]);
    let _c = east.observer("c", &[]);
    for monitor in [&top, &east] {
        until_of(monitor, &["a", "b", "c"]);
    }
    east.end("-KILL");
    east.again();
    for monitor in [&top, &east] {
        until_of(monitor, &["a", "b", "c"]);
    }
}

#[test]
fn a_wrong_upstream_is_a_clear_error() {
    let home = Scratch::new();
    let config = home.write(
        "monitor.toml",
        "[upstream]\nmonitor = \"east:99999\"\ncertificate = \"site.crt\"\nmemory = \"1 KiB\"\n",
    );
    let checked = run(&["monitor", "--check", "--config", &config]);
    assert_eq!(checked.code, 2);
    for key in [
        "upstream.monitor",
        "upstream.certificate",
        "upstream.ca",
        "upstream.memory",
    ] {
        assert!(checked.err.contains(key), "{}", checked.err);
    }
    let state = home.path().join("state");
    let socket = format!("unix:{}", home.path().join("m.sock").display());
    let token = home.path().join("token");
    let config = home.write(
        "monitor.toml",
        &format!(
            "[upstream]\nmonitor = \"localhost\"\ntoken_file = \"{}\"\n",
            token.display()
        ),
    );
    let args = ["monitor", "--config", &config, "--listen", &socket];
    let started = run(&[&args[..], &["--state", state.to_str().unwrap()]].concat());
    assert_ne!(started.code, 0);
    assert!(started.err.contains("token"), "{}", started.err);
}
