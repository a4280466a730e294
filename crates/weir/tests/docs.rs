//! The documentation is correct: every query block of `docs/` runs, every command of the README and
//! the other pages in [`COMMAND_PAGES`] runs, and the `output` block after a command equals what
//! weir prints. `WEIR_BLESS=1` writes the output blocks. The commands of the tutorial run in
//! `guests/tutorial.rs`, on the guests of the demonstration.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use weir_testing::repository::root;
use weir_testing::{Scratch, wait_until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// The bundled recording.
const RECORDING: &str = "samples/fio-loop.parquet";

/// Pages whose `sh` blocks run, in the order of the page, in a directory that contains `samples`.
const COMMAND_PAGES: [&str; 4] = [
    "README.md",
    "docs/commands.md",
    "docs/cookbook.md",
    "docs/sql.md",
];

/// A fenced block of a Markdown page.
struct Block {
    page: String,
    line: usize,
    /// The text after the fence: `cql`, `cql-error W0103`, `sh`, `output`.
    label: String,
    text: String,
}

fn blocks(page: &Path) -> Vec<Block> {
    let text = fs::read_to_string(page).expect("a readable page");
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in text.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(label)) => {
                open = Some(Block {
                    page: page.display().to_string(),
                    line: number + 1,
                    label: label.trim().to_string(),
                    text: String::new(),
                });
            }
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some(block), None) => block.text.push_str(&format!("{line}\n")),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{}: a block is not closed", page.display());
    found
}

fn pages() -> Vec<PathBuf> {
    let docs = fs::read_dir(root().join("docs"))
        .expect("docs exist")
        .map(|e| e.expect("an entry").path());
    let mut pages: Vec<PathBuf> = docs
        .filter(|p| p.extension().is_some_and(|e| e == "md"))
        .collect();
    pages.push(root().join("README.md"));
    pages.sort();
    pages
}

