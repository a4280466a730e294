//! `weir sql`: scripts, and the prompt on a pseudo-terminal that script(1) creates.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::fleet::processes::Monitor;
use crate::support::{CommandOutput, Scratch, requests, run, skipped, weir};

/// The maximum time until the prompt prints what is expected.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The bundled recording.
fn recording() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("samples/fio-loop.parquet").canonicalize();
    path.unwrap().display().to_string()
}

/// The result of `weir sql ARGS` with a script on standard input, of a user without stored views.
fn script(args: &[&str], text: &str) -> CommandOutput {
    let home = Scratch::new();
    let mut command = weir(&[&["sql"], args].concat());
    command.env("WEIR_VIEWS", home.path().join("views.cql"));
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // The command may have ended with an error.
    let _ = input.write_all(text.as_bytes());
    drop(input);
    CommandOutput::of(child.wait_with_output().unwrap())
}

/// The result of a query alone.
fn alone(query: &str) -> String {
    run(&[
        "query",
        "--from",
        &recording(),
        "--final",
        "--format",
        "csv",
        query,
    ])
    .fine()
}

#[test]
fn a_script_prints_what_its_queries_print_alone() {
    let first = "select op, count(*) from IO group by op";
    let second = "select ';' as x, max(latency) from IO where op = 'w' /* ; */";
    let text = format!("-- the first\n{first};\n\n{second}\n;select count(*) from IO");
    let from = ["--from", &recording(), "--final", "--format", "csv"];
    let printed = script(&from, &text).fine();
    let expected = [first, second, "select count(*) from IO"].map(alone);
    assert_eq!(printed, expected.concat());
    let scratch = Scratch::new();
    let file = scratch.write("queries.sql", &text);
    let of_file = run(&[&["sql", "--file", &file], &from[..]].concat()).fine();
    assert_eq!(of_file, printed);
    let included = script(&from, &format!("\\i {file}\n")).fine();
    assert_eq!(included, printed);
}

#[test]
fn the_first_failure_ends_a_script_with_its_exit_code() {
    let from = ["--from", &recording(), "--final", "--format", "csv"];
    let text = "select 1 as a from IO limit 1;\n\nselect b\nfrm IO; select 3 as c from IO limit 1;";
    let output = script(&from, text);
    assert_eq!(output.code, 2, "{}", output.err);
    assert!(
        output.out.contains('a') && !output.out.contains('c'),
        "{}",
        output.out
    );
    // The position is that in the statement.
    assert!(output.err.contains("\n 2 | frm IO\n"), "{}", output.err);
    assert!(
        output.err.contains("standard input, line 3: failed"),
        "{}",
        output.err
    );
    let absent = script(
        &["--from", "/nowhere.parquet"],
        "select * from IO; select 2",
    );
    assert_eq!(absent.code, 1, "{}", absent.err);
    assert_eq!(
        absent.err.matches("/nowhere.parquet").count(),
        1,
        "{}",
        absent.err
    );
    for (text, part) in [
        ("\\nothing", "\\? lists the commands"),
        ("\\timin", "did you mean \\timing?"),
        ("\\format beauty", "formats are default, table"),
        ("\\for soon", "10s or 250ms"),
        ("\\i /nowhere.sql", "/nowhere.sql: No such file"),
        ("\\d nothing", "unknown stream, relation or view"),
        ("\\dq", "\\connect"),
        ("\\e", "needs a terminal"),
        ("select 1 from IO;\n\\q now", "has no argument"),
        ("drop view nothing;", "there is no stored view `nothing`"),
        (
            "create view v as select op from IO;\ncreate view V as select 1 from IO;",
            "already exists",
        ),
        (
            "create view v as select nothing from IO;",
            "unknown column `nothing`",
        ),
        ("create view v as select;", "error[W0001]"),
    ] {
        let output = script(&from, text);
        assert_ne!(output.code, 0, "{text}");
        assert!(output.err.contains(part), "{text}: {}", output.err);
    }
    let loops = Scratch::new();
    let file = loops.path().join("loop.sql");
    let file = loops.write("loop.sql", &format!("\\i {}\n", file.display()));
    let output = run(&["sql", "--file", &file]);
    assert!(output.err.contains("within each other"), "{}", output.err);
    assert_eq!(output.code, 2);
}

