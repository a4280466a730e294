//! Two monitors with one state directory: one leads, the other one takes over. However a leader
//! ends, each row and each window is in the results once.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use super::processes::{Monitor, Process, dealt, ended, sorted, until};
use crate::support::{CommandOutput, Scratch, interrupt, run, weir};

/// The requests of a recording, one per millisecond.
const REQUESTS: usize = 12_000;

/// The exit code of a leader that has lost its lease.
const LEASE_LOST: Option<i32> = Some(75);

/// Two standing queries: the rows, and their number in each second.
const QUERIES: &str = "[[query]]\nname = \"rows\"\ntext = \"select host, sector from IO\"\n\
    [[query.sink]]\nfile = \"rows.csv\"\n\
    [[query]]\nname = \"counts\"\n\
    text = \"Rstream(select host, count(*) as n from IO [range 1 s slide 1 s] group by host)\"\n\
    [[query.sink]]\nfile = \"counts.csv\"\n";

/// Monitors 0 and 1 of a fleet.
struct Pair {
    home: Scratch,
    monitors: [Option<Process>; 2],
}

impl Pair {
    /// Monitor 0 leads, and 1 is a standby.
    fn start() -> Pair {
        Pair::configured(QUERIES)
    }

    /// The same with this configuration.
    fn configured(config: &str) -> Pair {
        let home = Scratch::new();
        // On a busy machine an agent soon lags far behind; here the monitor waits for every agent.
        home.write("monitor.toml", &format!("idle = \"60 s\"\n{config}"));
        let mut pair = Pair {
            home,
            monitors: [None, None],
        };
        pair.begin(0);
        pair.until_leading(0);
        pair.begin(1);
        until("monitor 1 stands by", || {
            pair.printed(1).contains("standby; the leader is ")
        });
        pair
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn address(&self, number: usize) -> String {
        format!(
            "unix:{}",
            self.path(["m0.sock", "m1.sock"][number]).display()
        )
    }

    /// The addresses of both.
    fn addresses(&self) -> String {
        [0, 1].map(|number| self.address(number)).join(",")
    }

    fn begin(&mut self, number: usize) {
        let (config, state) = (self.path("monitor.toml"), self.path("state"));
        let listen = self.address(number);
        self.monitors[number] = Some(Process::start(&[
            "monitor",
            "--standby",
            "--listen",
            &listen,
            "--config",
            config.to_str().unwrap(),
            "--state",
            state.to_str().unwrap(),
        ]));
    }

    fn monitor(&self, number: usize) -> &Process {
        self.monitors[number].as_ref().expect("it runs")
    }

    fn printed(&self, number: usize) -> String {
        self.monitor(number).printed()
    }

    fn until_leading(&self, number: usize) {
        until("it leads", || self.leads(number));
    }

    fn leads(&self, number: usize) -> bool {
        self.printed(number).contains("INFO leading term=")
    }

    /// Sends a signal and waits for the end.
    fn end(&mut self, number: usize, signal: &str) -> (Option<i32>, String) {
        self.monitor(number).signal(signal);
        self.ended(number)
    }

    fn ended(&mut self, number: usize) -> (Option<i32>, String) {
        self.monitors[number].take().expect("it runs").end()
    }

    fn run(&self, args: &[&str]) -> CommandOutput {
        run(&[args, &["--monitor", &self.addresses()]].concat())
    }

    /// Agents on hosts `a`, `b` and `c` that replay their part of the recording, from 6 s on.
    fn agents(&self, parts: &[String; 3]) -> Vec<Process> {
        self.agents_of(&self.addresses(), parts)
    }

    /// The same of a monitor at these addresses.
    fn agents_of(&self, addresses: &str, parts: &[String; 3]) -> Vec<Process> {
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
        let shift = format!("{}ns", now + 6_000_000_000 - 1_172_163_603_000_000_000);
        let agent = |(trace, host): (&String, &str)| {
            let state = self.path(host);
            let args = [
                "agent",
                "--monitor",
                addresses,
                "--host",
                host,
                "--from",
                trace,
            ];
            let more = ["--shift", &shift, "--state", state.to_str().unwrap()];
            Process::start(&[&args[..], &more].concat())
        };
        parts.iter().zip(["a", "b", "c"]).map(agent).collect()
    }

    /// The lines of a result.
    fn lines(&self, file: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path("state").join(file)).unwrap_or_default();
        text.lines().skip(1).map(str::to_owned).collect()
    }

