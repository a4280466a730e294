//! The inventory of simulated hosts made of files: every kind of VM, as it starts, changes and
//! stops.

mod tapdisk;

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use weir_tap::inventory::{InventoryWatch, ScanScope, Snapshot, WatchOptions};
use weir_testing::Scratch;

const SCAN_TIMEOUT: Duration = Duration::from_secs(60);

/// A folder with the files of a host.
struct Tree(Scratch);

impl Tree {
    fn new() -> Tree {
        let tree = Tree(Scratch::new());
        tree.write("/proc/self/cgroup", "0::/\n");
        tree.write("/proc/uptime", "100.00 100.00\n");
        tree
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path.trim_start_matches('/'))
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    fn remove(&self, path: &str) {
        let path = self.path(path);
        match path.is_dir() {
            true => fs::remove_dir_all(path).unwrap(),
            false => fs::remove_file(path).unwrap(),
        }
    }

    /// A process that was started `start` ticks after boot, with a command line separated by
    /// spaces.
    fn process(&self, pid: u32, start: u64, line: &str, cgroup: &str) {
        let program = line.split(' ').next().unwrap();
        let comm: String = program
            .rsplit('/')
            .next()
            .unwrap()
            .chars()
            .take(15)
            .collect();
        let zeros = "0 ".repeat(11);
        // Fields 3 to 8, flags, fields 10 to 20, the number of threads, the start.
        let stat = format!("{pid} ({comm}) S 1 1 1 0 -1 0 {zeros}1 {start} 0 0\n");
        self.write(&format!("/proc/{pid}/stat"), &stat);
        self.write(
            &format!("/proc/{pid}/cmdline"),
            &(line.replace(' ', "\0") + "\0"),
        );
        self.write(&format!("/proc/{pid}/cgroup"), &format!("0::{cgroup}\n"));
        self.user(pid, fs::metadata(self.0.path()).unwrap().uid());
        if !self.path(&format!("/proc/{pid}/exe")).is_symlink() {
            self.link(&format!("/proc/{pid}/exe"), program);
        }
    }

    /// The user who started a process.
    fn user(&self, pid: u32, uid: u32) {
        let status = format!("Name:\tx\nUid:\t{uid}\t0\t0\t0\n");
        self.write(&format!("/proc/{pid}/status"), &status);
    }

    fn watch(&self, declared: &[&str]) -> Arc<InventoryWatch> {
        InventoryWatch::start(&WatchOptions {
            root: self.0.path().to_owned(),
            declared: declared.iter().map(|d| d.parse().unwrap()).collect(),
            ..WatchOptions::default()
        })
        .unwrap()
    }
}

/// Name, kind, origin, state and process of each VM.
fn vms(snapshot: &Snapshot) -> Vec<String> {
    let lines = snapshot.vms.iter().map(|vm| {
        let state = vm.state.map_or("-", |s| s.as_str());
        let pid = vm.pid.map_or("-".into(), |pid| pid.to_string());
        format!(
            "{} {} {} {state} {pid}",
            vm.name,
            vm.kind.as_str(),
            vm.origin
        )
    });
    lines.collect()
}

/// VM, disk, image, format and device of each disk.
fn disks(snapshot: &Snapshot) -> Vec<String> {
    let lines = snapshot.disks.iter().map(|laid| {
        let disk = &laid.disk;
        let text = |text: Option<weir_model::Symbol>| text.map_or("-", |t| t.as_str());
        let (image, format, device) = (text(disk.image), text(disk.format), text(disk.device));
        format!("{} {} {image} {format} {device}", disk.vm, disk.vdisk)
    });
    lines.collect()
}

fn status(name: &str, state: &str, pid: u32, disks: &str) -> String {
    format!(
        "<domstatus state='{state}' reason='booted' pid='{pid}'><domain type='kvm'>
         <name>{name}</name><uuid>u-{pid}</uuid><devices>{disks}</devices></domain></domstatus>"
    )
}

const VDA: &str = "<disk type='file' device='disk'><driver name='qemu' type='raw'/>
    <source file='/images/a.raw'/><target dev='vda' bus='virtio'/><alias name='virtio-disk0'/></disk>";
