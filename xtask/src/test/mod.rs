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
//!
//! Tests of real devices, kernels and guests depend on what the machine does meanwhile. If at most
//! [`RETRIED_MAX`] of them fail, each runs once more, alone, after all others, and only the second
//! failure counts; the first one is reported as a retry, with its output. All other tests have to
//! pass at once.

mod suite;

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Result, bail};
use weir_testing::EXTENT_VARIABLE;

use self::suite::{Finished, Suite};
use crate::{execute, guest, is_root, packages};

/// Packages whose tests use what a host has once: devices, kernel programs, guests, sockets. They
/// run one after another.
const OF_THE_HOST: &[&str] = &[
    "weir",
    "weir-tap",
    "weir-tapdisk",
    "weir-runtime",
    "weir-testing",
];

/// Suites of other packages that do the same, or start servers that must answer in time.
const SUITES_OF_THE_HOST: &[&str] = &["weir-forward, test kafka", "xtask, test soak"];

/// Suites of the packages above that use processors only.
const SUITES_OF_PROCESSORS: &[&str] = &[
    "weir, test duckdb",
    "weir, test features",
    "weir, test fuzz_corpus",
    "weir, test standard_queries",
];

/// Suites with many tests, most of which wait for other programs.
const SUITES_THAT_WAIT: &[&str] = &["weir, test cli"];

/// The arguments of `cargo test` that select the tests of other kernels.
const OF_KERNELS: [&str; 3] = ["--test", "guests", "kernels"];

/// If more tests of the host fail, none is retried: the cause is not the machine. A machine whose
/// disk or processors other machines share has failed four of 2,866 tests that pass alone.
const RETRIED_MAX: usize = 8;

/// Mounts tracefs, which tests of probes read, where systemd has not done so at boot: in a
/// container, or in a small VM. It remains mounted, as on other machines.
fn mount_tracefs() {
    let folder = "/sys/kernel/tracing";
    if !is_root() || Path::new(folder).join("events").exists() {
        return;
    }
    match execute(Command::new("mount").args(["-t", "tracefs", "tracefs", folder])) {
        Ok(()) => println!("mounted tracefs at {folder}"),
        Err(why) => eprintln!("no tracefs, so tests of probes will fail: {why:#}"),
    }
}

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
    mount_tracefs();
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
    let mut summary = summary.into_inner().expect("no thread panicked");
    if args.is_empty() {
        summary.retry(&of_the_host, environment);
    }
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
        let name = suite.name.as_str();
        let is_of_package = OF_THE_HOST.contains(&suite.package.as_str());
        (is_of_package && !SUITES_OF_PROCESSORS.contains(&name))
            || SUITES_OF_THE_HOST.contains(&name)
    };
    let (of_the_host, others): (Vec<_>, Vec<_>) = suites.into_iter().partition(uses_host);
    let with_threads = |suite: Suite| match SUITES_THAT_WAIT.contains(&suite.name.as_str()) {
        true => suite.with_waiting_tests(),
        false => suite,
    };
    let of_the_host = of_the_host.into_iter().map(with_threads).collect();
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

/// What failed.
struct Failure {
    suite: String,
    /// The test, or why the suite has no result.
    test: Result<String, String>,
    /// The first lines of its panic.
    panic: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Ok(what) | Err(what)) = &self.test;
        write!(f, "{}: {what}", self.suite)?;
        self.panic
            .iter()
            .try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// The results of all suites.
#[derive(Default)]
struct Summary {
    passed: u64,
    failed: Vec<Failure>,
    skipped: BTreeSet<String>,
    retried: Vec<String>,
}

