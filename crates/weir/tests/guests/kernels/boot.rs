//! A guest with weir and the programs and disks of a kernel's test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use weir_testing::{Counts, DiskLoad, Done, Guest, GuestDisk, Kit, Scratch, Tools, run, skipped};

use super::rows::PART_START;

/// The time that a command in the guest may take, in emulation on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The size of each disk without a file system.
pub const DISK_MEBIBYTES: u64 = 128;

/// The requests at the start of `vdc`.
pub const AT_START: i64 = 60;

/// The size of a disk with one: xfs needs 300 MiB.
const FILE_SYSTEM_MEBIBYTES: u64 = 320;

/// A guest with the programs that the test needs, and the files of its disks.
pub struct Watched {
    guest: Guest,
    /// The test, for reports of what is skipped.
    test: String,
    /// The kernel's names of the devices that it has, by kind.
    pub devices: BTreeMap<&'static str, String>,
    /// What the load of each device did.
    pub loads: BTreeMap<String, Done>,
    /// Partitions, whose requests are those of their disks.
    parts: BTreeSet<String>,
    _tools: Tools,
    /// Dropped last: it contains the files of the other fields.
    _folder: Scratch,
}

impl Watched {
    /// Boots it on two processors with virtio disks, of which `vdc` has one queue, a SCSI disk, an
    /// NVMe disk with a queue for each processor, one with two controllers, and two file systems.
    pub fn start(kit: &Kit, test: &str) -> anyhow::Result<Watched> {
        let folder = Scratch::new();
        let path = |name: &str| folder.file(name);
        let image = |name: &str, mebibytes: u64| -> anyhow::Result<()> {
            Ok(fs::File::create(path(name))?.set_len(mebibytes << 20)?)
        };
        for name in ["plain", "spare", "second", "queues", "shared"] {
            image(name, DISK_MEBIBYTES)?;
        }
        for name in ["xfs", "btrfs"] {
            image(name, FILE_SYSTEM_MEBIBYTES)?;
            run(&format!("mkfs.{name}"), &["-q", "-f", &path(name)])?;
        }
        let programs = [
            env!("CARGO_BIN_EXE_weir"),
            "dd",
            "dmsetup",
            "addpart",
            "mke2fs",
        ];
        let tools = Tools::make(&folder.path().join("tools"), &programs)?;
        let mut args = ["-m", "1024", "-smp", "2"].map(str::to_owned).to_vec();
        // The temporary directory may not support O_DIRECT.
        let disk = |name: &str| GuestDisk::new(name, &path(name)).buffered();
        for disk in [
            disk("plain"),
            disk("tools"),
            disk("spare").queues(1),
            disk("xfs"),
            disk("btrfs"),
            disk("second").scsi(),
        ] {
            args.extend(disk.args());
        }
        let node = |name: &str| format!("node-name={name},driver=file,filename={}", path(name));
        for words in [
            ["-blockdev", &node("queues")],
            ["-device", "nvme,drive=queues,serial=queues,max_ioqpairs=2"],
            ["-blockdev", &node("shared")],
            ["-device", "nvme-subsys,id=subsystem,nqn=weir"],
            ["-device", "nvme,id=c0,serial=shared,subsys=subsystem"],
            ["-device", "nvme,id=c1,serial=shared,subsys=subsystem"],
            ["-device", "nvme-ns,drive=shared,bus=c0,nsid=1,shared=on"],
        ] {
            args.extend(words.map(str::to_owned));
        }
        let mut watched = Watched::boot(kit, test, &args, tools, folder)?;
        watched.run("mkdir -p /dev/mapper /mnt");
        // weir starts itself a second time, so the system must find its libraries.
        watched.run("mkdir -p /lib64 && ln -s /tools/lib/ld-linux-x86-64.so.2 /lib64/");
        watched.run("export LD_LIBRARY_PATH=/tools/lib");
        Ok(watched)
    }

    /// Boots it with these options of QEMU, and the programs on `vdb`.
    pub fn boot(
        kit: &Kit,
        test: &str,
        args: &[String],
        tools: Tools,
        folder: Scratch,
    ) -> anyhow::Result<Watched> {
        Watched::boot_named(kit, test, "kernels", args, tools, folder)
    }

    /// The same as VM `name`.
    pub fn boot_named(
        kit: &Kit,
        test: &str,
        name: &str,
        args: &[String],
        tools: Tools,
        folder: Scratch,
    ) -> anyhow::Result<Watched> {
        let mut guest = Guest::boot(kit, test, name, args)?;
        guest.run(&Tools::mount("/dev/vdb"))?;
        Ok(Watched {
            guest,
            test: test.to_owned(),
            devices: BTreeMap::new(),
            loads: BTreeMap::new(),
            parts: BTreeSet::new(),
            _tools: tools,
            _folder: folder,
        })
    }

