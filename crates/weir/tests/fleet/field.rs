//! Hosts, a monitor with a standing query, and the balance: the rows that each agent produced, and
//! how they were delivered or counted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_testing::{Fleet, FleetProcess, MonitorProcess, TIMEOUT, TestHost, skipped};

/// The number of requests in an agent's trace, one per millisecond.
pub const REQUESTS: u64 = 6_000;

/// The space for the output of a fleet.
const FOLDER_MIB: u64 = 256;

/// The standing query whose rows are counted: host and sector identify a request.
const ROWS: &str = "select host, sector, bytes, latency from IO";

/// Hosts, their network, and a monitor.
pub struct Field {
    // Fields are dropped in this order.
    pub monitor: Option<MonitorProcess>,
    pub fleet: Fleet,
    pub hosts: Vec<(&'static str, TestHost)>,
    address: SocketAddr,
    settings: String,
}

/// The delivered and the counted rows of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Rows in the output file of the query.
    pub delivered: u64,
    pub lost: u64,
    pub late: u64,
}

impl Field {
    /// A monitor with these settings and these hosts; otherwise logs that `test` is skipped.
    pub fn new(test: &str, names: &[&'static str], settings: &str) -> Option<Field> {
        let host = |name: &&'static str| Ok((*name, TestHost::new()?));
        let hosts: anyhow::Result<Vec<_>> = names.iter().map(host).collect();
        let hosts = match hosts {
            Ok(hosts) => hosts,
            Err(why) => {
                skipped(test, format!("{why:#}"));
                return None;
            }
        };
        let weir = Path::new(env!("CARGO_BIN_EXE_weir"));
        let fleet = Fleet::new(weir, names, FOLDER_MIB).unwrap();
        let rows = standing("rows", ROWS, "csv");
        let settings = format!("{settings}\n{rows}");
        let monitor = fleet.monitor((hosts[0].1.gateway(), 0).into(), &settings);
        let monitor = monitor.unwrap();
        Some(Field {
            address: monitor.address(),
            monitor: Some(monitor),
            fleet,
            hosts,
            settings,
        })
    }

    pub fn monitor(&self) -> &MonitorProcess {
        self.monitor.as_ref().expect("it runs")
    }

    /// The address of the monitor, also while it does not run.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Kills the monitor, as a failure of its machine would.
    pub fn kill_monitor(&mut self) {
        self.monitor.take().expect("it runs").kill().unwrap();
    }

    /// Starts another monitor at the same address, with the state of the previous one.
    pub fn restart_monitor(&mut self) {
        let monitor = self.fleet.monitor(self.address, &self.settings);
        self.monitor = Some(monitor.unwrap());
    }

    pub fn host(&self, name: &str) -> &TestHost {
        let host = self.hosts.iter().find(|(n, _)| *n == name);
        &host.expect("the field has it").1
    }

    /// An agent that replays its own trace once, unchanged, and connects to the monitor.
    pub fn replaying(&self, name: &str) -> FleetProcess {
        self.replaying_through(name, self.address)
    }

    /// The same through another address.
    pub fn replaying_through(&self, name: &str, to: SocketAddr) -> FleetProcess {
        self.replaying_with(name, to, "", 1)
    }

    /// The same with these settings of the agent, and with a multiple of the requests in the same
    /// time.
    pub fn replaying_with(
        &self,
        name: &str,
        to: SocketAddr,
        settings: &str,
        pace: u64,
    ) -> FleetProcess {
        let trace = self.fleet.file(&format!("{name}.csv"));
        fs::write(&trace, requests(0, pace * REQUESTS)).unwrap();
        let pace = pace.to_string();
        let options = ["--from", &trace, "--once", "--pace", &pace];
        let agent = self
            .fleet
            .agent(name, self.host(name), to, settings, &options);
        agent.unwrap()
    }

    /// The content of the query's output file, by host: the number of rows of each sector.
    pub fn delivered(&self) -> BTreeMap<String, Vec<u64>> {
        let path = self.fleet.file("monitor/rows.csv");
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut rows: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        // The last line may be incomplete.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in whole.lines().skip(1) {
            // The first column is the instant.
            let mut fields = line.split(',').skip(1);
            let (host, sector) = (fields.next().unwrap(), fields.next().unwrap());
            let sectors = rows.entry(host.trim_matches('"').to_owned()).or_default();
            sectors.push(sector.parse().unwrap_or_else(|e| panic!("{line}: {e}")));
        }
        rows
    }

