//! The set-up of experiments 4 to 6: hosts as network namespaces, each with VMs and an agent that
//! observes only their disks, and a monitor with standing queries that write to files.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use weir_testing::{Fleet, FleetProcess, MonitorProcess, TestHost};

use super::copying::{Vm, done};
use super::local::SETTLE;
use crate::root;
use crate::time_used::Counters;

/// Space for the output of monitor and agents.
const FOLDER_MIB: u64 = 1_024;

/// The timeout until all agents run all queries.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// A standing query of the monitor.
#[derive(Clone)]
pub struct Asked {
    name: String,
    text: String,
    place: Option<String>,
}

impl Asked {
    /// A query, and its placement strategy if not the cheapest.
    pub fn new(name: &str, text: &str, place: Option<&str>) -> Asked {
        Asked {
            name: name.to_owned(),
            text: text.to_owned(),
            place: place.map(str::to_owned),
        }
    }

    /// Its entry in the monitor's settings.
    fn setting(&self) -> String {
        let Asked { name, text, place } = self;
        let place = place.as_ref().map(|place| format!("place = \"{place}\"\n"));
        format!(
            "[[query]]\nname = \"{name}\"\ntext = \"{text}\"\n{}[[query.sink]]\nformat = \"delta\"\nfile = \"{name}.delta\"\n",
            place.unwrap_or_default()
        )
    }
}

/// A running fleet. It is stopped when it is dropped.
pub struct Field {
    // In the order of their end.
    agents: Vec<FleetProcess>,
    monitor: MonitorProcess,
    fleet: Fleet,
    hosts: Vec<TestHost>,
    vms: Vec<Vm>,
    asked: Vec<Asked>,
}

/// The measurements of an interval.
pub struct Used {
    /// All agents' processor time, in percent of one processor.
    pub agents_percent: f64,
    /// The monitor's.
    pub monitor_percent: f64,
    /// The whole machine's.
    pub machine_percent: f64,
    /// From all agents to the monitor, as counted by the kernel on the hosts' network interfaces.
    pub sent_bytes_per_second: f64,
    /// The I/O of all VMs.
    pub requests_per_second: f64,
}

impl Field {
    /// A host for each list of VMs, and the monitor. It returns when all agents run all queries.
    pub fn new(vms_of_hosts: Vec<Vec<Vm>>, asked: &[Asked]) -> Result<Field> {
        let names: Vec<String> = (1..=vms_of_hosts.len())
            .map(|n| format!("host{n}"))
            .collect();
        let each: Vec<&str> = names.iter().map(String::as_str).collect();
        let fleet = Fleet::new(&root().join("target/release/weir"), &each, FOLDER_MIB)?;
        let hosts: Vec<TestHost> = names
            .iter()
            .map(|_| TestHost::new())
            .collect::<Result<_>>()?;
        let queries: String = asked.iter().map(Asked::setting).collect();
        let monitor = fleet.monitor((hosts[0].gateway(), 0).into(), &queries)?;
        let mut agents = Vec::new();
        for ((name, host), vms) in names.iter().zip(&hosts).zip(&vms_of_hosts) {
            let devices: Vec<&str> = vms.iter().map(Vm::device).collect();
            let declared: Vec<String> = vms.iter().filter_map(Vm::declaration).collect();
            // Lists of texts have the same syntax in TOML and in Rust's debug format.
            let settings = format!("devices = {devices:?}\nvms = {declared:?}\n");
            agents.push(fleet.agent(name, host, monitor.address(), &settings, &[])?);
        }
        let mut field = Field {
            agents,
            monitor,
            fleet,
            hosts,
            vms: vms_of_hosts.into_iter().flatten().collect(),
            asked: asked.to_vec(),
        };
        field.wait()?;
        Ok(field)
    }

    /// Waits until all agents run all queries.
    fn wait(&mut self) -> Result<()> {
        let started = Instant::now();
        let hosts = Some(self.hosts.len() as u64);
        loop {
            let queries = self.fleet.listed(&self.monitor, "queries")?;
            let whole = |query: &Value| {
                query["hosts"].as_u64() == hosts && query["hosts_responded"].as_u64() == hosts
            };
            if queries.len() == self.asked.len() && queries.iter().all(whole) {
                return Ok(());
            }
            for agent in &mut self.agents {
                if let Some(status) = agent.ended()? {
                    bail!("an agent ended with {status}: {}", agent.output());
                }
            }
            if started.elapsed() > RESPONSE_TIMEOUT {
                let logs: String = self.agents.iter().map(FleetProcess::output).collect();
                bail!(
                    "not all agents run all queries: {queries:?}\n{logs}{}",
                    self.monitor.output()
                );
            }
            sleep(Duration::from_millis(100));
        }
    }

    /// Measures it for this number of seconds, and stops it.
    pub fn measured(self, seconds: u32) -> Result<Used> {
        sleep(SETTLE);
        let mut pids: Vec<u32> = vec![self.monitor.pid()];
        pids.extend(self.agents.iter().map(FleetProcess::pid));
        let counters = Counters::now(&pids)?;
        let before = (done(&self.vms)?, self.sent_bytes()?);
        sleep(Duration::from_secs(seconds.into()));
        let (used, after) = (counters.since()?, (done(&self.vms)?, self.sent_bytes()?));
        self.check()?;
        for agent in self.agents {
            agent.stop()?;
        }
        self.monitor.stop()?;
        Ok(Used {
            agents_percent: used.process_percent[1..].iter().sum(),
            monitor_percent: used.process_percent[0],
            machine_percent: used.machine_percent,
            sent_bytes_per_second: (after.1 - before.1) / used.seconds,
            requests_per_second: (after.0.requests - before.0.requests) / used.seconds,
        })
    }

    fn sent_bytes(&self) -> Result<f64> {
        let mut bytes = 0;
        for host in &self.hosts {
            bytes += host.traffic()?.sent_bytes;
        }
        Ok(bytes as f64)
    }

    /// Checks the queries: one without results, or without all of them, was not measured.
    fn check(&self) -> Result<()> {
        for query in self.fleet.listed(&self.monitor, "queries")? {
            if query["rows_lost"].as_u64() != Some(0) {
                bail!("a query failed, or lost rows: {query}");
            }
        }
        for asked in &self.asked {
            let path = self.fleet.file(&format!("monitor/{}.delta", asked.name));
            if fs::metadata(&path).with_context(|| path.clone())?.len() == 0 {
                bail!("query {} returned no rows", asked.name);
            }
        }
        Ok(())
    }
}