    /// QEMU's process.
    pub fn pid(&self) -> u32 {
        self.guest.pid()
    }

    /// Runs a command in the guest; returns its output.
    pub fn run(&mut self, line: &str) -> String {
        self.guest.begin(line).unwrap();
        let finished = self.guest.finish_within(TIMEOUT);
        finished.unwrap_or_else(|error| panic!("{line}: {error:#}"))
    }

    /// Starts weir in the background, once for each name with these arguments, and waits until its
    /// programs are attached.
    pub fn start_weir(&mut self, commands: &[(&str, &str)]) {
        for (name, args) in commands {
            self.run(&format!(
                "/tools/bin/weir {args} > /tmp/{name} 2> /tmp/{name}.err & echo $! > /tmp/{name}.pid"
            ));
        }
        for (name, _) in commands {
            let pid = format!("$(cat /tmp/{name}.pid)");
            let links = format!("ls -l /proc/{pid}/fd 2> /dev/null | grep -c bpf_link");
            self.run(&format!(
                "before=0; while now=$({links}); [ $now = 0 ] || [ $now != $before ]; do \
                 [ -d /proc/{pid} ] || {{ cat /tmp/{name}.err; false; break; }}; \
                 before=$now; usleep 500000; done"
            ));
        }
    }

    /// Ends what [`Watched::start_weir`] has started, and returns its messages.
    pub fn end(&mut self, name: &str) -> String {
        let pid = format!("$(cat /tmp/{name}.pid)");
        self.run(&format!(
            "kill -INT {pid}; while [ -d /proc/{pid} ]; do usleep 50000; done; cat /tmp/{name}.err"
        ))
    }

    /// The rows that it printed.
    pub fn output(&mut self, name: &str) -> String {
        self.run(&format!("cat /tmp/{name}"))
    }

    /// Runs a load.
    pub fn load(&mut self, load: &DiskLoad) -> Done {
        self.guest
            .load(std::slice::from_ref(load))
            .unwrap()
            .remove(0)
    }

    /// The kernel's counters of all disks.
    pub fn disk_stats(&mut self) -> BTreeMap<String, Counts> {
        self.guest.disk_stats().unwrap()
    }

    /// Logs that this kernel does not have something.
    pub fn skip(&self, what: &str) {
        skipped(&self.test, format_args!("this kernel has no {what}"));
    }

    /// Loads a module, with options after its name; logs that the kernel has none.
    pub fn has_module(&mut self, module: &str) -> bool {
        let loaded = self.run(&format!("load_module {module} && echo loaded; true"));
        let is_loaded = loaded.contains("loaded");
        if !is_loaded {
            self.skip(module.split(' ').next().unwrap_or(module));
        }
        is_loaded
    }

    /// The kernel's name of a device, if it has one of this kind.
    pub fn path_of(&self, kind: &str) -> Option<String> {
        self.devices.get(kind).cloned()
    }

    /// True for the kernel's name of a partition.
    pub fn is_part(&self, disk: &str) -> bool {
        self.parts.contains(disk)
    }

    /// A disk and its partitions.
    pub fn with_parts<'a>(&'a self, disk: &'a str) -> Vec<&'a str> {
        let parts = self.parts.iter().map(String::as_str);
        let parts = parts.filter(|part| part.starts_with(disk));
        parts.chain([disk]).collect()
    }

    /// Adds a partition to `vdc`.
    pub fn add_part(&mut self) -> String {
        self.run(&format!("/tools/addpart /dev/vdc 1 {PART_START} 49152"));
        self.parts.insert("vdc1".to_owned());
        "vdc1".to_owned()
    }

    /// Loads the start of `vdc`, which has one queue, from the processor that does not receive its
    /// interrupts; returns that processor.
    pub fn load_from_another_processor(&mut self) -> &'static str {
        // The kernel would let the submitter's processor complete the requests.
        self.run("echo 0 > /sys/block/vdc/queue/rq_affinity");
        let interrupts = "grep $(basename $(readlink /sys/block/vdc/device))-req /proc/interrupts";
        let irq = format!("$({interrupts} | cut -d: -f1 | tr -d ' ')");
        let affinity = self.run(&format!("cat /proc/irq/{irq}/effective_affinity_list"));
        let (submitter, mask) = match affinity.trim() {
            "0" => ("1", 2),
            "1" => ("0", 1),
            other => panic!("the interrupts of vdc come to `{other}`"),
        };
        let column = submitter.parse::<usize>().unwrap() + 2;
        let own = format!("{interrupts} | awk '{{ print ${column} }}'");
        let before = self.run(&own);
        self.run(&format!(
            "taskset {mask} load disk=/dev/vdc,count={AT_START},read=60,write=40,span=1048576,seed=9"
        ));
        assert_eq!(
            self.run(&own),
            before,
            "interrupts of processor {submitter}"
        );
        submitter
    }
}