    /// Waits until this number of rows of a host is in the file.
    pub fn until_delivered(&self, host: &str, rows: usize) {
        let what = format!("{rows} rows of {host} are there");
        self.until(&what, || {
            let delivered = self.delivered();
            delivered.get(host).map_or(0, Vec::len) >= rows
        });
    }

    /// Waits until this number of rows of a host is in the file, or was counted as late.
    pub fn until_reported(&self, host: &str, rows: u64) {
        self.until(&format!("{rows} rows of {host} are told"), || {
            let books = self.books().get(host).copied().unwrap_or_default();
            books.delivered + books.late >= rows
        });
    }

    pub fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let started = Instant::now();
        while !done() {
            if started.elapsed() > TIMEOUT {
                panic!(
                    "waited in vain until {what}\n{:?}\n{}",
                    self.books(),
                    self.printed()
                );
            }
            sleep(Duration::from_millis(50));
        }
    }

    /// The output of all processes.
    fn printed(&self) -> String {
        let names = self.hosts.iter().map(|(name, _)| *name);
        let logs = names.chain(["monitor"]).map(|name| {
            let log = self.fleet.file(&format!("{name}.log"));
            format!("{name}: {}", fs::read_to_string(log).unwrap_or_default())
        });
        logs.collect()
    }

    /// The delivered and the counted rows of each host.
    pub fn books(&self) -> BTreeMap<String, Books> {
        let mut books = BTreeMap::new();
        for host in self.listed("hosts") {
            let count = |key: &str| host[key].as_u64().unwrap();
            let of_host = Books {
                delivered: 0,
                lost: count("rows_lost"),
                late: count("rows_late"),
            };
            books.insert(host["host"].as_str().unwrap().to_owned(), of_host);
        }
        for (host, sectors) in self.delivered() {
            let of_host: &mut Books = books.entry(host).or_default();
            of_host.delivered = sectors.len() as u64;
        }
        books
    }

    /// `weir fleet queries` or `hosts`.
    pub fn listed(&self, what: &str) -> Vec<Value> {
        self.fleet.listed(self.monitor(), what).unwrap()
    }

    /// Waits until the delivered rows plus those counted as lost or late equal the produced rows,
    /// for each host, and asserts that no row is duplicated.
    pub fn balanced(&self, produced: &[(&str, u64)]) -> BTreeMap<String, Books> {
        self.until(&format!("the books balance for {produced:?}"), || {
            let books = self.books();
            produced.iter().all(|(host, rows)| {
                let b = books.get(*host).copied().unwrap_or_default();
                b.delivered + b.lost + b.late == *rows
            })
        });
        for (host, sectors) in self.delivered() {
            let distinct: BTreeSet<u64> = sectors.iter().copied().collect();
            assert_eq!(
                distinct.len(),
                sectors.len(),
                "rows of {host} are there twice"
            );
        }
        self.books()
    }
}

/// A standing query of the monitor whose output goes to a file of the same name.
pub fn standing(name: &str, text: &str, format: &str) -> String {
    format!(
        "[[query]]\nname = \"{name}\"\ntext = \"{text}\"\n[[query.sink]]\nformat = \"{format}\"\nfile = \"{name}.{format}\"\n"
    )
}

/// Requests `from..to` to one disk as an MSR Cambridge trace, one per millisecond, each to a
/// different sector.
pub fn requests(from: u64, to: u64) -> String {
    let line = |i: u64| {
        let ts = 128_166_372_030_000_000 + 10_000 * i;
        format!("{ts},vm1,0,Read,{},4096,5000\n", 4096 * i)
    };
    (from..to).map(line).collect()
}

/// Asserts that an agent that replays its whole trace has ended without an error.
pub fn ended_well(mut agent: FleetProcess) {
    let status = agent.wait().unwrap();
    assert!(status.success(), "{status}: {}", agent.output());
}
