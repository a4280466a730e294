//! Everything that a soak starts, and its end.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use weir_testing::{
    Counts, DiskLoad, Fleet, FleetProcess, LoopDisk, MonitorProcess, PacedLoad, TestHost,
    disk_stats, run,
};

use super::account::{self, Balance, OUTPUT, QUERIES};
use super::leftover::Traces;
use super::sample::{self, Directories};
use super::virtual_disk::VirtualDisk;
use super::{Options, WORKER};

/// The agent that observes the loop devices, and that of the tapdisk.
pub const AGENTS: [&str; 2] = ["agent", "tapdisk-agent"];

/// The running processes and devices.
pub struct Setup {
    // Dropped in this order.
    exporter: Option<FleetProcess>,
    /// `None` only while it is replaced or after the end.
    agents: [Option<FleetProcess>; 2],
    monitor: Option<MonitorProcess>,
    disk: VirtualDisk,
    loads: Vec<PacedLoad>,
    disks: Vec<LoopDisk>,
    hosts: [TestHost; 2],
    fleet: Fleet,
    /// The address of the monitor, also while it does not run.
    address: SocketAddr,
    exporter_address: String,
    /// The kernel's count of requests, and that of the exporter, when the load began.
    before: i64,
    exported_before: Balance,
    /// Requests of the self-tests of agents that were started since.
    self_tests: i64,
    /// The number of the agent's BPF links when it runs all queries.
    links: f64,
    /// All processes so far.
    pids: BTreeSet<u32>,
    rate: u64,
}

/// The number and size of the loop devices.
const DISKS: usize = 2;
const DISK_MIB: u64 = 32;

/// Space for the files of all processes.
const FOLDER_MIB: u64 = 1024;

/// How long a process may take to reach a state.
const TIMEOUT: Duration = Duration::from_secs(90);

/// How long counts may take to balance after the load has ended.
const BALANCE_TIMEOUT: Duration = Duration::from_secs(60);

/// Time in which a tap reads its last events.
pub const SETTLE: Duration = Duration::from_millis(1_500);

/// Time in which a fragment begins to count: a query of groups receives the first whole slide.
const START: Duration = Duration::from_millis(3_000);

impl Setup {
    /// Starts everything; on return every tap is attached and the load runs.
    pub fn new(options: &Options) -> Result<Setup> {
        assert!(std::env::var_os(WORKER).is_some(), "in a group of its own");
        let weir = options.weir.as_ref().context("no program")?;
        let fleet = Fleet::new(weir, &AGENTS, FOLDER_MIB)?;
        let disks = loop_devices()?;
        let hosts = [TestHost::new()?, TestHost::new()?];
        let monitor = fleet.monitor((hosts[0].gateway(), 0).into(), &monitor_settings())?;
        let disk = VirtualDisk::start(&fleet, options.guest)?;
        // Tools of the system read new devices.
        sleep(SETTLE);
        let (exporter, exporter_address) = exporter(&fleet, &disks)?;
        let mut setup = Setup {
            exporter: Some(exporter),
            agents: [None, None],
            address: monitor.address(),
            monitor: Some(monitor),
            disk,
            loads: Vec::new(),
            disks,
            hosts,
            fleet,
            exporter_address,
            before: 0,
            exported_before: Balance::default(),
            self_tests: 0,
            links: 0.0,
            pids: BTreeSet::new(),
            rate: options.rate,
        };
        for agent in 0..AGENTS.len() {
            setup.start_agent(agent)?;
        }
        setup.until("all agents run all queries", Setup::is_complete)?;
        setup.until("the exporter has attached its probes", |setup| {
            let exporter = setup.exporter.as_ref().expect("it runs");
            Ok(sample::bpf_links(exporter.pid()) > 0.0)
        })?;
        sleep(START);
        setup.links = sample::bpf_links(setup.agent(0).pid());
        setup.begin_load()?;
        Ok(setup)
    }

