//! Starts the processes of a fleet, and ends them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value as Json;

pub use weir_testing::wait_until as until;

use crate::support::{CommandOutput, Scratch, requests, run, weir};

/// The end of the first of [`requests`], 2007-02-22 17:00:03.
const REQUESTS_BEGIN_NS: u128 = 1_172_163_603_000_000_000;

/// A process of a fleet, with its standard error.
pub struct Process {
    child: Child,
    printed: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Process {
    pub fn start(args: &[&str]) -> Process {
        let mut child = weir(args)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let printed: Arc<Mutex<String>> = Arc::default();
        let (log, err) = (printed.clone(), child.stderr.take().unwrap());
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(err).lines().map_while(Result::ok) {
                *log.lock().unwrap() += &format!("{line}\n");
            }
        });
        Process {
            child,
            printed,
            reader: Some(reader),
        }
    }

    pub fn printed(&self) -> String {
        self.printed.lock().unwrap().clone()
    }

    pub fn signal(&self, name: &str) {
        let mut kill = std::process::Command::new("kill");
        let id = self.child.id().to_string();
        assert!(kill.args([name, &id]).status().unwrap().success());
    }

    /// Waits for its end; returns the exit code, if no signal killed it, and its standard error.
    pub fn end(&mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        (code, self.printed())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A monitor with its own directory.
pub struct Monitor {
    pub home: Scratch,
    process: Process,
    pub address: String,
}

impl Monitor {
    /// A monitor with the default configuration.
    pub fn start() -> Monitor {
        Monitor::configured("")
    }

    /// A monitor with this configuration. `HOME` stands for its directory.
    pub fn configured(config: &str) -> Monitor {
        Monitor::with_files(config, &[])
    }

    /// The same with files that only their owner can read.
    pub fn with_files(config: &str, files: &[(&str, String)]) -> Monitor {
        let home = Scratch::new();
        for (name, text) in files {
            let path = home.write(name, text);
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        // On a busy machine an agent soon lags far behind; here the monitor waits for every agent.
        let (above, tables) = match config.find('[') {
            Some(at) => config.split_at(at),
            None => (config, ""),
        };
        let idle = match above.contains("idle = ") {
            true => "",
            false => "idle = \"60 s\"\n",
        };
        let config = format!("{idle}{above}{tables}");
        let config = config.replace("HOME", home.path().to_str().unwrap());
        home.write("monitor.toml", &config);
        // Tokens and certificates are for the network; without them only this host is served.
        let on_network = config.contains("tokens") || config.contains("[tls]");
        let listen = match on_network {
            true => "127.0.0.1:0".to_owned(),
            false => format!("unix:{}", home.path().join("m.sock").display()),
        };
        let (process, address) = begin(&home, &listen);
        Monitor {
            home,
            process,
            address,
        }
    }

    /// The section of a configuration that makes a monitor the site `host` of those at these
    /// addresses.
    pub fn upstream(addresses: &str, host: &str) -> String {
        format!("[upstream]\nmonitor = \"{addresses}\"\nhost = \"{host}\"\n")
    }

    /// Ends it by a signal.
    pub fn end(&mut self, signal: &str) -> (Option<i32>, String) {
        self.process.signal(signal);
        self.process.end()
    }

    /// Starts it again at the same address.
    pub fn again(&mut self) {
        let (process, address) = begin(&self.home, &self.address);
        assert_eq!(address, self.address);
        self.process = process;
    }

    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    pub fn printed(&self) -> String {
        self.process.printed()
    }

    /// Runs a command at this monitor to its end.
    pub fn run(&self, args: &[&str]) -> CommandOutput {
        run(&self.at(args))
    }

    /// Starts a command at this monitor. [`ended`] waits for its end.
    pub fn begin(&self, args: &[&str]) -> Child {
        let mut command = weir(&self.at(args));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// The arguments that select this monitor on a command line.
    pub fn named(&self) -> [&str; 2] {
        ["--monitor", &self.address]
    }

    fn at<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        [args, &["--monitor", &self.address]].concat()
    }

    /// Places a standing query.
    pub fn place(&self, name: &str, query: &str) {
        let args = ["query", "--standing", "--name", name, "--for", "1ms", query];
        let printed = self.run(&args);
        assert_eq!(printed.code, 0, "{}", printed.err);
    }

    /// The queries, as `weir fleet queries --json` lists them.
    pub fn queries(&self) -> Vec<Json> {
        let listed = self.run(&["fleet", "queries", "--json"]).fine();
        serde_json::from_str(&listed).unwrap()
    }

    /// An agent with this host name that observes this host, with more arguments.
    pub fn observer(&self, host: &str, more: &[&str]) -> Process {
        let state = self.home.path().join(host);
        let args = ["agent", "--monitor", &self.address, "--host", host];
        let state = ["--state", state.to_str().unwrap()];
        Process::start(&[&args[..], &state, more].concat())
    }

    /// The current content of the relation of a query.
    pub fn holds(&self, name: &str) -> String {
        let watch = ["fleet", "watch", name, "--final", "--for", "300ms"];
        self.run(&[&watch[..], &["--format", "csv"]].concat())
            .fine()
    }

    /// Agents on hosts `a`, `b`, .. that each replay one trace of [`requests`] and keep running at
    /// its end. The traces begin after all agents have started: earlier events would not be
    /// observed.
    pub fn agents(&self, traces: &[String]) -> Vec<Process> {
        self.agents_with(traces, &[])
    }

    /// The same with more arguments.
    pub fn agents_with(&self, traces: &[String], more: &[&str]) -> Vec<Process> {
        let hosts = traces.iter().zip(["a", "b", "c"]);
        let hosts: Vec<_> = hosts.map(|(trace, host)| (self, host, trace)).collect();
        agents_of(&hosts, &replay_shift(), more)
    }
}

/// The argument of `--shift` with which a trace of [`requests`] begins in some seconds.
pub fn replay_shift() -> String {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    let begin = now + Duration::from_secs(8).as_nanos();
    format!("{}ns", begin - REQUESTS_BEGIN_NS)
}

/// Agents of these monitors, on these hosts, each of which replays one trace of [`requests`] as
/// [`Monitor::agents`].
pub fn agents_of(hosts: &[(&Monitor, &str, &String)], shift: &str, more: &[&str]) -> Vec<Process> {
    let agent = |(monitor, host, trace): &(&Monitor, &str, &String)| {
        let state = monitor.home.path().join(host);
        let state = state.to_str().unwrap();
        let args = ["agent", "--monitor", &monitor.address, "--host", host];
        let replay = ["--from", trace, "--shift", shift, "--state", state];
        Process::start(&[&args[..], &replay, more].concat())
    };
    hosts.iter().map(agent).collect()
}

fn begin(home: &Scratch, listen: &str) -> (Process, String) {
    let (config, state) = (home.path().join("monitor.toml"), home.path().join("state"));
    let process = Process::start(&[
        "monitor",
        "--listen",
        listen,
        "--config",
        config.to_str().unwrap(),
        "--state",
        state.to_str().unwrap(),
    ]);
    let ready = "listening address=";
    let address = || {
        let printed = process.printed();
        let line = printed.lines().find_map(|line| line.split(ready).nth(1));
        line.map(str::to_owned)
    };
    // It listens before it leads, and refuses clients in between.
    until("the monitor is ready", || {
        address().is_some() && process.printed().contains("leading term=")
    });
    let address = address().unwrap();
    (process, address)
}

/// A recording of `count` requests, as a whole and distributed over three hosts.
pub fn dealt(home: &Scratch, count: usize) -> (String, [String; 3]) {
    let text = requests(count);
    let part = |host: usize| {
        let lines = text.lines().enumerate().filter(|(i, _)| i % 3 == host);
        let lines: String = lines.map(|(_, line)| format!("{line}\n")).collect();
        home.write(&format!("part{host}.csv"), &lines)
    };
    (home.write("all.csv", &text), [0, 1, 2].map(part))
}

/// The output of a started command, after its end.
pub fn ended(child: Child) -> CommandOutput {
    let output: Output = child.wait_with_output().unwrap();
    CommandOutput::of(output)
}

/// The lines of a CSV without their first column, sorted.
pub fn without_instants(csv: &str) -> Vec<&str> {
    let rest = |line| str::split_once(line, ',').map_or("", |(_, rest)| rest);
    let mut lines: Vec<&str> = csv.lines().map(rest).collect();
    lines.sort_unstable();
    lines
}

/// The lines of a text, sorted.
pub fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}
