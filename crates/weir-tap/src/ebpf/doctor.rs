//! [`doctor`]: reports which parts of the live tap work on this host, the effect of each missing
//! part, and the remedy.

use std::fs;
use std::path::Path;
use std::time::Instant;

use weir_model::event::io_schema;
use weir_model::{Demand, Predicate};

use super::cgroups::{Root, mount_point, mounts};
use super::clock;
use super::completeness::counts_io;
use super::devices::{Device, DeviceChoice, Devices, read_text};
use super::fold::layout::Folding;
use super::hist::{HistOptions, HistTap};
use super::kernel::{self, BTF, Kernel, Missing};
use super::layout::{self, Config};
use super::needs::Needs;
use super::obstacle::{self, Obstacle, effective};
use super::programs::{self, Probe, Programs, Sizes};
use super::stream::KernelStream;
use super::streams;
use super::tap::{LiveOptions, open};
use super::trial::{self, Outcome, Read};
use crate::{RECORDING, elevation};

/// The degree to which a part works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckStatus {
    /// It works.
    Ok,
    /// It works, but something is lost or expensive.
    Degraded,
    /// It does not work.
    Missing,
}

impl CheckStatus {
    /// All, in ascending order.
    pub const ALL: [CheckStatus; 3] = [Self::Ok, Self::Degraded, Self::Missing];

    /// `ok`, `degraded`, `missing`.
    pub fn as_str(self) -> &'static str {
        match self {
            CheckStatus::Ok => "ok",
            CheckStatus::Degraded => "degraded",
            CheckStatus::Missing => "missing",
        }
    }
}

/// A part that the live tap requires or can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Name of the check.
    pub name: String,
    /// How well it works.
    pub status: CheckStatus,
    /// The finding.
    pub found: String,
    /// The effect; empty if there is none.
    pub costs: String,
    /// The remedy; empty if there is none.
    pub remedy: String,
}

/// The state of every part of the live tap, with the parts on which others depend first. It
/// attaches the programs for a short time, reads from the disks meanwhile, and detaches the
/// programs.
pub fn doctor(options: &LiveOptions) -> Vec<Fact> {
    let _raised = elevation::raise(elevation::LOADING);
    let mut facts = vec![kernel(), type_information()];
    facts.extend(constants());
    facts.extend([capabilities(), lockdown(), compiler()]);
    facts.extend(tracepoints(options));
    let loads = loads(options);
    let loaded = loads.status == CheckStatus::Ok;
    facts.push(loads);
    match loaded {
        true => {
            facts.push(histograms(options));
            facts.push(files(options));
            facts.extend(kernel_streams(options));
            facts.push(self_test(options));
        }
        false => facts.extend(
            ["histograms", "completeness"]
                .map(|name| not_checked(name, "the programs cannot be loaded")),
        ),
    }
    facts.push(memory(options));
    facts.push(cgroups());
    facts.extend(disks(options));
    facts.push(statistics());
    facts.push(clock_is_kept());
    facts
}

fn ok(name: &str, found: impl Into<String>) -> Fact {
    Fact {
        name: name.into(),
        status: CheckStatus::Ok,
        found: found.into(),
        costs: String::new(),
        remedy: String::new(),
    }
}

fn not_checked(name: &str, why: &str) -> Fact {
    let found = format!("not checked, because {why}");
    ok(name, found).but(CheckStatus::Missing, "", "")
}

impl Fact {
    fn but(self, status: CheckStatus, costs: &str, remedy: &str) -> Fact {
        Fact {
            status,
            costs: costs.into(),
            remedy: remedy.into(),
            ..self
        }
    }
}

