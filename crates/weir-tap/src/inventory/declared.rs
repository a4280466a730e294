//! [`Declared`]: processes that the user declared to be a VM: `NAME=pid:PID`, `NAME=comm:COMMAND`
//! or `NAME=cgroup:PATH`.

use std::fmt;
use std::str::FromStr;

use weir_model::inventory::VmKind;

use super::found::FoundVm;
use super::process::{Process, Processes};
use super::{Inventory, Scene};

/// A VM as the user declared it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// The VM's name.
    pub name: String,
    /// The processes that belong to it.
    pub which: ProcessSelector,
}

/// Selects the processes of a declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessSelector {
    /// The process with this number; after it ends, no process matches.
    Pid(u32),
    /// All processes with this name, as in column `comm`.
    Comm(String),
    /// All processes in this cgroup and below.
    Cgroup(String),
}

impl FromStr for Declared {
    type Err = String;

    fn from_str(text: &str) -> Result<Declared, String> {
        const SHAPES: &str = "NAME=pid:PID, NAME=comm:COMMAND or NAME=cgroup:PATH";
        let wrong = |what: String| format!("{what}; expected {SHAPES}");
        let (name, which) = text
            .split_once('=')
            .ok_or_else(|| wrong("a name and `=` are missing".into()))?;
        if name.trim().is_empty() {
            return Err(wrong("the name is empty".into()));
        }
        let (kind, value) = which
            .split_once(':')
            .ok_or_else(|| wrong(format!("`{which}` has no kind")))?;
        let which = match (kind, value) {
            (_, "") => return Err(wrong(format!("the value after `{kind}:` is missing"))),
            ("pid", pid) => ProcessSelector::Pid(
                pid.parse()
                    .map_err(|_| wrong(format!("`{pid}` is not a process ID")))?,
            ),
            ("comm", comm) => ProcessSelector::Comm(shortened(comm).into()),
            ("cgroup", path) if path.trim_end_matches('/').is_empty() => {
                return Err(wrong(format!("`{path}` is the root of all cgroups")));
            }
            ("cgroup", path) if path.starts_with('/') => {
                ProcessSelector::Cgroup(path.trim_end_matches('/').into())
            }
            ("cgroup", path) => {
                return Err(wrong(format!("`{path}` is not an absolute path")));
            }
            (kind, _) => return Err(wrong(format!("unknown kind `{kind}`"))),
        };
        Ok(Declared {
            name: name.trim().into(),
            which,
        })
    }
}

impl fmt::Display for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.which {
            ProcessSelector::Pid(pid) => write!(f, "{}=pid:{pid}", self.name),
            ProcessSelector::Comm(comm) => write!(f, "{}=comm:{comm}", self.name),
            ProcessSelector::Cgroup(path) => write!(f, "{}=cgroup:{path}", self.name),
        }
    }
}

/// A declaration and, for a single process, its start time, because process numbers are reused.
#[derive(Clone, Debug)]
pub(super) struct Pinned {
    declared: Declared,
    start_ticks: Option<u64>,
}

impl Pinned {
    pub(super) fn new(declared: &Declared) -> Pinned {
        Pinned {
            declared: declared.clone(),
            start_ticks: None,
        }
    }

    /// Binds a declaration by number to the process that has the number now, once.
    pub(super) fn pin(&mut self, processes: &Processes) {
        if let (ProcessSelector::Pid(pid), None) = (&self.declared.which, self.start_ticks) {
            self.start_ticks = processes.get(*pid).map(|p| p.start_ticks);
        }
    }

    fn means(&self, process: &Process) -> bool {
        match &self.declared.which {
            ProcessSelector::Pid(pid) => {
                process.pid == *pid && self.start_ticks.is_none_or(|s| s == process.start_ticks)
            }
            ProcessSelector::Comm(comm) => process.comm == *comm,
            ProcessSelector::Cgroup(path) => process
                .cgroup
                .is_some_and(|cgroup| super::is_within(cgroup.as_str(), path)),
        }
    }
}

/// The VMs declared by the user.
pub(super) static INVENTORY: Inventory = Inventory {
    name: "declared",
    programs: |_| false,
    concerns: |process, declared| declared.iter().any(|d| d.means(process)),
    look,
};

fn look(scene: &Scene) -> Vec<FoundVm> {
    let found = scene.declared.iter().filter_map(|pinned| {
        let processes = scene.processes.all().into_iter();
        let mut means: Vec<&Process> = processes.filter(|p| pinned.means(p)).collect();
        means.sort_unstable_by_key(|p| (p.start_ticks, p.pid));
        let first = means.first()?;
        let which = &pinned.declared.which;
        Some(FoundVm {
            name: Some(pinned.declared.name.clone()),
            vouched: true,
            pid: Some(first.pid),
            workers: match which {
                // Its processes change; the cgroup remains.
                ProcessSelector::Cgroup(_) => Vec::new(),
                _ => means.iter().skip(1).map(|p| p.pid).collect(),
            },
            cgroup: match which {
                ProcessSelector::Cgroup(path) => Some(path.clone()),
                _ => None,
            },
            ..FoundVm::new(VmKind::Process)
        })
    });
    found.collect()
}

/// The kernel stores 15 bytes of a name (`TASK_COMM_LEN` of include/linux/sched.h).
fn shortened(comm: &str) -> &str {
    let end = (0..=15.min(comm.len())).rfind(|end| comm.is_char_boundary(*end));
    &comm[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declaration_has_a_name_a_kind_and_a_value() {
        let parse = |text: &str| text.parse::<Declared>().map(|d| d.to_string());
        for text in ["db=pid:77", "web=comm:nginx", "a b=cgroup:/x/y"] {
            assert_eq!(parse(text).as_deref(), Ok(text));
        }
        assert_eq!(
            parse("x=comm:a-name-longer-than-the-kernel-keeps").as_deref(),
            Ok("x=comm:a-name-longer-t")
        );
        let errors = [
            "db",
            "=pid:7",
            "x=pid:",
            "x=pid:y",
            "x=7",
            "x=cgroup:a",
            "x=cgroup:/",
        ];
        for text in errors {
            assert!(parse(text).unwrap_err().contains("NAME=pid:PID"), "{text}");
        }
    }
}
