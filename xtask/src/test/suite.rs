//! One suite: a test executable that cargo built, or a call of `cargo test`.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{cargo, root};

/// A suite of tests.
pub struct Suite {
    /// The package and the name of the suite.
    pub name: String,
    /// The package.
    pub package: String,
    runs: Runs,
    is_in_background: bool,
    /// Most of its tests wait.
    waits: bool,
}

enum Runs {
    /// An executable, in the directory of its package.
    Executable { path: PathBuf, directory: PathBuf },
    /// `cargo test` with these arguments.
    Cargo(Vec<String>),
}

/// What a suite printed.
pub struct Finished {
    /// Standard output: a line for each test.
    pub output: String,
    /// Standard error: skipped and retried tests.
    pub errors: String,
    /// True if all tests passed.
    pub is_success: bool,
    /// The time that it took.
    pub took: Duration,
}

/// How long the output of a suite is read after its end: a process that it left may hold it.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);

/// How much of a panic is in the summary. The output of the suite has all of it.
const PANIC_LINES: usize = 8;
const PANIC_COLUMNS: usize = 500;

/// The variable with the number of tests at a time.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// The arguments of `cargo test` that select packages.
const PACKAGES: [&str; 3] = ["--workspace", "--package", "-p"];

/// Builds all tests of the workspace.
///
/// # Errors
///
/// If one does not compile.
pub fn build() -> Result<Vec<Suite>> {
    let built = cargo()
        .args(["test", "--locked", "--workspace", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo test")?;
    ensure!(built.status.success(), "the tests do not compile");
    let mut suites = Vec::new();
    for line in String::from_utf8_lossy(&built.stdout).lines() {
        let message: Value = serde_json::from_str(line).context("a message of cargo")?;
        if message["profile"]["test"] == true
            && let Some(path) = message["executable"].as_str()
        {
            suites.push(Suite::of_executable(Path::new(path), &message)?);
        }
    }
    if suites.is_empty() {
        bail!("cargo built no tests");
    }
    Ok(suites)
}

impl Suite {
    fn of_executable(path: &Path, message: &Value) -> Result<Suite> {
        let manifest = message["manifest_path"].as_str().context("a manifest")?;
        let directory = Path::new(manifest).parent().context("a directory")?;
        let package = directory.file_name().context("a package")?;
        let package = package.to_string_lossy().into_owned();
        let target = message["target"]["name"].as_str().context("a target")?;
        let kind = message["target"]["kind"][0].as_str().context("a kind")?;
        let name = format!("{package}, {kind} {target}");
        let suite = Suite::of_program(&name, path, directory);
        Ok(Suite { package, ..suite })
    }

    /// A program that prints as Rust's tests do.
    pub fn of_program(name: &str, path: &Path, directory: &Path) -> Suite {
        Suite {
            name: name.to_owned(),
            package: String::new(),
            runs: Runs::Executable {
                path: path.into(),
                directory: directory.into(),
            },
            is_in_background: false,
            waits: false,
        }
    }

    /// `cargo test` with further arguments.
    pub fn selected(args: &[String]) -> Suite {
        Suite {
            name: format!("cargo test {}", args.join(" ")),
            package: String::new(),
            runs: Runs::Cargo(args.to_vec()),
            is_in_background: false,
            waits: false,
        }
    }

    /// The same with the lowest priority: it uses the processors when no other suite does.
    pub fn in_background(self) -> Suite {
        Suite {
            is_in_background: true,
            ..self
        }
    }

    /// The same with one more test at a time than there are processors, since most of them wait.
    pub fn with_waiting_tests(self) -> Suite {
        Suite {
            waits: true,
            ..self
        }
    }

    /// Runs the tests; `environment` is added to this process's.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn run(&self, environment: &[(&str, &str)]) -> Result<Finished> {
        self.run_with(&[], environment)
    }

    /// Runs one of the tests.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn run_one(&self, test: &str, environment: &[(&str, &str)]) -> Result<Finished> {
        self.run_with(&["--exact", test], environment)
    }

    fn run_with(&self, args: &[&str], environment: &[(&str, &str)]) -> Result<Finished> {
        let started = Instant::now();
        let mut command = self.command();
        if let Ok(processors) = thread::available_parallelism()
            && self.waits
            && std::env::var_os(TEST_THREADS).is_none()
        {
            command.env(TEST_THREADS, (processors.get() + 1).to_string());
        }
        let mut child = command
            .args(args)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let stderr = child.stderr.take().context("stderr is piped")?;
        let shows = self.is_shown_at_once();
        let output = Collected::start(stdout, shows.then_some(|line| println!("{line}")));
        let errors = Collected::start(stderr, shows.then_some(|line| eprintln!("{line}")));
        let is_success = child.wait()?.success();
        let took = started.elapsed();
        let ended = Instant::now() + OUTPUT_TIMEOUT;
        let output = output.until(ended)?;
        let mut errors = errors.until(ended)?;
        if Instant::now() >= ended {
            errors.push_str("a process that the suite did not end still has its output\n");
        }
        Ok(Finished {
            output,
            errors,
            is_success,
            took,
        })
    }

    /// True if it prints while it runs, since it runs alone.
    pub fn is_shown_at_once(&self) -> bool {
        matches!(self.runs, Runs::Cargo(_)) && !self.is_in_background
    }

    fn command(&self) -> Command {
        let command = |program: &OsStr| {
            if !self.is_in_background {
                return Command::new(program);
            }
            let mut nice = Command::new("nice");
            nice.args(["-n", "19"]).arg(program);
            nice
        };
        match &self.runs {
            Runs::Executable { path, directory } => {
                let mut command = command(path.as_os_str());
                command.current_dir(directory);
                command.env("CARGO_MANIFEST_DIR", directory);
                command
            }
            Runs::Cargo(args) => {
                let mut command = command(cargo().get_program());
                command.current_dir(root());
                command.args(["test", "--locked", "--no-fail-fast"]);
                if !args.iter().any(|arg| PACKAGES.contains(&arg.as_str())) {
                    command.arg("--workspace");
                }
                command.args(args);
                command
            }
        }
    }
}