    fn begin_load(&mut self) -> Result<()> {
        self.before = self.kernel_requests()?;
        self.exported_before = account::of_exporter(&self.scrape()?);
        for (seed, disk) in (1..).zip(&self.disks) {
            self.loads.push(PacedLoad::start(DiskLoad {
                read: 60,
                write: 40,
                rate: self.rate,
                seed,
                ..DiskLoad::on(disk.path())
            }));
        }
        self.disk.begin_load(self.rate)
    }

    /// What runs.
    pub fn description(&self) -> String {
        format!(
            "a monitor; an agent and an exporter on {DISKS} loop devices; a tapdisk whose disk {} \
             uses, with an agent; {} requests per second on each disk",
            self.disk.kind(),
            self.rate
        )
    }

    /// An agent, by its index in [`AGENTS`].
    pub fn agent(&self, agent: usize) -> &FleetProcess {
        self.agents[agent].as_ref().expect("it runs")
    }

    /// The monitor.
    pub fn monitor(&self) -> &MonitorProcess {
        self.monitor.as_ref().expect("it runs")
    }

    /// The fleet, for client commands.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// The host of the agent that observes loop devices.
    pub fn host(&self) -> &TestHost {
        &self.hosts[0]
    }

    /// The loop devices, each with its load.
    pub fn disks(&self) -> impl Iterator<Item = (&LoopDisk, &PacedLoad)> {
        self.disks.iter().zip(&self.loads)
    }

    /// The tapdisk's process.
    pub fn tapdisk_pid(&self) -> u32 {
        self.disk.pid()
    }

    /// Completed requests of all loads.
    pub fn requests(&self) -> u64 {
        let of_devices = self.loads.iter().map(PacedLoad::completed).sum::<u64>();
        of_devices + self.disk.completed()
    }

    /// The processes to sample, with their directories.
    pub fn subjects(&self) -> Vec<(&'static str, u32, Option<Directories>)> {
        let directories = |name: &str, output: &[&'static str]| {
            let (state, output) = (self.fleet.file(name), output.to_vec());
            Some(Directories { state, output })
        };
        let mut all = Vec::new();
        for (agent, name) in self.agents.iter().zip(AGENTS) {
            all.extend(
                agent
                    .as_ref()
                    .map(|a| (name, a.pid(), directories(name, &[]))),
            );
        }
        let monitor = self.monitor.as_ref();
        all.extend(monitor.map(|m| ("monitor", m.pid(), directories("monitor", &OUTPUT))));
        all.extend(self.exporter.as_ref().map(|e| ("exporter", e.pid(), None)));
        all.push(("tapdisk", self.disk.pid(), None));
        all
    }

    /// Starts an agent with the state of the previous one.
    fn start_agent(&mut self, agent: usize) -> Result<()> {
        let (name, host) = (AGENTS[agent], &self.hosts[agent]);
        let source = match agent {
            0 => {
                let devices: Vec<&str> = self.disks.iter().map(LoopDisk::path).collect();
                // Lists of texts have the same syntax in TOML and in Rust's debug format.
                format!("devices = {devices:?}")
            }
            _ => format!("from = \"tapdisk:{}\"", self.disk.tap()),
        };
        let settings = format!("{source}\n[uplink]\nretry = \"1 s\"\n");
        let start = || self.fleet.agent(name, host, self.address, &settings, &[]);
        let started = match agent {
            // The requests of its self-test belong to no query: it is not connected before.
            0 => {
                host.cut()?;
                let mut started = start()?;
                started.wait_for_line("the self-test has ended")?;
                host.mend()?;
                started
            }
            _ => start()?,
        };
        self.agents[agent] = Some(started);
        Ok(())
    }

    /// Kills the agent of the loop devices.
    pub fn kill_agent(&mut self) -> Result<()> {
        let agent = self.agents[0].take().expect("it runs");
        self.pids.extend(sample::family(agent.pid()));
        agent.kill()
    }

