//! Tests of the rules, one by one, on a synthetic inventory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;

use weir_model::inventory::{Disk, FoundBy, Vm, VmKind};

use super::*;
use crate::ebpf::cgroups::Root;
use crate::inventory::{DiskLayout, LaidDisk, Piece, Snapshot};

const DEVICE: u32 = 8 << 20;

/// Processes of VM 0 and 1.
const PID_A: u32 = 100;
const PID_B: u32 = 200;

fn vm(name: &str) -> Vm {
    Vm::new(name, VmKind::Qemu, "test")
}

fn disk(vm: u32, vdisk: &str, found_by: FoundBy, sector: u64, sectors: u64) -> LaidDisk {
    LaidDisk {
        disk: Disk::new(["a", "b"][vm as usize], vdisk, found_by, "test"),
        vm,
        tapdisk: None,
        control: None,
        layout: Arc::new(DiskLayout {
            pieces: vec![Piece {
                device: DEVICE,
                sector,
                sectors,
                vsector: Some(0),
                shared: false,
            }],
            grows_on: match found_by {
                FoundBy::Extents => vec![DEVICE],
                _ => Vec::new(),
            },
        }),
    }
}

/// VM a has a file at 1000 and, if `second`, a device at 3000; VM b has a file at 2000. Each has a
/// cgroup of its name.
fn inventory(second: bool) -> Snapshot {
    let mut disks = vec![
        disk(0, "/dev/vda", FoundBy::Extents, 1000, 100),
        disk(1, "/dev/sda", FoundBy::Extents, 2000, 100),
    ];
    disks.extend(second.then(|| disk(0, "/dev/vdb", FoundBy::Device, 3000, 100)));
    Snapshot {
        vms: vec![vm("a"), vm("b")],
        disks,
        pids: [(PID_A, 0), (PID_B, 1)].into(),
        cgroups: [(Symbol::new("/a"), 0), (Symbol::new("/b"), 1)].into(),
        ..Snapshot::default()
    }
}

/// A hierarchy of cgroups: `/a`, `/b`, `/b/below` and `/other`.
struct Hierarchy(tempfile::TempDir);

impl Hierarchy {
    fn new() -> Hierarchy {
        let root = tempfile::tempdir().unwrap();
        for path in ["a", "b/below", "other"] {
            fs::create_dir_all(root.path().join(path)).unwrap();
        }
        Hierarchy(root)
    }

    fn id(&self, path: &str) -> u64 {
        fs::metadata(self.0.path().join(path)).unwrap().ino()
    }

    fn cgroups(&self) -> Cgroups {
        Cgroups::new(Some(Root {
            path: self.0.path().to_owned(),
            unified: true,
        }))
    }
}

/// The attribution of one request: VM, disk and sector.
type Attributed = (Option<&'static str>, Option<&'static str>, Option<i64>);

const NO_OWNER: Attributed = (None, None, None);

fn asked(
    attribution: &mut Attribution,
    cgroups: &mut Cgroups,
    op: Op,
    (sector, sectors): (u64, u32),
    (pid, kernel, cgroup): (u32, bool, u64),
) -> Attributed {
    let record = Record {
        op: op as u8,
        sector,
        bytes: sectors * 512,
        device: DEVICE,
        flags: if kernel { flag::KERNEL } else { 0 },
        ..Record::default()
    };
    let submitter = Submitter {
        pid,
        cgroup,
        comm: [0; 2],
    };
    let mut found = Vec::new();
    let devices = [(0, DEVICE)].into_iter();
    attribution.attribute(devices, &[record], &[submitter], cgroups, &mut found);
    let owner = found[0];
    let text = |symbol: Option<Symbol>| symbol.map(Symbol::as_str);
    (text(owner.vm()), text(owner.vdisk()), owner.vsector())
}

fn attribution(snapshot: Snapshot) -> Attribution {
    let mut snapshot = Some(snapshot);
    let watch = InventoryWatch::by(Duration::from_secs(60), move |_| snapshot.take());
    Attribution::new(watch.unwrap())
}