const VDB: &str = "<disk type='file' device='disk'><driver name='qemu' type='qcow2'/>
    <source file='/images/b.qcow2'/><target dev='vdb' bus='virtio'/><alias name='virtio-disk1'/></disk>";

#[test]
fn a_domain_starts_changes_and_stops() {
    let tree = Tree::new();
    let watch = tree.watch(&[]);
    assert!(vms(&watch.snapshot()).is_empty());
    let scope = r"/machine.slice/machine-qemu\x2d1\x2dweb.scope";
    let line = "/usr/bin/qemu-system-x86_64 -name guest=web -uuid u-77 -m 512 -smp 2";
    tree.process(77, 500, line, &format!("{scope}/libvirt/emulator"));
    tree.write(
        "/run/libvirt/qemu/web.xml",
        &status("web", "running", 77, VDA),
    );
    let seen = watch.look(ScanScope::All, SCAN_TIMEOUT);
    assert_eq!(vms(&seen), ["web qemu libvirt running 77"]);
    assert_eq!(
        disks(&seen),
        ["web /dev/vda /images/a.raw raw virtio-disk0"]
    );
    let vm = &seen.vms[0];
    assert_eq!(
        (vm.vcpus, vm.memory_bytes),
        (Some(2), Some(512 << 20)),
        "QEMU fills in"
    );
    assert_eq!(vm.cgroup.unwrap().as_str(), scope);
    assert_eq!(seen.cgroups[&vm.cgroup.unwrap()], 0);

    let both = VDA.to_owned() + VDB;
    tree.write(
        "/run/libvirt/qemu/web.xml",
        &status("web", "paused", 77, &both),
    );
    let seen = watch.look(ScanScope::All, SCAN_TIMEOUT);
    assert_eq!(vms(&seen), ["web qemu libvirt paused 77"]);
    assert_eq!(
        disks(&seen)[1],
        "web /dev/vdb /images/b.qcow2 qcow2 virtio-disk1"
    );

    tree.remove("/run/libvirt/qemu/web.xml");
    tree.write(
        "/run/libvirt/qemu/shop.xml",
        &status("shop", "running", 77, VDB),
    );
    let seen = watch.look(ScanScope::All, SCAN_TIMEOUT);
    assert_eq!(vms(&seen), ["shop qemu libvirt running 77"]);
    assert_eq!(
        disks(&seen),
        ["shop /dev/vdb /images/b.qcow2 qcow2 virtio-disk1"]
    );

    // The daemon was killed and left its file; the process id was reused.
    tree.remove("/proc/77");
    tree.process(
        77,
        900,
        "/usr/bin/qemu-system-x86_64 -name guest=other -uuid u-1",
        "/",
    );
    let seen = watch.look(ScanScope::All, SCAN_TIMEOUT);
    assert_eq!(vms(&seen), ["other qemu qemu - 77"]);
    tree.remove("/proc/77");
    let seen = watch.look(ScanScope::All, SCAN_TIMEOUT);
    assert!(seen.vms.is_empty() && seen.disks.is_empty() && seen.pids.is_empty());
}

#[test]
fn a_users_domains_are_found_wherever_his_daemon_keeps_them() {
    let tree = Tree::new();
    tree.process(5, 1, "/usr/sbin/libvirtd --timeout=120", "/");
    tree.write("/proc/5/environ", "HOME=/h\0XDG_RUNTIME_DIR=/scratch/run\0");
    tree.process(77, 500, "qemu-system-x86_64 -name guest=a -uuid u-77", "/");
    tree.process(78, 500, "qemu-system-x86_64 -name guest=b -uuid u-78", "/");
    tree.process(79, 500, "postgres", "/");
    let file = |folder: &str, name: &str| format!("{folder}/libvirt/qemu/run/{name}.xml");
    tree.write(&file("/scratch/run", "a"), &status("a", "running", 77, VDA));
    tree.write(
        &file("/run/user/1000", "b"),
        &status("b", "running", 78, VDB),
    );
    tree.write(&file("/run/user/1000", "broken"), "<domstatus><domain>");
    // A file written by another user does not make a process a domain.
    tree.write(
        &file("/run/user/1000", "claimed"),
        &status("claimed", "running", 79, VDB).replace("u-79", ""),
    );
    let seen = tree.watch(&[]).snapshot();
    assert_eq!(
        vms(&seen),
        ["a qemu libvirt running 77", "b qemu libvirt running 78"]
    );
}

