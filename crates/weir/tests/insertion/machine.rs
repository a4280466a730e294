//! A guest with a raw disk that is written and verified continuously, and the weir commands on its
//! host.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use weir_testing::{Guest, GuestDisk, Kit, Port, Scratch, Tools, is_root, skip};

pub use weir_testing::{TIMEOUT as PATIENT, wait_until};

/// Bytes of the disk.
pub const DISK_BYTES: usize = 32 << 20;

/// Allows one guest at a time: they share two processors.
static TURN: Mutex<()> = Mutex::new(());

/// A guest with `/dev/vda`, and its programs on `/dev/vdb`.
pub struct Machine {
    pub name: String,
    pub guest: Guest,
    pub image: PathBuf,
    _tools: Tools,
    _scratch: Scratch,
    _turn: MutexGuard<'static, ()>,
}

/// Waits for the turn of `test` and returns a guest's kit; logs the reason and returns `None` where
/// it cannot run.
pub fn kit(test: &str) -> Option<(Kit, MutexGuard<'static, ()>)> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let why = match Kit::find() {
        Ok(kit) if is_root() => return Some((kit, turn)),
        Ok(_) => "it takes root to see into another process".to_owned(),
        Err(why) => why.to_string(),
    };
    skip(test, why)
}

/// An image with content.
pub fn image(scratch: &Scratch, name: &str) -> PathBuf {
    scratch.write(name, &vec![0x11; DISK_BYTES]).into()
}

impl Machine {
    /// Boots a machine; otherwise logs that `test` is skipped.
    pub fn boot(test: &str) -> Option<Machine> {
        let (kit, turn) = kit(test)?;
        static BOOTED: AtomicU32 = AtomicU32::new(0);
        let number = BOOTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("ins-{}-{number}", std::process::id());
        let scratch = Scratch::new();
        let image = image(&scratch, "a.raw");
        let tools = Tools::make(&scratch.path().join("tools"), &["fio"]).unwrap();
        let disks = [
            GuestDisk::new("d0", image.to_str().unwrap()),
            GuestDisk::new("d1", tools.image().to_str().unwrap()),
        ];
        let args: Vec<String> = disks.iter().flat_map(GuestDisk::args).collect();
        let mut guest = Guest::start(&kit, &name, &args).unwrap();
        guest.ready().unwrap();
        guest.run(&Tools::mount("/dev/vdb")).unwrap();
        Some(Machine {
            name,
            guest,
            image,
            _tools: tools,
            _scratch: scratch,
            _turn: turn,
        })
    }

    /// Runs `weir tapdisk VERB` for `/dev/vda`.
    pub fn tapdisk(&self, verb: &str, more: &[&str]) -> CommandOutput {
        let args = ["tapdisk", verb, "--vm", &self.name, "--disk", "vda"];
        weir(&[&args[..], more].concat())
    }

    /// Inserts a tap under `/dev/vda`, which must succeed; returns the output.
    pub fn insert(&self) -> Value {
        let printed = self.tapdisk("insert", &["--json"]);
        assert_eq!(printed.code, Some(0), "{printed:?}");
        serde_json::from_str(&printed.out).unwrap()
    }

    /// Removes the tap, which must succeed.
    pub fn remove(&self) -> CommandOutput {
        let printed = self.tapdisk("remove", &[]);
        assert_eq!(printed.code, Some(0), "{printed:?}");
        printed
    }

    /// QEMU's block nodes and the edges between them, without properties that change automatically.
    pub fn graph(&self) -> (Vec<String>, Vec<String>) {
        let mut qmp = self.guest.qmp().unwrap();
        let graph = qmp.call("x-debug-query-block-graph", json!({})).unwrap();
        drop(qmp);
        let name = |id: &Value| {
            let all = graph["nodes"].as_array().unwrap();
            all.iter().find(|n| n["id"] == *id).unwrap()["name"].to_string()
        };
        let edge = |e: &Value| {
            let ends = format!("{} {} {}", name(&e["parent"]), e["name"], name(&e["child"]));
            format!("{ends} {} {}", e["perm"], e["shared-perm"])
        };
        let mut edges: Vec<String> = graph["edges"]
            .as_array()
            .unwrap()
            .iter()
            .map(edge)
            .collect();
        edges.sort();
        (nodes(&self.guest), edges)
    }

