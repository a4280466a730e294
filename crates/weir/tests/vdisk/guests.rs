//! Guests with disks of each kind, and weir on their host.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::{Value, json};
use weir_testing::{Guest, GuestDisk, Kit, Qmp, Scratch, skip};

pub use weir_testing::{is_root, wait_until};

/// Bytes of each image.
const IMAGE_BYTES: usize = 32 << 20;

/// A guest with two virtio-blk disks, `/dev/vda` and `/dev/vdb`, and a SCSI one, `/dev/sda`.
pub struct Host {
    /// The guest.
    pub guest: Guest,
    /// The images; removed after the guest has ended.
    _folder: Scratch,
}

impl Host {
    /// Boots a guest called `name`; otherwise logs that `test` is skipped.
    pub fn boot(test: &str, name: &str) -> Option<Host> {
        let kit = match Kit::find() {
            Ok(kit) => kit,
            Err(why) => return skip(test, why.to_string()),
        };
        if !is_root() {
            return skip(test, "it takes root to see into another process");
        }
        let folder = Scratch::new();
        let mut args: Vec<String> = ["-msg", "timestamp=on"].map(String::from).to_vec();
        for id in ["d0", "d1", "d2"] {
            let image = folder.write(id, &vec![1; IMAGE_BYTES]);
            let disk = GuestDisk::new(id, &image).buffered();
            let disk = if id == "d2" { disk.scsi() } else { disk };
            args.extend(disk.args());
        }
        let mut guest = Guest::start(&kit, name, &args).unwrap();
        guest.ready().unwrap();
        Some(Host {
            guest,
            _folder: folder,
        })
    }

    /// The trace events that are enabled.
    pub fn traced(&self) -> Vec<String> {
        let mut qmp = self.guest.qmp().unwrap();
        let all = qmp
            .call("trace-event-get-state", json!({"name": "*"}))
            .unwrap();
        let on = all.as_array().unwrap().iter();
        let on = on.filter(|e| e["state"] == "enabled");
        on.map(|e| e["name"].as_str().unwrap().to_owned()).collect()
    }

    /// The trace logs that QEMU has open.
    pub fn logs(&self) -> Vec<PathBuf> {
        let open = fs::read_dir(format!("/proc/{}/fd", self.guest.pid())).unwrap();
        let paths = open.flatten().filter_map(|f| fs::read_link(f.path()).ok());
        let is_ours = |p: &PathBuf| p.to_string_lossy().contains("weir-trace-");
        paths.filter(is_ours).collect()
    }

    /// QEMU's own counters of the disk with device id `id`.
    pub fn block_stats(&self, id: &str) -> Value {
        let mut qmp: Qmp = self.guest.qmp().unwrap();
        let all = qmp.call("query-blockstats", json!({})).unwrap();
        let of = |d: &&Value| {
            d["qdev"]
                .as_str()
                .unwrap()
                .split('/')
                .any(|part| part == id)
        };
        all.as_array().unwrap().iter().find(of).unwrap()["stats"].clone()
    }
}

/// A running weir process.
pub struct Weir {
    child: Child,
    out: Arc<Mutex<String>>,
    reading: JoinHandle<()>,
}

impl Weir {
    /// Starts it.
    pub fn start(args: &[&str]) -> Weir {
        let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = Arc::new(Mutex::new(String::new()));
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let printed = out.clone();
        let reading = std::thread::spawn(move || {
            for line in lines {
                let line = line.unwrap() + "\n";
                printed.lock().unwrap().push_str(&line);
            }
        });
        Weir {
            child,
            out,
            reading,
        }
    }

    /// The rows of CSV that it has printed so far.
    pub fn so_far(&self) -> Vec<Vec<String>> {
        rows(&self.out.lock().unwrap())
    }

    /// Sends it a signal, by name.
    pub fn signal(&self, name: &str) {
        let kill = Command::new("kill")
            .args(["-s", name, &self.child.id().to_string()])
            .status();
        assert!(kill.unwrap().success());
    }

    /// Kills the child process that it started with `argument`.
    pub fn kill_child(&self, argument: &str) {
        let parent = format!("PPid:\t{}", self.child.id());
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let child = processes.map(|p| p.path()).find(|p| {
            let text = |name| fs::read_to_string(p.join(name)).unwrap_or_default();
            text("status").lines().any(|l| l == parent) && text("cmdline").contains(argument)
        });
        let child = child.expect("it has such a child");
        let id = child.file_name().unwrap();
        let kill = Command::new("kill").args(["-s", "KILL"]).arg(id).status();
        assert!(kill.unwrap().success());
    }

    /// Its output up to its end.
    pub fn finish(self) -> CommandOutput {
        let output = self.child.wait_with_output().unwrap();
        self.reading.join().unwrap();
        let out = self.out.lock().unwrap().clone();
        CommandOutput {
            code: output.status.code(),
            out,
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// The output of weir.
#[derive(Debug)]
pub struct CommandOutput {
    /// Exit code; `None` if a signal killed it.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl CommandOutput {
    /// The rows of CSV, without the header and the instant.
    pub fn rows(&self) -> Vec<Vec<String>> {
        rows(&self.out)
    }
}

fn rows(csv: &str) -> Vec<Vec<String>> {
    let lines = csv.lines().skip(1);
    let cells = |line: &str| line.split(',').skip(1).map(String::from).collect();
    lines.map(cells).collect()
}