fn kernel() -> Fact {
    let release = read_text(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default();
    let fact = ok("kernel", release);
    match kernel::release() {
        Some(release) if release >= (5, 15) => fact,
        _ => fact.but(
            CheckStatus::Missing,
            "the programs require kernel 5.15 or newer",
            "run a newer kernel",
        ),
    }
}

fn type_information() -> Fact {
    const NAME: &str = "type information (BTF)";
    match fs::metadata(BTF) {
        Ok(meta) => ok(NAME, format!("{BTF}, {} bytes", meta.len())),
        Err(error) => {
            let obstacle = Obstacle::of_types(&error.to_string());
            ok(NAME, obstacle.cause).but(
                CheckStatus::Missing,
                "the programs cannot locate the fields of kernel structures",
                &obstacle.remedy,
            )
        }
    }
}

/// Checks whether the kernel's numbers that the programs test are known, and the fields that they
/// read.
fn constants() -> [Fact; 2] {
    let kernel = Kernel::running();
    let fact = |name: &str, of: &dyn Fn(&Kernel) -> Vec<Missing>| {
        let missing = match &kernel {
            Ok(kernel) => of(kernel),
            Err(_) => return not_checked(name, "the type information is missing"),
        };
        if missing.is_empty() {
            return ok(name, "found");
        }
        let list = |of: &dyn Fn(&Missing) -> &str| {
            let texts: Vec<&str> = missing.iter().map(of).collect();
            texts.join(", ")
        };
        let found = ok(name, format!("not found: {}", list(&|m| m.name)));
        if missing.iter().any(|m| m.costs.is_empty()) {
            return found.but(
                CheckStatus::Missing,
                "no BPF program can be loaded",
                "run another kernel",
            );
        }
        found.but(
            CheckStatus::Degraded,
            &list(&|m| &m.costs),
            "compare counts with /proc/diskstats, or run another kernel",
        )
    };
    [
        fact("kernel enumerators", &|kernel| kernel.numbers().missing),
        fact("kernel structures", &Kernel::missing_fields),
    ]
}

fn capabilities() -> Fact {
    const NAME: &str = "capabilities";
    const COSTS: &str = "no BPF program can be loaded";
    let advice = elevation::advice("cap_bpf,cap_perfmon");
    if let Some(obstacle) = Obstacle::of_namespace() {
        return ok(NAME, obstacle.cause).but(CheckStatus::Missing, COSTS, &obstacle.remedy);
    }
    if let Some(obstacle) = Obstacle::of_capabilities() {
        return ok(NAME, obstacle.cause).but(CheckStatus::Missing, COSTS, &advice);
    }
    let fact = ok(NAME, format!("effective set {:016x}", effective()));
    match elevation::is_open_to_all() {
        true => fact.but(
            CheckStatus::Degraded,
            "every local user can execute this binary and observe the I/O of all other users",
            &advice,
        ),
        false => fact,
    }
}

fn lockdown() -> Fact {
    ok("lockdown", obstacle::lockdown().unwrap_or("unknown".into()))
}

fn compiler() -> Fact {
    let path = Path::new("/proc/sys/net/core/bpf_jit_enable");
    match read_text(path).as_deref() {
        Some("0") => ok("BPF compiler (JIT)", "off").but(
            CheckStatus::Degraded,
            "the kernel interprets the BPF programs, which is about ten times as expensive",
            "sysctl net.core.bpf_jit_enable=1",
        ),
        Some(_) => ok("BPF compiler (JIT)", "on"),
        None => ok("BPF compiler (JIT)", "always on, or unknown"),
    }
}

fn tracepoints(options: &LiveOptions) -> Vec<Fact> {
    let Ok(kernel) = Kernel::running() else {
        return Vec::new();
    };
    let fact = |probe: &Probe| {
        let name = format!("tracepoint {}", probe.tracepoint);
        let is_excluded = options.without.iter().any(|w| w == probe.tracepoint);
        let found = kernel.tracepoint(probe.tracepoint);
        let Err(found) = found.and(if is_excluded { Err("absent") } else { Ok(()) }) else {
            return ok(&name, "present");
        };
        let status = if *probe == programs::COMPLETE {
            CheckStatus::Missing
        } else {
            CheckStatus::Degraded
        };
        ok(&name, found).but(status, probe.without, "run a newer kernel")
    };
    programs::PROBES.iter().map(fact).collect()
}

/// A demand for all columns that every kernel has.
fn everything() -> Demand {
    Demand {
        stream: RECORDING.into(),
        columns: (0..io_schema().index("file")).collect(),
        predicate: Predicate::all(),
        fold: None,
    }
}

fn loads(options: &LiveOptions) -> Fact {
    const NAME: &str = "programs and tables";
    let started = Instant::now();
    let load = || {
        let needs = Needs::of(&[everything()], true, true)?;
        let kernel = Kernel::running()?;
        let without = |name: &str| options.without.iter().any(|w| w == name);
        let has = |name: &str| kernel.has_tracepoint(name) && !without(name);
        let sizes = Sizes::new(options, needs.record_bytes())?;
        let has_start = has(programs::START.tracepoint);
        let config = Config::new(&needs, &sizes, &kernel.numbers(), has_start, true);
        let probes = programs::probes(&needs, &has, true);
        Programs::load(&probes, &config, &Folding::default(), &sizes).map(|p| p.probes.len())
    };
    match load() {
        Ok(count) => {
            let found = format!("the kernel accepts all {count}, {}", loaded(started));
            ok(NAME, found)
        }
        Err(error) => ok(NAME, error.to_string()).but(
            CheckStatus::Missing,
            "live I/O cannot be observed",
            "see the checks above and the kernel's message",
        ),
    }
}

/// How long the kernel took to verify and compile programs and to make their tables.
fn loaded(started: Instant) -> String {
    format!("loaded in {} ms", started.elapsed().as_millis())
}

/// Opens stream `IO` with the file of each request, and closes it.
fn files(options: &LiveOptions) -> Fact {
    const NAME: &str = "column file of IO";
    let demand = Demand {
        stream: "IO".into(),
        columns: vec![io_schema().index("file")],
        predicate: Predicate::all(),
        fold: None,
    };
    let started = Instant::now();
    match open(&[demand], options) {
        Ok(_) => ok(NAME, loaded(started)),
        Err(error) => ok(NAME, error.to_string()).but(
            CheckStatus::Degraded,
            "queries that name columns file and inode of IO are refused",
            "run kernel 6.6 or newer",
        ),
    }
}

/// Opens each kernel stream with all its columns, and closes it.
fn kernel_streams(options: &LiveOptions) -> Vec<Fact> {
    let fact = |stream: &KernelStream| {
        let name = format!("stream {}", stream.name);
        let all = Demand {
            stream: stream.name.into(),
            columns: (0..stream.columns.len()).collect(),
            predicate: Predicate::all(),
            fold: None,
        };
        let started = Instant::now();
        match stream.open(&[all], options) {
            Ok(_) => ok(&name, loaded(started)),
            Err(error) => ok(&name, error.to_string()).but(
                CheckStatus::Degraded,
                "no query can read it on this host",
                "see the checks above and the kernel's message",
            ),
        }
    };
    streams::ALL.iter().copied().map(fact).collect()
}

/// Opens histograms of no device, and closes them.
fn histograms(options: &LiveOptions) -> Fact {
    const NAME: &str = "histograms";
    let wanted = HistOptions {
        devices: DeviceChoice::Named(Vec::new()),
        waits: true,
        without: options.without.clone(),
        ..HistOptions::default()
    };
    let started = Instant::now();
    match HistTap::open(&wanted) {
        Ok(tap) => {
            let (loaded, memory) = (loaded(started), tap.memory_bytes() >> 20);
            ok(NAME, format!("aggregated in the kernel, {memory} MiB of memory, {loaded}"))
        }
        Err(error) => ok(NAME, error.to_string()).but(
            CheckStatus::Degraded,
            "histograms cannot be aggregated in the kernel; `weir characterise` computes them from single requests",
            "see the checks above and the kernel's message",
        ),
    }
}

/// Attaches all programs, reads from the disks and compares the reported requests with the reads.
pub fn self_test(options: &LiveOptions) -> Fact {
    const NAME: &str = "completeness";
    let outcome = open(&[everything()], options)
        .and_then(|mut tap| trial::trial(&mut tap, &disks_to_read(options)));
    match outcome {
        Ok(outcome) => judged(ok(NAME, ""), &outcome),
        Err(error) => ok(NAME, error.to_string()).but(
            CheckStatus::Missing,
            "live I/O cannot be observed",
            "see the checks above",
        ),
    }
}

/// The disks of the trial. Loop devices and those in memory must be named: the data that they
/// contain is read below them, and a file on an unreachable network does not respond.
fn disks_to_read(options: &LiveOptions) -> Vec<Device> {
    let by_default = |d: &Device| {
        let path = d.path.as_str();
        let excluded = ["/dev/loop", "/dev/zram", "/dev/ram"];
        !excluded.iter().any(|prefix| path.starts_with(prefix))
    };
    let named = matches!(options.devices, DeviceChoice::Named(_));
    let devices = devices(options);
    let wanted = devices.wanted_disks().into_iter();
    wanted.filter(|d| named || by_default(d)).cloned().collect()
}

fn devices(options: &LiveOptions) -> Devices {
    let needs =
        Needs::of(&[everything()], true, true).expect("a recording is a stream of the live tap");
    Devices::new(options.devices.clone(), needs.clauses, 1, u32::MAX)
}

/// `fact` with the outcome of the trial.
fn judged(fact: Fact, outcome: &Outcome) -> Fact {
    let paths = |of: &dyn Fn(&&Read) -> bool| {
        let paths: Vec<&str> = outcome.disks.iter().filter(of).map(|d| &*d.path).collect();
        paths.join(", ")
    };
    let whole = paths(&|d| d.is_complete());
    let mut found = Vec::new();
    if !whole.is_empty() {
        found.push(format!(
            "every test read was reported exactly once: {whole}"
        ));
    }
    for d in outcome.disks.iter().filter(|d| !d.is_complete()) {
        found.push(format!(
            "{}: {} test reads, {} requests counted by the kernel, {} test reads reported",
            d.path, d.made, d.counted, d.reported
        ));
    }
    if !outcome.untried.is_empty() {
        found.push(format!("not read: {}", outcome.untried.join(", ")));
    }
    let (seen, unseen) = (outcome.seen, outcome.unseen);
    found.push(format!(
        "on all disks {seen} requests observed, {unseen} unseen"
    ));
    let fact = Fact {
        found: found.join("; "),
        ..fact
    };
    let (costs, remedy) = match outcome.disks.as_slice() {
        [] => (
            "no disk could be read, so the completeness is unknown",
            match rustix::process::geteuid().is_root() {
                true => {
                    "permit this container or service to read a disk, or name one that it can \
                         read: weir doctor --device DEVICE"
                }
                false => "run as root, or name a readable disk: weir doctor --device DEVICE",
            },
        ),
        disks if disks.iter().any(|d| d.reported > d.made) => (
            "requests are reported more than once",
            "compare counts with /proc/diskstats, or run another kernel",
        ),
        disks if disks.iter().all(|d| d.reported == 0) => (
            "requests are not observed: results are wrong",
            "compare counts with /proc/diskstats, or run another kernel",
        ),
        disks if unseen > 0 || !disks.iter().all(Read::is_complete) => (
            "results omit some requests; each result reports its completeness",
            "none if the kernel does not run BPF programs in the context of certain kernel threads",
        ),
        _ => return fact,
    };
    fact.but(CheckStatus::Degraded, costs, remedy)
}

fn memory(options: &LiveOptions) -> Fact {
    const NAME: &str = "memory";
    let Ok(sizes) = Sizes::new(options, layout::NAMED_RECORD_BYTES) else {
        return ok(NAME, "the number of processors is unknown").but(
            CheckStatus::Missing,
            "live I/O cannot be observed",
            "mount /sys",
        );
    };
    let needed = sizes.bytes();
    let limit = memory_limit();
    let limited = limit.map_or("no limit".into(), |l| format!("limit {} MiB", l >> 20));
    let fact = ok(
        NAME,
        format!("tables of at most {} MiB, {limited}", needed >> 20),
    );
    if limit.is_some_and(|limit| limit < needed * 2) {
        return fact.but(
            CheckStatus::Degraded,
            "the tables are charged to this cgroup and may exceed its limit",
            "increase memory.max of the cgroup",
        );
    }
    fact
}

/// The lowest memory limit of this process's cgroup and its ancestors, in bytes.
fn memory_limit() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = mounts()?;
    let path = |controller: &str| {
        let mut lines = own.lines().map(|l| l.splitn(3, ':').collect::<Vec<_>>());
        let found = lines.find(|w| w.len() == 3 && w[1] == controller);
        found.map(|w| w[2].to_owned())
    };
    let (root, path, file) = match (mount_point(&mounts, Some("memory")), path("memory")) {
        (Some(root), Some(path)) => (root, path, "memory.limit_in_bytes"),
        _ => (mount_point(&mounts, None)?, path("")?, "memory.max"),
    };
    let folders = Path::new(path.trim_start_matches('/'))
        .ancestors()
        .map(|p| Path::new(root).join(p));
    let limits = folders.filter_map(|f| read_text(&f.join(file))?.parse::<u64>().ok());
    // v1 represents "no limit" as the largest number of pages.
    limits.filter(|l| *l < 1 << 60).min()
}

