//! The cost of the inventory: CPU time of a scan on this host, with 500 more processes and 50 VMs
//! of one disk each, and the time until the response of the inspection process.
//!
//! `cargo run --release -p weir-tap --example inventory_cost`. The processes are idle; a VM is a
//! process whose program is called `qemu-kvm`.

use std::ffi::OsString;
use std::fs;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use weir_tap::inspection::message::{Begin, ConversationKind, SnapshotReceiver};
use weir_tap::inspection::{self, Inspection};
use weir_tap::inventory::{InventoryWatch, ScanScope, WatchOptions};

const PROCESSES: usize = 500;
const VMS: usize = 50;
const LOOKS: u32 = 100;

fn main() {
    let name = std::env::args().next().unwrap_or_default();
    if std::env::args().nth(1).as_deref() == Some("inspection") {
        inspection::run().expect("it is started as the inspection process");
        return;
    }
    if name.ends_with("qemu-kvm") || name.ends_with("idle") {
        thread::sleep(Duration::from_secs(120));
        return;
    }
    let folder = std::env::temp_dir().join(format!("weir-inventory-cost-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for the programs");
    let own = std::env::current_exe().expect("this program has a file");
    let (vm, idle) = (folder.join("qemu-kvm"), folder.join("idle"));
    for program in [&vm, &idle] {
        fs::copy(&own, program).expect("a copy of this program");
    }
    let mut children: Vec<Child> = Vec::new();
    for _ in 0..PROCESSES {
        children.push(Command::new(&idle).spawn().expect("a process"));
    }
    for number in 0..VMS {
        let image = folder.join(format!("{number}.raw"));
        fs::write(&image, vec![1; 1 << 20]).expect("an image");
        let drive = format!("file={},if=virtio,format=raw", image.display());
        let arguments = ["-name", &format!("cost-{number}"), "-drive", &drive];
        children.push(Command::new(&vm).args(arguments).spawn().expect("a VM"));
    }
    thread::sleep(Duration::from_millis(300));
    measure();
    for child in &mut children {
        child.kill().expect("it runs");
        child.wait().expect("it is ours");
    }
    fs::remove_dir_all(&folder).expect("the folder is ours");
}

fn measure() {
    let started = Instant::now();
    let watch = InventoryWatch::start(&WatchOptions::default()).expect("the host can be watched");
    let first = started.elapsed();
    let snapshot = watch.snapshot();
    println!(
        "{} VMs, {} disks, {} rows of devices",
        snapshot.vms.len(),
        snapshot.disks.len(),
        snapshot.devices.len()
    );
    println!("first look       {first:>10.1?}");
    let before = thread_time();
    for _ in 0..LOOKS {
        watch.look(ScanScope::All, Duration::from_secs(5));
    }
    let all = (thread_time() - before) / LOOKS;
    println!("a look           {all:>10.1?} of processor time");
    let before = thread_time();
    for _ in 0..LOOKS {
        watch.look(ScanScope::Pid(1), Duration::from_secs(5));
    }
    let one = (thread_time() - before) / LOOKS;
    println!("one process only {one:>10.1?} of processor time");
    println!(
        "at one look a second: {:.2} % of a core",
        all.as_secs_f64() * 100.0
    );
    drop(watch);
    measure_inspection();
}

/// The same scans, from the request to the response of an inspection process.
fn measure_inspection() {
    let program = ["/proc/self/exe", "inspection"].map(OsString::from);
    let started = Instant::now();
    let process = Inspection::start(&program).expect("this program has a file");
    let begin = Begin {
        root: "/".into(),
        declared: Vec::new(),
    };
    let conversation = process.converse(ConversationKind::Inventory, &begin, None);
    let mut conversation = conversation.expect("it runs");
    let mut received = SnapshotReceiver::default();
    let mut look = |look| {
        conversation.request(&[look]).expect("it runs");
        let seen = received.read(conversation.socket());
        seen.expect("it answers");
    };
    look(ScanScope::All);
    println!(
        "inspection process: started and first look {:>10.1?}",
        started.elapsed()
    );
    for (name, kind) in [
        ("a look", ScanScope::All),
        ("one process only", ScanScope::Pid(1)),
    ] {
        let started = Instant::now();
        for _ in 0..LOOKS {
            look(kind);
        }
        println!(
            "{name:<16} {:>10.1?} from request to answer",
            started.elapsed() / LOOKS
        );
    }
}

/// CPU time of the thread called `inventory`, from its schedstat: the first number, in nanoseconds.
fn thread_time() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").expect("a process has threads");
    for task in tasks.flatten() {
        let comm = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if comm.trim() == "inventory" {
            let stat = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let ran = stat.split(' ').next().and_then(|ns| ns.parse().ok());
            return Duration::from_nanos(ran.expect("schedstat begins with a number"));
        }
    }
    panic!("the watch has a thread called inventory");
}