#[test]
fn names_are_unique_and_stay_with_who_has_them() {
    let tree = Tree::new();
    tree.process(
        10,
        100,
        "qemu-system-x86_64 -name web -drive file=/a,if=virtio",
        "/",
    );
    let watch = tree.watch(&[]);
    tree.process(
        9,
        200,
        "qemu-system-x86_64 -name web -drive file=/b,if=virtio",
        "/",
    );
    let seen = watch.look(ScanScope::All, SCAN_TIMEOUT);
    assert_eq!(vms(&seen), ["web qemu qemu - 10", "web-9 qemu qemu - 9"]);
    tree.remove("/proc/10");
    let seen = watch.look(ScanScope::All, SCAN_TIMEOUT);
    assert_eq!(
        vms(&seen),
        ["web-9 qemu qemu - 9"],
        "the name stays as long as the VM lives"
    );
    assert_eq!(disks(&seen), ["web-9 /dev/vda /b - -"]);
}

#[test]
fn other_monitors_of_vms_are_known() {
    let tree = Tree::new();
    let line =
        "/bin/cloud-hypervisor --api-socket /run/ch-web.sock --cpus boot=4 --disk path=/a.raw";
    tree.process(20, 1, line, "/");
    tree.process(
        30,
        1,
        "/bin/firecracker --id fc1 --config-file /c.json",
        "/fc",
    );
    let config = r#"{"drives": [{"drive_id": "root", "path_on_host": "/r.img", "is_root_device": true}],
        "machine-config": {"vcpu_count": 1, "mem_size_mib": 128}}"#;
    tree.write("/proc/30/root/c.json", config);
    tree.process(31, 1, "/bin/firecracker --config-file /none.json", "/");
    tree.process(40, 1, "/usr/bin/qemu-img convert -f raw a b", "/");
    tree.process(41, 1, "/usr/bin/qemu-system-x86_64", "/");
    let seen = tree.watch(&[]).snapshot();
    assert_eq!(
        vms(&seen),
        [
            "ch-web cloud-hypervisor cloud-hypervisor - 20",
            "fc1 firecracker firecracker - 30",
            "firecracker-31 firecracker firecracker - 31",
        ]
    );
    assert_eq!(
        disks(&seen),
        ["ch-web /dev/vda /a.raw - -", "fc1 /dev/vda /r.img raw root"]
    );
    // The cgroup of the first contains nothing else; the others share theirs with other processes.
    assert_eq!(seen.cgroups.len(), 1);
}

#[test]
fn containers_have_the_names_that_their_engines_gave() {
    let tree = Tree::new();
    let id = |digit: &str| digit.repeat(64);
    let docker = format!("/system.slice/docker-{}.scope", id("a"));
    tree.process(50, 10, "/bin/sh", &docker);
    tree.process(51, 11, "/bin/worker", &docker);
    tree.write(
        &format!("/var/lib/docker/containers/{}/config.v2.json", id("a")),
        r#"{"Name": "/shop-db", "State": {}}"#,
    );
    let pod = format!("/kubepods/burstable/pod1/{}", id("b"));
    tree.process(52, 12, "/bin/app", &pod);
    tree.write(
        &format!("/var/log/containers/app-0_prod_main-{}.log", id("b")),
        "",
    );
    tree.process(53, 13, "/sbin/init", "/lxc.payload.box/init.scope");
    tree.process(
        54,
        14,
        "/bin/x",
        &format!("/machine.slice/libpod-{}.scope", id("c")),
    );
    let seen = tree.watch(&[]).snapshot();
    assert_eq!(
        vms(&seen),
        [
            "box container containers running 53",
            "cccccccccccc container containers running 54",
            "prod/app-0/main container containers running 52",
            "shop-db container containers running 50",
        ]
    );
    assert_eq!(seen.cgroups.len(), 4);
    let shop = seen
        .vms
        .iter()
        .position(|vm| vm.name.as_str() == "shop-db")
        .unwrap();
    assert_eq!(seen.cgroups[&weir_model::Symbol::new(&docker)], shop as u32);
}

