//! `examples/watch.py`: any Flight client can submit a query and read its results.
//!
//! pyarrow is installed into a separate virtual environment; without python3, its `venv` or access
//! to the package index the test is skipped with a message.

mod support;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use support::Monitor;
use support::authority::Directory;
use weir_testing::python_with;

fn watch(python: &Path, monitor: &Monitor, words: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/watch.py");
    let address = format!("grpc://{}", monitor.server.address());
    Command::new(python)
        .arg(script)
        .args(["--monitor", &address])
        .args(words)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn a_python_client_prints_results_as_they_come() {
    let python = match python_with("pyarrow.flight") {
        Ok(python) => python,
        Err(why) => {
            weir_testing::skipped("a_python_client_prints_results_as_they_come", why);
            return;
        }
    };
    let monitor = Monitor::local(|_| {});
    let output = watch(&python, &monitor, &["select * from IO"]);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{err}");
    let rows: Vec<&str> = out.lines().filter(|l| !l.starts_with('#')).collect();
    let ends = [
        " +1: vm web1, requests 0",
        " +1: vm db1, requests 1",
        " -1: vm db1, requests 0",
        " +2: vm new1, requests 1",
    ];
    assert_eq!(rows.len(), ends.len(), "{out}");
    for (row, end) in rows.iter().zip(ends) {
        assert!(row.ends_with(end), "{row}");
    }
    assert!(
        err.contains("hosts=1") && err.contains("ended=cancelled"),
        "{err}"
    );

    // One row is enough, and the query may be refused.
    let output = watch(&python, &monitor, &["--rows", "1", "select * from IO"]);
    assert_eq!(text(&output.stdout).lines().last(), Some(rows[0]));
    let output = watch(&python, &monitor, &["oops"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("W0001"),
        "{}",
        text(&output.stderr)
    );

    // With a token, and without one that is needed.
    let directory = Directory::new();
    let token = "a11ce0a11ce0a11ce0a11ce0";
    let tokens = directory.secret("tokens", &format!("{token} alice place\n"));
    let file = directory.secret("token", token);
    let guarded = Monitor::local(|o| o.tokens = Some(tokens));
    let output = watch(&python, &guarded, &["select * from IO"]);
    assert!(text(&output.stderr).contains("no token was presented"));
    let with = ["--token-file", file.to_str().unwrap(), "select * from IO"];
    assert!(watch(&python, &guarded, &with).status.success());
}