    fn until_rows(&self, count: usize) {
        until("rows come", || self.lines("rows.csv").len() >= count);
    }

    /// Kills each leader after some rows, and begins it again as a standby.
    fn kill_leaders(&mut self) {
        for (old, new) in [(0, 1), (1, 0), (0, 1)] {
            let had = self.lines("rows.csv").len();
            self.until_rows(had + 1_000);
            self.end(old, "-KILL");
            self.until_leading(new);
            self.begin(old);
        }
    }

    /// Waits until all requests are in the results, and checks that each is there once.
    fn check_results(&self) {
        self.until_rows(REQUESTS);
        let counts = || -> Vec<(String, usize)> {
            let read = |line: &String| {
                let (window, n) = line.rsplit_once(',')?;
                Some((window.to_owned(), n.parse().ok()?))
            };
            self.lines("counts.csv").iter().filter_map(read).collect()
        };
        until("all windows are closed", || {
            counts().iter().map(|(_, n)| n).sum::<usize>() >= REQUESTS
        });
        let counts = counts();
        let windows: BTreeSet<&String> = counts.iter().map(|(window, _)| window).collect();
        assert_eq!(
            windows.len(),
            counts.len(),
            "a window was emitted twice: {counts:?}"
        );
        assert_eq!(counts.iter().map(|(_, n)| n).sum::<usize>(), REQUESTS);
        let rows: Vec<String> = self
            .lines("rows.csv")
            .iter()
            .map(|line| line.split_once(',').unwrap().1.to_owned())
            .collect();
        let expected: Vec<String> = (0..REQUESTS)
            .map(|i| format!("{},{}", ["a", "b", "c"][i % 3], 8 * i))
            .collect();
        assert_eq!(sorted(&rows.join("\n")), sorted(&expected.join("\n")));
    }
}

#[test]
fn each_row_is_in_the_results_once_whenever_the_leader_is_killed() {
    let mut pair = Pair::start();
    let (_, parts) = dealt(&pair.home, REQUESTS);
    let _agents = pair.agents(&parts);
    let connected = |pair: &Pair, number| pair.printed(number).matches("agent connected").count();
    until("the agents have connected", || connected(&pair, 0) == 3);
    // Before the first row.
    pair.end(0, "-KILL");
    pair.until_leading(1);
    pair.begin(0);
    // In a window.
    pair.until_rows(500);
    pair.end(1, "-KILL");
    pair.until_leading(0);
    pair.begin(1);
    // While a result is written: as soon as the file has grown.
    pair.until_rows(3_000);
    let size = || fs::metadata(pair.path("state/counts.csv")).map_or(0, |file| file.len());
    let before = size();
    until("a window is written", || size() > before);
    pair.end(0, "-KILL");
    // Before the new leader has received its agents again.
    pair.until_leading(1);
    pair.begin(0);
    pair.end(1, "-KILL");
    pair.until_leading(0);
    pair.check_results();
}

/// The agents are those of a site.
#[test]
fn each_row_of_a_site_is_in_the_results_once_whenever_the_upstream_leader_is_killed() {
    let mut pair = Pair::start();
    let (_, parts) = dealt(&pair.home, REQUESTS);
    let site = Monitor::configured(&Monitor::upstream(&pair.addresses(), "east"));
    until("the site is connected", || {
        site.printed().contains("connected to the upstream monitor")
    });
    let _agents = pair.agents_of(&site.address, &parts);
    pair.kill_leaders();
    pair.check_results();
}

