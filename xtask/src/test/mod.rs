//! `cargo xtask test`: installs what the tests need, runs them, and reports at the end what failed,
//! was skipped or was retried. With `--all` the heavy tests run completely; otherwise a small
//! version of each (docs/testing.md). With further arguments, those of `cargo test`, only the tests
//! that they select run. `--kernels` selects those of other kernels, on every kernel.
//!
//! Tests that need root, BPF, a tool or the sample data skip with a line that begins with
//! `skipped:` if these are not available. A test whose precondition did not hold, since other
//! processes used the processors, is retried with a line that begins with `tried again:`. Both are
//! collected and printed once more at the end, so that skipped tests are not mistaken for passed
//! ones.

mod suite;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use weir_testing::EXTENT_VARIABLE;

use self::suite::{Finished, Suite};
use crate::{guest, packages};

/// Packages whose tests use what a host has once: devices, kernel programs, guests, sockets. They
/// run one after another.
const OF_THE_HOST: &[&str] = &[
    "weir",
    "weir-tap",
    "weir-tapdisk",
    "weir-runtime",
    "weir-testing",
];

/// Suites of other packages that do the same.
const SUITES_OF_THE_HOST: &[&str] = &["xtask, test soak"];

/// The arguments of `cargo test` that select the tests of other kernels.
const OF_KERNELS: [&str; 3] = ["--test", "guests", "kernels"];

/// Runs the tests of the whole workspace, or those that `args` select.
pub fn run(args: &[String]) -> Result<()> {
    let first = args.first().map(String::as_str);
    let of_kernels = first == Some("--kernels");
    let is_full = of_kernels || first == Some("--all");
    let args = match of_kernels {
        true => &OF_KERNELS.map(str::to_owned)[..],
        false => &args[usize::from(is_full)..],
    };
    packages::run(&[])?;
    let guests = is_full.then(|| "--all".to_owned());
    if let Err(why) = guest::run(guests.as_slice()) {
        eprintln!("no guest, so tests that need one will be skipped: {why:#}");
    }
    let environment: &[_] = match is_full {
        true => &[(EXTENT_VARIABLE, "all")],
        false => &[],
    };
    let started = Instant::now();
    let (of_the_host, others) = match args.is_empty() {
        true => divided(suite::build()?),
        false => (vec![Suite::selected(args)], Vec::new()),
    };
    if args.is_empty() {
        println!("built in {:.0?}", started.elapsed());
    }
    let summary = Mutex::new(Summary::default());
    std::thread::scope(|scope| {
        scope.spawn(|| run_in_order(&others, environment, &summary));
        run_in_order(&of_the_host, environment, &summary);
    });
    let summary = summary.into_inner().expect("no thread panicked");
    summary.print();
    println!("{:.0?} in total", started.elapsed());
    match summary.failed.is_empty() {
        true => Ok(()),
        false => bail!("some tests failed"),
    }
}

/// Two sequences that run at the same time: the suites that use the host, which mostly wait, and
/// those that need processors only, with the documentation's examples.
fn divided(suites: Vec<Suite>) -> (Vec<Suite>, Vec<Suite>) {
    let uses_host = |suite: &Suite| {
        OF_THE_HOST.contains(&suite.package.as_str())
            || SUITES_OF_THE_HOST.contains(&suite.name.as_str())
    };
    let (of_the_host, others): (Vec<_>, Vec<_>) = suites.into_iter().partition(uses_host);
    let others = others.into_iter().map(Suite::in_background);
    let examples = Suite::selected(&["--doc".to_owned()]).in_background();
    (of_the_host, others.chain([examples]).collect())
}

fn run_in_order(suites: &[Suite], environment: &[(&str, &str)], summary: &Mutex<Summary>) {
    for suite in suites {
        let finished = suite.run(environment);
        let mut summary = summary.lock().expect("no thread panicked");
        summary.add(suite, finished);
    }
}

/// The results of all suites.
#[derive(Default)]
struct Summary {
    passed: u64,
    failed: Vec<String>,
    skipped: BTreeSet<String>,
    retried: Vec<String>,
}

impl Summary {
    /// Prints the output of a suite, and adds its results.
    fn add(&mut self, suite: &Suite, finished: Result<Finished>) {
        let finished = finished.with_context(|| format!("cannot run {}", suite.name));
        let finished = match finished {
            Ok(finished) => finished,
            Err(error) => {
                eprintln!("{error:#}");
                self.failed.push(format!("{error:#}"));
                return;
            }
        };
        if !suite.is_shown_at_once() {
            println!("\n== {}, {:.0?}", suite.name, finished.took);
            print!("{}", finished.output);
            eprint!("{}", finished.errors);
        }
        self.passed += finished.passed();
        let failed = finished
            .failed()
            .map(|test| format!("{}: {test}", suite.name));
        let failed: Vec<String> = failed.collect();
        if !finished.is_success && failed.is_empty() {
            self.failed
                .push(format!("{}: ended without a result", suite.name));
        }
        self.failed.extend(failed);
        for line in finished.errors.lines() {
            if line.starts_with("skipped:") {
                self.skipped.insert(line.to_owned());
            } else if line.starts_with("tried again:") {
                self.retried.push(line.to_owned());
            }
        }
    }

    fn print(&self) {
        println!();
        for (lines, none, some) in [
            (
                self.skipped.iter().cloned().collect(),
                "nothing was skipped",
                "tests or parts of tests were skipped",
            ),
            (self.retried.clone(), "nothing was retried", "retries"),
            (self.failed.clone(), "no test failed", "tests failed"),
        ] as [(Vec<String>, &str, &str); 3]
        {
            match lines.len() {
                0 => println!("{none}"),
                n => println!("{n} {some}:\n{}", lines.join("\n")),
            }
        }
        println!("{} tests passed", self.passed);
    }
}