#[test]
fn a_vm_inside_a_container_is_itself() {
    let tree = Tree::new();
    let pod = format!("/kubepods/pod1/{}", "d".repeat(64));
    tree.process(60, 1, "/usr/bin/virt-launcher", &pod);
    tree.process(
        61,
        2,
        "/usr/bin/qemu-kvm -name guest=vmi -drive file=/disk.img,if=virtio",
        &pod,
    );
    let seen = tree.watch(&[]).snapshot();
    assert_eq!(
        vms(&seen),
        [
            "dddddddddddd container containers running 60",
            "vmi qemu qemu - 61"
        ]
    );
    assert_eq!(seen.pids[&61], 1);
    assert!(seen.cgroups.is_empty(), "the cgroup holds both");
}

#[test]
fn declared_vms_are_processes_names_and_cgroups() {
    let tree = Tree::new();
    tree.process(70, 1, "/usr/bin/postgres", "/db");
    tree.process(71, 2, "/usr/bin/postgres", "/db");
    tree.process(72, 3, "/usr/bin/nginx", "/web/worker");
    tree.process(73, 4, "/usr/bin/dd", "/");
    let watch = tree.watch(&["db=comm:postgres", "web=cgroup:/web", "copy=pid:73"]);
    let seen = watch.snapshot();
    assert_eq!(
        vms(&seen),
        [
            "copy process declared - 73",
            "db process declared - 70",
            "web process declared - 72"
        ]
    );
    assert_eq!((seen.pids[&70], seen.pids[&71]), (1, 1));
    let cgroup = |path: &str| seen.cgroups.get(&weir_model::Symbol::new(path)).copied();
    assert_eq!((cgroup("/web"), cgroup("/db")), (Some(2), Some(1)));
    // Another process with the same number does not match the declaration.
    tree.remove("/proc/73");
    tree.process(73, 99, "/usr/bin/dd", "/");
    let seen = watch.look(ScanScope::All, SCAN_TIMEOUT);
    assert!(vms(&seen).iter().all(|vm| !vm.starts_with("copy")));
}

#[test]
fn kernel_threads_of_vhost_work_for_their_vm() {
    let tree = Tree::new();
    tree.process(80, 1, "/usr/bin/qemu-system-x86_64 -name guest=v", "/");
    tree.process(81, 2, "vhost-80", "/");
    tree.process(82, 2, "vhost-8080", "/");
    for pid in [81, 82] {
        let stat = fs::read_to_string(tree.path(&format!("/proc/{pid}/stat"))).unwrap();
        tree.write(
            &format!("/proc/{pid}/stat"),
            &stat.replace("-1 0 0", "-1 2129984 0"),
        );
    }
    // Thread 8080 belongs to process 80.
    tree.write("/proc/8080/status", "Name:\tx\nTgid:\t80\n");
    let seen = tree.watch(&[]).snapshot();
    assert_eq!(
        (seen.pids.get(&81), seen.pids.get(&82)),
        (Some(&0), Some(&0))
    );
}

