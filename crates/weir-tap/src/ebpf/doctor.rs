//! [`doctor`]: what of the live tap works on this host, what it costs where something is missing,
//! and what to do about it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use weir_model::event::io_schema;
use weir_model::{Demand, Predicate};

use super::cgroups::Root;
use super::clock;
use super::completeness::counts_io;
use super::devices::{DeviceChoice, Devices, read_text};
use super::fold::layout::Folding;
use super::hist::{HistOptions, HistTap};
use super::layout::{self, Config};
use super::needs::Needs;
use super::programs::{self, Probe, Programs, Sizes};
use super::tap::{LiveOptions, open};
use crate::{Count, RECORDING, Said, Tap};

/// How well something works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// It works.
    Ok,
    /// It works, but something is lost or dear.
    Degraded,
    /// It does not work.
    Missing,
}

/// One thing that the live tap needs or would like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// What was looked at.
    pub name: String,
    /// How well it works.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What is lost; empty if nothing.
    pub costs: String,
    /// What to do about it; empty if nothing.
    pub remedy: String,
}

/// How long the trial looks at the host's own I/O.
const TRIAL: Duration = Duration::from_millis(300);

/// Everything that was looked at, what everything else depends on first. It attaches the programs
/// for a moment and takes them away again.
pub fn doctor(options: &LiveOptions) -> Vec<Fact> {
    let mut facts = vec![
        kernel(),
        type_information(),
        capabilities(),
        lockdown(),
        compiler(),
    ];
    facts.extend(tracepoints(options));
    facts.push(loads(options));
    facts.push(histograms(options));
    facts.push(trial(options));
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
        status: Status::Ok,
        found: found.into(),
        costs: String::new(),
        remedy: String::new(),
    }
}

impl Fact {
    fn but(self, status: Status, costs: &str, remedy: &str) -> Fact {
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
    let fact = ok("kernel", release.clone());
    match version(&release) {
        Some(version) if version >= (5, 15) => fact,
        _ => fact.but(
            Status::Missing,
            "the programs are written for 5.15 and newer",
            "run a newer kernel",
        ),
    }
}

/// `(6, 18)` for `6.18.44-generic`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn type_information() -> Fact {
    let path = Path::new("/sys/kernel/btf/vmlinux");
    match fs::metadata(path) {
        Ok(meta) => ok(
            "type information (BTF)",
            format!("{}, {} bytes", path.display(), meta.len()),
        ),
        Err(error) => ok(
            "type information (BTF)",
            format!("{}: {error}", path.display()),
        )
        .but(
            Status::Missing,
            "the programs cannot find the kernel's fields",
            "run a kernel with CONFIG_DEBUG_INFO_BTF=y",
        ),
    }
}

fn capabilities() -> Fact {
    const CAP_SYS_ADMIN: u32 = 21;
    const CAP_PERFMON: u32 = 38;
    const CAP_BPF: u32 = 39;
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let set = line
        .and_then(|l| u64::from_str_radix(l.trim(), 16).ok())
        .unwrap_or(0);
    let has = |capability: u32| set >> capability & 1 == 1;
    let fact = ok("capabilities", format!("effective set {set:016x}"));
    if has(CAP_SYS_ADMIN) || (has(CAP_BPF) && has(CAP_PERFMON)) {
        return fact;
    }
    fact.but(
        Status::Missing,
        "no program can be loaded",
        "run as root, or once: setcap cap_bpf,cap_perfmon+ep on the weir binary",
    )
}

fn lockdown() -> Fact {
    let text = read_text(Path::new("/sys/kernel/security/lockdown")).unwrap_or_default();
    let chosen = text
        .split(['[', ']'])
        .nth(1)
        .unwrap_or("not told")
        .to_owned();
    let confidential = chosen == "confidentiality";
    let fact = ok("lockdown", chosen);
    if confidential {
        return fact.but(
            Status::Missing,
            "programs may not read the kernel's memory",
            "boot with lockdown=integrity or without",
        );
    }
    fact
}