#[test]
fn each_rule_of_evidence_holds() {
    let hierarchy = Hierarchy::new();
    let [a, below, other] = ["a", "b/below", "other"].map(|path| hierarchy.id(path));
    let (process, kernel) = (false, true);
    let on_a = (1010, 8);
    let whole = (Some("a"), Some("/dev/vda"), Some(10));
    let only_vm = |name| (Some(name), None, None);
    let cases = [
        (
            "its process on its disk",
            Op::Read,
            on_a,
            (PID_A, process, other),
            whole,
        ),
        (
            "a process of nobody's",
            Op::Read,
            on_a,
            (300, process, other),
            NO_OWNER,
        ),
        (
            "a process in its cgroup",
            Op::Read,
            on_a,
            (300, process, a),
            whole,
        ),
        (
            "its process on another's disk",
            Op::Read,
            (2010, 8),
            (PID_A, process, 0),
            only_vm("a"),
        ),
        (
            "its process, charged to another",
            Op::Read,
            on_a,
            (PID_A, process, below),
            NO_OWNER,
        ),
        (
            "a kernel thread on a disk",
            Op::Write,
            on_a,
            (7, kernel, other),
            whole,
        ),
        (
            "the same, charged to another",
            Op::Write,
            on_a,
            (7, kernel, below),
            NO_OWNER,
        ),
        (
            "a kernel thread elsewhere",
            Op::Write,
            (9000, 8),
            (7, kernel, other),
            NO_OWNER,
        ),
        (
            "the same, charged to a VM",
            Op::Write,
            (9000, 8),
            (7, kernel, below),
            only_vm("b"),
        ),
        (
            "what a file gave up",
            Op::Discard,
            on_a,
            (7, kernel, 0),
            NO_OWNER,
        ),
        (
            "its own discard",
            Op::Discard,
            on_a,
            (PID_A, process, 0),
            whole,
        ),
        (
            "beyond its disk's end",
            Op::Write,
            (1096, 8),
            (PID_A, process, 0),
            only_vm("a"),
        ),
        (
            "its beginning unseen",
            Op::Read,
            on_a,
            (0, process, 0),
            NO_OWNER,
        ),
        (
            "unseen, but charged",
            Op::Read,
            on_a,
            (0, process, a),
            whole,
        ),
        (
            "a flush by its process",
            Op::Flush,
            (UNKNOWN, 0),
            (PID_B, process, 0),
            (Some("b"), Some("/dev/sda"), None),
        ),
        (
            "a flush of one of two disks",
            Op::Flush,
            (UNKNOWN, 0),
            (PID_A, process, 0),
            only_vm("a"),
        ),
        (
            "a flush by a kernel thread",
            Op::Flush,
            (UNKNOWN, 0),
            (7, kernel, 0),
            NO_OWNER,
        ),
    ];
    let mut attribution = attribution(inventory(true));
    let mut cgroups = hierarchy.cgroups();
    for (what, op, place, by, expected) in cases {
        let owner = asked(&mut attribution, &mut cgroups, op, place, by);
        assert_eq!(owner, expected, "{what}");
    }
}

#[test]
fn who_is_gone_owns_nothing_and_who_is_new_is_looked_for() {
    let mut cgroups = Cgroups::new(None);
    let now = Arc::new(Mutex::new(inventory(false)));
    let seen = now.clone();
    let mut asked_for = Vec::new();
    let watch = InventoryWatch::by(Duration::from_secs(60), move |looks: &[ScanScope]| {
        asked_for.extend_from_slice(looks);
        let mut seen = seen.lock().unwrap();
        if asked_for.contains(&ScanScope::Pid(300)) {
            seen.pids.insert(300, 1);
        }
        Some(seen.clone())
    });
    let mut attribution = Attribution::new(watch.unwrap());
    let mut read = |attribution: &mut Attribution, sector, by| {
        asked(attribution, &mut cgroups, Op::Read, (sector, 8), by)
    };
    // An unknown process is scanned for before its first request is reported.
    let by_new = read(&mut attribution, 2000, (300, false, 0));
    assert_eq!(by_new, (Some("b"), Some("/dev/sda"), Some(0)));
    // The VM ends; its writeback continues.
    *now.lock().unwrap() = Snapshot {
        vms: vec![vm("b")],
        pids: [(PID_B, 0)].into(),
        ..Snapshot::default()
    };
    attribution
        .watch
        .look(ScanScope::All, Duration::from_secs(10));
    assert_eq!(read(&mut attribution, 1010, (7, true, 0)), NO_OWNER);
    assert_eq!(read(&mut attribution, 1010, (PID_A, false, 0)), NO_OWNER);
    assert_eq!(
        read(&mut attribution, 1010, (PID_B, false, 0)),
        (Some("b"), None, None)
    );
}

#[test]
fn who_serves_several_vms_works_for_the_one_whose_disk_it_is() {
    let hierarchy = Hierarchy::new();
    let other = hierarchy.id("other");
    let snapshot = Snapshot {
        servers: [(400, vec![0, 1]), (500, vec![1, 2])].into(),
        ..inventory(true)
    };
    let (mut attribution, mut cgroups) = (attribution(snapshot), hierarchy.cgroups());
    let mut owner_of = |op, place, pid, cgroup| {
        let by = (pid, false, cgroup);
        asked(&mut attribution, &mut cgroups, op, place, by)
    };
    let on_a = (Some("a"), Some("/dev/vda"), Some(10));
    assert_eq!(owner_of(Op::Read, (1010, 8), 400, other), on_a);
    let on_b = (Some("b"), Some("/dev/sda"), Some(20));
    assert_eq!(owner_of(Op::Write, (2020, 8), 400, other), on_b);
    // Between disks, across their ends, and without a location, the VM is unknown.
    assert_eq!(owner_of(Op::Read, (9000, 8), 400, other), NO_OWNER);
    assert_eq!(owner_of(Op::Read, (1096, 8), 400, other), NO_OWNER);
    assert_eq!(owner_of(Op::Flush, (UNKNOWN, 0), 400, other), NO_OWNER);
    // A disk of a VM that it does not work for, and a cgroup that contradicts the location.
    assert_eq!(owner_of(Op::Read, (1010, 8), 500, other), NO_OWNER);
    assert_eq!(
        owner_of(Op::Read, (1010, 8), 400, hierarchy.id("b/below")),
        NO_OWNER
    );
}