impl Summary {
    /// Prints the output of a suite, and adds its results.
    fn add(&mut self, suite: &Suite, finished: Result<Finished>) {
        let failure = |test, panic| Failure {
            suite: suite.name.clone(),
            test,
            panic,
        };
        let finished = match finished {
            Ok(finished) => finished,
            Err(error) => {
                eprintln!("cannot run {}: {error:#}", suite.name);
                self.failed
                    .push(failure(Err(format!("{error:#}")), Vec::new()));
                return;
            }
        };
        if !suite.is_shown_at_once() {
            println!("\n== {}, {:.0?}", suite.name, finished.took);
            print!("{}", finished.output);
            eprint!("{}", finished.errors);
        }
        self.passed += finished.passed();
        let failed = finished.failed();
        let failed: Vec<_> = failed
            .map(|test| failure(Ok(test.to_owned()), finished.panic_of(test)))
            .collect();
        if !finished.is_success && failed.is_empty() {
            let why = "ended without a result".to_owned();
            self.failed.push(failure(Err(why), Vec::new()));
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

    /// Runs the failed tests of these suites once more, one by one.
    fn retry(&mut self, suites: &[Suite], environment: &[(&str, &str)]) {
        let of_test = |failure: &Failure| {
            let suite = suites.iter().find(|suite| suite.name == failure.suite)?;
            Some((suite, failure.test.clone().ok()?, failure.to_string()))
        };
        let retried: Vec<_> = self.failed.iter().filter_map(of_test).collect();
        if retried.len() > RETRIED_MAX {
            return;
        }
        self.failed.retain(|failure| of_test(failure).is_none());
        for (suite, test, failure) in retried {
            let finished = suite.run_one(&test, environment);
            self.retried
                .push(format!("failed and ran once more: {failure}"));
            self.add(suite, finished);
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
            (
                self.failed.iter().map(Failure::to_string).collect(),
                "no test failed",
                "tests failed",
            ),
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use weir_testing::Scratch;

    use super::*;

    /// A suite with these tests, each of which fails in its first runs, as often as `failures`.
    fn suite(directory: &Path, tests: &[&str], failures: usize) -> Suite {
        let path = directory.join("suite");
        let tests = tests.join(" ");
        let script = format!(
            r#"#!/bin/sh
[ "$1" = --exact ] && tests=$2 || tests='{tests}'
status=0
for test in $tests; do
    echo >> "$test"
    if [ $(wc -l < "$test") -le {failures} ]; then
        status=1
        echo "test $test ... FAILED"
        panics="$panics
---- $test stdout ----

thread '$test' (7) panicked at a.rs:1:2:
why of $test
stack backtrace:
   0: main
"
    else
        passed="$passed x"
        echo "test $test ... ok"
    fi
done
echo "$panics"
echo "test result: ok. $(echo $passed | wc -w) passed; rest"
exit $status
"#
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Suite::of_program("suite", &path, directory)
    }

    fn summary(tests: &[&str], failures: usize) -> Summary {
        let directory = Scratch::new();
        let suites = [suite(directory.path(), tests, failures)];
        let summary = Mutex::new(Summary::default());
        run_in_order(&suites, &[], &summary);
        let mut summary = summary.into_inner().unwrap();
        summary.retry(&suites, &[]);
        summary
    }

    #[test]
    fn a_test_that_passes_when_it_runs_alone_is_reported_as_retried() {
        let summary = summary(&["first", "second"], 1);
        assert_eq!((summary.passed, summary.failed.len()), (2, 0));
        let [first, second] = &summary.retried[..] else {
            panic!("{:?}", summary.retried);
        };
        let expected = "failed and ran once more: suite: first\n    \
                        thread 'first' (7) panicked at a.rs:1:2:\n    why of first";
        assert_eq!(first, expected);
        assert!(second.ends_with("why of second"), "{second}");
    }

    #[test]
    fn a_test_that_fails_twice_has_failed() {
        let summary = summary(&["first"], 2);
        let failed: Vec<_> = summary.failed.iter().map(Failure::to_string).collect();
        assert_eq!(failed.len(), 1);
        assert!(failed[0].starts_with("suite: first\n"), "{failed:?}");
        assert!(failed[0].ends_with("why of first"), "{failed:?}");
    }

    #[test]
    fn a_process_that_a_suite_leaves_does_not_stop_the_tests() {
        let directory = Scratch::new();
        let script = "#!/bin/sh\nsleep 60 &\necho $! > left\necho 'test result: ok. 1 passed; x'\n";
        let path = directory.write("suite", script);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let suite = Suite::of_program("suite", path.as_ref(), directory.path());
        let finished = suite.run(&[]).unwrap();
        let left = directory.read("left");
        let killed = std::process::Command::new("kill").arg(left.trim()).status();
        assert!(killed.unwrap().success(), "it was still there");
        assert_eq!(finished.passed(), 1);
        assert!(finished.is_success);
        assert!(
            finished.errors.contains("did not end"),
            "{}",
            finished.errors
        );
    }

    #[test]
    fn of_many_that_fail_none_is_retried() {
        let tests = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        let summary = summary(&tests, 1);
        let all = RETRIED_MAX + 1;
        assert_eq!((summary.failed.len(), summary.retried.len()), (all, 0));
    }
}