    /// Starts it again while the devices are idle; on return it observes them, and its host is
    /// connected.
    pub fn restart_agent(&mut self) -> Result<()> {
        let before = self.kernel_requests()?;
        self.start_agent(0)?;
        let links = self.links;
        self.until("the restarted agent has attached its probes", |setup| {
            Ok(sample::bpf_links(setup.agent(0).pid()) >= links && setup.is_complete()?)
        })?;
        sleep(START);
        self.self_tests += self.kernel_requests()? - before;
        Ok(())
    }

    /// Kills the monitor.
    pub fn kill_monitor(&mut self) -> Result<()> {
        let monitor = self.monitor.take().expect("it runs");
        self.pids.insert(monitor.pid());
        monitor.kill()
    }

    /// Starts another one at the same address, with the state of the previous one.
    pub fn restart_monitor(&mut self) -> Result<()> {
        let monitor = self.fleet.monitor(self.address, &monitor_settings())?;
        self.monitor = Some(monitor);
        self.until_complete()
    }

    /// Waits until all agents run all queries.
    pub fn until_complete(&mut self) -> Result<()> {
        self.until("all agents run all queries", Setup::is_complete)
    }

    /// Whether all agents run all queries.
    fn is_complete(&self) -> Result<bool> {
        let queries = self.fleet.listed(self.monitor(), "queries")?;
        let hosts = Some(AGENTS.len() as u64);
        let is_whole = |name: &str| {
            let query = queries.iter().find(|query| query["name"] == name);
            query.is_some_and(|q| {
                q["hosts"].as_u64() == hosts && q["hosts_responded"].as_u64() == hosts
            })
        };
        Ok(QUERIES.iter().all(|query| is_whole(query.name)))
    }