#[test]
fn a_statement_runs_when_it_is_complete() {
    let recording = recording();
    let mut command = weir(&["sql", "--from", &recording, "--final", "--format", "csv"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"select count(*) from IO;\n").unwrap();
    // Standard input is still open.
    let expected = alone("select count(*) from IO");
    let mut printed = vec![0; expected.len()];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut printed)
        .unwrap();
    assert_eq!(String::from_utf8(printed).unwrap(), expected);
    input.write_all(b"\\q\nselect 2;\n").unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn views_remain_until_they_are_dropped() {
    let from = ["--from", &recording(), "--final", "--format", "csv"];
    let text = "create view writes as select op, latency from IO where op = 'w';\n\
        create view `slow ones` as select * from writes where latency > 1 ms;\n\
        select count(*) from `slow ones`;\n\
        \\d slow ones\n\
        drop view `slow ones`;\n\
        drop view if exists `slow ones`;\n\
        drop view writes;\n\
        select count(*) from writes;\n";
    let output = script(&from, text);
    assert_eq!(output.code, 2);
    assert!(output.err.contains("writes"), "{}", output.err);
    let expected = alone("select count(*) from IO where op = 'w' and latency > 1 ms");
    assert!(output.out.starts_with(&expected), "{}", output.out);
    assert!(
        output.out.contains("latency  integer  ns"),
        "{}",
        output.out
    );
    let read = "create view a as select op from IO; create view b as select * from a; drop view a;";
    let output = script(&from, read);
    assert!(output.err.contains("become invalid: `b`"), "{}", output.err);
}

#[test]
fn definitions_of_a_file_precede_queries_and_prompts() {
    let scratch = Scratch::new();
    let file = "-- views\ncreate view reads as select * from IO where op = 'r'; -- end";
    let file = scratch.write("views.sql", file);
    let from = [
        "--from",
        &recording(),
        "--final",
        "--format",
        "csv",
        "--define",
        &file,
    ];
    let expected = alone("select count(*) from IO where op = 'r'");
    let query = "select count(*) from reads";
    assert_eq!(
        run(&[&["query", query], &from[..]].concat()).fine(),
        expected
    );
    assert_eq!(script(&from, query).fine(), expected);
    let checked = run(&["check", "--define", &file, "select\nop, nothing from reads"]);
    assert!(
        checked.err.contains("\n 2 | op, nothing from reads"),
        "{}",
        checked.err
    );
    let wrong = scratch.write("wrong.sql", "create view v as select op\nfrm IO;");
    let output = run(&["check", "--define", &wrong, "select * from v"]);
    assert_eq!(output.code, 2);
    assert!(output.err.contains("wrong.sql:2"), "{}", output.err);
    let query = scratch.write("query.sql", "select op from IO");
    let output = run(&["check", "--define", &query, "select op from IO"]);
    assert!(
        output.err.contains("CREATE VIEW statements only"),
        "{}",
        output.err
    );
}

#[test]
fn a_missing_query_is_a_usage_error_without_a_terminal() {
    for command in ["query", "watch", "explain", "check"] {
        let output = run(&[command]);
        assert_eq!(output.code, 2, "{command}");
        assert!(output.err.contains("no query; give it"), "{}", output.err);
    }
    let output = run(&["sql", "--from", "-"]);
    assert_eq!(output.code, 2);
    assert!(output.err.contains("weir query --from -"), "{}", output.err);
}

#[test]
fn a_script_is_ended_by_signals_and_leaves_no_process() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let mut command = weir(&["sql"]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let text = b"select count(*) from weir;\nselect count(*) from weir;\n";
        input.write_all(text).unwrap();
        let mut first = [0; 1];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut first)
            .unwrap();
        let pid = child.id().to_string();
        Command::new("kill").args([signal, &pid]).status().unwrap();
        // The pipe is at its end when no process has it.
        let mut rest = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{signal}");
    }
}