    /// Asserts that nothing of a tap remains on the host.
    pub fn assert_nothing_left(&self) {
        assert_eq!(taps_of(&self.name), Vec::<u32>::new(), "processes");
        let folder = format!("/run/weir-tapdisk/{}.vda", self.name);
        assert!(!fs::exists(&folder).unwrap(), "{folder}");
    }

    /// Ends the guest, which must not report an error, and compares its disk with the image.
    pub fn finish(mut self) {
        no_error(&mut self.guest);
        let sum = self
            .guest
            .run("dd if=/dev/vda bs=1M iflag=direct 2>/dev/null | md5sum")
            .unwrap();
        let image = Command::new("md5sum").arg(&self.image).output().unwrap();
        let first = |text: &str| text.split_whitespace().next().unwrap().to_owned();
        let image = first(&String::from_utf8(image.stdout).unwrap());
        assert_eq!(
            first(&sum),
            image,
            "what the guest reads is what the image holds"
        );
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for pid in taps_of(&self.name) {
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
        let _ = fs::remove_dir_all(format!("/run/weir-tapdisk/{}.vda", self.name));
    }
}

/// The nodes of a guest and their open modes.
pub fn nodes(guest: &Guest) -> Vec<String> {
    let mut qmp = guest.qmp().unwrap();
    let flat = json!({"flat": true});
    let named = qmp.call("query-named-block-nodes", flat).unwrap();
    let node = |n: &Value| {
        let keys = ["node-name", "drv", "ro", "cache", "detect_zeroes", "file"];
        keys.map(|key| n[key].to_string()).join(" ")
    };
    let mut nodes: Vec<String> = named.as_array().unwrap().iter().map(node).collect();
    nodes.sort();
    nodes
}

/// The tap processes of a VM.
pub fn taps_of(vm: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let is_tap = |entry: &fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|b| *b == 0).collect();
        words.contains(&&b"tapdisk"[..]) && words.contains(&format!("--vm={vm}").as_bytes())
    };
    processes
        .filter(is_tap)
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Makes a guest write and verify `/dev/vda` until [`end_load`].
pub fn begin_load(port: &mut Port) {
    let fio = "/tools/fio --name=v --filename=/dev/vda --direct=1 --ioengine=psync --numjobs=2 --thread \
               --offset_increment=8m --size=4m --rw=randrw --bsrange=4k-64k --verify=crc32c --verify_fatal=1 \
               --fsync=32 --randrepeat=0 --output=/fio.log";
    let lines = format!(
        "rm -f /stop /load; (n=0; while [ ! -e /stop ]; do {fio} > /fio.out 2>&1 || {{ echo failed > /load; exit; }}; \
         n=$((n+1)); echo $n > /rounds; done; echo fine > /load) > /dev/null 2>&1 &"
    );
    port.run("cd /").unwrap();
    port.run(&lines).unwrap();
}

/// Ends the load, which must not have failed.
pub fn end_load(port: &mut Port) {
    port.run("touch /stop").unwrap();
    wait_until("the load ends", || {
        port.run("test -s /load && echo yes || true")
            .unwrap()
            .contains("yes")
    });
    let printed = port
        .run("cat /load; cat /rounds; cat /fio.out /fio.log | tail -30")
        .unwrap();
    assert!(printed.starts_with("fine\n"), "{printed}");
}

/// Asserts that the guest's kernel has logged no I/O error of a disk.
pub fn no_error(port: &mut Port) {
    let errors = port.run("dmesg | grep -i -E 'i/o error|blk_update|buffer io|critical' || true");
    assert_eq!(errors.unwrap(), "");
}

/// The output of weir.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Runs weir to its end.
pub fn weir(args: &[&str]) -> CommandOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = command.args(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    CommandOutput {
        code: output.status.code(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}