#[test]
fn the_tree_of_devices_goes_down_to_the_disks() {
    let tree = Tree::new();
    let device = |folder: &str, dev: &str, sectors: u64| {
        tree.write(&format!("{folder}/dev"), dev);
        tree.write(&format!("{folder}/size"), &sectors.to_string());
    };
    device("/sys/block/sda", "8:0", 4096);
    tree.write("/sys/block/sda/queue/scheduler", "none [mq-deadline] bfq\n");
    tree.write("/sys/block/sda/queue/rotational", "1\n");
    tree.write("/sys/block/sda/device/model", "Disk of Iron  \n");
    tree.write(
        "/run/udev/data/b8:0",
        "S:disk/by-id/wwn-0x5\nS:disk/by-id/ata-Iron_1\nE:X=1\n",
    );
    device("/sys/block/sda/sda1", "8:1", 2048);
    tree.write("/sys/block/sda/sda1/partition", "1");
    tree.write("/sys/block/sda/sda1/start", "64");
    device("/sys/block/dm-0", "253:0", 2000);
    tree.write("/sys/block/dm-0/dm/name", "vg-my--lv");
    tree.write("/sys/block/dm-0/dm/uuid", "LVM-xyz");
    tree.write("/sys/block/dm-0/slaves/sda1/dev", "8:1");
    device("/sys/block/md0", "9:0", 2000);
    tree.write("/sys/block/md0/md/level", "raid1");
    tree.write("/sys/block/md0/slaves/sda1/dev", "8:1");
    tree.write("/sys/block/md0/slaves/sdb/dev", "8:16");
    device("/sys/block/loop0", "7:0", 0);
    tree.write("/sys/block/broken/dev", "nonsense");
    tree.write("/sys/block/cciss!c0d0/dev", "104:0");
    tree.write("/sys/block/cciss!c0d0/size", "8");
    let seen = tree.watch(&[]).snapshot();
    let text = |text: Option<weir_model::Symbol>| text.map_or("-", |t| t.as_str());
    let rows: Vec<String> = seen
        .devices
        .iter()
        .map(|d| {
            format!(
                "{} {} {} {} {} {}",
                d.device,
                d.kind,
                text(d.below),
                d.disk,
                text(d.name),
                d.leaf
            )
        })
        .collect();
    assert_eq!(
        rows,
        [
            "/dev/cciss/c0d0 disk - /dev/cciss/c0d0 - true",
            "/dev/dm-0 lvm /dev/sda1 /dev/dm-0 vg/my-lv false",
            "/dev/md0 md /dev/sda1 /dev/md0 - false",
            "/dev/md0 md /dev/sdb /dev/md0 - false",
            "/dev/sda disk - /dev/sda - true",
            "/dev/sda1 part /dev/sda /dev/sda - true",
        ]
    );
    let sda = &seen.devices[4];
    assert_eq!(
        (text(sda.by_id), text(sda.scheduler)),
        ("ata-Iron_1", "mq-deadline")
    );
    assert_eq!(
        (text(sda.model), sda.rotational),
        ("Disk of Iron", Some(true))
    );
    assert_eq!(
        (seen.devices[5].start_sectors, seen.devices[5].bytes),
        (Some(64), 2048 * 512)
    );
}

#[test]
fn what_makes_no_sense_is_passed_over() {
    let tree = Tree::new();
    tree.write("/proc/90/stat", "nonsense");
    tree.write("/proc/91/stat", "");
    tree.write("/proc/99999999999/stat", "1 (x) S");
    tree.process(92, 1, "/bin/firecracker --config-file", "");
    tree.write("/run/libvirt/qemu/x.xml", "not XML");
    tree.write(
        "/run/libvirt/qemu/y.xml",
        "<domstatus pid='-1'><domain/></domstatus>",
    );
    tree.process(93, 1, "/bin/qemu-kvm -drive -device -blockdev", "/");
    let seen = tree.watch(&[]).snapshot();
    let names: Vec<String> = vms(&seen);
    assert_eq!(
        names,
        [
            "firecracker-92 firecracker firecracker - 92",
            "qemu-93 qemu qemu - 93"
        ]
    );
    assert!(tree.0.path().exists());
}

#[test]
fn five_hundred_processes_and_fifty_vms_are_one_snapshot_until_something_changes() {
    let tree = Tree::new();
    for pid in 1000..1500 {
        tree.process(pid, 5, "/bin/other", "/system.slice/x.service");
    }
    for pid in 2000..2050 {
        let line = format!("/bin/qemu-kvm -name vm{pid} -drive file=/{pid}.img,if=virtio");
        tree.process(pid, 5, &line, &format!("/vms/{pid}"));
    }
    let watch = tree.watch(&[]);
    let (first, generation) = (watch.snapshot(), watch.generation());
    assert_eq!(
        (first.vms.len(), first.disks.len(), first.cgroups.len()),
        (50, 50, 50)
    );
    for _ in 0..20 {
        let again = watch.look(ScanScope::All, SCAN_TIMEOUT);
        assert!(Arc::ptr_eq(&first, &again), "nothing has changed");
    }
    tree.remove("/proc/2049");
    watch.look(ScanScope::Pid(2049), SCAN_TIMEOUT);
    assert_eq!(
        (watch.generation(), watch.snapshot().vms.len()),
        (generation + 1, 49)
    );
}