/// After a fail-over of a site, the results of the upstream monitor are complete from an instant
/// that they state.
#[test]
fn upstream_results_are_complete_some_time_after_the_leader_of_a_site_is_killed() {
    let top = Monitor::configured(
        "[[query]]\nname = \"rows\"\ntext = \"select sector, cast(ts as integer) from IO\"\n\
         [[query.sink]]\nfile = \"rows.csv\"\n",
    );
    let mut pair = Pair::configured(&Monitor::upstream(&top.address, "east"));
    let connected = "connected to the upstream monitor";
    until("the site is connected", || {
        pair.printed(0).contains(connected)
    });
    let (_, parts) = dealt(&pair.home, REQUESTS);
    let _agents = pair.agents(&parts);
    // The number of each request, and its time.
    let rows = || -> Vec<[u64; 2]> {
        let text = fs::read_to_string(top.home.path().join("state/rows.csv")).unwrap_or_default();
        let row = |line: &str| {
            let (rest, ts) = line.rsplit_once(',')?;
            let (_, sector) = rest.rsplit_once(',')?;
            Some([sector.parse::<u64>().ok()? / 8, ts.parse().ok()?])
        };
        text.lines().skip(1).filter_map(row).collect()
    };
    until("rows come", || rows().len() >= 1_000);
    pair.end(0, "-KILL");
    pair.until_leading(1);
    let last = REQUESTS as u64 - 1;
    until("the last row comes", || {
        rows().iter().any(|[i, _]| *i == last)
    });
    let query = top.queries().remove(0);
    let complete_from = query["complete_from"].as_u64().unwrap();
    let mut rows = rows();
    rows.sort_unstable();
    assert!(
        rows.windows(2).all(|pair| pair[0] != pair[1]),
        "a row is there twice"
    );
    // One request per millisecond.
    let [number, ts] = rows[0];
    let time = |i: u64| ts + (i - number) * 1_000_000;
    assert!(
        time(last) > complete_from + 1_000_000_000,
        "it is complete again in time"
    );
    let after = rows.iter().filter(|[_, ts]| *ts > complete_from).count();
    let expected = (number..=last).filter(|i| time(*i) > complete_from).count();
    assert_eq!(after, expected);
    let lost = query["rows_lost"].as_u64().unwrap();
    assert!(rows.len() as u64 + lost <= REQUESTS as u64, "{query}");
}

/// The rows of a stream that a client prints while the leader is killed and comes back: each once,
/// and those that it missed are counted.
#[test]
fn a_client_receives_each_window_once_whenever_the_leader_is_killed() {
    let mut pair = Pair::start();
    let (_, parts) = dealt(&pair.home, REQUESTS);
    let _agents = pair.agents(&parts);
    let addresses = pair.addresses();
    let watch = |query: &str| {
        let args = ["fleet", "watch", query, "--monitor", &addresses];
        let mut command = weir(&[&args[..], &["--format", "csv"]].concat());
        let out = fs::File::create(pair.path(query)).unwrap();
        command.stdout(out).stderr(Stdio::piped()).spawn().unwrap()
    };
    let watchers = [watch("counts"), watch("rows")];
    let are_watched = |pair: &Pair| {
        let listed = pair.run(&["fleet", "queries", "--json"]).out;
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap_or_default();
        let queries = listed.as_array().cloned().unwrap_or_default();
        queries.len() == 2 && queries.iter().all(|query| query["clients"] == 1)
    };
    until("both are watched", || are_watched(&pair));
    pair.kill_leaders();
    pair.check_results();
    until("both are watched again", || are_watched(&pair));
    for (watcher, query) in watchers.into_iter().zip(["counts", "rows"]) {
        let output = || fs::read_to_string(pair.path(query)).unwrap();
        let mut before = String::new();
        until("everything is printed", || {
            std::thread::sleep(Duration::from_secs(2));
            let now = output();
            now == std::mem::replace(&mut before, now.clone())
        });
        interrupt(&watcher);
        let watched = ended_with_errors(watcher);
        let output = output();
        let mut printed: Vec<&str> = output.lines().skip(1).collect();
        let received = printed.len();
        printed.sort_unstable();
        printed.dedup();
        assert_eq!(printed.len(), received, "{query}: a row was printed twice");
        let all = pair.lines(&format!("{query}.csv"));
        let all: BTreeSet<&str> = all.iter().map(String::as_str).collect();
        assert!(printed.iter().all(|row| all.contains(row)), "{query}");
        let skipped = watched.split(" rows skipped").next().unwrap_or_default();
        let skipped = skipped.rsplit(' ').next().unwrap_or_default();
        let skipped: usize = skipped.parse().unwrap_or(0);
        println!("{query}: {received} received, {skipped} missed");
        assert_eq!(received + skipped, all.len(), "{query}: {watched}");
    }
}

