//! [`Processes`]: the processes of the host, scanned repeatedly at low cost: the program and
//! arguments of a process are read when it is new or has executed another program.
//!
//! Sources: proc(5), proc_pid_stat(5), cgroups(7).

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use weir_model::{Nanos, Symbol};

use super::host::Host;

/// Maximum number of processes that are tracked.
const PROCESSES_MAX: usize = 1 << 18;

/// Every process is read completely once in this many scans, since its cgroup may change unnoticed.
const LOOKS_PER_ROUND: u32 = 16;

/// `PF_KTHREAD` of include/linux/sched.h.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Mode bits: the group and others may write.
const OTHERS_WRITE: u32 = 0o022;

/// `USER_HZ`, the unit of time in /proc on every architecture except alpha and ia64.
const TICKS_PER_SECOND: i64 = 100;

/// A process (thread group).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its process id.
    pub pid: u32,
    /// Its name, which it may change.
    pub comm: String,
    /// Start time, in ticks since boot. Process id and start together identify a process uniquely.
    pub start_ticks: u64,
    /// Whether it is a kernel thread.
    pub kernel: bool,
    /// The user who started it; `None` for kernel threads, and where it cannot be read.
    pub uid: Option<u32>,
    /// The file name of its program.
    pub program: String,
    /// Whether the file of its program belongs to root and is writable by no other user.
    pub program_is_roots: bool,
    /// Its arguments, the program first; stored only if an inventory needs them.
    pub arguments: Vec<String>,
    /// The path of its cgroup in the hierarchy to which block I/O is charged.
    pub cgroup: Option<Symbol>,
}

/// The processes as last scanned.
#[derive(Debug)]
pub struct Processes {
    by_pid: HashMap<u32, Process>,
    looks: u32,
    /// Selects the programs whose arguments are stored.
    wanted: fn(&str) -> bool,
    /// Boot time of the host.
    boot: Option<Nanos>,
    cgroup_controller: CgroupController,
}

/// The line of /proc/PID/cgroup with the cgroup to which block I/O is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CgroupController {
    /// v1: the line of controller `blkio`.
    Blkio,
    /// v2: the line that begins with `0::`.
    Unified,
}

impl Processes {
    /// No processes yet; `wanted` selects the programs whose arguments are stored.
    pub fn new(host: &Host, now: Nanos, wanted: fn(&str) -> bool) -> Processes {
        let up = host.text("/proc/uptime").and_then(|text| {
            let seconds: f64 = text.split(' ').next()?.parse().ok()?;
            Some((seconds * 1e9) as Nanos)
        });
        Processes {
            by_pid: HashMap::new(),
            looks: 0,
            wanted,
            boot: up.map(|up| now - up),
            cgroup_controller: CgroupController::find(host),
        }
    }

    /// Scans all processes; true if one has started, ended or changed.
    pub fn look(&mut self, host: &Host) -> bool {
        self.looks = self.looks.wrapping_add(1);
        let mut before = std::mem::take(&mut self.by_pid);
        let mut changed = false;
        for name in host.names_of("/proc", "the processes of other users") {
            let Ok(pid) = name.parse::<u32>() else {
                continue;
            };
            if self.by_pid.len() >= PROCESSES_MAX {
                break;
            }
            let Some(stat) = Stat::read(host, pid) else {
                continue;
            };
            let known = before.remove(&pid).filter(|known| stat.is(known));
            let due = pid % LOOKS_PER_ROUND == self.looks % LOOKS_PER_ROUND;
            let process = match known {
                Some(known) if !due => known,
                known => {
                    let process = self.examine(host, stat);
                    changed |= known.as_ref() != Some(&process);
                    process
                }
            };
            self.by_pid.insert(pid, process);
        }
        changed || !before.is_empty()
    }

    /// Scans process `pid` alone; returns its previous and current state, if they differ.
    pub fn look_at(&mut self, host: &Host, pid: u32) -> Option<(Option<Process>, Option<Process>)> {
        let stat = Stat::read(host, pid);
        let known = self.by_pid.get(&pid);
        match (&stat, known) {
            (Some(stat), Some(known)) if stat.is(known) => return None,
            (None, None) => return None,
            _ => {}
        }
        let now = stat.map(|stat| self.examine(host, stat));
        let before = self.by_pid.remove(&pid);
        self.by_pid.extend(now.iter().map(|p| (pid, p.clone())));
        Some((before, now))
    }

    /// All processes, sorted by process id.
    pub fn all(&self) -> Vec<&Process> {
        let mut all: Vec<&Process> = self.by_pid.values().collect();
        all.sort_unstable_by_key(|p| p.pid);
        all
    }

    /// The process with this number.
    pub fn get(&self, pid: u32) -> Option<&Process> {
        self.by_pid.get(&pid)
    }

    /// The start time of a process.
    pub fn started(&self, process: &Process) -> Option<Nanos> {
        let ticks = i64::try_from(process.start_ticks).ok()?;
        let since_boot = ticks.checked_mul(1_000_000_000 / TICKS_PER_SECOND)?;
        self.boot?.checked_add(since_boot)
    }