#[test]
fn a_file_that_replaces_another_is_distinguished_from_it() {
    let tree = Tree::new();
    let line = "qemu-system-x86_64 -name swap -drive file=/a.raw,format=raw,if=virtio";
    tree.process(95, 1, line, "/");
    let open = |number: &str, name: &str, size: usize| {
        let file = format!("/proc/95/root/{name}");
        tree.write(&file, &"x".repeat(size));
        // Extents are reported after the data are allocated.
        let file = fs::File::open(tree.path(&file)).unwrap();
        file.sync_all().unwrap();
        tree.link(&format!("/proc/95/fd/{number}"), &format!("../root/{name}"));
    };
    open("10", "a.raw", 4096);
    let watch = tree.watch(&[]);
    let before = watch.snapshot();
    // QEMU opens the image again, and its old descriptor number is reused for another file.
    tree.remove("/proc/95/fd/10");
    open("10", "b.raw", 65536);
    tree.link("/proc/95/fd/11", "../root/a.raw");
    let after = watch.look(ScanScope::All, SCAN_TIMEOUT);
    assert_eq!(after.disks[0].disk.bytes, Some(4096));
    assert_eq!(before.disks[0].layout, after.disks[0].layout);
}

#[test]
fn of_several_claims_the_best_has_the_name_whenever_it_comes() {
    let tree = Tree::new();
    let program = |name: &str, owner: u32| {
        let path = format!("/{name}/qemu-system-x86_64");
        tree.write(&path, "");
        let path = tree.path(&path);
        if std::os::unix::fs::chown(&path, Some(owner), None).is_err() {
            return None;
        }
        Some(path.to_str().unwrap().to_owned())
    };
    let (Some(roots), Some(users)) = (program("usr", 0), program("home", 1000)) else {
        weir_testing::skipped("names of VMs", "it takes root to give files away");
        return;
    };
    let start = |pid: u32, started: u64, program: &str, uid: u32| {
        tree.process(pid, started, &format!("{program} -name web"), "/");
        tree.user(pid, uid);
    };
    let seen = |watch: &InventoryWatch| {
        let snapshot = watch.look(ScanScope::All, SCAN_TIMEOUT);
        let vm = |vm: &weir_model::inventory::Vm| format!("{} {}", vm.name, vm.pid.unwrap());
        let vms: Vec<String> = snapshot.vms.iter().map(vm).collect();
        let conflicts: Vec<String> = snapshot.conflicts.iter().map(|c| c.to_string()).collect();
        (vms.join(", "), conflicts.join("; "), snapshot)
    };
    start(10, 100, &users, 1000);
    let watch = tree.watch(&[]);
    let (vms, conflicts, snapshot) = seen(&watch);
    assert_eq!((vms.as_str(), conflicts.as_str()), ("web 10", ""));
    assert_eq!(snapshot.vms[0].uid, Some(1000));

    // Standing increases: the user's own program file, root's program file run by a user, by a
    // service, by root.
    start(40, 400, &roots, 1001);
    assert_eq!(seen(&watch).0, "web 40, web-10 10");
    start(30, 300, &roots, 107);
    assert_eq!(seen(&watch).0, "web 30, web-10 10, web-40 40");
    start(20, 200, &roots, 0);
    let (vms, conflicts, snapshot) = seen(&watch);
    assert_eq!(vms, "web 20, web-10 10, web-30 30, web-40 40");
    assert!(
        conflicts.ends_with("; the name identifies web (pid:20, uid 0)"),
        "{conflicts}"
    );
    let named = snapshot.vm("web").unwrap().unwrap();
    assert_eq!(snapshot.vms[named].pid, Some(20));

    // Equal claims of two users: the first keeps the name in rows, but the name is ambiguous in
    // queries.
    tree.remove("/proc/20");
    tree.remove("/proc/30");
    start(50, 500, &roots, 1002);
    let (_, conflicts, snapshot) = seen(&watch);
    assert!(
        conflicts.ends_with("; the name identifies none of them"),
        "{conflicts}"
    );
    assert!(snapshot.vm("web").is_err());
    let named = snapshot.vm("pid:50").unwrap().unwrap();
    assert_eq!(snapshot.vms[named].pid, Some(50));

    // VMs of one user do not conflict.
    tree.remove("/proc/50");
    tree.remove("/proc/10");
    start(60, 600, &roots, 1001);
    assert_eq!(seen(&watch).1, "");
}