#[test]
fn queries_run_at_a_monitor() {
    let monitor = Monitor::start();
    // Its requests are observed some seconds after its start.
    let trace = monitor.home.write("t.csv", &requests(40));
    let _agent = monitor.agents(&[trace]);
    let text = "create view reads as select vm, bytes from IO where op = 'r';\n\
        \\format csv\n\\for 14s\n\
        select vm, sum(bytes) from reads group by vm;\n\
        \\dq\n";
    let mut command = weir(&["sql", "--final", "--monitor", monitor.named()[1]]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = CommandOutput::of(child.wait_with_output().unwrap());
    assert_eq!(output.code, 0, "{}", output.err);
    // Three of four requests are reads of 4 KiB.
    let sum = (30 * 4096).to_string();
    assert!(
        output.out.lines().any(|l| l.ends_with(&sum)),
        "{}",
        output.out
    );
}

/// A program on a terminal of 100×30.
struct Terminal {
    child: Child,
    printed: Arc<Mutex<String>>,
    /// Reads what is printed, to its end.
    reader: JoinHandle<()>,
    /// What was examined already.
    seen: usize,
}

impl Terminal {
    /// A shell command with its history below `home`; otherwise logs that `test` is skipped.
    fn start(
        test: &str,
        home: &Scratch,
        command: &str,
        variables: &[(&str, &str)],
    ) -> Option<Terminal> {
        let folder = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap();
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        // Ctrl-C reaches the shell too, and some shells would end with it.
        let command =
            format!("trap : INT; stty cols 100 rows 30; {command}; echo code=$?; stty -a");
        let mut script = Command::new("script");
        script
            .args(["-qec", &command, "/dev/null"])
            .env("PATH", path)
            .env("SHELL", "/bin/sh");
        script
            .env("TERM", "xterm-256color")
            .env("LC_ALL", "C.UTF-8");
        script
            .env("XDG_STATE_HOME", home.path())
            .env("XDG_DATA_HOME", home.path())
            .env_remove("WEIR_VIEWS")
            .env_remove("NO_COLOR");
        script.envs(variables.iter().copied());
        let child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => {
                skipped(test, format!("script(1) does not run here: {error}"));
                return None;
            }
        };
        let printed = Arc::<Mutex<String>>::default();
        let mut output = child.stdout.take().unwrap();
        let shared = printed.clone();
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..count]);
                shared.lock().unwrap().push_str(&text);
            }
        });
        Some(Terminal {
            child,
            printed,
            reader,
            seen: 0,
        })
    }

    fn send(&mut self, keys: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(keys.as_bytes()).unwrap();
        input.flush().unwrap();
    }

    /// Waits until `text` is printed after what was seen; returns what is before it.
    fn expect(&mut self, text: &str) -> String {
        let started = Instant::now();
        loop {
            let has_ended = self.reader.is_finished();
            let printed = self.printed.lock().unwrap().clone();
            if let Some(at) = printed[self.seen..].find(text) {
                let before = printed[self.seen..self.seen + at].to_owned();
                self.seen += at + text.len();
                return before;
            }
            assert!(
                !has_ended && started.elapsed() < TIMEOUT,
                "no {text:?} in {:?}; ended: {has_ended}",
                &printed[self.seen..]
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the prompt.
    fn prompt(&mut self) -> String {
        let before = self.expect("weir> ");
        // The line is drawn before the first key is read.
        self.expect("\x1b[?2026l");
        before
    }

    /// Asserts that the exit code is this one and the terminal is restored.
    fn ended(mut self, code: i32) {
        self.expect(&format!("code={code}\r\n"));
        let status = self.child.wait().unwrap();
        assert!(status.success());
        while !self.reader.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let printed = self.printed.lock().unwrap().clone();
        for setting in ["icanon", "echo", "isig"] {
            let mut words = printed[self.seen..].split_whitespace();
            assert!(words.any(|word| word == setting), "{setting}: {printed}");
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It has ended unless an assertion failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn history(home: &Scratch) -> PathBuf {
    home.path().join("weir/history")
}

#[test]
fn the_prompt_completes_continues_and_remembers() {
    let test = "the_prompt_completes_continues_and_remembers";
    let home = Scratch::new();
    let args = format!("weir sql --from {} --format csv --final", recording());
    let Some(mut terminal) = Terminal::start(test, &home, &args, &[]) else {
        return;
    };
    terminal.prompt();
    // Three completions, and three lines of one statement.
    terminal.send("sele\t");
    terminal.expect("\x1b[1mselect\x1b[0m");
    terminal.send(" quanti\t");
    terminal.expect("quantile(");
    terminal.send("\x17max(laten");
    // Words are completed from the sources that the statement names.
    terminal.send(") as slowest from IO");
    for _ in 0..") as slowest from IO".len() {
        terminal.send("\x1b[D");
    }
    terminal.send("\t");
    terminal.expect("latency)");
    terminal.send("\x05\r");
    terminal.send(";\r");
    terminal.expect(&alone("select max(latency) as slowest from IO").replace('\n', "\r\n"));
    terminal.prompt();
    terminal.send("create view reads as select op, bytes from IO where op = 'r';\r");
    terminal.expect("view `reads` was created");
    terminal.prompt();
    terminal.send("\\d rea\t\r");
    terminal.expect("reads (view)");
    terminal.prompt();
    terminal.send("select betw\t");
    terminal.expect("between");
    // Ctrl-C clears the line.
    terminal.send("\x03");
    terminal.prompt();
    terminal.send("select byt from reads;\r");
    terminal.expect("unknown column `byt`");
    terminal.expect("help: there are op, bytes");
    terminal.prompt();
    terminal.send("\x1b[A\x1b[D\x1b[D");
    terminal.send("\x03");
    terminal.prompt();
    terminal.send("\x04");
    terminal.ended(0);

    let mode = history(&home).metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut again = Terminal::start(test, &home, &args, &[]).unwrap();
    again.prompt();
    // The search finds the statement of three lines, which runs again.
    again.send("\x12slowest");
    again.expect("slowest");
    again.send("\r");
    again.expect(&alone("select max(latency) as slowest from IO").replace('\n', "\r\n"));
    again.prompt();
    again.send("quit\r");
    again.ended(0);
}

#[test]
fn control_c_ends_a_live_query_and_the_prompt_remains() {
    let test = "control_c_ends_a_live_query_and_the_prompt_remains";
    let home = Scratch::new();
    // `weir query` without a query is a prompt.
    let Some(mut terminal) = Terminal::start(test, &home, "weir query", &[("NO_COLOR", "1")])
    else {
        return;
    };
    terminal.prompt();
    terminal.send("select place, counter, count(*) as n from weir group by place, counter;\r");
    // The relation is drawn twice.
    terminal.expect("process");
    terminal.expect("process");
    terminal.send("\x03");
    let drawn = terminal.prompt();
    assert!(!drawn.contains("\x1b[1m"), "NO_COLOR: {drawn:?}");
    terminal.send("\\for 300ms\r");
    terminal.prompt();
    // After Ctrl-C the next statement of the line does not run; after an error it does.
    terminal.send("select nothing from IO; select count(*) as counted from weir;\r");
    terminal.expect("unknown column");
    terminal.expect("counted\r\n");
    terminal.prompt();
    terminal.send("\\q\r");
    terminal.ended(0);
}

#[test]
fn sigterm_restores_the_terminal() {
    let test = "sigterm_restores_the_terminal";
    let home = Scratch::new();
    let pid_file = home.path().join("pid");
    let shell = format!("sh -c 'echo $$ > {}; exec weir sql'", pid_file.display());
    let Some(mut terminal) = Terminal::start(test, &home, &shell, &[]) else {
        return;
    };
    terminal.prompt();
    let pid = std::fs::read_to_string(pid_file).unwrap();
    let killed = Command::new("kill").args(["-TERM", pid.trim()]).status();
    assert!(killed.unwrap().success());
    terminal.ended(143);
}

#[test]
fn an_editor_changes_the_last_statement_also_on_a_dumb_terminal() {
    let test = "an_editor_changes_the_last_statement_also_on_a_dumb_terminal";
    let home = Scratch::new();
    let args = format!("weir sql --from {} --format csv --final", recording());
    let variables = [
        ("TERM", "dumb"),
        ("VISUAL", ""),
        ("EDITOR", "sed -i s/first/second/"),
    ];
    let Some(mut terminal) = Terminal::start(test, &home, &args, &variables) else {
        return;
    };
    terminal.expect("weir> ");
    terminal.send("select count(*)\nas first from IO;\n");
    terminal.expect(&alone("select count(*) as first from IO").replace('\n', "\r\n"));
    terminal.expect("weir> ");
    terminal.send("\\e\n");
    terminal.expect(&alone("select count(*) as second from IO").replace('\n', "\r\n"));
    let drawn = terminal.expect("weir> ");
    assert!(!drawn.contains('\x1b'), "{drawn:?}");
    terminal.send("\\q\n");
    terminal.ended(0);
}