fn compiler() -> Fact {
    let path = Path::new("/proc/sys/net/core/bpf_jit_enable");
    match read_text(path).as_deref() {
        Some("0") => ok("BPF compiler (JIT)", "off").but(
            Status::Degraded,
            "the kernel interprets the programs, at ten times the cost",
            "sysctl net.core.bpf_jit_enable=1",
        ),
        Some(_) => ok("BPF compiler (JIT)", "on"),
        None => ok("BPF compiler (JIT)", "built in or not told"),
    }
}

fn tracepoints(options: &LiveOptions) -> Vec<Fact> {
    let Ok(has) = programs::tracepoints() else {
        return Vec::new();
    };
    let fact = |probe: &Probe| {
        let name = format!("tracepoint {}", probe.tracepoint);
        let left_out = options.without.iter().any(|w| w == probe.tracepoint);
        if has(probe.tracepoint) && !left_out {
            return ok(&name, "present");
        }
        let status = if *probe == programs::COMPLETE {
            Status::Missing
        } else {
            Status::Degraded
        };
        ok(&name, "absent").but(status, probe.without, "run a newer kernel")
    };
    programs::PROBES.iter().map(fact).collect()
}

/// The demand for everything.
fn everything() -> Demand {
    Demand {
        stream: RECORDING.into(),
        columns: (0..io_schema().len()).collect(),
        predicate: Predicate::all(),
        fold: None,
    }
}

fn loads(options: &LiveOptions) -> Fact {
    const NAME: &str = "programs and tables";
    let load = || {
        let needs = Needs::of(&[everything()], true)?;
        let kernel_has = programs::tracepoints()?;
        let has = |name: &str| kernel_has(name) && !options.without.iter().any(|w| w == name);
        let sizes = Sizes::new(options, needs.record_bytes())?;
        let config = Config::new(&needs, &sizes, has(programs::START.tracepoint), true);
        let probes = programs::probes(&needs, &has, true);
        Programs::load(&probes, &config, &Folding::default(), &sizes).map(|p| p.probes.len())
    };
    match load() {
        Ok(count) => ok(NAME, format!("the kernel accepts all {count}")),
        Err(error) => ok(NAME, error.to_string()).but(
            Status::Missing,
            "there is no live tap",
            "see the points above; the kernel's own words are in the message",
        ),
    }
}

/// Opens histograms of no device, and takes them away again.
fn histograms(options: &LiveOptions) -> Fact {
    const NAME: &str = "histograms";
    let wanted = HistOptions {
        devices: DeviceChoice::Named(Vec::new()),
        waits: true,
        without: options.without.clone(),
        ..HistOptions::default()
    };
    match HistTap::open(&wanted) {
        Ok(tap) => ok(
            NAME,
            format!("kept in the kernel, in {} MiB", tap.memory_bytes() >> 20),
        ),
        Err(error) => ok(NAME, error.to_string()).but(
            Status::Degraded,
            "the distributions cannot be kept in the kernel; `weir characterise` counts them from records",
            "see the points above; the kernel's own words are in the message",
        ),
    }
}

/// Attaches everything and looks at the host's own I/O for a moment.
fn trial(options: &LiveOptions) -> Fact {
    const NAME: &str = "completeness";
    let mut tap = match open(&[everything()], options) {
        Ok(tap) => tap,
        Err(error) => {
            return ok(NAME, error.to_string()).but(
                Status::Missing,
                "nothing can be attached",
                "see above",
            );
        }
    };
    let end = std::time::Instant::now() + TRIAL;
    let mut rows = 0;
    while std::time::Instant::now() < end {
        if let Ok(Said::Rows { batch, .. }) = tap.next(TRIAL / 4) {
            rows += batch.len();
        }
    }
    let counts = tap.counts();
    let sum = |name: &str| {
        let of = |c: &&Count| c.counter == name;
        counts.iter().filter(of).map(|c| c.total).sum::<i64>()
    };
    let (seen, unseen) = (sum("seen"), sum("unseen"));
    let fact = ok(
        NAME,
        format!("{rows} rows in {TRIAL:?}; {seen} requests seen, {unseen} unseen"),
    );
    if unseen == 0 {
        return fact;
    }
    fact.but(
        Status::Degraded,
        "some completions run where the kernel lets no program look (a protected system thread); they are counted as unseen",
        "none; every result says how complete it is",
    )
}