/// The standard error of a command, after its end by a signal or otherwise.
fn ended_with_errors(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_leader_that_was_stopped_does_not_act_when_it_continues() {
    let mut pair = Pair::start();
    let (_, parts) = dealt(&pair.home, REQUESTS);
    let _agents = pair.agents(&parts);
    for [old, new] in [[0, 1], [1, 0]] {
        let had = pair.lines("rows.csv").len();
        pair.until_rows(had + 500);
        pair.monitor(old).signal("-STOP");
        pair.until_leading(new);
        // The rows come from the agents, which have connected to the new leader.
        let had = pair.lines("rows.csv").len();
        pair.until_rows(had + 200);
        pair.monitor(old).signal("-CONT");
        let (code, printed) = pair.ended(old);
        assert_eq!(code, LEASE_LOST, "{printed}");
        assert!(
            printed.contains("lost the lease, no longer the leader"),
            "{printed}"
        );
        pair.begin(old);
    }
    pair.check_results();
}

#[test]
fn a_leader_that_cannot_renew_its_lease_ends() {
    let mut pair = Pair::start();
    let (_, parts) = dealt(&pair.home, REQUESTS);
    let _agents = pair.agents(&parts);
    pair.until_rows(500);
    // A directory in the place of the file: writing to it fails.
    let leader = pair.path("state/leader");
    let mut names = fs::read_dir(leader)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let staging = names.find(|path| path.is_dir()).expect("one leads");
    fs::rename(staging.join("renewal"), pair.path("away")).unwrap();
    fs::create_dir(staging.join("renewal")).unwrap();
    let (code, printed) = pair.ended(0);
    assert_eq!(code, LEASE_LOST, "{printed}");
    for line in ["the lease is not renewed, trying again", "lost the lease"] {
        assert!(printed.contains(line), "{printed}");
    }
    fs::remove_dir(staging.join("renewal")).unwrap();
    pair.until_leading(1);
    pair.check_results();
}

#[test]
fn a_clean_end_passes_the_lease_on_and_back() {
    let mut pair = Pair::start();
    let (_, parts) = dealt(&pair.home, REQUESTS);
    let _agents = pair.agents(&parts);
    for [old, new] in [[0, 1], [1, 0]] {
        let had = pair.lines("rows.csv").len();
        pair.until_rows(had + 500);
        let (code, printed) = pair.end(old, "-TERM");
        assert_eq!(code, Some(0), "{printed}");
        pair.until_leading(new);
        pair.begin(old);
    }
    pair.check_results();
    // A standby ends cleanly as well.
    let (code, printed) = pair.end(1, "-TERM");
    assert_eq!(code, Some(0), "{printed}");
    assert!(pair.leads(0));
}

#[test]
fn a_standby_names_the_leader_and_clients_find_it() {
    let mut pair = Pair::start();
    let queries = pair.run(&["fleet", "queries", "--json"]).fine();
    assert!(queries.contains("counts"), "{queries}");
    let refused = run(&["fleet", "queries", "--monitor", &pair.address(1)]);
    assert_eq!(refused.code, 1);
    let leader = "is a standby; the leader is ";
    assert!(refused.err.contains(leader), "{}", refused.err);
    assert!(refused.err.contains(&pair.address(0)), "{}", refused.err);
    // What was placed at one leader runs at the next one, and its clients follow.
    let query = "select count(*) from IO";
    let addresses = pair.addresses();
    let mut place = vec![
        "query",
        "--standing",
        "--name",
        "placed",
        "--for",
        "1ms",
        query,
    ];
    pair.run(&place).fine();
    let watch = [
        "fleet",
        "watch",
        "placed",
        "--monitor",
        &addresses,
        "--for",
        "1h",
    ];
    let mut watcher = weir(&watch);
    let watcher = watcher
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let clients = |pair: &Pair| -> serde_json::Value {
        let listed = pair.run(&["fleet", "queries", "--json"]);
        let listed: serde_json::Value = serde_json::from_str(&listed.out).unwrap_or_default();
        let mut queries = listed.as_array().cloned().unwrap_or_default().into_iter();
        let placed = queries.find(|query| query["name"] == "placed");
        placed.map_or(serde_json::Value::Null, |query| query["clients"].clone())
    };
    until("it is watched", || clients(&pair) == 1);
    pair.end(0, "-KILL");
    pair.until_leading(1);
    until("it is watched again", || clients(&pair) == 1);
    interrupt(&watcher);
    ended(watcher);
    // The other order of the addresses leads to the same monitor.
    pair.begin(0);
    until("monitor 0 stands by", || {
        pair.printed(0).contains("standby; the leader is ")
    });
    place = vec!["fleet", "cancel", "placed", "--monitor", &addresses];
    run(&place).fine();
}

#[test]
fn a_monitor_without_the_option_does_not_share_its_state() {
    let mut pair = Pair::start();
    let (config, state) = (pair.path("monitor.toml"), pair.path("state"));
    let listen = format!("unix:{}", pair.path("other.sock").display());
    let (config, state) = (config.to_str().unwrap(), state.to_str().unwrap());
    let args = [
        "monitor", "--listen", &listen, "--config", config, "--state", state,
    ];
    let (code, printed) = Process::start(&args).end();
    assert_eq!(code, Some(1));
    let expected = ["in use by another monitor", "--standby"];
    assert!(
        expected.iter().all(|text| printed.contains(text)),
        "{printed}"
    );
    // It leads alone when both have ended; a standby waits for its end, not for its renewals.
    pair.end(1, "-TERM");
    pair.end(0, "-KILL");
    let mut alone = Process::start(&args);
    until("it leads", || {
        alone.printed().contains("INFO leading term=")
    });
    alone.signal("-STOP");
    pair.begin(1);
    let remark = "was started without --standby: its lease does not expire";
    until("monitor 1 stands by", || pair.printed(1).contains(remark));
    std::thread::sleep(Duration::from_secs(5));
    assert!(!pair.leads(1), "the lock of the leader is held");
    alone.signal("-CONT");
    alone.signal("-KILL");
    alone.end();
    pair.until_leading(1);
}

#[test]
fn of_many_standbys_one_leads_in_each_term() {
    let home = Scratch::new();
    let state = home.path().join("state");
    let start = |number: usize| {
        let listen = format!(
            "unix:{}",
            home.path().join(format!("{number}.sock")).display()
        );
        let args = ["monitor", "--standby", "--state", state.to_str().unwrap()];
        Process::start(&[&args[..], &["--listen", &listen]].concat())
    };
    let mut monitors: Vec<Process> = (0..5).map(start).collect();
    let term = |monitor: &Process| -> Option<u64> {
        let printed = monitor.printed();
        let (_, rest) = printed.split_once("INFO leading term=")?;
        rest.lines().next()?.parse().ok()
    };
    let mut last = 0;
    for signal in ["-KILL", "-TERM", "-KILL", "-STOP"] {
        until("one leads", || monitors.iter().any(|m| term(m).is_some()));
        // Any further leader would have claimed its term by now.
        std::thread::sleep(Duration::from_millis(500));
        let terms: Vec<Option<u64>> = monitors.iter().map(term).collect();
        assert_eq!(terms.iter().flatten().count(), 1, "{terms:?}");
        let leader = terms.iter().position(Option::is_some).unwrap();
        assert!(terms[leader].unwrap() > last, "{terms:?} after {last}");
        last = terms[leader].unwrap();
        let mut ended = monitors.remove(leader);
        ended.signal(signal);
        if signal == "-STOP" {
            until("another one leads", || {
                monitors.iter().any(|m| term(m).is_some())
            });
            ended.signal("-CONT");
            assert_eq!(ended.end().0, LEASE_LOST);
        }
    }
}

#[test]
fn a_damaged_claim_is_named_and_passes() {
    let home = Scratch::new();
    let state = home.path().join("state");
    fs::create_dir_all(state.join("leader")).unwrap();
    let cases: [(u64, &str, &[&str]); 4] = [
        (4, "", &[]),
        (7, "", &["--standby"]),
        (11, "{\"term\":11", &[]),
        (15, "\0\0\0\0\n", &["--standby"]),
    ];
    for (term, content, more) in cases {
        let claim = state.join("leader").join(term.to_string());
        fs::write(&claim, content).unwrap();
        let listen = format!("unix:{}", home.path().join("m.sock").display());
        let args = [
            "monitor",
            "--listen",
            &listen,
            "--state",
            state.to_str().unwrap(),
        ];
        let mut monitor = Process::start(&[&args[..], more].concat());
        let leads = format!("INFO leading term={}\n", term + 1);
        until("it leads", || monitor.printed().contains(&leads));
        monitor.signal("-TERM");
        let (code, printed) = monitor.end();
        assert_eq!(code, Some(0), "{printed}");
        assert!(printed.contains(claim.to_str().unwrap()), "{printed}");
    }
}
