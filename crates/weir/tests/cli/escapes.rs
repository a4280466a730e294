//! Names of other processes, files and hosts cannot control the terminal, the log or the
//! spreadsheet that displays them.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use crate::support::{CommandOutput, Scratch, run, weir};

/// Sets the title of a terminal, selects red, and begins another line of a log.
const NAME: &str = "\x1b]0;T\x07\x1b[31m\nx";
const SHOWN: &str = "\\x1b]0;T\\x07\\x1b[31m\\nx";

fn assert_escaped(output: &CommandOutput, lines: usize) {
    assert!(output.err.contains(SHOWN), "{:?}", output.err);
    let controls = output.err.chars().filter(|c| c.is_control());
    assert_eq!(
        controls.collect::<String>(),
        "\n".repeat(lines),
        "{:?}",
        output.err
    );
}

#[test]
fn the_name_of_a_file_is_escaped_in_a_failure() {
    let output = run(&[
        "query",
        "--from",
        &format!("/nowhere/{NAME}"),
        "select * from IO",
    ]);
    assert_eq!(output.code, 1);
    assert_escaped(&output, 1);
}

#[test]
fn the_name_of_a_process_is_escaped_in_a_failure() {
    let scratch = Scratch::new();
    let image = scratch.write("disk.raw", &" ".repeat(1 << 20));
    let socket = |name: &str| format!("unix:{}", scratch.path().join(name).display());
    // The name of a process is that of its program. This process has the image open.
    let program = scratch.path().join(NAME);
    symlink("/bin/sleep", &program).unwrap();
    let mut stranger = Command::new(&program)
        .arg("600")
        .stdin(File::open(&image).unwrap())
        .spawn()
        .unwrap();
    let serve = |at: &str| weir(&["tapdisk", "--image", &image, "--nbd", at]);
    let mut first = serve(&socket("a")).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stderr = BufReader::new(first.stderr.take().unwrap());
    stderr.read_line(&mut line).unwrap();
    let second = serve(&socket("b")).output();
    for child in [&mut first, &mut stranger] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let second = CommandOutput::of(second.unwrap());
    assert!(second.err.contains("in use"), "{line}{}", second.err);
    assert_escaped(&second, 1);
}

#[test]
fn what_is_wrong_with_a_query_keeps_its_lines() {
    let output = run(&["query", "--from", "x", "select\n\x1b[31mnosuch\nfrom IO"]);
    assert_eq!(output.code, 2);
    assert!(output.err.lines().count() > 2, "{:?}", output.err);
    assert!(!output.err.contains('\x1b'), "{:?}", output.err);
}

#[test]
fn spreadsheets_are_given_no_formulas_on_request() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", "128166372030000000,=1+1,0,Read,0,4096,5000\n");
    let asked = |format: &str| {
        let query = "select vm, sum(bytes) from IO group by vm";
        run(&[
            "query", "--from", &trace, "--final", "--format", format, query,
        ])
        .fine()
    };
    assert!(
        asked("csv-safe").contains(",'=1+1,4096"),
        "{}",
        asked("csv-safe")
    );
    assert!(asked("csv").contains(",=1+1,4096"), "{}", asked("csv"));
}
