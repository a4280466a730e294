//! Tools as queries beside bpftrace: both count the same load, at the same time, by the same key.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_testing::repository::root;

use crate::live::watchable;
use crate::shipped::Observed;
use crate::support::{Scratch, interrupt, skipped};

/// The tools that are compared: the name in docs/probes-tools.md, the column of its stream by which
/// hits are counted, the probe of bpftrace, and the same key there.
const COMPARED: [(&str, &str, &str, &str); 9] = [
    ("syscount", "id", "raw_syscalls:sys_enter", "args->id"),
    ("syscount -x", "ret", "raw_syscalls:sys_exit", "args->ret"),
    (
        "opensnoop",
        "filename",
        "syscalls:sys_enter_openat",
        "str(args->filename)",
    ),
    (
        "statsnoop",
        "filename",
        "syscalls:sys_enter_newfstatat",
        "str(args->filename)",
    ),
    (
        "execsnoop",
        "filename",
        "sched:sched_process_exec",
        "str(args->filename)",
    ),
    ("argdist", "size", "syscalls:sys_enter_read", "args->count"),
    ("trace", "ret", "syscalls:sys_exit_read", "args->ret"),
    ("killsnoop", "sig", "syscalls:sys_enter_kill", "args->sig"),
    (
        "threadsnoop",
        "clone_flags",
        "task:task_newtask",
        "args->clone_flags",
    ),
];

/// The command names of the load, and of those before and after it.
const BEFORE: &str = "weirbefore";
const LOAD: &str = "weirload";
const AFTER: &str = "weirafter";

/// What the load does: system calls of the shell itself, and processes that it starts.
const SCRIPT: &str = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); read line < $0; \
    [ -e /none ]; kill -0 $$; done; for n in 1 2 3; do /bin/true; done";

/// How long a busy machine may take until each has what it waits for.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Copies of the shell with names of their own.
struct Shells(Scratch);

impl Shells {
    fn new() -> Shells {
        let scratch = Scratch::new();
        for name in [BEFORE, LOAD, AFTER] {
            fs::copy("/bin/sh", scratch.path().join(name)).expect("a shell");
        }
        fs::write(scratch.path().join("script"), "text\n").expect("a temporary file");
        Shells(scratch)
    }

    fn run(&self, name: &str) {
        let script = self.0.path().join("script");
        let program: PathBuf = self.0.path().join(name);
        // With it, the loader tries long paths, of which columns have the beginning only.
        let status = Command::new(program)
            .env_remove("LD_LIBRARY_PATH")
            .args(["-c", SCRIPT])
            .arg(script)
            .status();
        assert!(status.expect("it runs").success());
    }

    /// Runs it until each query has a row of it.
    fn run_until_seen(&self, name: &str, queries: &[Observed]) {
        let start = Instant::now();
        while !queries
            .iter()
            .all(|query| query.any(|row| row["comm"] == name))
        {
            assert!(start.elapsed() < TIMEOUT, "a query has no row of {name}");
            self.run(name);
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The definition of a tool in the page, and the name of its stream.
fn definition(tool: &str) -> (String, String) {
    let page = fs::read_to_string(root().join("docs/probes-tools.md")).expect("a page");
    let begin = format!("| {tool} | ");
    let row = page
        .lines()
        .find(|line| line.starts_with(&begin))
        .expect("a row");
    let definition = row
        .split('`')
        .nth(1)
        .and_then(|query| query.split_once("; "));
    let definition = definition.expect("a definition").0.to_owned();
    let name = definition.split(' ').nth(2).expect("a name").to_owned();
    (definition, name)
}

/// bpftrace with a count for each tool.
struct Bpftrace(Child);

impl Bpftrace {
    /// `None`, with the reason, if it cannot attach.
    fn start() -> Result<(Bpftrace, BufReader<std::process::ChildStdout>), String> {
        let count = |(at, (_, _, probe, key)): (usize, &(&str, &str, &str, &str))| {
            format!("tracepoint:{probe} /comm == \"{LOAD}\"/ {{ @c{at}[{key}] = count(); }}\n")
        };
        let program: String = COMPARED.iter().enumerate().map(count).collect();
        let child = Command::new("bpftrace")
            .args(["-f", "json", "-e", &program])
            .env("BPFTRACE_STRLEN", "200")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.map_err(|error| format!("bpftrace: {error}"))?;
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        while out.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            if line.contains("attached_probes") {
                return Ok((Bpftrace(child), out));
            }
        }
        let ended = child.wait_with_output().expect("it has ended");
        Err(String::from_utf8_lossy(&ended.stderr).into_owned())
    }

    /// Its counts, by tool and key.
    fn counts(self, out: BufReader<std::process::ChildStdout>) -> Vec<BTreeMap<String, i64>> {
        // Programs that are attached later may take longer to run for the first time.
        thread::sleep(Duration::from_millis(200));
        interrupt(&self.0);
        let mut counts = vec![BTreeMap::new(); COMPARED.len()];
        for line in out.lines().map_while(Result::ok) {
            let Ok(message) = serde_json::from_str::<Value>(&line) else {
                continue;
            };
            for (map, values) in message["data"].as_object().into_iter().flatten() {
                let at = map
                    .strip_prefix("@c")
                    .and_then(|at| at.parse::<usize>().ok());
                let values = values.as_object().into_iter().flatten();
                let Some(at) = at else {
                    continue;
                };
                let values = values.map(|(key, n)| (key.clone(), n.as_i64().expect("a count")));
                counts[at] = values.collect();
            }
        }
        counts
    }
}

impl Drop for Bpftrace {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn counts_of_tools_equal_those_of_bpftrace() {
    if !watchable("tools beside bpftrace") {
        return;
    }
    let (bpftrace, out) = match Bpftrace::start() {
        Ok(started) => started,
        Err(why) => return skipped("tools beside bpftrace", why),
    };
    let shells = Shells::new();
    let query = |(tool, column, ..): &(&str, &str, &str, &str)| {
        let (definition, name) = definition(tool);
        let names = format!("'{BEFORE}', '{LOAD}', '{AFTER}'");
        Observed::start(&format!(
            "{definition}; select comm, {column} as key from {name} where comm in ({names})"
        ))
    };
    let queries: Vec<Observed> = COMPARED.iter().map(query).collect();
    shells.run_until_seen(BEFORE, &queries);
    shells.run(LOAD);
    shells.run_until_seen(AFTER, &queries);
    let theirs = bpftrace.counts(out);
    for ((observed, theirs), (tool, ..)) in queries.iter().zip(&theirs).zip(COMPARED) {
        let mut own: BTreeMap<String, i64> = BTreeMap::new();
        for row in observed.rows().iter().filter(|row| row["comm"] == LOAD) {
            let key = match &row["key"] {
                Value::String(text) => text.clone(),
                Value::Null => String::new(),
                number => number.to_string(),
            };
            *own.entry(key).or_default() += 1;
        }
        assert!(!own.is_empty(), "{tool} counts nothing");
        assert_eq!(own, *theirs, "{tool}");
    }
}

/// The page names the tools that are compared, and no others.
#[test]
fn the_page_names_what_is_compared() {
    let page = fs::read_to_string(root().join("docs/probes-tools.md")).expect("a page");
    let names: Vec<String> = COMPARED
        .iter()
        .map(|(tool, ..)| format!("`{tool}`"))
        .collect();
    let text = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let sentence = format!(
        "The counts of these queries are compared with bpftrace's: {}.",
        names.join(", ")
    );
    assert!(text.contains(&sentence), "{sentence}");
}