/// Fails with all failures at once, each with the position of its block.
fn none(failures: Vec<String>) {
    assert!(
        failures.is_empty(),
        "{} blocks fail:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

fn failure(block: &Block, why: &str, output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    format!(
        "{}:{}: {why}\n{}{stderr}",
        block.page, block.line, block.text
    )
}

#[test]
fn every_query_of_the_docs_runs() {
    let mut failures = Vec::new();
    let mut ran = 0;
    for block in pages()
        .iter()
        .flat_map(|p| blocks(p))
        .filter(|b| b.label == "cql")
    {
        let output = Command::new(WEIR)
            .args([
                "query",
                "--from",
                RECORDING,
                "--format",
                "json",
                &block.text,
            ])
            .current_dir(root())
            .output()
            .expect("weir runs");
        ran += 1;
        if !output.status.success() {
            failures.push(failure(&block, "the query fails", &output));
        } else if output.stdout.is_empty() {
            failures.push(failure(&block, "the query prints nothing", &output));
        }
    }
    assert!(ran > 10, "the docs have query blocks");
    none(failures);
}

#[test]
fn every_error_of_the_docs_is_diagnosed() {
    let mut failures = Vec::new();
    for block in pages().iter().flat_map(|p| blocks(p)) {
        let Some(code) = block.label.strip_prefix("cql-error ") else {
            continue;
        };
        let output = Command::new(WEIR)
            .args(["check", &block.text])
            .output()
            .expect("weir runs");
        let output_text = String::from_utf8_lossy(&output.stderr).to_string()
            + &String::from_utf8_lossy(&output.stdout);
        if output.status.code() != Some(2) || !output_text.contains(code) {
            failures.push(failure(
                &block,
                &format!("{code} is not diagnosed"),
                &output,
            ));
        }
    }
    none(failures);
}

#[test]
fn every_live_query_of_the_docs_is_right() {
    let live = live_works();
    let mut failures = Vec::new();
    let mut ran = 0;
    for block in pages().iter().flat_map(|p| blocks(p)) {
        if block.label != "cql-live" {
            continue;
        }
        ran += 1;
        // Without the privileges for live I/O the query can still be checked.
        let io = block.text.contains("from IO");
        let args: &[&str] = match live || !io {
            true => &["query", "--for", "300ms", "--final"],
            false => &["check"],
        };
        let run = Command::new(WEIR).args(args).arg(&block.text).output();
        let output = run.expect("weir runs");
        if !output.status.success() {
            failures.push(failure(&block, "the query fails", &output));
        }
    }
    assert!(ran > 1, "the docs have live queries");
    none(failures);
}

/// Whether weir can observe the block I/O of this host.
fn live_works() -> bool {
    Command::new(WEIR)
        .arg("doctor")
        .output()
        .expect("weir runs")
        .status
        .success()
}

/// A process that is killed at the end of the test.
struct Process(std::process::Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn every_command_to_a_fleet_runs() {
    use std::io::BufRead;
    let home = Scratch::new();
    let state = |name: &str| home.file(name);
    let start = |args: &[&str]| {
        let mut command = Command::new(WEIR);
        command.args(args).current_dir(root());
        let child = command.stderr(std::process::Stdio::piped()).spawn();
        Process(child.expect("weir runs"))
    };
    let listen = format!("unix:{}", state("m.sock"));
    let mut monitor = start(&["monitor", "--listen", &listen, "--state", &state("m")]);
    let mut log = std::io::BufReader::new(monitor.0.stderr.take().expect("it is piped")).lines();
    let ready = log.next().expect("a line").expect("UTF-8");
    let (_, address) = ready.split_once("listening address=").expect("an address");
    let agent = [
        "agent",
        "--monitor",
        address,
        "--host",
        "a",
        "--from",
        RECORDING,
    ];
    let mut agent = start(&[&agent[..], &["--state", &state("a")]].concat());
    let drain = agent.0.stderr.take().expect("it is piped");
    std::thread::spawn(move || std::io::BufReader::new(drain).lines().count());
    std::thread::spawn(move || log.count());
    let mut failures = Vec::new();
    let mut ran = 0;
    for block in pages().iter().flat_map(|p| blocks(p)) {
        for command in block.text.lines().filter(|_| block.label == "sh-fleet") {
            let weir = command.strip_prefix("weir ").expect("a command of weir");
            let output = Command::new("timeout")
                .args(["60", "sh", "-c", &format!("\"$WEIR\" {weir}")])
                .env("WEIR", WEIR)
                .env("WEIR_MONITOR", address)
                .current_dir(root())
                .output()
                .expect("sh runs");
            ran += 1;
            if !output.status.success() {
                failures.push(failure(&block, &format!("`{command}` fails"), &output));
            }
        }
    }
    drop((agent, monitor));
    assert!(ran > 5, "the docs have commands for a fleet");
    none(failures);
}

#[test]
fn every_command_of_the_command_pages_runs() {
    let live = live_works();
    let mut failures = Vec::new();
    for page in &COMMAND_PAGES {
        let folder = Scratch::new();
        std::os::unix::fs::symlink(root().join("samples"), folder.path().join("samples"))
            .expect("a link");
        let mut background = Vec::new();
        let mut ran = 0;
        for command in commands(page, "sh") {
            assert!(command.starts_with("weir "), "{page}: `{command}`");
            let needs_live = !command.contains("--from")
                && !command.contains("--monitor")
                && command.contains("--for");
            if needs_live && !live {
                weir_testing::skipped(&format!("{page} `{command}`"), "needs root and BPF");
                continue;
            }
            ran += 1;
            if let Some(process) = command.strip_suffix('&') {
                background.push(start_in(&folder, process));
                continue;
            }
            let output = in_folder(&folder, "timeout", &["60", "sh", "-c", &command])
                .output()
                .expect("sh runs");
            // The exit code of `weir doctor` is the state of this host.
            let is_report = command == "weir doctor" && output.status.code() == Some(1);
            if !output.status.success() && !is_report {
                let stderr = String::from_utf8_lossy(&output.stderr);
                failures.push(format!("{page}: `{command}` fails\n{stderr}"));
            }
        }
        assert!(ran > 0, "{page} has commands");
    }
    none(failures);
}

#[test]
fn every_output_of_the_docs_is_what_weir_prints() {
    let bless = std::env::var("WEIR_BLESS").is_ok_and(|v| v == "1");
    let mut failures = Vec::new();
    let mut compared = 0;
    for page in pages() {
        let blocks = blocks(&page);
        let mut lines: Vec<String> = fs::read_to_string(&page)
            .expect("a readable page")
            .lines()
            .map(str::to_owned)
            .collect();
        // In reverse order, so that the line numbers of earlier blocks do not change.
        for pair in blocks.windows(2).rev() {
            let [block, expected] = pair else {
                unreachable!("windows of two");
            };
            if expected.label != "output" {
                continue;
            }
            let output = printed(block);
            if !output.status.success() {
                failures.push(failure(block, "it fails", &output));
                continue;
            }
            compared += 1;
            let stdout = String::from_utf8_lossy(&output.stdout);
            let actual: String = stdout
                .lines()
                .map(|line| format!("{}\n", line.trim_end()))
                .collect();
            if actual == expected.text {
                continue;
            }
            if bless {
                let end = expected.line + expected.text.lines().count();
                lines.splice(expected.line..end, actual.lines().map(str::to_owned));
            } else {
                failures.push(failure(
                    block,
                    &format!("it prints\n{actual}instead of\n{}of", expected.text),
                    &output,
                ));
            }
        }
        if bless {
            fs::write(&page, lines.join("\n") + "\n").expect("a page that can be written");
        }
    }
    assert!(compared > 30, "the docs have outputs");
    none(failures);
}

/// Runs a block that has an output: a query over the recording, or one command of weir. Results are
/// tables, as on a terminal.
fn printed(block: &Block) -> Output {
    // Of a user without stored views.
    let home = Scratch::new();
    let query = ["query", "--from", RECORDING, "--final", "--format", "table"];
    let mut command = match block.label.as_str() {
        "cql" => {
            let mut command = Command::new(WEIR);
            command.args(query).arg(&block.text);
            command
        }
        "sh" => {
            let line = block.text.replace("\\\n", " ");
            let line = line.replace("weir query ", "weir query --format table ");
            let mut command = Command::new("sh");
            command.args(["-c", &line]).env("PATH", search_path());
            command.env("WEIR_VIEWS", home.file("views.cql"));
            command
        }
        label => panic!(
            "{}:{}: a block `{label}` has an output",
            block.page, block.line
        ),
    };
    command.current_dir(root()).output().expect("weir runs")
}

/// `PATH` with the directory of the tested weir first.
fn search_path() -> String {
    let bin = Path::new(WEIR).parent().expect("the binary is in a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{}:{path}", bin.display())
}

/// A program in `folder`, with the tested weir in its path.
fn in_folder(folder: &Scratch, program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(args)
        .env("PATH", search_path())
        .env("WEIR_VIEWS", folder.file("views.cql"))
        .current_dir(folder.path());
    command
}

/// Starts `process`, which is killed when the returned value is dropped, and waits until its socket
/// exists.
fn start_in(folder: &Scratch, process: &str) -> Process {
    // The process replaces the shell, so it is killed at the end of the test.
    let child = in_folder(folder, "sh", &["-c", &format!("exec {process}")])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn();
    let child = Process(child.expect("sh runs"));
    // A user takes longer to type the next command.
    let socket = process.split_whitespace().find_map(|word| {
        let path = word.split(',').next().unwrap_or(word);
        let is_path = path.ends_with(".sock").then_some(path);
        path.strip_prefix("unix:").or(is_path)
    });
    if let Some(socket) = socket {
        let suffix = match process.starts_with("weir tapdisk") {
            true => ".tap",
            false => "",
        };
        let path = folder.path().join(format!("{socket}{suffix}"));
        wait_until(process, || path.exists());
    }
    child
}

/// The commands of blocks with this label, in order; a backslash at the end of a line continues it.
fn commands(page: &str, label: &str) -> Vec<String> {
    let blocks = blocks(&root().join(page));
    let texts = blocks.iter().filter(|block| block.label == label);
    let joined: Vec<String> = texts.map(|block| block.text.replace("\\\n", " ")).collect();
    joined
        .iter()
        .flat_map(|text| text.lines().map(str::to_owned))
        .collect()
}

#[test]
fn every_command_of_the_page_about_the_tapdisk_runs() {
    const TEST: &str = "every_command_of_the_page_about_the_tapdisk_runs";
    let all = commands("docs/tapdisk.md", "sh-tapdisk");
    assert!(all.len() > 10, "the page has commands");
    let path = std::env::var("PATH").unwrap_or_default();
    for program in ["qemu-img", "qemu-io", "qemu-system-x86_64"] {
        if !std::env::split_paths(&path).any(|folder| folder.join(program).is_file()) {
            weir_testing::skipped(TEST, format_args!("no {program} on this host"));
            return;
        }
    }
    let folder = Scratch::new();
    let mut background = Vec::new();
    for command in &all {
        if let Some(process) = command.strip_suffix('&') {
            background.push(start_in(&folder, process));
            continue;
        }
        let output = in_folder(&folder, "timeout", &["120", "sh", "-c", command])
            .output()
            .expect("sh runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "`{command}` fails: {stderr}");
    }
    wait_until("the firmware reads the disk", || {
        let args = ["tapdisk", "status", "--json", "web.sock"];
        let status = in_folder(&folder, "weir", &args).output();
        let status: serde_json::Value =
            serde_json::from_slice(&status.expect("weir runs").stdout).expect("a status");
        let ops = status["disks"][0]["ops"].as_array().expect("operations");
        ops.iter()
            .any(|op| op["op"] == "r" && op["requests"].as_u64() > Some(0))
    });
}

#[test]
fn libvirt_accepts_the_description_of_a_disk() {
    const TEST: &str = "libvirt_accepts_the_description_of_a_disk";
    use weir_testing::MemoryFolder;
    use weir_testing::libvirt::Session;
    let started =
        MemoryFolder::new(16).and_then(|folder| Session::start(&folder).map(|s| (folder, s)));
    let (folder, session) = match started {
        Ok(started) => started,
        Err(why) => {
            weir_testing::skipped(TEST, format_args!("{why:#}"));
            return;
        }
    };
    let part = |label: &str| {
        let blocks = blocks(&root().join("docs/tapdisk.md"));
        let found = blocks.into_iter().find(|block| block.label == label);
        found.expect("the page has it").text
    };
    let (memory, disk) = (part("xml-tapdisk memory"), part("xml-tapdisk disk"));
    let file = folder.file("domain.xml");
    let domain = format!(
        "<domain type='qemu'><name>shop</name><memory unit='MiB'>256</memory>{memory}\
         <os><type arch='x86_64' machine='pc'>hvm</type></os><devices>{disk}</devices></domain>"
    );
    fs::write(&file, domain).expect("a file is written");
    session
        .virsh(&["define", "--validate", &file])
        .expect("libvirt accepts it");
    let described = session.virsh(&["dumpxml", "shop"]).expect("it is defined");
    assert!(
        described.contains("type='vhostuser'") && described.contains("memfd"),
        "{described}"
    );
}
