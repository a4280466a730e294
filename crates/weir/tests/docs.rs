//! The documentation tells the truth: every query block of `docs/` runs, and so does every command
//! of the README and of the page about the tapdisk.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// The recording that comes with the project.
const RECORDING: &str = "samples/fio-loop.parquet";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the repository exists")
}

/// A fenced block of a Markdown page.
struct Block {
    page: String,
    line: usize,
    /// What stands behind the fence: `cql`, `cql-error W0103`, `sh`.
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

/// Every failure at once, each with the place of its block.
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
            failures.push(failure(&block, "the query says nothing", &output));
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
        let said = String::from_utf8_lossy(&output.stderr).to_string()
            + &String::from_utf8_lossy(&output.stdout);
        if output.status.code() != Some(2) || !said.contains(code) {
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
        // Whoever may not watch I/O can still ask whether the words are right.
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

/// True when this host lets weir see its block I/O.
fn live_works() -> bool {
    Command::new(WEIR)
        .arg("doctor")
        .output()
        .expect("weir runs")
        .status
        .success()
}

/// A process that ends with the test.
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
    let home = std::env::temp_dir().join(format!("weir-docs-fleet-{}", std::process::id()));
    let state = |name: &str| home.join(name).display().to_string();
    let start = |args: &[&str]| {
        let mut command = Command::new(WEIR);
        command.args(args).current_dir(root());
        let child = command.stderr(std::process::Stdio::piped()).spawn();
        Process(child.expect("weir runs"))
    };
    let listen = format!("unix:{}", state("m.sock"));
    let mut monitor = start(&["monitor", "--listen", &listen, "--state", &state("m")]);
    let mut said = std::io::BufReader::new(monitor.0.stderr.take().expect("it is piped")).lines();
    let ready = said.next().expect("a line").expect("UTF-8");
    let address = ready.rsplit(' ').next().expect("an address");
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
    std::thread::spawn(move || said.count());
    let mut failures = Vec::new();
    let mut ran = 0;
    for block in pages().iter().flat_map(|p| blocks(p)) {
        for command in block.text.lines().filter(|_| block.label == "sh-fleet") {
            let weir = command.strip_prefix("weir ").expect("it asks weir");
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
    fs::remove_dir_all(&home).expect("the home goes away");
    assert!(ran > 5, "the docs ask a fleet");
    none(failures);
}

#[test]
fn every_command_of_the_readme_runs() {
    let live = live_works();
    let scratch = std::env::temp_dir().join(format!("weir-readme-{}", std::process::id()));
    fs::create_dir_all(&scratch).expect("a scratch folder");
    std::os::unix::fs::symlink(root().join("samples"), scratch.join("samples")).expect("a link");
    let bin = Path::new(WEIR)
        .parent()
        .expect("the binary lies in a folder")
        .to_path_buf();
    let path = format!(
        "{}:{}",
        bin.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let mut failures = Vec::new();
    for block in blocks(&root().join("README.md"))
        .into_iter()
        .filter(|b| b.label == "sh")
    {
        for command in block.text.lines().filter(|l| l.starts_with("weir ")) {
            let needs_live = !command.contains("--from") && command.contains("--for");
            if needs_live && !live {
                // Not through `eprintln!`: the harness would swallow it.
                let _ = writeln!(
                    std::io::stderr(),
                    "skipped: README `{command}`: needs root and BPF"
                );
                continue;
            }
            let output = Command::new("timeout")
                .args(["60", "sh", "-c", command])
                .env("PATH", &path)
                .current_dir(&scratch)
                .output()
                .expect("sh runs");
            if !output.status.success() {
                failures.push(failure(&block, &format!("`{command}` fails"), &output));
            }
        }
    }
    fs::remove_dir_all(&scratch).expect("the scratch folder goes away");
    none(failures);
}

/// A folder of a test's own, with a short path since sockets are in it; gone when the test is over.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Waits until `done`, on a machine that may be busy.
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let within = std::time::Instant::now() + std::time::Duration::from_secs(300);
    while !done() {
        assert!(std::time::Instant::now() < within, "waited in vain: {what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// The commands of blocks with this label, in order; lines that end in a backslash go on.
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
            let _ = writeln!(
                std::io::stderr(),
                "skipped: {TEST}: no {program} on this host"
            );
            return;
        }
    }
    let bin = Path::new(WEIR)
        .parent()
        .expect("the binary lies in a folder");
    let path = format!("{}:{path}", bin.display());
    let folder = std::env::temp_dir().join(format!("weir-dt-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let folder = Folder(folder);
    let run = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).env("PATH", &path).current_dir(&folder.0);
        command
    };
    let mut background = Vec::new();
    for command in &all {
        let Some(process) = command.strip_suffix('&') else {
            let output = run("timeout", &["120", "sh", "-c", command])
                .output()
                .expect("sh runs");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "`{command}` fails: {said}");
            continue;
        };
        // It is the shell's process, and ends with the test.
        let child = run("sh", &["-c", &format!("exec {process}")])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn();
        background.push(Process(child.expect("sh runs")));
        // Who reads the page takes longer to type the next command.
        let socket = process.split_whitespace().find_map(|word| {
            let path = word.split(',').next().unwrap_or(word);
            let is_path = path.ends_with(".sock").then_some(path);
            path.strip_prefix("unix:").or(is_path)
        });
        if let Some(socket) = socket {
            let suffix = if process.starts_with("weir") {
                ".tap"
            } else {
                ""
            };
            let there = folder.0.join(format!("{socket}{suffix}"));
            wait_until(process, || there.exists());
        }
    }
    wait_until("the firmware reads the disk", || {
        let status = run("weir", &["tapdisk", "status", "--json", "web.sock"]).output();
        let status: serde_json::Value =
            serde_json::from_slice(&status.expect("weir runs").stdout).expect("a status");
        let ops = status["disks"][0]["ops"].as_array().expect("operations");
        ops.iter()
            .any(|op| op["op"] == "r" && op["requests"].as_u64() > Some(0))
    });
}

#[test]
fn libvirt_takes_the_description_of_a_disk() {
    const TEST: &str = "libvirt_takes_the_description_of_a_disk";
    use weir_guest::MemoryFolder;
    use weir_guest::libvirt::Session;
    let started =
        MemoryFolder::new(16).and_then(|folder| Session::start(&folder).map(|s| (folder, s)));
    let (folder, session) = match started {
        Ok(started) => started,
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "skipped: {TEST}: {why:#}");
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
    fs::write(&file, domain).expect("the folder takes files");
    session
        .virsh(&["define", "--validate", &file])
        .expect("libvirt takes it");
    let described = session.virsh(&["dumpxml", "shop"]).expect("it is defined");
    assert!(
        described.contains("type='vhostuser'") && described.contains("memfd"),
        "{described}"
    );
}