fn memory(options: &LiveOptions) -> Fact {
    const NAME: &str = "memory";
    let Ok(sizes) = Sizes::new(options, layout::NAMED_RECORD_BYTES) else {
        return ok(NAME, "the number of processors is not known").but(
            Status::Missing,
            "there is no live tap",
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
            Status::Degraded,
            "the tables are charged to this cgroup and may not fit",
            "raise memory.max of the cgroup, or ask for smaller rings",
        );
    }
    fact
}

/// The least memory limit of our cgroup and those above it, in bytes.
fn memory_limit() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mount = |kind: &str, option: &str| {
        let mut lines = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>());
        let found = lines.find(|w| {
            w.len() > 3
                && w[2] == kind
                && (option.is_empty() || w[3].split(',').any(|o| o == option))
        });
        found.map(|w| w[1].to_owned())
    };
    let path = |controller: &str| {
        let mut lines = own.lines().map(|l| l.splitn(3, ':').collect::<Vec<_>>());
        let found = lines.find(|w| w.len() == 3 && w[1] == controller);
        found.map(|w| w[2].to_owned())
    };
    let (root, path, file) = match (mount("cgroup", "memory"), path("memory")) {
        (Some(root), Some(path)) => (root, path, "memory.limit_in_bytes"),
        _ => (mount("cgroup2", "")?, path("")?, "memory.max"),
    };
    let folders = Path::new(path.trim_start_matches('/'))
        .ancestors()
        .map(|p| Path::new(&root).join(p));
    let limits = folders.filter_map(|f| read_text(&f.join(file))?.parse::<u64>().ok());
    // v1 writes "no limit" as the largest number of pages.
    limits.filter(|l| *l < 1 << 60).min()
}

fn cgroups() -> Fact {
    const NAME: &str = "cgroups";
    let Some(root) = Root::find() else {
        return ok(NAME, "not mounted").but(
            Status::Degraded,
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
        Status::Degraded,
        "without the io controller, buffered writes are charged to the root cgroup",
        "echo +io > cgroup.subtree_control of the root",
    )
}

fn disks(options: &LiveOptions) -> Vec<Fact> {
    let everything =
        Needs::of(&[everything()], true).expect("a recording is a stream of the live tap");
    let devices = Devices::new(options.devices.clone(), everything.clauses, 1, u32::MAX);
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
                "{}: left out, their I/O comes again below; a query that names one gets it",
                stacked.join(", ")
            ),
        ));
    }
    let bios = list(&|d| d.bio_based);
    if !bios.is_empty() {
        facts.push(ok(
            "disks without requests",
            format!("{bios}: seen by their bios; wait is 0"),
        ));
    }
    let silent = list(&|d| !d.bio_based && !counts_io(d));
    if !silent.is_empty() {
        facts.push(
            ok("disk statistics", format!("switched off on {silent}")).but(
                Status::Degraded,
                "there is nothing to check the counts against: no figure of completeness",
                "echo 1 > /sys/block/X/queue/iostats",
            ),
        );
    }
    facts
}

fn clock_is_kept() -> Fact {
    match clock::is_kept_right() {
        Some(true) => ok("clock", "kept right by another clock"),
        Some(false) => ok("clock", "kept right by nobody").but(
            Status::Degraded,
            "times of one host's queries are as wrong as its clock; rows that an agent sends are \
             in the monitor's time all the same",
            "run chronyd, systemd-timesyncd or another NTP client",
        ),
        None => ok("clock", "the kernel does not say whether it is right"),
    }
}

fn statistics() -> Fact {
    let path = Path::new("/proc/sys/kernel/bpf_stats_enabled");
    let on = read_text(path).is_some_and(|text| text != "0");
    let fact = ok("BPF run statistics", if on { "on" } else { "off" });
    if on {
        return fact.but(
            Status::Degraded,
            "each run of each program costs some 50 ns more",
            "sysctl kernel.bpf_stats_enabled=0",
        );
    }
    fact
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(version("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(version("5.4.0-200-generic"), Some((5, 4)));
        assert!(version("5.9.1").unwrap() < (5, 15));
        assert_eq!(version("unknown"), None);
    }
}