fn cgroups() -> Fact {
    const NAME: &str = "cgroups";
    let Some(root) = Root::find() else {
        return ok(NAME, "not mounted").but(
            CheckStatus::Degraded,
            "column cgroup is NULL",
            "mount -t cgroup2 none /sys/fs/cgroup",
        );
    };
    let path = root.path.display();
    if !root.unified {
        return ok(NAME, format!("v1, blkio at {path}"));
    }
    let controllers = read_text(&root.path.join("cgroup.subtree_control")).unwrap_or_default();
    let fact = ok(NAME, format!("v2 at {path}"));
    if controllers.split(' ').any(|c| c == "io") {
        return fact;
    }
    fact.but(
        CheckStatus::Degraded,
        "without the io controller, buffered writes are charged to the root cgroup",
        "echo +io > cgroup.subtree_control of the root",
    )
}

fn disks(options: &LiveOptions) -> Vec<Fact> {
    let devices = devices(options);
    let wanted = devices.wanted_disks();
    let list = |of: &dyn Fn(&&&super::devices::Device) -> bool| {
        let paths: Vec<&str> = wanted.iter().filter(of).map(|d| d.path.as_str()).collect();
        paths.join(", ")
    };
    let mut facts = vec![ok("disks", list(&|_| true))];
    let stacked = devices
        .iter()
        .filter(|d| d.present && d.number == d.disk && !d.leaf);
    let stacked: Vec<&str> = stacked.map(|d| d.path.as_str()).collect();
    if options.devices == DeviceChoice::Leaves && !stacked.is_empty() {
        facts.push(ok(
            "stacked disks",
            format!(
                "{}: not observed, because the devices below carry out their I/O; a query that names one includes it",
                stacked.join(", ")
            ),
        ));
    }
    let bios = list(&|d| d.bio_based);
    if !bios.is_empty() {
        let fact = ok(
            "disks without requests",
            format!(
                "{bios}: observed at their bios; wait is 0; their completeness is checked in sectors"
            ),
        );
        let in_memory = list(&|d| {
            let prefixes = ["/dev/zram", "/dev/ram", "/dev/pmem"];
            prefixes
                .iter()
                .any(|prefix| d.path.as_str().starts_with(prefix))
        });
        let pages = Kernel::running().is_ok_and(|kernel| kernel.reads_pages_without_bios());
        facts.push(match pages && !in_memory.is_empty() {
            true => fact.but(
                CheckStatus::Degraded,
                &format!("reads of {in_memory} through the page cache are not observed"),
                "run a newer kernel",
            ),
            false => fact,
        });
    }
    let silent = list(&|d| !d.bio_based && !counts_io(d));
    if !silent.is_empty() {
        facts.push(ok("disk statistics", format!("disabled on {silent}")).but(
            CheckStatus::Degraded,
            "the completeness of results on these disks is unknown",
            "echo 1 > /sys/block/X/queue/iostats",
        ));
    }
    facts
}

fn clock_is_kept() -> Fact {
    match clock::is_kept_right() {
        Some(true) => ok("clock", "synchronised"),
        Some(false) => ok("clock", "not synchronised (no NTP client is running)").but(
            CheckStatus::Degraded,
            "timestamps of this host include the error of its clock; those of an agent are \
             converted to the monitor's clock",
            "run chronyd, systemd-timesyncd or another NTP client",
        ),
        None => ok(
            "clock",
            "the kernel does not report whether it is synchronised",
        ),
    }
}

fn statistics() -> Fact {
    let path = Path::new("/proc/sys/kernel/bpf_stats_enabled");
    let on = read_text(path).is_some_and(|text| text != "0");
    let fact = ok("BPF run statistics", if on { "on" } else { "off" });
    if on {
        return fact.but(
            CheckStatus::Degraded,
            "each run of a BPF program takes about 50 ns longer",
            "sysctl kernel.bpf_stats_enabled=0",
        );
    }
    fact
}