impl Finished {
    /// The number of tests that passed.
    pub fn passed(&self) -> u64 {
        let results = self.output.lines();
        let results = results.filter_map(|line| line.strip_prefix("test result: "));
        let passed = results.filter_map(|result| {
            let (_, rest) = result.split_once(". ")?;
            rest.split_once(" passed")?.0.parse::<u64>().ok()
        });
        passed.sum()
    }

    /// The names of the tests that failed.
    pub fn failed(&self) -> impl Iterator<Item = &str> {
        let lines = self.output.lines();
        let named = lines.filter_map(|line| line.strip_prefix("test "));
        named.filter_map(|line| line.strip_suffix(" ... FAILED"))
    }

    /// The first lines of the panic of a test that failed: where, and its message.
    pub fn panic_of(&self, test: &str) -> Vec<String> {
        let of_test = format!("---- {test} stdout ----");
        let lines = self.output.lines().skip_while(|line| *line != of_test);
        let panic = lines
            .skip(1)
            .take_while(|line| !line.starts_with("---- "))
            .skip_while(|line| !(line.starts_with("thread '") && line.contains(" panicked at ")))
            .take_while(|line| *line != "stack backtrace:" && !line.starts_with("note: "));
        panic
            .filter(|line| !line.is_empty())
            .map(|line| line.chars().take(PANIC_COLUMNS).collect())
            .take(PANIC_LINES)
            .collect()
    }
}

/// What a thread reads from a suite.
struct Collected {
    text: Arc<Mutex<String>>,
    thread: JoinHandle<io::Result<()>>,
}

impl Collected {
    /// Reads all lines, and shows each.
    fn start(from: impl Read + Send + 'static, show: Option<fn(&str)>) -> Collected {
        let text = Arc::<Mutex<String>>::default();
        let to = text.clone();
        let thread = thread::spawn(move || {
            for line in BufReader::new(from).split(b'\n') {
                let line = line?;
                let line = String::from_utf8_lossy(&line);
                show.iter().for_each(|show| show(&line));
                let mut text = to.lock().expect("no panic while locked");
                text.push_str(&line);
                text.push('\n');
            }
            Ok(())
        });
        Collected { text, thread }
    }

    /// What was read until the end, or until this time.
    fn until(self, at: Instant) -> io::Result<String> {
        while !self.thread.is_finished() && Instant::now() < at {
            thread::sleep(Duration::from_millis(5));
        }
        if self.thread.is_finished() {
            self.thread.join().expect("no panic")?;
        }
        Ok(self.text.lock().expect("no panic while locked").clone())
    }
}