    fn examine(&self, host: &Host, stat: Stat) -> Process {
        let folder = PathBuf::from(format!("/proc/{}", stat.pid));
        let (mut program, mut arguments) = (String::new(), Vec::new());
        let (mut uid, mut program_is_roots) = (None, false);
        if !stat.kernel {
            uid = real_uid(host, &folder);
            program_is_roots = is_roots(host, &folder.join("exe"));
            arguments = read_arguments(host, &folder);
            program = program_of(host, &folder, &arguments);
            if !(self.wanted)(&program) {
                arguments = Vec::new();
            }
        }
        Process {
            cgroup: self.cgroup_controller.cgroup_of(host, &folder),
            pid: stat.pid,
            comm: stat.comm,
            start_ticks: stat.start_ticks,
            kernel: stat.kernel,
            uid,
            program,
            program_is_roots,
            arguments,
        }
    }
}

/// Fields of /proc/PID/stat.
struct Stat {
    pid: u32,
    comm: String,
    start_ticks: u64,
    kernel: bool,
}

impl Stat {
    fn read(host: &Host, pid: u32) -> Option<Stat> {
        Stat::parse(&host.text(format!("/proc/{pid}/stat"))?)
    }

    /// A name may contain spaces and parentheses: the last one ends it.
    fn parse(text: &str) -> Option<Stat> {
        let (head, rest) = text.rsplit_once(')')?;
        let (pid, comm) = head.split_once('(')?;
        let words: Vec<&str> = rest.split_whitespace().collect();
        // The state is field 3, the first one here; flags are field 9, the start field 22.
        let flags: u64 = words.get(9 - 3)?.parse().ok()?;
        Some(Stat {
            pid: pid.trim().parse().ok()?,
            comm: comm.to_owned(),
            start_ticks: words.get(22 - 3)?.parse().ok()?,
            kernel: flags & KERNEL_THREAD != 0,
        })
    }

    /// True if it is the same process and, by its name, the same program.
    fn is(&self, known: &Process) -> bool {
        self.start_ticks == known.start_ticks && self.comm == known.comm
    }
}

/// The real user id. The owner of /proc/PID may differ: it is root if the process has made itself
/// not dumpable (proc(5)).
fn real_uid(host: &Host, folder: &Path) -> Option<u32> {
    let status = host.text(folder.join("status"))?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().next()?.parse().ok()
}

/// Whether a program file belongs to root and no other user can write to it.
fn is_roots(host: &Host, exe: &Path) -> bool {
    let meta = fs::metadata(host.path(exe));
    meta.is_ok_and(|meta| meta.uid() == 0 && meta.mode() & OTHERS_WRITE == 0)
}

fn read_arguments(host: &Host, folder: &Path) -> Vec<String> {
    let bytes = host.bytes(folder.join("cmdline")).unwrap_or_default();
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
    let words = bytes.split(|byte| *byte == 0);
    words
        .map(|w| String::from_utf8_lossy(w).into_owned())
        .collect()
}

/// The name of the executable, from the arguments if it cannot be read.
fn program_of(host: &Host, folder: &Path, arguments: &[String]) -> String {
    let exe = host.link(folder.join("exe"));
    let exe = exe.as_deref().and_then(|path| path.to_str());
    let path = exe
        .or(arguments.first().map(String::as_str))
        .unwrap_or_default();
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

impl CgroupController {
    fn find(host: &Host) -> CgroupController {
        let own = host.text("/proc/self/cgroup").unwrap_or_default();
        match own
            .lines()
            .any(|line| cgroup_in(line, CgroupController::Blkio).is_some())
        {
            true => CgroupController::Blkio,
            false => CgroupController::Unified,
        }
    }

    fn cgroup_of(self, host: &Host, folder: &Path) -> Option<Symbol> {
        let text = host.text(folder.join("cgroup"))?;
        let path = text.lines().find_map(|line| cgroup_in(line, self))?;
        Symbol::try_new(path).ok()
    }
}

/// The path in a line `hierarchy:controllers:path`, if it is the line of `controller`.
fn cgroup_in(line: &str, controller: CgroupController) -> Option<&str> {
    let mut parts = line.splitn(3, ':');
    let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let found = match controller {
        CgroupController::Blkio => controllers.split(',').any(|c| c == "blkio"),
        CgroupController::Unified => id == "0" && controllers.is_empty(),
    };
    found.then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let stat = "77 (qemu) S (x) S 1 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 98765 1 2";
        let stat = Stat::parse(stat).unwrap();
        assert_eq!((stat.pid, stat.start_ticks), (77, 98765));
        assert_eq!((stat.comm.as_str(), stat.kernel), ("qemu) S (x", false));
        assert!(Stat::parse("77 (qemu").is_none());
        assert!(Stat::parse("").is_none());
    }

    #[test]
    fn the_cgroup_is_the_one_that_is_charged() {
        let v1 = "7:blkio:/a";
        assert_eq!(cgroup_in(v1, CgroupController::Blkio), Some("/a"));
        assert_eq!(
            cgroup_in("4:cpu,blkio:/b:c", CgroupController::Blkio),
            Some("/b:c")
        );
        assert_eq!(cgroup_in("0::/c", CgroupController::Unified), Some("/c"));
        assert_eq!(cgroup_in("0::/c", CgroupController::Blkio), None);
        assert_eq!(cgroup_in("nonsense", CgroupController::Unified), None);
    }
}