    fn until(&mut self, what: &str, done: impl Fn(&Setup) -> Result<bool>) -> Result<()> {
        let started = Instant::now();
        while !done(self)? {
            for agent in self.agents.iter_mut().flatten() {
                if let Some(status) = agent.ended()? {
                    bail!("an agent ended with {status}: {}", agent.output());
                }
            }
            if started.elapsed() > TIMEOUT {
                bail!("waited without success until {what}");
            }
            sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// The number of requests of the loop devices, as counted by the kernel.
    fn kernel_requests(&self) -> Result<i64> {
        let text = fs::read_to_string("/proc/diskstats").context("/proc/diskstats")?;
        let counts = disk_stats(&text);
        let of_disk = |disk: &LoopDisk| counts.get(disk.name()).map(Counts::requests);
        let requests = self
            .disks
            .iter()
            .map(|d| of_disk(d).context("no such disk"));
        requests.sum()
    }

    /// Ends the load and compares the counts.
    pub fn end_load(&mut self) -> Result<Vec<Balance>> {
        let mut planned = 0;
        for load in self.loads.drain(..) {
            planned += load.stop()?;
        }
        let (of_guest, source_of_guest) = self.disk.end_load()?;
        let of_kernel = u64::try_from(self.kernel_requests()? - self.before)?;
        let of_queries = of_kernel - u64::try_from(self.self_tests)?;
        if of_queries < planned {
            bail!("the load had {planned} requests, but the kernel counted {of_queries}");
        }
        let source = format!(
            "/proc/diskstats of the loop devices without self-tests: {of_queries}; {source_of_guest}: {of_guest}"
        );
        let monitor = self.monitor.as_ref().context("no monitor runs")?;
        let started = Instant::now();
        loop {
            let mut balances = Vec::new();
            for query in QUERIES {
                let expected = (of_queries + of_guest, source.as_str());
                balances.push(query.balance(&self.fleet, monitor, expected)?);
            }
            let exported = account::of_exporter(&self.scrape()?);
            let kernel = "/proc/diskstats of the loop devices";
            balances.push(exported.since(&self.exported_before, of_kernel, kernel));
            balances.push(self.disk.balance((of_guest, source_of_guest))?);
            if balances.iter().all(Balance::holds) || started.elapsed() > BALANCE_TIMEOUT {
                return Ok(balances);
            }
            sleep(Duration::from_millis(500));
        }
    }

    /// The metrics of the exporter.
    fn scrape(&self) -> Result<String> {
        let mut stream = self.connect_exporter()?;
        write!(
            stream,
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    /// A connection to the exporter.
    pub fn connect_exporter(&self) -> Result<TcpStream> {
        let address = &self.exporter_address;
        let stream = TcpStream::connect(address).with_context(|| address.clone())?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(stream)
    }

    /// What must not exist after the end.
    pub fn traces(&mut self) -> Traces {
        for (_, pid, _) in self.subjects() {
            self.pids.extend(sample::family(pid));
        }
        self.pids.extend(self.disk.guest_pid());
        let port = |address: &str| address.rsplit(':').next()?.parse().ok();
        let ports = [self.address.to_string(), self.exporter_address.clone()];
        Traces {
            pids: self.pids.clone(),
            devices: self.disks.iter().map(|d| d.image().to_owned()).collect(),
            folder: self.fleet.file(""),
            hosts: self.hosts.iter().map(|h| h.name().to_owned()).collect(),
            ports: ports.iter().filter_map(|a| port(a)).collect(),
        }
    }

    /// The logs of all processes and the output of the queries, by name.
    pub fn logs(&self) -> Vec<(String, String)> {
        let processes = AGENTS.into_iter().chain(["monitor", "exporter", "tapdisk"]);
        let logs = processes.map(|name| format!("{name}.log"));
        let output = OUTPUT.iter().map(|name| format!("monitor/{name}"));
        let read = |file: String| {
            let text = fs::read_to_string(self.fleet.file(&file)).unwrap_or_default();
            (file.replace("monitor/", ""), text)
        };
        logs.chain(output).map(read).collect()
    }

    /// Ends everything in order.
    pub fn end(mut self) -> Result<()> {
        for agent in self.agents.iter_mut().filter_map(Option::take) {
            agent.stop()?;
        }
        if let Some(exporter) = self.exporter.take() {
            exporter.stop()?;
        }
        if let Some(monitor) = self.monitor.take() {
            monitor.stop()?;
        }
        self.disk.end()
    }
}

/// The settings of the monitor besides its address and security.
fn monitor_settings() -> String {
    let queries: String = QUERIES.iter().map(|query| query.setting()).collect();
    format!("heartbeat = \"500 ms\"\n[limits]\nclient_queue = \"64 KiB\"\n{queries}")
}

/// The loop devices. Lower numbers are free afterwards, so that other programs do not receive the
/// number of one that is detached for some time.
fn loop_devices() -> Result<Vec<LoopDisk>> {
    const SPARE: usize = 3;
    let spare: Vec<LoopDisk> = (0..SPARE)
        .map(|_| LoopDisk::new(1))
        .collect::<Result<_>>()?;
    let disks = (0..DISKS).map(|_| LoopDisk::new(DISK_MIB)).collect();
    drop(spare);
    disks
}

/// An exporter of these devices, and its address.
fn exporter(fleet: &Fleet, disks: &[LoopDisk]) -> Result<(FleetProcess, String)> {
    let mut command = Command::new(fleet.weir());
    command.args(["exporter", "--listen", "127.0.0.1:0"]);
    for disk in disks {
        command.args(["--device", disk.path()]);
    }
    let mut exporter = fleet.start("exporter", command)?;
    let url = exporter.wait_for_line("url=http://")?;
    let address = url.split('/').next().unwrap_or_default().to_owned();
    Ok((exporter, address))
}

/// Sends a signal, by name.
pub fn signal(pid: u32, name: &str) -> Result<()> {
    run("kill", &["-s", name, &pid.to_string()]).map(drop)
}
